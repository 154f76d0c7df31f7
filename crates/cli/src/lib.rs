//! The command `memplan`: how much memory a tensor program needs, who holds the peak, and what makes the program smaller.
//!
//! ```text
//! cargo install --locked memplan-cli
//! memplan estimate step.mlir --compiler xla-gpu     # what will XLA need?
//! memplan rewrite step.mlir --compiler xla-gpu -o smaller.mlir
//! memplan --help
//! ```
//!
//! As a library, [`main`] runs the command. The Python package uses the other items, so that its errors and reports read
//! the same.

#![allow(clippy::print_stdout, reason = "this is the one crate whose results go to standard output")]

mod argument_dimension;
mod as_written;
mod budget;
mod check;
mod columns;
mod compile;
mod completions;
mod defragment;
mod devices;
mod diff;
mod emit;
mod estimate;
mod explain;
mod failure;
mod fit;
mod frontier;
mod holders;
mod input;
mod ipu_report;
mod needless;
mod opt;
mod options;
mod output;
mod pack;
mod passes;
mod picture;
mod pin;
mod plan;
mod pool;
mod programs;
mod progress;
mod replay;
mod report;
mod rewrite;
mod run;
mod schemas;
mod screen;
mod stages;
mod targets;
mod tflite;
mod time;
mod verdict;

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

pub use devices::line as whose_bytes;
pub use failure::Failure;
pub use holders::{PeakOptions, PeakTable};
pub use input::{parse_module, target};
pub use options::parse_bytes;
pub use plan::plan_module;
pub use report::render as report;
pub use rewrite::report as rewrite_report;
pub use schemas::schemas;
pub use screen::Screen;
pub use verdict::story as too_large;

/// Plans the memory of tensor programs: reads HLO from JAX and XLA, gives every buffer an address, and proves the plan.
#[derive(Parser)]
#[command(name = "memplan", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Hide progress; errors are still shown
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Give every buffer of a program an address, and show which values need the memory
    Plan(plan::PlanArgs),
    /// Optimize, fuse, schedule and plan a program for a machine, and prove the plan
    Compile(compile::CompileArgs),
    /// Explain why a program needs its memory: the peak, copies, donated arguments, or one value or source line
    Explain(explain::ExplainArgs),
    /// Estimate the memory that another compiler, such as XLA, will need for a program
    Estimate(estimate::EstimateArgs),
    /// Find the changes that make a program fit: try and price every lever, and choose the cheapest set
    Fit(fit::FitArgs),
    /// Compare two programs, dumps or plans, and explain the differences
    Diff(diff::DiffArgs),
    /// Compare the memory of a repository's programs with their limits in a CI job; write a comment, annotations and pages
    Budget(budget::BudgetArgs),
    /// Prove that a plan is right for a module
    Check(check::CheckArgs),
    /// Parse, verify and rewrite HLO
    Opt(opt::OptArgs),
    /// Rewrite a program so that XLA needs less memory for it
    Rewrite(rewrite::RewriteArgs),
    /// Pack buffers with known lifetimes (CSV) into memory, and prove a lower bound
    Pack(pack::PackArgs),
    /// Evaluate a program, with separate buffers or inside the memory of its plan
    Run(run::RunArgs),
    /// Simulate a GPU runtime's allocator on a trace of allocations and frees, or on a program's values
    Replay(replay::ReplayArgs),
    /// List the machines that memplan can plan for
    Targets(targets::TargetsArgs),
    /// List the stages of `compile`, the rewrites of `rewrite`, and every pass
    Passes(passes::PassesArgs),
    /// Print a completion script for a shell: `source <(memplan completions bash)`
    Completions(completions::CompletionsArgs),
    /// Write manual pages
    Man(completions::ManArgs),
}

/// Runs the command with its arguments (the first is the command's own name) and returns the exit status.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // The reader may have closed the pipe, which is not an error of ours.
            let _ = error.print();
            return error.exit_code().try_into().unwrap_or(2);
        }
    };
    progress::set_quiet(cli.quiet);
    let result = match cli.verb {
        Verb::Plan(args) => plan::run(&args),
        Verb::Compile(args) => compile::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Estimate(args) => estimate::run(&args),
        Verb::Fit(args) => fit::run(&args),
        Verb::Diff(args) => diff::run(&args),
        Verb::Budget(args) => budget::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Opt(args) => opt::run(&args),
        Verb::Rewrite(args) => rewrite::run(&args),
        Verb::Pack(args) => pack::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Replay(args) => replay::run(&args),
        Verb::Targets(args) => targets::run(&args),
        Verb::Passes(args) => passes::run(&args),
        Verb::Completions(args) => completions::completions(&args, Cli::command()),
        Verb::Man(args) => completions::man(&args, Cli::command()),
    };
    match result {
        Ok(()) => 0,
        Err(failure) => {
            let text = failure.text();
            let prefix = if text.starts_with("error") { "" } else { "error: " };
            output::say(&format!("{prefix}{text}"));
            failure.status()
        }
    }
}
