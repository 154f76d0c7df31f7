//! The recomputed values, and their costs.

use memplan_analysis::operations;
use memplan_ir::{InstructionId, Module};
use memplan_memory::{Bytes, Target};
use memplan_rewriter::cost;
use rustc_hash::{FxHashMap, FxHashSet};

/// The effect of recomputation on a module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RematReport {
    /// The computations whose peak is lower, callees first.
    pub peaks: Vec<LoweredPeak>,
    /// The values that are computed again, in the order of the text.
    pub values: Vec<Recomputed>,
}

/// The peak of one computation, as fusion would leave it in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoweredPeak {
    /// Name of the computation.
    pub computation: Box<str>,
    /// The most bytes live at once before.
    pub before: Bytes,
    /// The most bytes live at once after.
    pub after: Bytes,
}

/// A value that is computed again.
#[derive(Clone, Debug, PartialEq)]
pub struct Recomputed {
    /// Name of the computation.
    pub computation: Box<str>,
    /// Name of the instruction that computes it again.
    pub value: Box<str>,
    /// Bytes of the value.
    pub bytes: Bytes,
    /// How many operands of instructions it is.
    pub uses: u32,
    /// Arithmetic operations that computing it again takes.
    pub operations: f64,
}

/// Those of `copies` that are in the module.
pub(super) fn recomputed(
    module: &Module,
    target: &Target,
    copies: &FxHashSet<InstructionId>,
) -> Vec<Recomputed> {
    let mut uses: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let listed = || module.computations.values().flat_map(|computation| &computation.instructions);
    for operand in listed().flat_map(|&id| &module.instructions[id].operands) {
        if copies.contains(operand) {
            *uses.entry(*operand).or_default() += 1;
        }
    }
    let recomputed = |&id: &InstructionId| {
        let (instruction, work) = (&module.instructions[id], operations(module, id));
        Recomputed {
            computation: module.computations[instruction.parent].name.clone(),
            value: instruction.name.clone(),
            bytes: Bytes(cost::result_bytes(module, target, id)),
            uses: uses.get(&id).copied().unwrap_or(0),
            operations: work.matrix_operations() + work.vector,
        }
    };
    listed().filter(|id| copies.contains(id)).map(recomputed).collect()
}
