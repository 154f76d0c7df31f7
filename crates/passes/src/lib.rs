//! Rewrites of HLO modules, one file each: what it does, what it leaves alone, what it requires.

mod algebraic;
mod call_inliner;
mod compact;
mod cost;
mod cse;
mod dce;
mod copy_insertion;
mod flatten_call_graph;
mod fusion;
mod pass;
mod remat;
mod pipeline;
mod spell_out;
mod rewrite;
mod scalar;
mod side_effects;
mod tuple_simplifier;

pub use algebraic::ALGEBRAIC_SIMPLIFIER;
pub use call_inliner::{CALL_INLINER, MAX_INLINED_PER_INSTRUCTION};
pub use copy_insertion::COPY_INSERTION;
pub use cse::CSE;
pub use dce::DCE;
pub use flatten_call_graph::FLATTEN_CALL_GRAPH;
pub use fusion::{FUSION, FusionEdge, FusionReport, Verdict, explain_fusion};
pub use remat::REMAT;
pub use pass::{Context, Pass, PassError, PassRun, RunOptions, run};
pub use pipeline::{SIMPLIFY, simplification_pipeline};
pub use tuple_simplifier::TUPLE_SIMPLIFIER;

/// Every pass by name, in alphabetical order.
pub const ALL: &[Pass] = &[ALGEBRAIC_SIMPLIFIER, CALL_INLINER, COPY_INSERTION, CSE, DCE, FLATTEN_CALL_GRAPH, FUSION, REMAT, SIMPLIFY, TUPLE_SIMPLIFIER];

/// The pass with a name.
pub fn find(name: &str) -> Option<&'static Pass> {
    ALL.iter().find(|pass| pass.name == name)
}
