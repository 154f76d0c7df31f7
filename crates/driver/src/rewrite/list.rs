//! The rewrites, as data.

use memplan_ir::{Module, Op};
use memplan_memory::{Compiler, Target};
use memplan_passes as passes;
use memplan_passes::AnyPass::{self, Static};
use memplan_passes::{KeepWithinLoops, LoopResiduals, OneIn, Pipeline, Products, Remat, RowBlocks, Tie};

use crate::FirstGuess;

/// A rewrite, and the ways to do it, of which that is taken which helps most.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// Its name.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// The orders in which the program may run, the likeliest last.
    pub orders: Vec<FirstGuess>,
    /// The ways to do it in a situation, the one that costs least time last. Each is tried in each order.
    pub ways: fn(&Situation<'_>) -> Vec<AnyPass>,
    /// Removes what it leaves behind.
    pub cleanup: Pipeline,
    /// Bytes of the arrays in a program of the kind that it replaces, where these are all that it saves.
    pub replaces: Option<fn(&Module, &Target) -> u64>,
}

/// What the ways of a rewrite depend on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Matrix products that may be computed again.
    pub products: Products,
    /// The compiler to rewrite for.
    pub compiler: &'a Compiler,
    /// Whether the program is yet to be spread over several devices, so that blocks of rows may cut what is cut already.
    pub is_partitioned: bool,
}

impl Rewrite {
    /// Every rewrite, in the order in which they are tried: what shortens the state of loops first, as what is recomputed
    /// within them depends on it.
    pub fn all() -> Vec<Rewrite> {
        let of_loops =
            [Static(&passes::WHILE_SIMPLIFIER), Static(&passes::TUPLE_SIMPLIFIER), Static(&passes::DCE)];
        let after_loops = Pipeline::new("clean up loops", "remove what changes of loops leave", of_loops);
        let dead_code = Pipeline::new("clean up", "remove dead code", [Static(&passes::DCE)]);
        let rewrite = |name, description, ways| Rewrite {
            name,
            description,
            orders: vec![FirstGuess::Text],
            ways,
            cleanup: dead_code.clone(),
            replaces: None,
        };
        vec![
            rewrite(
                "within loops",
                "a loop sums up what it would stack to be summed, and stacks nothing that stays the same",
                within_loops,
            ),
            Rewrite {
                cleanup: after_loops.clone(),
                ..rewrite(
                    "loop residuals",
                    "a later loop recomputes what an earlier one kept for it row by row",
                    |now| vec![LoopResiduals { products: now.products, ..passes::LOOP_RESIDUALS }.into()],
                )
            },
            Rewrite {
                cleanup: after_loops,
                ..rewrite(
                    "loop state in place",
                    "a loop writes new rows over the old rows that it has read",
                    |_| vec![Static(&passes::LOOP_STATE_IN_PLACE)],
                )
            },
            rewrite(
                "conditionals in place",
                "a conditional that changes its operands or hands them back changes them where they are",
                |_| vec![Static(&passes::CONDITIONAL_IN_PLACE)],
            ),
            Rewrite {
                replaces: Some(bytes_of_scatters),
                ..rewrite(
                    "gradients of gathers",
                    "a scatter of one element a row becomes a comparison, which is never in memory",
                    |_| vec![Static(&passes::SCATTER_TO_SELECT)],
                )
            },
            rewrite(
                "blocks of rows",
                "a loop computes a wide array a block of rows at a time, and again for its gradient",
                blocks_of_rows,
            ),
            Rewrite {
                // JAX's text is a walk from the results, depth first, in which the gradients of all weights come last;
                // every compiler runs them as soon as it can.
                orders: vec![FirstGuess::Text, FirstGuess::Fused],
                ..rewrite("recomputation", "what crosses the peak is computed again after it", |now| {
                    let tie = if now.compiler.keeps_barriers { Tie::Barrier } else { Tie::Select };
                    vec![Remat { tie: Some(tie), products: now.products, ..passes::REMAT }.into()]
                })
            },
        ]
    }
}

/// Simplified first, since what never changes may only then be seen not to; which could lose what a program says of how it is
/// spread over devices.
fn within_loops(now: &Situation<'_>) -> Vec<AnyPass> {
    let way = KeepWithinLoops { simplifies_first: true, ..passes::KEEP_WITHIN_LOOPS };
    if now.is_partitioned { Vec::new() } else { vec![way.into()] }
}

/// Blocks of small arrays, too, or only of the widest, as every loop costs time.
fn blocks_of_rows(now: &Situation<'_>) -> Vec<AnyPass> {
    let shares = [passes::ROW_BLOCKS.min_share, OneIn(8)];
    let way = |min_share| RowBlocks { min_share, ..passes::ROW_BLOCKS }.into();
    if now.is_partitioned { Vec::new() } else { shares.map(way).into() }
}

fn bytes_of_scatters(module: &Module, target: &Target) -> u64 {
    let instructions = module.computations.values().flat_map(|computation| &computation.instructions);
    let scatters = instructions.filter(|&&id| matches!(module.instructions[id].op, Op::Scatter(_)));
    let leaves = scatters.flat_map(|&id| module.shape(id).leaves());
    leaves.fold(0, |sum, (_, leaf)| sum.saturating_add(target.size_of(leaf).0))
}
