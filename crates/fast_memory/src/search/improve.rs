//! Local search: a candidate that would save more replaces candidates that save less for the price of their memory.

use memplan_analysis::LiveRange;

use super::Assignment;
use crate::choice::Choice;
use crate::prices::Prices;

impl Assignment<'_> {
    /// Improves the choices, in a number of steps.
    pub(crate) fn improve(&mut self, prices: &Prices) {
        let (model, options) = (self.model, &self.options.search);
        let reserve = options.reserve_price;
        let preferred =
            |i: usize| Choice::best(&model.candidates[i], &|bytes, range| reserve * prices.of(bytes, range));
        for _ in 0..options.steps {
            let gain = |i: usize, choice: &Choice| self.choices[i].traffic - choice.traffic;
            let mut tries: Vec<(f64, usize, Choice)> = (0..model.candidates.len())
                .map(|i| (i, preferred(i)))
                .filter(|(i, choice)| choice.traffic < self.choices[*i].traffic - options.least_gain)
                .map(|(i, choice)| (gain(i, &choice), i, choice))
                .collect();
            tries.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            tries.truncate(options.candidates_per_step);
            let mut improved = false;
            for (_, i, choice) in tries {
                improved |= self.try_with_ejections(i, choice, prices);
            }
            if !improved {
                break;
            }
        }
    }

    /// Gives a candidate a choice, ejects candidates in its way until everything fits, and lets those choose again.
    /// Undone unless the total is lower.
    fn try_with_ejections(&mut self, i: usize, choice: Choice, prices: &Prices) -> bool {
        let mut undo: Vec<(usize, Choice)> = vec![(i, self.choices[i].clone())];
        let mut gain = self.choices[i].traffic - choice.traffic;
        let needs = choice.busy.clone();
        self.set(i, choice);
        for k in self.in_the_way(i, &needs, prices) {
            if self.fits(&needs) || undo.len() > self.options.search.ejections {
                break;
            }
            if self.is_over_limit_with(k, &needs) {
                let out = Choice::main(&self.model.candidates[k]);
                gain -= out.traffic - self.choices[k].traffic;
                undo.push((k, self.choices[k].clone()));
                self.set(k, out);
            }
        }
        if self.fits(&needs) {
            let reserve = self.options.search.reserve_price;
            let ejected: Vec<usize> = undo.iter().map(|(k, _)| *k).skip(1).collect();
            for k in ejected.into_iter().rev() {
                let before = self.choices[k].traffic;
                self.choose(k, |bytes, range| reserve * prices.of(bytes, range));
                gain += before - self.choices[k].traffic;
            }
            if gain > self.options.search.least_gain {
                return true;
            }
        }
        for (k, choice) in undo {
            self.set(k, choice);
        }
        false
    }

    /// Other candidates that hold fast memory during some ranges, those with the lowest savings per price of their
    /// memory first.
    fn in_the_way(&self, i: usize, needs: &[LiveRange], prices: &Prices) -> Vec<usize> {
        let overlaps = |choice: &Choice| choice.busy.iter().any(|a| needs.iter().any(|b| a.interferes(b)));
        let mut others: Vec<(f64, usize)> = (0..self.choices.len())
            .filter(|&k| k != i && self.choices[k].is_fast() && overlaps(&self.choices[k]))
            .map(|k| (self.value_density(k, prices), k))
            .collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        others.into_iter().map(|(_, k)| k).collect()
    }

    fn fits(&self, needs: &[LiveRange]) -> bool {
        needs.iter().all(|&range| self.occupancy.most(range) <= self.limit)
    }

    /// Whether too much is taken at an instant of some ranges at which a candidate holds fast memory.
    fn is_over_limit_with(&self, k: usize, needs: &[LiveRange]) -> bool {
        self.choices[k].busy.iter().any(|a| {
            needs.iter().any(|b| {
                let both = LiveRange { start: a.start.max(b.start), end: a.end.min(b.end) };
                self.occupancy.most(both) > self.limit
            })
        })
    }
}
