//! The `memplan` command.

#![allow(clippy::print_stdout, reason = "this is the one crate whose results go to standard output")]

mod check;
mod compile;
mod defragment;
mod emit;
mod estimate;
mod failure;
mod input;
mod ipu_report;
mod opt;
mod options;
mod output;
mod pack;
mod picture;
mod plan;
mod pool;
mod progress;
mod replay;
mod report;
mod rewrite;
mod run;
mod targets;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Plans the memory of tensor programs: reads HLO from JAX and XLA, gives every buffer an address, proves the answer.
#[derive(Parser)]
#[command(name = "memplan", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Say where the memory of a program goes, and give every buffer an address
    Plan(plan::PlanArgs),
    /// Optimize, fuse, schedule, plan and prove a program for a machine
    Compile(compile::CompileArgs),
    /// Say what another compiler, such as XLA, will need for a program
    Estimate(estimate::EstimateArgs),
    /// Prove that a plan is right for a module
    Check(check::CheckArgs),
    /// Parse, verify and rewrite HLO
    Opt(opt::OptArgs),
    /// Rewrite a program so that XLA itself needs less memory for it
    Rewrite(rewrite::RewriteArgs),
    /// Place buffers with known lifetimes (CSV) at addresses, and prove how good that is
    Pack(pack::PackArgs),
    /// Evaluate a program, with separate buffers or inside the memory of its plan
    Run(run::RunArgs),
    /// Replay allocations and frees, of a trace or of a program's values, as a GPU runtime would serve them
    Replay(replay::ReplayArgs),
    /// List the machines that can be planned for
    Targets(targets::TargetsArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Plan(args) => plan::run(&args),
        Verb::Compile(args) => compile::run(&args),
        Verb::Estimate(args) => estimate::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Opt(args) => opt::run(&args),
        Verb::Rewrite(args) => rewrite::run(&args),
        Verb::Pack(args) => pack::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Replay(args) => replay::run(&args),
        Verb::Targets(args) => targets::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
