//! Rewrites of HLO modules, one file each: what it does, what it leaves alone, what it requires.
//!
//! ```
//! use memplan_memory::Target;
//! use memplan_passes::{Context, RunOptions, SIMPLIFY, run};
//!
//! let mut module = memplan_hlo::parse(
//!     "HloModule m
//!      ENTRY main {
//!        p = f32[8] parameter(0)
//!        twice = f32[8] negate(p)
//!        same = f32[8] negate(twice)
//!        ROOT n = f32[8] exponential(same)
//!      }",
//! )?;
//! let context = Context { target: &Target::find("cpu")? };
//! // Verified after each pass; what each did and how long it took comes back.
//! let options = RunOptions { verify: true, ..RunOptions::default() };
//! let runs = run(&mut module, &[&SIMPLIFY], &context, options)?;
//! assert!(runs.iter().any(|run| run.changed));
//! assert_eq!(module.entry_computation().instructions.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod algebraic;
mod async_copy;
mod bitcast_expander;
mod call_inliner;
mod conditional_in_place;
mod conditional_simplifier;
mod constant_folding;
mod copy_computation;
mod copy_insertion;
mod cost;
mod cse;
mod dce;
mod default_layouts;
mod donation;
mod flatten_call_graph;
mod fusion;
mod fusion_inliner;
mod homes;
mod host_offload;
mod layout_assignment;
mod loop_residuals;
mod loop_state;
mod loops;
mod optimization_barrier_expander;
mod pass;
mod pipeline;
mod remat;
mod rewrite;
mod row_blocks;
mod scalar;
mod scatter_to_select;
mod sharding_annotations;
mod side_effects;
mod spell_out;
mod strip_fast_memory;
mod tuple_constant_expander;
mod tuple_simplifier;
mod tuple_uses;
mod while_invariant_code_motion;
mod while_simplifier;
mod xla;

pub use algebraic::ALGEBRAIC_SIMPLIFIER;
pub use async_copy::{Placed, insert_async_copies, order_for_async_copies};
pub use bitcast_expander::BITCAST_EXPANDER;
pub use call_inliner::{CALL_INLINER, MAX_INLINED_PER_INSTRUCTION};
pub use conditional_in_place::CONDITIONAL_IN_PLACE;
pub use conditional_simplifier::CONDITIONAL_SIMPLIFIER;
pub use constant_folding::{CONSTANT_FOLDING, MAX_ELEMENTS};
pub use copy_insertion::COPY_INSERTION;
pub use cse::CSE;
pub use dce::DCE;
pub use default_layouts::DEFAULT_LAYOUTS;
pub use donation::DONATION;
pub use flatten_call_graph::FLATTEN_CALL_GRAPH;
pub use fusion::{FUSION, FUSION_OF_UPDATES, Fusion, FusionEdge, FusionReport, Verdict, explain_fusion};
pub use fusion_inliner::FUSION_INLINER;
pub use host_offload::HOST_OFFLOAD;
pub use layout_assignment::LAYOUT_ASSIGNMENT;
pub use loop_residuals::{LOOP_RESIDUALS, recompute_residuals};
pub use loop_state::LOOP_STATE_IN_PLACE;
pub use optimization_barrier_expander::OPTIMIZATION_BARRIER_EXPANDER;
pub use pass::{Context, Pass, PassError, PassFn, PassRun, Pipeline, RunOptions, Unsupported, run};
pub use pipeline::{LEGALIZE, SIMPLIFY, TAKE_APART};
pub use remat::{Products, REMAT, REMAT_BEHIND_BARRIERS, REMAT_BEHIND_SELECTS, Tie, recompute_after_peak};
pub use row_blocks::{MIN_SHARE_IN_BLOCKS, ROW_BLOCKS, cut_into_row_blocks, walk_in_row_blocks};
pub use scatter_to_select::SCATTER_TO_SELECT;
pub use sharding_annotations::{SHARDING_FOLDING, SHARDING_REMOVER};
pub use strip_fast_memory::strip_fast_memory;
pub use tuple_constant_expander::TUPLE_CONSTANT_EXPANDER;
pub use tuple_simplifier::TUPLE_SIMPLIFIER;
pub use while_invariant_code_motion::{
    MAX_FREE_BYTES, WHILE_INVARIANT_CODE_MOTION, WHILE_INVARIANT_CODE_MOTION_OF_ALL,
};
pub use while_simplifier::WHILE_SIMPLIFIER;
pub use xla::{
    BFLOAT16_PROPAGATION, CONVOLUTION_CANONICALIZATION, CONVOLUTION_PADDING_LEGALIZATION, DOT_DECOMPOSER,
    FLOAT_NORMALIZATION, INSTRUCTION_FUSION, LIBRARY_FUSION, RESHAPE_DECOMPOSER, SPLITK_REWRITER,
    STABLE_SORT_EXPANDER, TRANSPOSE_FOLDING, TRANSPOSED_STATE,
};

/// Every pass by name, in alphabetical order.
pub const ALL: &[&dyn Pass] = &[
    &ALGEBRAIC_SIMPLIFIER,
    &BITCAST_EXPANDER,
    &CALL_INLINER,
    &CONDITIONAL_IN_PLACE,
    &CONDITIONAL_SIMPLIFIER,
    &CONSTANT_FOLDING,
    &COPY_INSERTION,
    &CSE,
    &DCE,
    &DEFAULT_LAYOUTS,
    &DONATION,
    &FLATTEN_CALL_GRAPH,
    &FUSION,
    &FUSION_INLINER,
    &FUSION_OF_UPDATES,
    &HOST_OFFLOAD,
    &LAYOUT_ASSIGNMENT,
    &LEGALIZE,
    &LOOP_RESIDUALS,
    &LOOP_STATE_IN_PLACE,
    &OPTIMIZATION_BARRIER_EXPANDER,
    &REMAT,
    &REMAT_BEHIND_BARRIERS,
    &REMAT_BEHIND_SELECTS,
    &ROW_BLOCKS,
    &SCATTER_TO_SELECT,
    &SIMPLIFY,
    &TAKE_APART,
    &TUPLE_CONSTANT_EXPANDER,
    &TUPLE_SIMPLIFIER,
    &WHILE_INVARIANT_CODE_MOTION,
    &WHILE_SIMPLIFIER,
];

/// Passes that other compilers run and memplan does not, since programs need no less memory after them: what an estimate
/// of such a compiler is made with.
pub const FOREIGN: &[&dyn Pass] = &[
    &BFLOAT16_PROPAGATION,
    &CONVOLUTION_CANONICALIZATION,
    &CONVOLUTION_PADDING_LEGALIZATION,
    &DOT_DECOMPOSER,
    &FLOAT_NORMALIZATION,
    &INSTRUCTION_FUSION,
    &LIBRARY_FUSION,
    &RESHAPE_DECOMPOSER,
    &SHARDING_FOLDING,
    &SHARDING_REMOVER,
    &SPLITK_REWRITER,
    &STABLE_SORT_EXPANDER,
    &TRANSPOSE_FOLDING,
    &TRANSPOSED_STATE,
    &WHILE_INVARIANT_CODE_MOTION_OF_ALL,
];

/// The pass with a name.
pub fn find(name: &str) -> Option<&'static dyn Pass> {
    ALL.iter().chain(FOREIGN).copied().find(|pass| pass.name() == name)
}
