//! Rewrites of HLO modules, one file each: what it does, what it leaves alone, what it requires.
//!
//! A pass is a value that implements [`Pass`]. Its fields are its options: every number that decides results is a field,
//! with its reason beside it, and the constants of this crate hold the values that `compile` uses. Only limits against
//! hostile programs are constants in code.
//!
//! ```
//! use memplan_memory::Target;
//! use memplan_passes::{CONSTANT_FOLDING, ConstantFolding, Context, Pass, RunOptions, SIMPLIFY, run};
//!
//! let text = "
//! HloModule m
//! ENTRY main {
//!   p = f32[8] parameter(0)
//!   twice = f32[8] negate(p)
//!   same = f32[8] negate(twice)
//!   ROOT n = f32[8] exponential(same)
//! }";
//! let mut module = memplan_hlo::parse(text)?;
//! let context = Context { target: &Target::find("cpu")? };
//! // Verified after each pass; what each did and how long it took comes back.
//! let options = RunOptions { verify: true, ..RunOptions::default() };
//! let runs = run(&mut module, &[&SIMPLIFY], &context, options)?;
//! assert!(runs.iter().any(|run| run.changed));
//! assert_eq!(module.entry_computation().instructions.len(), 2);
//!
//! // The same without tables of more than a thousand elements.
//! let folding = ConstantFolding { max_elements: 1000, ..CONSTANT_FOLDING };
//! let simplify = SIMPLIFY.with(folding.name(), folding);
//! run(&mut memplan_hlo::parse(text)?, &[&simplify], &context, options)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod algebraic;
mod async_copy;
mod bitcast_expander;
mod call_inliner;
mod checkpoint;
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
mod dynamic_marks;
mod flatten_call_graph;
mod fully_shard;
mod fusion;
mod fusion_inliner;
mod homes;
mod host_offload;
mod layout_assignment;
mod loop_residuals;
mod loop_state;
mod loops;
mod one_in;
mod optimization_barrier_expander;
mod pass;
mod pipeline;
mod remat;
mod report;
mod resize;
mod rewrite;
mod row_blocks;
mod rows;
mod scalar;
mod scatter_to_select;
mod sharding_annotations;
mod side_effects;
mod spell_out;
mod strip_fast_memory;
mod tell_apart;
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
pub use checkpoint::{Checkpoint, checkpoint};
pub use conditional_in_place::CONDITIONAL_IN_PLACE;
pub use conditional_simplifier::{CONDITIONAL_SIMPLIFIER, ConditionalSimplifier};
pub use constant_folding::{CONSTANT_FOLDING, ConstantFolding};
pub use copy_insertion::{
    Because, COPY_INSERTION, Conflict, CopyInsertion, CopyReport, InsertedCopy, MustShare,
};
pub use cse::{CSE, Cse};
pub use dce::DCE;
pub use default_layouts::DEFAULT_LAYOUTS;
pub use donation::{DONATION, results_in_donors};
pub use dynamic_marks::DYNAMIC_MARKS;
pub use flatten_call_graph::FLATTEN_CALL_GRAPH;
pub use fully_shard::{FullySharded, fully_shard};
pub use fusion::{
    FUSION, FUSION_OF_UPDATES, Fusion, FusionEdge, FusionOptions, FusionReport, RowTileOptions,
    SiblingOptions, Verdict,
};
pub use fusion_inliner::FUSION_INLINER;
pub use host_offload::HOST_OFFLOAD;
pub use layout_assignment::{LAYOUT_ASSIGNMENT, LayoutAssignment};
pub use loop_residuals::{LOOP_RESIDUALS, LoopResiduals, ResidualPair, ResidualsReport};
pub use loop_state::{
    FLAT_LOOP_STATE, KEEP_WITHIN_LOOPS, KeepWithinLoops, LOOP_STATE_IN_PLACE, LoopStateInPlace,
    UNINITIALIZED_RESULTS,
};
pub use one_in::OneIn;
pub use optimization_barrier_expander::OPTIMIZATION_BARRIER_EXPANDER;
pub use pass::{
    AnyPass, Context, Outcome, Pass, PassError, PassFn, PassRun, Pipeline, RunOptions, Unsupported, run,
};
pub use pipeline::{FOLLOWABLE, LEGALIZE, SIMPLIFY, TAKE_APART};
pub use remat::{
    LoweredPeak, Products, REMAT, REMAT_BEHIND_BARRIERS, REMAT_BEHIND_SELECTS, Recomputed, Remat,
    RematReport, Tie,
};
pub use report::Report;
pub use resize::{ResizeError, Resized, resize};
pub use row_blocks::{ROW_BLOCKS, RowBlocks};
pub use scatter_to_select::SCATTER_TO_SELECT;
pub use sharding_annotations::{SHARDING_FOLDING, SHARDING_REMOVER};
pub use strip_fast_memory::strip_fast_memory;
pub use tell_apart::TELL_APART;
pub use tuple_constant_expander::TUPLE_CONSTANT_EXPANDER;
pub use tuple_simplifier::TUPLE_SIMPLIFIER;
pub use while_invariant_code_motion::{
    MotionWorth, WHILE_INVARIANT_CODE_MOTION, WHILE_INVARIANT_CODE_MOTION_OF_ALL, WhileInvariantCodeMotion,
};
pub use while_simplifier::{WHILE_SIMPLIFIER, WhileSimplifier};
pub use xla::{
    BFLOAT16_PROPAGATION, CHANGE_OP_DATA_TYPE, CONVOLUTION_CANONICALIZATION, CONVOLUTION_LAYOUTS,
    CONVOLUTION_PADDING_LEGALIZATION, COPY_FUSION, DEFAULT_RESULT_LAYOUTS, DIVISOR_RECIPROCAL,
    DOT_DECOMPOSER, FLOAT_NORMALIZATION, GEMM_WORKSPACE, GemmWorkspace, INSTRUCTION_FUSION,
    InstructionFusion, LIBRARY_CALL_LAYOUTS, LIBRARY_FUSION, LibraryFusion, REDUCE_WINDOW_REWRITER,
    RESHAPE_DECOMPOSER, RESHAPE_DECOMPOSER_OF_RESULTS, RESHAPES_BY_ROWS, SELECT_AND_SCATTER_EXPANDER,
    SORT_IOTA_FUSION, SPLITK_REWRITER, STABLE_SORT_EXPANDER, SplitkRewriter, TRANSPOSE_FOLDING,
    TRANSPOSED_STATE, TREE_REDUCTION_REWRITER, TRIANGULAR_SOLVE_LAYOUTS, WINDOWS_OUTSIDE_LANES, of_compiler,
    partition,
};

/// What takes at most so many bytes is as good as nothing: the alignment of a buffer is no smaller on any target.
const NEGLIGIBLE_BYTES: u64 = 64;

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
    &DYNAMIC_MARKS,
    &FLAT_LOOP_STATE,
    &FLATTEN_CALL_GRAPH,
    &FOLLOWABLE,
    &FUSION,
    &FUSION_INLINER,
    &FUSION_OF_UPDATES,
    &HOST_OFFLOAD,
    &KEEP_WITHIN_LOOPS,
    &LAYOUT_ASSIGNMENT,
    &LEGALIZE,
    &LOOP_RESIDUALS,
    &LOOP_STATE_IN_PLACE,
    &UNINITIALIZED_RESULTS,
    &OPTIMIZATION_BARRIER_EXPANDER,
    &REMAT,
    &REMAT_BEHIND_BARRIERS,
    &REMAT_BEHIND_SELECTS,
    &ROW_BLOCKS,
    &SCATTER_TO_SELECT,
    &SIMPLIFY,
    &TAKE_APART,
    &TELL_APART,
    &TUPLE_CONSTANT_EXPANDER,
    &TUPLE_SIMPLIFIER,
    &WHILE_INVARIANT_CODE_MOTION,
    &WHILE_SIMPLIFIER,
];

/// Passes that other compilers run and memplan does not, since programs need no less memory after them: what an estimate
/// of such a compiler is made with.
pub const FOREIGN: &[&dyn Pass] = &[
    &BFLOAT16_PROPAGATION,
    &CHANGE_OP_DATA_TYPE,
    &CONVOLUTION_CANONICALIZATION,
    &CONVOLUTION_LAYOUTS,
    &CONVOLUTION_PADDING_LEGALIZATION,
    &COPY_FUSION,
    &DEFAULT_RESULT_LAYOUTS,
    &DIVISOR_RECIPROCAL,
    &DOT_DECOMPOSER,
    &FLOAT_NORMALIZATION,
    &GEMM_WORKSPACE,
    &INSTRUCTION_FUSION,
    &LIBRARY_CALL_LAYOUTS,
    &LIBRARY_FUSION,
    &REDUCE_WINDOW_REWRITER,
    &RESHAPE_DECOMPOSER,
    &RESHAPE_DECOMPOSER_OF_RESULTS,
    &RESHAPES_BY_ROWS,
    &SELECT_AND_SCATTER_EXPANDER,
    &SHARDING_FOLDING,
    &SHARDING_REMOVER,
    &SPLITK_REWRITER,
    &SORT_IOTA_FUSION,
    &STABLE_SORT_EXPANDER,
    &TRANSPOSE_FOLDING,
    &TRANSPOSED_STATE,
    &TREE_REDUCTION_REWRITER,
    &TRIANGULAR_SOLVE_LAYOUTS,
    &WHILE_INVARIANT_CODE_MOTION_OF_ALL,
    &WINDOWS_OUTSIDE_LANES,
];

/// The pass with a name.
pub fn find(name: &str) -> Option<&'static dyn Pass> {
    ALL.iter().chain(FOREIGN).copied().find(|pass| pass.name() == name)
}
