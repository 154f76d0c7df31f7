//! What XLA does to programs that memplan would not: rewrites that only an estimate of XLA runs.
//!
//! Each keeps what a program means, but not what it needs: numbers in a wider or narrower type, values computed long before they are
//! used, operands that only make a library's work easier. They have the names of XLA's passes, and a compiler's file says
//! which of them it runs, and with which numbers.

mod bfloat16_propagation;
mod convolution_canonicalization;
mod convolution_padding;
mod divisor_reciprocal;
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
pub use divisor_reciprocal::DIVISOR_RECIPROCAL;
pub use dot_decomposer::{DOT_DECOMPOSER, TRANSPOSE_FOLDING};
pub use float_normalization::FLOAT_NORMALIZATION;
pub use instruction_fusion::{INSTRUCTION_FUSION, InstructionFusion};
pub use library_fusion::{LIBRARY_FUSION, LibraryFusion};
pub use reshape_decomposer::RESHAPE_DECOMPOSER;
pub use splitk_rewriter::{SPLITK_REWRITER, SplitkRewriter};
pub use stable_sort_expander::STABLE_SORT_EXPANDER;
pub use transposed_state::TRANSPOSED_STATE;

use memplan_memory::Compiler;

use crate::{AnyPass, find};

/// The pass that a compiler's file names, with the rules in that file. `None` where memplan has no such pass.
pub fn of_compiler(name: &str, compiler: &Compiler) -> Option<AnyPass> {
    let pass = find(name)?;
    Some(match pass.name() {
        "instruction-fusion" => InstructionFusion { rules: compiler.instruction_fusion }.into(),
        "library-fusion" => LibraryFusion { rules: compiler.library }.into(),
        "splitk-rewriter" => SplitkRewriter { rules: compiler.splitk }.into(),
        _ => AnyPass::Static(pass),
    })
}

/// The rules of the first built-in compiler that has some.
fn built_in<T>(of: impl Fn(&Compiler) -> Option<T>) -> T {
    Compiler::built_in().iter().find_map(of).expect("a built-in compiler runs the pass")
}
