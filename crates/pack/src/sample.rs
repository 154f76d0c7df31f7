//! Many packings by the niche heuristic, each learning from the last: for problems too large to search.
//!
//! Blocks that end near the top were placed too late. The next packing prefers them ("squeaky wheel", Joslin and
//! Clements, JAIR 1999), with some noise to avoid cycles. After a while, preferences from worse packings are dropped.

use alloc::vec::Vec;

use crate::construct::{Offsets, ranks};
use crate::float::pow;
use crate::instance::Instance;
use crate::niche::{self, Late, Rule};
use crate::options::{Budget, Clock};
use crate::profile;
use crate::rng::Rng;

/// Makes packings until the budget is spent.
pub(crate) struct Sampler<'a> {
    instance: &'a Instance,
    rng: Rng,
    /// The priority of a block: from its shape, and from earlier packings.
    promise: Vec<f64>,
    best_promise: Vec<f64>,
    best_height: u64,
    n_since_best: u32,
    shape: Shape,
}

/// `length^length * size^size` is the promise of a block to begin with.
#[derive(Clone, Copy, Debug)]
struct Shape {
    length: f64,
    size: f64,
    rule: Rule,
    noise: f64,
}

/// Packings without an improvement after which the sampler goes back to the best, or starts afresh.
const PATIENCE: u32 = 20;

impl<'a> Sampler<'a> {
    pub(crate) fn new(instance: &'a Instance, seed: u64) -> Self {
        let shape = Shape { length: 1.0, size: 0.5, rule: Rule::Scarce, noise: 0.0 };
        let promise = shape.promises(instance);
        Sampler {
            instance,
            rng: Rng::new(seed),
            best_promise: promise.clone(),
            promise,
            best_height: u64::MAX,
            n_since_best: 0,
            shape,
        }
    }

    /// Packs for about `nodes` placements and returns the best packing below `height`, if there was one.
    pub(crate) fn run(
        &mut self,
        nodes: u64,
        height: u64,
        enough: u64,
        budget: &mut Budget<'_>,
    ) -> Option<Offsets> {
        let mut best: Option<Offsets> = None;
        let n = self.instance.blocks.len() as u64;
        let end = budget.nodes() + nodes;
        while budget.nodes() < end && budget.spend(n) {
            let Some((packing, n_looks)) = self.sample(budget.clock()) else { break };
            budget.strain(n_looks);
            let found = packing.height;
            if found < best.as_ref().map_or(height, |best| best.height) {
                best = Some(packing);
            }
            if best.as_ref().is_some_and(|best| best.height <= enough) {
                break;
            }
        }
        best
    }

    /// A packing, and how many blocks it looked at beyond those it placed. `None` where the time was up before.
    fn sample(&mut self, clock: &Clock) -> Option<(Offsets, u64)> {
        let noise = self.shape.noise;
        let keys: Vec<f64> =
            self.promise.iter().map(|promise| promise * (1.0 + noise * self.rng.unit())).collect();
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_by(|&a, &b| keys[b as usize].total_cmp(&keys[a as usize]).then(a.cmp(&b)));
        let (offsets, n_looks) =
            niche::pack(self.instance, &ranks(&order), self.shape.rule, clock, Late::GiveUp)?;
        let height = profile::height(self.instance, &offsets).unwrap_or(u64::MAX);
        self.learn(&offsets, height, keys);
        Some((Offsets { offsets, height }, n_looks))
    }

    fn learn(&mut self, offsets: &[u64], height: u64, keys: Vec<f64>) {
        if height < self.best_height {
            (self.best_height, self.n_since_best) = (height, 0);
            self.best_promise = keys.clone();
            self.promise = keys;
        } else {
            self.n_since_best += 1;
            if self.n_since_best.is_multiple_of(4) {
                self.promise.clone_from(&self.best_promise);
            }
            if self.n_since_best == PATIENCE {
                self.restart();
                return;
            }
        }
        // The top percent or so, more or less of it from time to time.
        let depth = height / 256 * (1 + self.rng.below(8));
        for (block, (promise, offset)) in self.promise.iter_mut().zip(offsets).enumerate() {
            if offset + self.instance.blocks[block].size > height - depth {
                *promise *= 1.0 + self.rng.unit();
            }
        }
        self.shape.noise = 0.02;
    }

    fn restart(&mut self) {
        let rng = &mut self.rng;
        self.shape = Shape {
            length: 0.4 + 1.2 * rng.unit(),
            size: rng.unit(),
            rule: if rng.below(4) == 0 { Rule::Best } else { Rule::Scarce },
            noise: 0.2 * rng.unit(),
        };
        self.promise = self.shape.promises(self.instance);
        (self.best_height, self.n_since_best) = (u64::MAX, 0);
    }
}

impl Shape {
    fn promises(self, instance: &Instance) -> Vec<f64> {
        let promise = |block: &crate::instance::Block| {
            pow(f64::from(block.upper - block.lower), self.length) * pow(block.size as f64, self.size)
        };
        instance.blocks.iter().map(promise).collect()
    }
}
