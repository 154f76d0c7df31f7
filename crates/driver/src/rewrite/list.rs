//! The rewrites, as data.

use memplan_ir::{Module, Op};
use memplan_memory::{Bytes, Compiler, Target, did_you_mean};
use memplan_passes as passes;
use memplan_passes::AnyPass::{self, Static};
use memplan_passes::{
    Borders, CheckpointLayers, GradientsFirst, KeepWithinLoops, LoopResiduals, LoopStateInPlace, OffloadRows,
    OneIn, Parts, Pass, Pipeline, Products, Remat, RowBlocks, RowsWithinLoops, Saved, Saves,
    UpdatesWithinLoops,
};

use crate::FirstGuess;

/// A way to need fewer bytes, by the name that `memplan rewrite` and `memplan fit` call it.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantNames,
)]
#[strum(serialize_all = "lowercase")]
pub enum Lever {
    /// Sums, values that never change, and rows that a loop reads are computed within it.
    Within,
    /// Values are computed again instead of kept.
    Recompute,
    /// State of loops and conditionals is changed in place.
    State,
    /// Slices that loops read of their state keep its layout.
    Layouts,
    /// Gradients of gathers are compared for instead of scattered.
    Gathers,
    /// Layers are computed again from what they began with.
    Checkpoint,
    /// The program runs over parts of its batch.
    Parts,
    /// Wide arrays exist in blocks of rows.
    Blocks,
    /// Barriers where the compiler would keep values for longer than it needs to.
    Order,
    /// Options of the compiler.
    Flags,
    /// Values wait in the host's memory.
    Offload,
}

/// There is no lever of a name.
#[derive(Debug, thiserror::Error)]
#[error("there is no lever `{name}`{meant}; the levers are {}", Lever::names().join(", "))]
pub struct NoLever {
    /// The name.
    pub name: String,
    /// The lever that was probably meant.
    meant: String,
}

impl Lever {
    /// The names of all levers.
    pub fn names() -> &'static [&'static str] {
        <Lever as strum::VariantNames>::VARIANTS
    }

    /// The lever of a name.
    ///
    /// # Errors
    /// [`NoLever`], with the lever that was probably meant.
    pub fn find(name: &str) -> Result<Lever, NoLever> {
        name.parse().map_err(|_| NoLever {
            name: name.to_string(),
            meant: did_you_mean(name, Lever::names().iter().copied()),
        })
    }
}

/// A rewrite, and its forms, which the search tries.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// The lever that it pulls.
    pub lever: Lever,
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub description: &'static str,
    /// The orders in which the program may run, the likeliest last.
    pub orders: Vec<FirstGuess>,
    /// The forms of the rewrite in a situation. Each is tried in each order.
    pub ways: fn(&Situation<'_>) -> Vec<AnyPass>,
    /// Which of them are tried.
    pub forms: Forms,
    /// Forms that do about so many of 32 parts of what the form of a number does. The search fits each to a limit, for the
    /// form that saves most and the one that saves most for its time.
    pub parts: Vec<fn(&Situation<'_>, usize, u32) -> AnyPass>,
    /// The least share of all bytes that a form must save: 0 where a form that saves nothing may help later ones.
    pub min_share: f64,
    /// Cleans up after it.
    pub cleanup: Pipeline,
    /// Bytes of the arrays in a program of the kind that it replaces, if only these can be saved.
    pub replaces: Option<fn(&Module, &Target) -> u64>,
}

/// How the forms of a rewrite depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    /// Each is tried.
    Apart,
    /// The first saves most bytes: if it saves nothing, no other does.
    Falling,
    /// The same, and if the first has nothing to change, no other has.
    Nested,
    /// The second half are those of the first half with more: each is tried if its form without saves nothing.
    Paired,
}

impl Forms {
    /// Of `n` forms, up to which the next ones are tried, if no form changed the program so far.
    pub(super) fn first(self, n: usize, n_tried: usize) -> usize {
        match self {
            Forms::Apart => n,
            Forms::Falling | Forms::Nested => (n_tried + 1).min(n),
            Forms::Paired if n_tried == 0 => n / 2,
            Forms::Paired => n,
        }
    }

    /// Of `n` forms, the one that must save nothing by itself for another one to be tried.
    pub(super) fn alone(self, form: usize, n: usize) -> Option<usize> {
        (self == Forms::Paired).then(|| form.checked_sub(n / 2)).flatten()
    }
}

/// The inputs for the forms of a rewrite.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The compiler to rewrite for.
    pub compiler: &'a Compiler,
    /// Whether the program will still be spread over several devices, so that row blocks may divide sharded rows.
    pub is_partitioned: bool,
}

/// Matrix products that may be recomputed, from nearly all to none.
const PRODUCTS: [Products; 4] =
    [Products::AllButEvery(16), Products::AllButEvery(4), Products::AllButEvery(2), Products::Cheap];

impl Rewrite {
    /// Every rewrite, in the order in which they are tried: rewrites that shorten loop state come first, since
    /// recomputation in loops depends on it.
    pub fn all() -> Vec<Rewrite> {
        let of_loops = [
            Static(&passes::WHILE_SIMPLIFIER),
            Static(&passes::TUPLE_SIMPLIFIER),
            Static(&passes::COUNTERS_PAST_BARRIERS),
            Static(&passes::DCE),
        ];
        let after_loops = Pipeline::new("clean up loops", "remove leftovers of changed loops", of_loops);
        let dead_code = [Static(&passes::COUNTERS_PAST_BARRIERS), Static(&passes::DCE)];
        let dead_code = Pipeline::new("clean up", "remove dead code", dead_code);
        let rewrite = |lever, name, description, ways| Rewrite {
            lever,
            name,
            description,
            orders: vec![FirstGuess::Text],
            ways,
            forms: Forms::Apart,
            parts: Vec::new(),
            min_share: 0.0,
            cleanup: dead_code.clone(),
            replaces: None,
        };
        // Tried twice: each part of a batch computes the rows again, so where they save little, parts come first.
        let rows_within_loops = Rewrite {
            cleanup: after_loops.clone(),
            ..rewrite(
                Lever::Within,
                "rows within loops",
                "a loop computes the rows that it reads of an array, which is never whole in memory",
                |now| if now.is_partitioned { Vec::new() } else { [false, true].map(rows_computed).into() },
            )
        };
        vec![
            rewrite(
                Lever::Recompute,
                "masks from results",
                "the mask of a maximum is computed from its result, which is kept anyway",
                masks,
            ),
            rewrite(
                Lever::Within,
                "within loops",
                "a loop sums values instead of stacking them for a later sum, and stacks no value that is equal in every step",
                within_loops,
            ),
            Rewrite { min_share: 1.0 / 16.0, ..rows_within_loops.clone() },
            Rewrite {
                cleanup: after_loops.clone(),
                forms: Forms::Nested,
                ..rewrite(
                    Lever::Recompute,
                    "loop residuals",
                    "a later loop recomputes row by row what an earlier loop kept for it",
                    residuals_recomputed,
                )
            },
            Rewrite {
                cleanup: after_loops.clone(),
                ..rewrite(
                    Lever::State,
                    "loop state in place",
                    "a loop overwrites rows that it has read with new rows",
                    |now| in_place(now).map(AnyPass::from).collect(),
                )
            },
            rewrite(
                Lever::State,
                "conditionals in place",
                "a conditional that changes or returns its operands changes them in place",
                |_| vec![Static(&passes::CONDITIONAL_IN_PLACE)],
            ),
            rewrite(
                Lever::Layouts,
                "layouts of loop state",
                "the slices that a loop reads of its state keep the layout of that state",
                pinned,
            ),
            rewrite(
                Lever::Layouts,
                "narrow transposes",
                "the smaller arrays around a product are transposed instead of the largest one",
                |_| vec![Static(&passes::NARROW_TRANSPOSES)],
            ),
            Rewrite {
                replaces: Some(bytes_of_scatters),
                ..rewrite(
                    Lever::Gathers,
                    "gradients of gathers",
                    "a scatter of one element per row becomes a comparison, which is never in memory",
                    |_| vec![Static(&passes::SCATTER_TO_SELECT)],
                )
            },
            rewrite(
                Lever::Blocks,
                "pieces of concatenations",
                "products read the pieces of a concatenation, which is never in memory",
                |now| {
                    if now.is_partitioned { Vec::new() } else { vec![passes::SPLIT_CONCATENATIONS.into()] }
                },
            ),
            Rewrite {
                forms: Forms::Paired,
                parts: vec![first_checkpointed, last_checkpointed],
                ..rewrite(
                    Lever::Checkpoint,
                    "checkpoints of layers",
                    "the backward half computes each layer again from what the layer began with and saved",
                    checkpoints,
                )
            },
            Rewrite {
                forms: Forms::Falling,
                ..rewrite(
                    Lever::Parts,
                    "parts of the batch",
                    "a loop runs the program over parts of its batch, and adds up what is summed over the batch",
                    in_parts,
                )
            },
            Rewrite {
                forms: Forms::Falling,
                parts: vec![first_in_blocks],
                ..rewrite(
                    Lever::Blocks,
                    "blocks of rows",
                    "a loop computes a wide array in blocks of rows, and again for its gradient",
                    blocks_of_rows,
                )
            },
            rows_within_loops,
            rewrite(
                Lever::State,
                "sums in place",
                "a loop that adds to zeros adds to what its sum is added to",
                |_| vec![Static(&passes::SUMS_IN_PLACE)],
            ),
            rewrite(
                Lever::Blocks,
                "sums in even parts",
                "products that the compiler would split unevenly, and so pad, are split evenly",
                even_splits,
            ),
            Rewrite {
                // JAX's text is a depth-first walk from the results, with the gradients of all weights last; every
                // compiler runs them as soon as it can.
                orders: vec![FirstGuess::Text, FirstGuess::Fused],
                forms: Forms::Nested,
                parts: vec![|now, _, n| recomputed_first(now, share(n))],
                ..rewrite(
                    Lever::Recompute,
                    "recomputation",
                    "values that are live across the peak are recomputed after it",
                    recomputed,
                )
            },
            Rewrite {
                cleanup: after_loops,
                ..rewrite(
                    Lever::State,
                    "updates within loops",
                    "a loop that makes gradients updates weights and the optimizer's state row by row",
                    updates_within_loops,
                )
            },
            rewrite(
                Lever::Order,
                "gradients by layer",
                "gradients of a layer's weights are complete before the gradients of the layer before it",
                gradients_first,
            ),
            Rewrite {
                forms: Forms::Nested,
                parts: vec![|_, _, n| OffloadRows { parts_of_32: n, ..OFFLOAD_SMALL_ROWS }.into()],
                ..rewrite(
                    Lever::Offload,
                    "kept on the host",
                    "values that are kept for the backward half are moved to the host's memory and back",
                    on_the_host,
                )
            },
        ]
    }
}

/// Only for compilers that keep barriers: others would compute the result again from its operands.
fn masks(now: &Situation<'_>) -> Vec<AnyPass> {
    if now.compiler.keeps_barriers { vec![Static(&passes::MASKS_FROM_RESULTS)] } else { Vec::new() }
}

/// Simplified first, since only then may a value be known not to change; but simplification could lose the program's
/// shardings.
fn within_loops(now: &Situation<'_>) -> Vec<AnyPass> {
    let way = KeepWithinLoops { simplifies_first: true, ..passes::KEEP_WITHIN_LOOPS };
    if now.is_partitioned { Vec::new() } else { vec![way.into()] }
}

/// Outside of loops: in them, every program has gradients first.
fn gradients_first(now: &Situation<'_>) -> Vec<AnyPass> {
    let way = GradientsFirst { in_loops: false, ..passes::GRADIENTS_FIRST };
    if holds_gradients_back(now.compiler) { vec![way.into()] } else { Vec::new() }
}

/// Whether a compiler holds back gradients of weights, with all that they need.
pub(super) fn holds_gradients_back(compiler: &Compiler) -> bool {
    compiler.latency_hiding.as_ref().is_some_and(|rules| rules.slice.is_some())
}

/// Without matrix products, or with them.
fn rows_computed(products: bool) -> AnyPass {
    RowsWithinLoops { products, ..passes::ROWS_WITHIN_LOOPS }.into()
}

/// Everything, as with `jax.checkpoint` around the layer, then products only: the sums of a softmax that are kept save little,
/// and take apart what XLA computes in one kernel.
fn residuals_recomputed(_: &Situation<'_>) -> Vec<AnyPass> {
    let way = |products| LoopResiduals { products, ..passes::LOOP_RESIDUALS }.into();
    [Products::All].into_iter().chain(PRODUCTS).map(way).collect()
}

/// Only for compilers that split sums of products.
fn even_splits(now: &Situation<'_>) -> Vec<AnyPass> {
    let name = passes::SPLITK_REWRITER.name();
    let splits = now.compiler.passes.iter().any(|pass| pass == name);
    // Options of built-in compilers are right; those of others were read before.
    let options =
        || now.compiler.options_of::<passes::SplitkRewriter>(name).ok().flatten().unwrap_or_default();
    if splits && !now.is_partitioned {
        vec![passes::EvenSplits { rules: options().rules }.into()]
    } else {
        Vec::new()
    }
}

/// Barriers cost a kernel for each row that is read, and save copies of whole arrays where rows have several readers.
fn in_place(now: &Situation<'_>) -> impl Iterator<Item = LoopStateInPlace> {
    let forms = if now.compiler.keeps_barriers { &[false, true][..] } else { &[false] };
    forms.iter().map(|&has_barriers| LoopStateInPlace { has_barriers, ..passes::LOOP_STATE_IN_PLACE })
}

/// Only where the compiler lets a loop choose the layout of its state.
fn pinned(now: &Situation<'_>) -> Vec<AnyPass> {
    let chooses = now.compiler.passes.iter().any(|pass| pass == "gpu-layout-assignment");
    if chooses { vec![Static(&passes::PIN_LAYOUTS)] } else { Vec::new() }
}

/// The forms of checkpoints: where layers end, and what is saved within a layer.
const CHECKPOINTS: [CheckpointLayers; 12] = [
    passes::CHECKPOINT_LAYERS,
    BEFORE_THE_LAST,
    CheckpointLayers { borders: Borders::Alike { every: 2 }, ..passes::CHECKPOINT_LAYERS },
    CheckpointLayers { borders: Borders::Segments(32), ..passes::CHECKPOINT_LAYERS },
    CheckpointLayers { borders: Borders::Segments(8), ..passes::CHECKPOINT_LAYERS },
    CheckpointLayers { saved: WEIGHED, ..BEFORE_THE_LAST },
    CheckpointLayers { saved: PRODUCTS_ONLY, ..BEFORE_THE_LAST },
    CheckpointLayers { saved: WEIGHED, borders: Borders::Segments(1), ..passes::CHECKPOINT_LAYERS },
    CheckpointLayers { saved: PRODUCTS_ONLY, borders: Borders::Segments(1), ..passes::CHECKPOINT_LAYERS },
    CheckpointLayers { saved: PRODUCTS_ONLY, borders: Borders::Products, ..passes::CHECKPOINT_LAYERS },
    CheckpointLayers { saved: Saved::Narrow(4), ..BEFORE_THE_LAST },
    CheckpointLayers { saved: Saved::Narrow(2), ..BEFORE_THE_LAST },
];

/// Values behind the last border are saved.
const BEFORE_THE_LAST: CheckpointLayers = CheckpointLayers { last_layer: false, ..passes::CHECKPOINT_LAYERS };
/// Products with weights are saved.
const WEIGHED: Saved = Saved::By(Saves::DotsWithNoBatchDims);
/// All products are saved.
const PRODUCTS_ONLY: Saved = Saved::By(Saves::Dots);

/// Only where the compiler keeps barriers until the recomputed values cannot be merged with the original ones.
///
/// A form saves nothing where the compiler makes recomputed values and the gradient behind them in one kernel. Then gradients
/// come first.
fn checkpoints(now: &Situation<'_>) -> Vec<AnyPass> {
    let forms = if now.compiler.keeps_barriers { 0..2 * CHECKPOINTS.len() } else { 0..0 };
    forms.map(|form| checkpointed(form, [0.0, 1.0])).collect()
}

/// A form of checkpoints in a part of the forward half. Those of the second half have gradients first.
fn checkpointed(form: usize, within: [f64; 2]) -> AnyPass {
    let gradients_first = form >= CHECKPOINTS.len();
    CheckpointLayers { within, gradients_first, ..CHECKPOINTS[form % CHECKPOINTS.len()] }.into()
}

fn first_checkpointed(_: &Situation<'_>, form: usize, n_parts: u32) -> AnyPass {
    checkpointed(form, [0.0, share(n_parts)])
}

fn last_checkpointed(_: &Situation<'_>, form: usize, n_parts: u32) -> AnyPass {
    checkpointed(form, [1.0 - share(n_parts), 1.0])
}

fn share(n_parts: u32) -> f64 {
    f64::from(n_parts) / f64::from(super::part::WHOLE)
}

/// Expensive products and all that is cheap, then what is cheap alone, then that in the first half or quarter of the program
/// before the peak.
fn recomputed(now: &Situation<'_>) -> Vec<AnyPass> {
    let of_products = PRODUCTS.map(|products| Remat { products, ..behind_ties(now) }.into());
    of_products.into_iter().chain([0.5, 0.25].map(|reach| recomputed_first(now, reach))).collect()
}

/// What is cheap in the first part of the program before the peak.
fn recomputed_first(now: &Situation<'_>, reach: f64) -> AnyPass {
    Remat { reach, ..behind_ties(now) }.into()
}

fn behind_ties(now: &Situation<'_>) -> Remat {
    if now.compiler.keeps_barriers { passes::REMAT_BEHIND_BARRIERS } else { passes::REMAT_BEHIND_SELECTS }
}

/// More parts need fewer bytes, and more time.
fn in_parts(now: &Situation<'_>) -> Vec<AnyPass> {
    let way = |n| Parts { n, ..passes::PARTS }.into();
    if now.is_partitioned { Vec::new() } else { [16, 8, 4, 2].map(way).into() }
}

/// Small arrays in blocks too, or only the widest, or in four blocks or two, since every loop and every block costs time.
const ROWS_IN_BLOCKS: [RowBlocks; 5] = [
    passes::ROW_BLOCKS,
    RowBlocks { min_share: OneIn(8), ..passes::ROW_BLOCKS },
    RowBlocks { widest_only: true, ..passes::ROW_BLOCKS },
    RowBlocks { min_blocks: 2, max_blocks: 4, ..passes::ROW_BLOCKS },
    RowBlocks { min_blocks: 2, max_blocks: 2, ..passes::ROW_BLOCKS },
];

fn blocks_of_rows(now: &Situation<'_>) -> Vec<AnyPass> {
    if now.is_partitioned { Vec::new() } else { ROWS_IN_BLOCKS.map(AnyPass::from).into() }
}

fn first_in_blocks(_: &Situation<'_>, form: usize, n_parts: u32) -> AnyPass {
    RowBlocks { parts_of_32: n_parts, ..ROWS_IN_BLOCKS[form] }.into()
}

/// Not for compilers of hosts: XLA's copies the old rows that the same step still reads, and then needs more.
fn updates_within_loops(now: &Situation<'_>) -> Vec<AnyPass> {
    let way = |in_place| UpdatesWithinLoops { in_place, ..passes::UPDATES_WITHIN_LOOPS }.into();
    if now.compiler.target == "cpu" { Vec::new() } else { in_place(now).map(way).collect() }
}

/// Rows of any size that is worth a transfer.
const OFFLOAD_SMALL_ROWS: OffloadRows = OffloadRows { min_row: Bytes(4 << 10), ..passes::OFFLOAD_ROWS };

/// The strongest form first: all arrays, all large ones, half of each row (the program may wait for reads), as much as the
/// link carries during the forward half, which is a third of the products.
fn on_the_host(now: &Situation<'_>) -> Vec<AnyPass> {
    let all = passes::OFFLOAD_ROWS;
    let hidden = OffloadRows { share_of_time: 1.0 / 3.0, ..all };
    let half = passes::OFFLOAD_HALF_ROWS;
    if now.is_partitioned {
        Vec::new()
    } else {
        [OFFLOAD_SMALL_ROWS, all, half, hidden].map(AnyPass::from).into()
    }
}

fn bytes_of_scatters(module: &Module, target: &Target) -> u64 {
    let instructions = module.computations.values().flat_map(|computation| &computation.instructions);
    let scatters = instructions.filter(|&&id| matches!(module.instructions[id].op, Op::Scatter(_)));
    let leaves = scatters.flat_map(|&id| module.shape(id).leaves());
    leaves.fold(0, |sum, (_, leaf)| sum.saturating_add(target.size_of(leaf).0))
}
