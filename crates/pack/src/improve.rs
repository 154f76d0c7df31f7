//! Improves a first packing, and proves bounds.
//!
//! Two kinds of workers share the time. A *prover* searches at the lower bound (or the requested capacity): it either
//! finishes or raises the bound. A *descender* bisects between the heights known to be impossible and the best found,
//! giving each height a number of nodes that grows from sweep to sweep. Work is divided into rounds of a number of
//! nodes, and workers share results only between rounds, so the result does not depend on the timing of threads.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::construct::Offsets;
use crate::critical::CriticalFirst;
use crate::instance::Instance;
use crate::options::{Budget, Clock};
use crate::sample::Sampler;
use crate::search::{self, Outcome, Search};
use crate::{Options, profile};

/// The goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Fit(u64),
    Lowest,
}

impl Goal {
    /// The height that needs no improvement.
    pub(crate) fn enough(self, lower_bound: u64) -> u64 {
        match self {
            Goal::Fit(capacity) => capacity.max(lower_bound),
            Goal::Lowest => lower_bound,
        }
    }
}

/// A packing of the blocks and the bounds proved for all packings.
#[derive(Clone, Debug)]
pub(crate) struct Best {
    pub(crate) offsets: Vec<u64>,
    pub(crate) height: u64,
    pub(crate) lower_bound: u64,
    /// Decisions tried by all workers.
    pub(crate) nodes: u64,
}

impl Best {
    /// Whether more work could change the answer.
    fn is_open(&self, goal: Goal) -> bool {
        match goal {
            Goal::Fit(capacity) => self.lower_bound <= capacity && capacity < self.height,
            Goal::Lowest => self.lower_bound < self.height,
        }
    }
}

/// Improves a packing until the goal is reached or a limit is.
pub(crate) fn improve(
    instance: &Instance,
    first: Offsets,
    lower_bound: u64,
    goal: Goal,
    options: &Options,
    clock: &Clock,
) -> Best {
    let mut best = Best { offsets: first.offsets, height: first.height, lower_bound, nodes: 0 };
    report(&best, options, clock);
    if !best.is_open(goal) || options.node_limit == Some(0) || clock.is_over() {
        return best;
    }
    // Only blocks above the goal need to move.
    let blocks = tall_blocks(instance, &best.offsets, goal.enough(lower_bound));
    let part = instance.restrict(&blocks);
    let offsets = blocks.iter().map(|&block| best.offsets[block as usize]).collect();
    let mut part_best = Best { offsets, ..best.clone() };
    let on_better = |part_best: &Best| report(part_best, options, clock);
    rounds(&part, &mut part_best, goal, options, clock, &on_better);
    for (&block, &offset) in blocks.iter().zip(&part_best.offsets) {
        best.offsets[block as usize] = offset;
    }
    best.height = profile::height(instance, &best.offsets).expect("no block is above where it was");
    (best.lower_bound, best.nodes) = (part_best.lower_bound, part_best.nodes);
    best
}

fn report(best: &Best, options: &Options, clock: &Clock) {
    if let Some(progress) = &options.progress {
        progress(clock.progress(best.height, best.lower_bound, best.nodes));
    }
}

/// The blocks of those independent parts of time that are higher than `enough`.
fn tall_blocks(instance: &Instance, offsets: &[u64], enough: u64) -> Vec<u32> {
    let end = |&block: &u32| offsets[block as usize] + instance.blocks[block as usize].size;
    let mut components = instance.components();
    components.retain(|component| component.iter().any(|block| end(block) > enough));
    components.into_iter().flatten().collect()
}

/// Nodes that a worker gets in the first round; later ones get more, as setting up costs as well.
const FIRST_ROUND: u64 = 4096;
const LONGEST_ROUND: u64 = 1 << 16;

fn rounds(
    instance: &Instance,
    best: &mut Best,
    goal: Goal,
    options: &Options,
    clock: &Clock,
    on_better: &dyn Fn(&Best),
) {
    let mut workers = workers(instance, goal, options, clock);
    let mut nodes = FIRST_ROUND;
    while best.is_open(goal) && workers.iter().any(|worker| !worker.budget.is_over()) {
        for found in run_round(&mut workers, best, nodes, options.threads.max(1)) {
            best.lower_bound = best.lower_bound.max(found.lower_bound);
            if found.height < best.height {
                (best.offsets, best.height) = (found.offsets, found.height);
            }
        }
        best.nodes = workers.iter().map(|worker| worker.budget.nodes()).sum();
        on_better(best);
        nodes = (nodes * 2).min(LONGEST_ROUND);
    }
}

/// Blocks up to which searching the whole is the best use of time.
const FEW_BLOCKS: usize = 2048;

fn workers<'a>(instance: &'a Instance, goal: Goal, options: &Options, clock: &'a Clock) -> Vec<Worker<'a>> {
    let can_search = search::is_affordable(instance);
    let few = can_search && instance.blocks.len() <= FEW_BLOCKS;
    let n_least = match (few, goal) {
        (true, Goal::Fit(_)) => 1,
        (true, Goal::Lowest) => 2,
        (false, _) => 3,
    };
    let worker = |index: usize| {
        let seed = options.seed.wrapping_add(index as u64);
        let sampler = || Kind::Sampler(Box::new(Sampler::new(instance, seed)));
        let kind = match (few, index) {
            (true, 0) => Kind::Prover,
            (true, _) if goal == Goal::Lowest => Kind::Descender(Descent::new(index)),
            (true, _) => Kind::Prover,
            (false, 0) => {
                CriticalFirst::new(instance, seed).map_or_else(sampler, |c| Kind::CriticalFirst(Box::new(c)))
            }
            (false, 1) if can_search => Kind::Prover,
            (false, _) => sampler(),
        };
        Worker { instance, kind, goal, seed, search: None, budget: clock.budget() }
    };
    (0..options.threads.max(n_least)).map(worker).collect()
}

/// Lets every worker work for a number of nodes, starting from the same knowledge. There are no threads, so they take turns.
#[cfg(not(feature = "std"))]
fn run_round(workers: &mut [Worker<'_>], best: &Best, nodes: u64, _n_threads: usize) -> Vec<Best> {
    workers.iter_mut().map(|worker| worker.run(best.clone(), nodes)).collect()
}

/// Lets every worker work for a number of nodes, starting from the same knowledge.
#[cfg(feature = "std")]
fn run_round(workers: &mut [Worker<'_>], best: &Best, nodes: u64, n_threads: usize) -> Vec<Best> {
    let share = workers.len().div_ceil(n_threads);
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .chunks_mut(share)
            .map(|workers| {
                let work = move || {
                    let run = |worker: &mut Worker<'_>| worker.run(best.clone(), nodes);
                    workers.iter_mut().map(run).collect::<Vec<_>>()
                };
                std::thread::Builder::new().spawn_scoped(scope, work)
            })
            .collect();
        // Without a thread there is no improvement, but there is a packing.
        let joined = threads.into_iter().flatten().map(|thread| thread.join().expect("workers do not panic"));
        joined.flatten().collect()
    })
}

struct Worker<'a> {
    instance: &'a Instance,
    kind: Kind<'a>,
    goal: Goal,
    seed: u64,
    /// The search under way, and the capacity it is for.
    search: Option<(u64, Search<'a>)>,
    budget: Budget<'a>,
}

enum Kind<'a> {
    Prover,
    Descender(Descent),
    Sampler(Box<Sampler<'a>>),
    CriticalFirst(Box<CriticalFirst<'a>>),
}

/// The state of a descender's sweep.
struct Descent {
    /// Heights up to here were given up in this sweep.
    given_up: u64,
    /// Nodes for each height.
    allowance: u64,
    /// Nodes left for the present one.
    left: u64,
    /// The position of the next try between the failed height and the best one, in 256ths.
    place: u64,
}

impl Descent {
    fn new(index: usize) -> Descent {
        Descent { given_up: 0, allowance: 0, left: 0, place: if index % 2 == 1 { 128 } else { 64 } }
    }
}

impl Worker<'_> {
    fn run(&mut self, mut best: Best, nodes: u64) -> Best {
        // A node of the search looks at the whole state, one of the others at a block.
        let searches = matches!(self.kind, Kind::Prover | Kind::Descender(_));
        let is_large = self.instance.blocks.len() > FEW_BLOCKS;
        let nodes = if searches && is_large { nodes / 32 } else { nodes };
        let end = self.budget.nodes() + nodes;
        while self.budget.nodes() < end && !self.budget.is_over() && best.is_open(self.goal) {
            if let Kind::Sampler(sampler) = &mut self.kind {
                let enough = self.goal.enough(best.lower_bound);
                let left = end - self.budget.nodes();
                if let Some(found) = sampler.run(left, best.height, enough, &mut self.budget) {
                    (best.offsets, best.height) = (found.offsets, found.height);
                }
                continue;
            }
            if let Kind::CriticalFirst(critical) = &mut self.kind {
                if let Some(found) =
                    critical.run(best.height, self.goal.enough(best.lower_bound), &mut self.budget)
                {
                    (best.offsets, best.height) = (found.offsets, found.height);
                }
                continue;
            }
            let unit = search::unit(self.instance);
            let capacity = self.next_capacity(&best, unit);
            if self.search.as_ref().is_none_or(|(current, _)| *current != capacity) {
                let seed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(capacity);
                self.search = Some((capacity, Search::new(self.instance, capacity, seed)));
            }
            let (_, search) = self.search.as_mut().expect("it was just made");
            let before = self.budget.nodes();
            let mut slice = end - before;
            if let Kind::Descender(descent) = &self.kind {
                slice = slice.min(descent.left);
            }
            let outcome = search.run(slice, &mut self.budget);
            let spent = (self.budget.nodes() - before).max(1);
            if let Kind::Descender(descent) = &mut self.kind {
                descent.left = descent.left.saturating_sub(spent);
            }
            match outcome {
                Outcome::Packed(offsets) => {
                    best.height =
                        profile::height(self.instance, &offsets).expect("it is within the capacity");
                    best.offsets = offsets;
                }
                Outcome::Infeasible => {
                    // The next height that sums of sizes and alignments can have.
                    best.lower_bound = best.lower_bound.max((capacity / unit + 1) * unit).min(best.height);
                }
                Outcome::Open => {}
            }
        }
        best
    }

    fn next_capacity(&mut self, best: &Best, unit: u64) -> u64 {
        let lowest = match self.goal {
            Goal::Fit(capacity) => capacity,
            Goal::Lowest => best.lower_bound,
        };
        let Kind::Descender(descent) = &mut self.kind else { return lowest };
        if let Some((capacity, _)) = &self.search
            && descent.left > 0
            && (best.lower_bound..best.height).contains(capacity)
        {
            return *capacity;
        }
        if let Some((capacity, _)) = self.search.take()
            && descent.left == 0
        {
            descent.given_up = capacity;
        }
        let n = self.instance.blocks.len() as u64;
        let first = 2 * n + 128;
        if descent.allowance == 0 || descent.given_up + unit >= best.height {
            descent.allowance = (descent.allowance * 4).max(first);
            descent.given_up = best.lower_bound.saturating_sub(1);
        }
        descent.left = descent.allowance;
        descent.given_up = descent.given_up.max(best.lower_bound.saturating_sub(1));
        let range = (best.height - 1 - descent.given_up) / unit;
        let step = (range as u128 * u128::from(descent.place) / 256) as u64;
        (descent.given_up + (step * unit).max(1)).clamp(best.lower_bound, best.height - 1)
    }
}
