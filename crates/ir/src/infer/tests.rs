//! One table per group of operations: what goes in, what comes out. Shapes and messages are HLO text without layouts;
//! the values were asked of XLA's parser, which infers shapes that its text leaves out.

use super::*;
use crate::{
    BinaryOp, Collective, ConvolutionDimensions, Dimensions, Dot, DotDimensions, ElementType, EntityRef,
    FftKind, GatherDimensions, Instruction, Layout, PaddingDimension, RaggedDot, ReplicaGroups,
    RngDistribution, ScatterDimensions, SliceDimension, TriangularSolve, UnaryOp, Window, WindowDimension,
};

#[track_caller]
fn check(op: Op, operands: &[&str], expected: &str) {
    check_with(&Module::new("test"), op, operands, &[], None, expected);
}

/// As [`check`], with a given shape.
#[track_caller]
fn check_given(op: Op, operands: &[&str], given: &str, expected: &str) {
    check_with(&Module::new("test"), op, operands, &[], Some(given), expected);
}

/// As [`check`], with one called computation of these parameters and this result.
#[track_caller]
fn check_calling(op: Op, operands: &[&str], (parameters, result): (&[&str], &str), expected: &str) {
    let mut module = Module::new("test");
    let called = computation(&mut module, "f", parameters, result);
    check_with(&module, op, operands, &[called], None, expected);
}

#[track_caller]
fn check_with(
    module: &Module,
    op: Op,
    operands: &[&str],
    called: &[ComputationId],
    given: Option<&str>,
    expected: &str,
) {
    let operands: Vec<Shape> = operands.iter().map(|s| parse(s)).collect();
    let operands: Vec<&Shape> = operands.iter().collect();
    let found = match given.map(parse) {
        None => infer_shape(module, &op, &operands, called),
        Some(given) => infer_shape_given(module, &op, &operands, called, &given),
    };
    let found = found.map_or_else(|error| format!("error: {error}"), |shape| brief(&shape));
    assert_eq!(found, expected, "{:?} of {operands:?}", op.opcode());
}

/// A computation with these parameters whose root, of the given shape, is nothing in particular.
fn computation(module: &mut Module, name: &str, parameters: &[&str], result: &str) -> ComputationId {
    let id = module.add_computation(name);
    for (number, shape) in (0..).zip(parameters) {
        let shape = module.intern(parse(shape));
        let parameter = Instruction::new(format!("p{number}"), shape, Op::Parameter { number }, [], id);
        let parameter = module.add_instruction(parameter);
        module.computations[id].parameters.push(parameter);
    }
    let shape = module.intern(parse(result));
    let root = module.add_instruction(Instruction::new("root", shape, Op::Tuple, [], id));
    module.computations[id].root = root;
    id
}

/// Reads a shape; tuples nest.
pub(crate) fn parse(text: &str) -> Shape {
    let (shape, rest) = parse_prefix(text);
    assert_eq!(rest, "", "{text}");
    shape
}

fn parse_prefix(text: &str) -> (Shape, &str) {
    if let Some(mut rest) = text.strip_prefix('(') {
        let mut elements = Vec::new();
        while !rest.starts_with(')') {
            let (element, after) = parse_prefix(rest.trim_start_matches(", "));
            elements.push(element);
            rest = after;
        }
        return (Shape::Tuple(elements), &rest[1..]);
    }
    if let Some(rest) = text.strip_prefix("token[]") {
        return (Shape::Token, rest);
    }
    let (element_type, rest) = text.split_once('[').expect("a shape has brackets");
    let (extents, rest) = rest.split_once(']').expect("brackets close");
    let extents: Vec<&str> = extents.split(',').filter(|e| !e.is_empty()).collect();
    let size = |e: &&str| {
        if *e == "?" { ArrayShape::UNBOUNDED } else { e.trim_start_matches("<=").parse().unwrap() }
    };
    let mut array = ArrayShape::new(element_type.parse().unwrap(), extents.iter().map(size));
    if extents.iter().any(|e| e.starts_with(['<', '?'])) {
        array.dynamic = extents.iter().map(|e| e.starts_with(['<', '?'])).collect();
    }
    (array.into(), rest)
}

fn list(dimensions: &[i64]) -> Dimensions {
    dimensions.into()
}

#[test]
fn unary() {
    check(Op::Unary(UnaryOp::Negate), &["u32[2]"], "u32[2]");
    check(Op::Unary(UnaryOp::Abs), &["c64[2,<=3]"], "f32[2,<=3]");
    check(Op::Unary(UnaryOp::Real), &["c128[]"], "f64[]");
    check(Op::Unary(UnaryOp::Imag), &["bf16[2]"], "bf16[2]");
    check(Op::Unary(UnaryOp::IsFinite), &["f8e4m3fn[2]"], "pred[2]");
    check(Op::Unary(UnaryOp::Not), &["s4[2]"], "s4[2]");
    check(
        Op::Unary(UnaryOp::Sign),
        &["u32[2]"],
        "error: operand 0 must be of signed, floating-point or complex type, is u32[2]",
    );
    check(
        Op::Unary(UnaryOp::Cbrt),
        &["c64[2]"],
        "error: operand 0 must be of floating-point type, is c64[2]",
    );
    check(Op::Unary(UnaryOp::Negate), &["pred[]"], "error: operand 0 must be of arithmetic type, is pred[]");
    check(
        Op::Unary(UnaryOp::Exponential),
        &["s32[]"],
        "error: operand 0 must be of floating-point or complex type, is s32[]",
    );
    check(
        Op::Unary(UnaryOp::PopulationCount),
        &["f32[]"],
        "error: operand 0 must be of integral type, is f32[]",
    );
    check(Op::Unary(UnaryOp::Exponential), &["(f32[])"], "error: operand 0 must be an array, is (f32[])");
    check(Op::Unary(UnaryOp::Exponential), &[], "error: takes 1 operands, has 0");
}

#[test]
fn elementwise_results_keep_the_layout() {
    let operand = Shape::Array(ArrayShape {
        layout: Some(Layout::with_order([0, 1])),
        ..ArrayShape::new(ElementType::F32, [2, 3])
    });
    for op in [Op::Unary(UnaryOp::Negate), Op::Copy] {
        assert_eq!(infer_shape(&Module::new("m"), &op, &[&operand], &[]), Ok(operand.clone()));
    }
}

#[test]
fn binary() {
    let add = || Op::Binary(BinaryOp::Add);
    check(add(), &["f32[<=4]", "f32[4]"], "f32[<=4]");
    check(add(), &["f32[?]", "f32[<=3]"], "f32[<=3]");
    check(add(), &["f32[?]", "f32[3]"], "f32[3]");
    check(add(), &["f32[2]", "bf16[2]"], "f32[2]");
    check(add(), &["f16[2]", "bf16[2]"], "bf16[2]");
    check(add(), &["pred[2]", "pred[2]"], "pred[2]");
    check(Op::Binary(BinaryOp::Complex), &["f32[2]", "f32[2]"], "c64[2]");
    check(Op::Binary(BinaryOp::ShiftLeft), &["s32[2]", "s32[2]"], "s32[2]");
    check(
        add(),
        &["f32[<=4]", "f32[<=3]"],
        "error: operands 0 and 1 must have the same extents, are f32[<=4] and f32[<=3]",
    );
    check(
        add(),
        &["f32[2,1]", "f32[2,3]"],
        "error: operands 0 and 1 must have the same extents, are f32[2,1] and f32[2,3]",
    );
    check(
        add(),
        &["f32[2]", "s32[2]"],
        "error: operands 0 and 1 must have the same element type, are f32[2] and s32[2]",
    );
    check(
        Op::Binary(BinaryOp::Subtract),
        &["pred[]", "pred[]"],
        "error: operand 0 must be of arithmetic type, is pred[]",
    );
    check(
        Op::Binary(BinaryOp::And),
        &["f32[]", "f32[]"],
        "error: operand 0 must be of pred or integral type, is f32[]",
    );
    check(
        Op::Binary(BinaryOp::Complex),
        &["bf16[]", "bf16[]"],
        "error: operand 0 must be of type f32 or f64, is bf16[]",
    );
    check(
        Op::Binary(BinaryOp::Atan2),
        &["s32[]", "s32[]"],
        "error: operand 0 must be of floating-point or complex type, is s32[]",
    );
}

#[test]
fn selection() {
    let compare = Op::Compare { direction: crate::ComparisonDirection::Lt, comparison_type: None };
    check(compare, &["f32[2]", "bf16[2]"], "pred[2]");
    check(Op::Select, &["pred[]", "f32[2]", "bf16[2]"], "f32[2]");
    check(Op::Select, &["pred[2]", "s8[2]", "s8[2]"], "s8[2]");
    check(
        Op::Select,
        &["pred[3]", "s8[2]", "s8[2]"],
        "error: operands 0 and 1 must have the same extents, or the first must be a scalar, are pred[3] and s8[2]",
    );
    check(Op::Select, &["s32[]", "s8[2]", "s8[2]"], "error: operand 0 must be of type pred, is s32[]");
    check(Op::Clamp, &["f32[]", "f32[2]", "f32[2]"], "f32[2]");
    check(
        Op::Clamp,
        &["f32[2]", "f32[]", "f32[2]"],
        "error: operands 0 and 1 must have the same extents, or the first must be a scalar, are f32[2] and f32[]",
    );
}

#[test]
fn conversions_take_their_type_from_the_given_shape() {
    check_given(Op::Convert, &["f32[2,3]"], "s8[9]", "s8[2,3]");
    check_given(
        Op::Convert,
        &["c64[2]"],
        "f32[2]",
        "error: operand 0 must be real where the result is real, is c64[2]",
    );
    check(
        Op::Convert,
        &["f32[2]"],
        "error: cannot infer the shape of convert: its operands leave it open, so it must be given",
    );
    check_given(Op::StochasticConvert, &["f32[2]", "u32[2]"], "s8[2]", "s8[2]");
    check_given(
        Op::StochasticConvert,
        &["f32[2]", "u16[2]"],
        "s8[2]",
        "error: operand 1 must be of an unsigned type as wide as operand 0, is u16[2]",
    );
    check_given(Op::BitcastConvert, &["f32[2]"], "s32[]", "s32[2]");
    check_given(Op::BitcastConvert, &["f32[2]"], "u8[]", "u8[2,4]");
    check_given(Op::BitcastConvert, &["u4[2,8]"], "u32[]", "u32[2]");
    check_given(
        Op::BitcastConvert,
        &["u8[2,3]"],
        "u32[]",
        "error: operand 0 must be of a last extent that makes up one u32, is u8[2,3]",
    );
    check_given(
        Op::BitcastConvert,
        &["u32[]"],
        "c64[]",
        "error: operand 0 must be complex exactly where the result is, is u32[]",
    );
    check(Op::ReducePrecision { exponent_bits: 5, mantissa_bits: 10 }, &["f32[2]"], "f32[2]");
    check(
        Op::ReducePrecision { exponent_bits: 0, mantissa_bits: 10 },
        &["f32[2]"],
        "error: exponent_bits must be at least 1, is 0",
    );
}

#[test]
fn made_from_nothing() {
    check(
        Op::Constant(crate::Literal::Tuple(vec![crate::Literal::f32(1.0), crate::Literal::Token])),
        &[],
        "(f32[], token[])",
    );
    check_given(Op::Iota { dimension: 1 }, &[], "s32[2,3]", "s32[2,3]");
    check_given(
        Op::Iota { dimension: 2 },
        &[],
        "s32[2,3]",
        "error: iota_dimension has dimension 2, the rank is 2",
    );
    check_given(
        Op::Iota { dimension: 0 },
        &[],
        "pred[2]",
        "error: the given shape must be of arithmetic type, is pred[2]",
    );
    check(Op::PartitionId, &[], "u32[]");
    check(Op::RngGetAndUpdateState { delta: 1 }, &[], "u64[2]");
    check_given(
        Op::Rng { distribution: RngDistribution::RngNormal },
        &["f32[]", "f32[]"],
        "f32[9]",
        "f32[9]",
    );
    check_given(
        Op::Rng { distribution: RngDistribution::RngNormal },
        &["s32[]", "s32[]"],
        "s32[9]",
        "error: operand 0 must be of floating-point type, is s32[]",
    );
    check_given(
        Op::RngBitGenerator { algorithm: crate::RngAlgorithm::RngPhilox },
        &["u64[3]"],
        "(u64[2], u32[9])",
        "(u64[3], u32[9])",
    );
    check(
        Op::Parameter { number: 0 },
        &[],
        "error: cannot infer the shape of parameter: its operands leave it open, so it must be given",
    );
}

#[test]
fn reshaping() {
    let broadcast = |d: &[i64]| Op::Broadcast { dimensions: list(d) };
    check_given(broadcast(&[1]), &["f32[2]"], "f32[3,2]", "f32[3,2]");
    check_given(
        broadcast(&[0]),
        &["f32[2]"],
        "f32[3,2]",
        "error: the given shape must be of extent 2 in dimension 0, is f32[3,2]",
    );
    check_given(broadcast(&[0, 0]), &["f32[2,2]"], "f32[2,2]", "error: dimensions has dimension 0 twice");
    check_given(broadcast(&[]), &["f32[2]"], "f32[2,2]", "error: dimensions must be 1 long, is 0 long");
    let reshape = || Op::Reshape { inferred_dimension: None };
    check_given(reshape(), &["f32[2,3]"], "f32[6]", "f32[6]");
    check_given(
        reshape(),
        &["f32[2,3]"],
        "f32[5]",
        "error: the given shape must be of as many elements as f32[2,3], is f32[5]",
    );
    check_given(Op::DynamicReshape, &["f32[6]", "s32[]", "s32[]"], "f32[<=2,3]", "f32[<=2,3]");
    check_given(Op::DynamicReshape, &["f32[6]", "s32[]"], "f32[2,3]", "error: takes 3 operands, has 2");
    let transpose = |d: &[i64]| Op::Transpose { dimensions: list(d) };
    check(transpose(&[1, 0]), &["f32[2,<=3]"], "f32[<=3,2]");
    check(transpose(&[1, 1]), &["f32[2,3]"], "error: dimensions has dimension 1 twice");
    check(transpose(&[-1, 0]), &["f32[2,3]"], "error: dimensions has dimension -1, the rank is 2");
    check(
        Op::Reverse { dimensions: list(&[0, 0]) },
        &["f32[2,3]"],
        "error: dimensions has dimension 0 twice",
    );
    check(Op::Concatenate { dimension: 0 }, &["f32[<=5]", "f32[5]"], "f32[<=10]");
    check(Op::Concatenate { dimension: 1 }, &["f32[<=5,3]", "bf16[5,2]"], "f32[<=5,5]");
    check(
        Op::Concatenate { dimension: 0 },
        &["f32[5,3]", "f32[5,2]"],
        "error: operands 0 and 1 must have the same extents but for the concatenated one, are f32[5,3] and f32[5,2]",
    );
    check(Op::Concatenate { dimension: 0 }, &[], "error: takes at least 1 operands, has 0");
    check(Op::GetDimensionSize { dimension: 1 }, &["f32[2,3]"], "s32[]");
    check(Op::SetDimensionSize { dimension: 1 }, &["f32[2,3]", "s32[]"], "f32[2,<=3]");
    check(
        Op::SetDimensionSize { dimension: 1 },
        &["f32[2,3]", "s64[]"],
        "error: operand 1 must be an s32 scalar, is s64[]",
    );
}

#[test]
fn padding_may_crop() {
    let pad = |low, high, interior| Op::Pad {
        dimensions: [PaddingDimension { low, high, interior }].into_iter().collect(),
    };
    check(pad(-1, 2, 3), &["f32[5]", "f32[]"], "f32[18]");
    check(pad(0, 0, 3), &["f32[0]", "f32[]"], "f32[0]");
    check(pad(1, 0, 3), &["f32[<=5]", "f32[]"], "f32[<=18]");
    check(pad(-3, -3, 0), &["f32[5]", "f32[]"], "error: dimension 0 of the result would be -1");
    check(pad(0, 0, -1), &["f32[5]", "f32[]"], "error: interior padding must be at least 0, is -1");
    check(
        pad(0, 0, i64::MAX),
        &["f32[5]", "f32[]"],
        "error: dimension 0 of the result would be beyond 64 bits",
    );
    check(
        pad(i64::MAX, i64::MAX, 0),
        &["f32[5]", "f32[]"],
        "error: dimension 0 of the result would be beyond 64 bits",
    );
}

#[test]
fn slicing() {
    let slice = |start, limit, stride| Op::Slice {
        dimensions: [SliceDimension { start, limit, stride }].into_iter().collect(),
    };
    check(slice(1, 10, 4), &["f32[10]"], "f32[3]");
    check(slice(0, 10, 1), &["f32[<=10]"], "f32[<=10]");
    check(slice(0, 0, 1), &["f32[10]"], "f32[0]");
    check(slice(0, i64::MAX, i64::MAX), &[&format!("f32[{}]", i64::MAX)], "f32[1]");
    check(slice(5, 11, 1), &["f32[10]"], "error: slice must be within the extent 10, is [5:11:1]");
    check(slice(5, 4, 1), &["f32[10]"], "error: slice must be within the extent 10, is [5:4:1]");
    check(slice(0, 4, 0), &["f32[10]"], "error: slice must be of positive stride, is [0:4:0]");
    let dynamic_slice = |sizes: &[i64]| Op::DynamicSlice { slice_sizes: list(sizes) };
    check(dynamic_slice(&[1, 3]), &["f32[2,3]", "s32[]", "s32[]"], "f32[1,3]");
    check(dynamic_slice(&[1, 3]), &["f32[2,3]", "s32[2]"], "f32[1,3]");
    check(
        dynamic_slice(&[1, 4]),
        &["f32[2,3]", "s32[]", "s32[]"],
        "error: dynamic_slice_sizes must be within 0..=3, is 4",
    );
    check(dynamic_slice(&[1, 3]), &["f32[2,3]", "s32[]"], "error: takes 3 operands, has 2");
    check(
        dynamic_slice(&[1, 3]),
        &["f32[2,3]", "s32[]", "s64[]"],
        "error: operands 1 and 2 must have the same element type, are s32[] and s64[]",
    );
    check(Op::DynamicUpdateSlice, &["f32[2,3]", "f32[1,1]", "s32[]", "s32[]"], "f32[2,3]");
    check(
        Op::DynamicUpdateSlice,
        &["f32[2,3]", "f32[1,4]", "s32[]", "s32[]"],
        "error: operands 0 and 1 must have the same rank, the second no larger extents, are f32[2,3] and f32[1,4]",
    );
}

#[test]
fn gather_and_scatter() {
    let rows = GatherDimensions {
        offset_dims: list(&[1]),
        collapsed_slice_dims: list(&[0]),
        start_index_map: list(&[0]),
        index_vector_dim: 1,
        slice_sizes: list(&[1, 20]),
        ..Default::default()
    };
    let gather = |g: GatherDimensions| Op::Gather(Box::new(g));
    check(gather(rows.clone()), &["f32[10,20]", "s32[5,1]"], "f32[5,20]");
    check(gather(rows.clone()), &["f32[10,20]", "s32[<=5]"], "f32[<=5,20]");
    let batched = GatherDimensions {
        offset_dims: list(&[2]),
        collapsed_slice_dims: list(&[1]),
        start_index_map: list(&[1]),
        index_vector_dim: 2,
        slice_sizes: list(&[1, 1, 20]),
        operand_batching_dims: list(&[0]),
        start_indices_batching_dims: list(&[0]),
        ..Default::default()
    };
    check(gather(batched.clone()), &["f32[5,10,20]", "s32[5,7,1]"], "f32[5,7,20]");
    check(
        gather(batched),
        &["f32[5,10,20]", "s32[4,7,1]"],
        "error: batching dimensions must be of extent 5 in both, is 4",
    );
    let wide = GatherDimensions { slice_sizes: list(&[1, 21]), ..rows.clone() };
    check(gather(wide), &["f32[10,20]", "s32[5]"], "error: slice_sizes must be within 0..=20, is 21");
    let tall = GatherDimensions { slice_sizes: list(&[2, 20]), ..rows.clone() };
    check(
        gather(tall),
        &["f32[10,20]", "s32[5]"],
        "error: slice_sizes must be at most 1 where the dimension is collapsed or batching, is 2",
    );
    check(
        gather(rows.clone()),
        &["f32[10,20]", "f32[5]"],
        "error: operand 1 must be of integral type, is f32[5]",
    );
    check(
        gather(rows),
        &["f32[10,20]", "s32[5,2]"],
        "error: start_index_map must be 2 long, as the index vector, is 1 long",
    );

    let rows = || {
        Op::Scatter(Box::new(ScatterDimensions {
            update_window_dims: list(&[1]),
            inserted_window_dims: list(&[0]),
            scatter_dims_to_operand_dims: list(&[0]),
            index_vector_dim: 1,
            ..Default::default()
        }))
    };
    let add = (&["f32[]", "f32[]"][..], "f32[]");
    check_calling(rows(), &["f32[10,20]", "s32[5,1]", "f32[5,20]"], add, "f32[10,20]");
    check_calling(rows(), &["f32[10,20]", "s32[5,1]", "f32[5,7]"], add, "f32[10,20]");
    check_calling(
        rows(),
        &["f32[10,20]", "s32[5,1]", "f32[4,20]"],
        add,
        "error: operand 2 must be of extent 5 in dimension 0, is f32[4,20]",
    );
    check_calling(
        rows(),
        &["f32[10,20]", "s32[5,1]", "f32[5,21]"],
        add,
        "error: operand 2 must be of extent 20 or less in dimension 1, is f32[5,21]",
    );
    check_calling(
        rows(),
        &["s32[10,20]", "s32[5,1]", "s32[5,20]"],
        add,
        "error: parameter 0 of computation f must be s32[], is f32[]",
    );
    let pair = (&["f32[]", "s32[]", "f32[]", "s32[]"][..], "(f32[], s32[])");
    check_calling(
        rows(),
        &["f32[10,20]", "s32[10,20]", "s32[5,1]", "f32[5,20]", "s32[5,20]"],
        pair,
        "(f32[10,20], s32[10,20])",
    );
}

#[test]
fn reductions() {
    let reduce = |d: &[i64]| Op::Reduce { dimensions: list(d) };
    let add = (&["f32[]", "f32[]"][..], "f32[]");
    check_calling(reduce(&[1]), &["f32[10,<=20,3]", "f32[]"], add, "f32[10,3]");
    check_calling(reduce(&[1]), &["bf16[10,20]", "bf16[]"], add, "f32[10]");
    check_calling(reduce(&[1, 1]), &["f32[10,20]", "f32[]"], add, "error: dimensions has dimension 1 twice");
    check_calling(
        reduce(&[3]),
        &["f32[10,20]", "f32[]"],
        add,
        "error: dimensions has dimension 3, the rank is 2",
    );
    check_calling(
        reduce(&[0]),
        &["f32[10,20]", "f32[1]"],
        add,
        "error: operand 1 must be a scalar, is f32[1]",
    );
    check_calling(reduce(&[0]), &["f32[10]"], add, "error: takes 2, 4, 6, ... operands, has 1");
    check_calling(
        reduce(&[0]),
        &["f32[10]", "f32[]"],
        (&["f32[]"], "f32[]"),
        "error: computation f takes 2 parameters, has 1",
    );
    check_calling(
        reduce(&[0]),
        &["f32[10]", "f32[]"],
        (&["f32[]", "f32[]"], "pred[]"),
        "error: the result of computation f must be f32[], is pred[]",
    );
    let arg_max = (&["f32[]", "s32[]", "f32[]", "s32[]"][..], "(f32[], s32[])");
    check_calling(
        reduce(&[0]),
        &["f32[10,20]", "s32[10,20]", "f32[]", "s32[]"],
        arg_max,
        "(f32[20], s32[20])",
    );
    check_calling(
        reduce(&[0]),
        &["f32[10,20]", "s32[20]", "f32[]", "s32[]"],
        arg_max,
        "error: operands 0 and 1 must have the same extents, are f32[10,20] and s32[20]",
    );

    let window = |size, stride, low, high| WindowDimension {
        size,
        stride,
        padding_low: low,
        padding_high: high,
        ..Default::default()
    };
    let windows =
        |w| Op::ReduceWindow(Box::new(Window { dimensions: [window(1, 1, 0, 0), w].into_iter().collect() }));
    check_calling(windows(window(3, 2, 1, 1)), &["f32[10,20]", "f32[]"], add, "f32[10,10]");
    check_calling(windows(window(30, 2, 1, 1)), &["f32[10,20]", "f32[]"], add, "f32[10,0]");
    check_calling(
        windows(window(3, 0, 1, 1)),
        &["f32[10,20]", "f32[]"],
        add,
        "error: window stride must be at least 1, is 0",
    );
    check_calling(
        windows(window(3, 1, i64::MAX, i64::MAX)),
        &["f32[10,20]", "f32[]"],
        add,
        "error: dimension 1 of the result would be beyond 64 bits",
    );

    check_calling(
        Op::Map { dimensions: list(&[0, 1]) },
        &["f32[10,20]", "f32[10,20]"],
        (&["f32[]", "f32[]"], "pred[]"),
        "pred[10,20]",
    );
    check_calling(
        Op::Map { dimensions: list(&[1]) },
        &["f32[10,20]"],
        (&["f32[]"], "f32[]"),
        "error: dimensions must be every dimension in order, 0..2, is [1]",
    );
    let sort = |dimension| Op::Sort { dimension, is_stable: true };
    let less = (&["f32[]", "f32[]", "s32[]", "s32[]"][..], "pred[]");
    check_calling(sort(0), &["f32[10,20]", "s32[10,20]"], less, "(f32[10,20], s32[10,20])");
    check_calling(
        sort(2),
        &["f32[10,20]", "s32[10,20]"],
        less,
        "error: dimensions has dimension 2, the rank is 2",
    );
    check_calling(
        sort(0),
        &["f32[10]"],
        (&["f32[]", "f32[]"], "f32[]"),
        "error: the result of computation f must be pred[], is f32[]",
    );
    let top_k = |k| Op::TopK { k, largest: true, is_stable: None };
    check(top_k(4), &["f32[2,10]"], "(f32[2,4], s32[2,4])");
    check(top_k(14), &["f32[2,10]"], "error: k must be within 0..=10, is 14");
    let scan = |carries| Op::Scan(Box::new(crate::Scan { num_carries: carries, ..Default::default() }));
    check_calling(
        scan(1),
        &["f32[10,3]", "f32[]"],
        (&["f32[3]", "f32[]"], "(f32[3], f32[])"),
        "(f32[10,3], f32[])",
    );
    check_calling(
        scan(3),
        &["f32[10,3]", "f32[]"],
        (&["f32[3]", "f32[]"], "(f32[3], f32[])"),
        "error: num_carries must be within 0..=2, is 3",
    );
}

#[test]
fn select_and_scatter() {
    let mut module = Module::new("test");
    let greater = computation(&mut module, "ge", &["f32[]", "f32[]"], "pred[]");
    let add = computation(&mut module, "add", &["f32[]", "f32[]"], "f32[]");
    let window = WindowDimension { size: 2, stride: 2, ..Default::default() };
    let op = || Op::SelectAndScatter(Box::new(Window { dimensions: [window].into_iter().collect() }));
    let operands = ["f32[20]", "f32[10]", "f32[]"];
    check_with(&module, op(), &operands, &[greater, add], None, "f32[20]");
    check_with(
        &module,
        op(),
        &operands,
        &[add, greater],
        None,
        "error: the result of computation add must be pred[], is f32[]",
    );
    check_with(
        &module,
        op(),
        &["f32[20]", "f32[11]", "f32[]"],
        &[greater, add],
        None,
        "error: operand 1 must be as large as the placements of the window, f32[10], is f32[11]",
    );
}

#[test]
fn dots() {
    let numbers = |lc: &[i64], rc: &[i64], lb: &[i64], rb: &[i64]| DotDimensions {
        lhs_contracting: list(lc),
        rhs_contracting: list(rc),
        lhs_batch: list(lb),
        rhs_batch: list(rb),
    };
    let dot = |n| Op::Dot(Box::new(Dot { dimensions: n, ..Default::default() }));
    let matrix = || dot(numbers(&[1], &[0], &[], &[]));
    check(matrix(), &["f32[2,3]", "f32[3,4]"], "f32[2,4]");
    check(matrix(), &["s8[2,3]", "s32[3,4]"], "s32[2,4]");
    check(matrix(), &["f8e4m3fn[2,3]", "f8e5m2[3,4]"], "f8e5m2[2,4]");
    check_given(matrix(), &["bf16[2,3]", "bf16[3,4]"], "f32[2,4]", "f32[2,4]");
    check_given(
        matrix(),
        &["s32[2,3]", "s32[3,4]"],
        "s8[2,4]",
        "error: the given shape must be of a type no narrower than s32, is s8[2,4]",
    );
    check(dot(numbers(&[2], &[0], &[0], &[1])), &["f32[<=5,2,3]", "f32[3,5,4]"], "f32[<=5,2,4]");
    check(
        matrix(),
        &["f32[2,3]", "f32[4,4]"],
        "error: operands 0 and 1 must have the same extents in contracting dimensions, are f32[2,3] and f32[4,4]",
    );
    check(
        dot(numbers(&[1], &[], &[], &[])),
        &["f32[2,3]", "f32[3]"],
        "error: rhs_contracting_dims must be 1 long, is 0 long",
    );
    check(
        dot(numbers(&[1], &[0], &[1], &[0])),
        &["f32[2,3]", "f32[3]"],
        "error: lhs_contracting_dims and lhs_batch_dims has dimension 1 twice",
    );

    let ragged = |n, lhs: &[i64], rhs: &[i64]| {
        Op::RaggedDot(Box::new(RaggedDot {
            dimensions: n,
            lhs_ragged_dims: list(lhs),
            rhs_group_dims: list(rhs),
            ..Default::default()
        }))
    };
    check(
        ragged(numbers(&[1], &[1], &[], &[]), &[0], &[0]),
        &["f32[11,5]", "f32[3,5,7]", "s32[3]"],
        "f32[11,7]",
    );
    check(
        ragged(numbers(&[1], &[0], &[], &[]), &[1], &[]),
        &["f32[11,5]", "f32[5,7]", "s32[3]"],
        "f32[3,11,7]",
    );
    check(
        ragged(numbers(&[2], &[1], &[0], &[0]), &[0], &[]),
        &["f32[4,11,5]", "f32[4,5,7]", "s32[3]"],
        "f32[4,11,7]",
    );
    check(
        ragged(numbers(&[1], &[1], &[], &[]), &[0], &[0]),
        &["f32[11,5]", "f32[4,5,7]", "s32[3]"],
        "error: operands 1 and 2 must have the same number of groups, are f32[4,5,7] and s32[3]",
    );
}

fn convolution(window: [WindowDimension; 2], output: [i64; 4], feature_groups: i64, batch_groups: i64) -> Op {
    let [batch, feature, first, second] = output;
    Op::Convolution(Box::new(crate::Convolution {
        window: Window { dimensions: window.into_iter().collect() },
        dimensions: ConvolutionDimensions {
            input_batch: 0,
            input_feature: 3,
            input_spatial: list(&[1, 2]),
            kernel_input_feature: 2,
            kernel_output_feature: 3,
            kernel_spatial: list(&[0, 1]),
            output_batch: batch,
            output_feature: feature,
            output_spatial: list(&[first, second]),
        },
        feature_group_count: feature_groups,
        batch_group_count: batch_groups,
        kind: Default::default(),
        precision: Default::default(),
        sparsity: [None, None],
    }))
}

#[test]
fn convolutions() {
    let plain = WindowDimension { size: 3, ..Default::default() };
    let padded = WindowDimension { stride: 2, padding_high: 1, ..plain };
    let dilated = WindowDimension { window_dilation: 2, ..padded };
    let same = [0, 3, 1, 2];
    check(convolution([padded, dilated], same, 2, 1), &["f32[1,10,10,4]", "f32[3,3,2,8]"], "f32[1,5,4,8]");
    let based = WindowDimension { base_dilation: 2, ..plain };
    check(
        convolution([based, plain], [0, 1, 2, 3], 1, 3),
        &["f32[6,10,10,4]", "f32[3,3,4,9]"],
        "f32[2,9,17,8]",
    );
    check(convolution([plain, plain], same, 1, 1), &["f32[1,2,10,4]", "f32[3,3,4,8]"], "f32[1,0,8,8]");
    check(
        convolution([plain, plain], same, 1, 1),
        &["f32[1,9,9,4]", "f32[3,3,5,8]"],
        "error: operands 0 and 1 must have the same number of features per group, are f32[1,9,9,4] and f32[3,3,5,8]",
    );
    check(
        convolution([plain, plain], same, 3, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: feature_group_count must be a divisor of the 4 input and 8 output features, is 3",
    );
    check(
        convolution([plain, plain], same, 0, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: feature_group_count must be at least 1, is 0",
    );
    check(
        convolution([plain, plain], same, 1, 1),
        &["f32[1,9,9,4]", "f32[5,3,4,8]"],
        "error: window size must be 5, as in the kernel, is 3",
    );
    check(
        convolution([plain, plain], [0, 0, 1, 2], 1, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: output dim_labels has dimension 0 twice",
    );
    let huge = WindowDimension { base_dilation: i64::MAX, ..plain };
    check(
        convolution([huge, plain], same, 1, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: dimension 1 of the result would be beyond 64 bits",
    );
}

#[test]
fn transforms_and_solvers() {
    let fft = |kind, lengths: &[i64]| Op::Fft { kind, lengths: list(lengths) };
    check(fft(FftKind::Fft, &[5]), &["c64[3,5]"], "c64[3,5]");
    check(fft(FftKind::Rfft, &[8]), &["f32[3,8]"], "c64[3,5]");
    check(fft(FftKind::Irfft, &[9]), &["c64[3,5]"], "f32[3,9]");
    check(
        fft(FftKind::Irfft, &[10]),
        &["c64[3,5]"],
        "error: operand 0 must be of last extents [6], is c64[3,5]",
    );
    check(
        fft(FftKind::Rfft, &[8]),
        &["bf16[3,8]"],
        "error: operand 0 must be of type f32 or f64, is bf16[3,8]",
    );
    check(fft(FftKind::Fft, &[1, 1, 1, 1]), &["c64[3]"], "error: fft_length must be 1 to 3 long, is 4 long");
    check(Op::Cholesky { lower: true }, &["f32[7,3,3]"], "f32[7,3,3]");
    check(
        Op::Cholesky { lower: true },
        &["f32[2,3]"],
        "error: operand 0 must be of rank 2 or more with equal last extents, is f32[2,3]",
    );
    check(
        Op::Cholesky { lower: true },
        &["s32[3,3]"],
        "error: operand 0 must be of floating-point or complex type, is s32[3,3]",
    );
    let left = TriangularSolve { left_side: true, ..Default::default() };
    check(Op::TriangularSolve(left), &["f32[3,3]", "f32[3,4]"], "f32[3,4]");
    check(
        Op::TriangularSolve(left),
        &["f32[3,3]", "f32[4,3]"],
        "error: operands 0 and 1 must have the same extent in the shared dimension, are f32[3,3] and f32[4,3]",
    );
    let norm = Op::BatchNormTraining { epsilon: 0.1, feature_index: 2 };
    check(norm, &["f32[10,20,3]", "f32[3]", "f32[3]"], "(f32[10,20,3], f32[3], f32[3])");
    let grad = Op::BatchNormGrad { epsilon: 0.1, feature_index: 2 };
    check(
        grad,
        &["f32[10,3,3]", "f32[3]", "f32[3]", "f32[3]", "f32[10,3,3]"],
        "(f32[10,3,3], f32[3], f32[3])",
    );
    let inference = Op::BatchNormInference { epsilon: 0.1, feature_index: 1 };
    check(
        inference,
        &["f32[4,3]", "f32[3]", "f32[3]", "f32[4]", "f32[3]"],
        "error: operand 3 must be a vector of 3 features, is f32[4]",
    );
}

#[test]
fn control_flow() {
    check(Op::Tuple, &["f32[2]", "(s32[], token[])"], "(f32[2], (s32[], token[]))");
    check(Op::GetTupleElement { index: 1 }, &["(f32[2], (s32[]))"], "(s32[])");
    check(Op::GetTupleElement { index: 2 }, &["(f32[2], s32[])"], "error: index must be less than 2, is 2");
    check(Op::GetTupleElement { index: 0 }, &["f32[2]"], "error: operand 0 must be a tuple, is f32[2]");
    check(Op::AfterAll, &[], "token[]");
    check(Op::AfterAll, &["token[]", "f32[]"], "error: operand 1 must be a token, is f32[]");
    check(Op::OptimizationBarrier, &["(f32[2])"], "(f32[2])");
    let call = || Op::Call { is_composite: false };
    check_calling(call(), &["f32[2]"], (&["f32[2]"], "(s32[])"), "(s32[])");
    check_calling(
        call(),
        &["f32[3]"],
        (&["f32[2]"], "(s32[])"),
        "error: parameter 0 of computation f must be f32[3], is f32[2]",
    );
    check_calling(call(), &[], (&["f32[2]"], "(s32[])"), "error: computation f takes 0 parameters, has 1");

    let mut module = Module::new("test");
    let body = computation(&mut module, "body", &["(f32[2], s32[])"], "(f32[2], s32[])");
    let condition = computation(&mut module, "condition", &["(f32[2], s32[])"], "pred[]");
    let other = computation(&mut module, "other", &["(f32[2], s32[])"], "(f32[3], s32[])");
    let init = ["(f32[2], s32[])"];
    check_with(&module, Op::While, &init, &[body, condition], None, init[0]);
    check_with(
        &module,
        Op::While,
        &init,
        &[condition, body],
        None,
        "error: the result of computation body must be pred[], is (f32[2], s32[])",
    );
    check_with(
        &module,
        Op::While,
        &init,
        &[other, condition],
        None,
        "error: the result of computation other must be (f32[2], s32[]), is (f32[3], s32[])",
    );
    check_with(
        &module,
        Op::While,
        &["f32[]"],
        &[body, condition],
        None,
        "error: parameter 0 of computation body must be f32[], is (f32[2], s32[])",
    );
    check_with(&module, Op::While, &init, &[body], None, "error: calls 2 computations, has 1");
    check_with(&module, Op::Conditional, &["pred[]", init[0], init[0]], &[body, body], None, init[0]);
    check_with(&module, Op::Conditional, &["s32[]", init[0]], &[body], None, init[0]);
    check_with(
        &module,
        Op::Conditional,
        &["pred[]", init[0]],
        &[body],
        None,
        "error: calls 2 computations, has 1",
    );
    check_with(
        &module,
        Op::Conditional,
        &["pred[]", init[0], init[0]],
        &[body, other],
        None,
        "error: the result of computation other must be (f32[2], s32[]), is (f32[3], s32[])",
    );
    check_with(
        &module,
        Op::Conditional,
        &["u32[]", init[0]],
        &[body],
        None,
        "error: operand 0 must be a pred or s32 scalar, is u32[]",
    );
    let unknown = ComputationId::new(99);
    check_with(
        &module,
        call(),
        &[],
        &[unknown],
        None,
        "error: comp99 is not a complete computation of this module",
    );
}

#[test]
fn tuples_do_not_explode() {
    let mut shape = Shape::scalar(ElementType::F32);
    let module = Module::new("test");
    let doubled = (0..64).find_map(|_| match infer_shape(&module, &Op::Tuple, &[&shape, &shape], &[]) {
        Ok(pair) => {
            shape = pair;
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(doubled, Some(InferError::TupleTooLarge));
}

#[test]
fn in_flight() {
    check(Op::CopyStart { cross_program_prefetch_index: None }, &["f32[2]"], "(f32[2], f32[2], u32[])");
    check(Op::CopyDone, &["(f32[2], f32[2], u32[])"], "f32[2]");
    check(Op::Send(Default::default()), &["f32[2]", "token[]"], "(f32[2], u32[], token[])");
    check(Op::SendDone(Default::default()), &["(f32[2], u32[], token[])"], "token[]");
    check(
        Op::Recv(Default::default()),
        &["token[]"],
        "error: cannot infer the shape of recv: its operands leave it open, so it must be given",
    );
    check_given(
        Op::Recv(Default::default()),
        &["token[]"],
        "(f32[2], u32[], token[])",
        "(f32[2], u32[], token[])",
    );
    check(Op::RecvDone(Default::default()), &["(f32[2], u32[], token[])"], "(f32[2], token[])");
    check_given(Op::Infeed(Default::default()), &["token[]"], "((f32[2]), token[])", "((f32[2]), token[])");
    check(Op::Outfeed(Default::default()), &["f32[2]", "token[]"], "token[]");
    check(
        Op::Outfeed(Default::default()),
        &["f32[2]", "f32[]"],
        "error: operand 1 must be a token, is f32[]",
    );
    let f = (&["f32[2]", "s32[]"][..], "f32[4]");
    check_calling(Op::AsyncStart(Default::default()), &["f32[2]", "s32[]"], f, "((f32[2], s32[]), f32[4])");
    check_calling(
        Op::AsyncStart(Default::default()),
        &["f32[3]", "s32[]"],
        f,
        "error: parameter 0 of computation f must be f32[3], is f32[2]",
    );
    check(Op::AsyncUpdate(Default::default()), &["((f32[2]), f32[4], u32[])"], "((f32[2]), f32[4], u32[])");
    check(Op::AsyncDone(Default::default()), &["((f32[2]), f32[4], u32[])"], "f32[4]");
    check(
        Op::AsyncDone(Default::default()),
        &["f32[4]"],
        "error: operand 0 must be a tuple of 2 or more, is f32[4]",
    );
}

#[test]
fn collectives() {
    let groups = || Collective {
        dimension: Some(0),
        replica_groups: ReplicaGroups::List(vec![vec![0, 1], vec![2, 3]]),
        ..Default::default()
    };
    let unknown = || Collective { dimension: Some(0), ..Default::default() };
    check(Op::AllGather(Box::new(groups())), &["f32[3,2]"], "f32[6,2]");
    check(Op::AllGather(Box::new(groups())), &["f32[3]", "f32[<=4]"], "(f32[6], f32[<=8])");
    check(
        Op::AllGather(Box::new(unknown())),
        &["f32[3,2]"],
        "error: cannot infer the shape of all-gather: its operands leave it open, so it must be given",
    );
    check_given(Op::AllGather(Box::new(unknown())), &["f32[3,2]"], "f32[12,2]", "f32[12,2]");
    check(Op::AllGatherStart(Box::new(groups())), &["f32[3]"], "(f32[3], f32[6])");
    check(Op::AllGatherDone(Box::new(groups())), &["(f32[3], f32[6])"], "f32[6]");
    let huge = format!("f32[{}]", i64::MAX);
    check(
        Op::AllGather(Box::new(groups())),
        &[&huge],
        "error: dimension 0 of the result would be beyond 64 bits",
    );
    let add = (&["f32[]", "f32[]"][..], "f32[]");
    check_calling(Op::AllReduce(Box::new(groups())), &["f32[3]", "f32[4]"], add, "(f32[3], f32[4])");
    check_calling(Op::ReduceScatter(Box::new(groups())), &["f32[4]"], add, "f32[2]");
    check_calling(
        Op::ReduceScatter(Box::new(groups())),
        &["f32[5]"],
        add,
        "error: operand 0 must be of an extent divisible by 2 in dimension 0, is f32[5]",
    );
    check_calling(
        Op::AllReduce(Box::new(groups())),
        &["f32[3]"],
        (&["f32[]"], "f32[]"),
        "error: computation f takes 2 parameters, has 1",
    );
    check(Op::AllToAll(Box::new(groups())), &["f32[4]"], "f32[4]");
    check(Op::AllToAll(Box::new(Collective::default())), &["f32[4]", "f32[4]"], "(f32[4], f32[4])");
    check(
        Op::AllToAll(Box::new(Collective::default())),
        &["f32[4]", "f32[5]"],
        "error: operands 0 and 1 must have the same shape, are f32[4] and f32[5]",
    );
    let offsets = "s32[2]";
    check(
        Op::RaggedAllToAll(Box::new(groups())),
        &["f32[4]", "f32[9]", offsets, offsets, offsets, offsets],
        "f32[9]",
    );
    check(Op::CollectivePermute(Box::new(groups())), &["f32[4]"], "f32[4]");
    check_given(
        Op::CollectivePermuteStart(Box::new(groups())),
        &["f32[4]"],
        "(f32[4], f32[4], u32[], u32[])",
        "(f32[4], f32[4], u32[], u32[])",
    );
    let in_place = Collective { slice_sizes: vec![list(&[1])], ..Default::default() };
    check(
        Op::CollectivePermute(Box::new(in_place.clone())),
        &["f32[4]", "f32[9]", "(s32[])", "(s32[])"],
        "f32[9]",
    );
    check(Op::CollectivePermute(Box::new(in_place)), &["f32[4]"], "error: takes 4 operands, has 1");
}

#[test]
fn declared_in_place_operands_must_fit() {
    let alias = |operand, index: &[u32]| crate::CustomCall {
        output_operand_aliasing: vec![crate::OutputOperandAlias {
            output_index: crate::ShapeIndex::root(),
            operand,
            operand_index: index.iter().copied().into(),
        }],
        ..Default::default()
    };
    check_given(Op::CustomCall(Box::new(alias(0, &[1]))), &["(s32[], f32[2])"], "f32[2]", "f32[2]");
    check_given(
        Op::CustomCall(Box::new(alias(0, &[0]))),
        &["(s32[], f32[2])"],
        "f32[2]",
        "error: output_to_operand_aliasing must be of one shape, f32[2] as output {}, is s32[]",
    );
    check_given(
        Op::CustomCall(Box::new(alias(1, &[]))),
        &["f32[2]"],
        "f32[2]",
        "error: output_to_operand_aliasing must be an operand and an index into it, is (1, {})",
    );
}
