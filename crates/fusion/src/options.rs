//! Options that affect kernels, in addition to the rules of the target.

use memplan_memory::FusionGoal;
use memplan_rewriter::OneIn;

/// Limits and tolerances of fusion. The kernels that a machine has are data of the target
/// ([`memplan_memory::FusionRules`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusionOptions {
    /// The objective of fusing a producer; `None`: the target's.
    pub goal: Option<FusionGoal>,
    /// How often the instructions of a computation may be duplicated, on average. Training steps need about 3; the limit
    /// keeps chains of cheap operations that are all read twice from doubling the program with every link.
    pub max_duplication: usize,
    /// Fusing a producer may keep more bytes alive than its result takes, by this part of the result: that much, such as
    /// one number for each row, is worth a kernel less.
    pub slack: OneIn,
    /// How many cheap operations above a producer are followed to see which arrays must stay alive for it. Broadcast,
    /// reshape and convert come in threes; the search is exponential in the depth.
    pub max_source_depth: usize,
    /// An operand counts as large where it has more than this part of the elements of the result. Kernels with a unary
    /// prologue take one large operand, and any number of small ones, which are scales and biases.
    pub large_operand: OneIn,
    /// Kernels that hold rows of an expensive result on chip.
    pub rows: RowTileOptions,
    /// Kernels with the results of several.
    pub siblings: SiblingOptions,
}

/// Limits of kernels that hold rows of an expensive result on chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowTileOptions {
    /// Most kernels that are merged because they read the same rows. Attention has three: maximum, sum and product.
    pub max_kernels: usize,
    /// Most dots in one kernel: fused attention has two, and so have fused perceptrons.
    pub max_dots: usize,
    /// Most edges that are followed to see whether merged kernels would wait for each other. Kernels for which more would
    /// be needed are not merged.
    pub max_steps: usize,
}

/// Limits of merging kernels that read the same arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiblingOptions {
    /// Most edges that are followed to see whether two kernels would wait for each other. Siblings are near each other,
    /// and their results far from being read: most searches end after a few steps.
    pub max_steps: usize,
    /// The most edges to follow to see whether one kernel waits for operands of the other. Values that normalizations
    /// keep for the backward pass are as far away as the layers in between.
    pub max_wait_steps: usize,
    /// How many readers of an array, before one in the text, are tried as its siblings.
    pub max_neighbors: usize,
    /// Most readers of an array that are looked at to see whether two kernels are the only ones.
    pub max_readers: usize,
    /// Values of at most this many bytes, without padding, may be computed long before they are needed: a number, not
    /// an array.
    pub max_early_bytes: u64,
}

impl FusionOptions {
    /// The options of `compile`.
    pub const DEFAULT: FusionOptions = FusionOptions {
        goal: None,
        max_duplication: 16,
        slack: OneIn(16),
        max_source_depth: 3,
        large_operand: OneIn(8),
        rows: RowTileOptions { max_kernels: 6, max_dots: 2, max_steps: 4096 },
        siblings: SiblingOptions {
            max_steps: 1024,
            max_wait_steps: 1024,
            max_neighbors: 4,
            max_readers: 16,
            max_early_bytes: memplan_rewriter::NEGLIGIBLE_BYTES,
        },
    };
}

impl Default for FusionOptions {
    fn default() -> FusionOptions {
        FusionOptions::DEFAULT
    }
}
