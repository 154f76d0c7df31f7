//! The groups of passes that run together, in order.

use std::borrow::Cow;

use memplan_ir::Module;
use memplan_memory::Target;

use crate::AnyPass::{self, Static};
use crate::{
    ALGEBRAIC_SIMPLIFIER, BITCAST_EXPANDER, CALL_INLINER, CONDITIONAL_SIMPLIFIER, CONSTANT_FOLDING,
    COPY_INSERTION, CSE, Context, DCE, DEFAULT_LAYOUTS, DYNAMIC_MARKS, FLAT_LOOP_STATE, FLATTEN_CALL_GRAPH,
    FUSION_INLINER, HOST_OFFLOAD, KeepWithinLoops, PassError, PassRun, Pipeline, RunOptions,
    TUPLE_CONSTANT_EXPANDER, TUPLE_SIMPLIFIER, UNSHARE_SPLATS, WHILE_INVARIANT_CODE_MOTION, WHILE_SIMPLIFIER,
    run,
};

/// One round. Inlining comes first, since everything else looks at one computation at a time.
const ROUND: &[AnyPass] = &[
    Static(&CALL_INLINER),
    Static(&TUPLE_SIMPLIFIER),
    Static(&ALGEBRAIC_SIMPLIFIER),
    Static(&CONSTANT_FOLDING),
    Static(&CSE),
    Static(&CONDITIONAL_SIMPLIFIER),
    Static(&WHILE_INVARIANT_CODE_MOTION),
    Static(&WHILE_SIMPLIFIER),
    Static(&DCE),
];

/// Most rounds of [`SIMPLIFY`]. Programs settle in three or four; a round that still changes something after this many
/// is worth less than its time.
const MAX_ROUNDS: usize = 8;

/// Runs all simplifications until nothing changes.
pub const SIMPLIFY: Pipeline = Pipeline {
    name: "simplify",
    description: "run all simplifications, round after round, until nothing changes",
    passes: Cow::Borrowed(ROUND),
    rounds: MAX_ROUNDS,
};

/// Takes apart what comes in whole and is put together anew.
pub const TAKE_APART: Pipeline = Pipeline {
    name: "take-apart",
    description: "undo fusions, bitcasts, and tuples in constants and loops, since later passes decide them again",
    passes: Cow::Borrowed(&[
        Static(&BITCAST_EXPANDER),
        Static(&TUPLE_CONSTANT_EXPANDER),
        Static(&FUSION_INLINER),
        Static(&FLAT_LOOP_STATE),
    ]),
    rounds: 1,
};

/// The passes that make the placement, the layouts and the aliasing of a module legal, so that it can be planned. A
/// module that has a schedule keeps its layouts, and gets no copies but of static arrays that meet dynamic ones.
pub const LEGALIZE: Pipeline = Pipeline {
    name: "legalize",
    description: "make placement, layouts and aliasing legal, so that the module can be planned",
    passes: Cow::Borrowed(&[
        Static(&BITCAST_EXPANDER),
        Static(&TUPLE_CONSTANT_EXPANDER),
        Static(&DEFAULT_LAYOUTS),
        Static(&HOST_OFFLOAD),
        Static(&FLATTEN_CALL_GRAPH),
        Static(&DYNAMIC_MARKS),
        Static(&COPY_INSERTION),
    ]),
    rounds: 1,
};

/// Runs [`LEGALIZE`]: call this before planning a module without `compile`.
///
/// # Errors
/// See [`PassError`].
pub fn legalize(module: &mut Module, target: &Target) -> Result<Vec<PassRun>, PassError> {
    run(module, &[&LEGALIZE], &Context { target }, RunOptions::default())
}

/// The passes to run on a module before tracking its dimensions: afterwards every value has one caller and one purpose,
/// so that only dimensions that must be equal are merged.
pub const FOLLOWABLE: Pipeline = Pipeline {
    name: "followable",
    description: "give every call and every constant its own values, so that dimensions can be tracked",
    passes: Cow::Borrowed(&[
        Static(&TUPLE_CONSTANT_EXPANDER),
        Static(&CALL_INLINER),
        Static(&TUPLE_SIMPLIFIER),
        Static(&FLATTEN_CALL_GRAPH),
        Static(&UNSHARE_SPLATS),
        Static(&DCE),
    ]),
    rounds: 1,
};

/// Sums kept within loops, with the limits that `compile` uses.
pub const KEEP_WITHIN_LOOPS: KeepWithinLoops = KeepWithinLoops {
    max_rounds: 8,
    max_operations: 64,
    min_summed_bytes: 64 << 10,
    simplify: &SIMPLIFY,
    simplifies_first: false,
};
