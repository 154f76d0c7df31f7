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

/// `ormqr` multiplies by the matrix that `orgqr` makes of the same reflections.
#[test]
fn multiplying_by_reflections_needs_no_matrix_of_them() {
    for (left, transpose, shape, dot) in [
        (true, false, "[4,2]", "dot(q, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
        (true, true, "[4,2]", "dot(adjoint, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
        (false, false, "[2,4]", "dot(c, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
        (false, true, "[2,4]", "dot(c, adjoint), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    ] {
        let text = format!(
            "HloModule m

largest {{
  x = f64[] parameter(0)
  y = f64[] parameter(1)
  ROOT m = f64[] maximum(x, y)
}}

ENTRY e {{
  i = f64[4,4] iota(), iota_dimension=0
  j = f64[4,4] iota(), iota_dimension=1
  ij = f64[4,4] multiply(i, j)
  real = f64[4,4] cosine(ij)
  imaginary = f64[4,4] sine(i)
  a = c128[4,4] complex(real, imaginary)
  factors = (c128[4,4], c128[4]) custom-call(a), custom_call_target=\"lapack_zgeqrf_ffi\"
  r = c128[4,4] get-tuple-element(factors), index=0
  taus = c128[4] get-tuple-element(factors), index=1
  q = c128[4,4] custom-call(r, taus), custom_call_target=\"lapack_zungqr_ffi\"
  re = f64[4,4] real(q)
  im = f64[4,4] imag(q)
  minus = f64[4,4] negate(im)
  conjugate = c128[4,4] complex(re, minus)
  adjoint = c128[4,4] transpose(conjugate), dimensions={{1,0}}
  n = f64{shape} iota(), iota_dimension=0
  k = f64{shape} iota(), iota_dimension=1
  c = c128{shape} complex(n, k)
  found = c128{shape} custom-call(r, taus, c), custom_call_target=\"lapack_zunmqr_ffi\", backend_config={{left = {left}, transpose = {transpose}}}
  expected = c128{shape} {dot}
  difference = c128{shape} subtract(found, expected)
  distance = f64{shape} abs(difference)
  zero = f64[] constant(0)
  ROOT worst = f64[] reduce(distance, zero), dimensions={{0,1}}, to_apply=largest
}}
"
        );
        let module = memplan_hlo::parse(&text).expect("the module is valid");
        let found = evaluate(&module, &[], &Options::default()).expect("the targets are built in");
        let bytes = found.as_array().expect("a scalar").bytes()[..].try_into().expect("eight bytes");
        assert!(f64::from_le_bytes(bytes) < 1e-12, "left = {left}, transpose = {transpose}: {found:?}");
    }
}
