//! One computation, instruction by instruction.
//!
//! The walk begins with nothing known but that parameters are whole in their slices (and constants in theirs), and
//! follows which value every byte holds. Two tables say it: [`Contents`] for bytes, `names` for positions: which
//! value the program means there. A read is right when the bytes at the position's slice hold the value that the
//! position names.
//!
//! Since the slice of a position does not depend on who calls its computation, neither does the walk: each
//! computation is walked once, callees first, and leaves a [`Summary`] that stands for it wherever it is called.

use memplan_ir::{ComputationId, EntityRef, InstructionId, Op, PositionId, ShapeIndex};
use memplan_memory::{Bytes, Slice};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::Violation;
use crate::bytes::{Contents, Holder, InFlight, Written};
use crate::facts::{Facts, Report};
use crate::in_place::{self, Memo};

/// What a caller must know of a computation that was walked.
#[derive(Default)]
pub(crate) struct Summary {
    /// All bytes that it writes, at any depth.
    pub(crate) written: Written,
}

/// What outlives the walk of one computation.
pub(crate) struct Proving<'a> {
    pub(crate) facts: &'a Facts<'a>,
    pub(crate) report: &'a mut Report,
    pub(crate) memo: Memo,
    /// The value that each position stands for.
    pub(crate) names: Vec<Holder>,
    /// Whether anything reads the value defined at a position. Callers ask it of parameters.
    pub(crate) is_read: Vec<bool>,
    pub(crate) summaries: FxHashMap<ComputationId, Summary>,
    /// The constant that a parameter without memory always is.
    pub(crate) immediates: FxHashMap<PositionId, PositionId>,
    /// Pieces of written memory that may still be looked at on behalf of called computations.
    pub(crate) fuel: usize,
    /// Reads that were proved.
    pub(crate) reads: usize,
    /// Writes that were followed.
    pub(crate) writes: usize,
}

/// The state of the walk of one computation.
pub(crate) struct Walk<'p, 'a> {
    pub(crate) proving: &'p mut Proving<'a>,
    pub(crate) contents: Contents,
    pub(crate) written: Written,
    pub(crate) in_flight: InFlight,
    /// Operations in flight by the name of the tuple that stands for them.
    pub(crate) flights: FxHashMap<PositionId, Flight>,
}

/// An asynchronous operation that was started and not yet done.
pub(crate) struct Flight {
    pub(crate) start: InstructionId,
    pub(crate) reads: Vec<Slice>,
    pub(crate) writes: Vec<Slice>,
}

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

/// Walks a computation whose callees have been walked.
pub(crate) fn walk(proving: &mut Proving<'_>, computation: ComputationId) -> Summary {
    let facts = proving.facts;
    let mut walk = Walk {
        proving,
        contents: Contents::default(),
        written: Written::default(),
        in_flight: InFlight::default(),
        flights: FxHashMap::default(),
    };
    walk.enter(computation);
    for &id in facts.schedule.sequence(computation) {
        if facts.module.instructions.is_valid(id) && facts.module.instructions[id].parent == computation {
            walk.step(id);
        }
    }
    walk.leave(computation);
    Summary { written: walk.written }
}

impl<'a> Walk<'_, 'a> {
    pub(crate) fn facts(&self) -> &'a Facts<'a> {
        self.proving.facts
    }

    /// Parameters are whole when a computation begins.
    fn enter(&mut self, computation: ComputationId) {
        let facts = self.facts();
        let is_entry = computation == facts.module.entry;
        for &parameter in &facts.module.computations[computation].parameters {
            for (position, part) in facts.parts_of(parameter) {
                let own = Holder::Value(position);
                let name = match facts.slice(position) {
                    None if part.size > 0 && is_entry => {
                        self.violation(Violation::Unplaced {
                            at: facts.place(position),
                            size: Bytes(part.size),
                        });
                        own
                    }
                    // Callers have to pass an immediate then.
                    None if part.size > 0 && !part.is_tuple => Holder::Embedded(position),
                    None => own,
                    Some(slice) if part.is_tuple => {
                        self.contents.write(&slice, facts.table(position));
                        own
                    }
                    Some(slice) if facts.holds_constants(slice.allocation) => {
                        facts.constant_at(&slice).map_or(own, Holder::Value)
                    }
                    Some(slice) => match self.contents.first(&slice) {
                        // Parameters in one slice are one value.
                        Holder::Value(other) if facts.slice(other) == Some(slice) => Holder::Value(other),
                        _ => {
                            self.contents.write(&slice, own);
                            own
                        }
                    },
                };
                self.set_name(position, name);
            }
        }
    }

    /// The result must be whole when a computation ends, and nothing of its own in flight.
    fn leave(&mut self, computation: ComputationId) {
        let facts = self.facts();
        let root = facts.module.computations[computation].root;
        let is_entry = computation == facts.module.entry;
        for (position, part) in facts.parts_of(root) {
            if facts.slice(position).is_none() && part.size > 0 && is_entry {
                // Callers cannot look for results in code.
                self.violation(Violation::Unplaced { at: facts.place(position), size: Bytes(part.size) });
            }
            match is_entry {
                true => self.expect_result(position),
                false => _ = self.expect(root, position),
            }
            if let Holder::Value(name) = self.name(position) {
                self.flights.remove(&name);
            }
        }
        if is_entry {
            self.expect_residents();
        }
        let mut starts: Vec<InstructionId> = self.flights.values().map(|flight| flight.start).collect();
        starts.sort_unstable();
        for start in starts {
            self.violation(Violation::NeverDone { start: facts.place_of(start) });
        }
    }

    fn step(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let operand = |i: usize| instruction.operands.get(i).map(|&o| facts.positions.root(o));
        let whole = facts.positions.root(id);
        match &instruction.op {
            Op::Parameter { .. } => {}
            Op::Constant(_) => self.constant(id),
            Op::Bitcast => self.pass_from(id, whole, operand(0), Passing::Bitcast),
            Op::AddDependency | Op::OptimizationBarrier | Op::Domain(_) => {
                self.pass_from(id, whole, operand(0), Passing::Whole);
            }
            Op::GetTupleElement { index } => {
                let tuple = instruction.operands.first().copied();
                let element = tuple.and_then(|t| facts.positions.find(t, &ShapeIndex::from([*index])));
                self.read_table(id, operand(0));
                self.pass_from(id, whole, element, Passing::Whole);
            }
            Op::Tuple => {
                for i in 0..instruction.operands.len() {
                    let element = facts.positions.find(id, &ShapeIndex::from([i as u32]));
                    self.pass_from(id, element.unwrap_or(whole), operand(i), Passing::Whole);
                }
                self.write_table(id, whole);
            }
            // A tuple is copied by its table; what it points to stays where it is.
            Op::Copy if facts.part(whole).is_tuple => {
                self.read_table(id, operand(0));
                self.pass_from(id, whole, operand(0), Passing::OwnTables);
            }
            Op::While => self.run_while(id),
            Op::Conditional => self.run_conditional(id),
            Op::Call { .. } => self.run_call(id),
            Op::AsyncStart(_) => self.start_call(id),
            Op::CopyStart { cross_program_prefetch_index: Some(_) }
                if instruction.parent == facts.module.entry =>
            {
                self.expect_untouched(id);
                self.compute(id, true);
            }
            Op::CopyStart { .. }
            | Op::Send(_)
            | Op::Recv(_)
            | Op::AllGatherStart(_)
            | Op::AllReduceStart(_)
            | Op::CollectivePermuteStart(_) => self.compute(id, true),
            Op::AsyncUpdate(_) => {
                let flight = self.name_of(operand(0)).and_then(|name| self.flights.remove(&name));
                self.read_table(id, operand(0));
                self.pass_from(id, whole, operand(0), Passing::OwnTables);
                self.set_name(whole, Holder::Value(whole));
                if let Some(flight) = flight {
                    self.flights.insert(whole, flight);
                }
            }
            Op::CopyDone
            | Op::SendDone(_)
            | Op::RecvDone(_)
            | Op::AllGatherDone(_)
            | Op::AllReduceDone(_)
            | Op::CollectivePermuteDone(_)
            | Op::AsyncDone(_) => self.done(id),
            _ => self.compute(id, false),
        }
        let computes = !crate::structure::runs_callees(&instruction.op);
        if let (Some(slice), false) = (facts.scratch(id), computes) {
            self.write(id, &slice, Holder::Scratch(id));
        }
    }

    /// A constant is an immediate, or lies in memory that nobody writes.
    fn constant(&mut self, id: InstructionId) {
        let facts = self.facts();
        let shape = facts.module.shape(id);
        let is_embedded =
            !shape.is_tuple() && facts.target.unpadded_size_of(shape) <= facts.target.embedded_constant_bytes;
        for (position, part) in facts.parts_of(id) {
            let name = match facts.slice(position) {
                Some(slice) => Holder::Value(facts.constant_at(&slice).unwrap_or(position)),
                None if part.size == 0 => Holder::Value(position),
                None => {
                    if !is_embedded {
                        self.violation(Violation::Unplaced {
                            at: facts.place(position),
                            size: Bytes(part.size),
                        });
                    }
                    Holder::Embedded(position)
                }
            };
            self.set_name(position, name);
        }
    }

    /// An operation that reads its operands whole and writes its results; with `starts`, both go on until it is
    /// done.
    fn compute(&mut self, id: InstructionId, starts: bool) {
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
        if let Some(slice) = facts.scratch(id) {
            writes.push(Write { slice, holder: Holder::Scratch(id), position: None });
        }
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

    /// The parts of a start's result that stand for its operands.
    fn pass_sources(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        // Parts are named as they are passed or defined; a loop never walks its body twice, so all are unnamed now.
        let source_index = match &instruction.op {
            Op::CopyStart { .. } => 1,
            Op::Send(_) | Op::AllGatherStart(_) | Op::CollectivePermuteStart(_) => 0,
            _ => return,
        };
        let Some(sources) = facts.positions.find(id, &ShapeIndex::from([source_index])) else { return };
        let n = match in_place::in_place_permute(instruction) {
            true => 1,
            false => instruction.operands.len(),
        };
        let several =
            matches!(instruction.op, Op::AllGatherStart(_) | Op::CollectivePermuteStart(_)) && n > 1;
        for i in 0..if several { n } else { 1 } {
            let to = match several {
                true => facts.positions.find(id, &ShapeIndex::from([source_index, i as u32])),
                false => Some(sources),
            };
            let from = instruction.operands.get(i).map(|&o| facts.positions.root(o));
            if let Some(to) = to {
                self.pass_from(id, to, from, Passing::Whole);
            }
        }
    }

    /// What a done makes visible: part `{0}` or `{1}` of the start's result, or all of it.
    fn done(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let whole = facts.positions.root(id);
        let Some(&start) = instruction.operands.first() else { return };
        if let Some(flight) =
            self.name_of(Some(facts.positions.root(start))).and_then(|n| self.flights.remove(&n))
        {
            self.land(&flight);
        }
        self.read_table(id, Some(facts.positions.root(start)));
        let part = |index: u32| facts.positions.find(start, &ShapeIndex::from([index]));
        match &instruction.op {
            Op::SendDone(_) => self.set_name(whole, Holder::Value(whole)),
            Op::RecvDone(_) => {
                for position in facts.positions.of(id) {
                    self.set_name(position, Holder::Value(position));
                }
                let data = facts.positions.find(id, &ShapeIndex::from([0]));
                self.pass_from(id, data.unwrap_or(whole), part(0), Passing::OwnTables);
                self.write_table(id, whole);
            }
            Op::AllReduceDone(_) => {
                self.pass_from(id, whole, Some(facts.positions.root(start)), Passing::OwnTables);
            }
            Op::CopyDone => self.pass_from(id, whole, part(0), Passing::OwnTables),
            _ => self.pass_from(id, whole, part(1), Passing::OwnTables),
        }
    }

    /// Marks an operation as in flight under the name of the tuple that stands for it.
    pub(crate) fn take_off(&mut self, name: PositionId, flight: Flight) {
        flight.reads.iter().for_each(|slice| self.in_flight.hold_read(slice, flight.start));
        flight.writes.iter().for_each(|slice| self.in_flight.hold_write(slice, flight.start));
        self.flights.insert(name, flight);
    }

    /// Ends an operation in flight.
    pub(crate) fn land(&mut self, flight: &Flight) {
        flight.reads.iter().for_each(|slice| self.in_flight.release_read(slice));
        flight.writes.iter().for_each(|slice| self.in_flight.release_write(slice));
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
                (None, None) => {}
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
                let may = slice == read.slice
                    && in_place::may_overwrite(
                        facts.module,
                        &mut self.proving.memo,
                        id,
                        read.operand,
                        facts.positions.shape_index(read.position),
                        facts.positions.shape_index(position),
                    );
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

    /// Reads a position. Returns whether there was something to read in memory, and it was whole.
    pub(crate) fn expect(&mut self, reader: InstructionId, position: PositionId) -> bool {
        let facts = self.facts();
        match self.look(position) {
            Look::Whole => true,
            Look::NotInMemory => false,
            Look::InFlight(slice, start) => {
                let (reader, start) = (facts.place_of(reader), facts.place_of(start));
                self.violation(Violation::ReadInFlight { reader, slice, start });
                false
            }
            Look::Other(slice, bytes, holder) => {
                let (reader, value) = (facts.place_of(reader), facts.place(position));
                let found = facts.found(holder);
                self.violation(Violation::Lost { reader, value, slice, bytes, found });
                false
            }
        }
    }

    /// Where the call before may have left a value, nothing is written until the copy starts that would bring it.
    fn expect_untouched(&mut self, start: InstructionId) {
        let facts = self.facts();
        let to = facts.positions.find(start, &ShapeIndex::from([0]));
        if let Some(slice) = to.and_then(|to| facts.slice(to))
            && self.written.touches(&slice)
        {
            self.violation(Violation::ResidentLate { start: facts.place_of(start), slice });
        }
    }

    /// What the next call may look for is whole at the end.
    fn expect_residents(&mut self) {
        let facts = self.facts();
        for &start in facts.schedule.sequence(facts.module.entry) {
            let is_kept = facts.module.instructions.is_valid(start)
                && matches!(
                    facts.module.instructions[start].op,
                    Op::CopyStart { cross_program_prefetch_index: Some(_) }
                );
            if is_kept
                && let Some(to) = facts.positions.find(start, &ShapeIndex::from([0]))
                && let Look::Other(slice, bytes, holder) = self.look(to)
            {
                let (start, found) = (facts.place_of(start), facts.found(holder));
                self.violation(Violation::ResidentLost { start, slice, bytes, found });
            }
        }
    }

    fn expect_result(&mut self, position: PositionId) {
        let facts = self.facts();
        match self.look(position) {
            Look::Whole | Look::NotInMemory => {}
            Look::InFlight(slice, start) => {
                let (reader, start) = (facts.place(position), facts.place_of(start));
                self.violation(Violation::ReadInFlight { reader, slice, start });
            }
            Look::Other(slice, bytes, holder) => {
                let (value, found) = (facts.place(position), facts.found(holder));
                self.violation(Violation::ResultLost { value, slice, bytes, found });
            }
        }
    }

    /// Whether a position's slice holds what the position names.
    fn look(&mut self, position: PositionId) -> Look {
        let facts = self.facts();
        let name = self.name(position);
        if let Holder::Value(definition) = name {
            self.proving.is_read[definition.index()] = true;
        }
        let Some(slice) = facts.slice(position) else { return Look::NotInMemory };
        // An instruction that has not run has no name; the schedule was reported.
        if matches!(name, Holder::Nothing | Holder::Embedded(_)) {
            return Look::NotInMemory;
        }
        self.proving.reads += 1;
        if let Some(start) = self.in_flight.writer(&slice) {
            return Look::InFlight(slice, start);
        }
        if facts.holds_constants(slice.allocation) {
            let held = facts.constant_at(&slice).map_or(Holder::Nothing, Holder::Value);
            return if held == name { Look::Whole } else { Look::Other(slice, slice, held) };
        }
        let expected = if facts.part(position).is_tuple { facts.table(position) } else { name };
        match self.contents.find_other(&slice, expected) {
            None => Look::Whole,
            Some((bytes, holder)) => Look::Other(slice, bytes, holder),
        }
    }

    /// Makes a slice hold something new.
    pub(crate) fn write(&mut self, writer: InstructionId, slice: &Slice, holder: Holder) {
        let facts = self.facts();
        self.proving.writes += 1;
        if let Some(what) = facts.read_only(slice.allocation) {
            let at = match holder {
                Holder::Value(position) => facts.place(position),
                _ => facts.place_of(writer),
            };
            self.violation(Violation::ReadOnly { at, slice: *slice, what });
        }
        self.check_not_in_flight(writer, slice);
        self.contents.write(slice, holder);
        self.written.add(slice);
    }

    pub(crate) fn check_not_in_flight(&mut self, writer: InstructionId, slice: &Slice) {
        if let Some(start) = self.in_flight.user(slice) {
            let (writer, start) = (self.facts().place_of(writer), self.facts().place_of(start));
            self.violation(Violation::WrittenInFlight { writer, slice: *slice, start });
        }
    }

    /// Looks up where the elements of a tuple are.
    fn read_table(&mut self, reader: InstructionId, tuple: Option<PositionId>) {
        if let Some(tuple) = tuple.filter(|&tuple| self.facts().part(tuple).is_tuple) {
            self.expect(reader, tuple);
        }
    }

    /// Writes where the elements of a tuple are, if the tuple has a table.
    pub(crate) fn write_table(&mut self, writer: InstructionId, tuple: PositionId) {
        let facts = self.facts();
        self.set_name(tuple, Holder::Value(tuple));
        if let Some(slice) = facts.slice(tuple) {
            self.write(writer, &slice, facts.table(tuple));
        }
    }

    pub(crate) fn pass_from(
        &mut self,
        id: InstructionId,
        to: PositionId,
        from: Option<PositionId>,
        passing: Passing,
    ) {
        let pairs = from.and_then(|from| self.facts().pair(to, from));
        let Some(pairs) = pairs else {
            return self.malformed(id, "what it passes on has another shape than its result");
        };
        for (to, from) in pairs {
            self.pass(id, to, from, passing);
        }
    }

    /// Makes a position name the value at another one. Nothing moves, so both must be in the same place.
    fn pass(&mut self, id: InstructionId, to: PositionId, from: PositionId, passing: Passing) {
        let facts = self.facts();
        let (slice, source_slice) = (facts.slice(to), facts.slice(from));
        if passing == Passing::OwnTables && facts.part(to).is_tuple && slice != source_slice {
            return self.write_table(id, to);
        }
        let name = self.name(from);
        self.set_name(to, name);
        let start = |slice: Option<Slice>| slice.map(|s| (s.allocation, s.offset));
        let same = match passing {
            Passing::Bitcast => start(slice) == start(source_slice),
            // Where tuples are only known at compile time they need no table.
            _ => slice == source_slice || facts.part(to).is_tuple && slice.is_none(),
        };
        if !same {
            let (at, source_place) = (facts.place(to), facts.place(from));
            self.violation(Violation::Moved { at, slice, source_place, source_slice });
        }
        if passing != Passing::Bitcast {
            self.check_relaid(to, from);
        }
    }

    /// A result of a called computation stands for the callee's: both must be in the same place.
    pub(crate) fn check_moved(&mut self, to: PositionId, from: PositionId) {
        let facts = self.facts();
        let (slice, source_slice) = (facts.slice(to), facts.slice(from));
        if slice != source_slice && !(facts.part(to).is_tuple && slice.is_none()) {
            let (at, source_place) = (facts.place(to), facts.place(from));
            self.violation(Violation::Moved { at, slice, source_place, source_slice });
        }
        self.check_relaid(to, from);
    }

    /// Bytes that stay where they are stay in their order.
    fn check_relaid(&mut self, to: PositionId, from: PositionId) {
        let facts = self.facts();
        if facts.slice(from).is_some() && facts.part(to).lies != facts.part(from).lies {
            let (at, source_place) = (facts.place(to), facts.place(from));
            self.violation(Violation::Relaid { at, source_place });
        }
    }

    pub(crate) fn name(&self, position: PositionId) -> Holder {
        self.proving.names[position.index()]
    }

    pub(crate) fn set_name(&mut self, position: PositionId, name: Holder) {
        self.proving.names[position.index()] = name;
    }

    /// The position at which the value of a position was defined.
    fn name_of(&self, position: Option<PositionId>) -> Option<PositionId> {
        match self.name(position?) {
            Holder::Value(definition) => Some(definition),
            _ => None,
        }
    }

    pub(crate) fn malformed(&mut self, id: InstructionId, reason: &'static str) {
        let at = self.facts().place_of(id);
        self.violation(Violation::Malformed { at, reason });
    }

    pub(crate) fn violation(&mut self, violation: Violation) {
        self.proving.report.add(violation);
    }
}

/// What passes a value on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// Everything, tables included.
    Whole,
    /// The same bytes under another shape, perhaps with other padding at the end.
    Bitcast,
    /// Everything but tables, which may be written anew.
    OwnTables,
}

/// What is found at a position.
enum Look {
    Whole,
    NotInMemory,
    InFlight(Slice, InstructionId),
    /// The slice, the first bytes of it that are wrong, and what they hold.
    Other(Slice, Slice, Holder),
}
