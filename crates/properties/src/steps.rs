//! The steps of tests on programs: plan, prove, run.

use memplan::interp::{self, Devices, Options};
use memplan::ir::{self, Literal, Module};
use memplan::memory::Target;
use memplan::passes::{self, Context, LEGALIZE, Pass, RunOptions};
use memplan::plan::{AssignOptions, PlanOptions, Planned, plan};
use memplan::{check, hlo};
use memplan_testkit::{OVERWRITES, overwrite, random_inputs};

/// Runs passes, each followed by the verifier.
///
/// # Errors
/// When a pass gives up, or leaves a module that is not valid.
pub fn run_passes(module: &mut Module, list: &[&dyn Pass], target: &Target) -> Result<(), String> {
    let options = RunOptions { verify: true, ..RunOptions::default() };
    passes::run(module, list, &Context { target }, options).map_err(|error| explain(&error))?;
    Ok(())
}

/// Makes a module legal, plans it and proves the plan; the module is then in the order of the schedule.
///
/// # Errors
/// When there is no plan, or it is refuted.
pub fn plan_and_prove(module: &mut Module, target: &Target) -> Result<Planned, String> {
    plan_with(module, target, |_| AssignOptions::default())
}

/// The same with working memory for the interpreter's kernels, so that the plan can be run.
///
/// # Errors
/// When there is no plan, or it is refuted.
pub fn plan_to_run(module: &mut Module, target: &Target) -> Result<Planned, String> {
    plan_with(module, target, |module| AssignOptions {
        scratch: interp::scratch(module),
        ..AssignOptions::default()
    })
}

/// Plans with options that depend on the module as it is planned, and proves the plan.
///
/// # Errors
/// When there is no plan, or it is refuted.
pub fn plan_with(
    module: &mut Module,
    target: &Target,
    assign: impl Fn(&Module) -> AssignOptions,
) -> Result<Planned, String> {
    run_passes(module, &[&LEGALIZE], target)?;
    let options = PlanOptions { assign: assign(module), ..PlanOptions::default() };
    let mut planned = plan(module, target, &options).map_err(|error| explain(&error))?;
    planned.schedule.apply(module);
    // The plan's fingerprint includes the order.
    planned.plan.fingerprint = ir::fingerprint(module);
    prove(module, &planned, target)?;
    Ok(planned)
}

/// Whether a module is valid, its text is the same module, and the checker accepts its plan.
///
/// # Errors
/// When that is not so.
pub fn prove(module: &Module, planned: &Planned, target: &Target) -> Result<(), String> {
    ir::verify(module).map_err(|errors| format!("not valid: {errors}"))?;
    let text = hlo::print(module);
    let read = hlo::parse(&text).map_err(|error| format!("its text cannot be read: {error}"))?;
    if ir::fingerprint(&read) != ir::fingerprint(module) {
        return Err(format!("its text is another module:\n{text}"));
    }
    check::check(module, &planned.schedule, target, &planned.plan).map_err(|violations| {
        let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
        format!("refuted: {}", violations.join("; "))
    })?;
    Ok(())
}

/// The results of the module on one device.
///
/// # Errors
/// When the evaluator gives up.
pub fn evaluate(module: &Module, inputs: &[Literal]) -> Result<Literal, String> {
    interp::evaluate(module, inputs, &options()).map_err(|error| explain(&error))
}

/// The results of the module inside its plan on one device.
///
/// # Errors
/// When the evaluator gives up, or an operand is not where the plan says.
pub fn run_in_arena(module: &Module, planned: &Planned, inputs: &[Literal]) -> Result<Literal, String> {
    interp::run_in_arena(module, &planned.schedule, &planned.plan, inputs, &options())
        .map_err(|error| format!("in the arena: {}", explain(&error)))
}

/// The results of the module on as many devices as it needs: a tuple of results if there are several.
///
/// # Errors
/// When the evaluator gives up.
pub fn evaluate_on_devices(module: &Module, inputs: &[Vec<Literal>]) -> Result<Literal, String> {
    let results = interp::evaluate_on(module, Devices::of(module), inputs, &options());
    results.map(result_of_devices).map_err(|error| explain(&error))
}

/// The results of the module inside its plan, in the form of [`evaluate_on_devices`].
///
/// # Errors
/// When the evaluator gives up, or an operand is not where the plan says.
pub fn run_in_arena_on_devices(
    module: &Module,
    planned: &Planned,
    inputs: &[Vec<Literal>],
) -> Result<Literal, String> {
    let (schedule, plan) = (&planned.schedule, &planned.plan);
    let results = interp::run_in_arena_on(module, schedule, plan, Devices::of(module), inputs, &options());
    results.map(result_of_devices).map_err(|error| format!("in the arena: {}", explain(&error)))
}

/// Inputs of each device that the module runs on.
pub fn inputs_of_devices(module: &Module) -> Vec<Vec<Literal>> {
    (0..Devices::of(module).count() as u64).map(|device| random_inputs(module, 7 + device)).collect()
}

fn result_of_devices(mut results: Vec<Literal>) -> Literal {
    match results.len() {
        1 => results.remove(0),
        _ => Literal::Tuple(results),
    }
}

/// The evaluator with the library that generated programs call.
fn options() -> Options {
    let mut options = Options::default();
    options.custom_calls.register(OVERWRITES, |_, operands| overwrite(operands));
    options
}

/// An error with its causes.
pub fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
