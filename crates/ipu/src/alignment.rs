//! Alignment: which operands an instruction reads only at the element that a tile computes, so that nothing is
//! exchanged if operand and work have the same mapping.
//!
//! The *work* of an instruction is the array over which its vertices iterate: the result, or the operand of a
//! reduction.

use memplan_ir::indexing::{IndexMap, operands_read};
use memplan_ir::{ArrayShape, ComputationId, Instruction, InstructionId, Module, Op};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// How an operand is read, the least demanding first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reads {
    /// Element `i` for element `i` of the work.
    InStep,
    /// One element for a run of the work: an operand broadcast along the fastest dimensions.
    Rows,
    /// As one of several arrays that are put one after the other: for an element of the work, one of them is read.
    Joined,
    /// Anywhere.
    Anyhow,
}

/// How an instruction walks over its operands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alignment {
    /// How each operand is read.
    pub(crate) reads: SmallVec<[Reads; 4]>,
    /// Whether operands are reduced: the work is the operand.
    pub(crate) reduces: bool,
    /// Whether the elements of one sum are adjacent.
    pub(crate) reduces_minor: bool,
}

/// Alignments of a module; fused computations are looked into once.
pub(crate) struct Alignments<'m> {
    module: &'m Module,
    fused: FxHashMap<ComputationId, Alignment>,
}

impl<'m> Alignments<'m> {
    pub(crate) fn new(module: &'m Module) -> Alignments<'m> {
        Alignments { module, fused: FxHashMap::default() }
    }

    /// How an instruction reads its operands. Linear in its fused instructions, the first time.
    pub(crate) fn of(&mut self, id: InstructionId) -> Alignment {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Fusion(_) => {
                let module = self.module;
                let fused = instruction.called[0];
                self.fused.entry(fused).or_insert_with(|| look_into(module, fused)).clone()
            }
            _ => Alignment {
                reads: reads(self.module, id),
                reduces: matches!(instruction.op, Op::Reduce { .. }),
                reduces_minor: reduces_minor(self.module, instruction),
            },
        }
    }
}

/// Whether two arrays have the same elements in the same order.
pub(crate) fn same_order(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.dimensions == b.dimensions && a.minor_to_major() == b.minor_to_major()
}

/// How an instruction that is no fusion reads its operands.
fn reads(module: &Module, id: InstructionId) -> SmallVec<[Reads; 4]> {
    let instruction = &module.instructions[id];
    let maps = operands_read(module, id);
    (0..instruction.operands.len()).map(|k| read(module, id, k, maps[k].as_ref())).collect()
}

fn read(module: &Module, id: InstructionId, operand: usize, map: Option<&IndexMap>) -> Reads {
    let instruction = &module.instructions[id];
    let arrays = module.shape(id).as_array().zip(module.shape(instruction.operands[operand]).as_array());
    let in_step = match &instruction.op {
        Op::Reduce { .. } => operand < instruction.operands.len() / 2,
        // Bytes stay in place, whatever names the extents have.
        Op::Sort { .. } | Op::AllReduce(_) | Op::Bitcast | Op::Tuple => true,
        _ => map.is_some_and(IndexMap::is_identity) && arrays.is_some_and(|(a, b)| same_order(a, b)),
    };
    match (&instruction.op, arrays) {
        _ if in_step => Reads::InStep,
        (Op::Broadcast { dimensions }, Some((result, source))) => {
            let is_leading = dimensions.iter().copied().eq(0..source.rank() as i64);
            match is_leading && result.is_row_major() && source.is_row_major() {
                true => Reads::Rows,
                false => Reads::Anyhow,
            }
        }
        (Op::Concatenate { .. }, _) => Reads::Joined,
        _ => Reads::Anyhow,
    }
}

/// Walks from the root to the parameters: an operand is read as the most demanding operation on the way reads it.
fn look_into(module: &Module, fused: ComputationId) -> Alignment {
    let computation = &module.computations[fused];
    let mut demands: FxHashMap<InstructionId, Reads> = FxHashMap::default();
    let (mut reduces, mut minor) = (false, true);
    for &id in computation.instructions.iter().rev() {
        let instruction = &module.instructions[id];
        let mut demand = demands.get(&id).copied().unwrap_or(Reads::InStep);
        if matches!(instruction.op, Op::Reduce { .. }) {
            reduces = true;
            minor &= reduces_minor(module, instruction);
            // A sum that is spread over its row again is needed where the row is.
            if demand == Reads::Rows {
                demand = Reads::InStep;
            }
        }
        for (&operand, read) in instruction.operands.iter().zip(reads(module, id)) {
            // Of arrays that are joined one is read, however.
            let here = if demand == Reads::Joined { demand } else { demand.max(read) };
            let known = demands.entry(operand).or_insert(here);
            *known = match here == Reads::Joined || *known == Reads::Joined {
                true if here != *known => Reads::Anyhow,
                _ => here.max(*known),
            };
        }
    }
    let reads =
        computation.parameters.iter().map(|p| demands.get(p).copied().unwrap_or(Reads::InStep)).collect();
    Alignment { reads, reduces, reduces_minor: reduces && minor }
}

/// Whether a reduction is over the dimensions that vary fastest.
fn reduces_minor(module: &Module, instruction: &Instruction) -> bool {
    let (Op::Reduce { dimensions }, Some(array)) =
        (&instruction.op, instruction.operands.first().and_then(|&operand| module.shape(operand).as_array()))
    else {
        return false;
    };
    let order = array.minor_to_major();
    order.iter().take(dimensions.len()).all(|d| dimensions.contains(d))
}
