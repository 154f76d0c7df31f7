//! Errors in an operation, its operands and its called computations.

use std::fmt;

use crate::{Arity, ArrayShape, ComputationId, Opcode, Shape};

/// Why an operation has no valid result shape. Shapes are kept as text, without layouts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum InferError {
    #[error("cannot infer the shape of {0}: its operands leave it open, so it must be given")]
    Undetermined(Opcode),
    #[error("takes {expected} operands, has {found}")]
    OperandCount { expected: Arity, found: usize },
    #[error("calls {expected} computations, has {found}")]
    CalledCount { expected: Arity, found: usize },
    #[error("operand {operand} must be {expected}, is {found}")]
    Operand { operand: usize, expected: String, found: String },
    #[error("operands {first} and {second} must have {what}, are {first_shape} and {second_shape}")]
    Mismatch { first: usize, second: usize, what: &'static str, first_shape: String, second_shape: String },
    #[error("{attribute} must be {expected}, is {found}")]
    Attribute { attribute: &'static str, expected: String, found: String },
    #[error("{attribute} has dimension {dimension}, the rank is {rank}")]
    DimensionOutOfRange { attribute: &'static str, dimension: i64, rank: usize },
    #[error("{attribute} has dimension {dimension} twice")]
    DuplicateDimension { attribute: &'static str, dimension: i64 },
    #[error("dimension {dimension} of the result would be {found}")]
    Extent { dimension: usize, found: Extent },
    #[error("computation {computation} takes {expected} parameters, has {found}")]
    ParameterCount { computation: Box<str>, expected: usize, found: usize },
    #[error("parameter {parameter} of computation {computation} must be {expected}, is {found}")]
    Parameter { computation: Box<str>, parameter: usize, expected: String, found: String },
    #[error("the result of computation {computation} must be {expected}, is {found}")]
    Result { computation: Box<str>, expected: String, found: String },
    #[error("the given shape must be {expected}, is {found}")]
    Given { expected: String, found: String },
    #[error("{0} is not a complete computation of this module")]
    UnknownComputation(ComputationId),
    #[error("a tuple may have {} parts in all and {} levels", super::MAX_TUPLE_PARTS, super::MAX_TUPLE_DEPTH)]
    TupleTooLarge,
}

/// An extent that no dimension can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Extent {
    Negative(i64),
    Overflow,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Negative(n) => write!(f, "{n}"),
            Extent::Overflow => f.write_str("beyond 64 bits"),
        }
    }
}

/// A shape as text without layouts; a long tuple is cut, so that an error is never longer than a screen.
pub(crate) fn brief(shape: &Shape) -> String {
    let mut text = String::new();
    write_brief(shape, &mut text);
    text
}

fn write_brief(shape: &Shape, text: &mut String) {
    const LIMIT: usize = 200;
    match shape {
        Shape::Array(array) => write_array(array, text),
        Shape::Buffer(array) => {
            text.push_str("b(");
            write_array(array, text);
            text.push(')');
        }
        Shape::Token => text.push_str("token[]"),
        Shape::Opaque => text.push_str("opaque[]"),
        Shape::Tuple(elements) => {
            text.push('(');
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    text.push_str(", ");
                }
                if text.len() > LIMIT {
                    text.push_str("...");
                    break;
                }
                write_brief(element, text);
            }
            text.push(')');
        }
    }
}

fn write_array(array: &ArrayShape, text: &mut String) {
    use fmt::Write;
    let _ = write!(text, "{}[", array.element_type);
    for (d, &extent) in array.dimensions.iter().enumerate() {
        if d > 0 {
            text.push(',');
        }
        let _ = match (extent, array.is_dynamic_dimension(d)) {
            (ArrayShape::UNBOUNDED, _) => write!(text, "?"),
            (_, true) => write!(text, "<={extent}"),
            (_, false) => write!(text, "{extent}"),
        };
    }
    text.push(']');
}
