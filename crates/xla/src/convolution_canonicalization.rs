//! `convolution-canonicalization`, `convolution-layouts`: transposes arrays of convolutions to the library's dimension
//! order.
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
//! XLA's CPU compiler calls libraries for convolutions of one dimension order only, and transposes other operands and
//! results in memory: for example those of kernel gradients, in which batch and feature change places.
//!
//! Its GPU compiler uses the layout in which cuDNN is fastest, which moves elements if the layout of an array is
//! already fixed: the two spatial dimensions of an image are between the other dimensions, the three of a volume after
//! them, as are all for `f64` (seen on jaxlib 0.10.2 for an H100). The first of the other dimensions stays first, since
//! cuDNN has its own gradients. Kernels are stored with the output features first. If the window is larger than the
//! input, as in the gradient of the kernel of a transposed convolution, window and input change places: cuDNN computes
//! a forward convolution, in the dimension order of one (0.12.0.1).
//!
//! Left alone: convolutions already in that order. *Changed* means that one was not.

use memplan_ir::{
    ArrayShape, Convolution, ConvolutionDimensions, Dimensions, ElementType, InstructionId, Op, Shape,
    Window, WindowDimension,
};
use memplan_rewriter::views::inverse;
use memplan_rewriter::{Rewriter, Sweep};

/// The order of XLA's CPU compiler: `b01f_01io->b01f`.
pub const CONVOLUTION_CANONICALIZATION: Sweep = Sweep {
    name: "convolution-canonicalization",
    description: "transpose operands of convolutions into the library's order, as XLA's CPU compiler does",
    rule: |r, id| reorder_to(r, id, |_, _, of, _| Some(canonical(of))),
};

/// The orders of XLA's GPU compiler.
pub const CONVOLUTION_LAYOUTS: Sweep = Sweep {
    name: "convolution-layouts",
    description: "transpose operands of convolutions into cuDNN's order, as XLA's GPU compiler lays them out",
    rule: |r, id| reorder_to(r, id, of_cudnn),
};

/// For each array of a convolution, which of its dimensions is where in the new order.
struct Orders {
    input: Dimensions,
    kernel: Dimensions,
    result: Dimensions,
}

fn reorder_to(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    orders: fn(&Rewriter<'_>, InstructionId, &ConvolutionDimensions, &Window) -> Option<Orders>,
) -> Option<InstructionId> {
    let Op::Convolution(convolution) = r.op(id).clone() else { return None };
    let orders = orders(r, id, &convolution.dimensions, &convolution.window)?;
    let all = [&orders.input, &orders.kernel, &orders.result];
    let is_new = all.into_iter().any(|order| !order.is_sorted());
    if is_new { reorder(r, id, *convolution, &orders) } else { None }
}

/// `b01f_01io->b01f`, with any number of spatial dimensions.
fn canonical(of: &ConvolutionDimensions) -> Orders {
    Orders {
        input: order(&[of.input_batch], &of.input_spatial, &[of.input_feature]),
        kernel: order(&[], &of.kernel_spatial, &[of.kernel_input_feature, of.kernel_output_feature]),
        result: order(&[of.output_batch], &of.output_spatial, &[of.output_feature]),
    }
}

/// Images as `b01f`, volumes as `bf012`, or with batch and feature the other way round, as they come. Kernels of one and two
/// dimensions are `o01i` of the forward convolution; their gradients, which are small, stay as they are.
fn of_cudnn(
    r: &Rewriter<'_>,
    id: InstructionId,
    of: &ConvolutionDimensions,
    window: &Window,
) -> Option<Orders> {
    let element_type = r.array(id)?.element_type;
    let as_it_is = |rank: usize| -> Dimensions { (0..rank as i64).collect() };
    let of_image = |batch: i64, spatial: &Dimensions, feature: i64| {
        let (first, last) = (batch.min(feature), batch.max(feature));
        match (spatial.len(), element_type) {
            (0 | 1, _) => as_it_is(spatial.len() + 2),
            (2, t) if t != ElementType::F64 => order(&[first], spatial, &[last]),
            _ => order(&[first, last], spatial, &[]),
        }
    };
    let of_kernel = |output: i64, spatial: &Dimensions, input: i64| match (spatial.len(), element_type) {
        (1 | 2, t) if t != ElementType::F64 => order(&[output], spatial, &[input]),
        _ => as_it_is(spatial.len() + 2),
    };
    let pixels = |array: &ArrayShape, spatial: &Dimensions| -> i64 {
        spatial.iter().map(|&d| array.dimensions[d as usize]).product()
    };
    let kernel = r.array(r.operand(id, 1))?;
    let input = of_image(of.input_batch, &of.input_spatial, of.input_feature);
    let is_gradient = pixels(kernel, &of.kernel_spatial) > pixels(r.array(id)?, &of.output_spatial);
    let is_larger =
        pixels(kernel, &of.kernel_spatial) > pixels(r.array(r.operand(id, 0))?, &of.input_spatial);
    if is_gradient && is_larger && of.input_spatial.len() == 2 && element_type != ElementType::F64 {
        return Some(Orders {
            input: order(&[of.input_batch], &of.input_spatial, &[of.input_feature]),
            kernel: order(&[of.kernel_output_feature], &of.kernel_spatial, &[of.kernel_input_feature]),
            result: order(&[of.output_feature], &of.output_spatial, &[of.output_batch]),
        });
    }
    if is_gradient {
        // The gradient of a kernel: its window is an image, its batch the features that the forward convolution reads.
        let kernel = of_image(of.kernel_input_feature, &of.kernel_spatial, of.kernel_output_feature);
        return Some(Orders { input, kernel, result: as_it_is(of.output_spatial.len() + 2) });
    }
    // The gradient of an input makes what the forward convolution reads.
    let is_backward = |d: &WindowDimension| d.base_dilation != 1 || d.window_reversal;
    let [read, made] = match window.dimensions.iter().any(is_backward) {
        true => [of.kernel_output_feature, of.kernel_input_feature],
        false => [of.kernel_input_feature, of.kernel_output_feature],
    };
    let kernel = of_kernel(made, &of.kernel_spatial, read);
    Some(Orders { input, kernel, result: of_image(of.output_batch, &of.output_spatial, of.output_feature) })
}

fn order(first: &[i64], spatial: &Dimensions, last: &[i64]) -> Dimensions {
    first.iter().chain(spatial).chain(last).copied().collect()
}

fn reorder(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    mut convolution: Convolution,
    orders: &Orders,
) -> Option<InstructionId> {
    let input = r.transposed(r.operand(id, 0), &orders.input)?;
    let kernel = r.transposed(r.operand(id, 1), &orders.kernel)?;
    let result = r.array(id)?.clone();
    convolution.dimensions = renumbered(&convolution.dimensions, orders);
    let extents = orders.result.iter().map(|&d| result.dimensions[d as usize]);
    let shape = Shape::Array(ArrayShape::new(result.element_type, extents));
    let new = r.emit(Op::Convolution(Box::new(convolution)), [input, kernel], shape);
    r.transposed(new, &inverse(&orders.result))
}

/// The numbers of the same dimensions in the new orders.
fn renumbered(of: &ConvolutionDimensions, orders: &Orders) -> ConvolutionDimensions {
    let [input, kernel, result] = [&orders.input, &orders.kernel, &orders.result].map(|order| inverse(order));
    let all = |places: &Dimensions, old: &Dimensions| old.iter().map(|&d| places[d as usize]).collect();
    ConvolutionDimensions {
        input_batch: input[of.input_batch as usize],
        input_feature: input[of.input_feature as usize],
        input_spatial: all(&input, &of.input_spatial),
        kernel_input_feature: kernel[of.kernel_input_feature as usize],
        kernel_output_feature: kernel[of.kernel_output_feature as usize],
        kernel_spatial: all(&kernel, &of.kernel_spatial),
        output_batch: result[of.output_batch as usize],
        output_feature: result[of.output_feature as usize],
        output_spatial: all(&result, &of.output_spatial),
    }
}
