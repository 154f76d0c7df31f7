//! `memplan check`

use clap::Args;
use memplan::check;
use memplan::memory::{PlanFile, Target};

use crate::failure::Failure;
use crate::input::{read, read_module};
use crate::output::write_result;

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// HLO text or protobuf; `-` is standard input
    module: String,
    /// The plan, as JSON
    plan: String,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let module = read_module(&args.module)?;
    let bytes = read(&args.plan)?;
    let file: PlanFile = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::Input(format!(
            "error: {}:{}:{}: not a plan: {error}",
            args.plan,
            error.line(),
            error.column()
        ))
    })?;
    let target = Target::find(&file.target).map_err(|error| Failure::input(&error))?;
    let (schedule, plan) = file.resolve(&module).map_err(|error| Failure::Refuted(error.to_string()))?;
    match check::check(&module, &schedule, &target, &plan) {
        Ok(proof) => write_result(None, &format!("proved: {proof}\n")),
        Err(violations) => {
            let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
            Err(Failure::Refuted(format!("error: the plan is wrong\n  {}", lines.join("\n  "))))
        }
    }
}
