//! `memplan check`

use clap::{Args, ColorChoice};
use memplan::advice::OneDevice;
use memplan::check;
use memplan::memory::PlanFile;

use crate::failure::{Failure, chain};
use crate::input::{Form, of_one_device, read, read_module, target};
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
    /// Machine the plan is for, if it is not a built-in one: a TOML file
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
    let OneDevice { module, .. } = of_one_device(module, &target)?;
    let (schedule, plan) = file.resolve(&module).map_err(|error| Failure::Refuted(chain(&error)))?;
    match check::check(&module, &schedule, &target, &plan) {
        Ok(proof) => {
            write_result(None, Screen::of(None, ColorChoice::Never).wrap(&proof_line(&proof)))?;
            within(&plan, &target)
        }
        Err(violations) => Err(Failure::Refuted(format!("error: the plan is wrong\n{}", list(&violations)))),
    }
}

/// Says in one line what the proof covered, and adds a line for each claim that it could not verify.
pub(crate) fn proof_line(proof: &check::Proof) -> String {
    let proved = format!(
        "plan verified: every read sees the value that was written ({}, {}, {} of {})\n",
        count(proof.reads, "read"),
        count(proof.writes, "write"),
        count(proof.instructions, "instruction"),
        count(proof.computations, "computation")
    );
    let left = proof
        .on_trust
        .iter()
        .map(|space| format!("not verified: that the arena of {space} is as small as possible\n"));
    proved + &left.collect::<String>()
}

/// Lists the violations, one per line.
pub(crate) fn list(violations: &[check::Violation]) -> String {
    violations.iter().map(|violation| format!("  {violation}\n")).collect()
}
