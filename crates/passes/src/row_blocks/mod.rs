//! `row-blocks`: what is computed row by row is walked over in blocks of rows.
//!
//! Before: a program computes an array that is much wider than what it is made of and made into, such as attention
//! scores or logits, and no compiler has a kernel that holds a row of it on chip. After: a loop computes a block of it
//! at a time, so that it is never there as a whole; the gradient has a loop of its own, which computes each block again
//! (Rabe and Staats 2021).
//!
//! ```text
//!   s = f32[8,1024,1024] dot(q, k)            for i in 0..8:
//!   p = f32[8,1024,1024] softmax(s)     =>      s = f32[1,1024,1024] dot(q[i], k[i])
//!   o = f32[8,1024,64] dot(p, v)                p = f32[1,1024,1024] softmax(s)
//!                                               o[i] = dot(p, v[i])
//! ```
//!
//! - [`rows`] says how each operation treats rows.
//! - [`region`] grows a region from one wide array, and divides it among loops.
//! - [`choose`] says which regions pay, along which dimension, and in how many blocks.
//! - [`build`] writes the loops.
//!
//! A dimension along which all results are rows is preferred: then every number is what it was, bit for bit. Where there
//! is none, as for the gradient of the weights that logits are made with, sums over rows become sums of the sums over
//! blocks, in `f32` where they were narrower.
//!
//! Left alone: arrays that a compiler fuses away, or that are small beside the rest; control flow, sorts and
//! convolutions along the rows; modules for several partitions. Requires inlined calls. Common subexpressions of
//! different loops cannot be merged afterwards, so what is computed again stays so.

mod build;
mod choose;
mod region;
mod rows;

use memplan_ir::{InstructionId, Module, Names};
use memplan_memory::{Bytes, Target};
use rustc_hash::FxHashSet;

use crate::pass::call_graph;
use crate::{PassError, PassFn};
pub use choose::MIN_SHARE_IN_BLOCKS;
use region::{Places, Program};

/// The pass.
pub const ROW_BLOCKS: PassFn = PassFn {
    name: "row-blocks",
    description: "Walk over wide arrays in blocks of rows, in loops that compute them again for gradients",
    run: |module, context| walk_in_row_blocks(module, context.target, MIN_SHARE_IN_BLOCKS),
};

/// How often the peak is looked at anew: what was small beside it may be large beside the next one.
const MAX_ROUNDS: usize = 4;

/// Cuts arrays that take at least one part in `share` of what is live at the peak: what [`ROW_BLOCKS`] does, with its
/// choice. Says whether anything changed.
///
/// # Errors
/// When the call graph of the module is not sound.
pub fn walk_in_row_blocks(module: &mut Module, target: &Target, share: u64) -> Result<bool, PassError> {
    let mut changed = false;
    for _ in 0..MAX_ROUNDS {
        let smallest =
            choose::smallest_worthwhile(module, &call_graph(module, ROW_BLOCKS.name)?, target, share);
        if !cut_into_row_blocks(module, target, smallest)? {
            break;
        }
        changed = true;
    }
    Ok(changed)
}

/// Cuts arrays of at least `smallest` bytes into blocks of rows, where that saves as much: what [`ROW_BLOCKS`] does with
/// a size that follows from the module's peak. Says whether anything changed.
///
/// Takes time proportional to the module for each array that is cut, and to the region of each array that is tried.
///
/// # Errors
/// When the call graph of the module is not sound.
pub fn cut_into_row_blocks(module: &mut Module, target: &Target, smallest: Bytes) -> Result<bool, PassError> {
    if module.config.num_partitions.is_some_and(|n| n > 1) || module.is_scheduled {
        return Ok(false);
    }
    let graph = call_graph(module, ROW_BLOCKS.name)?;
    let mut names = Names::new(module);
    let mut places = Places::new(module);
    let seeds = choose::seeds(Program { module, target, places: &places }, &graph, smallest);
    let mut is_done: FxHashSet<InstructionId> = FxHashSet::default();
    for seed in seeds {
        if is_done.contains(&seed) {
            continue;
        }
        let program = Program { module, target, places: &places };
        let Some(region) = choose::choose(program, seed, smallest) else { continue };
        build::build(module, &region, &mut names);
        is_done.extend(region.treatments.into_keys());
        places = Places::new(module);
    }
    if !is_done.is_empty() {
        module.compact();
    }
    Ok(!is_done.is_empty())
}
