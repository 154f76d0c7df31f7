//! Propagates a decision to the fixed point: each section is a machine, its blocks are tasks.

use alloc::vec::Vec;

use super::skyline::Undo;
use super::{Search, WAITING};
use crate::float::sqrt;

impl Search<'_> {
    /// Draws conclusions until there are no more; false where they contradict each other.
    pub(super) fn propagate(&mut self) -> bool {
        while let Some(section) = self.dirty.pop_front() {
            self.is_dirty[section as usize] = false;
            if !self.conclude(section) {
                self.blame(section);
                while let Some(section) = self.dirty.pop_front() {
                    self.is_dirty[section as usize] = false;
                }
                return false;
            }
        }
        true
    }

    fn blame(&mut self, section: u32) {
        let weight = &mut self.weight[section as usize];
        *weight += 1.0;
        self.per_weight[section as usize] = 1.0 / sqrt(*weight);
    }

    /// The rules of one section.
    fn conclude(&mut self, section: u32) -> bool {
        let s = section as usize;
        if self.remaining[s] == 0 {
            return self.floor[s] <= self.scaled.capacity;
        }
        // Waiting blocks by least offset, where the floor counts.
        let mut tasks = core::mem::take(&mut self.tasks);
        let verdict = self.conclude_tasks(section, &mut tasks);
        tasks.clear();
        self.tasks = tasks;
        verdict
    }

    fn conclude_tasks(&mut self, section: u32, tasks: &mut Vec<(u64, u64, u32)>) -> bool {
        let s = section as usize;
        self.looked_at(self.live[s].len() as u32);
        let mut sorted = true;
        for index in 0..self.live[s].len() {
            let block = self.live[s][index];
            if self.offset[block as usize] != WAITING {
                continue;
            }
            if self.least[block as usize] < self.floor[s] && !self.lift(block, self.floor[s]) {
                return false;
            }
            let task =
                (self.least[block as usize], self.scaled.size_at(self.instance, block, section), block);
            sorted &= tasks.last().is_none_or(|last| last.0 <= task.0);
            tasks.push(task);
        }
        if !sorted {
            tasks.sort_by_key(|task| task.0);
            // The next sort starts from this order, which will be nearly right.
            let live = &mut self.live[s];
            let placed = live.iter().copied().filter(|&block| self.offset[block as usize] != WAITING);
            let order: smallvec::SmallVec<[u32; 64]> =
                tasks.iter().map(|task| task.2).chain(placed).collect();
            live.copy_from_slice(&order);
        }
        if tasks[0].0 > self.floor[s] {
            self.trail.push(Undo::Floor(section, self.floor[s]));
            self.floor[s] = tasks[0].0;
        }
        let n_here = tasks.iter().take_while(|task| task.0 == self.floor[s]).count() as u32;
        if n_here != self.n_here[s] {
            self.trail.push(Undo::Here(section, self.n_here[s]));
            self.n_here[s] = n_here;
        }
        // Sets that end too late, and blocks that cannot be first of a set.
        let capacity = self.scaled.capacity;
        let mut left = self.remaining[s];
        let mut end = self.floor[s];
        for &(least, size, _) in tasks.iter() {
            end = end.max(least);
            if end + left > capacity {
                return false;
            }
            end += size;
            left -= size;
        }
        let slack = capacity - self.floor[s] - self.remaining[s];
        let latest = self.floor[s] + slack;
        let n_first = tasks.iter().take_while(|task| task.0 <= latest).count();
        if n_first < tasks.len() {
            let after = tasks[..n_first]
                .iter()
                .map(|&(least, size, _)| least + size)
                .min()
                .expect("the first one can be first");
            for &(least, _, block) in &tasks[n_first..] {
                if least < after && !self.lift(block, after) {
                    return false;
                }
            }
        }
        if n_first == 1 {
            // It is next here for sure.
            let after = tasks[0].0 + tasks[0].1;
            for &(least, _, block) in &tasks[1..] {
                if least < after && !self.lift(block, after) {
                    return false;
                }
            }
        }
        true
    }

    /// Raises the least offset of a waiting block; false where it cannot be that high.
    fn lift(&mut self, block: u32, least: u64) -> bool {
        let index = block as usize;
        let least = self.scaled.first_place(self.instance, block, least, &self.offset);
        if least > self.scaled.last[index] {
            return false;
        }
        self.trail.push(Undo::Least(block, self.least[index]));
        self.least[index] = least;
        for piece in 0..self.instance.pieces(index).len() {
            let piece = self.instance.pieces(index)[piece];
            self.looked_at(piece.upper - piece.lower);
            for section in piece.lower..piece.upper {
                self.touch(section);
            }
        }
        true
    }
}
