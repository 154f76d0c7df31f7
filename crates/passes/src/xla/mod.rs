//! What XLA does to programs that memplan would not: rewrites that only an estimate of XLA runs.
//!
//! Each keeps what a program means, but not what it needs: numbers in a wider or narrower type, values computed long before they are
//! used, operands that only make a library's work easier. They have the names of XLA's passes, and a compiler's file says
//! which of them it runs.

mod bfloat16_propagation;
mod convolution_canonicalization;
mod convolution_padding;
mod dot_decomposer;
mod float_normalization;
mod fusions;
mod instruction_fusion;
mod library_fusion;
mod reshape_decomposer;
mod splitk_rewriter;
mod stable_sort_expander;
mod transposed_state;

pub use bfloat16_propagation::BFLOAT16_PROPAGATION;
pub use convolution_canonicalization::CONVOLUTION_CANONICALIZATION;
pub use convolution_padding::CONVOLUTION_PADDING_LEGALIZATION;
pub use dot_decomposer::{DOT_DECOMPOSER, TRANSPOSE_FOLDING};
pub use float_normalization::FLOAT_NORMALIZATION;
pub use instruction_fusion::INSTRUCTION_FUSION;
pub use library_fusion::LIBRARY_FUSION;
pub use reshape_decomposer::RESHAPE_DECOMPOSER;
pub use splitk_rewriter::SPLITK_REWRITER;
pub use stable_sort_expander::STABLE_SORT_EXPANDER;
pub use transposed_state::TRANSPOSED_STATE;
