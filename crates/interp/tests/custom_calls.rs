//! Custom calls to functions of the embedder.

use memplan_interp::{Error, Options, evaluate};
use memplan_ir::{CustomCall, Literal, Module};

fn module() -> Module {
    let text = "HloModule m\n\nENTRY e {\n  p = s32[] parameter(0)\n  \
                ROOT r = s32[] custom-call(p), custom_call_target=\"successor\"\n}\n";
    memplan_hlo::parse(text).expect("the module is valid")
}

fn successor(_: &CustomCall, operands: &[Literal]) -> Result<Literal, String> {
    let bytes = operands[0].as_array().ok_or("an array is expected")?.bytes();
    let value = i32::from_le_bytes(bytes[..].try_into().map_err(|_| "a scalar is expected")?);
    value.checked_add(1).map(Literal::s32).ok_or_else(|| format!("{value} has no successor"))
}

#[test]
fn a_registered_function_is_called() {
    let mut options = Options::default();
    options.custom_calls.register("successor", successor);
    let found = evaluate(&module(), &[Literal::s32(4)], &options).expect("the target is registered");
    assert_eq!(found, Literal::s32(5));
}

#[test]
fn an_unknown_target_is_named() {
    let error =
        evaluate(&module(), &[Literal::s32(4)], &Options::default()).expect_err("nothing is registered");
    assert_eq!(error.to_string(), "r calls `successor`, which is not in the registry of custom calls");
}

#[test]
fn a_failure_is_passed_on() {
    let mut options = Options::default();
    options.custom_calls.register("successor", successor);
    let error = evaluate(&module(), &[Literal::s32(i32::MAX)], &options).expect_err("it overflows");
    assert_eq!(error.to_string(), "r calls `successor`, which fails: 2147483647 has no successor");
}

#[test]
fn a_result_of_another_shape_is_an_error() {
    let mut options = Options::default();
    options.custom_calls.register("successor", |_, _| Ok(Literal::f32(1.0)));
    let found = evaluate(&module(), &[Literal::s32(4)], &options);
    assert!(matches!(found, Err(Error::CustomCall { .. })), "{found:?}");
}

#[test]
fn an_annotation_may_change_the_layout() {
    let text = "HloModule m, is_scheduled=true\n\nENTRY e {\n  p = s32[2,2]{0,1} parameter(0)\n  \
                ROOT r = s32[2,2]{1,0} custom-call(p), custom_call_target=\"Sharding\"\n}\n";
    let module = memplan_hlo::parse(text).expect("the module is valid");
    let given = "HloModule m\n\nENTRY e {\n  ROOT c = s32[2,2] constant({{1, 2}, {3, 4}})\n}\n";
    let given = memplan_hlo::parse(given).expect("the module is valid");
    let given = evaluate(&given, &[], &Options::default()).expect("a constant");
    let found =
        evaluate(&module, std::slice::from_ref(&given), &Options::default()).expect("the target is built in");
    assert_eq!(found, given);
}
