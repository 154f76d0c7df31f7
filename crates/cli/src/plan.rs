//! `memplan plan`

use std::path::Path;

use clap::{Args, ValueEnum};
use memplan::memory::PlanFile;
use memplan::plan::{PlanOptions, Planned, plan};
use memplan::{hlo, ir, passes};

use crate::failure::Failure;
use crate::input::{read_module, target};
use crate::output::{write_file, write_result};
use crate::report;
use crate::targets::Format;

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
    /// For people or for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Where to write the result
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
    /// Write something else too: hlo=FILE the module that the plan describes, plan=FILE the plan as JSON
    #[arg(long, value_name = "KIND=FILE")]
    emit: Vec<String>,
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
    let emits = args.emit.iter().map(|emit| Emit::parse(emit)).collect::<Result<Vec<_>, _>>()?;
    let target = target(&args.target)?;
    let mut module = read_module(&args.module)?;
    let context = passes::Context { target: &target };
    let legalize = [passes::FLATTEN_CALL_GRAPH, passes::COPY_INSERTION];
    passes::run(&mut module, &legalize, &context, passes::RunOptions::default())
        .map_err(|error| Failure::input(&error))?;
    let options =
        PlanOptions { reschedule: args.schedule == ScheduleChoice::Memory, ..PlanOptions::default() };
    let mut planned = plan(&module, &target, &options).map_err(|error| Failure::input(&error))?;
    planned.schedule.apply(&mut module);
    // The order is part of what the plan is for.
    planned.plan.fingerprint = ir::fingerprint(&module);
    let file = PlanFile::new(&module, &planned.schedule, &planned.plan);
    let json = || serde_json::to_string_pretty(&file).expect("plan files have only string keys") + "\n";
    for emit in &emits {
        match emit {
            Emit::Hlo(path) => write_file(Path::new(path), hlo::print(&module).as_bytes())?,
            Emit::Plan(path) => write_file(Path::new(path), json().as_bytes())?,
        }
    }
    let text = match args.format {
        Format::Json => json(),
        Format::Text => text(&module, &target, &planned),
    };
    write_result(args.output.as_deref(), &text)
}

fn text(module: &ir::Module, target: &memplan::memory::Target, planned: &Planned) -> String {
    report::render(module, target, &planned.facts, &planned.plan)
}

/// Something else to write.
enum Emit<'a> {
    Hlo(&'a str),
    Plan(&'a str),
}

impl Emit<'_> {
    fn parse(text: &str) -> Result<Emit<'_>, Failure> {
        match text.split_once('=') {
            Some(("hlo", path)) => Ok(Emit::Hlo(path)),
            Some(("plan", path)) => Ok(Emit::Plan(path)),
            _ => Err(Failure::Usage(format!("error: `--emit {text}`: expected hlo=FILE or plan=FILE"))),
        }
    }
}
