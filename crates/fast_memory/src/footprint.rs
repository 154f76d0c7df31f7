//! The price of main memory: which temporaries to move out of it to lower its peak.
//!
//! Only the fullest moment decides the size. So each round prices the present fullest moments, lets all candidates choose
//! again, and finds the new fullest moments. Prices accumulate over the rounds, until all moments that decide have one.

use memplan_analysis::LiveRange;

use crate::FootprintOptions;
use crate::candidate::Candidate;
use crate::choice::{Choice, Mode, ValueMode};

/// Load and price of main memory.
pub(crate) struct Footprint<'a> {
    options: &'a FootprintOptions,
    /// Bytes of temporaries at each instant when all are in main memory.
    all: Vec<u64>,
    price: Vec<f64>,
}

impl<'a> Footprint<'a> {
    /// No prices yet.
    pub(crate) fn new(all: Vec<u64>, options: &'a FootprintOptions) -> Footprint<'a> {
        let price = vec![0.0; all.len()];
        Footprint { options, all, price }
    }

    /// The most bytes taken at one instant.
    pub(crate) fn peak(&self, candidates: &[Candidate], choices: &[Choice]) -> u64 {
        self.load(candidates, choices).into_iter().max().unwrap_or(0)
    }

    /// Raises the price of the instants at which most is taken, and sets what main memory costs each candidate.
    pub(crate) fn raise(&mut self, candidates: &mut [Candidate], choices: &[Choice]) {
        let load = self.load(candidates, choices);
        let near = (load.iter().copied().max().unwrap_or(0) as f64 * self.options.near_peak) as u64;
        let n = load.iter().filter(|&&bytes| bytes >= near).count().max(1);
        for (price, _) in self.price.iter_mut().zip(&load).filter(|(_, bytes)| **bytes >= near) {
            *price += 1.0 / n as f64;
        }
        let mut sum = 0.0;
        let sums: Vec<f64> = std::iter::once(0.0)
            .chain(self.price.iter().map(|price| {
                sum += price;
                sum
            }))
            .collect();
        for candidate in candidates {
            let Candidate::Value(candidate) = candidate else { continue };
            let share = |range: &LiveRange| (sums[range.end as usize] - sums[range.start as usize]) / sum;
            let shares: f64 = candidate.live.iter().map(share).sum();
            candidate.main_price = self.options.peak_worth * candidate.bytes as f64 * shares;
        }
    }

    fn load(&self, candidates: &[Candidate], choices: &[Choice]) -> Vec<u64> {
        let mut change = vec![0i64; self.all.len() + 1];
        for (candidate, choice) in candidates.iter().zip(choices) {
            let (Candidate::Value(candidate), Mode::Value(ValueMode::Pinned)) = (candidate, &choice.mode)
            else {
                continue;
            };
            for &LiveRange { start, end } in &candidate.live {
                change[start as usize] -= candidate.bytes as i64;
                change[end as usize] += candidate.bytes as i64;
            }
        }
        let mut moved = 0;
        let instants = self.all.iter().zip(&change);
        instants
            .map(|(&all, change)| {
                moved += change;
                // Operands that results take over are counted once in `all`.
                u64::try_from(all as i64 + moved).unwrap_or(0)
            })
            .collect()
    }
}
