//! Passes as compilers run them.

use memplan_memory::Compiler;
use memplan_xla::{GemmWorkspace, InstructionFusion, LibraryFusion, SplitkRewriter};

use crate::{AnyPass, find};

/// The pass that a compiler's file names, with the rules in that file. `None` where memplan has no such pass.
pub fn of_compiler(name: &str, compiler: &Compiler) -> Option<AnyPass> {
    let pass = find(name)?;
    Some(match pass.name() {
        "gemm-workspace" => GemmWorkspace { bytes: compiler.gemm_workspace }.into(),
        "instruction-fusion" => InstructionFusion { rules: compiler.instruction_fusion }.into(),
        "library-fusion" => LibraryFusion { rules: compiler.library }.into(),
        "splitk-rewriter" => SplitkRewriter { rules: compiler.splitk }.into(),
        _ => AnyPass::Static(pass),
    })
}
