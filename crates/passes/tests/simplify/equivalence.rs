//! Whether two modules compute the same: both are evaluated on the same random inputs.

use memplan_interp::{Devices, Options, evaluate, evaluate_on, npz};
use memplan_ir::{Literal, Module};
use memplan_memory::Target;
use memplan_passes::{Context, RunOptions, SIMPLIFY, TAKE_APART, run};
use memplan_testkit::{assert_close, numerics, random_inputs};

/// Asserts that two modules give the same results, integers exactly, floats within `1e-6` of the array's largest magnitude.
#[track_caller]
pub(crate) fn check(before: &Module, after: &Module) {
    on_random_inputs(before, after, |found, expected| assert_close(&before.name, found, expected, 1e-6));
}

/// Asserts that two modules give each of their devices the same bits.
#[track_caller]
pub(crate) fn check_devices(before: &Module, after: &Module) {
    let devices = Devices::of(before);
    let inputs: Vec<Vec<Literal>> =
        (1..).take(devices.count()).map(|seed| random_inputs(before, seed)).collect();
    let result = |module: &Module| {
        evaluate_on(module, devices, &inputs, &Options::default())
            .unwrap_or_else(|error| panic!("{}: {error}", module.name))
    };
    assert_eq!(result(before), result(after), "{}", before.name);
}

/// Asserts that two modules give the same bits.
#[track_caller]
pub(crate) fn check_bits(before: &Module, after: &Module) {
    on_random_inputs(before, after, |found, expected| assert_eq!(found, expected, "{}", before.name));
}

#[track_caller]
fn on_random_inputs(before: &Module, after: &Module, compare: impl Fn(&Literal, &Literal)) {
    for seed in 1..=3 {
        let inputs = random_inputs(before, seed);
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
        assert_close(&case.name, &result, &expected, 2e-5);
    }
}
