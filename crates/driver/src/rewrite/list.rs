//! The rewrites, as data.

use memplan_ir::{Module, Op};
use memplan_memory::{Compiler, Target};
use memplan_passes as passes;
use memplan_passes::AnyPass::{self, Static};
use memplan_passes::{KeepWithinLoops, LoopResiduals, OneIn, Parts, Pipeline, Products, Remat, RowBlocks, Tie};

use crate::FirstGuess;

/// A rewrite, and its forms, of which the most helpful one is chosen.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub description: &'static str,
    /// The orders in which the program may run, the likeliest last.
    pub orders: Vec<FirstGuess>,
    /// The forms of the rewrite in a situation, the one that costs least time last. Each is tried in each order.
    pub ways: fn(&Situation<'_>) -> Vec<AnyPass>,
    /// Cleans up after it.
    pub cleanup: Pipeline,
    /// Bytes of the arrays in a program of the kind that it replaces, if only these can be saved.
    pub replaces: Option<fn(&Module, &Target) -> u64>,
}

/// The inputs for the forms of a rewrite.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Matrix products that may be recomputed.
    pub products: Products,
    /// The compiler to rewrite for.
    pub compiler: &'a Compiler,
    /// Whether the program will still be spread over several devices, so that row blocks may divide sharded rows.
    pub is_partitioned: bool,
}

impl Rewrite {
    /// Every rewrite, in the order in which they are tried: rewrites that shorten loop state come first, since
    /// recomputation in loops depends on it.
    pub fn all() -> Vec<Rewrite> {
        let of_loops =
            [Static(&passes::WHILE_SIMPLIFIER), Static(&passes::TUPLE_SIMPLIFIER), Static(&passes::DCE)];
        let after_loops = Pipeline::new("clean up loops", "remove leftovers of changed loops", of_loops);
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
                "a loop sums values instead of stacking them for a later sum, and stacks no value that is equal in every step",
                within_loops,
            ),
            Rewrite {
                cleanup: after_loops.clone(),
                ..rewrite(
                    "loop residuals",
                    "a later loop recomputes row by row what an earlier loop kept for it",
                    |now| vec![LoopResiduals { products: now.products, ..passes::LOOP_RESIDUALS }.into()],
                )
            },
            Rewrite {
                cleanup: after_loops,
                ..rewrite(
                    "loop state in place",
                    "a loop overwrites rows that it has read with new rows",
                    |_| vec![Static(&passes::LOOP_STATE_IN_PLACE)],
                )
            },
            rewrite(
                "conditionals in place",
                "a conditional that changes or returns its operands changes them in place",
                |_| vec![Static(&passes::CONDITIONAL_IN_PLACE)],
            ),
            Rewrite {
                replaces: Some(bytes_of_scatters),
                ..rewrite(
                    "gradients of gathers",
                    "a scatter of one element per row becomes a comparison, which is never in memory",
                    |_| vec![Static(&passes::SCATTER_TO_SELECT)],
                )
            },
            rewrite("parts", "the program runs over parts of its batch, one after the other", in_parts),
            rewrite(
                "blocks of rows",
                "a loop computes a wide array in blocks of rows, and again for its gradient",
                blocks_of_rows,
            ),
            Rewrite {
                // JAX's text is a depth-first walk from the results, with the gradients of all weights last; every
                // compiler runs them as soon as it can.
                orders: vec![FirstGuess::Text, FirstGuess::Fused],
                ..rewrite(
                    "recomputation",
                    "values that are live across the peak are recomputed after it",
                    |now| {
                        let tie = if now.compiler.keeps_barriers { Tie::Barrier } else { Tie::Select };
                        vec![Remat { tie: Some(tie), products: now.products, ..passes::REMAT }.into()]
                    },
                )
            },
        ]
    }
}

/// Simplified first, since only then may a value be known not to change; but simplification could lose the program's
/// shardings.
fn within_loops(now: &Situation<'_>) -> Vec<AnyPass> {
    let way = KeepWithinLoops { simplifies_first: true, ..passes::KEEP_WITHIN_LOOPS };
    if now.is_partitioned { Vec::new() } else { vec![way.into()] }
}

/// More parts need fewer bytes, and more time.
fn in_parts(now: &Situation<'_>) -> Vec<AnyPass> {
    let way = |n| Parts { n, ..passes::PARTS }.into();
    if now.is_partitioned { Vec::new() } else { [16, 8, 4, 2].map(way).into() }
}

/// Small arrays in blocks too, or only the widest, since every loop costs time.
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
