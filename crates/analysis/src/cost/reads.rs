//! Shares: the parts of its operands that an instruction reads, and of its result that it writes, as numbers from 0 to
//! 1.

use memplan_ir::{ComputationId, InstructionId, Module, Op, Shape, ShapeIndex};
use memplan_memory::Target;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::in_place::root_leaves;

use super::{Products, leaves_of, library_calls, operations, registers};

/// Shares of operands, by number.
pub(super) type Shares = SmallVec<[f64; 4]>;

/// Facts about a fused computation.
#[derive(Clone, Debug)]
pub(super) struct Interior {
    /// The share of each parameter that is read.
    pub(super) reads: Vec<f64>,
    /// The share of each leaf of the root that is written.
    pub(super) writes: Vec<f64>,
    /// Operations of the matrix units.
    pub(super) matrix: Vec<Products>,
    /// Operations of the vector units.
    pub(super) vector: f64,
    /// Vector registers of the largest value that is evaluated.
    pub(super) evaluated: f64,
}

impl Interior {
    /// Walks a fused computation from its root. `in_place` says of each leaf of the root whether it is written into a
    /// parameter; `nested` has the fusions inside.
    pub(super) fn new(
        module: &Module,
        target: &Target,
        fused: ComputationId,
        in_place: &[bool],
        nested: &FxHashMap<InstructionId, Interior>,
    ) -> Interior {
        let computation = &module.computations[fused];
        let leaves = root_leaves(module, fused);
        // How much of each instruction's result somebody needs. No tables: they would be as long as the module.
        let mut needed: FxHashMap<InstructionId, f64> = FxHashMap::default();
        let mut updates: FxHashSet<InstructionId> = FxHashSet::default();
        let mut writes = Vec::with_capacity(leaves.len());
        needed.insert(computation.root, 1.0);
        for (i, &(_, leaf, _)) in leaves.iter().enumerate() {
            needed.insert(leaf, 1.0);
            let is_in_place = in_place.get(i).copied().unwrap_or(false);
            writes.push(if is_in_place { mark_updates(module, target, leaf, &mut updates) } else { 1.0 });
        }
        let (mut matrix, mut vector, mut evaluated) = (Vec::<Products>::new(), 0.0, 0.0f64);
        for &id in computation.instructions.iter().rev() {
            let instruction = &module.instructions[id];
            let Some(&share) = needed.get(&id).filter(|&&share| share > 0.0) else { continue };
            let shares: Shares = match nested.get(&id) {
                Some(inner) => {
                    matrix.extend(inner.matrix.iter().map(|products| products.times(share)));
                    vector += share * inner.vector;
                    evaluated = evaluated.max(share * inner.evaluated);
                    inner.reads.iter().map(|read| read * share).collect()
                }
                None => {
                    operations::add(module, Some(target), id, share, &mut matrix, &mut vector);
                    let is_update = updates.contains(&id);
                    let part = if is_update { 1.0 } else { share };
                    evaluated = evaluated.max(part * registers::evaluated(module, target, id));
                    operand_shares(module, target, id, share, is_update)
                }
            };
            for (&operand, share) in instruction.operands.iter().zip(shares) {
                let needed = needed.entry(operand).or_insert(0.0);
                *needed = (*needed + share).min(1.0);
            }
        }
        let reads = computation
            .parameters
            .iter()
            .map(|parameter| needed.get(parameter).copied().unwrap_or(0.0))
            .collect();
        Interior { reads, writes, matrix, vector, evaluated }
    }
}

/// The share of each operand that an instruction reads if `share` of its result is needed. An in-place update reads
/// nothing of the updated operand.
pub(super) fn operand_shares(
    module: &Module,
    target: &Target,
    id: InstructionId,
    share: f64,
    is_in_place: bool,
) -> Shares {
    let instruction = &module.instructions[id];
    let n = instruction.operands.len();
    let ratio = |part: InstructionId, whole: InstructionId| {
        let (part, whole) = (target.size_of(module.shape(part)).0, target.size_of(module.shape(whole)).0);
        if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
    };
    let mut shares: Shares = SmallVec::from_elem(share.ceil(), n);
    match &instruction.op {
        Op::Slice { .. } | Op::DynamicSlice { .. } | Op::Gather(_) => {
            shares[0] = share * ratio(id, instruction.operands[0]);
        }
        Op::DynamicUpdateSlice => {
            shares[0] = if is_in_place { 0.0 } else { share };
            shares[1] = if is_in_place { 1.0 } else { share };
        }
        // A combiner reads the elements that it replaces.
        Op::Scatter(_) if is_in_place => {
            let arrays = n / 2;
            for i in 0..arrays {
                shares[i] = ratio(instruction.operands[arrays + 1 + i], instruction.operands[i]);
            }
        }
        op if op.is_elementwise() => shares.iter_mut().for_each(|s| *s = share),
        Op::BitcastConvert
        | Op::Bitcast
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Concatenate { .. }
        | Op::Pad { .. } => shares.iter_mut().for_each(|s| *s = share),
        _ => {}
    }
    shares
}

/// The share of each leaf that an instruction which is not a fusion writes. What a library does with its
/// working memory, which is a result of its call, is not known, and not counted.
pub(super) fn written_shares(
    module: &Module,
    target: &Target,
    id: InstructionId,
    leaves: &[(ShapeIndex, &Shape)],
    is_in_place: bool,
) -> Vec<f64> {
    if is_in_place {
        return vec![updated_share(module, target, id); leaves.len()];
    }
    let is_workspace = |leaf: &(ShapeIndex, &Shape)| library_calls::is_workspace(module, id, leaf.1);
    leaves.iter().enumerate().map(|(i, leaf)| if i > 0 && is_workspace(leaf) { 0.0 } else { 1.0 }).collect()
}

/// The share of its result that an in-place update replaces; 1 for other instructions.
fn updated_share(module: &Module, target: &Target, id: InstructionId) -> f64 {
    let instruction = &module.instructions[id];
    let update = match instruction.op {
        Op::DynamicUpdateSlice => instruction.operands[1],
        Op::Scatter(_) => *instruction.operands.last().expect("the verifier counts a scatter's operands"),
        _ => return 1.0,
    };
    let (part, whole) = (target.size_of(module.shape(update)).0, leaf_bytes(module, target, id));
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

/// Marks the updates that a leaf of a fused root consists of, and gives the share that they write.
fn mark_updates(
    module: &Module,
    target: &Target,
    leaf: InstructionId,
    updates: &mut FxHashSet<InstructionId>,
) -> f64 {
    let (mut at, mut written) = (leaf, 0.0);
    loop {
        let instruction = &module.instructions[at];
        match instruction.op {
            Op::Bitcast | Op::GetTupleElement { .. } => {}
            Op::DynamicUpdateSlice | Op::Scatter(_) => {
                updates.insert(at);
                written += updated_share(module, target, at);
            }
            Op::Parameter { .. } => return written.min(1.0),
            // Aliased by declaration: a kernel that overwrites its operand as a whole.
            _ => return 1.0,
        }
        at = instruction.operands[0];
    }
}

fn leaf_bytes(module: &Module, target: &Target, id: InstructionId) -> u64 {
    leaves_of(module, id).first().map_or(0, |(_, leaf)| target.size_of(leaf).0)
}
