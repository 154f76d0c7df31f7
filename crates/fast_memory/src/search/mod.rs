//! Choices that fit: an assignment, and the moves that change it.
//!
//! Candidates choose one after the other, those with the highest savings for the price of their memory first; ranges
//! without capacity are excluded (`fill`). Then local search ejects candidates in favor of others (`improve`). If a
//! packing exceeds the memory, candidates choose again (`repair`).

mod fill;
mod improve;
mod refit;

use memplan_analysis::LiveRange;

use crate::FastMemoryOptions;
use crate::choice::Choice;
use crate::model::Model;
use crate::occupancy::Occupancy;
use crate::prices::Prices;

/// A choice for every candidate such that together they fit.
pub(crate) struct Assignment<'m> {
    model: &'m Model,
    options: &'m FastMemoryOptions,
    /// Bytes that candidates and scratch may take at any moment.
    limit: u64,
    occupancy: Occupancy,
    pub(crate) choices: Vec<Choice>,
    /// The traffic of each candidate outside fast memory.
    main_traffic: Vec<f64>,
    /// Bytes that are counted twice at each site of sharing.
    twice: Vec<u64>,
}

impl<'m> Assignment<'m> {
    /// Nothing in fast memory.
    pub(crate) fn empty(model: &'m Model, options: &'m FastMemoryOptions) -> Assignment<'m> {
        let choices: Vec<Choice> = model.candidates.iter().map(Choice::main).collect();
        let main_traffic = choices.iter().map(|choice| choice.traffic).collect();
        let twice = vec![0; model.sharing.len()];
        Assignment {
            model,
            options,
            limit: options.capacity,
            occupancy: Occupancy::new(&model.scratch),
            choices,
            main_traffic,
            twice,
        }
    }

    /// Choices that are made already.
    pub(crate) fn of(model: &'m Model, options: &'m FastMemoryOptions, choices: &[Choice]) -> Assignment<'m> {
        let mut assignment = Assignment::empty(model, options);
        for (i, choice) in choices.iter().enumerate() {
            assignment.set(i, choice.clone());
        }
        assignment
    }

    /// Replaces a candidate's choice where there is capacity for it, and says whether there was.
    pub(crate) fn try_instead(&mut self, i: usize, choice: Choice) -> bool {
        let bytes = self.model.candidates[i].bytes();
        let old = self.set(i, Choice::default());
        let fits = choice.busy.iter().all(|&range| self.occupancy.most(range) + bytes <= self.limit);
        self.set(i, if fits { choice } else { old });
        fits
    }

    /// The traffic of main memory, and its price.
    pub(crate) fn traffic(&self) -> f64 {
        self.choices.iter().map(|choice| choice.traffic).sum()
    }

    /// The savings of a candidate in fast memory.
    fn saved(&self, k: usize) -> f64 {
        self.main_traffic[k] - self.choices[k].traffic
    }

    /// The savings of a candidate per price of its memory.
    fn value_density(&self, k: usize, prices: &Prices) -> f64 {
        let choice = &self.choices[k];
        let bytes = self.model.candidates[k].bytes();
        let held: f64 = choice.busy.iter().map(|&r| prices.of(bytes, r)).sum();
        self.saved(k) / (held + f64::MIN_POSITIVE)
    }

    /// Lets a candidate choose anew among what fits; it keeps its choice if nothing is better.
    fn choose(&mut self, i: usize, price: impl Fn(u64, LiveRange) -> f64) {
        let candidate = &self.model.candidates[i];
        let old = self.set(i, Choice::default());
        let this = &*self;
        let new = Choice::best(candidate, &|bytes, range| {
            let own = this.model.sharing.own_part(i, &this.model.candidates, range, Some(&this.choices));
            if own.start >= own.end {
                return 0.0;
            }
            let fits = this.occupancy.most(own) + bytes <= this.limit;
            if fits { price(bytes, own) } else { f64::INFINITY }
        });
        self.set(i, if new.traffic <= old.traffic { new } else { old });
    }

    /// Replaces a choice, and keeps count of the bytes taken. Gives the old one.
    fn set(&mut self, i: usize, choice: Choice) -> Choice {
        let bytes = self.model.candidates[i].bytes();
        for &site in self.model.sharing.of(i) {
            let (at, _) = self.model.sharing.twice(site, &self.model.candidates, &self.choices);
            self.occupancy.take(at, self.twice[site as usize]);
        }
        let old = std::mem::replace(&mut self.choices[i], choice);
        old.busy.iter().for_each(|&range| self.occupancy.release(range, bytes));
        self.choices[i].busy.iter().for_each(|&range| self.occupancy.take(range, bytes));
        for &site in self.model.sharing.of(i) {
            let (at, twice) = self.model.sharing.twice(site, &self.model.candidates, &self.choices);
            self.twice[site as usize] = twice;
            self.occupancy.release(at, twice);
        }
        old
    }
}
