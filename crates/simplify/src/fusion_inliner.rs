//! `fusion-inliner`: puts the instructions of a fused computation in place of the fusion.
//!
//! ```text
//! fused { a = f32[4] parameter(0)
//!         ROOT n = f32[4] negate(a) }
//! ENTRY main {                                                ENTRY main {
//!   p = f32[4] parameter(0)                                     p = f32[4] parameter(0)
//!   ROOT f = f32[4] fusion(p), kind=kLoop, calls=fused   =>     ROOT n.1 = f32[4] negate(p)
//! }                                                           }
//! ```
//!
//! The best fusion depends on the machine, on recomputation, and on live values, so `compile` undoes the fusions of its
//! input and decides again.
//!
//! Leaves alone: fusions of kind `kCustom`, which name a kernel; those with control dependencies; and modules whose
//! layouts have meaning, since those inside a fusion do not. Requires nothing. *Changed* means that a fusion was
//! inlined.

use memplan_ir::{FusionKind, Module, Op};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter, inline};

/// Takes fusions apart.
pub const FUSION_INLINER: PassFn =
    PassFn { name: "fusion-inliner", description: "replace fusions by the fused computations", run };

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    if rewriter.is_layout_sensitive() {
        return Ok(false);
    }
    rewriter.sweep(|r, id| {
        let fusion = r.get(id);
        let is_ours = matches!(&fusion.op, Op::Fusion(fusion) if fusion.kind != FusionKind::Custom);
        if !is_ours || r.has_control_dependencies(id) {
            return None;
        }
        let (fused, operands) = (fusion.called[0], fusion.operands.to_vec());
        Some(inline(r, id, fused, &operands))
    });
    Ok(rewriter.finish())
}
