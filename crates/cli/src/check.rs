//! `memplan check`

use clap::{Args, ColorChoice};
use memplan::check;
use memplan::memory::PlanFile;

use crate::failure::{Failure, chain};
use crate::input::{Form, read, read_module, target};
use crate::output::write_result;
use crate::report::count;
use crate::screen::Screen;
use crate::verdict::within;

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// HLO text or protobuf, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// The plan, as JSON
    plan: String,
    /// Machine the plan is for, when it is not a built-in one: a TOML file
    #[arg(long)]
    target: Option<String>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let module = read_module(&args.module, Form::Compiled)?;
    let bytes = read(&args.plan)?;
    let file: PlanFile = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::Input(format!(
            "error: {}:{}:{}: not a plan: {error}",
            args.plan,
            error.line(),
            error.column()
        ))
    })?;
    let name = args.target.as_ref().unwrap_or(&file.target);
    let target = target(name)?;
    let (schedule, plan) = file.resolve(&module).map_err(|error| Failure::Refuted(chain(&error)))?;
    match check::check(&module, &schedule, &target, &plan) {
        Ok(proof) => {
            write_result(None, Screen::of(None, ColorChoice::Never).wrap(&proof_line(&proof)))?;
            within(&plan, &target)
        }
        Err(violations) => Err(Failure::Refuted(format!("error: the plan is wrong\n{}", list(&violations)))),
    }
}

/// What a proof looked at, in one line, and a line for each claim that it had to leave.
pub(crate) fn proof_line(proof: &check::Proof) -> String {
    let proved = format!(
        "proved: {} of {} read {} whole and write {}\n",
        count(proof.instructions, "instruction"),
        count(proof.computations, "computation"),
        count(proof.reads, "value"),
        proof.writes
    );
    let left =
        proof.on_trust.iter().map(|space| format!("not verified: that no arena of {space} is smaller\n"));
    proved + &left.collect::<String>()
}

/// What is wrong, a line each.
pub(crate) fn list(violations: &[check::Violation]) -> String {
    violations.iter().map(|violation| format!("  {violation}\n")).collect()
}
