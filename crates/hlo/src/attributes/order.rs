//! The order of a comparison, by which XLA says since jaxlib 0.12 what it said by a type before.

use memplan_ir::{ComparisonType, ElementType};

/// Whether every two values can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE")]
pub(crate) enum ComparisonOrder {
    /// Yes: a NaN has a place among numbers.
    Total,
    /// No: a NaN is neither less than, equal to, nor greater than any value.
    Partial,
}

impl ComparisonOrder {
    /// The type that has this order; `None` where it is the default of the operands. Integers have one order.
    pub(crate) fn comparison_type(self, operands: ElementType) -> Option<ComparisonType> {
        let is_float = ComparisonType::default_for(operands) == ComparisonType::Float;
        (is_float && self == ComparisonOrder::Total).then_some(ComparisonType::TotalOrder)
    }
}
