//! Lets candidates choose again after a packing exceeded the memory.

use memplan_analysis::LiveRange;

use super::Assignment;
use crate::choice::Choice;
use crate::prices::Prices;
use crate::repair::{Place, repair};

impl Assignment<'_> {
    /// Ejects candidates for which the packing found no place, and lets them choose again among the ranges in which the
    /// candidate in whose favour they were ejected does not hold fast memory. Says whether there were any.
    pub(crate) fn repair(&mut self, prices: &Prices, places: Vec<Place>) -> bool {
        let reserve = self.options.search.reserve_price;
        let ejected = repair(places, self.limit, |k| self.saved(k));
        let closed: Vec<Vec<LiveRange>> =
            ejected.iter().map(|it| self.choices[it.in_favour_of].busy.clone()).collect();
        for it in &ejected {
            self.set(it.candidate, Choice::main(&self.model.candidates[it.candidate]));
        }
        for (it, closed) in ejected.iter().zip(closed) {
            let is_closed = |range: LiveRange| closed.iter().any(|other| range.interferes(other));
            self.choose(it.candidate, |bytes, range| {
                if is_closed(range) { f64::INFINITY } else { reserve * prices.of(bytes, range) }
            });
        }
        !ejected.is_empty()
    }

    /// Lowers the capacity at all moments: candidates with the lowest savings per price of their memory choose again,
    /// until the others fit.
    pub(crate) fn shrink(&mut self, prices: &Prices, limit: u64) {
        let reserve = self.options.search.reserve_price;
        self.limit = limit;
        let mut order: Vec<(f64, usize)> = (0..self.choices.len())
            .filter(|&k| self.choices[k].is_fast())
            .map(|k| (self.value_density(k, prices), k))
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut out = Vec::new();
        for (_, k) in order {
            if self.choices[k].busy.iter().any(|&range| self.occupancy.most(range) > limit) {
                self.set(k, Choice::main(&self.model.candidates[k]));
                out.push(k);
            }
        }
        for k in out.into_iter().rev() {
            self.choose(k, |bytes, range| reserve * prices.of(bytes, range));
        }
    }
}
