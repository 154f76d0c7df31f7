//! `conditional-simplifier`: removes conditionals whose branch is known, and results that nobody reads.
//!
//! ```text
//! c = pred[] constant(true)
//! r = f32[4] conditional(c, p, q), true_computation=t, false_computation=f      =>     r = ... body of t at p
//! ```
//!
//! A conditional that calls the same computation with the same operand in every branch is that call. If every branch
//! returns an operand unchanged, readers of that result read the operand instead. Elements of the result without
//! readers are dropped, and so are elements of an operand that its branch does not use: they need not stay alive until
//! then. For a compiler that prefers them, predicates select branches, not numbers made of predicates.
//!
//! Leaves alone: conditionals with control dependencies, and dead results of conditionals with side effects. Requires
//! nothing. *Changed* means that a conditional was replaced.

use memplan_ir::{ComputationId, ElementType, InstructionId, Module, Op, Scalar, Shape};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Rewriter, inline};
use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::copy_computation::{copy_computation, part_of, state_element, uses_elements_only};
use crate::tuple_simplifier::element_of_tuple;
use crate::tuple_uses::unused_elements;

/// Rewrites conditionals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConditionalSimplifier {
    /// Most sweeps in one run. Each takes one level of nesting further.
    pub max_sweeps: usize,
    /// Whether a predicate that is converted to the number of a branch selects it itself.
    pub prefers_predicates: bool,
}

/// The pass with the limit that `compile` uses.
pub const CONDITIONAL_SIMPLIFIER: ConditionalSimplifier =
    ConditionalSimplifier { max_sweeps: 8, prefers_predicates: false };

impl Default for ConditionalSimplifier {
    fn default() -> ConditionalSimplifier {
        CONDITIONAL_SIMPLIFIER
    }
}

impl Pass for ConditionalSimplifier {
    fn name(&self) -> &'static str {
        "conditional-simplifier"
    }

    fn description(&self) -> &'static str {
        "inline known branches, and drop results of conditionals that nobody reads"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let mut changed = false;
        for _ in 0..self.max_sweeps {
            let mut rewriter = Rewriter::new(module);
            let unused = unused_elements(&rewriter, |op| matches!(op, Op::Conditional));
            rewriter.sweep(|r, id| match r.op(id) {
                Op::Conditional => known_branch(r, id)
                    .or_else(|| self.prefers_predicates.then(|| by_predicate(r, id)).flatten())
                    .or_else(|| with_fewer_results(r, id, unused.of(id)))
                    .or_else(|| with_smaller_operands(r, id)),
                Op::GetTupleElement { index } => {
                    let index = *index;
                    element_of_tuple(r, id, index).or_else(|| handed_through(r, id, index))
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

fn known_branch(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    if r.has_control_dependencies(id) {
        return None;
    }
    let selector = r.operand(id, 0);
    let branches = r.get(id).called.clone();
    let operands = r.operands(id)[1..].to_vec();
    let all_alike = (1..branches.len()).all(|i| branches[i] == branches[0] && operands[i] == operands[0]);
    let branch = match r.splat(selector) {
        _ if all_alike => 0,
        Some(known) if known.element_type == ElementType::Pred => usize::from(known.is_zero()),
        // An index without a branch means the last one.
        Some(known) => usize::try_from(known.as_integer()?)
            .ok()
            .filter(|&i| i < branches.len())
            .unwrap_or(branches.len() - 1),
        None => return None,
    };
    Some(inline(r, id, branches[branch], &[operands[branch]]))
}

/// The same conditional by the predicate of which its selector is made. The branch for true is then the first.
fn by_predicate(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let &[selector, if_false, if_true] = r.operands(id) else { return None };
    let Op::Convert = r.op(selector) else { return None };
    let predicate = r.operand(selector, 0);
    if r.is_pinned(id) || r.array(predicate)?.element_type != ElementType::Pred {
        return None;
    }
    let (shape, mut branches) = (r.shape(id).clone(), r.get(id).called.clone());
    branches.reverse();
    Some(r.emit_call(Op::Conditional, [predicate, if_true, if_false], branches, shape))
}

/// An element of the result that, in any branch, is the same value from before the conditional.
fn handed_through(r: &mut Rewriter<'_>, id: InstructionId, index: u32) -> Option<InstructionId> {
    let conditional = r.operand(id, 0);
    if !matches!(r.op(conditional), Op::Conditional) {
        return None;
    }
    let branches = r.get(conditional).called.clone();
    let mut value = None;
    for (i, &branch) in branches.iter().enumerate() {
        let (root, operand) = (r.root_of(branch), r.operand(conditional, i + 1));
        if !matches!(r.op(root), Op::Tuple) {
            return None;
        }
        let result = r.operand(root, index as usize);
        let outer = match state_element(r, branch, result) {
            Some(element) if matches!(r.op(operand), Op::Tuple) => r.operand(operand, element),
            None if r.module().computations[branch].parameters.first() == Some(&result) => operand,
            _ => return None,
        };
        if *value.get_or_insert(outer) != outer {
            return None;
        }
    }
    value
}

/// The same conditional without the elements of its result that are never taken out.
fn with_fewer_results(r: &mut Rewriter<'_>, id: InstructionId, unused: &[bool]) -> Option<InstructionId> {
    if r.is_pinned(id) || !unused.contains(&true) {
        return None;
    }
    let shape = r.shape(id).clone();
    let parts = shape.as_tuple()?.to_vec();
    let is_array = |shape: &Shape| matches!(shape, Shape::Array(array) if !array.is_dynamic());
    let kept: Vec<usize> = (0..parts.len()).filter(|&i| !unused[i] || !is_array(&parts[i])).collect();
    if kept.len() == parts.len() {
        return None;
    }
    let mut branches = r.get(id).called.clone();
    for &branch in &branches {
        let root = r.root_of(branch);
        if !matches!(r.op(root), Op::Tuple) || !uses_elements_only(r, branch) {
            return None;
        }
    }
    for branch in &mut branches {
        let root = r.root_of(*branch);
        let results: Vec<InstructionId> = kept.iter().map(|&i| r.operand(root, i)).collect();
        let state = r.shape(r.module().computations[*branch].parameters[0]).clone();
        *branch =
            copy_computation(r, *branch, state, &results, true, &FxHashMap::default(), &mut |r, site| {
                site.take(r, site.index)
            });
    }
    let operands = r.operands(id).to_vec();
    let new = r.emit_call(Op::Conditional, operands, branches, part_of(&shape, &kept));
    // Nobody reads dropped elements of this tuple, so any value will do.
    let results: Vec<InstructionId> = parts
        .iter()
        .enumerate()
        .map(|(i, part)| match (kept.binary_search(&i), part) {
            (Err(_), Shape::Array(array)) => {
                let zero = Scalar::integer(array.element_type, 0);
                r.splat_array(zero, &array.dimensions)
            }
            (index, _) => {
                let index = index.expect("only arrays are dropped") as u32;
                r.emit(Op::GetTupleElement { index }, [new], part.clone())
            }
        })
        .collect();
    Some(r.emit(Op::Tuple, results, shape))
}

/// The same conditional with smaller operands, where a branch does not use all elements of its own.
fn with_smaller_operands(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    if r.is_pinned(id) {
        return None;
    }
    let (mut branches, mut operands) = (r.get(id).called.clone(), r.operands(id).to_vec());
    let used: Vec<Option<Vec<usize>>> =
        (0..branches.len()).map(|i| used_elements(r, branches[i], operands[i + 1])).collect();
    if used.iter().all(Option::is_none) {
        return None;
    }
    for (i, used) in used.iter().enumerate() {
        let Some(used) = used else { continue };
        let state = r.shape(r.module().computations[branches[i]].parameters[0]).clone();
        let root = r.root_of(branches[i]);
        let small = part_of(&state, used);
        branches[i] =
            copy_computation(r, branches[i], small, &[root], false, &FxHashMap::default(), &mut |r, site| {
                let index = used.binary_search(&site.index).expect("what is taken out is used");
                site.take(r, index)
            });
        let elements: Vec<InstructionId> = used.iter().map(|&e| r.operand(operands[i + 1], e)).collect();
        let shape = part_of(r.shape(operands[i + 1]), used);
        operands[i + 1] = r.emit(Op::Tuple, elements, shape);
    }
    let shape = r.shape(id).clone();
    Some(r.emit_call(Op::Conditional, operands, branches, shape))
}

/// The elements of a branch's operand that the branch takes out, when they are not all.
fn used_elements(r: &mut Rewriter<'_>, branch: ComputationId, operand: InstructionId) -> Option<Vec<usize>> {
    if !matches!(r.op(operand), Op::Tuple) || !uses_elements_only(r, branch) {
        return None;
    }
    let n = r.operands(operand).len();
    let instructions = r.live_instructions_of(branch);
    let mut used: Vec<usize> = instructions.iter().filter_map(|&i| state_element(r, branch, i)).collect();
    used.sort_unstable();
    used.dedup();
    (used.len() < n).then_some(used)
}
