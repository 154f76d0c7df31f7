//! Packs the blocks that are live at the highest load first: for problems too large to search as a whole.
//!
//! ```text
//! load  ^        __               The blocks live where the load is above the line are few, and only they
//!       | - - - /- \\ - - -        decide whether the height can be near the load. They are searched alone,
//!       |    __/    \\__           at the height wanted; the others then fill in around them, first-fit.
//!       +--------------------> time
//! ```
//!
//! Each failure moves the line or the height, so a sequence of attempts covers both.

use alloc::vec;
use alloc::vec::Vec;

use crate::construct::Offsets;
use crate::first_fit;
use crate::instance::Instance;
use crate::options::Budget;
use crate::search::{self, Outcome, Search};

/// Tries one line after the other, and each height after the lower ones.
pub(crate) struct CriticalFirst<'a> {
    instance: &'a Instance,
    loads: Vec<u64>,
    /// The rest goes around in this order.
    order: Vec<u32>,
    seed: u64,
    n_tries: u64,
}

/// How high the lines are, in 1024ths of the bound.
const LINES: [u64; 5] = [1000, 960, 1020, 900, 800];

/// Blocks in a search, beyond which a try would be a matter of seconds.
const MOST_BLOCKS: usize = 4096;

impl<'a> CriticalFirst<'a> {
    /// `None` where first-fit would take too long, or loads are beyond 2^64.
    pub(crate) fn new(instance: &'a Instance, seed: u64) -> Option<Self> {
        let key = |block: u32| {
            let block = &instance.blocks[block as usize];
            core::cmp::Reverse(u128::from(block.size) * u128::from(block.upper - block.lower))
        };
        let mut order: Vec<u32> = (0..instance.blocks.len() as u32).collect();
        order.sort_by_cached_key(|&block| key(block));
        let loads = instance.loads()?;
        (instance.n_pieces() <= MOST_PIECES).then_some(CriticalFirst {
            instance,
            loads,
            order,
            seed,
            n_tries: 0,
        })
    }

    /// One try below `height`, aiming at the bound at first and higher later.
    pub(crate) fn run(&mut self, height: u64, lower_bound: u64, budget: &mut Budget<'_>) -> Option<Offsets> {
        let line = LINES[(self.n_tries % LINES.len() as u64) as usize];
        let sweep = self.n_tries / LINES.len() as u64;
        self.n_tries += 1;
        let gap = height.checked_sub(lower_bound + 1)?;
        // Nothing above the bound in the first sweep, then a sixth of the gap, a third and so on.
        let capacity = lower_bound + (u128::from(gap) * u128::from(sweep % 6) / 6) as u64;
        let critical = self.critical(u128::from(lower_bound) * u128::from(line) / 1024);
        budget.spend(self.instance.blocks.len() as u64);
        if critical.len() > MOST_BLOCKS {
            return None;
        }
        let part = self.instance.restrict(&critical);
        if !search::is_affordable(&part) {
            return None;
        }
        let mut search = Search::new(&part, capacity, self.seed.wrapping_add(self.n_tries));
        let Outcome::Packed(offsets) = search.run(8 * critical.len() as u64 + 1000, budget) else {
            return None;
        };
        let placed: Vec<(u32, u64)> = critical.into_iter().zip(offsets).collect();
        let packing = first_fit::pack_around(self.instance, &placed, &self.order, budget.clock())?;
        (packing.height < height).then_some(packing)
    }

    /// The blocks that are live in some section with a load above the line; fixed ones too.
    fn critical(&self, line: u128) -> Vec<u32> {
        let mut n_above = vec![0u32; self.loads.len() + 1];
        for (section, &load) in self.loads.iter().enumerate() {
            n_above[section + 1] = n_above[section] + u32::from(u128::from(load) >= line);
        }
        let is_critical = |&block: &u32| {
            let above = |piece: &crate::instance::Piece| {
                n_above[piece.upper as usize] > n_above[piece.lower as usize]
            };
            self.instance.blocks[block as usize].fixed.is_some()
                || self.instance.pieces(block as usize).iter().any(above)
        };
        (0..self.instance.blocks.len() as u32).filter(is_critical).collect()
    }
}

/// Quadratic time is a second or two up to here.
const MOST_PIECES: usize = 1 << 16;
