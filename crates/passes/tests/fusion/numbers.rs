//! Whether a module computes the right results: on random inputs, or on inputs with JAX's known results.

use memplan_interp::{Options, evaluate};
use memplan_ir::{Literal, Module};
use memplan_testkit::{assert_close, random_inputs};

/// How far sums in another order may differ.
pub(crate) const TOLERANCE: f64 = 2e-5;

/// Asserts that two modules give the same results on the same inputs.
#[track_caller]
pub(crate) fn check_same(before: &Module, after: &Module) {
    check_same_within(before, after, TOLERANCE);
}

/// The same, floats up to a share of the largest element of each array.
#[track_caller]
pub(crate) fn check_same_within(before: &Module, after: &Module, tolerance: f64) {
    for seed in 1..=3 {
        let inputs = random_inputs(before, seed);
        assert_close(&before.name, &results(after, &inputs), &results(before, &inputs), tolerance);
    }
}

#[track_caller]
pub(crate) fn results(module: &Module, inputs: &[Literal]) -> Literal {
    evaluate(module, inputs, &Options::default()).unwrap_or_else(|error| panic!("{}: {error}", module.name))
}
