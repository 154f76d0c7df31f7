//! The numbers JAX computes: whole programs, with their inputs and outputs.

use memplan_interp::{Options, evaluate, npz};
use memplan_testkit::{assert_close, numerics};

#[test]
fn programs_give_the_numbers_of_jax() {
    for case in numerics() {
        let module = memplan_hlo::parse(&case.text).expect("the module is valid");
        let inputs = npz::read_inputs(&module, case.inputs()).expect("the inputs fit");
        let result = evaluate(&module, &inputs, &Options::default());
        let result = result.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let expected = npz::read_outputs(&result, case.outputs()).expect("the outputs fit");
        assert_close(&case.name, &result, &expected, 2e-5);
    }
}
