//! Functions of CHLO, which JAX leaves in programs.
//!
//! HLO has some of them; for the others stands what XLA computes them by.

use memplan_ir::*;

use super::attributes::Fields;
use super::{Body, Converter};
use crate::Error;
use crate::mlir::{Attribute, Attributes, Operation};

/// Functions that HLO has.
const PLAIN: &[(&str, Op)] = &[
    ("acos", Op::Unary(UnaryOp::Acos)),
    ("asin", Op::Unary(UnaryOp::Asin)),
    ("asinh", Op::Unary(UnaryOp::Asinh)),
    ("atanh", Op::Unary(UnaryOp::Atanh)),
    ("cosh", Op::Unary(UnaryOp::Cosh)),
    ("erf", Op::Unary(UnaryOp::Erf)),
    ("mulhi", Op::Binary(BinaryOp::Mulhi)),
    ("tan", Op::Unary(UnaryOp::Tan)),
];

impl<'p> Converter<'p> {
    pub(super) fn chlo(
        &mut self,
        operation: &'p Operation,
        name: &str,
        body: &mut Body,
    ) -> Result<(), Error> {
        let operands = self.values(operation, body)?;
        let shape = self.result_shape(operation)?;
        let id = match name {
            "top_k" => {
                let k = operation.integer("k")?.ok_or_else(|| operation.missing("k"))?;
                let op = Op::TopK { k, largest: true, is_stable: None };
                self.emit(body, operation, op, &operands, &[], shape)
            }
            "atan" => {
                let (&[x], Shape::Array(array)) = (&operands[..], &shape) else {
                    return Err(operation.unsupported());
                };
                let one = self.repeat(
                    Scalar::integer(array.element_type, 1),
                    &array.clone(),
                    operation.location,
                    body,
                );
                self.emit(body, operation, Op::Binary(BinaryOp::Atan2), &[x, one], &[], shape)
            }
            "square" => {
                let &[x] = &operands[..] else { return Err(operation.unsupported()) };
                self.emit(body, operation, Op::Binary(BinaryOp::Multiply), &[x, x], &[], shape)
            }
            "ragged_dot" => {
                let op = Op::RaggedDot(Box::new(self.ragged_dot(operation)?));
                self.emit(body, operation, op, &operands, &[], shape)
            }
            "erfc" | "erf_inv" | "acosh" | "sinh" => {
                let &[x] = &operands[..] else { return Err(operation.unsupported()) };
                let element = self.module.shape(x).as_array().map(|array| array.element_type);
                let first = self.module.instructions.len();
                let metadata = self.sources.metadata(operation.location);
                let mut formula = Formula {
                    cursor: Cursor::end(&mut self.module, &mut self.names, body.computation)
                        .with_metadata(metadata),
                };
                let made = match (name, element) {
                    ("erfc", Some(ElementType::F32)) => Some(formula.erfc(x)),
                    ("erf_inv", Some(ElementType::F32)) => Some(formula.erf_inv(x)),
                    ("acosh", Some(ElementType::F32)) => Some(formula.acosh(x)),
                    ("acosh", Some(_)) => Some(formula.cursor.unary(UnaryOp::Acosh, x)),
                    ("sinh", Some(ElementType::F32)) => Some(formula.sinh(x)),
                    (_, Some(narrow @ (ElementType::F16 | ElementType::Bf16))) => {
                        let wide = formula.cursor.convert(x, ElementType::F32);
                        let made = match name {
                            "erfc" => formula.erfc(wide),
                            "sinh" => formula.sinh(wide),
                            _ => formula.erf_inv(wide),
                        };
                        Some(formula.cursor.convert(made, narrow))
                    }
                    ("sinh", Some(_)) => Some(formula.cursor.unary(UnaryOp::Sinh, x)),
                    _ => None,
                };
                // Constants are nobody's.
                for index in first..self.module.instructions.len() {
                    let instruction = &mut self.module.instructions[InstructionId::new(index)];
                    if matches!(instruction.op, Op::Constant(_)) {
                        instruction.metadata = None;
                    }
                }
                made.ok_or_else(|| {
                    let element = element.map_or("", <&str>::from);
                    operation.error(format!("operation `{}` of {element} is not supported", operation.name))
                })?
            }
            _ => {
                let plain = PLAIN.iter().find(|(plain, _)| *plain == name);
                let (_, op) = plain.ok_or_else(|| operation.unsupported())?;
                self.emit(body, operation, op.clone(), &operands, &[], shape)
            }
        };
        self.note_all(id, operation)?;
        self.give(operation, id, body);
        Ok(())
    }

    fn ragged_dot(&self, operation: &'p Operation) -> Result<RaggedDot, Error> {
        let Some(Attribute::Dialect(_, text)) = operation.attribute("ragged_dot_dimension_numbers") else {
            return Err(operation.missing("ragged_dot_dimension_numbers"));
        };
        let fields =
            crate::text::fields(text).ok_or_else(|| operation.missing("ragged_dot_dimension_numbers"))?;
        let list = |name: &str| -> Dimensions {
            let found = crate::mlir::find(&fields, name).and_then(super::attributes::list);
            found.unwrap_or_default().into_iter().collect()
        };
        Ok(RaggedDot {
            dimensions: DotDimensions {
                lhs_contracting: list("lhs_contracting_dimensions"),
                rhs_contracting: list("rhs_contracting_dimensions"),
                lhs_batch: list("lhs_batching_dimensions"),
                rhs_batch: list("rhs_batching_dimensions"),
            },
            lhs_ragged_dims: list("lhs_ragged_dimensions"),
            rhs_group_dims: list("rhs_group_dimensions"),
            precision: super::operations::precision(operation)?,
        })
    }

    /// An operation of CHLO that `jax.export` writes as a composite. `false` where HLO has none, so that the function
    /// behind it is called.
    pub(super) fn recomposed(
        &mut self,
        operation: &'p Operation,
        name: &str,
        body: &mut Body,
    ) -> Result<bool, Error> {
        let plain = name.strip_prefix("chlo.").unwrap_or(name);
        if matches!(plain, "acosh" | "atan" | "erf_inv" | "erfc" | "sinh" | "square") {
            self.chlo(operation, plain, body)?;
            return Ok(true);
        }
        let operands = self.values(operation, body)?;
        let none = Attributes::new();
        let said = match operation.attribute("composite_attributes") {
            Some(Attribute::Dictionary(said)) => said,
            _ => &none,
        };
        self.recompose(operation, plain, said, &operands, body)
    }

    /// The same of a custom call, with attributes in `mhlo.attributes`.
    pub(super) fn recomposed_call(
        &mut self,
        operation: &'p Operation,
        name: &str,
        operands: &[InstructionId],
        body: &mut Body,
    ) -> Result<bool, Error> {
        let none = Attributes::new();
        let said = match operation.attribute("mhlo.attributes") {
            Some(Attribute::Dictionary(said)) => said,
            _ => &none,
        };
        self.recompose(operation, name, said, operands, body)
    }

    fn recompose(
        &mut self,
        operation: &'p Operation,
        name: &str,
        said: &Attributes,
        operands: &[InstructionId],
        body: &mut Body,
    ) -> Result<bool, Error> {
        let op = match name {
            "topk" | "top_k" => {
                let Some(Attribute::Integer(k, _)) = crate::mlir::find(said, "k") else {
                    return Err(operation.missing("k"));
                };
                let largest = match crate::mlir::find(said, "largest") {
                    Some(Attribute::Bool(largest)) => *largest,
                    _ => true,
                };
                Op::TopK { k: *k, largest, is_stable: None }
            }
            _ => match PLAIN.iter().find(|(plain, _)| *plain == name) {
                Some((_, op)) => op.clone(),
                None => return Ok(false),
            },
        };
        if !op.opcode().traits().operands.allows(operands.len()) {
            return Err(operation.error(format!("`{name}` has {} operands", operands.len())));
        }
        let shape = self.result_shape(operation)?;
        let id = self.emit(body, operation, op, operands, &[], shape);
        self.give(operation, id, body);
        Ok(true)
    }
}

/// Formulas of functions of single-precision arrays.
struct Formula<'c> {
    cursor: Cursor<'c>,
}

impl Formula<'_> {
    /// A number, as large as an array.
    fn number(&mut self, value: f32, like: InstructionId) -> InstructionId {
        let extents = self.cursor.module().shape(like).as_array().map(|array| array.dimensions.clone());
        let extents = extents.unwrap_or_default();
        let scalar = self.cursor.constant(Literal::f32(value));
        match extents.is_empty() {
            true => scalar,
            false => self.cursor.broadcast(scalar, extents, []),
        }
    }

    /// A polynomial by Horner's rule, the highest power first.
    fn polynomial(&mut self, x: InstructionId, coefficients: &[f32]) -> InstructionId {
        let mut sum = self.number(coefficients[0], x);
        for (i, &coefficient) in coefficients[1..].iter().enumerate() {
            let (left, right) = if i == 0 { (x, sum) } else { (sum, x) };
            let product = self.cursor.binary(BinaryOp::Multiply, left, right);
            let coefficient = self.number(coefficient, x);
            sum = self.cursor.binary(BinaryOp::Add, product, coefficient);
        }
        sum
    }

    /// The complement of the error function: near zero by that of the error function, elsewhere by
    /// `exp(-x^2) / |x| * P(1 / x^2)`, reflected for negative numbers (Cephes).
    fn erfc(&mut self, x: InstructionId) -> InstructionId {
        let one = self.number(1.0, x);
        let near = {
            let square = self.cursor.binary(BinaryOp::Multiply, x, x);
            let series = self.polynomial(square, &ERF_NEAR);
            let erf = self.cursor.binary(BinaryOp::Multiply, x, series);
            self.cursor.binary(BinaryOp::Subtract, one, erf)
        };
        let far = {
            let square = self.cursor.binary(BinaryOp::Multiply, x, x);
            let minus = self.cursor.unary(UnaryOp::Negate, square);
            let size = self.cursor.unary(UnaryOp::Abs, x);
            let inverse = self.cursor.binary(BinaryOp::Divide, one, square);
            let power = self.cursor.unary(UnaryOp::Exponential, minus);
            let by_size = self.cursor.binary(BinaryOp::Divide, one, size);
            let factor = self.cursor.binary(BinaryOp::Multiply, power, by_size);
            let two = self.number(2.0, x);
            let middle = self.polynomial(inverse, &ERFC_MIDDLE);
            let outer = self.polynomial(inverse, &ERFC_OUTER);
            let is_middle = self.cursor.compare(ComparisonDirection::Lt, size, two);
            let series = self.cursor.select(is_middle, middle, outer);
            let value = self.cursor.binary(BinaryOp::Multiply, factor, series);
            let least = self.number(-88.722_84, x);
            let vanishes = self.cursor.compare(ComparisonDirection::Lt, minus, least);
            let zero = self.number(0.0, x);
            let value = self.cursor.select(vanishes, zero, value);
            let is_negative = self.cursor.compare(ComparisonDirection::Lt, x, zero);
            let reflected = self.cursor.binary(BinaryOp::Subtract, two, value);
            self.cursor.select(is_negative, reflected, value)
        };
        let size = self.cursor.unary(UnaryOp::Abs, x);
        let is_near = self.cursor.compare(ComparisonDirection::Lt, size, one);
        self.cursor.select(is_near, near, far)
    }

    /// `(e^x - e^-x) / 2`; where `x` is small, by `e^x - 1`, which has more digits there.
    fn sinh(&mut self, x: InstructionId) -> InstructionId {
        let size = self.cursor.unary(UnaryOp::Abs, x);
        let one = self.number(1.0, x);
        let is_small = self.cursor.compare(ComparisonDirection::Lt, size, one);
        let less = self.cursor.unary(UnaryOp::Expm1, x);
        let power = self.cursor.binary(BinaryOp::Add, less, one);
        let inverse = self.cursor.binary(BinaryOp::Divide, less, power);
        let sum = self.cursor.binary(BinaryOp::Add, less, inverse);
        let half = self.number(0.5, x);
        let small = self.cursor.binary(BinaryOp::Multiply, sum, half);
        let log = self.number(-std::f32::consts::LN_2, x);
        let up = self.cursor.binary(BinaryOp::Add, x, log);
        let up = self.cursor.unary(UnaryOp::Exponential, up);
        let down = self.cursor.binary(BinaryOp::Subtract, log, x);
        let down = self.cursor.unary(UnaryOp::Exponential, down);
        let large = self.cursor.binary(BinaryOp::Subtract, up, down);
        self.cursor.select(is_small, small, large)
    }

    /// `log(x + sqrt(x^2 - 1))`, and `log(2 x)` where the square is too large.
    fn acosh(&mut self, x: InstructionId) -> InstructionId {
        let most = self.number(f32::MAX / 2.0, x);
        let is_large = self.cursor.compare(ComparisonDirection::Ge, x, most);
        let log = self.cursor.unary(UnaryOp::Log, x);
        let two = self.number(std::f32::consts::LN_2, x);
        let large = self.cursor.binary(BinaryOp::Add, log, two);
        let one = self.number(1.0, x);
        let below = self.cursor.binary(BinaryOp::Subtract, x, one);
        let below = self.cursor.unary(UnaryOp::Sqrt, below);
        let above = self.cursor.binary(BinaryOp::Add, x, one);
        let above = self.cursor.unary(UnaryOp::Sqrt, above);
        let sum = self.cursor.binary(BinaryOp::Add, above, below);
        let product = self.cursor.binary(BinaryOp::Multiply, below, sum);
        let small = self.cursor.unary(UnaryOp::Log1p, product);
        self.cursor.select(is_large, large, small)
    }

    /// The inverse of the error function, by two polynomials in `w = -log(1 - x^2)` (M. Giles, 2010).
    fn erf_inv(&mut self, x: InstructionId) -> InstructionId {
        let minus = self.cursor.unary(UnaryOp::Negate, x);
        let product = self.cursor.binary(BinaryOp::Multiply, x, minus);
        let log = self.cursor.unary(UnaryOp::Log1p, product);
        let w = self.cursor.unary(UnaryOp::Negate, log);
        let five = self.number(5.0, x);
        let is_central = self.cursor.compare(ComparisonDirection::Lt, w, five);
        let shift = self.number(2.5, x);
        let central = self.cursor.binary(BinaryOp::Subtract, w, shift);
        let root = self.cursor.unary(UnaryOp::Sqrt, w);
        let three = self.number(3.0, x);
        let tail = self.cursor.binary(BinaryOp::Subtract, root, three);
        let w = self.cursor.select(is_central, central, tail);
        let coefficient = |formula: &mut Self, i: usize| {
            let [central, tail] = [ERF_INV_CENTRAL[i], ERF_INV_TAIL[i]].map(|value| formula.number(value, x));
            formula.cursor.select(is_central, central, tail)
        };
        let mut sum = coefficient(self, 0);
        for i in 1..ERF_INV_CENTRAL.len() {
            let next = coefficient(self, i);
            let product = self.cursor.binary(BinaryOp::Multiply, sum, w);
            sum = self.cursor.binary(BinaryOp::Add, next, product);
        }
        let inner = self.cursor.binary(BinaryOp::Multiply, sum, x);
        let size = self.cursor.unary(UnaryOp::Abs, x);
        let one = self.number(1.0, x);
        let is_end = self.cursor.compare(ComparisonDirection::Eq, size, one);
        let infinity = self.number(f32::INFINITY, x);
        let end = self.cursor.binary(BinaryOp::Multiply, x, infinity);
        self.cursor.select(is_end, end, inner)
    }
}

/// `erf(x) / x` in powers of `x^2`, up to 1.
#[allow(clippy::approx_constant, reason = "the coefficient that fits best is not the limit at 0")]
const ERF_NEAR: [f32; 7] = [
    7.853_861_5e-5,
    -8.010_193_7e-4,
    5.188_327_7e-3,
    -2.685_381_3e-2,
    1.128_358_54e-1,
    -3.761_262_6e-1,
    1.128_379_1,
];

/// `erfc(x) * exp(x^2) * x` in powers of `1 / x^2`, from 1 to 2.
const ERFC_MIDDLE: [f32; 9] = [
    2.326_82e-2,
    -1.387_039_4e-1,
    3.687_424_7e-1,
    -5.824_733e-1,
    6.210_004_7e-1,
    -4.944_515_2e-1,
    3.404_88e-1,
    -2.741_127e-1,
    5.638_259_6e-1,
];

/// The same beyond 2.
const ERFC_OUTER: [f32; 8] = [
    -1.047_766_4e1,
    1.297_72e1,
    -7.495_518_7,
    2.921_019,
    -1.015_265_2,
    4.218_463_3e-1,
    -2.820_767_5e-1,
    5.641_895e-1,
];

/// `erf_inv(x) / x` in powers of `w - 2.5`.
const ERF_INV_CENTRAL: [f32; 9] = [
    2.810_226_4e-8,
    3.432_739_4e-7,
    -3.523_387_7e-6,
    -4.391_506_5e-6,
    2.185_808_7e-4,
    -1.253_725e-3,
    -4.177_681_6e-3,
    0.246_640_73,
    1.501_409_4,
];

/// The same in powers of `sqrt(w) - 3`.
const ERF_INV_TAIL: [f32; 9] = [
    -2.002_142_6e-4,
    1.009_505_6e-4,
    1.349_343_2e-3,
    -3.673_428_4e-3,
    5.739_507_7e-3,
    -7.622_461_3e-3,
    9.438_870_5e-3,
    1.001_674,
    2.832_976_8,
];
