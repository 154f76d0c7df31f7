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
//! each layer is such a function, results of layers are the borders between them. If a function reads a converted weight,
//! the conversion is repeated behind the function's barrier; otherwise, all converted weights are made early, and kept.
//! Only instructions of the entry computation are recomputed; results of loops and branches are saved. What is made of
//! constants alone is neither: no barrier is before it, so compilers would merge the copies.

use std::collections::BTreeMap;

use memplan_analysis::Phase;
use memplan_ir::{Cursor, Insert, Instruction, InstructionId, Module, Names, Op, Operands, Role, Users};
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
    /// Whether gradients that nothing of the backward half waits for, as those of weights, are complete before the next
    /// function is computed again. A compiler may hold them back otherwise, and keep what they need.
    pub gradients_first: bool,
}

/// The module with checkpoints in its forward half; `None` where the backward half needs nothing that is not saved. Close to
/// linear.
pub fn checkpoint(module: &Module, checkpoint: &Checkpoint<'_>) -> Option<Module> {
    let (phase, is_border) = (checkpoint.phase, checkpoint.is_border);
    let of_constants = of_constants(module);
    let is_never_again = |id| (checkpoint.is_saved)(id) || is_border(id) || of_constants.contains(&id);
    let again = again(module, phase, &is_never_again);
    if again.is_empty() {
        return None;
    }
    let functions = Functions::new(module, again, phase, is_border);
    let saved = functions.saved(module, &of_constants);
    let readers = functions.readers(module);
    let mut waits = functions.arrivals(module, &readers, &saved, &of_constants);
    if checkpoint.gradients_first {
        functions.wait_for_gradients(module, &readers, &mut waits);
    }
    let waits: FxHashMap<Level, Wait> = waits.into_iter().map(|wait| (wait.level, wait)).collect();
    let mut module = module.clone();
    let mut names = Names::new(&module);
    let entry = module.entry;
    // Gradients behind the barriers that wait for them.
    let mut complete: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    // The replacements that the backward half reads, function by function.
    let mut instead: FxHashMap<(Level, InstructionId), InstructionId> = FxHashMap::default();
    let mut has_barrier: FxHashSet<Level> = FxHashSet::default();
    module.edit_in_order(entry, |module, id| {
        let reads = module.instructions[id].operands.clone();
        if phase(id) == Phase::Backward {
            for &operand in &reads {
                let Some(level) = functions.read_at(operand) else { continue };
                if has_barrier.insert(level) {
                    let Wait { arrival, gradients, .. } = &waits[&level];
                    let mut all = saved[&level].clone();
                    all.extend(gradients.iter().chain(arrival));
                    let behind = add_barrier(module, id, &all, &mut names);
                    for (before, behind) in all.into_iter().zip(behind) {
                        if gradients.contains(&before) {
                            complete.insert(before, behind);
                        } else {
                            instead.insert((level, before), behind);
                        }
                    }
                }
                let needed = functions.needed(module, operand, |id| instead.contains_key(&(level, id)));
                compute_again(module, level, needed, &mut names, &mut instead);
                module.replace_operand(id, operand, instead[&(level, operand)]);
            }
        }
        module.list(id);
    });
    wait(&mut module, &complete);
    module.put_operands_first(entry);
    module.compact();
    Some(module)
}

/// The values that the backward half reads and that are not saved, and their operands.
fn again(
    module: &Module,
    phase: &dyn Fn(InstructionId) -> Phase,
    is_never_again: &dyn Fn(InstructionId) -> bool,
) -> FxHashSet<InstructionId> {
    let can_be = |id: InstructionId| {
        let op = &module.instructions[id].op;
        phase(id) == Phase::Forward
            && op.traits().role == Role::Computes
            && op.traits().effect == memplan_ir::Effect::None
            && module.shape(id).as_array().is_some()
            && !is_never_again(id)
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

/// The name of a function, in the order in which functions begin. What is computed forward from gradients, as derivatives of
/// derivatives and second networks are, begins another function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Level {
    /// How often gradients lead back to the forward half before the function.
    n_returns: u32,
    /// The borders between there and the function.
    n_borders: u32,
}

/// The instructions that read what each function recomputes.
type Readers = BTreeMap<Level, Vec<InstructionId>>;

/// The arrays that each function reads and finds.
type Saved = FxHashMap<Level, Vec<InstructionId>>;

/// The recomputed instructions, divided into functions by the borders between them.
struct Functions<'a> {
    phase: &'a dyn Fn(InstructionId) -> Phase,
    again: FxHashSet<InstructionId>,
    /// The function that recomputes each instruction for readers in the backward half: that after the borders before it, or,
    /// of what needs an argument alone, the last function that reads it before gradients lead back to the forward half.
    /// Functions recompute all that they read.
    levels: FxHashMap<InstructionId, Level>,
    /// The positions of all instructions in the program.
    place: FxHashMap<InstructionId, usize>,
}

impl<'a> Functions<'a> {
    fn new(
        module: &Module,
        again: FxHashSet<InstructionId>,
        phase: &'a dyn Fn(InstructionId) -> Phase,
        is_border: &dyn Fn(InstructionId) -> bool,
    ) -> Functions<'a> {
        let order = &module.entry_computation().instructions;
        let place = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let of_arguments = of_arguments(module, phase);
        let mut levels: FxHashMap<InstructionId, Level> = FxHashMap::default();
        for &id in order {
            let after = |operand: InstructionId| {
                let Level { n_returns, n_borders } = levels[&operand];
                if phase(id) == Phase::Forward && phase(operand) != Phase::Forward {
                    return Level { n_returns: n_returns + 1, n_borders: 0 };
                }
                Level { n_returns, n_borders: n_borders + u32::from(is_border(operand)) }
            };
            let level = module.instructions[id].operands.iter().map(|&operand| after(operand)).max();
            levels.insert(id, level.unwrap_or_default());
        }
        for &id in order.iter().rev().filter(|&&id| phase(id) == Phase::Forward) {
            let level = levels[&id];
            for operand in module.instructions[id].operands.iter().filter(|id| of_arguments.contains(id)) {
                levels.entry(*operand).and_modify(|of_operand| {
                    if of_operand.n_returns == level.n_returns {
                        *of_operand = level.max(*of_operand);
                    }
                });
            }
        }
        levels.retain(|id, _| again.contains(id));
        Functions { phase, again, levels, place }
    }

    /// The function that recomputes a value for an instruction of the backward half; `None` if the value is kept.
    fn read_at(&self, id: InstructionId) -> Option<Level> {
        self.levels.get(&id).copied()
    }

    /// A recomputed value and those before it that are not there yet, in the order of the program.
    fn needed(
        &self,
        module: &Module,
        value: InstructionId,
        is_there: impl Fn(InstructionId) -> bool,
    ) -> Vec<InstructionId> {
        let (mut work, mut needed) = (vec![value], Vec::new());
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        while let Some(id) = work.pop() {
            if self.again.contains(&id) && !is_there(id) && seen.insert(id) {
                needed.push(id);
                work.extend(module.instructions[id].operands.iter().copied());
            }
        }
        needed.sort_unstable_by_key(|id| self.place[id]);
        needed
    }

    /// The arrays that each function reads and finds, in the order of the program.
    fn saved(&self, module: &Module, of_constants: &FxHashSet<InstructionId>) -> Saved {
        let is_array = |id: InstructionId| module.shape(id).as_array().is_some_and(|array| array.rank() > 0);
        let is_found = |id: InstructionId| {
            is_array(id) && !of_constants.contains(&id) && (self.phase)(id) == Phase::Forward
        };
        let mut seen: FxHashSet<(Level, InstructionId)> = FxHashSet::default();
        let mut saved = Saved::default();
        for id in module.entry_computation().instructions.iter().filter(|id| self.again.contains(id)) {
            let level = self.levels[id];
            let list = saved.entry(level).or_default();
            let mut open = vec![*id];
            while let Some(next) = open.pop() {
                for &operand in module.instructions[next].operands.iter().rev() {
                    if !seen.insert((level, operand)) {
                        continue;
                    }
                    if self.again.contains(&operand) {
                        open.push(operand);
                    } else if is_found(operand) {
                        list.push(operand);
                    }
                }
            }
        }
        saved
    }

    /// The instructions of the backward half that read what each function recomputes.
    fn readers(&self, module: &Module) -> Readers {
        let mut readers = Readers::new();
        for &id in &module.entry_computation().instructions {
            if (self.phase)(id) == Phase::Backward {
                let read = module.instructions[id].operands.iter();
                let read = read.filter_map(|&operand| self.read_at(operand));
                read.for_each(|level| readers.entry(level).or_default().push(id));
            }
        }
        readers
    }

    /// Adds for each function the gradients to be complete before it is computed again: reductions and products with what the
    /// function after it recomputed, of which no other function waits for any. Functions that would wait for each other do
    /// not wait for gradients.
    fn wait_for_gradients(&self, module: &Module, readers: &Readers, waits: &mut [Wait]) {
        let users = Users::new(module);
        let instructions = &module.entry_computation().instructions;
        let mut awaited: FxHashSet<InstructionId> = waits.iter().filter_map(|wait| wait.arrival).collect();
        for &id in instructions.iter().rev().filter(|id| (self.phase)(**id) == Phase::Backward) {
            if awaited.contains(&id) {
                awaited.extend(module.instructions[id].operands.iter().copied());
            }
        }
        for (&level, of_level) in readers {
            let before = |&i: &usize| waits[i].level < level && waits[i].arrival.is_some();
            let next = (0..waits.len()).filter(before).max_by_key(|&i| waits[i].level);
            let Some(next) = next else { continue };
            let after = &waits[next].after;
            let mut gradients: Vec<InstructionId> = Vec::new();
            for &reader in of_level {
                let gradient = gradient_from(module, &users, reader, |id| {
                    (self.phase)(id) == Phase::Backward && !awaited.contains(&id) && !after.contains(&id)
                });
                gradients.extend(gradient.filter(|id| !gradients.contains(id)));
            }
            let behind = after_any_but(module, &gradients);
            gradients.retain(|id| !behind.contains(id));
            let as_it_was = waits[next].clone();
            waits[next].after.extend(behind);
            waits[next].gradients = gradients;
            if waits_for_itself(waits, next) {
                waits[next] = as_it_was;
            }
        }
    }

    /// For each function the gradient with which its backward half begins: of those that its readers also read, the one
    /// that is computed first. All that the function computes again waits for it. Functions that would wait for
    /// themselves, or for each other, wait for none. Linear in the module for each function.
    fn arrivals(
        &self,
        module: &Module,
        readers: &Readers,
        saved: &Saved,
        of_constants: &FxHashSet<InstructionId>,
    ) -> Vec<Wait> {
        let entry = module.entry_computation();
        let mut depth: FxHashMap<InstructionId, u32> = FxHashMap::default();
        for &id in &entry.instructions {
            let operands = &module.instructions[id].operands;
            let deepest = operands.iter().filter_map(|operand| depth.get(operand)).max();
            depth.insert(id, deepest.map_or(0, |depth| depth + 1));
        }
        // The zeros of a derivative depend on nothing, so waiting for them delays nothing.
        let is_gradient = |id: &InstructionId| {
            let array = module.shape(*id).as_array();
            (self.phase)(*id) == Phase::Backward
                && array.is_some_and(|array| array.rank() > 0)
                && !of_constants.contains(id)
        };
        let backward = entry.instructions.iter().copied().filter(|&id| (self.phase)(id) == Phase::Backward);
        let after_gradients = after(module, &backward.collect::<Vec<_>>());
        let function = |(&level, readers): (&Level, &Vec<InstructionId>)| {
            let saved = saved[&level].iter().copied().filter(|id| after_gradients.contains(id)).collect();
            Wait { level, arrival: None, gradients: Vec::new(), saved, after: after(module, readers) }
        };
        // The last function is the first to be computed again.
        let mut waits: Vec<Wait> = readers.iter().rev().map(function).collect();
        for i in 0..waits.len() {
            let Wait { level, after, .. } = &waits[i];
            let read = readers[level].iter().flat_map(|&id| &module.instructions[id].operands).copied();
            let first =
                read.filter(|id| is_gradient(id) && !after.contains(id)).min_by_key(|id| (depth[id], *id));
            waits[i].arrival = first;
            if waits_for_itself(&waits, i) {
                waits[i].arrival = None;
            }
        }
        waits
    }
}

/// The instructions of the entry that depend on no argument.
fn of_constants(module: &Module) -> FxHashSet<InstructionId> {
    let mut found: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in &module.entry_computation().instructions {
        let Instruction { op, operands, .. } = &module.instructions[id];
        let is_pure = op.traits().effect == memplan_ir::Effect::None && !matches!(op, Op::Parameter { .. });
        if is_pure && operands.iter().all(|operand| found.contains(operand)) {
            found.insert(id);
        }
    }
    found
}

/// The instructions of the forward half that are computed from one argument, and else from constants.
fn of_arguments(module: &Module, phase: &dyn Fn(InstructionId) -> Phase) -> FxHashSet<InstructionId> {
    let mut found: FxHashSet<InstructionId> = FxHashSet::default();
    let entry = module.entry_computation().instructions.iter().copied();
    for id in entry.filter(|&id| phase(id) == Phase::Forward) {
        let is_argument = |operand: &&InstructionId| {
            found.contains(operand) || matches!(module.instructions[**operand].op, Op::Parameter { .. })
        };
        let is_constant =
            |operand: &&InstructionId| matches!(module.instructions[**operand].op, Op::Constant(_));
        let operands = &module.instructions[id].operands;
        let (arguments, others): (Vec<_>, Vec<_>) = operands.iter().partition(is_argument);
        if arguments.len() == 1 && others.iter().all(is_constant) {
            found.insert(id);
        }
    }
    found
}

/// Some instructions of the entry, and all that depends on them.
fn after(module: &Module, first: &[InstructionId]) -> FxHashSet<InstructionId> {
    let mut after: FxHashSet<InstructionId> = first.iter().copied().collect();
    for &id in &module.entry_computation().instructions {
        if module.instructions[id].operands.iter().any(|operand| after.contains(operand)) {
            after.insert(id);
        }
    }
    after
}

/// All that depends on some instructions of the entry, but not these unless they depend on each other.
fn after_any_but(module: &Module, first: &[InstructionId]) -> FxHashSet<InstructionId> {
    let read: Vec<InstructionId> = module
        .entry_computation()
        .instructions
        .iter()
        .copied()
        .filter(|&id| module.instructions[id].operands.iter().any(|operand| first.contains(operand)))
        .collect();
    after(module, &read)
}

/// The product or reduction that an instruction is, or that its only reader makes of it, and so on: the gradient of a
/// weight. `is_free` says whether an instruction may wait.
fn gradient_from(
    module: &Module,
    users: &Users,
    from: InstructionId,
    is_free: impl Fn(InstructionId) -> bool,
) -> Option<InstructionId> {
    let mut id = from;
    while is_free(id) {
        let is_array = module.shape(id).as_array().is_some_and(|array| array.rank() > 0);
        if matches!(module.instructions[id].op, Op::Dot(_) | Op::Convolution(_) | Op::Reduce { .. }) {
            return is_array.then_some(id);
        }
        let &[user] = users.of(id) else { return None };
        id = user;
    }
    None
}

/// What a function waits for before it is computed again.
#[derive(Clone)]
struct Wait {
    level: Level,
    /// The gradient with which its backward half begins.
    arrival: Option<InstructionId>,
    /// Other gradients, which their readers read behind the function's barrier.
    gradients: Vec<InstructionId>,
    /// What the function saves that is computed from gradients.
    saved: Vec<InstructionId>,
    /// All that comes after the barrier.
    after: FxHashSet<InstructionId>,
}

/// Whether a function waits for itself, by way of others or not.
fn waits_for_itself(waits: &[Wait], first: usize) -> bool {
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    let mut open = vec![first];
    while let Some(i) = open.pop() {
        for (j, next) in waits.iter().enumerate() {
            let mut awaited = next.gradients.iter().chain(&next.arrival).chain(&next.saved);
            if awaited.any(|id| waits[i].after.contains(id)) && seen.insert(j) {
                open.push(j);
            }
        }
    }
    seen.contains(&first)
}

/// Adds a barrier of some values before an instruction, and the elements behind it.
fn add_barrier(
    module: &mut Module,
    beside: InstructionId,
    values: &[InstructionId],
    names: &mut Names,
) -> Vec<InstructionId> {
    let mut at = Cursor::beside(module, names, beside);
    let tuple = at.named("saved").tuple(values.to_vec());
    let barrier = at.named("checkpoint").insert(Op::OptimizationBarrier, [tuple]);
    let elements = (0..).zip(values).map(|(index, &id)| {
        let stem = at.module().instructions[id].name.clone();
        at.named(&stem).get_tuple_element(barrier, index)
    });
    elements.collect()
}

/// Lets all readers of some values but the barriers read them behind the barriers.
fn wait(module: &mut Module, behind: &FxHashMap<InstructionId, InstructionId>) {
    let before = |&element: &InstructionId| {
        let barrier = module.instructions[element].operands[0];
        module.instructions[barrier].operands[0]
    };
    let into_barriers: FxHashSet<InstructionId> = behind.values().map(before).collect();
    for id in module.computations[module.entry].instructions.clone() {
        if into_barriers.contains(&id) {
            continue;
        }
        for operand in module.instructions[id].operands.clone() {
            if let Some(&element) = behind.get(&operand) {
                module.replace_operand(id, operand, element);
            }
        }
    }
}

/// Adds copies of instructions, which read the inputs of their function behind its barrier.
fn compute_again(
    module: &mut Module,
    level: Level,
    needed: Vec<InstructionId>,
    names: &mut Names,
    instead: &mut FxHashMap<(Level, InstructionId), InstructionId>,
) {
    for id in needed {
        let Instruction { operands, parent, .. } = &module.instructions[id];
        let now = |operand: &InstructionId| instead.get(&(level, *operand)).copied().unwrap_or(*operand);
        let operands: Operands = operands.iter().map(now).collect();
        let copy = Cursor::end(module, names, *parent).copy_of(id, operands);
        instead.insert((level, id), copy);
    }
}
