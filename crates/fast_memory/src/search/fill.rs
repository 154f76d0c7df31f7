//! Lets candidates choose one after the other.

use super::Assignment;
use crate::SearchOptions;
use crate::choice::Choice;
use crate::heap::Heap;
use crate::prices::Prices;

impl Assignment<'_> {
    /// Lets every candidate choose, those with the highest savings per price of their memory first.
    pub(crate) fn fill(&mut self, prices: &Prices) {
        let &SearchOptions { reserve_price: reserve, area_price, .. } = &self.options.search;
        let model = self.model;
        let candidates = &model.candidates;
        let rank = |i: usize| {
            let free = Choice::best(&candidates[i], &|bytes, range| reserve * prices.of(bytes, range));
            let saved = self.choices[i].traffic - free.traffic;
            let held: f64 = free.busy.iter().map(|&r| prices.of(candidates[i].bytes(), r)).sum();
            let area: f64 = free.busy.iter().map(|r| f64::from(r.end - r.start)).sum::<f64>()
                * candidates[i].bytes() as f64;
            // If nothing is scarce, bytes times instants remain to compare.
            (saved, saved / (held + area_price * area + f64::MIN_POSITIVE))
        };
        let ranks: Vec<(f64, f64)> = (0..candidates.len()).map(rank).collect();
        let mut order: Vec<usize> = (0..candidates.len()).filter(|&i| ranks[i].0 > 0.0).collect();
        order.sort_by(|&a, &b| ranks[b].1.total_cmp(&ranks[a].1).then(a.cmp(&b)));
        for &i in &order {
            self.choose(i, |bytes, range| prices.of(bytes, range));
        }
        // Then the remaining capacity.
        for &i in &order {
            self.choose(i, |bytes, range| reserve * prices.of(bytes, range));
        }
    }

    /// Lets candidates choose in XLA's order as long as there is room at one address: savings divided by the square root of the
    /// size, then the largest.
    pub(crate) fn fill_as_xla(&mut self) {
        let candidates = &self.model.candidates;
        let bytes = |i: usize| candidates[i].bytes();
        let ranks: Vec<f64> =
            candidates.iter().map(|it| it.saved_as_xla() / (it.bytes() as f64).sqrt()).collect();
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]).then(bytes(b).cmp(&bytes(a))).then(a.cmp(&b)));
        let mut heap = Heap::new(self.options.as_xla.capacity, self.model.end);
        for i in order {
            let choice = Choice::best(&candidates[i], &|bytes, range| match heap.find(range, bytes) {
                Some(_) => 0.0,
                None => f64::INFINITY,
            });
            for &range in &choice.busy {
                if let Some(offset) = heap.find(range, bytes(i)) {
                    heap.take(range, offset, bytes(i));
                }
            }
            self.set(i, choice);
        }
    }
}
