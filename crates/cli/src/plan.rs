//! `memplan plan`

use clap::{Args, ValueEnum};
use memplan::advice::OneDevice;
use memplan::advice::explain::Expected;
use memplan::ir::Module;
use memplan::memory::{Bytes, MemorySpaceId, Resident, Target};
use memplan::passes::{CopyReport, InsertedCopy};
use memplan::plan::{PlanOptions, Planned, plan};
use memplan::{check, legalize};

use crate::as_written::as_written;
use crate::check::{list, proof_line};
use crate::devices;
use crate::emit::PlannedModule;
use crate::failure::Failure;
use crate::holders::PeakOptions;
use crate::input::{self, Form, ProgramFiles, find, note_choice, of_one_device, target};
use crate::options::{Format, PackOptions, ResultArgs};
use crate::pin::PinOptions;
use crate::pool::{PoolOptions, paragraph};
use crate::programs;
use crate::report;
use crate::tflite;
use crate::verdict::verdict;

#[derive(Args)]
pub(crate) struct PlanArgs {
    /// HLO or StableHLO (text, protobuf, bytecode, `jax.export`), also `.gz`, a folder of `--xla_dump_to`, a profile
    /// (`.xplane.pb`), or a TFLite model; `-` is standard input
    module: String,
    /// More programs that the same process loads
    #[arg(value_name = "MODULE", requires = "resident")]
    others: Vec<String>,
    /// Show the bytes of all programs together, and the bytes that they leave on the machine for caches
    #[arg(long)]
    resident: bool,
    /// Machine to plan for: a name from `memplan targets`, or a TOML file
    #[arg(long, default_value = "cpu")]
    target: String,
    /// Keep the module's schedule, or make one that needs little memory
    #[arg(long, value_enum, default_value_t)]
    schedule: ScheduleChoice,
    #[command(flatten)]
    result: ResultArgs,
    #[command(flatten)]
    peak: PeakOptions,
    #[command(flatten)]
    pack: PackOptions,
    #[command(flatten)]
    pin: PinOptions,
    #[command(flatten)]
    pool: PoolOptions,
}

/// The source of the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ScheduleChoice {
    /// The module's own, if it is scheduled
    #[default]
    Keep,
    /// A new one that needs little memory
    Memory,
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if input::is_tflite(&args.module) {
        let options = args.pack.assign_options().place.pack;
        return tflite::run(&args.module, &args.result, &options);
    }
    let target = target(&args.target)?;
    args.result.check(&target)?;
    args.pool.check(&target)?;
    args.peak.check(args.result.format)?;
    let mut options = PlanOptions { assign: args.pack.assign_options(), ..PlanOptions::default() };
    let keep_schedule = args.schedule == ScheduleChoice::Keep;
    let found = find(&args.module, Form::Compiled)?;
    if args.resident {
        return together(args, found, &target, keep_schedule, &options);
    }
    let resident = programs::resident(&args.module, &found, &target, keep_schedule, &options);
    let chosen = resident.as_ref().map_or(Ok(0), programs::largest_of)?;
    note_choice(&args.module, &found, chosen);
    let OneDevice { mut module, devices } = of_one_device(found[chosen].module()?, &target)?;
    options.assign.pins = args.pin.find(&module, &target)?;
    let note = match args.result.format {
        Format::Json => String::new(),
        Format::Text => as_written(&module, &target, Expected::new(&module, &target).as_ref()),
    };
    let (planned, proof) = plan_module(&mut module, &target, keep_schedule, &options)?;
    let mut program = PlannedModule::new(&module, &target, &planned);
    program.devices = devices.count;
    program.resident = resident.as_ref();
    args.result.emit.write(&program)?;
    let placement = args.pool.placement(&target, &planned.plan);
    let text = match args.result.format {
        Format::Json => program.plan_json(),
        Format::Text => {
            let screen = args.result.screen();
            let list = resident.as_ref().map(|resident| programs::render(resident, screen) + "\n");
            let mut text = list.unwrap_or_default() + &screen.wrap(&devices::line(&devices));
            if !note.is_empty() {
                text.push_str(&screen.wrap(&(note + "\n")));
            }
            text.push_str(&report::render(&module, &target, &planned, &args.peak, screen));
            text.push_str(&devices::could_be_cut(&devices, planned.plan.totals.total, screen));
            text.extend(placement.iter().map(|placement| paragraph(placement, screen)));
            text + "\n" + &screen.wrap(&proof_line(&proof))
        }
    };
    args.result.write(text)?;
    verdict(&module, &target, &planned, None, &devices)?;
    args.pool.verdict(placement.as_ref(), None)
}

/// Plans programs that one process has loaded, and says what is left beside them.
fn together(
    args: &PlanArgs,
    mut found: Vec<ProgramFiles>,
    target: &Target,
    keep_schedule: bool,
    options: &PlanOptions,
) -> Result<(), Failure> {
    for path in &args.others {
        found.extend(find(path, Form::Compiled)?);
    }
    let resident = programs::measure(&found, target, keep_schedule, options);
    programs::largest_of(&resident)?;
    let pool = args.pool.settings(target);
    let limit = target.space(MemorySpaceId::MAIN).and_then(|space| match &pool {
        Some(pool) => space.capacity.map(|device| pool.limit(device)),
        None => space.usable(),
    });
    let share = pool.map(|pool| format!(" ({} of the device)", pool.fraction)).unwrap_or_default();
    let left = Left {
        programs: &resident,
        limit,
        left: limit.map(|limit| limit.saturating_sub(resident.one_running)),
    };
    let text = match args.result.format {
        Format::Json => serde_json::to_string_pretty(&left).expect("it has only string keys") + "\n",
        Format::Text => {
            let screen = args.result.screen();
            let beside = match (limit, left.left) {
                (Some(limit), Some(left)) => {
                    format!("left for caches {left} of {limit}{share}, if one program runs at a time\n")
                }
                _ => format!("the memory of {} is not known\n", target.name),
            };
            programs::render(&resident, screen) + &screen.wrap(&beside)
        }
    };
    args.result.write(text)?;
    match limit {
        Some(limit) if resident.one_running > limit => Err(Failure::DoesNotFit(format!(
            "error: the programs need {} together, {} more than {} has for them",
            resident.one_running,
            resident.one_running.saturating_sub(limit),
            target.name
        ))),
        _ => Ok(()),
    }
}

/// Programs that are loaded together, and what is left beside them.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Left<'a> {
    #[serde(flatten)]
    programs: &'a Resident,
    /// Bytes that the process may use.
    limit: Option<Bytes>,
    /// What is left of them while the program with the largest arena runs.
    left: Option<Bytes>,
}

/// Schedules a module, unless it keeps its own schedule, gives every buffer an address, and proves the plan.
///
/// # Errors
/// The module has no plan with its schedule.
pub fn plan_module(
    module: &mut Module,
    target: &Target,
    keep_schedule: bool,
    options: &PlanOptions,
) -> Result<(Planned, check::Proof), Failure> {
    plan_with_copies(module, target, keep_schedule, options).map(|(planned, proof, _)| (planned, proof))
}

/// The same, with the copies that were inserted to make a plan possible.
pub(crate) fn plan_with_copies(
    module: &mut Module,
    target: &Target,
    keep_schedule: bool,
    options: &PlanOptions,
) -> Result<(Planned, check::Proof, Vec<InsertedCopy>), Failure> {
    // A new schedule may need other copies, and may insert them.
    module.is_scheduled &= keep_schedule;
    let runs = legalize(module, target).map_err(|error| Failure::input(&error))?;
    let reports = runs.iter().filter_map(|run| run.report.as_ref()?.downcast_ref::<CopyReport>());
    let copies = reports.flat_map(|report| report.copies.iter().cloned()).collect();
    let mut planned = plan(module, target, options).map_err(|error| Failure::input(&error))?;
    planned.apply(module);
    let proof = check::check(module, &planned.schedule, target, &planned.plan).map_err(|violations| {
        Failure::Input(format!(
            "error: no plan is right for this module with its schedule; `--schedule memory` makes a new one\n{}",
            list(&violations)
        ))
    })?;
    Ok((planned, proof, copies))
}
