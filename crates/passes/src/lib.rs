//! Every pass by name, and the groups that run together; the passes themselves are in the crates below.
//!
//! A pass is a value that implements [`Pass`]. Its fields are its options: every number that affects results is a
//! field, with its reason, and the constants of this crate have the values that `compile` uses. Only limits against
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

mod micro_batches;
mod of_compiler;
mod pipeline;
mod resize;

pub use memplan_fusion::{
    FUSION, FUSION_OF_UPDATES, Fusion, FusionEdge, FusionOptions, FusionReport, RowTileOptions,
    SiblingOptions, Verdict,
};
pub use memplan_lean::{
    BANDS, BandedPart, Bands, BandsReport, Borders, CHECKPOINT_LAYERS, Checkpoint, CheckpointLayers,
    GRADIENTS_FIRST, GradientsFirst, Halo, LOOP_RESIDUALS, LoopResiduals, LoweredPeak, MASKS_FROM_RESULTS,
    PARTS, PIN_LAYOUTS, Parts, PartsReport, Products, REMAT, REMAT_BEHIND_BARRIERS, REMAT_BEHIND_SELECTS,
    ROW_BLOCKS, Recomputed, Remat, RematReport, ResidualPair, ResidualsReport, RowBlocks,
    SPLIT_CONCATENATIONS, Saved, Saves, SplitConcatenations, Tie, checkpoint, kept_for_backward,
    narrow_arguments, narrow_values,
};
pub use memplan_loop_state::{
    CONDITIONAL_IN_PLACE, COUNTERS_PAST_BARRIERS, FLAT_LOOP_STATE, KeepWithinLoops, LOOP_STATE_IN_PLACE,
    LoopStateInPlace, ROWS_WITHIN_LOOPS, RowsWithinLoops, SUMS_IN_PLACE, UNINITIALIZED_RESULTS,
    UNINITIALIZED_STACKS, UPDATES_WITHIN_LOOPS, UpdatesWithinLoops,
};
pub use memplan_place::{
    AddsOrder, Because, COPY_INSERTION, Conflict, CopyInsertion, CopyReport, DEFAULT_LAYOUTS, DONATION,
    DYNAMIC_MARKS, FLATTEN_CALL_GRAPH, HOST_MEMORY, HOST_OFFLOAD, HandsBack, InsertedCopy, LAYOUT_ASSIGNMENT,
    LayoutAssignment, MustShare, OFFLOAD_HALF_ROWS, OFFLOAD_ROWS, OffloadReport, OffloadRows, Placed,
    Unsupported, donate, donations, insert_async_copies, keep_on_host, order_for_async_copies,
    results_in_donors, strip_fast_memory,
};
pub use memplan_rewriter::rows::makes_values;
pub use memplan_rewriter::{
    AnyPass, CALL_INLINER, CSE, Context, Cse, DCE, MAX_INLINED_PER_INSTRUCTION, OneIn, Outcome, Pass,
    PassError, PassFn, PassRun, Pipeline, Report, RunOptions, SINGLE_CALL_INLINER, run,
};
pub use memplan_simplify::{
    ALGEBRAIC_SIMPLIFIER, AlgebraicSimplifier, BITCAST_EXPANDER, CONDITIONAL_SIMPLIFIER, CONSTANT_FOLDING,
    ConditionalSimplifier, ConstantFolding, FUSION_INLINER, MotionWorth, NARROW_TRANSPOSES,
    OPTIMIZATION_BARRIER_EXPANDER, SCATTER_TO_SELECT, SHARDING_FOLDING, SHARDING_REMOVER,
    TUPLE_CONSTANT_EXPANDER, TUPLE_SIMPLIFIER, UNSHARE_SPLATS, WHILE_INVARIANT_CODE_MOTION,
    WHILE_INVARIANT_CODE_MOTION_OF_ALL, WHILE_INVARIANT_CODE_MOTION_OF_STORED, WHILE_LOOP_CONSTANT_SINKING,
    WHILE_SIMPLIFIER, WhileInvariantCodeMotion, WhileSimplifier,
};
pub use memplan_spmd::{OfOneDevice, SPMD_PARTITIONER, partition};
pub use memplan_xla::{
    BATCHED_GATHER_SCATTER_NORMALIZER, BFLOAT16_PROPAGATION, BROADCAST_REMATERIALIZER, CHANGE_OP_DATA_TYPE,
    COLLECTIVE_COMBINER, COLLECTIVE_LAYOUTS, COMPLEX_SPLITTER, CONVOLUTION_CANONICALIZATION,
    CONVOLUTION_LAYOUTS, CONVOLUTION_PADDING_LEGALIZATION, COPY_FUSION, CUDNN_FUSED_CONV_REWRITER,
    CollectiveCombiner, DEFAULT_RESULT_LAYOUTS, DIVISOR_RECIPROCAL, DOT_DECOMPOSER, DOT_DIMENSION_SORTER,
    DOT_MERGER, DOT_STRENGTH_REDUCTION, DotMerger, EVEN_SPLITS, EvenSplits, FFT_EXPANDER, FLAT_SCATTER,
    FLOAT_NORMALIZATION, GATHER_ROWS, GATHER_SIMPLIFIER, GEMM_WORKSPACE, GPU_LAYOUT_ASSIGNMENT,
    GPU_TREE_REDUCTION_REWRITER, GemmWorkspace, INNER_PRODUCTS, INSTRUCTION_FUSION, InstructionFusion,
    LAYOUT_CONSTRAINTS, LIBRARY_CALL_LAYOUTS, LIBRARY_FUSION, LOOP_BUFFERS, LibraryFusion,
    MATRIX_VECTOR_PRODUCTS, MOVE_COPY_TO_USERS, NARROW_KERNEL_RESULTS, RAGGED_DOT_REWRITER,
    REDUCE_SCATTER_DECOMPOSER, REDUCE_WINDOW_REWRITER, REDUCE_WINDOW_REWRITER_TO_LANES, RESHAPE_DECOMPOSER,
    RESHAPE_MOVER, RESHAPES_BY_ROWS, RNG_BIT_GENERATOR_EXPANDER, SCATTER_EXPANDER, SCATTER_OF_ADDEND,
    SCATTER_SLICE_SIMPLIFIER, SCATTERS_TOGETHER, SELECT_AND_SCATTER_EXPANDER, SMALL_TABLES,
    SOFTMAX_REWRITER_TRITON, SORT_IOTA_FUSION, SORTS_ACROSS_LANES, SPLITK_REWRITER, SPLITS_LAST,
    STABLE_SORT_EXPANDER, SUB_BYTE_SIZE_SETTER, SUMS_BEFORE_SPLITS, SplitkRewriter, SplitkRules,
    TOPK_DECOMPOSER, TRANSPOSE_FOLDING, TREE_REDUCTION_REWRITER, TRIANGULAR_SOLVE_LAYOUTS, TopkDecomposer,
    WIDEN_FOR_EACH_READER,
};
pub use micro_batches::micro_batches;
pub use of_compiler::of_compiler;
pub use pipeline::{FOLLOWABLE, KEEP_WITHIN_LOOPS, LEGALIZE, SIMPLIFY, TAKE_APART, legalize};
pub use resize::{ResizeError, Resized, resize};

/// Every pass by name, in alphabetical order.
pub const ALL: &[&dyn Pass] = &[
    &ALGEBRAIC_SIMPLIFIER,
    &BANDS,
    &BITCAST_EXPANDER,
    &CALL_INLINER,
    &CHECKPOINT_LAYERS,
    &CONDITIONAL_IN_PLACE,
    &CONDITIONAL_SIMPLIFIER,
    &CONSTANT_FOLDING,
    &COPY_INSERTION,
    &COUNTERS_PAST_BARRIERS,
    &CSE,
    &DCE,
    &DEFAULT_LAYOUTS,
    &DONATION,
    &DYNAMIC_MARKS,
    &EVEN_SPLITS,
    &FLAT_LOOP_STATE,
    &FLATTEN_CALL_GRAPH,
    &FOLLOWABLE,
    &FUSION,
    &FUSION_INLINER,
    &FUSION_OF_UPDATES,
    &GRADIENTS_FIRST,
    &HOST_OFFLOAD,
    &INNER_PRODUCTS,
    &KEEP_WITHIN_LOOPS,
    &LAYOUT_ASSIGNMENT,
    &LEGALIZE,
    &LOOP_RESIDUALS,
    &LOOP_STATE_IN_PLACE,
    &MASKS_FROM_RESULTS,
    &NARROW_TRANSPOSES,
    &UNINITIALIZED_RESULTS,
    &OFFLOAD_HALF_ROWS,
    &OFFLOAD_ROWS,
    &OPTIMIZATION_BARRIER_EXPANDER,
    &PARTS,
    &PIN_LAYOUTS,
    &REMAT,
    &REMAT_BEHIND_BARRIERS,
    &REMAT_BEHIND_SELECTS,
    &ROWS_WITHIN_LOOPS,
    &ROW_BLOCKS,
    &SCATTER_TO_SELECT,
    &SIMPLIFY,
    &SPLIT_CONCATENATIONS,
    &SUMS_IN_PLACE,
    &TAKE_APART,
    &UNSHARE_SPLATS,
    &UPDATES_WITHIN_LOOPS,
    &TUPLE_CONSTANT_EXPANDER,
    &TUPLE_SIMPLIFIER,
    &WHILE_INVARIANT_CODE_MOTION,
    &WHILE_SIMPLIFIER,
];

/// Passes that other compilers run and memplan does not, since programs need no less memory after them: what an estimate
/// of such a compiler is made with.
pub const FOREIGN: &[&dyn Pass] = &[
    &BATCHED_GATHER_SCATTER_NORMALIZER,
    &BFLOAT16_PROPAGATION,
    &CHANGE_OP_DATA_TYPE,
    &COLLECTIVE_COMBINER,
    &COLLECTIVE_LAYOUTS,
    &CONVOLUTION_CANONICALIZATION,
    &CONVOLUTION_LAYOUTS,
    &CONVOLUTION_PADDING_LEGALIZATION,
    &BROADCAST_REMATERIALIZER,
    &COPY_FUSION,
    &CUDNN_FUSED_CONV_REWRITER,
    &DEFAULT_RESULT_LAYOUTS,
    &DIVISOR_RECIPROCAL,
    &DOT_DECOMPOSER,
    &DOT_DIMENSION_SORTER,
    &DOT_MERGER,
    &DOT_STRENGTH_REDUCTION,
    &COMPLEX_SPLITTER,
    &FFT_EXPANDER,
    &FLAT_SCATTER,
    &FLOAT_NORMALIZATION,
    &GATHER_ROWS,
    &GATHER_SIMPLIFIER,
    &GEMM_WORKSPACE,
    &GPU_TREE_REDUCTION_REWRITER,
    &INSTRUCTION_FUSION,
    &GPU_LAYOUT_ASSIGNMENT,
    &LAYOUT_CONSTRAINTS,
    &MOVE_COPY_TO_USERS,
    &RESHAPE_MOVER,
    &WHILE_LOOP_CONSTANT_SINKING,
    &MATRIX_VECTOR_PRODUCTS,
    &LIBRARY_CALL_LAYOUTS,
    &LIBRARY_FUSION,
    &LOOP_BUFFERS,
    &SUB_BYTE_SIZE_SETTER,
    &RAGGED_DOT_REWRITER,
    &REDUCE_SCATTER_DECOMPOSER,
    &REDUCE_WINDOW_REWRITER,
    &REDUCE_WINDOW_REWRITER_TO_LANES,
    &RESHAPE_DECOMPOSER,
    &RESHAPES_BY_ROWS,
    &RNG_BIT_GENERATOR_EXPANDER,
    &SCATTER_OF_ADDEND,
    &SCATTER_EXPANDER,
    &SCATTER_SLICE_SIMPLIFIER,
    &SCATTERS_TOGETHER,
    &SELECT_AND_SCATTER_EXPANDER,
    &SHARDING_FOLDING,
    &SHARDING_REMOVER,
    &SPLITK_REWRITER,
    &SORTS_ACROSS_LANES,
    &SPLITS_LAST,
    &SPMD_PARTITIONER,
    &SINGLE_CALL_INLINER,
    &SOFTMAX_REWRITER_TRITON,
    &SMALL_TABLES,
    &SORT_IOTA_FUSION,
    &STABLE_SORT_EXPANDER,
    &SUMS_BEFORE_SPLITS,
    &TOPK_DECOMPOSER,
    &TRANSPOSE_FOLDING,
    &TREE_REDUCTION_REWRITER,
    &TRIANGULAR_SOLVE_LAYOUTS,
    &UNINITIALIZED_STACKS,
    &WHILE_INVARIANT_CODE_MOTION_OF_STORED,
    &WHILE_INVARIANT_CODE_MOTION_OF_ALL,
    &WIDEN_FOR_EACH_READER,
    &NARROW_KERNEL_RESULTS,
];

/// The pass with a name.
pub fn find(name: &str) -> Option<&'static dyn Pass> {
    ALL.iter().chain(FOREIGN).copied().find(|pass| pass.name() == name)
}
