//! Recomputation of what is cheap: values that would cross the peak are computed again after it.
//!
//! Before: the forward half of a training step leaves masks, activations and normalized copies for the backward half.
//! After: only what is expensive to compute, or smaller than what it is computed from, crosses the peak; the rest is
//! recomputed where it is needed.
//!
//! ```text
//!   h = f32[n] dot(..)                  h = f32[n] dot(..)
//!   m = pred[n] compare(h, 0)           m = pred[n] compare(h, 0)
//!   r = f32[n] select(m, h, 0)    =>    r = f32[n] select(m, h, 0)
//!   ...  peak                           ...  peak: h and m and r, or only h
//!   g = f32[n] select(m, d, 0)          m.remat = pred[n] compare(h, 0)
//!   w = dot(r, g)                       ...
//! ```
//!
//! Which values cross is a minimum cut of the data flow at the peak: every value is an edge as wide as its bytes, what
//! is expensive hangs on the source, what runs after the peak on the sink. (Chen et al. 2016 recompute segments; the
//! cut as a minimum over all choices is how PyTorch partitions training graphs.) The peak is that of the program as
//! fusion would leave it, under the order of the text; afterwards it is somewhere else, and the search goes on there
//! until it cannot be lowered.
//!
//! Cheap is what an element of takes a few elements of the operands, and a matrix product that takes less time than to
//! write and read its result, such as attention scores: where a kernel holds them on chip the first time (row by row,
//! as fused attention does), they are in memory only while the backward half of their own layer runs.
//!
//! Left alone: other expensive operations, side effects, control dependencies. Requires that common subexpressions are not
//! merged afterwards, which would undo it.

mod live_bytes;
mod products;
pub(crate) mod recompute_network;
mod tie;

use memplan_analysis::CallGraph;
use memplan_ir::{ComputationId, InstructionId, Module, Names, Op, Operands};
use memplan_memory::Target;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cost::{self, CostClass, Hero};
use crate::fusion::{self, Siblings};
use crate::pass::call_graph;
use crate::{PassError, PassFn};
use live_bytes::{LiveBytes, Profile};
use memplan_min_cut::UNCUTTABLE;
pub use products::Products;
pub use tie::Tie;

/// The pass.
pub const REMAT: PassFn = PassFn {
    name: "remat",
    description: "Recompute cheap values after the peak instead of keeping them",
    run: |module, context| recompute_after_peak(module, context.target, None, Products::Cheap),
};

/// The same for a compiler that merges common subexpressions and chooses the order itself, but keeps optimization
/// barriers while it does: what is recomputed is behind them. It comes last: run again, it finds another peak.
pub const REMAT_BEHIND_BARRIERS: PassFn = PassFn {
    name: "remat-behind-barriers",
    description: "Recompute cheap values after the peak, behind optimization barriers",
    run: |module, context| recompute_after_peak(module, context.target, Some(Tie::Barrier), Products::Cheap),
};

/// The same for a compiler that removes barriers before it merges. It comes last, too.
pub const REMAT_BEHIND_SELECTS: PassFn = PassFn {
    name: "remat-behind-selects",
    description: "Recompute cheap values after the peak, from what is selected by a bit that arrives late",
    run: |module, context| recompute_after_peak(module, context.target, Some(Tie::Select), Products::Cheap),
};

/// How often the peak is looked for anew. Training steps settle after three or four times.
const MAX_ROUNDS: usize = 12;

/// A round must lower the peak by this fraction at least: less is not worth the longer program.
const MIN_GAIN: f64 = 1.0 / 512.0;

/// Recomputes after the peak what is cheap, and as many products as may be: what [`REMAT`] and its siblings do, with
/// their choices. Says whether anything changed.
///
/// # Errors
/// When the call graph of the module is not sound.
pub fn recompute_after_peak(
    module: &mut Module,
    target: &Target,
    tie: Option<Tie>,
    products: Products,
) -> Result<bool, PassError> {
    let graph = call_graph(module, REMAT.name)?;
    let mut names = Names::new(module);
    let mut attempts: FxHashMap<ComputationId, Attempt> = FxHashMap::default();
    // Those of rounds that were taken back stand in no computation.
    let mut copies: FxHashSet<InstructionId> = FxHashSet::default();
    let mut changed = false;
    for round in 0..=MAX_ROUNDS {
        let mut is_settled = true;
        for (computation, profile) in profiles(module, &graph, target) {
            let attempt = attempts.entry(computation).or_insert_with(|| Attempt::new(products));
            if attempt.is_over {
                continue;
            }
            // What did the last round bring?
            let mut time = profile.time;
            match attempt.undo.take() {
                Some(undo) if profile.peak as f64 > attempt.peak as f64 * (1.0 - MIN_GAIN) => {
                    undo.apply(module, computation);
                    // Where every dot is cheap, the least that crosses may be nothing: all is recomputed at once.
                    let Some(fewer) = attempt.products.fewer() else {
                        attempt.is_over = true;
                        continue;
                    };
                    (attempt.products, time) = (fewer, attempt.time);
                }
                undo => {
                    changed |= undo.is_some();
                    (attempt.peak, attempt.time) = (profile.peak, time);
                }
            }
            let values = match round < MAX_ROUNDS {
                true => values_to_recompute(module, target, computation, time, attempt.products),
                false => None,
            };
            attempt.undo =
                values.map(|values| recompute(module, computation, time, &values, &mut names, &mut copies));
            attempt.is_over = attempt.undo.is_none();
            is_settled &= attempt.is_over;
        }
        if is_settled {
            break;
        }
    }
    if let Some(tie) = tie.filter(|_| changed) {
        for computation in module.computations.keys().collect::<Vec<_>>() {
            tie::tie(module, computation, &copies, tie, &mut names);
        }
    }
    Ok(changed)
}

/// The load of every computation as fusion would leave it, callees before callers.
pub(crate) fn profiles(module: &Module, graph: &CallGraph, target: &Target) -> Vec<(ComputationId, Profile)> {
    let mut live = LiveBytes::new(module, target);
    let groupings = fusion::group(module, graph, target, Siblings::Leave);
    groupings
        .into_iter()
        .map(|(computation, grouping)| (computation, live.profile(computation, &grouping)))
        .collect()
}

/// Where the search stands in one computation.
#[derive(Clone, Debug)]
struct Attempt {
    /// Bytes live at the peak before the last change.
    peak: u64,
    /// Where that was.
    time: usize,
    /// Which products may be recomputed.
    products: Products,
    /// How to take the last change back.
    undo: Option<Undo>,
    is_over: bool,
}

impl Attempt {
    fn new(products: Products) -> Attempt {
        Attempt { peak: 0, time: 0, products, undo: None, is_over: false }
    }
}

/// What a computation was before a change.
#[derive(Clone, Debug)]
struct Undo {
    instructions: Vec<InstructionId>,
    operands: Vec<(InstructionId, Operands)>,
}

impl Undo {
    fn apply(self, module: &mut Module, computation: ComputationId) {
        module.computations[computation].instructions = self.instructions;
        for (id, operands) in self.operands {
            module.instructions[id].operands = operands;
        }
    }
}

/// The values defined before `time` and needed from then on that are best recomputed: the sink's side of the minimum
/// cut. `None` when there is nothing to gain.
fn values_to_recompute(
    module: &Module,
    target: &Target,
    computation: ComputationId,
    time: usize,
    products: Products,
) -> Option<FxHashSet<InstructionId>> {
    let (before, after) = module.computations[computation].instructions.split_at(time);
    let is_before: FxHashSet<InstructionId> = before.iter().copied().collect();
    let invariant = invariant_state(module, computation);
    let recomputable = products.recomputable(module, target, computation);
    let operands = after.iter().flat_map(|&user| &module.instructions[user].operands);
    let mut needed: FxHashSet<InstructionId> = FxHashSet::default();
    let needed = operands.copied().filter(|&id| is_before.contains(&id) && needed.insert(id));
    let bytes = |id| crossing_bytes(module, target, &invariant, id);
    let recompute_network::Choice { recomputed, .. } =
        recompute_network::choose(module, needed, bytes, |id| !recomputable.contains(id))?;
    (!recomputed.is_empty()).then_some(recomputed)
}

/// What it takes to have a value in memory at the peak.
fn crossing_bytes(
    module: &Module,
    target: &Target,
    invariant: &FxHashSet<InstructionId>,
    id: InstructionId,
) -> u64 {
    let instruction = &module.instructions[id];
    match &instruction.op {
        // Views are as good as what they are views of.
        Op::Tuple | Op::Bitcast => UNCUTTABLE,
        // The caller keeps it. What it gives up is overwritten by the result, which comes last.
        Op::Parameter { .. } if instruction.parent == module.entry => 0,
        Op::Constant(_) => 0,
        _ if invariant.contains(&id) => 0,
        _ => cost::result_bytes(module, target, id).min(UNCUTTABLE - 1),
    }
}

/// Elements of a loop's state that the body hands through: they stay where they are for the whole loop.
fn invariant_state(module: &Module, computation: ComputationId) -> FxHashSet<InstructionId> {
    let body = &module.computations[computation];
    let root = &module.instructions[body.root];
    let hands_through = |(i, &element): (usize, &InstructionId)| {
        let instruction = &module.instructions[element];
        let is_state = matches!(instruction.op, Op::GetTupleElement { index } if index as usize == i)
            && body.parameters.first() == instruction.operands.first();
        is_state.then_some(element)
    };
    match root.op {
        Op::Tuple if body.parameters.len() == 1 => {
            root.operands.iter().enumerate().filter_map(hands_through).collect()
        }
        _ => FxHashSet::default(),
    }
}

/// Whether an instruction is computed again at no price to speak of.
pub(crate) fn is_recomputable(module: &Module, target: &Target, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_cheap = match cost::class_of(module, id) {
        CostClass::Cheap => true,
        CostClass::Hero(Hero::Dot) => cost::is_dot_faster_than_memory(module, target, id),
        _ => matches!(instruction.op, Op::Tuple | Op::Bitcast),
    };
    is_cheap && instruction.control_predecessors.is_empty()
}

/// Lets everything from `time` on use copies of `values`, each just before its first use, and drops originals that
/// nothing uses any more.
fn recompute(
    module: &mut Module,
    computation: ComputationId,
    time: usize,
    values: &FxHashSet<InstructionId>,
    names: &mut Names,
    all_copies: &mut FxHashSet<InstructionId>,
) -> Undo {
    let instructions = std::mem::take(&mut module.computations[computation].instructions);
    let position: FxHashMap<InstructionId, usize> =
        instructions[..time].iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut order = instructions[..time].to_vec();
    let mut operands = Vec::new();
    for &user in &instructions[time..] {
        for original in missing_copies(module, user, values, &copies, &position) {
            let mut copy = module.instructions[original].clone();
            // What is copied may be a copy.
            let stem = copy.name.split(".remat").next().unwrap_or_default();
            copy.name = names.fresh(&format!("{stem}.remat"));
            copy.operands
                .iter_mut()
                .for_each(|operand| *operand = copies.get(operand).copied().unwrap_or(*operand));
            let copy = module.instructions.push(copy);
            copies.insert(original, copy);
            all_copies.insert(copy);
            order.push(copy);
        }
        if module.instructions[user].operands.iter().any(|operand| copies.contains_key(operand)) {
            operands.push((user, module.instructions[user].operands.clone()));
            let renamed = &mut module.instructions[user].operands;
            renamed
                .iter_mut()
                .for_each(|operand| *operand = copies.get(operand).copied().unwrap_or(*operand));
        }
        order.push(user);
    }
    module.computations[computation].instructions = without_unused(module, computation, order, values);
    Undo { instructions, operands }
}

/// The values that must be copied before `user` can run, operands first.
fn missing_copies(
    module: &Module,
    user: InstructionId,
    values: &FxHashSet<InstructionId>,
    copies: &FxHashMap<InstructionId, InstructionId>,
    position: &FxHashMap<InstructionId, usize>,
) -> Vec<InstructionId> {
    let mut missing: FxHashSet<InstructionId> = FxHashSet::default();
    let mut found = Vec::new();
    let mut open = vec![user];
    while let Some(id) = open.pop() {
        for &operand in &module.instructions[id].operands {
            if values.contains(&operand) && !copies.contains_key(&operand) && missing.insert(operand) {
                found.push(operand);
                open.push(operand);
            }
        }
    }
    found.sort_unstable_by_key(|id| position[id]);
    found
}

/// An order without those of `values` that nothing uses any more.
fn without_unused(
    module: &Module,
    computation: ComputationId,
    order: Vec<InstructionId>,
    values: &FxHashSet<InstructionId>,
) -> Vec<InstructionId> {
    let mut used: FxHashSet<InstructionId> = FxHashSet::from_iter([module.computations[computation].root]);
    let mut kept = Vec::with_capacity(order.len());
    for &id in order.iter().rev() {
        if values.contains(&id) && !used.contains(&id) {
            continue;
        }
        let instruction = &module.instructions[id];
        used.extend(instruction.operands.iter().chain(&instruction.control_predecessors));
        kept.push(id);
    }
    kept.reverse();
    kept
}
