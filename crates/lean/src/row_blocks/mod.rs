//! `row-blocks`: computes values that are independent by rows in a loop over blocks of rows.
//!
//! Before: a program computes an array that is much wider than its operands and results, such as attention scores or
//! logits, and no compiler has a kernel that keeps a row of it on chip. After: a loop computes one block at a time, so
//! that the array never exists as a whole; the gradient has its own loop, which recomputes each block (Rabe and Staats
//! 2021).
//!
//! ```text
//!   s = f32[8,1024,1024] dot(q, k)            for i in 0..8:
//!   p = f32[8,1024,1024] softmax(s)     =>      s = f32[1,1024,1024] dot(q[i], k[i])
//!   o = f32[8,1024,64] dot(p, v)                p = f32[1,1024,1024] softmax(s)
//!                                               o[i] = dot(p, v[i])
//! ```
//!
//! - [`rows`](crate::rows) describes how each operation treats rows.
//! - [`region`] grows a region from one wide array, and divides it among loops.
//! - [`choose`] selects the regions that are worth it, the dimension, and the number of blocks.
//! - [`build`] writes the loops.
//!
//! It prefers a dimension along which all results have rows: then every number is the same bit for bit. If there is
//! none, as for the gradient of the weights behind logits, sums over rows become sums of per-block sums, in `f32` if
//! they were narrower.
//!
//! Left alone: arrays that a compiler fuses away, or that are comparatively small; control flow, sorts and convolutions
//! along the rows; modules for several partitions. Requires inlined calls. Later passes cannot merge common
//! subexpressions of different loops, so they do not undo the recomputation.

mod build;
mod choose;
mod region;

use memplan_fusion::FusionOptions;
use memplan_ir::{InstructionId, Module, Names};
use memplan_memory::{Bytes, Target};
use memplan_rewriter::cost;
use memplan_rewriter::{Context, OneIn, Outcome, Pass, PassError, call_graph};
use rustc_hash::{FxHashMap, FxHashSet};

use choose::NotWorthIt;
use region::{Places, RegionContext};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBlocks {
    /// Arrays below this share of the live bytes at the peak stay whole: dividing them saves less than the loop's
    /// launches cost.
    pub min_share: OneIn,
    /// Cuts only the widest array that can be cut, such as logits, and those of at least half its bytes.
    pub widest_only: bool,
    /// Smaller arrays stay in caches anyway.
    pub min_bytes: Bytes,
    /// The fewest blocks. With fewer, most of the array is still in memory.
    pub min_blocks: u64,
    /// The most blocks. With more, blocks do not fill the machine.
    pub max_blocks: u64,
    /// How often to recompute the peak: arrays that were small beside it may be large beside the next one. A part of the
    /// arrays is cut in one round.
    pub max_rounds: usize,
    /// How much of the wide arrays is cut, in parts of [`WHOLE`](RowBlocks::WHOLE) of their bytes: the first layers of a
    /// network.
    pub parts_of_32: u32,
    /// Most instructions of a region. Attention has some fifty, forward and backward.
    pub max_members: usize,
    /// Arrays with at least this part of the elements of the widest one count as wide as that: a bias or a padding may come
    /// on top.
    pub wide: OneIn,
    /// A region must save at least this part of the wide arrays in it.
    pub min_saved: OneIn,
    /// An inner dimension is cut only where that saves more than an outer one by this part: blocks along an outer dimension
    /// are contiguous.
    pub outer_preference: OneIn,
    /// A region that computes the same numbers bit for bit is preferred to one that sums over blocks, unless it saves
    /// less than this share of the other's savings.
    pub exact_preference: OneIn,
    /// The options that fusion will have: the peak is that of the fused program.
    pub fusion: FusionOptions,
}

/// The pass with the options that `rewrite` begins with.
pub const ROW_BLOCKS: RowBlocks = RowBlocks {
    min_share: OneIn(64),
    widest_only: false,
    min_bytes: Bytes(1 << 20),
    min_blocks: 4,
    max_blocks: 16,
    max_rounds: 4,
    parts_of_32: RowBlocks::WHOLE,
    max_members: 4096,
    wide: OneIn(2),
    min_saved: OneIn(3),
    outer_preference: OneIn(8),
    exact_preference: OneIn(2),
    fusion: FusionOptions::DEFAULT,
};

impl Default for RowBlocks {
    fn default() -> RowBlocks {
        ROW_BLOCKS
    }
}

impl Pass for RowBlocks {
    fn name(&self) -> &'static str {
        "row-blocks"
    }

    fn description(&self) -> &'static str {
        "Compute wide arrays in blocks of rows, in loops that recompute them for gradients"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let target = context.target;
        let is_in_part = self.parts_of_32 < RowBlocks::WHOLE;
        let rounds = if self.widest_only || is_in_part { 1 } else { self.max_rounds };
        let mut changed = false;
        for _ in 0..rounds {
            let graph = call_graph(module, self.name())?;
            let smallest = choose::smallest_worthwhile(module, &graph, target, self);
            let mut most = u64::MAX;
            if is_in_part {
                let of_all = self.cut_up_to(most, &mut module.clone(), target, smallest)?;
                most =
                    (u128::from(of_all) * u128::from(self.parts_of_32) / u128::from(RowBlocks::WHOLE)) as u64;
            }
            if self.cut_up_to(most, module, target, smallest)? == 0 {
                break;
            }
            changed = true;
        }
        Ok(changed.into())
    }
}

impl RowBlocks {
    /// All wide arrays, in parts.
    pub const WHOLE: u32 = 32;

    /// Cuts arrays of at least `smallest` bytes into blocks of rows, where that saves as much: what the pass does with a
    /// size that follows from the module's peak. Says whether anything changed.
    ///
    /// Takes time proportional to the module for each array that is cut, and to the region of each array that is tried.
    ///
    /// # Errors
    /// When the call graph of the module is not sound.
    pub fn cut(&self, module: &mut Module, target: &Target, smallest: Bytes) -> Result<bool, PassError> {
        Ok(self.cut_up_to(u64::MAX, module, target, smallest)? > 0)
    }

    /// The same, until arrays of so many bytes are cut. Returns their bytes.
    fn cut_up_to(
        &self,
        most: u64,
        module: &mut Module,
        target: &Target,
        smallest: Bytes,
    ) -> Result<u64, PassError> {
        if module.config.num_partitions.is_some_and(|n| n > 1) || module.is_scheduled {
            return Ok(0);
        }
        let graph = call_graph(module, self.name())?;
        let mut names = Names::new(module);
        let mut places = Places::new(module);
        let program = RegionContext { module, target, places: &places, options: self };
        let seeds = choose::seeds(program, &graph, smallest);
        let bytes: FxHashMap<InstructionId, u64> =
            seeds.iter().map(|&seed| (seed, cost::result_bytes(module, target, seed))).collect();
        let mut is_done: FxHashSet<InstructionId> = FxHashSet::default();
        let mut not_worth_it = NotWorthIt::default();
        let (mut smallest, mut total) = (smallest, 0);
        for seed in seeds {
            let width = bytes[&seed];
            if is_done.contains(&seed) || width < smallest.0 {
                continue;
            }
            let program = RegionContext { module, target, places: &places, options: self };
            let Some(region) = choose::choose(program, seed, smallest, &mut not_worth_it) else { continue };
            let wide = region.treatments.keys().filter_map(|member| bytes.get(member).copied());
            let cut = wide.fold(0, u64::saturating_add);
            if u64::saturating_add(total, cut) > most {
                break;
            }
            total = total.saturating_add(cut);
            build::build(module, &region, &mut names);
            not_worth_it.clear();
            if self.widest_only {
                smallest = smallest.max(Bytes(width.div_ceil(2)));
            }
            is_done.extend(region.treatments.into_keys());
            places = Places::new(module);
        }
        if !is_done.is_empty() {
            module.compact();
        }
        Ok(total)
    }
}
