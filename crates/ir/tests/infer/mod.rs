//! One table of inputs and results per group of operations. Shapes and messages are HLO text without layouts; the
//! expected values are from XLA's parser, which infers shapes that its text omits.

mod calling;

use memplan_ir::*;

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
        return (Shape::tuple(elements), &rest[1..]);
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

/// A shape as [`parse`] reads it.
fn brief(shape: &Shape) -> String {
    match shape {
        Shape::Array(array) => {
            let extents = array.dimensions.iter().enumerate().map(|(d, &extent)| match extent {
                ArrayShape::UNBOUNDED => "?".into(),
                _ if array.dynamic.get(d) == Some(&true) => format!("<={extent}"),
                _ => extent.to_string(),
            });
            format!("{}[{}]", array.element_type, extents.collect::<Vec<_>>().join(","))
        }
        Shape::Tuple(elements) => {
            format!("({})", elements.iter().map(brief).collect::<Vec<_>>().join(", "))
        }
        Shape::Token => "token[]".into(),
        other => panic!("no operation here results in {other:?}"),
    }
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
    let compare = Op::Compare { direction: ComparisonDirection::Lt, comparison_type: None };
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
    check(Op::Constant(Literal::Tuple(vec![Literal::f32(1.0), Literal::Token])), &[], "(f32[], token[])");
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
        Op::RngBitGenerator { algorithm: RngAlgorithm::RngPhilox },
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
