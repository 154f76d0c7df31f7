//! Extents in attributes.

use memplan_analysis::prefix_windows;
use memplan_ir::{ArrayLiteral, InstructionId, Literal, LiteralData, Module, Op, WindowDimension};

use super::ResizeError;
use super::extents::{Extents, cut};

/// Lets an instruction of the resized module speak of the extents that its operands and its result have there.
pub(super) fn follow(
    resized: &mut Module,
    module: &Module,
    extents: &Extents<'_>,
    id: InstructionId,
) -> Result<(), ResizeError> {
    let instruction = &module.instructions[id];
    let operands = &instruction.operands;
    if !extents.changes(id) && !operands.iter().any(|&operand| extents.changes(operand)) {
        return Ok(());
    }
    let before = |id: InstructionId| module.shape(id).as_array().map_or(&[][..], |array| &array.dimensions);
    let after: Vec<i64> = resized.shape(id).as_array().map_or(Vec::new(), |array| array.dimensions.to_vec());
    let of_operand = |d: usize| match extents.at(operands[0], d) {
        dimension if extents.is_new(dimension) => extents.of(dimension),
        _ => before(operands[0])[d],
    };
    let window = |window: &mut WindowDimension, extent: i64, new: i64| {
        let which = prefix_windows(extent).iter().position(|prefix| prefix == window);
        if let Some(which) = which.filter(|_| extent > 1) {
            *window = prefix_windows(new)[which];
        }
    };
    match &mut resized.instructions[id].op {
        Op::Constant(literal) => {
            let extent =
                before(id).iter().zip(&after).find(|(old, new)| old != new).map_or(0, |(&old, _)| old);
            let unknown = || ResizeError::Constant { instruction: instruction.name.clone(), extent };
            *literal = splat(literal, &after).ok_or_else(unknown)?;
        }
        Op::Reshape { inferred_dimension } => *inferred_dimension = None,
        Op::DynamicSlice { slice_sizes } => *slice_sizes = after.into_iter().collect(),
        Op::Slice { dimensions } => {
            for (d, slice) in dimensions.iter_mut().enumerate() {
                *slice = cut(*slice, before(operands[0])[d], of_operand(d));
            }
        }
        Op::Gather(gather) => {
            for (d, size) in gather.slice_sizes.iter_mut().enumerate() {
                if *size == before(operands[0])[d] {
                    *size = of_operand(d);
                }
            }
        }
        Op::ReduceWindow(of) => {
            for (d, dimension) in of.dimensions.iter_mut().enumerate() {
                window(dimension, before(operands[0])[d], of_operand(d));
            }
        }
        Op::Convolution(convolution) => {
            for (d, window) in convolution.window.dimensions.iter_mut().enumerate() {
                let size = extents.at(operands[1], convolution.dimensions.kernel_spatial[d] as usize);
                if extents.is_new(size) {
                    window.size = extents.of(size);
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// A literal of another size whose elements are all the one that this one has; `None` where they differ.
fn splat(literal: &Literal, extents: &[i64]) -> Option<Literal> {
    let Literal::Array(array) = literal else { return None };
    let data = match &array.data {
        LiteralData::Elided => LiteralData::Elided,
        LiteralData::Bytes(bytes) => {
            let width = array.element_type.byte_width() as usize;
            let first = bytes.get(..width)?;
            if !bytes.chunks(width).all(|element| element == first) {
                return None;
            }
            let count =
                extents.iter().try_fold(1usize, |n, &extent| n.checked_mul(usize::try_from(extent).ok()?))?;
            LiteralData::Bytes(first.repeat(count).into())
        }
    };
    let dimensions = extents.iter().copied().collect();
    Some(Literal::Array(ArrayLiteral { element_type: array.element_type, dimensions, data }))
}
