//! Exact search: is there a packing within a capacity?
//!
//! The state is a skyline. For each section, everything below its `floor` is decided. A branching takes a section on a
//! lowest plateau and decides what is at the floor: one of the blocks that fit, or nothing, which raises the floor of
//! that section to the next possible offset. So no packing is visited twice, and every packing in which each block
//! rests on another one (or on the ground) is visited: every packing can be pushed down into such a one ("canonical",
//! as in MiniMalloc).
//!
//! Techniques that make it fast, by effect:
//!
//! - **Floors.** A floor rises to the least possible offset of any block still waiting there, which lifts blocks
//!   elsewhere, and so on to the fixed point. The lost bytes count against the slack.
//! - **Each section is a machine.** Its blocks must follow each other between the floor and the capacity, like tasks on
//!   one machine, so scheduling rules apply: sets that end too late, blocks that cannot be next and so start after
//!   another.
//! - **Parts.** If no waiting block crosses a point of time, both sides are independent, and if one has no solution the
//!   other's are not enumerated.
//! - **Memory.** Failed skylines are remembered; different orders often lead to the same ones.
//! - **Failures guide**: sections that fail often are decided first, and the search restarts.

use alloc::vec;
use alloc::vec::Vec;

mod choose;
mod propagate;
mod skyline;

use alloc::collections::VecDeque;
use core::cell::Cell;
use core::mem;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use self::skyline::Undo;
use crate::float::sqrt;
use crate::instance::Instance;
use crate::options::Budget;
use crate::rng::Rng;
use crate::units::Scaled;

/// The state of a search.
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
    failed: HashSet<(u64, u64), FxBuildHasher>,
    keys: Vec<(u64, u64)>,
    /// How often each section was where it failed.
    weight: Vec<f64>,
    /// One by the root of the weight.
    per_weight: Vec<f64>,
    /// One by the capacity.
    per_capacity: f64,
    /// The priority of a block: long and large ones first.
    promise: Vec<f64>,
    rng: Rng,
    /// Random part of the value order, for this run.
    noise: Vec<f64>,
    nodes_left: u64,
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
            failed: HashSet::default(),
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
                .map(|(block, &size)| f64::from(block.upper - block.lower) * sqrt(size as f64))
                .collect(),
            noise: vec![0.0; n],
            rng,
            nodes_left: 0,
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
            let mark = self.trail.len();
            let verdict = self.solve(budget);
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

    /// Places every waiting block, depth first. Open branchings are in a list, as they can be more than a thread's stack holds.
    fn solve(&mut self, budget: &mut Budget<'_>) -> Verdict {
        let mut open: Vec<Branching> = Vec::new();
        let mut parts = self.parts(0, self.floor.len() as u32);
        loop {
            let Some((lower, upper)) = parts.pop() else {
                // The last decision left nothing else, so the part that it was taken for is packed.
                let Some(packed) = open.pop() else { return Verdict::Found };
                parts = packed.beside;
                continue;
            };
            let key = self.key(lower, upper);
            if !self.failed.contains(&key) {
                self.looked_at(upper - lower);
                let section = self.choose(lower, upper);
                let candidates = self.candidates(section).into_iter();
                let (mark, beside) = (self.trail.len(), parts);
                open.push(Branching { lower, upper, key, section, candidates, raised: false, mark, beside });
            } else if let Some(above) = open.last() {
                self.undo(above.mark);
            }
            parts = match self.decide(&mut open, budget) {
                Ok(parts) => parts,
                Err(verdict) => return verdict,
            };
        }
    }

    /// Takes the next possible decision of the last branching that has one, and returns the parts that it leaves.
    fn decide(&mut self, open: &mut Vec<Branching>, budget: &mut Budget<'_>) -> Result<Parts, Verdict> {
        loop {
            let depth = open.len();
            let Some(last) = open.last_mut() else { return Err(Verdict::Failed) };
            let block = last.candidates.next();
            let floor = match block {
                None if !mem::replace(&mut last.raised, true) => self.raised_floor(last.section),
                _ => None,
            };
            if block.is_none() && floor.is_none() {
                if self.failed.len() >= MOST_FAILURES {
                    self.failed.clear();
                }
                self.failed.insert(last.key);
                open.pop();
                if let Some(above) = open.last() {
                    self.undo(above.mark);
                }
                continue;
            }
            if self.nodes_left == 0 || depth > most_depth(self.instance) || !budget.spend(1) {
                return Err(Verdict::Stopped);
            }
            self.nodes_left -= 1;
            if let Some(block) = block {
                self.place(block);
            } else if let Some(floor) = floor {
                self.set_floor(last.section, floor);
            }
            let is_possible = self.propagate();
            budget.strain(self.n_looks.take());
            if is_possible {
                return Ok(self.parts(last.lower, last.upper));
            }
            self.undo(last.mark);
        }
    }

    /// The maximal runs of sections connected by waiting blocks, those that failed most last.
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
            parts.reverse();
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
}

/// A part of the sections and the decisions that are left to try on one of them.
struct Branching {
    lower: u32,
    upper: u32,
    /// The name of the part's state.
    key: (u64, u64),
    section: u32,
    /// The blocks that may still go to the floor of the section.
    candidates: <Candidates as IntoIterator>::IntoIter,
    /// Whether raising the floor instead was tried.
    raised: bool,
    /// The length of the trail before the present decision.
    mark: usize,
    /// The parts to be packed after this one.
    beside: Parts,
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
