//! Functions that HLO does not have, as formulas: each stands for what jaxlib makes of it, operation by operation.
//!
//! A [`Value`] is written as numbers are: `(1.0 - x) * (x + 1.0)` adds a subtraction, an addition and a multiplication.

mod bessel;
mod complex;
mod error;
mod gamma;
mod inverse;
mod next;

use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, Cursor, Dimensions, ElementType, Insert, InstructionId,
    Literal, Op, Scalar, UnaryOp,
};

/// How a function is written of its arguments.
#[derive(Clone, Copy)]
pub(super) enum Formula {
    Unary(for<'w> fn(Value<'w>) -> Value<'w>),
    Binary(for<'w> fn(Value<'w>, Value<'w>) -> Value<'w>),
}

/// The formula of a function of CHLO or StableHLO, for arguments with these elements, and the type of its numbers where that
/// is wider than the arguments'.
pub(super) fn find(function: &str, element: ElementType) -> Option<(Formula, Option<ElementType>)> {
    use ElementType::{Bf16, C64, C128, F16, F32, F64};
    use Formula::{Binary, Unary};
    let formula = match (function, element) {
        ("acos", C64 | C128) => Unary(complex::acos),
        ("acosh", C64 | C128) => Unary(complex::acosh),
        ("asin", C64 | C128) => Unary(complex::asin),
        ("asinh", C64 | C128) => Unary(complex::asinh),
        ("atan", C64 | C128) => Unary(complex::atan),
        ("atanh", C64 | C128) => Unary(complex::atanh),
        ("cosh", C64 | C128) => Unary(complex::cosh),
        ("exponential", C64 | C128) => Unary(complex::exp),
        ("log", C64 | C128) => Unary(complex::log),
        ("log_plus_one", C64 | C128) => Unary(complex::log1p),
        ("logistic", C64 | C128) => Unary(complex::logistic),
        ("sinh", C64 | C128) => Unary(complex::sinh),
        ("sqrt", C64 | C128) => Unary(complex::sqrt),
        ("square", C64 | C128) => Unary(complex::square),
        (_, C64 | C128) => return None,
        ("acos", _) => Unary(inverse::acos),
        ("acosh", _) => Unary(inverse::acosh),
        ("asin", _) => Unary(inverse::asin),
        ("asinh", _) => Unary(inverse::asinh),
        ("atan", _) => Unary(inverse::atan),
        ("atanh", _) => Unary(inverse::atanh),
        ("bessel_i1e", _) => Unary(bessel::i1e),
        ("cosh", _) => Unary(inverse::cosh),
        ("digamma", _) => Unary(gamma::digamma),
        ("erf_inv", _) => Unary(error::erf_inv),
        ("erfc", _) => Unary(error::erfc),
        ("lgamma", _) => Unary(gamma::lgamma),
        ("next_after", _) => Binary(next::next_after),
        ("polygamma", _) => Binary(gamma::polygamma),
        ("sinh", _) => Unary(inverse::sinh),
        ("zeta", _) => Binary(gamma::zeta),
        _ => return None,
    };
    let is_exact = matches!(function, "acos" | "acosh" | "asin" | "asinh" | "atan" | "atanh" | "next_after");
    match element {
        F32 | F64 | C64 | C128 => Some((formula, None)),
        F16 | Bf16 if is_exact => Some((formula, None)),
        // Too narrow to be computed in.
        F16 | Bf16 => Some((formula, Some(F32))),
        _ => None,
    }
}

impl Formula {
    /// Writes the formula of arguments that are equal in shape; `None` where it has another number of them.
    pub(super) fn write(
        self,
        wide: Option<ElementType>,
        arguments: &[InstructionId],
        cursor: Cursor<'_>,
    ) -> Option<InstructionId> {
        let cursor = RefCell::new(cursor);
        let value = |id| {
            let value = Value { id, cursor: &cursor };
            wide.map_or(value, |wide| value.convert(wide))
        };
        let made = match (self, arguments) {
            (Formula::Unary(write), &[x]) => write(value(x)),
            (Formula::Binary(write), &[x, y]) => write(value(x), value(y)),
            _ => return None,
        };
        let narrow = cursor.borrow().module().shape(arguments[0]).as_array().map(|array| array.element_type);
        Some(if wide.is_some() { made.convert(narrow?).id } else { made.id })
    }
}

/// An array that a formula is written of.
#[derive(Clone, Copy)]
pub(super) struct Value<'w> {
    id: InstructionId,
    cursor: &'w RefCell<Cursor<'w>>,
}

/// What stands beside a value: another one, or a number that all its elements are.
trait Operand<'w> {
    fn like(self, value: Value<'w>) -> Value<'w>;
}

impl<'w> Operand<'w> for Value<'w> {
    fn like(self, _: Value<'w>) -> Value<'w> {
        self
    }
}

impl<'w> Operand<'w> for f64 {
    fn like(self, value: Value<'w>) -> Value<'w> {
        value.number(self)
    }
}

impl<'w> Value<'w> {
    fn made(self, insert: impl FnOnce(&mut Cursor<'w>) -> InstructionId) -> Value<'w> {
        Value { id: insert(&mut self.cursor.borrow_mut()), ..self }
    }

    fn shape(self) -> ArrayShape {
        let cursor = self.cursor.borrow();
        cursor.module().shape(self.id).as_array().cloned().expect("formulas are of arrays")
    }

    fn element(self) -> ElementType {
        self.shape().element_type
    }

    /// As large as this, with the elements of a scalar.
    fn repeated(self, scalar: Literal) -> Value<'w> {
        let extents: Dimensions = self.shape().dimensions;
        self.made(|at| {
            let scalar = at.constant(scalar);
            match extents.is_empty() {
                true => scalar,
                false => at.broadcast(scalar, extents, []),
            }
        })
    }

    /// A number of the type of this, and as large.
    fn number(self, number: f64) -> Value<'w> {
        let scalar = Scalar::float(self.element(), number);
        self.repeated(scalar.expect("formulas are of floating-point numbers").literal())
    }

    /// The same of complex numbers.
    fn complex_number(self, [real, imaginary]: [f64; 2]) -> Value<'w> {
        let element = self.element();
        let bytes = match element {
            ElementType::C64 => [real as f32, imaginary as f32].map(f32::to_le_bytes).concat(),
            _ => [real, imaginary].map(f64::to_le_bytes).concat(),
        };
        self.repeated(Literal::array(element, [], bytes))
    }

    fn integer(self, number: i64) -> Value<'w> {
        self.repeated(Scalar::integer(self.element(), number).literal())
    }

    /// The largest number of the type of this.
    fn largest(self) -> f64 {
        match self.element() {
            ElementType::F16 => 65504.0,
            ElementType::Bf16 => f64::from_bits(0x47ef_e000_0000_0000),
            ElementType::F32 => f64::from(f32::MAX),
            _ => f64::MAX,
        }
    }

    /// What a number is in the type of this.
    fn rounded(self, number: f64) -> f64 {
        Scalar::float(self.element(), number).and_then(|it| it.as_float()).unwrap_or(number)
    }

    fn is_double(self) -> bool {
        self.element() == ElementType::F64
    }

    fn unary(self, op: UnaryOp) -> Value<'w> {
        self.made(|at| at.unary(op, self.id))
    }

    fn binary(self, op: BinaryOp, other: impl Operand<'w>) -> Value<'w> {
        let other = other.like(self);
        self.made(|at| at.binary(op, self.id, other.id))
    }

    fn compare(self, direction: ComparisonDirection, other: impl Operand<'w>) -> Value<'w> {
        let other = other.like(self);
        self.made(|at| at.compare(direction, self.id, other.id))
    }

    fn convert(self, to: ElementType) -> Value<'w> {
        self.made(|at| at.convert(self.id, to))
    }

    /// The same bits as another type.
    fn bits(self, to: ElementType) -> Value<'w> {
        let shape = ArrayShape { element_type: to, ..self.shape() };
        self.made(|at| at.insert_shaped(Op::BitcastConvert, [self.id], shape))
    }

    fn real(self) -> Value<'w> {
        self.part(0, UnaryOp::Real)
    }

    fn imag(self) -> Value<'w> {
        self.part(1, UnaryOp::Imag)
    }

    /// A part of a complex number; of one that was made of its parts, the part.
    fn part(self, which: usize, op: UnaryOp) -> Value<'w> {
        self.made(|at| {
            let instruction = &at.module().instructions[self.id];
            match instruction.op {
                Op::Binary(BinaryOp::Complex) => instruction.operands[which],
                _ => at.unary(op, self.id),
            }
        })
    }

    /// Where this holds one value, elsewhere another.
    fn select(self, on_true: impl Operand<'w>, on_false: Value<'w>) -> Value<'w> {
        let on_true = on_true.like(on_false);
        self.made(|at| at.select(self.id, on_true.id, on_false.id))
    }
}

/// Functions and comparisons under their names.
macro_rules! named {
    ($($name:ident: $op:ident),* $(,)?; $($binary:ident: $binary_op:ident),* $(,)?; $($comparison:ident: $direction:ident),* $(,)?) => {
        impl<'w> Value<'w> {
            $(fn $name(self) -> Value<'w> { self.unary(UnaryOp::$op) })*
            $(fn $binary(self, other: impl Operand<'w>) -> Value<'w> { self.binary(BinaryOp::$binary_op, other) })*
            $(fn $comparison(self, other: impl Operand<'w>) -> Value<'w> {
                self.compare(ComparisonDirection::$direction, other)
            })*
        }
    };
}
named! {
    abs: Abs, cos: Cosine, exp: Exponential, expm1: Expm1, floor: Floor, is_finite: IsFinite, log: Log,
    log1p: Log1p, sign: Sign, sin: Sine, sqrt: Sqrt;
    atan2: Atan2, complex: Complex, max: Maximum, min: Minimum, power: Power, remainder: Remainder;
    eq: Eq, ge: Ge, gt: Gt, le: Le, lt: Lt, ne: Ne,
}

/// Operators. MLIR moves numbers behind what they are added to or multiplied by.
macro_rules! operators {
    ($($operator:ident $function:ident $op:ident $swaps:literal),*) => {
        $(impl<'w, T: Operand<'w>> $operator<T> for Value<'w> {
            type Output = Value<'w>;
            fn $function(self, other: T) -> Value<'w> { self.binary(BinaryOp::$op, other) }
        }
        impl<'w> $operator<Value<'w>> for f64 {
            type Output = Value<'w>;
            fn $function(self, other: Value<'w>) -> Value<'w> {
                match $swaps {
                    true => other.binary(BinaryOp::$op, self),
                    false => other.number(self).binary(BinaryOp::$op, other),
                }
            }
        })*
    };
}
operators! { Add add Add true, Sub sub Subtract false, Mul mul Multiply true, Div div Divide false }

impl<'w> Neg for Value<'w> {
    type Output = Value<'w>;
    fn neg(self) -> Value<'w> {
        self.unary(UnaryOp::Negate)
    }
}

impl<'w> Not for Value<'w> {
    type Output = Value<'w>;
    fn not(self) -> Value<'w> {
        self.unary(UnaryOp::Not)
    }
}

impl<'w> BitAnd for Value<'w> {
    type Output = Value<'w>;
    fn bitand(self, other: Value<'w>) -> Value<'w> {
        self.binary(BinaryOp::And, other)
    }
}

impl<'w> BitOr for Value<'w> {
    type Output = Value<'w>;
    fn bitor(self, other: Value<'w>) -> Value<'w> {
        self.binary(BinaryOp::Or, other)
    }
}

/// A polynomial by Horner's rule, the highest power first.
fn polynomial<'w>(x: Value<'w>, coefficients: &[f64]) -> Value<'w> {
    let first = if coefficients[0] == 1.0 { x } else { x * coefficients[0] };
    coefficients[2..].iter().fold(first + coefficients[1], |sum, &next| sum * x + next)
}
