//! Convolutions: transposes, padding and reversal of operands folded into dimension numbers and window.

use memplan_ir::{Convolution, ConvolutionDimensions, InstructionId, Op};
use memplan_rewriter::Rewriter;
use memplan_rewriter::views::inverse;

/// A convolution of operands that are arranged first in a way that its attributes can say.
pub(super) fn convolution(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Convolution(convolution) = r.op(id).clone() else { return None };
    if convolution.sparsity.iter().any(Option::is_some) {
        return None;
    }
    let (input, kernel) = (r.operand(id, 0), r.operand(id, 1));
    let (new_input, convolution, input_folded) = fold_input(r, input, *convolution)?;
    let (new_kernel, convolution, kernel_folded) = fold_kernel(r, kernel, convolution)?;
    let shape = r.shape(id).clone();
    (input_folded || kernel_folded)
        .then(|| r.emit(Op::Convolution(Box::new(convolution)), [new_input, new_kernel], shape))
}

fn fold_input(
    r: &Rewriter<'_>,
    input: InstructionId,
    mut convolution: Convolution,
) -> Option<(InstructionId, Convolution, bool)> {
    let numbers = &mut convolution.dimensions;
    match r.op(input) {
        Op::Transpose { dimensions: permutation } => {
            for d in input_numbers(numbers) {
                *d = permutation[*d as usize];
            }
        }
        Op::Pad { dimensions } if r.splat(r.operand(input, 1)).is_some_and(|value| value.is_zero()) => {
            let window = &mut convolution.window.dimensions;
            let is_spatial = |d: usize| numbers.input_spatial.contains(&(d as i64));
            for (d, padding) in dimensions.iter().enumerate() {
                let is_none = padding.low == 0 && padding.high == 0 && padding.interior == 0;
                if (!is_spatial(d) && !is_none) || padding.low < 0 || padding.high < 0 {
                    return Some((input, convolution, false));
                }
            }
            // One window cannot express padding between padded elements.
            if window.iter().any(|w| w.base_dilation != 1) {
                return Some((input, convolution, false));
            }
            for (w, &d) in window.iter_mut().zip(&numbers.input_spatial) {
                let padding = dimensions[d as usize];
                w.padding_low += padding.low;
                w.padding_high += padding.high;
                w.base_dilation = padding.interior + 1;
            }
        }
        _ => return Some((input, convolution, false)),
    }
    Some((r.operand(input, 0), convolution, true))
}

fn fold_kernel(
    r: &Rewriter<'_>,
    kernel: InstructionId,
    mut convolution: Convolution,
) -> Option<(InstructionId, Convolution, bool)> {
    let numbers = &mut convolution.dimensions;
    match r.op(kernel) {
        Op::Transpose { dimensions: permutation } => {
            for d in kernel_numbers(numbers) {
                *d = permutation[*d as usize];
            }
        }
        Op::Reverse { dimensions } if dimensions.iter().all(|d| numbers.kernel_spatial.contains(d)) => {
            for (w, d) in convolution.window.dimensions.iter_mut().zip(&numbers.kernel_spatial) {
                w.window_reversal ^= dimensions.contains(d);
            }
        }
        _ => return Some((kernel, convolution, false)),
    }
    Some((r.operand(kernel, 0), convolution, true))
}

/// A transpose of a convolution that nothing else uses: it can write its result in that order itself.
pub(super) fn transpose_of_convolution(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Transpose { dimensions: permutation } = r.op(id).clone() else { return None };
    let x = r.operand(id, 0);
    let Op::Convolution(mut convolution) = r.op(x).clone() else { return None };
    if r.uses(x) != 1 || convolution.sparsity.iter().any(Option::is_some) {
        return None;
    }
    let position = inverse(&permutation);
    let numbers = &mut convolution.dimensions;
    let outputs = [&mut numbers.output_batch, &mut numbers.output_feature];
    for d in outputs.into_iter().chain(&mut numbers.output_spatial) {
        *d = position[*d as usize];
    }
    let operands = [r.operand(x, 0), r.operand(x, 1)];
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Convolution(convolution), operands, shape))
}

fn input_numbers(numbers: &mut ConvolutionDimensions) -> impl Iterator<Item = &mut i64> {
    [&mut numbers.input_batch, &mut numbers.input_feature].into_iter().chain(&mut numbers.input_spatial)
}

fn kernel_numbers(numbers: &mut ConvolutionDimensions) -> impl Iterator<Item = &mut i64> {
    [&mut numbers.kernel_input_feature, &mut numbers.kernel_output_feature]
        .into_iter()
        .chain(&mut numbers.kernel_spatial)
}
