//! The price of fast memory: what a byte is worth at every instant, by Lagrangian relaxation.
//!
//! With a price for every instant, each candidate is free to choose what is cheapest for it alone, and what all
//! choices cost together, less what the whole of fast memory is worth at these prices, is a lower bound: no assignment
//! that fits moves less. Prices rise where choices take more than there is and fall where they take less, in steps of
//! Polyak's rule; what comes out is the bound, and prices that tell the search what is scarce.

use memplan_analysis::LiveRange;

use super::choice::Choice;
use super::model::Model;

/// Prices, and what they prove.
pub(super) struct Prices {
    /// The sum of the prices of all instants before each one.
    sums: Vec<f64>,
    /// No assignment that fits costs less.
    pub(super) lower_bound: f64,
}

impl Prices {
    /// Finds prices in `rounds` rounds, each linear in candidates and instants; `upper_bound` is what is known to be
    /// possible.
    pub(super) fn find(model: &Model, capacity: u64, upper_bound: f64, rounds: usize) -> Prices {
        let n = model.end as usize;
        let mut price = vec![0.0; n];
        let mut best = Prices { sums: vec![0.0; n + 1], lower_bound: f64::NEG_INFINITY };
        let (mut pace, mut stuck) = (1.0, 0);
        for _ in 0..rounds {
            let now = Prices { sums: prefix_sums(&price), lower_bound: 0.0 };
            let mut excess = vec![0.0; n + 1];
            let mut cost = 0.0;
            for (i, candidate) in model.candidates.iter().enumerate() {
                // What may be shared is taken to be, so that the bound holds.
                let own = |range| model.sharing.own_part(i, &model.candidates, range, None);
                let choice = Choice::best(candidate, &|bytes, range| now.of(bytes, own(range)));
                cost += choice.cost;
                for range in choice.busy.iter().map(|&range| own(range)) {
                    excess[range.start as usize] += candidate.bytes as f64;
                    excess[range.end as usize] -= candidate.bytes as f64;
                }
            }
            let bound = cost - capacity as f64 * now.sums[n];
            if bound > best.lower_bound {
                best = Prices { lower_bound: bound, ..now };
                stuck = 0;
            } else {
                stuck += 1;
            }
            if stuck == 5 {
                (pace, stuck) = (pace / 2.0, 0);
            }
            let mut load = 0.0;
            for (t, price) in price.iter().enumerate() {
                load += excess[t];
                let beyond = load - capacity as f64;
                // A price that is zero cannot fall.
                excess[t] = if *price == 0.0 { beyond.max(0.0) } else { beyond };
            }
            let norm: f64 = excess[..n].iter().map(|e| e * e).sum();
            if norm == 0.0 || upper_bound <= bound {
                break;
            }
            let step = pace * (upper_bound - bound) / norm;
            for (price, excess) in price.iter_mut().zip(&excess) {
                *price = (*price + step * excess).max(0.0);
            }
        }
        best
    }

    /// What it costs to hold bytes during a range.
    pub(super) fn of(&self, bytes: u64, range: LiveRange) -> f64 {
        if range.start >= range.end {
            return 0.0;
        }
        bytes as f64 * (self.sums[range.end as usize] - self.sums[range.start as usize])
    }
}

fn prefix_sums(price: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    std::iter::once(0.0)
        .chain(price.iter().map(|price| {
            sum += price;
            sum
        }))
        .collect()
}
