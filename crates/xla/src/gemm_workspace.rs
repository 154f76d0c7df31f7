//! `gemm-workspace`: adds the working memory of a library's matrix products.
//!
//! ```text
//!   d = c64[8,8] dot(x, y)      =>      t = (c64[8,8], u8[4194304]) fusion(x, y), calls={dot, and zeros}
//!                                       d = c64[8,8] get-tuple-element(t), index=0
//! ```
//!
//! XLA's GPU compiler generates kernels for real products, and calls cuBLAS for complex ones; the call writes a second
//! result that nobody reads (seen on jaxlib 0.10.2). Left alone: products inside fusions. *Changed* means that there
//! was a product of complex numbers.

use memplan_ir::{InstructionId, Module, Op};
use memplan_memory::Bytes;
use memplan_rewriter::{Context, PassError};
use serde::Deserialize;

use super::workspace;

/// The library's working memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmWorkspaceRules {
    /// Bytes for each call.
    pub bytes: Bytes,
}

pass_with_rules!(
    GEMM_WORKSPACE = GemmWorkspace(GemmWorkspaceRules),
    "gemm-workspace",
    "give cuBLAS working memory for products of complex numbers, as XLA's GPU compiler does",
    run
);

fn run(module: &mut Module, _: &Context<'_>, rules: &GemmWorkspaceRules) -> Result<bool, PassError> {
    let needed = |module: &Module, id| is_for_library(module, id).then_some(rules.bytes);
    workspace::give(module, ("gemm-workspace", "gemm"), needed)
}

fn is_for_library(module: &Module, id: InstructionId) -> bool {
    let is_complex = module.shape(id).as_array().is_some_and(|array| array.element_type.is_complex());
    matches!(module.instructions[id].op, Op::Dot(_)) && is_complex
}
