//! Programs that cannot be evaluated are errors that say why.

use memplan_interp::{Error, Options, evaluate};
use memplan_ir::{ElementType, Literal, Module};

/// Evaluates a module whose parameters are arrays of zeros.
fn run(text: &str) -> Result<Literal, Error> {
    let module = memplan_hlo::parse(text).expect("the text is a module");
    let inputs: Vec<Literal> =
        module.entry_computation().parameters.iter().map(|&p| zeros(&module, p)).collect();
    evaluate(&module, &inputs, &Options::default())
}

fn zeros(module: &Module, parameter: memplan_ir::InstructionId) -> Literal {
    let shape = module.shape(parameter).as_array().expect("parameters are arrays");
    let size = shape.element_count().expect("extents are known") * u64::from(shape.element_type.byte_width());
    Literal::array(shape.element_type, shape.dimensions.iter().copied(), vec![0; size as usize])
}

#[track_caller]
fn check(text: &str, message: &str) {
    let error = run(text).expect_err("it cannot be evaluated").to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn scales_are_for_equal_blocks() {
    let text = |scales: &str| {
        format!(
            "HloModule m\n\nENTRY e {{\n  a = f32[2,5] parameter(0)\n  b = f32[5,2] parameter(1)\n  s = {scales} parameter(2)\n  \
             t = f32[] parameter(3)\n  ROOT r = f32[2,2] scaled-dot(a, b, s, t), lhs_contracting_dims={{1}}, \
             rhs_contracting_dims={{0}}\n}}\n"
        )
    };
    check(&text("f32[2,2]"), "equal blocks");
    check(&text("f32[2]"), "equal blocks");
    assert!(run(&text("f32[2,5]")).is_ok());
    assert!(run(&text("f32[]")).is_ok());
}

#[test]
fn extents_lie_within_their_bounds() {
    let text = "HloModule m\n\nENTRY e {\n  p = f32[5] parameter(0)\n  n = s32[] constant(7)\n  \
                ROOT d = f32[<=5] set-dimension-size(p, n), dimensions={0}\n}\n";
    check(text, "7 is not an extent within 0..=5");
}

#[test]
fn calls_about_extents_have_their_shapes() {
    for call in [
        "ROOT r = f32[<=9] custom-call(p, n), custom_call_target=\"SliceToDynamic\"",
        "ROOT r = f32[<=5] custom-call(p), custom_call_target=\"SliceToDynamic\"",
        "ROOT r = f32[<=5] custom-call(), custom_call_target=\"SliceToDynamic\"",
        "d = f32[<=5] set-dimension-size(p, n), dimensions={0}\n  \
         ROOT r = (f32[5]) custom-call(d), custom_call_target=\"PadToStatic\"",
    ] {
        let text = format!(
            "HloModule m\n\nENTRY e {{\n  p = f32[5] parameter(0)\n  n = s32[] constant(3)\n  {call}\n}}\n"
        );
        check(&text, "an array and its extents");
    }
}

#[test]
fn calls_to_lapack_have_their_shapes() {
    for call in [
        "(f32[3,3], s32[2], s32[]) custom-call(p), custom_call_target=\"lapack_sgetrf_ffi\"",
        "(f32[3,3], s32[]) custom-call(p, p), custom_call_target=\"lapack_spotrf_ffi\"",
        "f32[3,4] custom-call(p, p), custom_call_target=\"lapack_strsm_ffi\"",
    ] {
        let text = format!("HloModule m\n\nENTRY e {{\n  p = f32[3,3] parameter(0)\n  ROOT r = {call}\n}}\n");
        check(&text, "do not fit together");
    }
}

#[test]
fn a_dynamic_result_has_its_extents() {
    let text = "HloModule m\n\nENTRY e {\n  p = f32[5] parameter(0)\n  n = s32[] constant(2)\n  \
                ROOT d = f32[<=5] set-dimension-size(p, n), dimensions={0}\n}\n";
    let found = run(text).expect("it is evaluated");
    assert_eq!(found, Literal::array(ElementType::F32, [2], vec![0; 8]));
}

#[test]
fn calls_to_topk_have_their_shapes() {
    for call in [
        "f32[3] custom-call(), custom_call_target=\"TopK\"",
        "f32[3] custom-call(p), custom_call_target=\"TopK\"",
        "(f32[3,9], s32[3,9]) custom-call(p), custom_call_target=\"TopK\"",
        "(f32[2], s32[2]) custom-call(p), custom_call_target=\"TopK\"",
    ] {
        let text = format!("HloModule m\n\nENTRY e {{\n  p = f32[3,3] parameter(0)\n  ROOT r = {call}\n}}\n");
        check(&text, "do not fit together");
    }
}

#[test]
fn programs_to_be_partitioned_are_not_evaluated() {
    let text = |shape: &str, operands: &str, target: &str| {
        format!(
            "HloModule m\n\nENTRY e {{\n  p = f32[4] parameter(0)\n  \
             ROOT r = {shape} custom-call({operands}), custom_call_target=\"{target}\"\n}}\n"
        )
    };
    for target in ["SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape", "Sharding"] {
        for (shape, operands) in
            [("f32[2]", "p"), ("f32[8]", "p"), ("f32[4]", ""), ("(f32[4], f32[2])", "p, p")]
        {
            check(&text(shape, operands, target), "the program has yet to be partitioned");
        }
        assert!(run(&text("f32[4]", "p", target)).is_ok());
        assert!(run(&text("(f32[4], f32[4])", "p, p", target)).is_ok());
    }
}

#[test]
fn single_and_double_precision_do_not_mix() {
    let check = |result: &str, operation: &str| {
        let text = format!(
            "HloModule m\n\nless {{\n  x = f32[] parameter(0)\n  y = f64[] parameter(1)\n  \
             ROOT z = f64[] add(x, y)\n}}\n\nENTRY e {{\n  a = f32[8] parameter(0)\n  b = f64[8] parameter(1)\n  \
             i = s32[] parameter(2)\n  c = f64[] constant(1)\n  p = pred[] parameter(3)\n  \
             ROOT r = {result} {operation}\n}}\n"
        );
        check(&text, "numbers are of f32 and f64");
    };
    check("f64[8]", "add(a, b)");
    check("pred[8]", "compare(a, b), direction=LT");
    check("f64[8]", "select(p, a, b)");
    check("f32[8]", "dynamic-update-slice(a, b, i)");
    check("f64[16]", "concatenate(a, b), dimensions={0}");
    check("f64[10]", "pad(a, c), padding=1_1");
    check("f64[8]", "multiply(a, a)");
    check("f64[8]", "sine(a)");
    check("f64[2,4]", "reshape(a)");
    check("f64[]", "reduce(a, c), dimensions={0}, to_apply=less");
}

#[test]
fn dimensions_without_a_bound_have_no_number_of_elements() {
    let text = "HloModule m\n\nENTRY e {\n  a = f32[4,1] parameter(0)\n  b = f32[4,?] broadcast(a), dimensions={0,1}\n  \
                ROOT r = f32[4,?] add(b, b)\n}\n";
    check(text, "b (broadcast) cannot be evaluated: a dimension has no bound");
    let module = memplan_hlo::parse(text).expect("the text is a module");
    assert!(memplan_interp::scratch(&module).values().all(|bytes| bytes.0 == 0));
}
