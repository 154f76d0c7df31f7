//! `memplan explain`

mod named;
mod whole;

use clap::Args;
use comfy_table::{CellAlignment, Table};
use memplan::advice::OneDevice;
use memplan::advice::explain::{Expected, Subject};
use memplan::plan::PlanOptions;

use crate::as_written::as_written;
use crate::devices;
use crate::emit::json;
use crate::failure::Failure;
use crate::holders::PeakOptions;
use crate::input::{Form, read_program, target};
use crate::needless::refuse;
use crate::options::{Format, OutputArgs};
use crate::plan::plan_with_copies;
use crate::verdict::verdict;
pub(crate) use named::Named;
use named::named;
use whole::whole;

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// HLO text or protobuf, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// What to explain: an instruction (`fusion.3`), a part of its result (`while.2{1}`), an argument or operation by
    /// its name in the framework (`params['w']`), or a line of your program (`model.py:42`) (default: the whole
    /// program)
    value: Option<String>,
    /// Machine to plan for: a name from `memplan targets`, or a TOML file
    #[arg(long, default_value = "cpu")]
    target: String,
    #[command(flatten)]
    peak: PeakOptions,
    #[command(flatten)]
    result: OutputArgs,
}

/// The most lines of one kind to show.
const MOST_LINES: usize = 10;

pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    args.peak.check(args.result.format)?;
    if args.value.is_some() {
        refuse(
            &args.peak.given(),
            "it is about the peak of the whole program, and `memplan explain` explains one value here",
        )?;
    }
    let target = target(&args.target)?;
    let OneDevice { module: original, devices } = read_program(&args.module, Form::Compiled, &target)?;
    let expected = match &args.value {
        None => Expected::new(&original, &target),
        Some(_) => None,
    };
    let mut module = original.clone();
    let (planned, _, inserted) = plan_with_copies(&mut module, &target, true, &PlanOptions::default())?;
    let subject = Subject::new(&module, &target, &planned, &inserted);
    let screen = args.result.screen();
    let text = match &args.value {
        None => {
            let overview = subject.overview(expected.as_ref());
            match args.result.format {
                Format::Json => json(&overview),
                Format::Text => {
                    let note = as_written(&original, &target, expected.as_ref());
                    let one = devices::line(&devices);
                    let text = screen.wrap(&(one + &whole(&subject, &overview, &note, &args.peak, screen)));
                    text + &devices::could_be_cut(&devices, overview.totals.total, screen)
                }
            }
        }
        Some(name) => {
            let explained = named(&subject, &original, name)?;
            match args.result.format {
                Format::Json => json(&explained),
                Format::Text => screen.wrap(&(devices::line(&devices) + &explained.text(screen))),
            }
        }
    };
    args.result.write(text)?;
    verdict(&module, &target, &planned, None, &devices)
}

fn aligned(mut table: Table) -> String {
    if let Some(bytes) = table.column_mut(0) {
        bytes.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

fn more(n: usize, what: &str) -> String {
    match n.saturating_sub(MOST_LINES) {
        0 => String::new(),
        n => format!("and {n} more {what} (`--format json` has all)\n"),
    }
}
