//! Passes of XLA's compilers that memplan's own compiler does not run: only estimates of XLA run them.
//!
//! Each preserves a program's meaning but changes its memory: numbers become wider or narrower, values are computed long
//! before their use, operands are rearranged to suit a library. The passes have XLA's names. A compiler's file lists
//! the passes that it runs; some have a table of options there, which only the pass itself parses.

/// A pass with the rules that a compiler's file has for it, and the pass with those of the first built-in compiler that has some.
macro_rules! pass_with_rules {
    ($constant:ident = $pass:ident($rules:ty), $name:literal, $description:literal, $run:expr) => {
        /// The pass.
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $pass {
            /// `None` for the rules of the first built-in compiler that has some.
            pub rules: Option<$rules>,
        }

        /// The pass with the rules of a built-in compiler.
        pub const $constant: $pass = $pass { rules: None };

        impl memplan_rewriter::Pass for $pass {
            fn name(&self) -> &'static str {
                $name
            }

            fn description(&self) -> &'static str {
                $description
            }

            fn run(
                &self,
                module: &mut memplan_ir::Module,
                context: &memplan_rewriter::Context<'_>,
            ) -> Result<memplan_rewriter::Outcome, memplan_rewriter::PassError> {
                let run: fn(&mut _, &_, &_) -> Result<bool, _> = $run;
                let rules = self.rules.clone().unwrap_or_else(|| crate::built_in($name));
                run(module, context, &rules).map(Into::into)
            }
        }
    };
}

mod batched_gather_scatter_normalizer;
mod bfloat16_propagation;
mod broadcast_rematerializer;
mod change_op_data_type;
mod collective_combiner;
mod collective_layouts;
mod complex_splitter;
mod convolution_canonicalization;
mod convolution_padding;
mod copy_fusion;
mod cudnn_fused_conv_rewriter;
mod divisor_reciprocal;
mod dot_decomposer;
mod dot_dimension_sorter;
mod dot_merger;
mod dot_strength_reduction;
mod even_splits;
mod fft_expander;
mod flat_scatter;
mod float_normalization;
mod fusions;
mod gather_rows;
mod gather_simplifier;
mod gemm_workspace;
mod gpu_layout_assignment;
mod gpu_tree_reduction_rewriter;
mod instruction_fusion;
mod layout_constraints;
mod library_call_layouts;
mod library_fusion;
mod loop_buffers;
mod move_copy_to_users;
mod narrow_kernel_results;
mod ragged_dot_rewriter;
mod reduce_scatter_decomposer;
mod reduce_window_rewriter;
mod reshape_decomposer;
mod reshape_mover;
mod reshapes_by_rows;
mod result_layouts;
mod rng_bit_generator_expander;
mod scatter_expander;
mod scatter_of_addend;
mod scatter_slice_simplifier;
mod select_and_scatter_expander;
mod small_tables;
mod softmax_rewriter_triton;
mod sort_iota_fusion;
mod sorts_across_lanes;
mod splitk_rewriter;
mod splits_last;
mod stable_sort_expander;
mod sub_byte_size_setter;
mod topk_decomposer;
mod tree_reduction_rewriter;
mod triangular_solve_layouts;
mod widen_for_each_reader;
mod workspace;

pub use batched_gather_scatter_normalizer::BATCHED_GATHER_SCATTER_NORMALIZER;
pub use bfloat16_propagation::BFLOAT16_PROPAGATION;
pub use broadcast_rematerializer::{
    BROADCAST_REMATERIALIZER, BroadcastRematerializer, BroadcastRematerializerRules,
};
pub use change_op_data_type::CHANGE_OP_DATA_TYPE;
pub use collective_combiner::{COLLECTIVE_COMBINER, CollectiveCombiner, CollectiveCombinerRules};
pub use collective_layouts::COLLECTIVE_LAYOUTS;
pub use complex_splitter::COMPLEX_SPLITTER;
pub use convolution_canonicalization::{CONVOLUTION_CANONICALIZATION, CONVOLUTION_LAYOUTS};
pub use convolution_padding::CONVOLUTION_PADDING_LEGALIZATION;
pub use copy_fusion::COPY_FUSION;
pub use cudnn_fused_conv_rewriter::CUDNN_FUSED_CONV_REWRITER;
pub use divisor_reciprocal::DIVISOR_RECIPROCAL;
pub use dot_decomposer::{DOT_DECOMPOSER, MATRIX_VECTOR_PRODUCTS, TRANSPOSE_FOLDING};
pub use dot_dimension_sorter::DOT_DIMENSION_SORTER;
pub use dot_merger::{DOT_MERGER, DotMerger, DotMergerRules};
pub use dot_strength_reduction::{
    DOT_STRENGTH_REDUCTION, DotStrengthReduction, DotStrengthReductionRules, INNER_PRODUCTS,
};
pub use even_splits::{EVEN_SPLITS, EvenSplits};
pub use fft_expander::FFT_EXPANDER;
pub use flat_scatter::FLAT_SCATTER;
pub use float_normalization::{FLOAT_NORMALIZATION, FloatNormalization};
pub use gather_rows::GATHER_ROWS;
pub use gather_simplifier::GATHER_SIMPLIFIER;
pub use gemm_workspace::{GEMM_WORKSPACE, GemmWorkspace, GemmWorkspaceRules};
pub use gpu_layout_assignment::GPU_LAYOUT_ASSIGNMENT;
pub use gpu_tree_reduction_rewriter::GPU_TREE_REDUCTION_REWRITER;
pub use instruction_fusion::{INSTRUCTION_FUSION, InstructionFusion, InstructionFusionRules};
pub use layout_constraints::LAYOUT_CONSTRAINTS;
pub use library_call_layouts::LIBRARY_CALL_LAYOUTS;
pub use library_fusion::{LIBRARY_FUSION, LibraryFusion, LibraryRules};
pub use loop_buffers::LOOP_BUFFERS;
pub use move_copy_to_users::MOVE_COPY_TO_USERS;
pub use narrow_kernel_results::NARROW_KERNEL_RESULTS;
pub use ragged_dot_rewriter::RAGGED_DOT_REWRITER;
pub use reduce_scatter_decomposer::REDUCE_SCATTER_DECOMPOSER;
pub use reduce_window_rewriter::{REDUCE_WINDOW_REWRITER, REDUCE_WINDOW_REWRITER_TO_LANES};
pub use reshape_decomposer::RESHAPE_DECOMPOSER;
pub use reshape_mover::RESHAPE_MOVER;
pub use reshapes_by_rows::RESHAPES_BY_ROWS;
pub use result_layouts::DEFAULT_RESULT_LAYOUTS;
pub use rng_bit_generator_expander::RNG_BIT_GENERATOR_EXPANDER;
pub use scatter_expander::SCATTER_EXPANDER;
pub use scatter_of_addend::{SCATTER_OF_ADDEND, SCATTERS_TOGETHER};
pub use scatter_slice_simplifier::SCATTER_SLICE_SIMPLIFIER;
pub use select_and_scatter_expander::SELECT_AND_SCATTER_EXPANDER;
pub use small_tables::SMALL_TABLES;
pub use softmax_rewriter_triton::SOFTMAX_REWRITER_TRITON;
pub use sort_iota_fusion::SORT_IOTA_FUSION;
pub use sorts_across_lanes::SORTS_ACROSS_LANES;
pub use splitk_rewriter::{SPLITK_REWRITER, SplitkRewriter, SplitkRules};
pub use splits_last::{SPLITS_LAST, SUMS_BEFORE_SPLITS};
pub use stable_sort_expander::{STABLE_SORT_EXPANDER, StableSortExpander, StableSortRules};
pub use sub_byte_size_setter::SUB_BYTE_SIZE_SETTER;
pub use topk_decomposer::{TOPK_DECOMPOSER, TopkDecomposer, TopkRules};
pub use tree_reduction_rewriter::TREE_REDUCTION_REWRITER;
pub use triangular_solve_layouts::TRIANGULAR_SOLVE_LAYOUTS;
pub use widen_for_each_reader::WIDEN_FOR_EACH_READER;

use memplan_memory::Compiler;
use serde::de::DeserializeOwned;

/// The options of a pass in the first built-in compiler that has some.
fn built_in<T: DeserializeOwned>(pass: &str) -> T {
    let read = |compiler: &Compiler| compiler.options_of(pass).expect("built-in compiler files are valid");
    Compiler::built_in().iter().find_map(read).expect("a built-in compiler has options for the pass")
}
