//! `complex-splitter`: computes with the real and the imaginary parts of complex numbers, as XLA's TPU compiler does.
//!
//! ```text
//!   y = c64[8] add(x, z)       =>       u = f32[8] add(real(x), real(z))
//!                                       v = f32[8] add(imag(x), imag(z))
//!                                       y = c64[8] complex(u, v)
//! ```
//!
//! The parts of `complex(u, v)` are `u` and `v`, so complex numbers remain only in arguments and results of the program, and
//! around operations that have no rule here. Loops carry both parts. A product of
//! matrices takes three real ones, as in [`fft_expander`](super::fft_expander).
//!
//! Left alone: `c128`, elements of a loop's state that its condition reads, conditionals, roots, powers and functions that
//! are not elementary. *Changed* means that an operation on complex numbers became several on real ones.

use memplan_ir::{
    ArrayLiteral, BinaryOp, ComparisonDirection, ComputationId, Cursor, ElementType, Insert, InstructionId,
    Literal, LiteralData, Module, Names, Op, Scalar, Shape, UnaryOp, Users,
};
use memplan_rewriter::loops::{Loop, loops};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter, plain_combiner};

/// The pass.
pub const COMPLEX_SPLITTER: PassFn = PassFn {
    name: "complex-splitter",
    description: "compute with the parts of complex numbers, as XLA's TPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let has_split_states = split_states(module);
    Ok(Rewriter::swept(module, rule) || has_split_states)
}

/// The parts of a complex array.
type Parts = [InstructionId; 2];

const PARTS: [UnaryOp; 2] = [UnaryOp::Real, UnaryOp::Imag];

/// Replaces each complex element of the state of a loop by its two parts. Says whether there was any.
fn split_states(module: &mut Module) -> bool {
    if module.is_scheduled {
        return false;
    }
    let found = loops(module, &Users::new(module));
    let mut names = Names::new(module);
    found.iter().filter(|of| split_state(module, &mut names, of)).count() > 0
}

fn split_state(module: &mut Module, names: &mut Names, of: &Loop) -> bool {
    if of.is_sharded(module) {
        return false;
    }
    let init = &module.instructions[of.init].operands;
    let elements: Vec<u32> = (0u32..)
        .zip(init)
        .filter(|&(element, &id)| is_complex(module.shape(id)) && !of.read_by_condition.contains(&element))
        .map(|(element, _)| element)
        .collect();
    for &element in &elements {
        let [init, next] = [of.init, of.next].map(|tuple| {
            let value = module.instructions[tuple].operands[element as usize];
            let mut at = Cursor::before(module, names, tuple);
            let parts = PARTS.map(|part| at.unary(part, value));
            module.instructions[tuple].operands[element as usize] = parts[0];
            parts[1]
        });
        let imaginary = of.add_element(module, init, next);
        let taken = [&of.taken, &of.results].into_iter().filter_map(|sites| sites.get(&element)).flatten();
        for &real in taken {
            let tuple = module.instructions[real].operands[0];
            let shape = of_parts(module.shape(real));
            module.instructions[real].shape = module.intern(shape.clone());
            let mut at = Cursor::after(module, names, real);
            let index = Op::GetTupleElement { index: imaginary };
            let imaginary = at.insert_shaped(index, [tuple], shape);
            let whole = at.binary(BinaryOp::Complex, real, imaginary);
            replace_all(module, real, whole);
        }
    }
    of.set_shapes(module);
    !elements.is_empty()
}

/// Replaces the real part by the whole complex number, in all instructions but the one that makes this number.
fn replace_all(module: &mut Module, value: InstructionId, whole: InstructionId) {
    let computation = module.instructions[value].parent;
    for id in module.computations[computation].instructions.clone() {
        if id != whole {
            module.replace_operand(id, value, whole);
        }
    }
    let computation = &mut module.computations[computation];
    if computation.root == value {
        computation.root = whole;
    }
}

fn is_complex(shape: &Shape) -> bool {
    shape.as_array().is_some_and(|array| array.element_type == ElementType::C64)
}

/// The shape of each part.
fn of_parts(shape: &Shape) -> Shape {
    let mut array = shape.as_array().expect("complex numbers are arrays").clone();
    array.element_type = ElementType::F32;
    Shape::Array(array)
}

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let operands = r.operands(id).to_vec();
    if let Some(part) = PARTS.into_iter().position(|part| *r.op(id) == Op::Unary(part)) {
        return whole(r, operands[0]).map(|parts| parts[part]);
    }
    if is_complex(r.shape(id)) {
        let [re, im] = split(r, id, &operands)?;
        return Some(r.binary(BinaryOp::Complex, re, im));
    }
    match *r.op(id) {
        Op::Unary(UnaryOp::Abs) if is_complex(r.shape(operands[0])) => {
            let x = parts(r, operands[0]);
            Some(magnitude(r, x))
        }
        Op::Compare { direction, .. } if is_complex(r.shape(operands[0])) => {
            let both = match direction {
                ComparisonDirection::Eq => BinaryOp::And,
                ComparisonDirection::Ne => BinaryOp::Or,
                _ => return None,
            };
            let [[a, b], [c, d]] = [operands[0], operands[1]].map(|x| parts(r, x));
            let [re, im] = [[a, c], [b, d]].map(|[x, y]| r.compare(direction, x, y));
            Some(r.binary(both, re, im))
        }
        _ => None,
    }
}

/// The operands of `complex`, if that makes a value.
fn whole(r: &Rewriter<'_>, id: InstructionId) -> Option<Parts> {
    match *r.op(id) {
        Op::Binary(BinaryOp::Complex) => Some([r.operand(id, 0), r.operand(id, 1)]),
        _ => None,
    }
}

fn parts(r: &mut Rewriter<'_>, id: InstructionId) -> Parts {
    whole(r, id).unwrap_or_else(|| PARTS.map(|part| r.unary(part, id)))
}

/// The parts of the result of an operation; `None` where there is no rule.
fn split(r: &mut Rewriter<'_>, id: InstructionId, operands: &[InstructionId]) -> Option<Parts> {
    use BinaryOp::{Add, Divide, Multiply, Subtract};
    match r.op(id).clone() {
        Op::Constant(Literal::Array(literal)) => {
            let [re, im] = split_literal(&literal)?;
            Some([re, im].map(|part| r.constant(Literal::Array(part))))
        }
        Op::Convert => {
            let x = r.convert(operands[0], ElementType::F32);
            let extents = r.dimensions(id)?;
            let zero = Scalar::float(ElementType::F32, 0.0)?;
            (!is_complex(r.shape(operands[0]))).then(|| [x, r.splat_array(zero, &extents)])
        }
        Op::Unary(UnaryOp::Negate) => Some(parts(r, operands[0]).map(|part| r.unary(UnaryOp::Negate, part))),
        Op::Unary(UnaryOp::Exponential) => {
            let [a, b] = parts(r, operands[0]);
            let by = r.unary(UnaryOp::Exponential, a);
            Some([UnaryOp::Cosine, UnaryOp::Sine].map(|of| {
                let turned = r.unary(of, b);
                r.binary(Multiply, by, turned)
            }))
        }
        Op::Unary(UnaryOp::Log) => {
            let [a, b] = parts(r, operands[0]);
            let size = magnitude(r, [a, b]);
            Some([r.unary(UnaryOp::Log, size), r.binary(BinaryOp::Atan2, b, a)])
        }
        Op::Binary(op @ (Add | Subtract)) => {
            let [[a, b], [c, d]] = [operands[0], operands[1]].map(|x| parts(r, x));
            Some([[a, c], [b, d]].map(|[x, y]| r.binary(op, x, y)))
        }
        Op::Binary(Multiply) => {
            let [x, y] = [operands[0], operands[1]].map(|x| parts(r, x));
            Some(product(r, x, y))
        }
        Op::Binary(Divide) => {
            let [x, [c, d]] = [operands[0], operands[1]].map(|x| parts(r, x));
            let conjugate = [c, r.unary(UnaryOp::Negate, d)];
            let [squared, more] = [c, d].map(|part| r.binary(Multiply, part, part));
            let by = r.binary(Add, squared, more);
            Some(product(r, x, conjugate).map(|part| r.binary(Divide, part, by)))
        }
        Op::Dot(dot) => {
            let [x, y] = [operands[0], operands[1]].map(|x| parts(r, x));
            Some(complex_product(r, x, y, |r, x, y| r.insert(Op::Dot(dot.clone()), [x, y])))
        }
        Op::Reduce { .. } | Op::ReduceWindow(_) | Op::Scatter(_) => {
            let reducer = r.get(id).called[0];
            let n_arrays = if matches!(r.op(id), Op::Scatter(_)) { 3 } else { 2 };
            let is_sum = plain_combiner(r.module(), reducer) == Some(Add) && operands.len() == n_arrays;
            is_sum.then(|| {
                let add = r.combiner("add", Add, ElementType::F32);
                each(r, id, operands, Some(add))
            })
        }
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::Pad { .. }
        | Op::Concatenate { .. }
        | Op::Gather(_)
        | Op::Reverse { .. }
        | Op::Copy
        | Op::Select => Some(each(r, id, operands, None)),
        _ => None,
    }
}

/// Does the same to both parts.
fn each(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    operands: &[InstructionId],
    called: Option<ComputationId>,
) -> Parts {
    let op = r.op(id).clone();
    let shape = of_parts(r.shape(id));
    let of_operands: Vec<Parts> =
        operands.iter().map(|&x| if is_complex(r.shape(x)) { parts(r, x) } else { [x, x] }).collect();
    [0, 1].map(|part| {
        let operands = of_operands.iter().map(|parts| parts[part]);
        r.emit_call(op.clone(), operands, called, shape.clone())
    })
}

fn product(r: &mut Rewriter<'_>, [a, b]: Parts, [c, d]: Parts) -> Parts {
    let [ac, bd, ad, bc] = [[a, c], [b, d], [a, d], [b, c]].map(|[x, y]| r.binary(BinaryOp::Multiply, x, y));
    [r.binary(BinaryOp::Subtract, ac, bd), r.binary(BinaryOp::Add, ad, bc)]
}

/// A complex product by three real ones, which `by` makes: (a + bi)(c + di) = k - b(c + d) + (k + a(d - c))i, where
/// k = (a + b)c.
pub(super) fn complex_product(
    r: &mut Rewriter<'_>,
    [a, b]: Parts,
    [c, d]: Parts,
    by: impl Fn(&mut Rewriter<'_>, InstructionId, InstructionId) -> InstructionId,
) -> Parts {
    let sum = r.binary(BinaryOp::Add, a, b);
    let both = by(r, sum, c);
    let (more, less) = (r.binary(BinaryOp::Add, c, d), r.binary(BinaryOp::Subtract, d, c));
    let (of_im, of_re) = (by(r, b, more), by(r, a, less));
    [r.binary(BinaryOp::Subtract, both, of_im), r.binary(BinaryOp::Add, both, of_re)]
}

/// The absolute value. The larger part is taken out of the root, so that no square is too large or too small.
fn magnitude(r: &mut Rewriter<'_>, x: Parts) -> InstructionId {
    let [a, b] = x.map(|part| r.unary(UnaryOp::Abs, part));
    let (most, least) = (r.binary(BinaryOp::Maximum, a, b), r.binary(BinaryOp::Minimum, a, b));
    let extents = r.dimensions(a).expect("parts are arrays");
    let [zero, one] = [0.0, 1.0]
        .map(|x| r.splat_array(Scalar::float(ElementType::F32, x).expect("f32 is floating"), &extents));
    let share = r.binary(BinaryOp::Divide, least, most);
    let squared = r.binary(BinaryOp::Multiply, share, share);
    let more = r.binary(BinaryOp::Add, one, squared);
    let root = r.unary(UnaryOp::Sqrt, more);
    let size = r.binary(BinaryOp::Multiply, most, root);
    let is_zero = r.compare(ComparisonDirection::Eq, most, zero);
    r.select(is_zero, zero, size)
}

fn split_literal(literal: &ArrayLiteral) -> Option<[ArrayLiteral; 2]> {
    let LiteralData::Bytes(bytes) = &literal.data else { return None };
    let width = ElementType::F32.byte_width() as usize;
    Some([0, width].map(|from| {
        let parts: Vec<u8> =
            bytes.chunks_exact(2 * width).flat_map(|both| both[from..from + width].iter().copied()).collect();
        ArrayLiteral {
            element_type: ElementType::F32,
            dimensions: literal.dimensions.clone(),
            data: LiteralData::Bytes(parts.into()),
        }
    }))
}
