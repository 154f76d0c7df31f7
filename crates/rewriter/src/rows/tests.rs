//! For each operation: computing a block of result rows from the reported operand blocks gives the same rows.

use memplan_interp::{Options, evaluate};
use memplan_ir::{ArrayLiteral, Literal, LiteralData, Module, verify};
use memplan_testkit::{assert_close, random_inputs};

use super::*;

/// Operations, and the dimensions of their results that are rows. Parameters are `x`, `y` and `z`.
const CASES: &[(&str, &str, &[usize])] = &[
    ("x = f32[4,6] parameter(0)", "f32[4,6] negate(x)", &[0, 1]),
    ("x = f32[4,6] parameter(0)  y = f32[4,6] parameter(1)", "f32[4,6] add(x, y)", &[0, 1]),
    ("x = pred[] parameter(0)  y = f32[4,6] parameter(1)", "f32[4,6] select(x, y, y)", &[0, 1]),
    ("x = f32[4,6] parameter(0)", "f32[4,6] map(x), dimensions={0,1}, to_apply=twice", &[0, 1]),
    ("x = f32[4,6] parameter(0)", "s32[4,6] bitcast-convert(x)", &[0, 1]),
    ("x = f32[4,6] parameter(0)", "u16[4,6,2] bitcast-convert(x)", &[0, 1]),
    ("x = f32[4,6] parameter(0)", "f32[6,2,4] broadcast(x), dimensions={2,0}", &[0, 1, 2]),
    ("x = f32[4,6] parameter(0)", "f32[2,2,6] reshape(x)", &[0, 2]),
    ("x = f32[4,6] parameter(0)", "f32[1,4,1,6] reshape(x)", &[1, 3]),
    ("x = f32[4,6] parameter(0)", "f32[6,4] transpose(x), dimensions={1,0}", &[0, 1]),
    ("x = f32[4,6] parameter(0)", "f32[4,6] reverse(x), dimensions={1}", &[0]),
    ("x = f32[4,6] parameter(0)", "f32[4,3] slice(x), slice={[0:4],[1:6:2]}", &[0]),
    ("x = f32[4,6] parameter(0)", "f32[4,8] pad(x, zero), padding=0_0x1_1", &[0]),
    ("x = f32[4,6] parameter(0)", "f32[4,11] pad(x, zero), padding=0_0x0_0_1", &[0]),
    (
        "x = f32[4,6] parameter(0)  y = f32[4,2] parameter(1)",
        "f32[4,8] concatenate(x, y), dimensions={1}",
        &[0],
    ),
    (
        "x = f32[4,6] parameter(0)  y = s32[] parameter(1)",
        "f32[4,3] dynamic-slice(x, y, y), dynamic_slice_sizes={4,3}",
        &[0],
    ),
    (
        "x = f32[4,6] parameter(0)  y = f32[4,2] parameter(1)  z = s32[] parameter(2)",
        "f32[4,6] dynamic-update-slice(x, y, z, z)",
        &[0],
    ),
    ("x = f32[4,6,2] parameter(0)", "f32[4,2] reduce(x, zero), dimensions={1}, to_apply=add", &[0, 1]),
    ("x = f32[4,6] parameter(0)", "f32[4,5] reduce-window(x, zero), window={size=1x2}, to_apply=add", &[0]),
    (
        "x = f32[4,6] parameter(0)  y = f32[4,3] parameter(1)",
        "f32[4,6] select-and-scatter(x, y, zero), window={size=1x2 stride=1x2}, select=ge, scatter=add",
        &[0],
    ),
    ("x = f32[4,6] parameter(0)", "f32[4,6] sort(x), dimensions={1}, to_apply=lt", &[0]),
    ("x = f32[4,6] parameter(0)", "(f32[4,2], s32[4,2]) topk(x), k=2, largest=true", &[0]),
    (
        "x = f32[4,2,3,3] parameter(0)",
        "(f32[4,2,3,3]{2,3,1,0}, s32[4,2,3], s32[4,2]) custom-call(x), custom_call_target=\"lapack_sgetrf_ffi\", \
         operand_layout_constraints={f32[4,2,3,3]{2,3,1,0}}",
        &[0, 1],
    ),
    (
        "x = f32[4,5,3] parameter(0)  y = f32[4,3] parameter(1)",
        "f32[4,5,3] custom-call(x, y), custom_call_target=\"lapack_sorgqr_ffi\"",
        &[0],
    ),
    (
        "x = f32[4,6,3] parameter(0)  y = f32[4,3,5] parameter(1)",
        "f32[4,6,5] dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
        &[0, 1, 2],
    ),
    (
        "x = f32[4,6,2] parameter(0)  y = f32[3,2,5] parameter(1)",
        "f32[4,6,5] convolution(x, y), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
        &[0],
    ),
    (
        "x = f32[6,4] parameter(0)  y = s32[3,1] parameter(1)",
        "f32[3,4] gather(x, y), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
        &[0, 1],
    ),
    (
        "x = f32[6,4] parameter(0)  y = s32[3,1] parameter(1)  z = f32[3,4] parameter(2)",
        "f32[6,4] scatter(x, y, z), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
        &[1],
    ),
    ("x = c64[4,8] parameter(0)", "c64[4,8] fft(x), fft_type=FFT, fft_length={8}", &[0]),
    ("x = f32[4,3,3] parameter(0)", "f32[4,3,3] cholesky(x), lower=true", &[0]),
    (
        "x = f32[4,3,3] parameter(0)  y = f32[4,3,2] parameter(1)",
        "f32[4,3,2] triangular-solve(x, y), left_side=true, lower=true, unit_diagonal=true, transpose_a=NO_TRANSPOSE",
        &[0],
    ),
];

const CALLED: &str = "
twice { a = f32[] parameter(0)  ROOT t = f32[] add(a, a) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ge { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = pred[] compare(a, b), direction=GE }
lt { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = pred[] compare(a, b), direction=LT }
";

#[test]
fn rows_of_results_come_from_rows_of_operands() {
    for &(parameters, operation, rows) in CASES {
        let text = format!(
            "HloModule m\n{CALLED}\nENTRY main {{ {parameters}  zero = f32[] constant(0)  ROOT r = {operation} }}"
        );
        let module = memplan_hlo::parse(&text).unwrap_or_else(|error| panic!("{operation}: {error}"));
        verify(&module).unwrap_or_else(|errors| panic!("{operation}: {errors}"));
        let root = module.entry_computation().root;
        let result = module.shape(root).first_array().expect("each result has an array");
        let inputs = random_inputs(&module, 1);
        let whole = evaluate(&module, &inputs, &Options::default()).unwrap();
        let mut found = Vec::new();
        for dimension in 0..result.rank() {
            let n = result.dimensions[dimension];
            for unit in (1..n).filter(|unit| n % unit == 0) {
                let rows = Rows { dimension, unit };
                let Some(treatment) = by_result(&module, root, n / unit, rows) else { continue };
                found.extend((unit == 1).then_some(dimension));
                for block in 0..n / unit {
                    let part = on_one_block(&module, &inputs, n / unit, block, &treatment);
                    assert_close(operation, &part, &block_of_literal(&whole, rows, block), 1e-6);
                }
            }
        }
        assert_eq!(found, rows, "{operation}");
    }
}

/// The result of an operation on one block of its operands.
fn on_one_block(module: &Module, inputs: &[Literal], n: i64, block: i64, treatment: &Treatment) -> Literal {
    let mut cut = module.clone();
    let root = module.entry_computation().root;
    let rows = treatment.rows().expect("it has rows");
    cut.set_shape(root, block_of(module.shape(root), rows));
    cut.instructions[root].op = on_block(&module.instructions[root].op, treatment, rows.unit);
    let mut given = inputs.to_vec();
    for (number, &operand) in module.instructions[root].operands.iter().enumerate() {
        let (Some(rows), Op::Parameter { number }) =
            (treatment.operands[number], &module.instructions[operand].op)
        else {
            continue;
        };
        assert_eq!(module.shape(operand).as_array().unwrap().dimensions[rows.dimension], n * rows.unit);
        cut.set_shape(operand, block_of(module.shape(operand), rows));
        given[*number as usize] = block_of_literal(&inputs[*number as usize], rows, block);
    }
    verify(&cut).unwrap_or_else(|errors| panic!("{}: {errors}", memplan_hlo::print(&cut)));
    evaluate(&cut, &given, &Options::default()).unwrap()
}

fn block_of_literal(literal: &Literal, rows: Rows, block: i64) -> Literal {
    match literal {
        Literal::Tuple(elements) => {
            Literal::Tuple(elements.iter().map(|element| block_of_literal(element, rows, block)).collect())
        }
        Literal::Array(array) => Literal::Array(block_of_array(array, rows, block)),
        Literal::Token => Literal::Token,
    }
}

fn block_of_array(array: &ArrayLiteral, rows: Rows, block: i64) -> ArrayLiteral {
    let LiteralData::Bytes(data) = &array.data else { panic!("evaluated arrays have data") };
    let behind: i64 = array.dimensions[rows.dimension + 1..].iter().product();
    let row = (rows.unit * behind) as usize * array.element_type.byte_width() as usize;
    let stride =
        (array.dimensions[rows.dimension] * behind) as usize * array.element_type.byte_width() as usize;
    let parts = data.chunks(stride).flat_map(|chunk| &chunk[block as usize * row..][..row]);
    let mut cut = array.clone();
    cut.data = LiteralData::Bytes(parts.copied().collect());
    cut.dimensions[rows.dimension] = rows.unit;
    cut
}
