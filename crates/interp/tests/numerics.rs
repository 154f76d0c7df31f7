//! The numbers JAX computes: whole programs, with their inputs and outputs.

use std::fs::File;
use std::path::PathBuf;

use memplan_interp::{Options, evaluate, npz};
use memplan_ir::{ElementType, Literal};

#[test]
fn programs_give_the_numbers_of_jax() {
    let Some(cases) = cases() else {
        eprintln!("skipped: no corpus");
        return;
    };
    for case in cases {
        let name = case.file_name().expect("a case has a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(case.join("module.hlo.txt")).expect("a case has a module");
        let module = memplan_hlo::parse(&text).expect("the module is valid");
        let inputs =
            npz::read_inputs(&module, File::open(case.join("inputs.npz")).expect("a case has inputs"));
        let result = evaluate(&module, &inputs.expect("the inputs fit"), &Options::default());
        let result = result.unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected =
            npz::read_outputs(&result, File::open(case.join("outputs.npz")).expect("a case has outputs"));
        compare(&name, &result, &expected.expect("the outputs fit"));
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

fn cases() -> Option<Vec<PathBuf>> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared");
    let shared = std::env::var("MEMPLAN_SHARED").unwrap_or_else(|_| default.to_string());
    let mut cases: Vec<PathBuf> = std::fs::read_dir(PathBuf::from(shared).join("numerics"))
        .ok()?
        .filter_map(|e| Some(e.ok()?.path()))
        .collect();
    cases.sort();
    Some(cases)
}
