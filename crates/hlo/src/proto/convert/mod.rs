//! Conversions between messages and `memplan_ir` types, each in both directions side by side.

mod attributes;
mod fields;
mod literal;
mod notes;
mod shape;
mod sharding;

pub(super) use attributes::*;
pub(super) use fields::Field;
pub(super) use literal::*;
pub(super) use notes::*;
pub(super) use shape::*;
pub(super) use sharding::*;

use memplan_ir::ShapeIndex;

use super::FieldError;

/// A shape index, whose steps must be small.
pub(super) fn shape_index(field: &'static str, steps: &[i64]) -> Result<ShapeIndex, FieldError> {
    let steps = steps.iter().map(|&step| u32::try_from(step).map_err(|_| FieldError::value(field, step)));
    Ok(ShapeIndex(steps.collect::<Result<_, _>>()?))
}

/// The steps of a shape index.
pub(super) fn steps(index: &ShapeIndex) -> Vec<i64> {
    index.0.iter().map(|&step| i64::from(step)).collect()
}

/// A number that must fit.
pub(super) fn number(field: &'static str, value: i64) -> Result<u32, FieldError> {
    u32::try_from(value).map_err(|_| FieldError::value(field, value))
}
