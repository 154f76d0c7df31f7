//! A program under `jax.checkpoint`: the backward half reads only the saved values of the forward half, and recomputes
//! the others.
//!
//! ```text
//!   a = dot(x, w)                     a = dot(x, w)
//!   b = tanh(a)                       b = tanh(a)
//!   ..                          =>    ..
//!   g = multiply(c, b)                s = (..) opt-barrier((a))     a' = get-tuple-element(s), index=0
//!                                     b' = tanh(a')
//!                                     g = multiply(c, b')
//! ```
//!
//! As in JAX, a barrier takes everything that a checkpointed function reads and saves, and the backward half reads the
//! barrier's results. So compilers neither merge the recomputed operations with the originals nor run them early. If
//! each layer is such a function, results of layers are the borders between them.
//! Only instructions of the entry computation are recomputed; results of loops and branches are saved.

use std::collections::BTreeMap;

use memplan_analysis::Phase;
use memplan_ir::{Cursor, Insert, Instruction, InstructionId, Module, Names, Op, Operands, Role};
use rustc_hash::{FxHashMap, FxHashSet};

/// The values that a checkpoint saves.
pub struct Checkpoint<'a> {
    /// The half of the program that an instruction belongs to.
    pub phase: &'a dyn Fn(InstructionId) -> Phase,
    /// Whether a result is saved.
    pub is_saved: &'a dyn Fn(InstructionId) -> bool,
    /// Whether a result ends one checkpointed function and begins the next; it is also saved. If there is none, the
    /// whole is one function.
    pub is_border: &'a dyn Fn(InstructionId) -> bool,
    /// Whether every function but the last must have a gradient to wait for. Without one, a compiler may compute the function
    /// again right away, and keep what that makes.
    pub must_wait: bool,
}

/// The module with checkpoints in its forward half; `None` where the backward half needs nothing that is not saved. Close to
/// linear.
pub fn checkpoint(module: &Module, checkpoint: &Checkpoint<'_>) -> Option<Module> {
    let (phase, is_border) = (checkpoint.phase, checkpoint.is_border);
    let again = again(module, phase, &|id| (checkpoint.is_saved)(id) || is_border(id));
    if again.is_empty() {
        return None;
    }
    let levels = levels(module, &again, is_border);
    let saved = saved(module, &again, &levels, phase);
    let arrives = arrivals(module, &again, &levels, phase);
    if checkpoint.must_wait && arrives.len() + 1 < saved.len() {
        return None;
    }
    let mut module = module.clone();
    let mut names = Names::new(&module);
    let entry = module.entry;
    // The replacements that the backward half reads, function by function.
    let mut instead: FxHashMap<(u32, InstructionId), InstructionId> = FxHashMap::default();
    let mut has_barrier: FxHashSet<u32> = FxHashSet::default();
    let order = module.computations[entry].instructions.clone();
    let place: FxHashMap<InstructionId, usize> =
        order.into_iter().enumerate().map(|(i, id)| (id, i)).collect();
    module.edit_in_order(entry, |module, id| {
        let reads = module.instructions[id].operands.clone();
        if phase(id) == Phase::Backward && !again.contains(&id) {
            for &operand in reads.iter().filter(|operand| again.contains(operand)) {
                let level = levels[&operand];
                if has_barrier.insert(level) {
                    let arrives = arrives.get(&level).copied();
                    add_barrier(module, (id, level), &saved[&level], arrives, &mut names, &mut instead);
                }
                let again = Again { again: &again, levels: &levels, place: &place };
                compute_again(module, operand, &again, &mut names, &mut instead);
                module.replace_operand(id, operand, instead[&(level, operand)]);
            }
        }
        module.list(id);
    });
    module.put_operands_first(entry);
    module.compact();
    Some(module)
}

/// The number of borders before each recomputed instruction.
fn levels(
    module: &Module,
    again: &FxHashSet<InstructionId>,
    is_border: &dyn Fn(InstructionId) -> bool,
) -> FxHashMap<InstructionId, u32> {
    let mut all: FxHashMap<InstructionId, u32> = FxHashMap::default();
    for &id in &module.entry_computation().instructions {
        let before = module.instructions[id].operands.iter();
        let level = before.map(|operand| all[operand] + u32::from(is_border(*operand))).max();
        all.insert(id, level.unwrap_or(0));
    }
    all.retain(|id, _| again.contains(id));
    all
}

/// The values that the backward half reads and that are not saved, and their operands.
fn again(
    module: &Module,
    phase: &dyn Fn(InstructionId) -> Phase,
    is_saved: &dyn Fn(InstructionId) -> bool,
) -> FxHashSet<InstructionId> {
    let can_be = |id: InstructionId| {
        let op = &module.instructions[id].op;
        phase(id) == Phase::Forward
            && op.traits().role == Role::Computes
            && op.traits().effect == memplan_ir::Effect::None
            && module.shape(id).as_array().is_some()
            && !is_saved(id)
    };
    let entry = module.entry_computation();
    let readers = entry.instructions.iter().filter(|&&id| phase(id) == Phase::Backward);
    let mut work: Vec<InstructionId> =
        readers.flat_map(|&id| module.instructions[id].operands.iter().copied()).collect();
    let mut again = FxHashSet::default();
    while let Some(id) = work.pop() {
        if can_be(id) && again.insert(id) {
            work.extend(module.instructions[id].operands.iter().copied());
        }
    }
    again
}

/// The arrays that each function reads and finds, in the order of the program.
fn saved(
    module: &Module,
    again: &FxHashSet<InstructionId>,
    levels: &FxHashMap<InstructionId, u32>,
    phase: &dyn Fn(InstructionId) -> Phase,
) -> FxHashMap<u32, Vec<InstructionId>> {
    let is_array = |id: InstructionId| module.shape(id).as_array().is_some_and(|array| array.rank() > 0);
    let is_constant = |id: InstructionId| matches!(module.instructions[id].op, Op::Constant(_));
    let is_found = |id: InstructionId| {
        !again.contains(&id) && is_array(id) && !is_constant(id) && phase(id) == Phase::Forward
    };
    let mut seen: FxHashSet<(u32, InstructionId)> = FxHashSet::default();
    let mut saved: FxHashMap<u32, Vec<InstructionId>> = FxHashMap::default();
    for id in module.entry_computation().instructions.iter().filter(|id| again.contains(id)) {
        let list = saved.entry(levels[id]).or_default();
        let found = module.instructions[*id].operands.iter().copied();
        list.extend(found.filter(|&operand| is_found(operand) && seen.insert((levels[id], operand))));
    }
    saved
}

/// For each function the gradient with which its backward half begins: of those that its readers also read, the one that
/// is computed first. All that the function computes again waits for it. Functions that would wait for themselves, or for
/// each other, wait for none. Linear in the module for each function.
fn arrivals(
    module: &Module,
    again: &FxHashSet<InstructionId>,
    levels: &FxHashMap<InstructionId, u32>,
    phase: &dyn Fn(InstructionId) -> Phase,
) -> FxHashMap<u32, InstructionId> {
    let entry = module.entry_computation();
    let mut depth: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let mut readers: BTreeMap<u32, Vec<InstructionId>> = BTreeMap::new();
    for &id in &entry.instructions {
        let operands = &module.instructions[id].operands;
        let deepest = operands.iter().filter_map(|operand| depth.get(operand)).max();
        depth.insert(id, deepest.map_or(0, |depth| depth + 1));
        if phase(id) == Phase::Backward {
            let read = operands.iter().filter(|operand| again.contains(operand));
            read.for_each(|operand| readers.entry(levels[operand]).or_default().push(id));
        }
    }
    let is_gradient = |id: &InstructionId| {
        let array = module.shape(*id).as_array();
        phase(*id) == Phase::Backward && array.is_some_and(|array| array.rank() > 0)
    };
    let mut found: Vec<Arrival> = Vec::new();
    // The last function is the first to be computed again.
    for (&level, readers) in readers.iter().rev() {
        let mut after: FxHashSet<InstructionId> = readers.iter().copied().collect();
        for &id in &entry.instructions {
            if module.instructions[id].operands.iter().any(|operand| after.contains(operand)) {
                after.insert(id);
            }
        }
        let read = readers.iter().flat_map(|&id| &module.instructions[id].operands).copied();
        let gradient =
            read.filter(|id| is_gradient(id) && !after.contains(id)).min_by_key(|id| (depth[id], *id));
        if let Some(gradient) = gradient {
            found.push(Arrival { level, gradient, after });
            if wait_for_each_other(&found) {
                found.pop();
            }
        }
    }
    found.into_iter().map(|arrival| (arrival.level, arrival.gradient)).collect()
}

/// The gradient that a function waits for.
struct Arrival {
    level: u32,
    gradient: InstructionId,
    /// All that comes after what the function computes again.
    after: FxHashSet<InstructionId>,
}

/// Whether the last function waits for itself by way of others.
fn wait_for_each_other(found: &[Arrival]) -> bool {
    let Some(last) = found.len().checked_sub(1) else { return false };
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    let mut open = vec![last];
    while let Some(i) = open.pop() {
        for (j, next) in found.iter().enumerate() {
            if found[i].after.contains(&next.gradient) && seen.insert(j) {
                open.push(j);
            }
        }
    }
    seen.contains(&last)
}

/// Adds a barrier of a function's inputs, together with a value of its backward half.
fn add_barrier(
    module: &mut Module,
    (beside, level): (InstructionId, u32),
    saved: &[InstructionId],
    arrives: Option<InstructionId>,
    names: &mut Names,
    instead: &mut FxHashMap<(u32, InstructionId), InstructionId>,
) {
    let all: Vec<InstructionId> = saved.iter().copied().chain(arrives).collect();
    let mut at = Cursor::beside(module, names, beside);
    let tuple = at.named("saved").tuple(all);
    let barrier = at.named("checkpoint").insert(Op::OptimizationBarrier, [tuple]);
    for (index, &id) in (0..).zip(saved) {
        let stem = at.module().instructions[id].name.clone();
        let element = at.named(&stem).get_tuple_element(barrier, index);
        instead.insert((level, id), element);
    }
}

/// The recomputed instructions, their functions, and their positions in the program.
struct Again<'a> {
    again: &'a FxHashSet<InstructionId>,
    levels: &'a FxHashMap<InstructionId, u32>,
    place: &'a FxHashMap<InstructionId, usize>,
}

/// Adds copies of the instructions that compute a value from its function's inputs.
fn compute_again(
    module: &mut Module,
    value: InstructionId,
    Again { again, levels, place }: &Again<'_>,
    names: &mut Names,
    instead: &mut FxHashMap<(u32, InstructionId), InstructionId>,
) {
    let level = levels[&value];
    let (mut work, mut needed) = (vec![value], Vec::new());
    let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
    while let Some(id) = work.pop() {
        if again.contains(&id) && !instead.contains_key(&(level, id)) && seen.insert(id) {
            needed.push(id);
            work.extend(module.instructions[id].operands.iter().copied());
        }
    }
    needed.sort_unstable_by_key(|id| place[id]);
    for id in needed {
        let Instruction { operands, parent, .. } = &module.instructions[id];
        let now = |operand: &InstructionId| instead.get(&(level, *operand)).copied().unwrap_or(*operand);
        let operands: Operands = operands.iter().map(now).collect();
        let copy = Cursor::end(module, names, *parent).copy_of(id, operands);
        instead.insert((level, id), copy);
    }
}
