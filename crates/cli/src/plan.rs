//! `memplan plan`

use clap::{Args, ValueEnum};
use memplan::ir::Module;
use memplan::memory::Target;
use memplan::plan::{PlanOptions, Planned, plan};
use memplan::{LEGALIZE, check, passes};

use crate::check::{list, proof_line};
use crate::emit::Program;
use crate::failure::Failure;
use crate::input::{read_module, target};
use crate::options::{Format, PackOptions, ResultArgs};
use crate::pool::{PoolOptions, paragraph};
use crate::report;

#[derive(Args)]
pub(crate) struct PlanArgs {
    /// HLO text or protobuf; `-` is standard input
    module: String,
    /// Machine to plan for: a name from `memplan targets`, or a TOML file
    #[arg(long, default_value = "cpu")]
    target: String,
    /// Keep the module's schedule, or make one that needs little memory
    #[arg(long, value_enum, default_value_t)]
    schedule: ScheduleChoice,
    #[command(flatten)]
    result: ResultArgs,
    #[command(flatten)]
    pack: PackOptions,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Whose order of execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ScheduleChoice {
    /// The module's own, if it is scheduled
    #[default]
    Keep,
    /// A new one that needs little memory
    Memory,
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    args.result.check()?;
    let target = target(&args.target)?;
    let mut module = read_module(&args.module)?;
    let per_device = report::per_device(&module, &target);
    let options = PlanOptions { assign: args.pack.assign_options(), ..PlanOptions::default() };
    let (planned, proof) =
        plan_module(&mut module, &target, args.schedule == ScheduleChoice::Keep, &options)?;
    let program = Program::new(&module, &target, &planned);
    args.result.emit.write(&program)?;
    let placement = args.pool.placement(&target, &planned.plan);
    let text = match args.result.format {
        Format::Json => program.plan_json(),
        Format::Text => {
            let screen = args.result.screen();
            let mut text =
                report::render(&module, &target, &planned.facts, &planned.plan, per_device, screen);
            text.extend(placement.iter().map(|placement| paragraph(placement, screen)));
            text + "\n" + &screen.wrap(&proof_line(&proof))
        }
    };
    args.result.write(text)?;
    args.pool.verdict(placement.as_ref())
}

/// Schedules a module, unless it has a schedule that is to be kept, gives every buffer an address, and proves the plan.
///
/// # Errors
/// The module as it is scheduled has no plan.
pub fn plan_module(
    module: &mut Module,
    target: &Target,
    keep_schedule: bool,
    options: &PlanOptions,
) -> Result<(Planned, check::Proof), Failure> {
    // A new order may need other copies than the old one, and may have them.
    module.is_scheduled &= keep_schedule;
    let context = passes::Context { target };
    passes::run(module, &[&LEGALIZE], &context, passes::RunOptions::default())
        .map_err(|error| Failure::input(&error))?;
    let mut planned = plan(module, target, options).map_err(|error| Failure::input(&error))?;
    planned.apply(module);
    let proof = check::check(module, &planned.schedule, target, &planned.plan).map_err(|violations| {
        Failure::Input(format!(
            "error: no plan is right for this module as it is scheduled; `--schedule memory` orders it anew\n{}",
            list(&violations)
        ))
    })?;
    Ok((planned, proof))
}
