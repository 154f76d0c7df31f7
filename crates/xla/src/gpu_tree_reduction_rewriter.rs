//! `gpu-tree-reduction-rewriter`: splits reductions that one block of threads could not finish.
//!
//! ```text
//!   r = f32[8] reduce(x, 0), dimensions={1}                        x: f32[8,20000]
//!      =>
//!   parts = f32[8,125,160] reshape(x)
//!   sums  = f32[8,125] reduce(parts, 0), dimensions={2}
//!   r     = f32[8] reduce(sums, 0), dimensions={1}
//! ```
//!
//! The number of parts is at most the square root of the number of reduced elements: a power of two if one divides that
//! number, else the number of parts that needs the least padding (seen on jaxlib 0.12.0.1, with 25 reductions). The first
//! reduction is a kernel that reads all elements; the second is small, and users of the result are fused into it.
//!
//! Left alone: reductions over dimensions that are not adjacent, except over batches of the last ones, and reductions
//! inside fusions. *Changed* means that a reduction was split.

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
/// Batches of elements beside each other that one block reduces.
const MOST_BATCHES: i64 = 8;

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

/// Dimensions beside each other that are all reduced, or all kept.
struct Group {
    is_reduced: bool,
    extent: i64,
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
    let mut groups: Vec<Group> = Vec::new();
    for (d, &extent) in array.dimensions.iter().enumerate().filter(|&(_, &extent)| extent != 1) {
        let is_reduced = dimensions.contains(&(d as i64));
        match groups.last_mut() {
            Some(last) if last.is_reduced == is_reduced => last.extent *= extent,
            _ => groups.push(Group { is_reduced, extent }),
        }
    }
    let element_type = array.element_type;
    let of = |extents: &[i64]| ArrayShape::new(element_type, extents.iter().copied());
    let reduce = |r: &mut Rewriter<'_>, x: InstructionId, of_x: &[i64], dimensions: &[i64]| {
        let x = reshaped(r, x, &of(of_x));
        let kept = of_x.iter().enumerate().filter(|(d, _)| !dimensions.contains(&(*d as i64)));
        let kept: Vec<i64> = kept.map(|(_, &extent)| extent).collect();
        let dimensions = Dimensions::from_slice(dimensions);
        r.emit_call(Op::Reduce { dimensions }, [x, initial], [reducer], of(&kept))
    };
    let extents: Vec<i64> = groups.iter().map(|group| group.extent).collect();
    let is_reduced: Vec<bool> = groups.iter().map(|group| group.is_reduced).collect();
    let result = match (&is_reduced[..], &extents[..]) {
        ([true, false, true], &[batches, kept, n]) if batches > MOST_BATCHES => {
            let sums = reduce(r, operand, &[batches, kept, n], &[2]);
            reduce(r, sums, &[batches, kept], &[0])
        }
        ([true, false, true], &[batches, kept, n]) if n > MOST_ELEMENTS => {
            let (parts, each) = parts(n);
            let x = padded(r, operand, initial, &[batches, kept, n], 2, parts * each);
            let sums = reduce(r, x, &[batches, kept, parts, each], &[0, 3]);
            reduce(r, sums, &[kept, parts], &[1])
        }
        ([.., true], [before @ .., n]) if before.len() <= 1 && *n > MOST_ELEMENTS => {
            let (parts, each) = parts(*n);
            let x = padded(r, operand, initial, &extents, before.len(), parts * each);
            let at = before.len() as i64;
            let sums = reduce(r, x, &[before, &[parts, each]].concat(), &[at + 1]);
            reduce(r, sums, &[before, &[parts]].concat(), &[at])
        }
        ([.., true, false], [before @ .., n, kept]) if before.len() <= 1 && *n > MOST_ROWS => {
            let (parts, each) = parts(*n);
            let x = padded(r, operand, initial, &extents, before.len(), parts * each);
            let at = before.len() as i64;
            let sums = reduce(r, x, &[before, &[parts, each, *kept]].concat(), &[at + 1]);
            reduce(r, sums, &[before, &[parts, *kept]].concat(), &[at])
        }
        _ => return None,
    };
    let shape = r.array(id)?.clone();
    Some(reshaped(r, result, &shape))
}

/// How many parts there are, and elements of each.
fn parts(n: i64) -> (i64, i64) {
    let root = n.isqrt();
    let power_of_two = 1 << root.ilog2();
    if n % power_of_two == 0 {
        return (power_of_two, n / power_of_two);
    }
    let each = |parts: i64| (n - 1) / parts + 1;
    let fewest = (root / 2 + 1..=root)
        .rev()
        .min_by_key(|&parts| each(parts) * parts)
        .expect("there is a number of parts");
    (fewest, each(fewest))
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
