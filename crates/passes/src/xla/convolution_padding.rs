//! `convolution-padding-legalization`: padding that differs before and after is made in memory.
//!
//! ```text
//!   c = convolution(x, k), window={size=3x3 stride=2x2 pad=0_1x0_1}
//!      =>
//!   p = pad(x, 0), padding=0_0x0_1x0_1x0_0
//!   c = convolution(p, k), window={size=3x3 stride=2x2}
//! ```
//!
//! cuDNN pads alike on both sides, so XLA's GPU compiler pads the operand itself elsewhere. Gradients with regard to kernels
//! want the same padded operand, which then stays for them. Left alone: cropping, and dilated operands, which are gradients
//! with regard to inputs in cuDNN's eyes. *Changed* means that an operand was padded.

use memplan_ir::{Convolution, InstructionId, Op, PaddingDimension, Shape, WindowDimension};
use smallvec::SmallVec;

use crate::rewrite::Rewriter;
use crate::scalar::Scalar;
use crate::{Context, PassError, PassFn};

/// The pass.
pub const CONVOLUTION_PADDING_LEGALIZATION: PassFn = PassFn {
    name: "convolution-padding-legalization",
    description: "pad operands of convolutions in memory where cuDNN cannot, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut memplan_ir::Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match r.op(id) {
        Op::Convolution(convolution) if is_uneven(&convolution.window.dimensions) => pad_operand(r, id),
        _ => None,
    });
    Ok(rewriter.finish())
}

fn is_uneven(window: &[WindowDimension]) -> bool {
    window.iter().any(|w| w.padding_low != w.padding_high)
        && window.iter().all(|w| w.base_dilation == 1 && w.padding_low >= 0 && w.padding_high >= 0)
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
        padded.dimensions[d as usize] += padding[d as usize].low + padding[d as usize].high;
    }
    let zero = r.splat_array(Scalar::integer(padded.element_type, 0), &[]);
    let pad = r.emit(Op::Pad { dimensions: padding }, [operands[0], zero], Shape::Array(padded));
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Convolution(convolution), [pad, operands[1]], shape))
}
