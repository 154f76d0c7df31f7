//! Chooses the next section to decide, and its candidates.

use super::{Candidates, LOW_FIRST, NOISE, Search, WAITING};
use crate::niche::round_up;

impl Search<'_> {
    /// Picks a section that has few choices for its failures and is low.
    ///
    /// A section is ready when all blocks that could be at its floor have nothing lower to wait for.
    pub(super) fn choose(&self, lower: u32, upper: u32) -> u32 {
        let mut unready: smallvec::SmallVec<[u32; 16]> = smallvec::SmallVec::new();
        loop {
            let mut best = (f64::INFINITY, upper);
            for section in lower..upper {
                let s = section as usize;
                if self.remaining[s] == 0 {
                    continue;
                }
                let may_waste = self.floor[s] + self.remaining[s] < self.scaled.capacity;
                let choices = f64::from(self.n_here[s] + u32::from(may_waste));
                let height = self.floor[s] as f64 * self.per_capacity;
                let score = choices * self.per_weight[s] + LOW_FIRST * height;
                if score < best.0 && !unready.contains(&section) {
                    best = (score, section);
                }
            }
            let (_, section) = best;
            if self.is_ready(section) {
                return section;
            }
            unready.push(section);
        }
    }

    /// The lowest sections always are.
    fn is_ready(&self, section: u32) -> bool {
        let floor = self.floor[section as usize];
        let here = |block: &&u32| self.is_waiting(**block) && self.least[**block as usize] == floor;
        self.live[section as usize].iter().filter(here).all(|&block| self.rests_at(block, floor))
    }

    pub(super) fn looked_at(&self, n: u32) {
        self.n_looks.set(self.n_looks.get() + u64::from(n));
    }

    pub(super) fn is_waiting(&self, block: u32) -> bool {
        self.offset[block as usize] == WAITING
    }

    /// Whether all sections of the block are at `floor`, so that nothing can still go below it.
    fn rests_at(&self, block: u32, floor: u64) -> bool {
        let pieces = self.instance.pieces(block as usize);
        pieces
            .iter()
            .all(|piece| (piece.lower..piece.upper).all(|section| self.floor[section as usize] == floor))
    }

    /// The blocks that can be at the floor of a section, the most promising first.
    pub(super) fn candidates(&self, section: u32) -> Candidates {
        let floor = self.floor[section as usize];
        let mut candidates: smallvec::SmallVec<[(f64, u32); 8]> = smallvec::SmallVec::new();
        for &block in &self.live[section as usize] {
            if !self.is_waiting(block) || self.least[block as usize] != floor {
                continue;
            }
            let twin_waits = self.twin[block as usize].is_some_and(|twin| self.is_waiting(twin));
            if !twin_waits && self.is_supported(block, floor) {
                candidates
                    .push((self.promise[block as usize] * (1.0 + NOISE * self.noise[block as usize]), block));
            }
        }
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        candidates.into_iter().map(|(_, block)| block).collect()
    }

    /// The next floor of a section where nothing is to be at the present one; `None` where that is too much waste.
    pub(super) fn raised_floor(&self, section: u32) -> Option<u64> {
        let floor = self.floor[section as usize];
        let slack = self.scaled.capacity - floor - self.remaining[section as usize];
        if slack == 0 {
            return None;
        }
        let mut raised = u64::MAX;
        // Sections with blocks that could be at the floor: all of them are at the floor, since this one is ready.
        let mut beside: smallvec::SmallVec<[(u32, u32); 8]> = smallvec::SmallVec::new();
        for &block in self.live[section as usize].iter().filter(|&&block| self.is_waiting(block)) {
            if self.least[block as usize] > floor {
                raised = raised.min(self.least[block as usize]);
            } else {
                let pieces = self.instance.pieces(block as usize);
                beside.extend(pieces.iter().map(|piece| (piece.lower, piece.upper)));
            }
        }
        // A block that could be at the floor but is not rests on something beside this section. Blocks waiting in its
        // gaps cannot hold it up.
        beside.sort_unstable();
        let mut next = 0;
        for (lower, upper) in beside {
            for beside in (lower.max(next)..upper).filter(|&beside| beside != section) {
                self.looked_at(self.live[beside as usize].len() as u32);
                for &block in self.live[beside as usize].iter().filter(|&&block| self.is_waiting(block)) {
                    let end = self.least[block as usize] + self.scaled.smallest[block as usize];
                    if end < raised && !self.is_live(block, section) {
                        raised = end;
                    }
                }
            }
            next = next.max(upper);
        }
        (raised > floor && raised - floor <= slack).then_some(raised)
    }

    fn is_live(&self, block: u32, section: u32) -> bool {
        self.instance
            .pieces(block as usize)
            .iter()
            .any(|piece| piece.lower <= section && section < piece.upper)
    }

    /// Whether the block would rest on another one, or the ground, at `offset`.
    pub(super) fn is_supported(&self, block: u32, offset: u64) -> bool {
        let alignment = self.scaled.alignment[block as usize];
        let rests = |section: u32| round_up(self.top[section as usize], alignment) == offset;
        self.scaled.fixed[block as usize].is_some()
            || self.instance.pieces(block as usize).iter().any(|piece| (piece.lower..piece.upper).any(rests))
    }
}
