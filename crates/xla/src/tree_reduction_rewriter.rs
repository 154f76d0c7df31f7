//! `tree-reduction-rewriter`: splits long reductions into several short ones.
//!
//! ```text
//!   r = s32[8] reduce(x, 0), dimensions={1}                        x: s32[8,4096]
//!      =>
//!   a = s32[8,128] reduce-window(x, 0), window={size=1x32 stride=1x32}
//!   b = s32[8,4] reduce-window(a, 0), window={size=1x32 stride=1x32}
//!   r = s32[8] reduce(b, 0), dimensions={1}
//! ```
//!
//! XLA's CPU compiler does this for precision, in reductions that its library does not support (seen on jaxlib 0.10.2).
//! It fuses nothing into a reduce-window, so the operand is in memory. Left alone: reductions inside fusions, of
//! several arrays at once, or of at most 32 elements. *Changed* means that there was a long reduction.

use memplan_ir::{ComputationId, InstructionId, Module, Op, Shape, Window, WindowDimension};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter, call_graph};
use rustc_hash::FxHashSet;

/// The pass.
pub const TREE_REDUCTION_REWRITER: PassFn = PassFn {
    name: "tree-reduction-rewriter",
    description: "split long reductions into trees, as XLA's CPU compiler does",
    run,
};

/// Elements that are reduced one after the other, which XLA sets.
const SHORT: i64 = 32;

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let graph = call_graph(module, TREE_REDUCTION_REWRITER.name)?;
    let sequential: FxHashSet<ComputationId> = graph.sequential().iter().copied().collect();
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match r.op(id) {
        Op::Reduce { .. } if sequential.contains(&r.get(id).parent) => shorten(r, id),
        _ => None,
    });
    Ok(rewriter.finish())
}

fn shorten(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Reduce { dimensions } = r.op(id).clone() else { return None };
    let &[operand, initial] = r.operands(id) else { return None };
    let (array, result) = (r.array(operand)?.clone(), r.shape(id).clone());
    let is_reduced = |d: usize| dimensions.contains(&(d as i64));
    let mut extents = array.dimensions.clone();
    if !extents.iter().enumerate().any(|(d, &extent)| is_reduced(d) && extent > SHORT) {
        return None;
    }
    let window = extents.iter_mut().enumerate().map(|(d, extent)| {
        let size = if is_reduced(d) { (*extent).clamp(1, SHORT) } else { 1 };
        let n = (*extent + size - 1) / size;
        let padding = n * size - *extent;
        *extent = n;
        WindowDimension {
            size,
            stride: size,
            padding_low: padding / 2,
            padding_high: padding - padding / 2,
            window_dilation: 1,
            base_dilation: 1,
            window_reversal: false,
        }
    });
    let window = Op::ReduceWindow(Box::new(Window { dimensions: window.collect() }));
    let reducer = r.get(id).called[0];
    let shape = Shape::array(array.element_type, extents);
    let partial = r.emit_call(window, [operand, initial], [reducer], shape);
    Some(r.emit_call(Op::Reduce { dimensions }, [partial, initial], [reducer], result))
}
