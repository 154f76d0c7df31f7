//! The `memplan` command as a library: [`main`] is all of it, and the rest is what the Python package shows in the same
//! words, errors with their carets and reports.

#![allow(clippy::print_stdout, reason = "this is the one crate whose results go to standard output")]

mod argument_dimension;
mod as_written;
mod check;
mod columns;
mod compile;
mod completions;
mod defragment;
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
mod screen;
mod stages;
mod targets;
mod time;
mod verdict;

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

pub use failure::Failure;
pub use holders::PeakOptions;
pub use input::{parse_module, target};
pub use options::parse_bytes;
pub use plan::plan_module;
pub use report::render as report;
pub use rewrite::report as rewrite_report;
pub use screen::Screen;
pub use verdict::story as too_large;

/// Plans the memory of tensor programs: reads HLO from JAX and XLA, gives every buffer an address, proves the answer.
#[derive(Parser)]
#[command(name = "memplan", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Show no progress; errors are still shown
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Say where the memory of a program goes, and give every buffer an address
    Plan(plan::PlanArgs),
    /// Optimize, fuse, schedule, plan and prove a program for a machine
    Compile(compile::CompileArgs),
    /// Say why a program needs what it needs: its peak, copies, donated arguments, or one value or line
    Explain(explain::ExplainArgs),
    /// Say what another compiler, such as XLA, will need for a program
    Estimate(estimate::EstimateArgs),
    /// Say what makes a program fit: every lever tried, priced, and the cheapest set
    Fit(fit::FitArgs),
    /// Say what changed between two programs, dumps or plans, and why
    Diff(diff::DiffArgs),
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
    /// List the stages of `compile`, what `rewrite` tries, and every pass
    Passes(passes::PassesArgs),
    /// Print what a shell needs to complete commands: `source <(memplan completions bash)`
    Completions(completions::CompletionsArgs),
    /// Write manual pages
    Man(completions::ManArgs),
}

/// Runs the command with its arguments, of which the first is its own name, and gives the exit status.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Whoever reads it may have gone away, which is not our failure.
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
