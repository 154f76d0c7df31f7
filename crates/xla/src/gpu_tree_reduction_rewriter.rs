//! `gpu-tree-reduction-rewriter`: splits reductions that one block of threads could not finish.
//!
//! ```text
//!   r = f32[8] reduce(x, 0), dimensions={1}                        x: f32[8,32768]
//!      =>
//!   parts = f32[8,128,256] reshape(x)
//!   sums  = f32[8,128] reduce(parts, 0), dimensions={2}
//!   r     = f32[8] reduce(sums, 0), dimensions={1}
//! ```
//!
//! The number of parts is the largest power of two that is no more than the square root of the number of reduced elements,
//! after padding where it does not divide that (seen on jaxlib 0.12.0.1, where XLA takes another number to pad less). The
//! first reduction is a kernel that reads all elements; the second is small, and users of the result are fused into it.
//!
//! Left alone: reductions over dimensions that are not adjacent (XLA splits some of those), and reductions inside fusions.
//! *Changed* means that a reduction was split.

use memplan_ir::{
    ArrayShape, ComputationId, Dimensions, InstructionId, Layout, Module, Op, PaddingDimension, Shape,
};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter, call_graph};
use rustc_hash::FxHashSet;

/// The pass.
pub const GPU_TREE_REDUCTION_REWRITER: PassFn = PassFn {
    name: "gpu-tree-reduction-rewriter",
    description: "split long reductions in two, as XLA's GPU compiler does",
    run,
};

/// Elements beside each other that one block reduces: 1,024 threads of 16.
const MOST_ELEMENTS: i64 = 1024 * 16;
/// Rows that one block reduces: 32 threads of 128.
const MOST_ROWS: i64 = 32 * 128;

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let graph = call_graph(module, GPU_TREE_REDUCTION_REWRITER.name)?;
    let sequential: FxHashSet<ComputationId> = graph.sequential().iter().copied().collect();
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match r.op(id) {
        Op::Reduce { .. } if sequential.contains(&r.get(id).parent) => split(r, id),
        _ => None,
    });
    Ok(rewriter.finish())
}

fn split(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Reduce { dimensions } = r.op(id) else { return None };
    let &[operand, initial] = r.operands(id) else { return None };
    let reducer = r.get(id).called[0];
    let array = r.array(operand)?;
    let is_row_major = array.layout.as_ref().is_none_or(|layout| *layout == Layout::row_major(array.rank()));
    if !is_row_major || !array.dynamic.is_empty() {
        return None;
    }
    // Dimensions beside each other that are all reduced, or all kept.
    let (mut is_reduced, mut extents): (Vec<bool>, Vec<i64>) = (Vec::new(), Vec::new());
    for (d, &extent) in (0..).zip(&array.dimensions).filter(|&(_, &extent)| extent != 1) {
        match extents.last_mut() {
            Some(last) if is_reduced.last() == Some(&dimensions.contains(&d)) => *last *= extent,
            _ => {
                is_reduced.push(dimensions.contains(&d));
                extents.push(extent);
            }
        }
    }
    let (at, most) = match is_reduced[..] {
        [.., true] => (is_reduced.len() - 1, MOST_ELEMENTS),
        [.., true, false] => (is_reduced.len() - 2, MOST_ROWS),
        _ => return None,
    };
    if at > 1 || extents[at] <= most {
        return None;
    }
    let element_type = array.element_type;
    let reduce = |r: &mut Rewriter<'_>, x: InstructionId, mut extents: Vec<i64>, dimension: usize| {
        let x = reshaped(r, x, &ArrayShape::new(element_type, extents.iter().copied()));
        extents.remove(dimension);
        let dimensions = Dimensions::from_slice(&[dimension as i64]);
        r.emit_call(Op::Reduce { dimensions }, [x, initial], [reducer], Shape::array(element_type, extents))
    };
    let parts = 1 << extents[at].isqrt().ilog2();
    let each = (extents[at] - 1) / parts + 1;
    let x = padded(r, operand, initial, &extents, at, parts * each);
    let [before, after] = [&extents[..at], &extents[at + 1..]];
    let sums = reduce(r, x, [before, &[parts, each], after].concat(), at + 1);
    let sum = reduce(r, sums, [before, &[parts], after].concat(), at);
    let shape = r.array(id)?.clone();
    Some(reshaped(r, sum, &shape))
}

fn reshaped(r: &mut Rewriter<'_>, x: InstructionId, shape: &ArrayShape) -> InstructionId {
    if r.array(x).is_some_and(|array| array.dimensions == shape.dimensions) {
        return x;
    }
    r.emit(Op::Reshape { inferred_dimension: None }, [x], Shape::Array(shape.clone()))
}

/// An array of these extents, with one extended by the initial value of a reduction.
fn padded(
    r: &mut Rewriter<'_>,
    x: InstructionId,
    initial: InstructionId,
    extents: &[i64],
    at: usize,
    extent: i64,
) -> InstructionId {
    let element_type = r.array(x).expect("an array is reduced").element_type;
    if extents[at] == extent {
        return x;
    }
    let x = reshaped(r, x, &ArrayShape::new(element_type, extents.iter().copied()));
    let mut longer = extents.to_vec();
    longer[at] = extent;
    let mut padding = vec![PaddingDimension::default(); extents.len()];
    padding[at].high = extent - extents[at];
    r.emit(Op::Pad { dimensions: padding.into() }, [x, initial], Shape::array(element_type, longer))
}
