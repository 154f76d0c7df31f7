//! `while-invariant-code-motion`: moves computations that are equal in every iteration before the loop.
//!
//! ```text
//! body { s = (s32[], f32[4], f32[]) parameter(0)        n = f32[] exponential(c)
//!        x = get-tuple-element(s), index=1              t = (s32[], f32[4], f32[]) tuple(i, p, n)
//!        c = get-tuple-element(s), index=2        =>    body { s = (s32[], f32[4], f32[]) parameter(0)
//!        n = f32[] exponential(c)                              x = get-tuple-element(s), index=1
//!        b = f32[4] broadcast(n)                               n = get-tuple-element(s), index=2
//!        y = f32[4] multiply(x, b) ... }                       b = f32[4] broadcast(n)
//!                                                              y = f32[4] multiply(x, b) ... }
//! ```
//!
//! A value computed before the loop lives as long as the loop. So a value moves only
//!
//! * if it takes next to nothing (see [`WhileInvariantCodeMotion::max_free_bytes`]), or
//! * if it *replaces* its operand: an array that the loop passes on only for this value, that nothing else keeps alive,
//!   and that is no smaller.
//!
//! XLA's CPU compiler ([`MotionWorth::AnyWork`]) moves everything that computes something, also of constants and iotas alone.
//! Its TPU compiler ([`MotionWorth::AnyWorkOnStored`]) moves what is no larger than its operands, if these are in memory before the
//! loop: no broadcast is computed there for it, except for a sum. Integers of 64 bits stay.
//!
//! Leaves alone: broadcasts, iotas and constants, which are better computed at their use; control flow, custom calls
//! and collectives; loops with side effects. Requires nothing. *Changed* means that something was moved.

use memplan_ir::{Access, ComputationId, ElementType, InstructionId, Literal, Module, Op, Shape};
use memplan_rewriter::rows::is_repetition;
use memplan_rewriter::{Context, NEGLIGIBLE_BYTES, Outcome, Pass, PassError, Rewriter};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::copy_computation::{copy_computation, state_element, uses_elements_only};

/// Computes loop-invariant values before loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhileInvariantCodeMotion {
    /// The condition for computing a value before a loop.
    pub worth: MotionWorth,
    /// A value of at most this many bytes may live through a loop.
    pub max_free_bytes: u64,
}

/// The condition for computing a value before a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MotionWorth {
    /// No bytes live in addition.
    NoBytes,
    /// Something is computed, rather than only arranged.
    AnyWork,
    /// The same, if it takes no more bytes than its operands, which are in memory before the loop. No integers of 64 bits: these
    /// are counters of random numbers, which a TPU computes in halves where it uses them.
    AnyWorkOnStored,
}

/// The pass as `compile` runs it.
pub const WHILE_INVARIANT_CODE_MOTION: WhileInvariantCodeMotion =
    WhileInvariantCodeMotion { worth: MotionWorth::NoBytes, max_free_bytes: NEGLIGIBLE_BYTES };

/// The pass of XLA's CPU compiler: every invariant value is computed before the loop, and lives as long as the loop.
pub const WHILE_INVARIANT_CODE_MOTION_OF_ALL: WhileInvariantCodeMotion =
    WhileInvariantCodeMotion { worth: MotionWorth::AnyWork, ..WHILE_INVARIANT_CODE_MOTION };

/// The pass of XLA's TPU compiler.
pub const WHILE_INVARIANT_CODE_MOTION_OF_STORED: WhileInvariantCodeMotion =
    WhileInvariantCodeMotion { worth: MotionWorth::AnyWorkOnStored, ..WHILE_INVARIANT_CODE_MOTION };

impl Default for WhileInvariantCodeMotion {
    fn default() -> WhileInvariantCodeMotion {
        WHILE_INVARIANT_CODE_MOTION
    }
}

impl Pass for WhileInvariantCodeMotion {
    fn name(&self) -> &'static str {
        match self.worth {
            MotionWorth::NoBytes => "while-invariant-code-motion",
            MotionWorth::AnyWork => "while-invariant-code-motion-of-all",
            MotionWorth::AnyWorkOnStored => "while-invariant-code-motion-of-stored",
        }
    }

    fn description(&self) -> &'static str {
        match self.worth {
            MotionWorth::NoBytes => {
                "compute before a loop what each iteration would compute again, where that takes no memory"
            }
            MotionWorth::AnyWork => {
                "compute before a loop what each iteration would compute again, as XLA's CPU compiler does"
            }
            MotionWorth::AnyWorkOnStored => {
                "compute before a loop what each iteration would compute again, as XLA's TPU compiler does"
            }
        }
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let mut rewriter = Rewriter::new(module);
        rewriter.sweep(|r, id| match r.op(id) {
            Op::While if !r.is_pinned(id) => hoist(r, id, self),
            Op::GetTupleElement { index } => crate::tuple_simplifier::element_of_tuple(r, id, *index),
            _ => None,
        });
        Ok(rewriter.finish().into())
    }
}

/// The dependencies of an instruction of a loop body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    /// Something that changes from iteration to iteration.
    #[default]
    Varying,
    /// Nothing.
    Constant,
    /// One element of the state that is passed on.
    Element(u32),
    /// Several such elements.
    Elements,
}

fn hoist(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    options: &WhileInvariantCodeMotion,
) -> Option<InstructionId> {
    let (body, condition) = (r.get(id).called[0], r.get(id).called[1]);
    let init = r.operand(id, 0);
    let root = r.root_of(body);
    let is_plain = matches!(r.op(init), Op::Tuple)
        && matches!(r.op(root), Op::Tuple)
        && uses_elements_only(r, body)
        && uses_elements_only(r, condition);
    if !is_plain {
        return None;
    }
    let instructions = r.live_instructions_of(body);
    let sources = sources(r, body, root, &instructions, options.worth);
    let moved = match options.worth {
        MotionWorth::NoBytes => {
            moved_values(r, init, [body, condition], &instructions, &sources, options.max_free_bytes)
        }
        MotionWorth::AnyWork | MotionWorth::AnyWorkOnStored => {
            values_of_work(r, body, &instructions, &sources, options.worth)
        }
    };
    if moved.is_empty() {
        return None;
    }
    let mut state = r.operands(init).to_vec();
    let n_old = state.len();
    state.extend(compute_before(r, body, init, &instructions, &moved));
    Some(with_more_state(r, id, root, state, n_old, &moved))
}

/// Of every instruction of a loop body. No table, which would be as long as the module for each loop.
type Sources = FxHashMap<InstructionId, Source>;

fn sources(
    r: &Rewriter<'_>,
    body: ComputationId,
    root: InstructionId,
    instructions: &[InstructionId],
    worth: MotionWorth,
) -> Sources {
    let mut sources = Sources::default();
    for &id in instructions {
        let source = match (state_element(r, body, id), r.op(id)) {
            (Some(i), _) if state_element(r, body, r.operand(root, i)) == Some(i) => {
                Source::Element(i as u32)
            }
            (None, Op::Constant(Literal::Array(_))) => Source::Constant,
            (None, _) if worth == MotionWorth::AnyWorkOnStored && is_wide_integer(r, id) => Source::Varying,
            (None, op) if is_movable(r, id) || worth != MotionWorth::NoBytes && is_repeated(op) => {
                let operands = r.operands(id).iter().map(|operand| sources[operand]);
                operands.fold(Source::Constant, join)
            }
            _ => Source::Varying,
        };
        sources.insert(id, source);
    }
    sources
}

fn join(a: Source, b: Source) -> Source {
    match (a, b) {
        (Source::Varying, _) | (_, Source::Varying) => Source::Varying,
        (Source::Constant, other) | (other, Source::Constant) => other,
        (Source::Element(a), Source::Element(b)) if a == b => Source::Element(a),
        _ => Source::Elements,
    }
}

/// Operations with the same result in any position that are worth computing once.
fn is_movable(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let op = r.op(id);
    let is_function = match op.traits().access {
        Access::Elementwise => op.is_elementwise() && !matches!(op, Op::StochasticConvert),
        Access::Reindexing => !is_repeated(op),
        Access::Contraction | Access::Reduction => true,
        Access::Update | Access::Whole => false,
    };
    is_function && !r.is_pinned(id) && r.array(id).is_some()
}

/// Whether an instruction makes integers of 64 bits.
fn is_wide_integer(r: &Rewriter<'_>, id: InstructionId) -> bool {
    matches!(r.element_type(id), Some(ElementType::S64 | ElementType::U64))
}

/// Views cost nothing, and an instruction without operands is cheaper to repeat than to keep.
fn is_repeated(op: &Op) -> bool {
    matches!(op, Op::Bitcast) || is_repetition(op)
}

/// The values to compute before the loop, in order.
fn moved_values(
    r: &mut Rewriter<'_>,
    init: InstructionId,
    [body, condition]: [ComputationId; 2],
    instructions: &[InstructionId],
    sources: &Sources,
    max_free_bytes: u64,
) -> Vec<InstructionId> {
    let n = r.operands(init).len();
    let is_computed =
        |r: &Rewriter<'_>, id: InstructionId| state_element(r, body, id).is_none() && is_movable(r, id);
    // Operands of varying instructions that do not vary: the loop would have to carry these values.
    let mut reach_in: FxHashSet<InstructionId> = FxHashSet::default();
    // Bytes to carry in place of an element; `None` if the element must be carried as well.
    let mut brought_for: Vec<Option<u64>> = vec![Some(0); n];
    let root = r.root_of(body);
    for i in r.live_instructions_of(condition) {
        if let Some(element) = state_element(r, condition, i) {
            brought_for[element] = None;
        }
    }
    for &user in instructions.iter().filter(|&&user| sources[&user] == Source::Varying && user != root) {
        for &operand in r.operands(user) {
            match (sources[&operand], state_element(r, body, operand)) {
                (Source::Element(i), Some(_)) => brought_for[i as usize] = None,
                (Source::Element(_) | Source::Elements, None) => {
                    reach_in.insert(operand);
                }
                _ => {}
            }
        }
    }
    let brought: Vec<InstructionId> =
        instructions.iter().copied().filter(|&id| reach_in.contains(&id) && is_computed(r, id)).collect();
    for &id in &brought {
        if let Source::Element(i) = sources[&id] {
            let bytes = bytes(r, id);
            brought_for[i as usize] =
                brought_for[i as usize].zip(bytes).and_then(|(sum, b)| sum.checked_add(b));
        }
    }
    // A value of several elements keeps all of them.
    for &id in instructions.iter().filter(|&&id| sources[&id] == Source::Elements) {
        for &operand in r.operands(id) {
            if let Source::Element(i) = sources[&operand] {
                brought_for[i as usize] = None;
            }
        }
    }
    let replaces = |r: &Rewriter<'_>, i: u32| {
        let element = r.operand(init, i as usize);
        let dies = r.uses(element) == 1 && !r.op(element).is_input();
        dies && brought_for[i as usize]
            .zip(bytes(r, element))
            .is_some_and(|(brought, element)| brought <= element)
    };
    let moves = |&id: &InstructionId| {
        bytes(r, id).is_some_and(|bytes| bytes <= max_free_bytes)
            || matches!(sources[&id], Source::Element(i) if replaces(r, i))
    };
    brought.into_iter().filter(moves).collect()
}

/// The values that something is computed for and that do not change, as far as anything else reads them. What constants alone
/// decide is folded before, unless it is large.
fn values_of_work(
    r: &Rewriter<'_>,
    body: ComputationId,
    instructions: &[InstructionId],
    sources: &Sources,
    worth: MotionWorth,
) -> Vec<InstructionId> {
    let mut work: FxHashSet<InstructionId> = FxHashSet::default();
    // What is in memory before the loop, or takes next to nothing there.
    let mut stored: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in instructions.iter().filter(|id| sources[id] != Source::Varying) {
        let is_element = state_element(r, body, id).is_some();
        let arranges = only_arranges(r.op(id));
        let reads_stored = r.operands(id).iter().all(|operand| stored.contains(operand));
        let is_reduced = r.op(id).traits().access == Access::Reduction;
        let goes = worth == MotionWorth::AnyWork || (is_reduced || reads_stored) && !takes_more_bytes(r, id);
        if !is_element && is_movable(r, id) && !arranges && goes {
            work.insert(id);
        }
        let is_scalar = r.array(id).is_some_and(|array| array.rank() == 0);
        if is_element || is_scalar || work.contains(&id) || arranges && reads_stored {
            stored.insert(id);
        }
    }
    let users = instructions.iter().filter(|user| !work.contains(user));
    let read: FxHashSet<InstructionId> = users.flat_map(|&user| r.operands(user)).copied().collect();
    instructions.iter().copied().filter(|id| read.contains(id) && work.contains(id)).collect()
}

/// Whether a result is larger than what it is computed from.
fn takes_more_bytes(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let read = r.operands(id).iter().filter_map(|&operand| bytes(r, operand)).fold(0, u64::saturating_add);
    bytes(r, id).is_none_or(|bytes| bytes > read)
}

/// Whether an operation only puts elements elsewhere, all of them: nothing is gained by doing that once.
fn only_arranges(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Reverse { .. } | Op::Slice { .. } | Op::Transpose { .. })
}

fn bytes(r: &Rewriter<'_>, id: InstructionId) -> Option<u64> {
    r.array(id)?.dense_bytes()
}

/// Copies the values, and their dependencies, to the loop's position.
fn compute_before(
    r: &mut Rewriter<'_>,
    body: ComputationId,
    init: InstructionId,
    instructions: &[InstructionId],
    moved: &[InstructionId],
) -> Vec<InstructionId> {
    let mut needed: FxHashSet<InstructionId> = moved.iter().copied().collect();
    for &i in instructions.iter().rev() {
        if needed.contains(&i) && state_element(r, body, i).is_none() {
            needed.extend(r.operands(i));
        }
    }
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for &i in instructions.iter().filter(|i| needed.contains(i)) {
        let copy = match state_element(r, body, i) {
            Some(element) => r.operand(init, element),
            None => {
                let name = r.fresh_name(r.get(i).opcode().into());
                r.copy(i, |copy| {
                    copy.name = name;
                    copy.operands.iter_mut().for_each(|operand| *operand = copies[operand]);
                })
            }
        };
        copies.insert(i, copy);
    }
    moved.iter().map(|value| copies[value]).collect()
}

/// The same loop over a state to which the moved values were added. Its first elements are the old state.
fn with_more_state(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    root: InstructionId,
    state: Vec<InstructionId>,
    n_old: usize,
    moved: &[InstructionId],
) -> InstructionId {
    let (body, condition) = (r.get(id).called[0], r.get(id).called[1]);
    let old_shape = r.shape(id).clone();
    let wider = |r: &Rewriter<'_>, shape: &Shape| {
        let old = shape.as_tuple().expect("the state is a tuple").iter().cloned();
        Shape::Tuple(old.chain(moved.iter().map(|&value| r.shape(value).clone())).collect())
    };
    let brought: FxHashMap<InstructionId, usize> =
        moved.iter().enumerate().map(|(k, &value)| (value, n_old + k)).collect();
    let mut results = r.operands(root).to_vec();
    results.extend(moved);
    let body_shape = wider(r, &r.shape(r.module().computations[body].parameters[0]).clone());
    let body = copy_computation(r, body, body_shape, &results, true, &brought, &mut |r, site| {
        site.take(r, site.index)
    });
    let verdict = r.root_of(condition);
    let condition_shape = wider(r, &r.shape(r.module().computations[condition].parameters[0]).clone());
    let condition = copy_computation(
        r,
        condition,
        condition_shape,
        &[verdict],
        false,
        &FxHashMap::default(),
        &mut |r, site| site.take(r, site.index),
    );
    let init_shape = Shape::Tuple(state.iter().map(|&element| r.shape(element).clone()).collect());
    let init = r.emit(Op::Tuple, state, init_shape);
    let new_shape = wider(r, &old_shape);
    let new = r.emit_call(Op::While, [init], [body, condition], new_shape);
    let parts = old_shape.as_tuple().expect("the state is a tuple").to_vec();
    let results: Vec<InstructionId> = parts
        .into_iter()
        .enumerate()
        .map(|(i, part)| r.emit(Op::GetTupleElement { index: i as u32 }, [new], part))
        .collect();
    r.emit(Op::Tuple, results, old_shape)
}
