//! C99 that runs a compiled program in the arena of its plan.
//!
//! [`write`](fn@write) takes a module with its plan, and decides nothing about memory or order: every kernel is a function of C
//! on arrays at the plan's addresses, and every computation that runs step by step is a function that calls them in the
//! plan's order. A fusion is one nest of loops over its result; what it fuses are scalar expressions in it, and reductions
//! and products are loops in it, placed in the outermost loop that has their indices.
//!
//! The file allocates nothing and needs only `memcpy` and `math.h`, and CMSIS-NN if that is asked for. What it cannot
//! express is refused by name.

mod blocks;
mod cmsis_nn;
mod constants;
mod dag;
mod error;
mod expression;
mod file;
mod folds;
mod indices;
mod inline;
mod kernel;
mod lanes;
mod lower;
mod names;
mod operations;
mod order;
mod program;
mod pull;
mod random_bits;
mod runtime;
mod schedule;
mod storage;
mod tiling;
mod updates;

use memplan_analysis::Facts;
use memplan_ir::{Module, Schedule};
use memplan_memory::{MemoryPlan, Target};

pub use error::Refusal;

/// A compiled program with its plan.
#[derive(Clone, Copy)]
pub struct Program<'p> {
    /// The module that the plan is for.
    pub module: &'p Module,
    /// The order of execution.
    pub schedule: &'p Schedule,
    /// The facts of the module under the schedule.
    pub facts: &'p Facts,
    /// The plan.
    pub plan: &'p MemoryPlan,
    /// The machine that it was made for.
    pub target: &'p Target,
    /// The beginning of all names that others see: an identifier of C.
    pub name: &'p str,
    /// Whether kernels of CMSIS-NN are called where one computes exactly what a fusion does.
    pub cmsis_nn: bool,
}

/// The two files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// `NAME.c`
    pub c: String,
    /// `NAME.h`
    pub h: String,
}

/// Bytes of the stack that expressions are made on, which nest as deep as fusions do.
pub(crate) const STACK: usize = 512 << 20;

/// The program as C.
///
/// Takes time close to linear in the instructions of kernels, times the places where their elements are read.
///
/// # Errors
/// The first instruction for which there is no C.
pub fn write(program: &Program<'_>) -> Result<Sources, Refusal> {
    let parts = std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK);
        let thread = builder.spawn_scoped(scope, || program::parts(program));
        let thread = thread.expect("a thread can be started");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(file::write(program, &parts))
}

/// Whether a name can begin the names of a file.
pub fn is_identifier(name: &str) -> bool {
    names::identifier(name) == name
}
