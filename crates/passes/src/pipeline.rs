//! Which passes run together, and in which order.

use memplan_ir::Module;

use crate::{
    ALGEBRAIC_SIMPLIFIER, BITCAST_EXPANDER, CALL_INLINER, CONDITIONAL_SIMPLIFIER, CONSTANT_FOLDING,
    COPY_INSERTION, CSE, Context, DCE, DEFAULT_LAYOUTS, FLATTEN_CALL_GRAPH, FUSION_INLINER, HOST_OFFLOAD,
    Pass, PassError, TUPLE_CONSTANT_EXPANDER, TUPLE_SIMPLIFIER, WHILE_INVARIANT_CODE_MOTION,
    WHILE_SIMPLIFIER,
};

/// One round. Inlining comes first, since everything else looks at one computation at a time.
const ROUND: &[Pass] = &[
    CALL_INLINER,
    TUPLE_SIMPLIFIER,
    ALGEBRAIC_SIMPLIFIER,
    CONSTANT_FOLDING,
    CSE,
    CONDITIONAL_SIMPLIFIER,
    WHILE_INVARIANT_CODE_MOTION,
    WHILE_SIMPLIFIER,
    DCE,
];

/// Most rounds of [`SIMPLIFY`]. Programs settle in three or four; a round that still changes something after this many
/// is worth less than its time.
const MAX_ROUNDS: usize = 8;

/// Runs all simplifications until nothing changes.
pub const SIMPLIFY: Pass = Pass {
    name: "simplify",
    description: "run all simplifications, round after round, until nothing changes",
    run: simplify,
};

/// The simplifications of `compile`: what comes in whole is taken apart, then one round pass by pass, so that it can be
/// stopped anywhere, then [`SIMPLIFY`].
pub fn simplification_pipeline() -> Vec<Pass> {
    let apart = [BITCAST_EXPANDER, TUPLE_CONSTANT_EXPANDER, FUSION_INLINER];
    apart.iter().chain(ROUND).chain([&SIMPLIFY]).copied().collect()
}

/// The passes that make the placement, the layouts and the aliasing of a module legal, so that it can be planned. A module that has a
/// schedule keeps its layouts, and gets no copies.
pub const LEGALIZE: [Pass; 6] = [
    BITCAST_EXPANDER,
    TUPLE_CONSTANT_EXPANDER,
    DEFAULT_LAYOUTS,
    HOST_OFFLOAD,
    FLATTEN_CALL_GRAPH,
    COPY_INSERTION,
];

fn simplify(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let mut changed_any = false;
    // A pass that met this very module before left it as it is.
    let mut n_settled = 0;
    for pass in std::iter::repeat_n(ROUND, MAX_ROUNDS).flatten() {
        if n_settled == ROUND.len() {
            break;
        }
        match (pass.run)(module, context)? {
            true => (changed_any, n_settled) = (true, 0),
            false => n_settled += 1,
        }
    }
    Ok(changed_any)
}
