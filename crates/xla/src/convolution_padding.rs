//! `convolution-padding-legalization`: pads the operand in memory if padding differs before and after.
//!
//! ```text
//!   c = convolution(x, k), window={size=3x3 stride=2x2 pad=0_1x0_1}
//!      =>
//!   p = pad(x, 0), padding=0_0x0_1x0_1x0_0
//!   c = convolution(p, k), window={size=3x3 stride=2x2}
//! ```
//!
//! cuDNN pads both sides equally; for other paddings, XLA's GPU compiler pads the operand in memory. Gradients of kernels
//! need the same padded operand, which stays in memory for them. Gradients of inputs, which read the kernel backward, are
//! as long as the padded operand, and are sliced. Other dilated operands, as in transposed convolutions, are also padded
//! between elements (seen on jaxlib 0.10.2).
//!
//! Left alone: cropping, and gradients of kernels of transposed convolutions, of which XLA pads both operands. *Changed* means that an operand was padded, or a result sliced.

use memplan_ir::{
    Convolution, InstructionId, Op, PaddingDimension, Scalar, Shape, SliceDimension, WindowDimension,
};
use memplan_rewriter::{Rewriter, Sweep};
use smallvec::SmallVec;

/// The pass.
pub const CONVOLUTION_PADDING_LEGALIZATION: Sweep = Sweep {
    name: "convolution-padding-legalization",
    description: "pad operands of convolutions in memory where cuDNN cannot, as XLA's GPU compiler does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    match r.op(id) {
        Op::Convolution(convolution) if is_gradient_of_input(r, id, convolution) => slice_result(r, id),
        Op::Convolution(convolution) if is_to_pad(r, id, convolution) => pad_operand(r, id),
        _ => None,
    }
}

fn is_to_pad(r: &Rewriter<'_>, id: InstructionId, convolution: &Convolution) -> bool {
    let window = &convolution.window.dimensions;
    window.iter().all(|w| w.padding_low >= 0 && w.padding_high >= 0)
        && match is_dilated(convolution) {
            true => !is_reversed(r, id, convolution) && !is_swapped(r, id, convolution),
            false => window.iter().any(|w| w.padding_low != w.padding_high),
        }
}

fn is_dilated(convolution: &Convolution) -> bool {
    convolution.window.dimensions.iter().any(|w| w.base_dilation != 1)
}

fn is_gradient_of_input(r: &Rewriter<'_>, id: InstructionId, convolution: &Convolution) -> bool {
    convolution.window.dimensions.iter().any(|w| w.size > 1) && is_reversed(r, id, convolution)
}

/// The gradient of an input, with the elements by which one side is padded more than the other.
fn slice_result(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Convolution(mut convolution) = r.op(id).clone() else { return None };
    let result = r.array(id)?.clone();
    let mut longer = result.clone();
    let mut slices: SmallVec<[SliceDimension; 4]> =
        result.dimensions.iter().map(|&limit| SliceDimension { start: 0, limit, stride: 1 }).collect();
    let Convolution { window, dimensions: numbers, .. } = &mut *convolution;
    for (w, &d) in window.dimensions.iter_mut().zip(&numbers.output_spatial) {
        // Of the convolution whose gradient this is.
        let reach = (w.size - 1) * w.window_dilation;
        let (low, least_high) = (reach - w.padding_low, reach - w.padding_high);
        // A stride may leave elements at the end that no window reads.
        let high = low.clamp(least_high, least_high + w.base_dilation - 1);
        if low < 0 || high < 0 {
            return None;
        }
        let more = (low - high).abs();
        *(if low > high { &mut w.padding_low } else { &mut w.padding_high }) += more;
        let slice = &mut slices[d as usize];
        slice.start = (low - high).max(0);
        slice.limit += slice.start;
        longer.dimensions[d as usize] += more;
    }
    if longer == result {
        return None;
    }
    let operands = r.operands(id).to_vec();
    let gradient = r.emit(Op::Convolution(convolution), operands, Shape::Array(longer));
    Some(r.emit(Op::Slice { dimensions: slices.into_iter().collect() }, [gradient], Shape::Array(result)))
}

/// Whether the kernel is the larger array, as in gradients with regard to kernels: XLA makes it the input.
fn is_swapped(r: &Rewriter<'_>, id: InstructionId, convolution: &Convolution) -> bool {
    let extents = |i: usize| r.dimensions(r.operand(id, i));
    let Some((input, kernel)) = extents(0).zip(extents(1)) else { return false };
    let count = |extents: &[i64], of: &[i64]| of.iter().map(|&d| extents[d as usize]).product::<i64>();
    let numbers = &convolution.dimensions;
    count(&kernel, &numbers.kernel_spatial) > count(&input, &numbers.input_spatial)
}

/// Whether a kernel is read backward, in the convolution or before it.
fn is_reversed(r: &Rewriter<'_>, id: InstructionId, convolution: &Convolution) -> bool {
    let is_trivial = |w: &WindowDimension| w.size == 1;
    let mut kernel = r.operand(id, 1);
    while matches!(r.op(kernel), Op::Transpose { .. } | Op::Convert | Op::Copy) {
        kernel = r.operand(kernel, 0);
    }
    matches!(r.op(kernel), Op::Reverse { .. })
        || convolution.window.dimensions.iter().all(|w| w.window_reversal || is_trivial(w))
}

fn pad_operand(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Convolution(mut convolution) = r.op(id).clone() else { return None };
    let operands = r.operands(id).to_vec();
    let Convolution { window, dimensions: numbers, .. } = &mut *convolution;
    let mut padded = r.array(operands[0])?.clone();
    let mut padding: SmallVec<[PaddingDimension; 2]> =
        SmallVec::from_elem(PaddingDimension::default(), padded.rank());
    for (w, &d) in window.dimensions.iter_mut().zip(&numbers.input_spatial) {
        padding[d as usize].low = std::mem::take(&mut w.padding_low);
        padding[d as usize].high = std::mem::take(&mut w.padding_high);
        padding[d as usize].interior = std::mem::replace(&mut w.base_dilation, 1) - 1;
        let extent = &mut padded.dimensions[d as usize];
        let n_gaps = (*extent - 1).max(0);
        *extent += padding[d as usize].low + padding[d as usize].high + n_gaps * padding[d as usize].interior;
    }
    let zero = r.splat_array(Scalar::integer(padded.element_type, 0), &[]);
    let pad = r.emit(Op::Pad { dimensions: padding }, [operands[0], zero], Shape::Array(padded));
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Convolution(convolution), [pad, operands[1]], shape))
}
