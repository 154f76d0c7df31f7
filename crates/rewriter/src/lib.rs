//! The interface of passes, and tools to write them.
//!
//! A [`Pass`] rewrites a module; [`run`] runs a list of them. It may be in any crate: [`PassError::Failed`] holds an
//! error of any type, [`Report`] decisions of any type. Most passes visit one instruction after the other and return
//! its replacement, which is the purpose of a [`Rewriter`]:
//!
//! ```
//! use memplan_ir::{Module, Op, UnaryOp};
//! use memplan_memory::Target;
//! use memplan_rewriter::{Context, Outcome, Pass, PassError, Report, Rewriter, RunOptions, run};
//!
//! /// Replaces the negative of a negative by the value itself.
//! #[derive(PartialEq)]
//! struct DoubleNegation;
//!
//! /// How many were replaced.
//! #[derive(Debug, PartialEq)]
//! struct Replaced(usize);
//!
//! impl Pass for DoubleNegation {
//!     fn name(&self) -> &'static str { "double-negation" }
//!     fn description(&self) -> &'static str { "replace the negative of a negative by the value itself" }
//!
//!     fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
//!         let negate = Op::Unary(UnaryOp::Negate);
//!         let mut n = 0;
//!         let mut rewriter = Rewriter::new(module);
//!         rewriter.sweep(|r, id| {
//!             if *r.op(id) != negate || *r.op(r.operand(id, 0)) != negate {
//!                 return None;
//!             }
//!             n += 1;
//!             Some(r.operand(r.operand(id, 0), 0))
//!         });
//!         let changed = rewriter.finish();
//!         Ok(Outcome { changed, report: changed.then(|| Report::new(Replaced(n))) })
//!     }
//! }
//!
//! let mut module = memplan_hlo::parse(
//!     "HloModule m
//!      ENTRY main {
//!        p = f32[8] parameter(0)
//!        a = f32[8] negate(p)
//!        b = f32[8] negate(a)
//!        ROOT r = f32[8] exponential(b)
//!      }",
//! )?;
//! let context = Context { target: &Target::find("cpu")? };
//! let runs = run(&mut module, &[&DoubleNegation], &context, RunOptions { verify: true, ..Default::default() })?;
//! let report = runs[0].report.as_ref().and_then(|report| report.downcast_ref());
//! assert_eq!(report, Some(&Replaced(1)));
//! assert_eq!(module.entry_computation().instructions.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod combiner;
pub mod cost;
pub mod fusions;
pub mod interface;
pub mod loops;
mod one_in;
mod pass;
mod report;
mod rewrite;
pub mod rows;
mod side_effects;
mod tidy;
pub mod unshare;
pub mod views;

pub use combiner::plain_combiner;
pub use one_in::OneIn;
pub use pass::{
    AnyPass, Context, Outcome, Pass, PassEq, PassError, PassFn, PassRun, Pipeline, RunOptions, Sweep,
    call_graph, run,
};
pub use report::Report;
pub use rewrite::Rewriter;
pub use side_effects::SideEffects;
pub use tidy::{CALL_INLINER, CSE, Cse, DCE, MAX_INLINED_PER_INSTRUCTION, SINGLE_CALL_INLINER, inline};

/// This many bytes count as nothing: the alignment of a buffer is no smaller on any target.
pub const NEGLIGIBLE_BYTES: u64 = 64;
