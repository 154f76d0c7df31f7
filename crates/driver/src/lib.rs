//! The pipelines of memplan, from a module to an answer.
//!
//! [`compile()`] optimizes, fuses, schedules, plans and proves a program for a machine. [`estimate()`] estimates the
//! memory that another compiler, described by a [`Compiler`](memplan_memory::Compiler), will need for it. [`rewrite()`]
//! changes a program so that such a compiler needs less.
//!
//! ```
//! use memplan_driver::{CompileOptions, compile};
//! use memplan_memory::Target;
//!
//! let mut module = memplan_hlo::parse(
//!     "HloModule scale
//!      ENTRY main { p = f32[1024] parameter(0)  s = f32[1024] add(p, p)  ROOT r = f32[1024] multiply(s, s) }",
//! )?;
//! let compiled = compile(&mut module, &Target::find("gpu-h100")?, &CompileOptions::default())?;
//! for stage in &compiled.stages {
//!     println!("{}: {:?}", stage.name, stage.time);
//! }
//! // One kernel, whose only array is its result.
//! assert_eq!(compiled.planned.plan.totals.temp.0, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod candidates;
mod compile;
mod effort;
mod estimate;
mod fast_memory;
mod first_guess;
mod frontier;
mod known;
mod latency_hiding;
mod memo;
mod objective;
mod parallel;
mod planned;
mod priced_module;
mod report;
mod rewrite;
mod search;
mod spread;
mod stages;
mod trace;
mod variants;
mod watch;

pub use compile::{CompileError, CompileOptions, Compiled, FastMemoryUse, compile};
pub use effort::Effort;
pub use estimate::{Estimate, EstimateError, estimate, estimate_compiled};
pub use fast_memory::assign_fast_memory;
pub use first_guess::FirstGuess;
pub use frontier::{Point, frontier};
pub use known::Known;
pub use memo::{Memo, SettingId};
pub use objective::{Excess, Objective, Price, exceeded, undominated};
pub use parallel::map as in_parallel;
pub use report::{Stage, StageReport, TriedGuess, TriedProgram, TriedPrograms, TriedSchedule};
pub use rewrite::{
    Forms, Lever, NoLever, Rewrite, RewriteError, RewriteOptions, Rewritten, Situation, Step, each_alone,
    rewrite, rewrite_among,
};
pub use spread::{Estimated, ModuleKey, Prices};
pub use stages::Stages;
pub use trace::trace_of_plan;
pub use variants::{StageChange, Variant};
pub use watch::Watch;
