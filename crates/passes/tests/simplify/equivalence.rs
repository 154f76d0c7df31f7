//! Whether two modules compute the same: both are evaluated on the same random inputs.

use memplan_interp::{Options, evaluate, npz};
use memplan_ir::{ArrayShape, ElementType, Literal, Module, Shape};
use memplan_memory::Target;
use memplan_passes::{Context, RunOptions, SIMPLIFY, TAKE_APART, run};
use memplan_testkit::numerics;

/// Asserts that two modules give the same results, integers exactly, floats within `1e-6` of the largest magnitude.
#[track_caller]
pub(crate) fn check(before: &Module, after: &Module) {
    on_random_inputs(before, after, |found, expected| compare(&before.name, found, expected, 1e-6));
}

/// Asserts that two modules give the same bits.
#[track_caller]
pub(crate) fn check_bits(before: &Module, after: &Module) {
    on_random_inputs(before, after, |found, expected| assert_eq!(found, expected, "{}", before.name));
}

#[track_caller]
fn on_random_inputs(before: &Module, after: &Module, compare: impl Fn(&Literal, &Literal)) {
    for seed in 1..=3 {
        let inputs: Vec<Literal> = before
            .entry_computation()
            .parameters
            .iter()
            .enumerate()
            .map(|(i, &parameter)| random(before.shape(parameter), &mut Random(seed * 1000 + i as u64 + 1)))
            .collect();
        let result = |module: &Module| {
            evaluate(module, &inputs, &Options::default())
                .unwrap_or_else(|error| panic!("{}: {error}", module.name))
        };
        compare(&result(before), &result(after));
    }
}

/// The programs whose results JAX computed still have them.
#[test]
fn numerics_hold() {
    let target = Target::find("cpu").unwrap();
    for case in numerics() {
        let mut module = memplan_hlo::parse(&case.text).unwrap();
        let inputs = npz::read_inputs(&module, case.inputs()).unwrap();
        let options = RunOptions { verify: true, ..RunOptions::default() };
        run(&mut module, &[&TAKE_APART, &SIMPLIFY], &Context { target: &target }, options).unwrap();
        let result = evaluate(&module, &inputs, &Options::default()).unwrap();
        let expected = npz::read_outputs(&result, case.outputs()).unwrap();
        compare(&case.name, &result, &expected, 2e-5);
    }
}

#[track_caller]
fn compare(name: &str, found: &Literal, expected: &Literal, tolerance: f64) {
    match (found, expected) {
        (Literal::Tuple(found), Literal::Tuple(expected)) => {
            assert_eq!(found.len(), expected.len(), "{name}");
            for (found, expected) in found.iter().zip(expected) {
                compare(name, found, expected, tolerance);
            }
        }
        (Literal::Array(found), Literal::Array(expected)) if found.element_type.is_floating() => {
            assert_eq!(found.dimensions, expected.dimensions, "{name}");
            let (found, expected) = (floats(found), floats(expected));
            let largest = expected.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
            for (i, (x, y)) in found.iter().zip(&expected).enumerate() {
                let is_same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * largest;
                assert!(is_same, "{name}: element {i} is {x} instead of {y}");
            }
        }
        _ => assert!(found == expected, "{name}: {found:?} instead of {expected:?}"),
    }
}

fn floats(literal: &memplan_ir::ArrayLiteral) -> Vec<f64> {
    let width = literal.element_type.byte_width() as usize;
    let value = |bytes: &[u8]| {
        let mut bits = [0; 8];
        bits[..width].copy_from_slice(bytes);
        literal.element_type.decode_float(u64::from_le_bytes(bits))
    };
    literal.bytes().chunks(width).map(value).collect()
}

/// Splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn random(shape: &Shape, random: &mut Random) -> Literal {
    match shape {
        Shape::Tuple(elements) => Literal::Tuple(elements.iter().map(|e| self::random(e, random)).collect()),
        Shape::Array(array) => random_array(array, random),
        _ => Literal::Token,
    }
}

/// Small integers of both signs, and floats around zero.
fn random_array(array: &ArrayShape, random: &mut Random) -> Literal {
    let element_type = array.element_type;
    let count = array.element_count().unwrap() as usize;
    let component = element_type.component();
    let width = component.byte_width() as usize;
    let n_components = count * (element_type.byte_width() as usize / width);
    let mut bytes = Vec::with_capacity(n_components * width);
    for _ in 0..n_components {
        let draw = random.next();
        let bits = match component {
            ElementType::Pred => draw & 1,
            float if float.is_floating() => float.encode_float((draw % 4001) as f64 / 1000.0 - 2.0),
            signed if signed.is_signed() => ((draw % 9) as i64 - 4) as u64,
            _ => draw % 5,
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..width]);
    }
    Literal::array(element_type, array.dimensions.iter().copied(), bytes)
}
