//! What all of these tests do: plan, prove, run.

use memplan::interp::{self, Options};
use memplan::ir::{self, Literal, Module};
use memplan::memory::{AllocationKind, MemoryPlan, Slice, Target};
use memplan::passes::{self, Context, Pass, RunOptions};
use memplan::plan::{AssignOptions, PlanOptions, Planned, plan};
use memplan::{LEGALIZE, check, hlo};

/// Runs passes, each followed by the verifier.
pub(crate) fn run_passes(module: &mut Module, list: &[Pass], target: &Target) -> Result<(), String> {
    let options = RunOptions { verify: true, ..RunOptions::default() };
    passes::run(module, list, &Context { target }, options).map_err(|error| explain(&error))?;
    Ok(())
}

/// Makes a module legal, plans it and proves the plan; the module is then in the order of the schedule.
pub(crate) fn plan_and_prove(module: &mut Module, target: &Target) -> Result<Planned, String> {
    plan_with(module, target, |_| AssignOptions::default())
}

/// The same with working memory for the interpreter's kernels, so that the plan can be run.
pub(crate) fn plan_to_run(module: &mut Module, target: &Target) -> Result<Planned, String> {
    plan_with(module, target, |module| AssignOptions {
        scratch: interp::scratch(module),
        ..AssignOptions::default()
    })
}

fn plan_with(
    module: &mut Module,
    target: &Target,
    assign: impl Fn(&Module) -> AssignOptions,
) -> Result<Planned, String> {
    if !module.is_scheduled {
        run_passes(module, &LEGALIZE, target)?;
    }
    let options = PlanOptions { assign: assign(module), ..PlanOptions::default() };
    let mut planned = plan(module, target, &options).map_err(|error| explain(&error))?;
    planned.schedule.apply(module);
    // The order is part of what the plan is for.
    planned.plan.fingerprint = ir::fingerprint(module);
    prove(module, &planned, target)?;
    Ok(planned)
}

pub(crate) fn prove(module: &Module, planned: &Planned, target: &Target) -> Result<(), String> {
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

pub(crate) fn evaluate(module: &Module, inputs: &[Literal]) -> Result<Literal, String> {
    interp::evaluate(module, inputs, &Options::default()).map_err(|error| explain(&error))
}

pub(crate) fn run_in_arena(
    module: &Module,
    planned: &Planned,
    inputs: &[Literal],
) -> Result<Literal, String> {
    interp::run_in_arena(module, &planned.schedule, &planned.plan, inputs, &Options::default())
        .map_err(|error| format!("in the arena: {}", explain(&error)))
}

/// An error with its causes.
pub(crate) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// `temp +16`.
pub(crate) fn place(plan: &MemoryPlan, target: &Target, slice: &Slice) -> String {
    format!("{} +{}", kind(plan, target, slice), slice.offset.0)
}

/// What case files call the allocation of a slice.
pub(crate) fn kind(plan: &MemoryPlan, target: &Target, slice: &Slice) -> String {
    let allocation = &plan.allocations[slice.allocation];
    match &allocation.kind {
        AllocationKind::Argument { .. } => "argument".into(),
        AllocationKind::Output => "output".into(),
        AllocationKind::Constant => "constant".into(),
        AllocationKind::Temp if allocation.space == target.spaces[0].id => "temp".into(),
        AllocationKind::Temp => {
            let space = target.spaces.iter().find(|space| space.id == allocation.space);
            space.map_or("temp", |space| &space.name).into()
        }
    }
}
