//! `scatter-of-addend`: lets a scatter add to an array, instead of adding its result to that array.
//!
//! ```text
//!   s = f32[8,16] scatter(0, at, u), add        =>     r = f32[8,16] scatter(x, at, u), add
//!   r = f32[8,16] add(x, s)
//! ```
//!
//! `scatters-together` scatters the rows of both at once where the other array is such a sum itself:
//!
//! ```text
//!   r = f32[8,16] add(scatter(x, at, u), scatter(0, to, v))   =>   r = scatter(x, concatenate(at, to), concatenate(u, v))
//! ```
//!
//! XLA's algebraic simplifier does this to gradients of look-ups, which are added to another gradient. Seen in 0.12 on
//! XLA CPU and GPU, on all programs of docs/truth.md with such sums. Left alone: scatters with other readers.
//! *Changed* means that there is a new scatter.

use memplan_ir::{BinaryOp, Insert, InstructionId, Op, ScatterDimensions};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const SCATTER_OF_ADDEND: Sweep = Sweep {
    name: "scatter-of-addend",
    description: "scatter into the array that the result is added to, as XLA's algebraic simplifier does",
    rule,
};

/// The pass that scatters the rows of several scatters at once.
pub const SCATTERS_TOGETHER: Sweep = Sweep {
    name: "scatters-together",
    description: "scatter what two scatters add to one array at once, as XLA's TPU compiler does",
    rule: |r, id| {
        let (scatter, addend) = scatter_and_addend(r, id)?;
        together(r, addend, scatter).or_else(|| Some(into(r, scatter, addend)))
    },
};

/// The sum of what two scatters make as one scatter of the rows of both, if nothing else reads the first.
fn together(r: &mut Rewriter<'_>, first: InstructionId, second: InstructionId) -> Option<InstructionId> {
    let numbers = dimensions(r, second)?;
    let is_alike = dimensions(r, first)? == numbers && numbers.input_batching_dims.is_empty();
    if !is_alike || r.uses(first) != 1 || !adds(r, first) {
        return None;
    }
    let along_indices = usize::from(numbers.index_vector_dim == 0);
    let along_updates = (0..).find(|&d| !numbers.update_window_dims.contains(&(d as i64)))?;
    let indices = joined(r, [first, second].map(|scatter| r.operand(scatter, 1)), along_indices)?;
    let updates = joined(r, [first, second].map(|scatter| r.operand(scatter, 2)), along_updates)?;
    let table = r.operand(first, 0);
    Some(r.copy(second, |scatter| {
        scatter.op = Op::Scatter(Box::new(numbers));
        scatter.operands = [table, indices, updates].into_iter().collect();
    }))
}

/// The dimension numbers of a scatter, without its promises that places are sorted or unique: they do not hold for two scatters
/// together.
fn dimensions(r: &Rewriter<'_>, id: InstructionId) -> Option<ScatterDimensions> {
    let Op::Scatter(numbers) = r.op(id) else { return None };
    Some(ScatterDimensions { indices_are_sorted: false, unique_indices: false, ..(**numbers).clone() })
}

/// Two arrays one after the other, if their types and all other dimensions are equal.
fn joined(r: &mut Rewriter<'_>, parts: [InstructionId; 2], along: usize) -> Option<InstructionId> {
    let [first, mut second] = [r.dimensions(parts[0])?, r.dimensions(parts[1])?];
    *second.get_mut(along)? = *first.get(along)?;
    let fit = first == second && r.element_type(parts[0]) == r.element_type(parts[1]);
    fit.then(|| r.concatenate(parts, along as i64))
}

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let (scatter, addend) = scatter_and_addend(r, id)?;
    Some(into(r, scatter, addend))
}

/// A scatter into an array in place of zeros.
fn into(r: &mut Rewriter<'_>, scatter: InstructionId, table: InstructionId) -> InstructionId {
    r.copy(scatter, |scatter| scatter.operands[0] = table)
}

/// The scatter into zeros that a sum adds to something, and that.
fn scatter_and_addend(r: &Rewriter<'_>, id: InstructionId) -> Option<(InstructionId, InstructionId)> {
    let &[first, second] = r.operands(id) else { return None };
    let is_sum = matches!(r.op(id), Op::Binary(BinaryOp::Add)) && !r.has_control_dependencies(id);
    match () {
        () if !is_sum || first == second => None,
        () if adds_to_zeros(r, first) => Some((first, second)),
        () if adds_to_zeros(r, second) => Some((second, first)),
        () => None,
    }
}

/// Whether an instruction scatters into zeros, for one reader, by sums.
fn adds_to_zeros(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let instruction = r.get(id);
    r.uses(id) == 1 && adds(r, id) && r.splat(instruction.operands[0]).is_some_and(|value| value.is_zero())
}

/// Whether an instruction scatters by sums.
fn adds(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let instruction = r.get(id);
    if !matches!(instruction.op, Op::Scatter(_)) || instruction.operands.len() != 3 {
        return false;
    }
    let combiner = &r.module().computations[instruction.called[0]];
    let root = r.get(combiner.root);
    matches!(root.op, Op::Binary(BinaryOp::Add)) && root.operands[..] == combiner.parameters[..]
}
