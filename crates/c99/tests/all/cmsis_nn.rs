//! Calls of CMSIS-NN: which layers become calls, and that they compute what the evaluator does. A header of this folder
//! stands in for the library, which `scripts/cmsis_nn.py` uses itself.

use memplan_ir::{ElementType, Literal, Module};
use memplan_testkit::random_inputs;

use crate::support::{Written, compare, compilers, expected, run, written_with_cmsis_nn};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/hlo/cmsis_nn");

fn case(name: &str) -> String {
    std::fs::read_to_string(format!("{CASES}/{name}.hlo")).expect("the repository has the case")
}

fn compiled(text: &str, name: &str) -> Written {
    let module = memplan_hlo::parse(text).expect("cases are valid");
    let written = written_with_cmsis_nn(module, "mcu-cortex-m7", name).expect("it can be compiled");
    written.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Inputs with multipliers and shifts as the library asks for them: from half of 2^31 up, and of both signs.
fn inputs(module: &Module) -> Vec<Literal> {
    let mut inputs = random_inputs(module, 7);
    for (k, &parameter) in module.entry_computation().parameters.iter().enumerate() {
        let name = &module.instructions[parameter].name;
        let shape = module.shape(parameter).as_array().expect("parameters are arrays");
        let n = shape.element_count().expect("extents are static") as i32;
        let numbers: Vec<i32> = match () {
            () if name.contains("multiplier") => (0..n).map(|i| (1 << 30) + 87_654_321 * (i % 12)).collect(),
            () if name.contains("shift") => (0..n).map(|i| i % 5 - 3).collect(),
            () => continue,
        };
        let bytes: Vec<u8> = numbers.into_iter().flat_map(i32::to_le_bytes).collect();
        inputs[k] = Literal::array(ElementType::S32, shape.dimensions.iter().copied(), bytes);
    }
    inputs
}

fn check(name: &str, definition: &str) {
    let mut program = compiled(&case(name), name);
    let functions = program.sources.c.split_once("#include \"arm_nnfunctions.h\"").expect("it has calls").1;
    insta::with_settings!({
        snapshot_path => "../../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(format!("cmsis_nn@{name}"), functions);
    });
    program.sources.c.insert_str(0, definition);
    let inputs = inputs(&program.module);
    let expected = expected(&program, &inputs).expect("it can be expected");
    for compiler in compilers() {
        let found = run(compiler, &[&program], std::slice::from_ref(&inputs)).unwrap();
        compare(&found[0], &expected, 0.0).unwrap();
    }
}

#[test]
fn sums_that_are_rounded_twice() {
    check("rounded_twice", "");
}

#[test]
fn sums_that_are_rounded_once() {
    check("layer", "#define CMSIS_NN_USE_SINGLE_ROUNDING\n");
}

/// A layer that differs from the kernel in one point is a nest of loops.
#[test]
fn what_is_almost_a_kernel_is_no_call() {
    let text = case("layer");
    let calls = |text: &str| compiled(text, "net").sources.c.matches("arm_convolve_wrapper_s8(").count();
    assert_eq!(calls(&text), 1);
    for (exact, other) in [
        ("dim_labels=b01f_o01i->b01f", "dim_labels=b01f_01io->b01f"),
        ("thirty = s32[4] broadcast(c30)", "thirty = s32[4] broadcast(c31)"),
        ("s64[1,4,4,4] broadcast(m64), dimensions={3}", "s64[1,4,4,4] broadcast(m64), dimensions={2}"),
        ("s64[1,4,4,4] add(wide, nudges)", "s64[1,4,4,4] subtract(wide, nudges)"),
        ("limit = s64[] constant(127)", "limit = s64[] constant(255)"),
    ] {
        assert!(text.contains(exact), "{exact}");
        assert_eq!(calls(&text.replace(exact, other)), 0, "{other}");
    }
}
