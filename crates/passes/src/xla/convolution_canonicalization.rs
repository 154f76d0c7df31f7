//! `convolution-canonicalization`: operands of convolutions in the one order that the library takes.
//!
//! ```text
//!   c = convolution(x, k), dim_labels=f01b_i01o->01bf
//!      =>
//!   xt = transpose(x)      b01f
//!   kt = transpose(k)      01io
//!   ct = convolution(xt, kt), dim_labels=b01f_01io->b01f
//!   c = transpose(ct)
//! ```
//!
//! XLA's CPU compiler calls libraries for such convolutions alone, and transposes operands and result in memory: those of
//! gradients with regard to kernels, in which batch and feature change places. Left alone: what is in that order already.
//! *Changed* means that a convolution was not.

use memplan_ir::{ArrayShape, ConvolutionDimensions, Dimensions, InstructionId, Module, Op, Shape};

use crate::rewrite::Rewriter;
use crate::{Context, PassError, PassFn};

/// The pass.
pub const CONVOLUTION_CANONICALIZATION: PassFn = PassFn {
    name: "convolution-canonicalization",
    description: "transpose operands of convolutions into the library's order, as XLA's CPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match r.op(id) {
        Op::Convolution(convolution)
            if convolution.dimensions != canonical(convolution.dimensions.input_spatial.len()) =>
        {
            canonicalize(r, id)
        }
        _ => None,
    });
    Ok(rewriter.finish())
}

/// `b01f_01io->b01f`, with any number of spatial dimensions.
fn canonical(n_spatial: usize) -> ConvolutionDimensions {
    let n = n_spatial as i64;
    ConvolutionDimensions {
        input_batch: 0,
        input_feature: n + 1,
        input_spatial: (1..=n).collect(),
        kernel_input_feature: n,
        kernel_output_feature: n + 1,
        kernel_spatial: (0..n).collect(),
        output_batch: 0,
        output_feature: n + 1,
        output_spatial: (1..=n).collect(),
    }
}

fn canonicalize(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Convolution(mut convolution) = r.op(id).clone() else { return None };
    let (input, kernel) = (r.operand(id, 0), r.operand(id, 1));
    let (_, _, result) = (r.array(input)?, r.array(kernel)?, r.array(id)?.clone());
    let old = std::mem::replace(&mut convolution.dimensions, canonical(convolution.window.dimensions.len()));
    let around = |first: i64, spatial: &Dimensions, last: &[i64]| -> Dimensions {
        std::iter::once(first).chain(spatial.iter().copied()).chain(last.iter().copied()).collect()
    };
    let of_input = around(old.input_batch, &old.input_spatial, &[old.input_feature]);
    let mut of_kernel = old.kernel_spatial.clone();
    of_kernel.extend([old.kernel_input_feature, old.kernel_output_feature]);
    let of_result = around(old.output_batch, &old.output_spatial, &[old.output_feature]);
    let input = transposed(r, input, of_input);
    let kernel = transposed(r, kernel, of_kernel);
    let extents = of_result.iter().map(|&d| result.dimensions[d as usize]);
    let shape = Shape::Array(ArrayShape::new(result.element_type, extents));
    let new = r.emit(Op::Convolution(convolution), [input, kernel], shape);
    // Where each dimension of the old result is in the new one.
    let mut back = Dimensions::from_elem(0, of_result.len());
    (0..).zip(&of_result).for_each(|(at, &d)| back[d as usize] = at);
    Some(transposed(r, new, back))
}

/// A transpose, where there is something to transpose.
fn transposed(r: &mut Rewriter<'_>, id: InstructionId, dimensions: Dimensions) -> InstructionId {
    if dimensions.iter().enumerate().all(|(i, &d)| i as i64 == d) {
        return id;
    }
    let array = r.array(id).expect("convolutions are of arrays");
    let extents: Dimensions = dimensions.iter().map(|&d| array.dimensions[d as usize]).collect();
    let shape = Shape::Array(ArrayShape::new(array.element_type, extents));
    r.emit(Op::Transpose { dimensions }, [id], shape)
}
