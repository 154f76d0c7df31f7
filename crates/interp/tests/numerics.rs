//! The numbers JAX computes: whole programs, with their inputs and outputs.

use memplan_interp::{Options, evaluate, npz};
use memplan_ir::{ElementType, Literal};
use memplan_testkit::numerics;

#[test]
fn programs_give_the_numbers_of_jax() {
    for case in numerics() {
        let module = memplan_hlo::parse(&case.text).expect("the module is valid");
        let inputs = npz::read_inputs(&module, case.inputs()).expect("the inputs fit");
        let result = evaluate(&module, &inputs, &Options::default());
        let result = result.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let expected = npz::read_outputs(&result, case.outputs()).expect("the outputs fit");
        compare(&case.name, &result, &expected);
    }
}

/// Integers agree exactly, floats within 2e-5 of the array's largest magnitude.
fn compare(name: &str, found: &Literal, expected: &Literal) {
    match (found, expected) {
        (Literal::Tuple(found), Literal::Tuple(expected)) => {
            assert_eq!(found.len(), expected.len(), "{name}");
            for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
                compare(&format!("{name} o{k}"), found, expected);
            }
        }
        (Literal::Array(found), Literal::Array(expected)) if found.element_type == ElementType::F32 => {
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
            };
            let (found, expected) = (floats(&found.bytes()), floats(&expected.bytes()));
            let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
            let worst = found.iter().zip(&expected).fold(0f32, |m, (x, y)| m.max((x - y).abs()));
            assert!(worst <= 2e-5 * largest || worst == 0.0, "{name}: off by {worst} of {largest}");
        }
        _ => assert!(found == expected, "{name}: {found:?} instead of {expected:?}"),
    }
}
