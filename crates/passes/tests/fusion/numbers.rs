//! Whether a module computes what it should: on random inputs, or on those of which JAX's results are known.

use memplan_interp::{Options, evaluate};
use memplan_ir::{ArrayLiteral, ArrayShape, ElementType, Literal, Module, Shape};

/// Asserts that two modules give the same results on the same inputs.
#[track_caller]
pub(crate) fn check_same(before: &Module, after: &Module) {
    for seed in 1..=3 {
        let inputs = random_inputs(before, seed);
        check_close(&before.name, &results(after, &inputs), &results(before, &inputs));
    }
}

/// One literal for each parameter.
pub(crate) fn random_inputs(module: &Module, seed: u64) -> Vec<Literal> {
    let mut state = seed;
    let parameters = &module.entry_computation().parameters;
    parameters.iter().map(|&id| random(module.shape(id), &mut state)).collect()
}

#[track_caller]
pub(crate) fn results(module: &Module, inputs: &[Literal]) -> Literal {
    evaluate(module, inputs, &Options::default()).unwrap_or_else(|error| panic!("{}: {error}", module.name))
}

/// Integers agree exactly, floats within 2e-5 of the array's largest magnitude.
#[track_caller]
pub(crate) fn check_close(name: &str, found: &Literal, expected: &Literal) {
    match (found, expected) {
        (Literal::Tuple(found), Literal::Tuple(expected)) => {
            assert_eq!(found.len(), expected.len(), "{name}");
            found.iter().zip(expected).for_each(|(found, expected)| check_close(name, found, expected));
        }
        (Literal::Array(found), Literal::Array(expected)) if found.element_type.is_floating() => {
            let (found, expected) = (floats(found), floats(expected));
            let largest = expected.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
            for (i, (x, y)) in found.iter().zip(&expected).enumerate() {
                let is_same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 2e-5 * largest;
                assert!(is_same, "{name}: element {i} is {x} instead of {y}, of {largest}");
            }
        }
        _ => assert!(found == expected, "{name}: {found:?} instead of {expected:?}"),
    }
}

fn floats(literal: &ArrayLiteral) -> Vec<f64> {
    let width = literal.element_type.byte_width() as usize;
    let value = |bytes: &[u8]| {
        let mut bits = [0; 8];
        bits[..width].copy_from_slice(bytes);
        literal.element_type.decode_float(u64::from_le_bytes(bits))
    };
    literal.bytes().chunks(width).map(value).collect()
}

fn random(shape: &Shape, state: &mut u64) -> Literal {
    match shape {
        Shape::Tuple(elements) => {
            Literal::Tuple(elements.iter().map(|element| random(element, state)).collect())
        }
        Shape::Array(array) => random_array(array, state),
        _ => Literal::Token,
    }
}

/// Small integers, and floats around zero that few bits suffice for.
fn random_array(array: &ArrayShape, state: &mut u64) -> Literal {
    let element_type = array.element_type;
    let width = element_type.byte_width() as usize;
    let mut bytes = Vec::new();
    for _ in 0..array.element_count().unwrap() {
        // Knuth's linear congruential generator; its high bits are good enough here.
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let draw = *state >> 40;
        let bits = match element_type {
            ElementType::Pred => draw & 1,
            float if float.is_floating() => float.encode_float((draw % 257) as f64 / 64.0 - 2.0),
            _ => draw % 4,
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..width]);
    }
    Literal::array(element_type, array.dimensions.iter().copied(), bytes)
}
