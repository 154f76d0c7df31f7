//! What a pass is, and what passes are written with.

pub mod cost;
pub mod fusions;
pub mod loops;
mod one_in;
mod pass;
mod report;
mod rewrite;
mod scalar;
mod side_effects;
mod tidy;
pub mod unshare;
pub mod views;

pub use one_in::OneIn;
pub use pass::{
    AnyPass, Context, Outcome, Pass, PassError, PassFn, PassRun, Pipeline, RunOptions, call_graph, run,
};
pub use report::Report;
pub use rewrite::Rewriter;
pub use scalar::Scalar;
pub use side_effects::SideEffects;
pub use tidy::{CALL_INLINER, CSE, Cse, DCE, MAX_INLINED_PER_INSTRUCTION, inline};

/// What takes at most so many bytes is as good as nothing: the alignment of a buffer is no smaller on any target.
pub const NEGLIGIBLE_BYTES: u64 = 64;
