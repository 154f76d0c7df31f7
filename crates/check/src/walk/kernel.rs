//! Operations that read memory and write memory.

use memplan_ir::{InstructionId, Op, PositionId, ShapeIndex};
use memplan_memory::{Bytes, Slice};
use smallvec::SmallVec;

use super::{Flight, Walk};
use crate::Violation;
use crate::bytes::Holder;
use crate::in_place;

/// A part of an operand that an instruction reads.
#[derive(Clone, Copy)]
struct Read {
    slice: Slice,
    operand: usize,
    position: PositionId,
}

/// Something that an instruction writes.
#[derive(Clone, Copy)]
struct Write {
    slice: Slice,
    holder: Holder,
    /// `None`: scratch memory.
    position: Option<PositionId>,
}

impl Walk<'_, '_> {
    /// An operation that reads its operands whole and writes its results; with `starts`, both go on until it is
    /// done.
    pub(super) fn compute(&mut self, id: InstructionId, starts: bool) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let used = match (&instruction.op, instruction.called.first()) {
            (Op::Fusion(_), Some(&body)) => {
                in_place::used_parameters(facts.module, &mut self.proving.memo, body).to_vec()
            }
            _ => Vec::new(),
        };
        let mut reads: SmallVec<[Read; 8]> = SmallVec::new();
        for (operand, &source) in instruction.operands.iter().enumerate() {
            if matches!(instruction.op, Op::AfterAll) || used.get(operand) == Some(&false) {
                continue;
            }
            for position in facts.positions.of(source) {
                if self.expect(id, position)
                    && let Some(slice) = facts.slice(position)
                {
                    reads.push(Read { slice, operand, position });
                }
            }
        }
        if starts {
            self.pass_sources(id);
        }
        let mut writes: SmallVec<[Write; 4]> = SmallVec::new();
        for (position, part) in facts.parts_of(id) {
            if starts && self.name(position) != Holder::Nothing {
                continue;
            }
            self.set_name(position, Holder::Value(position));
            let holder = if part.is_tuple { facts.table(position) } else { Holder::Value(position) };
            match facts.slice(position) {
                Some(slice) => writes.push(Write { slice, holder, position: Some(position) }),
                None if part.size > 0 && !part.is_tuple => {
                    self.violation(Violation::Unplaced { at: facts.place(position), size: Bytes(part.size) });
                }
                None => {}
            }
        }
        let scratch = facts.scratch(id);
        writes.extend(scratch.map(|slice| Write { slice, holder: Holder::Scratch(id), position: None }));
        self.check_aliases(id);
        self.check_disjoint(id, &mut reads, &mut writes);
        for write in &writes {
            self.write(id, &write.slice, write.holder);
        }
        if starts {
            let is_table = |w: &&Write| !matches!(w.holder, Holder::Table(_));
            let writes = writes.iter().filter(is_table).map(|w| w.slice).collect();
            let reads = reads.iter().map(|r| r.slice).collect();
            self.take_off(facts.positions.root(id), Flight { start: id, reads, writes });
        }
    }

    /// Declared in-place operands must be where their results are: the kernel knows only one address.
    pub(crate) fn check_aliases(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let mut pairs: Vec<_> = Vec::new();
        for alias in in_place::declared(&instruction.op) {
            let operand = instruction.operands.get(alias.operand as usize);
            let operand = operand.and_then(|&o| facts.positions.find(o, &alias.operand_index));
            pairs.push((facts.positions.find(id, &alias.output_index), operand));
        }
        let second = instruction.operands.get(1).map(|&o| facts.positions.root(o));
        match &instruction.op {
            Op::RaggedAllToAll(_) => pairs.push((Some(facts.positions.root(id)), second)),
            Op::CollectivePermute(_) if in_place::in_place_permute(instruction) => {
                pairs.push((Some(facts.positions.root(id)), second));
            }
            Op::CollectivePermuteStart(_) if in_place::in_place_permute(instruction) => {
                pairs.push((facts.positions.find(id, &ShapeIndex::from([1])), second));
            }
            _ => {}
        }
        for (output, operand) in pairs {
            let parts = output.zip(operand).and_then(|(output, operand)| facts.pair(output, operand));
            let Some(parts) = parts else {
                self.malformed(id, "an in-place pair does not fit operand and result");
                continue;
            };
            for (output, operand) in parts.filter(|&(o, _)| !facts.part(o).is_tuple) {
                let (slice, operand_slice) = (facts.slice(output), facts.slice(operand));
                if slice != operand_slice {
                    let (at, operand) = (facts.place(output), facts.place(operand));
                    self.violation(Violation::AliasBroken { at, slice, operand, operand_slice });
                }
            }
        }
    }

    /// The start of the asynchronous operation that an instruction carries out.
    fn start_of(&self, id: InstructionId) -> Option<InstructionId> {
        let facts = self.facts();
        let parent = facts.module.instructions[id].parent;
        let start = *facts.starts.get(&parent)?;
        (facts.module.computations[parent].root == id).then_some(start)
    }

    /// No result shares bytes with another, nor with an operand unless it may take its place.
    fn check_disjoint(&mut self, id: InstructionId, reads: &mut [Read], writes: &mut [Write]) {
        let facts = self.facts();
        let order = |slice: &Slice| (slice.allocation, slice.offset, slice.size);
        writes.sort_by_key(|write| order(&write.slice));
        reads.sort_by_key(|read| order(&read.slice));
        for pair in writes.windows(2).filter(|pair| pair[0].slice.overlaps(&pair[1].slice)) {
            let slice = pair[1].slice;
            match (pair[0].position, pair[1].position) {
                (Some(a), Some(b)) => {
                    let (at, other) = (facts.place(b), facts.place(a));
                    self.violation(Violation::OutputsOverlap { at, other, slice });
                }
                (Some(other), None) | (None, Some(other)) => {
                    let slice = if pair[0].position.is_none() { pair[0].slice } else { slice };
                    let (at, other) = (facts.place_of(id), facts.place(other));
                    self.violation(Violation::ScratchOverlaps { at, slice, other });
                }
                (None, None) => {
                    let (at, other) = (facts.place_of(id), facts.place_of(id));
                    self.violation(Violation::ScratchOverlaps { at, slice, other });
                }
            }
        }
        for write in writes.iter() {
            // Reads were found whole, so they are equal or disjoint: the overlapping ones are neighbors.
            let end = (write.slice.allocation, write.slice.offset.saturating_add(write.slice.size));
            let after = reads.partition_point(|read| (read.slice.allocation, read.slice.offset) < end);
            for read in reads[..after].iter().rev().take_while(|read| read.slice.overlaps(&write.slice)) {
                let operand = || facts.place(read.position);
                let (slice, at) = (write.slice, facts.place_of(id));
                let Some(position) = write.position else {
                    self.violation(Violation::ScratchOverlaps { at, slice, other: operand() });
                    continue;
                };
                let (index, output) =
                    (facts.positions.shape_index(read.position), facts.positions.shape_index(position));
                let (module, memo) = (facts.module, &mut self.proving.memo);
                let may = slice == read.slice
                    && (in_place::may_overwrite(module, memo, id, read.operand, index, output)
                        || self.start_of(id).is_some_and(|start| {
                            in_place::start_declares(module, start, id, read.operand, index, output)
                        }));
                if !may {
                    let at = facts.place(position);
                    self.violation(Violation::OverwritesOperand {
                        at,
                        slice,
                        operand: operand(),
                        read: read.slice,
                    });
                }
            }
        }
    }
}
