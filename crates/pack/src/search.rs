//! Exact search: is there a packing within a capacity?
//!
//! The state is a skyline. For each section `floor` says that everything below is decided. A branching
//! takes a section on a lowest plateau and decides what goes there at the floor: one of the blocks that
//! fit, or nothing, which raises the floor of that section to the next offset that something could have.
//! So no packing is met twice, and every packing in which each block rests on another one (or on the
//! ground) is met: a packing can always be pushed down into such a one ("canonical", as in MiniMalloc).
//!
//! What makes it fast, in the order of effect:
//!
//! - **Floors.** A floor rises to the least offset that any block still waiting there can have, which
//!   lifts blocks elsewhere, and so on to the fixed point. The bytes lost count against the slack.
//! - **Each section is a machine.** Its blocks must follow each other between the floor and the capacity,
//!   as tasks do on one machine, so the rules of scheduling apply: sets that end too late, blocks that
//!   cannot be the next one and so start after another.
//! - **Parts.** Where no waiting block crosses a point of time, both sides are independent, and if one has
//!   no solution the other's are not enumerated.
//! - **Memory.** Skylines that failed are remembered; different orders lead to the same ones all the time.
//! - **Failures guide**: sections that fail often are decided first, and the search restarts.

use std::cell::Cell;
use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use crate::instance::Instance;
use crate::niche::round_up;
use crate::options::Budget;
use crate::rng::Rng;
use crate::units::Scaled;

/// Where a search stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Offsets within the capacity.
    Packed(Vec<u64>),
    /// There are none.
    Infeasible,
    /// It can go on.
    Open,
}

/// Heights of canonical packings differ by multiples of this, up to the size of the block on top.
pub(crate) fn unit(instance: &Instance) -> u64 {
    Scaled::new(instance, 0).height_step()
}

/// Whether the search can look at its whole state at every node: the sections times the blocks live there.
pub(crate) fn is_affordable(instance: &Instance) -> bool {
    instance.n_pieces() <= MOST_PIECES && instance.area() <= MOST_AREA
}

/// The state is linear in the area, so this is some tens of megabytes.
const MOST_AREA: u64 = 4 << 20;
const MOST_PIECES: usize = 1 << 15;

/// Stack that a thread needs for the search of this instance.
pub(crate) fn stack_bytes(instance: &Instance) -> usize {
    // Three frames a level, under a kilobyte each even without optimization.
    most_depth(instance) * 3072 + (1 << 20)
}

/// Decisions above each other: every placement, and as many floors given up. Deeper is not tried in this run.
fn most_depth(instance: &Instance) -> usize {
    (3 * instance.n_pieces() + 1000).min(100_000)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Found,
    Failed,
    /// The budget of this run (or of all) is spent.
    Stopped,
}

/// One entry of the trail: what a value was before.
#[derive(Clone, Copy)]
enum Undo {
    Floor(u32, u64),
    Top(u32, u64),
    Least(u32, u64),
    Here(u32, u32),
    Placed(u32),
}

/// Failed skylines that are remembered, 16 bytes each and some for the table.
const MOST_FAILURES: usize = 1 << 22;

/// How much being low counts against having few choices.
const LOW_FIRST: f64 = 3.0;

/// How far random choices may reorder the candidates: up to this share of their promise.
const NOISE: f64 = 0.75;

const WAITING: u64 = u64::MAX;

/// The search for a packing within one capacity; it can be run a while and taken up again.
pub(crate) struct Search<'a> {
    instance: &'a Instance,
    scaled: Scaled,
    /// Blocks of each section.
    live: Vec<Vec<u32>>,
    /// An identical block that is placed first.
    twin: Vec<Option<u32>>,
    floor: Vec<u64>,
    /// The end of the block below the floor; less than the floor where bytes were given up.
    top: Vec<u64>,
    /// Bytes of the waiting blocks of each section.
    remaining: Vec<u64>,
    /// How many waiting blocks may be at the floor of each section.
    n_here: Vec<u32>,
    /// How many waiting blocks cross from each section to the next.
    n_crossing: Vec<u32>,
    /// The names of the waiting blocks that begin in each section, combined.
    waiting_key: Vec<(u64, u64)>,
    /// For each waiting block an offset that it cannot be below.
    least: Vec<u64>,
    /// The offset of each block, [`WAITING`] where it has none.
    offset: Vec<u64>,
    trail: Vec<Undo>,
    dirty: VecDeque<u32>,
    tasks: Vec<(u64, u64, u32)>,
    is_dirty: Vec<bool>,
    /// Skylines without a solution.
    failed: FxHashSet<(u64, u64)>,
    keys: Vec<(u64, u64)>,
    /// How often each section was where it failed.
    weight: Vec<f64>,
    /// One by the root of the weight.
    per_weight: Vec<f64>,
    /// One by the capacity.
    per_capacity: f64,
    /// What speaks for placing a block early: it is long, and large.
    promise: Vec<f64>,
    rng: Rng,
    /// Random part of the value order, for this run.
    noise: Vec<f64>,
    nodes_left: u64,
    levels_left: usize,
    n_runs: u64,
    /// Sections and blocks looked at since the budget was last told.
    n_looks: Cell<u64>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(instance: &'a Instance, capacity: u64, seed: u64) -> Self {
        let scaled = Scaled::new(instance, capacity);
        let n = instance.blocks.len();
        let mut live = vec![Vec::new(); instance.n_sections];
        let mut remaining = vec![0; instance.n_sections];
        for block in 0..n {
            for piece in scaled.pieces(instance, block) {
                for section in piece.lower..piece.upper {
                    live[section as usize].push(block as u32);
                    remaining[section as usize] += piece.size;
                }
            }
        }
        let mut rng = Rng::new(seed);
        let keys: Vec<(u64, u64)> = (0..n).map(|_| (rng.next(), rng.next())).collect();
        let mut waiting_key = vec![(0, 0); instance.n_sections];
        let mut n_crossing = vec![0; instance.n_sections];
        for (block, key) in instance.blocks.iter().zip(&keys) {
            toggle(&mut waiting_key[block.lower as usize], *key);
            for section in block.lower..block.upper - 1 {
                n_crossing[section as usize] += 1;
            }
        }
        Search {
            twin: twins(instance, &scaled),
            floor: vec![0; instance.n_sections],
            top: vec![0; instance.n_sections],
            live,
            remaining,
            least: (0..n).map(|block| scaled.fixed[block].unwrap_or(0)).collect(),
            offset: vec![WAITING; n],
            trail: Vec::new(),
            dirty: VecDeque::new(),
            tasks: Vec::new(),
            is_dirty: vec![false; instance.n_sections],
            failed: FxHashSet::default(),
            keys,
            waiting_key,
            n_crossing,
            n_here: vec![0; instance.n_sections],
            weight: vec![1.0; instance.n_sections],
            per_weight: vec![1.0; instance.n_sections],
            per_capacity: 1.0 / scaled.capacity.max(1) as f64,
            promise: instance
                .blocks
                .iter()
                .zip(&scaled.size)
                .map(|(block, &size)| f64::from(block.upper - block.lower) * (size as f64).sqrt())
                .collect(),
            noise: vec![0.0; n],
            rng,
            nodes_left: 0,
            levels_left: 0,
            n_runs: 0,
            n_looks: Cell::new(0),
            instance,
            scaled,
        }
    }

    /// Searches for about `nodes` more decisions: runs of varying length, each with other random choices.
    /// Failures are remembered from run to run.
    pub(crate) fn run(&mut self, nodes: u64, budget: &mut Budget<'_>) -> Outcome {
        if !self.scaled.fits_by_size() {
            return Outcome::Infeasible;
        }
        for section in 0..self.floor.len() as u32 {
            self.touch(section);
        }
        if !self.propagate() {
            return Outcome::Infeasible;
        }
        let mut left = nodes;
        while left > 0 && !budget.is_over() {
            self.n_runs += 1;
            let limit = left.min(luby(self.n_runs) * (2 * self.offset.len() as u64 + 128));
            self.nodes_left = limit;
            self.levels_left = most_depth(self.instance);
            let mark = self.trail.len();
            let verdict = self.solve(0, self.floor.len() as u32, budget);
            left -= limit - self.nodes_left;
            match verdict {
                Verdict::Found => return Outcome::Packed(self.scaled.unscale(&self.offset)),
                Verdict::Failed => return Outcome::Infeasible,
                Verdict::Stopped => self.undo(mark),
            }
            for noise in &mut self.noise {
                *noise = self.rng.unit();
            }
            // A run that ended for its depth alone must not go on forever.
            left = left.saturating_sub(1);
        }
        Outcome::Open
    }

    /// Places every waiting block within the sections `lower..upper`, which none crosses.
    fn solve(&mut self, lower: u32, upper: u32, budget: &mut Budget<'_>) -> Verdict {
        let parts = self.parts(lower, upper);
        if parts.is_empty() {
            return Verdict::Found;
        }
        let mark = self.trail.len();
        for &(lower, upper) in &parts {
            let verdict = self.branch(lower, upper, budget);
            if verdict != Verdict::Found {
                self.undo(mark);
                return verdict;
            }
        }
        Verdict::Found
    }

    /// Decides what is next on one section of a part.
    fn branch(&mut self, lower: u32, upper: u32, budget: &mut Budget<'_>) -> Verdict {
        let key = self.key(lower, upper);
        if self.failed.contains(&key) {
            return Verdict::Failed;
        }
        self.looked_at(upper - lower);
        let section = self.choose(lower, upper);
        for block in self.candidates(section) {
            let verdict = self.descend(lower, upper, budget, |search| search.place(block));
            if verdict != Verdict::Failed {
                return verdict;
            }
        }
        if let Some(floor) = self.raised_floor(section) {
            let verdict = self.descend(lower, upper, budget, |search| search.set_floor(section, floor));
            if verdict != Verdict::Failed {
                return verdict;
            }
        }
        if self.failed.len() >= MOST_FAILURES {
            self.failed.clear();
        }
        self.failed.insert(key);
        Verdict::Failed
    }

    /// Takes a decision and everything after it; undoes it all unless a packing was found.
    fn descend(
        &mut self,
        lower: u32,
        upper: u32,
        budget: &mut Budget<'_>,
        decide: impl FnOnce(&mut Self),
    ) -> Verdict {
        if self.nodes_left == 0 || self.levels_left == 0 || !budget.spend(1) {
            return Verdict::Stopped;
        }
        self.nodes_left -= 1;
        self.levels_left -= 1;
        let mark = self.trail.len();
        decide(self);
        let is_possible = self.propagate();
        budget.strain(self.n_looks.take());
        let verdict = if is_possible { self.solve(lower, upper, budget) } else { Verdict::Failed };
        self.levels_left += 1;
        if verdict == Verdict::Failed {
            self.undo(mark);
        }
        verdict
    }

    /// The maximal runs of sections that waiting blocks tie together, those that failed most first.
    fn parts(&self, lower: u32, upper: u32) -> Parts {
        let mut parts = Parts::new();
        let mut from = lower;
        for section in lower..upper {
            if self.n_crossing[section as usize] == 0 || section + 1 == upper {
                if from < section || self.remaining[section as usize] > 0 {
                    parts.push((from, section + 1));
                }
                from = section + 1;
            }
        }
        if parts.len() > 1 {
            let weight = |part: &(u32, u32)| {
                self.weight[part.0 as usize..part.1 as usize].iter().copied().fold(0.0, f64::max)
            };
            parts.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        }
        parts
    }

    /// A name for the state of a part: its floors and the blocks waiting there.
    fn key(&self, lower: u32, upper: u32) -> (u64, u64) {
        let mut key = (u64::from(lower), u64::from(upper));
        for section in lower as usize..upper as usize {
            if self.remaining[section] == 0 {
                continue;
            }
            // A block may rest on a floor only where something is below it, so that is part of the state.
            let gap = self.floor[section] - self.top[section];
            let gap = if self.scaled.is_simple { gap.min(1) } else { gap };
            let value = self.floor[section].wrapping_mul(2).wrapping_add(gap.wrapping_mul(0x9e37_79b9));
            let waiting = self.waiting_key[section];
            key.0 = (key.0.rotate_left(5) ^ value ^ waiting.0).wrapping_mul(0x517c_c1b7_2722_0a95);
            key.1 = (key.1.rotate_left(23) ^ value ^ waiting.1).wrapping_mul(0x2545_f491_4f6c_dd1d);
        }
        key
    }

    /// Picks a section that has few choices for its failures and is low.
    ///
    /// A section is ready when all blocks that could be at its floor have nothing lower to wait for.
    fn choose(&self, lower: u32, upper: u32) -> u32 {
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

    fn looked_at(&self, n: u32) {
        self.n_looks.set(self.n_looks.get() + u64::from(n));
    }

    fn is_waiting(&self, block: u32) -> bool {
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
    fn candidates(&self, section: u32) -> Candidates {
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
    fn raised_floor(&self, section: u32) -> Option<u64> {
        let floor = self.floor[section as usize];
        let slack = self.scaled.capacity - floor - self.remaining[section as usize];
        if slack == 0 {
            return None;
        }
        let mut raised = u64::MAX;
        let mut reach = (section, section + 1);
        for &block in self.live[section as usize].iter().filter(|&&block| self.is_waiting(block)) {
            if self.least[block as usize] > floor {
                raised = raised.min(self.least[block as usize]);
            } else {
                let data = &self.instance.blocks[block as usize];
                reach = (reach.0.min(data.lower), reach.1.max(data.upper));
            }
        }
        // One that could be at the floor but is not rests on something beside this section.
        for beside in (reach.0..reach.1).filter(|&beside| beside != section) {
            self.looked_at(self.live[beside as usize].len() as u32);
            for &block in self.live[beside as usize].iter().filter(|&&block| self.is_waiting(block)) {
                let end = self.least[block as usize] + self.scaled.smallest[block as usize];
                if end < raised && !self.is_live(block, section) {
                    raised = end;
                }
            }
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
    fn is_supported(&self, block: u32, offset: u64) -> bool {
        let alignment = self.scaled.alignment[block as usize];
        let rests = |section: u32| round_up(self.top[section as usize], alignment) == offset;
        self.scaled.fixed[block as usize].is_some()
            || self.instance.pieces(block as usize).iter().any(|piece| (piece.lower..piece.upper).any(rests))
    }

    /// Puts a block at its least offset.
    fn place(&mut self, block: u32) {
        let offset = self.least[block as usize];
        self.trail.push(Undo::Placed(block));
        for index in 0..self.instance.pieces(block as usize).len() {
            let piece = self.instance.pieces(block as usize)[index];
            let size = self.scaled.piece_size(piece.size);
            for section in piece.lower..piece.upper {
                self.trail.push(Undo::Top(section, self.top[section as usize]));
                self.top[section as usize] = offset + size;
                self.set_floor(section, offset + size);
            }
        }
        self.set_offset(block, offset);
    }

    /// Gives a block its offset or takes it away, with everything that is counted over waiting blocks.
    fn set_offset(&mut self, block: u32, offset: u64) {
        self.offset[block as usize] = offset;
        let sign = if offset == WAITING { 1 } else { u32::MAX };
        let data = &self.instance.blocks[block as usize];
        toggle(&mut self.waiting_key[data.lower as usize], self.keys[block as usize]);
        for n_crossing in &mut self.n_crossing[data.lower as usize..data.upper as usize - 1] {
            *n_crossing = n_crossing.wrapping_add(sign);
        }
        for piece in self.instance.pieces(block as usize) {
            let size = self.scaled.piece_size(piece.size);
            let size = if offset == WAITING { size } else { size.wrapping_neg() };
            for remaining in &mut self.remaining[piece.lower as usize..piece.upper as usize] {
                *remaining = remaining.wrapping_add(size);
            }
        }
    }

    fn set_floor(&mut self, section: u32, floor: u64) {
        self.trail.push(Undo::Floor(section, self.floor[section as usize]));
        self.floor[section as usize] = floor;
        self.touch(section);
    }

    fn touch(&mut self, section: u32) {
        if !std::mem::replace(&mut self.is_dirty[section as usize], true) {
            self.dirty.push_back(section);
        }
    }

    fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop().expect("the trail is longer than the mark") {
                Undo::Floor(section, floor) => self.floor[section as usize] = floor,
                Undo::Top(section, top) => self.top[section as usize] = top,
                Undo::Least(block, least) => self.least[block as usize] = least,
                Undo::Here(section, n_here) => self.n_here[section as usize] = n_here,
                Undo::Placed(block) => self.set_offset(block, WAITING),
            }
        }
    }

    /// Draws conclusions until there are no more; false where they contradict each other.
    fn propagate(&mut self) -> bool {
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
        self.per_weight[section as usize] = 1.0 / weight.sqrt();
    }

    /// The rules of one section.
    fn conclude(&mut self, section: u32) -> bool {
        let s = section as usize;
        if self.remaining[s] == 0 {
            return self.floor[s] <= self.scaled.capacity;
        }
        // Waiting blocks by least offset, where the floor counts.
        let mut tasks = std::mem::take(&mut self.tasks);
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
            let mut at = tasks.len();
            tasks.push(task);
            while at > 0 && tasks[at - 1].0 > task.0 {
                tasks[at] = tasks[at - 1];
                at -= 1;
                sorted = false;
            }
            tasks[at] = task;
        }
        if !sorted {
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
            for section in piece.lower..piece.upper {
                self.touch(section);
            }
        }
        true
    }
}

type Parts = smallvec::SmallVec<[(u32, u32); 4]>;
type Candidates = smallvec::SmallVec<[u32; 8]>;

fn toggle(sum: &mut (u64, u64), key: (u64, u64)) {
    *sum = (sum.0 ^ key.0, sum.1 ^ key.1);
}

/// For each block the one before it that is the same in everything.
fn twins(instance: &Instance, scaled: &Scaled) -> Vec<Option<u32>> {
    let key = |block: u32| {
        let index = block as usize;
        (instance.pieces(index), scaled.alignment[index], scaled.fixed[index])
    };
    let mut order: Vec<u32> = (0..instance.blocks.len() as u32).collect();
    order.sort_by(|&a, &b| key(a).cmp(&key(b)).then(a.cmp(&b)));
    let mut twins = vec![None; order.len()];
    for pair in order.windows(2) {
        if key(pair[0]) == key(pair[1]) {
            twins[pair[1] as usize] = Some(pair[0]);
        }
    }
    twins
}

/// The sequence 1 1 2 1 1 2 4 ... (Luby, Sinclair, Zuckerman: "Optimal speedup of Las Vegas algorithms", 1993).
fn luby(index: u64) -> u64 {
    let mut index = index;
    loop {
        let power = 64 - index.leading_zeros();
        if index == (1 << power) - 1 {
            return 1 << (power - 1);
        }
        index -= (1 << (power - 1)) - 1;
    }
}
