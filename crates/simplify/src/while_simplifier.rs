//! `while-simplifier`: removes loops that run at most once, and unneeded loop state.
//!
//! ```text
//! zero = f32[4] broadcast(0)
//! s = (s32[], f32[4], f32[8], f32[4]) tuple(0, p, zero, q)
//! w = (s32[], f32[4], f32[8], f32[4]) while(s)         // adds element 2, which stays zero, to element 1
//! ROOT r = f32[4] get-tuple-element(w), index=1        // element 3 is written, but never read
//!      =>
//! s = (s32[], f32[4]) tuple(0, p)
//! w = (s32[], f32[4]) while(s)                         // makes its own zero
//! ROOT r = f32[4] get-tuple-element(w), index=1
//! ```
//!
//! An element of the state is a buffer that lives as long as the loop. It is removed
//!
//! * if it is *dead*: it reaches neither the condition, nor a side effect, nor a reader after the loop;
//! * if it is *constant*: each iteration passes it on, or computes the same value again, and it started as a constant,
//!   a broadcast of one, or an iota: body and condition make their own (*constant sinking*);
//! * if it *equals* another: both start with the same value, and each iteration changes both in the same way.
//!
//! If a loop passes a value on unchanged, its readers after the loop read the value before the loop. A loop that never
//! runs is its initial state; one that runs once is its body.
//!
//! Leaves alone: loops with side effects or control dependencies, and loops whose body or condition uses the state as a
//! whole. Requires nothing, finds more after inlining and simplification. *Changed* means that a loop was rewritten.

use memplan_analysis::trip_count;
use memplan_ir::{ComputationId, Instruction, InstructionId, Literal, Module, Op, Opcode, Shape, ShapeId};
use memplan_rewriter::{Context, NEGLIGIBLE_BYTES, Outcome, Pass, PassError, PassFn, Rewriter, inline};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use smallvec::SmallVec;

use crate::copy_computation::{
    copy_computation, fixed_instructions, part_of, state_element, uses_elements_only,
};
use crate::tuple_simplifier::element_of_tuple;
use crate::tuple_uses::unused_elements;

/// Rewrites loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WhileSimplifier {
    /// Most sweeps in one run. Each takes one level of nesting further.
    pub max_sweeps: usize,
    /// A constant of at most this many bytes may be repeated in the body and the condition of a loop.
    pub max_repeated_bytes: u64,
    /// Whether broadcasts of such constants, and iotas, may be repeated.
    pub repeats_arrays: bool,
}

/// The pass with the limits that `compile` uses.
pub const WHILE_SIMPLIFIER: WhileSimplifier =
    WhileSimplifier { max_sweeps: 8, max_repeated_bytes: NEGLIGIBLE_BYTES, repeats_arrays: true };

/// The pass as `compile` runs it, for compilers whose files restrict [`WHILE_SIMPLIFIER`]. XLA's compilers look once for
/// constants that loops carry, before they inline calls, so they do not see those that called computations make.
pub const WHILE_LOOP_CONSTANT_SINKING: PassFn = PassFn {
    name: "while-loop-constant-sinking",
    description: "have loops make constants that they carry, as XLA's compilers do before they inline calls",
    run: |module, context| Ok(WHILE_SIMPLIFIER.run(module, context)?.changed),
};

impl Default for WhileSimplifier {
    fn default() -> WhileSimplifier {
        WHILE_SIMPLIFIER
    }
}

impl Pass for WhileSimplifier {
    fn name(&self) -> &'static str {
        "while-simplifier"
    }

    fn description(&self) -> &'static str {
        "drop loops that do not run, inline loops that run once, and shrink the state of the others"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let mut changed = false;
        for _ in 0..self.max_sweeps {
            let mut rewriter = Rewriter::new(module);
            let unused = unused_elements(&rewriter, |op| matches!(op, Op::While));
            rewriter.sweep(|r, id| match r.op(id) {
                Op::While if !r.is_pinned(id) => {
                    few_trips(r, id).or_else(|| with_less_state(r, id, unused.of(id), self))
                }
                Op::GetTupleElement { index } => {
                    element_of_tuple(r, id, *index).or_else(|| passed_on(r, id, *index))
                }
                _ => None,
            });
            if !rewriter.finish() {
                break;
            }
            changed = true;
        }
        Ok(changed.into())
    }
}

/// A loop that never runs is its initial state, one that runs once is its body.
fn few_trips(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let init = r.operand(id, 0);
    match trip_count(r.module(), id)? {
        0 => Some(init),
        1 => {
            let body = r.get(id).called[0];
            Some(inline(r, id, body, &[init]))
        }
        _ => None,
    }
}

/// An element that the loop passes on unchanged is equal to its value before the loop.
fn passed_on(r: &Rewriter<'_>, id: InstructionId, index: u32) -> Option<InstructionId> {
    let loop_ = r.operand(id, 0);
    if !matches!(r.op(loop_), Op::While) {
        return None;
    }
    let body = r.get(loop_).called[0];
    let root = r.module().computations[body].root;
    let init = r.operand(loop_, 0);
    let is_passed_on = matches!(r.op(root), Op::Tuple)
        && state_element(r, body, r.operand(root, index as usize)) == Some(index as usize);
    (is_passed_on && matches!(r.op(init), Op::Tuple)).then(|| r.operand(init, index as usize))
}

/// The fate of an element of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    /// Nothing needs it.
    Dropped,
    /// Body and condition make a copy of this instruction from before the loop.
    Made(InstructionId),
    /// It is always equal to this element.
    SameAs(usize),
}

/// The same loop without the elements that it can do without.
fn with_less_state(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    unused: &[bool],
    options: &WhileSimplifier,
) -> Option<InstructionId> {
    let (body, condition) = (r.get(id).called[0], r.get(id).called[1]);
    let init = r.operand(id, 0);
    let body_root = r.root_of(body);
    let is_plain = matches!(r.op(init), Op::Tuple)
        && matches!(r.op(body_root), Op::Tuple)
        && uses_elements_only(r, body)
        && uses_elements_only(r, condition);
    if !is_plain {
        return None;
    }
    let init = r.operands(init).to_vec();
    let next = r.operands(body_root).to_vec();
    let fates = fates(r, [body, condition], &init, &next, unused, options);
    if fates.iter().all(|fate| *fate == Fate::Kept) {
        return None;
    }
    let kept: Vec<usize> = (0..fates.len()).filter(|&i| fates[i] == Fate::Kept).collect();
    let next: Vec<InstructionId> = kept.iter().map(|&i| next[i]).collect();
    let verdict = r.root_of(condition);
    let new_body = rebuild(r, body, &fates, &kept, &next, true);
    let new_condition = rebuild(r, condition, &fates, &kept, &[verdict], false);
    let shape = r.shape(id).clone();
    let parts = shape.as_tuple().expect("the state is a tuple").to_vec();
    let new_shape = part_of(&shape, &kept);
    let init_shape = Shape::Tuple(kept.iter().map(|&i| r.shape(init[i]).clone()).collect());
    let new_init = r.emit(Op::Tuple, kept.iter().map(|&i| init[i]).collect::<Vec<_>>(), init_shape);
    let new_loop = r.emit_call(Op::While, [new_init], [new_body, new_condition], new_shape);
    // Dropped or recomputed elements end as they began, or nobody looks.
    let mut results = init;
    for (new_index, &i) in kept.iter().enumerate() {
        let op = Op::GetTupleElement { index: new_index as u32 };
        results[i] = r.emit(op, [new_loop], parts[i].clone());
    }
    for (i, fate) in fates.iter().enumerate() {
        if let Fate::SameAs(other) = *fate {
            results[i] = results[other];
        }
    }
    Some(r.emit(Op::Tuple, results, shape))
}

fn fates(
    r: &mut Rewriter<'_>,
    [body, condition]: [ComputationId; 2],
    init: &[InstructionId],
    next: &[InstructionId],
    unused: &[bool],
    options: &WhileSimplifier,
) -> Vec<Fate> {
    let n = init.len();
    let passes_on: Vec<bool> = (0..n).map(|i| state_element(r, body, next[i]) == Some(i)).collect();
    // Readers of an unchanged element can read it before the loop.
    let wanted = (0..n).map(|i| !passes_on[i] && !unused.get(i).copied().unwrap_or(false)).collect();
    let live = live_elements(r, body, condition, next, wanted);
    let mut first_alike: FxHashMap<Step, usize> = FxHashMap::default();
    (0..n)
        .map(|i| {
            if !live[i] {
                return Fate::Dropped;
            }
            let stays = passes_on[i] || (r.splat(init[i]).is_some() && r.splat(init[i]) == r.splat(next[i]));
            if stays && options.may_repeat(r, init[i]) {
                return Fate::Made(init[i]);
            }
            let first = *first_alike.entry(step(r, body, init[i], next[i], i)).or_insert(i);
            let does_same = |a: &Instruction, b: &Instruction| a.op == b.op && a.called == b.called;
            let is_same = first != i && (passes_on[i] || does_same(r.get(next[first]), r.get(next[i])));
            if is_same { Fate::SameAs(first) } else { Fate::Kept }
        })
        .collect()
}

/// An element's initial value, and the operands of the next one; `None` represents the element itself. Two elements
/// with the same step and operation are equal in the first iteration, and so in each.
type Step = (InstructionId, Opcode, ShapeId, SmallVec<[Option<InstructionId>; 6]>);

fn step(r: &Rewriter<'_>, body: ComputationId, init: InstructionId, next: InstructionId, i: usize) -> Step {
    let instruction = r.get(next);
    if state_element(r, body, next) == Some(i) {
        return (init, instruction.opcode(), instruction.shape, SmallVec::from_elem(None, 1));
    }
    let other_than_itself =
        |&operand: &InstructionId| (state_element(r, body, operand) != Some(i)).then_some(operand);
    let operands = instruction.operands.iter().map(other_than_itself).collect();
    (init, instruction.opcode(), instruction.shape, operands)
}

/// The elements that reach the condition, a side effect of the body, or an element that is wanted after the loop.
fn live_elements(
    r: &mut Rewriter<'_>,
    body: ComputationId,
    condition: ComputationId,
    next: &[InstructionId],
    mut live: Vec<bool>,
) -> Vec<bool> {
    for id in r.live_instructions_of(condition) {
        if let Some(i) = state_element(r, condition, id) {
            live[i] = true;
        }
    }
    let mut visited = FxHashSet::default();
    let mut stack = fixed_instructions(r, body);
    let mut pending: Vec<usize> = (0..live.len()).filter(|&i| live[i]).collect();
    loop {
        while let Some(id) = stack.pop() {
            if !visited.insert(id) {
                continue;
            }
            match state_element(r, body, id) {
                Some(i) if !live[i] => {
                    live[i] = true;
                    pending.push(i);
                }
                Some(_) => {}
                None => stack.extend(r.operands(id).iter().chain(&r.get(id).control_predecessors)),
            }
        }
        match pending.pop() {
            Some(i) => stack.push(next[i]),
            None => return live,
        }
    }
}

/// Whether a value may be made in every iteration rather than carried: it reads nothing from memory, or next to
/// nothing.
impl WhileSimplifier {
    /// Whether body and condition may make a value from before the loop on their own.
    fn may_repeat(&self, r: &Rewriter<'_>, id: InstructionId) -> bool {
        match r.op(id) {
            Op::Iota { .. } => self.repeats_arrays,
            Op::Broadcast { .. } => {
                self.repeats_arrays && is_small_constant(r, r.operand(id, 0), self.max_repeated_bytes)
            }
            _ => is_small_constant(r, id, self.max_repeated_bytes),
        }
    }
}

fn is_small_constant(r: &Rewriter<'_>, id: InstructionId, max_bytes: u64) -> bool {
    matches!(r.op(id), Op::Constant(Literal::Array(_)))
        && r.array(id).and_then(|array| array.dense_bytes()).is_some_and(|bytes| bytes <= max_bytes)
}

/// A copy of a body or condition over the kept elements.
fn rebuild(
    r: &mut Rewriter<'_>,
    old: ComputationId,
    fates: &[Fate],
    kept: &[usize],
    results: &[InstructionId],
    tuple: bool,
) -> ComputationId {
    let state = r.module().computations[old].parameters[0];
    let shape = part_of(r.shape(state), kept);
    copy_computation(r, old, shape, results, tuple, &FxHashMap::default(), &mut |r, site| {
        let index = match fates[site.index] {
            Fate::Made(outer) => return make(r, outer),
            Fate::SameAs(other) => other,
            Fate::Kept | Fate::Dropped => site.index,
        };
        let index = kept.binary_search(&index).expect("what is needed is kept");
        site.take(r, index)
    })
}

/// Copies a constant, or a broadcast of one, from before the loop.
fn make(r: &mut Rewriter<'_>, outer: InstructionId) -> InstructionId {
    let name = r.fresh_name(r.get(outer).opcode().into());
    let operands = r.operands(outer).to_vec().into_iter().map(|operand| make(r, operand)).collect();
    r.copy(outer, |copy| (copy.name, copy.operands) = (name, operands))
}
