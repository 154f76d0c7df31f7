//! `reduce-of-arg-reduce`: takes the largest element from the search for its position, as XLA's algebraic simplifier does.
//!
//! ```text
//!   a = (f32[8], s32[8]) reduce(x, i, -inf, 0), to_apply=argmax
//!   m = f32[8] reduce(x, -inf), to_apply=max          =>     m = f32[8] get-tuple-element(a), index=0
//! ```
//!
//! `x` is then read by one kernel, so that it need not be stored. The same for the smallest element.
//!
//! A search that comes later is made before the reduction, if it does not follow from it.
//!
//! Left alone: searches that do not return NaN where there is one, as maxima do. *Changed* means that a reduction is gone.

use memplan_ir::{BinaryOp, ComparisonDirection, ComputationId, InstructionId, Module, Op, Users};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter, plain_combiner};
use rustc_hash::{FxHashMap, FxHashSet};

/// The pass.
pub const REDUCE_OF_ARG_REDUCE: PassFn = PassFn {
    name: "reduce-of-arg-reduce",
    description: "take the largest element from the search for its position, as XLA's algebraic simplifier does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let rewriter = Rewriter::new(module);
    let lists = rewriter.module().computations.values().flat_map(|computation| &computation.instructions);
    let found: Vec<_> = lists.filter_map(|&id| Some((id, search(&rewriter, &users, id)?))).collect();
    drop(rewriter);
    let searches: FxHashMap<InstructionId, InstructionId> =
        found.into_iter().filter(|&(id, search)| precede(module, search, id)).collect();
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| {
        let &search = searches.get(&id)?;
        let shape = r.shape(id).clone();
        Some(r.emit(Op::GetTupleElement { index: 0 }, [search], shape))
    });
    Ok(rewriter.finish())
}

/// Moves an instruction, and what it needs, before another one of its computation. `false` if it needs that one.
fn precede(module: &mut Module, id: InstructionId, other: InstructionId) -> bool {
    let computation = module.instructions[other].parent;
    let list = &module.computations[computation].instructions;
    let Some(from) = list.iter().position(|&at| at == other) else { return false };
    let Some(to) = list.iter().position(|&at| at == id) else { return false };
    if to < from {
        return true;
    }
    let mut needed = FxHashSet::from_iter([id]);
    for &at in list[from..=to].iter().rev() {
        if needed.contains(&at) {
            let instruction = &module.instructions[at];
            needed.extend(instruction.operands.iter().chain(&instruction.control_predecessors));
        }
    }
    if needed.contains(&other) {
        return false;
    }
    let list = &mut module.computations[computation].instructions;
    list[from..=to].sort_by_key(|at| !needed.contains(at));
    true
}

/// The reduction that finds the position of the result of a maximum or minimum.
fn search(r: &Rewriter<'_>, users: &Users, id: InstructionId) -> Option<InstructionId> {
    let Op::Reduce { dimensions } = r.op(id) else { return None };
    let &[x, init] = r.operands(id) else { return None };
    let wanted = match plain_combiner(r.module(), r.get(id).called[0])? {
        BinaryOp::Maximum => ComparisonDirection::Gt,
        BinaryOp::Minimum => ComparisonDirection::Lt,
        _ => return None,
    };
    let init = r.splat(init)?;
    users.of(x).iter().copied().find(|&user| {
        let Op::Reduce { dimensions: others } = r.op(user) else { return false };
        let &[y, positions, least, first] = r.operands(user) else { return false };
        y == x
            && others == dimensions
            && r.uses(user) > 0
            && is_iota(r, positions)
            && r.splat(least) == Some(init)
            && r.splat(first).is_some()
            && direction(r.module(), r.get(user).called[0]) == Some(wanted)
    })
}

fn is_iota(r: &Rewriter<'_>, id: InstructionId) -> bool {
    match r.op(id) {
        Op::Broadcast { .. } | Op::Reshape { .. } => is_iota(r, r.operand(id, 0)),
        op => matches!(op, Op::Iota { .. }),
    }
}

/// The comparison by which a reducer returns the first of two elements. It also returns the first if that is NaN.
fn direction(module: &Module, reducer: ComputationId) -> Option<ComparisonDirection> {
    let operands = |id: InstructionId| &module.instructions[id].operands[..];
    let op = |id: InstructionId| &module.instructions[id].op;
    let computation = &module.computations[reducer];
    let &[a, _, b, _] = &computation.parameters[..] else { return None };
    let &[value, _] = operands(computation.root) else { return None };
    let &[condition, on_true, on_false] = operands(value) else { return None };
    let selects = matches!(op(value), Op::Select) && (on_true, on_false) == (a, b);
    if !selects || !matches!(op(condition), Op::Binary(BinaryOp::Or)) {
        return None;
    }
    let compared = |id: InstructionId| match *op(id) {
        Op::Compare { direction, .. } => Some((direction, operands(id))),
        _ => None,
    };
    let &[first, second] = operands(condition) else { return None };
    let (first, second) = (compared(first)?, compared(second)?);
    let is_nan = (ComparisonDirection::Ne, &[a, a][..]);
    let other = match () {
        () if first == is_nan => second,
        () if second == is_nan => first,
        () => return None,
    };
    (other.1 == [a, b]).then_some(other.0)
}
