//! Choices that fit: those that pay best first, then local search.
//!
//! Candidates choose one after the other, those first that save most for the price of what they hold; what has no room
//! left has no price. Then candidates that would rather have what they could not get push out what is worth least in
//! their way, which is given another choice; what does not lower the total is undone.

use memplan_analysis::LiveRange;

use super::choice::Choice;
use super::model::Model;
use super::options::FastMemoryOptions;
use super::prices::Prices;
use super::repair::{Place, repair};
use super::room::Room;

/// A choice for every candidate such that together they fit.
pub(super) struct Assignment<'m> {
    model: &'m Model,
    options: &'m FastMemoryOptions,
    capacity: u64,
    room: Room,
    pub(super) choices: Vec<Choice>,
    /// What main memory moves for each candidate as long as it is not in fast memory.
    unserved: Vec<f64>,
    /// Bytes that are counted twice at each site of sharing.
    twice: Vec<u64>,
}

impl<'m> Assignment<'m> {
    /// Nothing in fast memory.
    pub(super) fn empty(model: &'m Model, options: &'m FastMemoryOptions) -> Assignment<'m> {
        let choices: Vec<Choice> = model.candidates.iter().map(Choice::main).collect();
        let unserved = choices.iter().map(|choice| choice.traffic).collect();
        let twice = vec![0; model.sharing.len()];
        Assignment {
            model,
            options,
            capacity: options.capacity,
            room: Room::new(&model.scratch),
            choices,
            unserved,
            twice,
        }
    }

    /// Choices that are made already.
    pub(super) fn of(model: &'m Model, options: &'m FastMemoryOptions, choices: &[Choice]) -> Assignment<'m> {
        let mut assignment = Assignment::empty(model, options);
        for (i, choice) in choices.iter().enumerate() {
            assignment.set(i, choice.clone());
        }
        assignment
    }

    /// Makes a candidate choose something else where there is room for it.
    pub(super) fn try_instead(&mut self, i: usize, choice: Choice) -> bool {
        let bytes = self.model.candidates[i].bytes;
        let old = self.set(i, Choice::default());
        let fits = choice.busy.iter().all(|&range| self.room.most(range) + bytes <= self.capacity);
        self.set(i, if fits { choice } else { old });
        fits
    }

    /// What main memory moves, in the unit of gain.
    pub(super) fn traffic(&self) -> f64 {
        self.choices.iter().map(|choice| choice.traffic).sum()
    }

    /// Lets every candidate choose, those first that save most for what they hold.
    pub(super) fn fill(&mut self, prices: &Prices) {
        let reserve = self.options.search.reserve_price;
        let model = self.model;
        let candidates = &model.candidates;
        let rank = |i: usize| {
            let free = Choice::best(&candidates[i], &|bytes, range| reserve * prices.of(bytes, range));
            let saved = self.choices[i].traffic - free.traffic;
            let held: f64 = free.busy.iter().map(|&r| prices.of(candidates[i].bytes, r)).sum();
            let area: f64 = free.busy.iter().map(|r| f64::from(r.end - r.start)).sum::<f64>()
                * candidates[i].bytes as f64;
            // Where nothing is scarce, bytes times instants are what is left to compare.
            (saved, saved / (held + 1e-12 * area + f64::MIN_POSITIVE))
        };
        let ranks: Vec<(f64, f64)> = (0..candidates.len()).map(rank).collect();
        let mut order: Vec<usize> = (0..candidates.len()).filter(|&i| ranks[i].0 > 0.0).collect();
        order.sort_by(|&a, &b| ranks[b].1.total_cmp(&ranks[a].1).then(a.cmp(&b)));
        for &i in &order {
            self.choose(i, |bytes, range| prices.of(bytes, range));
        }
        // Then whatever room is left.
        for &i in &order {
            self.choose(i, |bytes, range| reserve * prices.of(bytes, range));
        }
    }

    /// Lets candidates choose in XLA's order as long as there is room: what it saves, over the square root of its size.
    pub(super) fn fill_as_xla(&mut self) {
        let candidates = &self.model.candidates;
        let rank = |i: usize| {
            let free = Choice::best(&candidates[i], &|_, _| 0.0);
            (self.choices[i].traffic - free.traffic) / (candidates[i].bytes as f64).sqrt()
        };
        let ranks: Vec<f64> = (0..candidates.len()).map(rank).collect();
        let mut order: Vec<usize> = (0..candidates.len()).filter(|&i| ranks[i] > 0.0).collect();
        order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]).then(a.cmp(&b)));
        for i in order {
            self.choose(i, |_, _| 0.0);
        }
    }

    /// Improves the choices in a number of steps for each candidate that wants more than it has.
    pub(super) fn improve(&mut self, prices: &Prices) {
        let (model, options) = (self.model, &self.options.search);
        let reserve = options.reserve_price;
        let wish = |i: usize| Choice::best(&model.candidates[i], &|b, r| reserve * prices.of(b, r));
        for _ in 0..options.steps {
            let mut wishes: Vec<(usize, Choice)> = (0..model.candidates.len())
                .map(|i| (i, wish(i)))
                .filter(|(i, wish)| wish.traffic < self.choices[*i].traffic - options.least_gain)
                .collect();
            let missing = |i: usize, wish: &Choice| self.choices[i].traffic - wish.traffic;
            let missing: Vec<f64> = wishes.iter().map(|(i, wish)| missing(*i, wish)).collect();
            let mut order: Vec<usize> = (0..wishes.len()).collect();
            order.sort_by(|&a, &b| missing[b].total_cmp(&missing[a]).then(a.cmp(&b)));
            order.truncate(options.candidates_per_step);
            let mut improved = false;
            for at in order {
                let (i, wish) = std::mem::take(&mut wishes[at]);
                improved |= self.grant(i, wish, prices);
            }
            if !improved {
                break;
            }
        }
    }

    /// Gives a candidate what it wishes, pushes out what is worth least until everything fits, and lets those choose
    /// again. Undone unless the total is lower.
    fn grant(&mut self, i: usize, wish: Choice, prices: &Prices) -> bool {
        let reserve = self.options.search.reserve_price;
        let candidates = &self.model.candidates;
        let mut undo: Vec<(usize, Choice)> = vec![(i, self.choices[i].clone())];
        let mut gain = self.choices[i].traffic - wish.traffic;
        let needs = wish.busy.clone();
        self.set(i, wish);
        let overlaps = |choice: &Choice| choice.busy.iter().any(|a| needs.iter().any(|b| a.interferes(b)));
        let mut others: Vec<(f64, usize)> = (0..candidates.len())
            .filter(|&k| k != i && self.choices[k].is_fast() && overlaps(&self.choices[k]))
            .map(|k| (self.worth_of(k, prices), k))
            .collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let fits = |this: &Self| needs.iter().all(|&range| this.room.most(range) <= this.capacity);
        let is_over = |this: &Self, k: usize| {
            this.choices[k].busy.iter().any(|a| {
                needs.iter().any(|b| {
                    let both = LiveRange { start: a.start.max(b.start), end: a.end.min(b.end) };
                    this.room.most(both) > this.capacity
                })
            })
        };
        for (_, k) in others {
            if fits(self) {
                break;
            }
            if undo.len() > self.options.search.ejections {
                break;
            }
            if is_over(self, k) {
                let out = Choice::main(&candidates[k]);
                gain -= out.traffic - self.choices[k].traffic;
                undo.push((k, self.choices[k].clone()));
                self.set(k, out);
            }
        }
        if fits(self) {
            for k in undo.iter().map(|(k, _)| *k).skip(1).collect::<Vec<_>>().into_iter().rev() {
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

    /// What fast memory saves for a candidate.
    fn saved(&self, k: usize) -> f64 {
        self.unserved[k] - self.choices[k].traffic
    }

    /// What a candidate saves for the price of what it holds.
    fn worth_of(&self, k: usize, prices: &Prices) -> f64 {
        let choice = &self.choices[k];
        let bytes = self.model.candidates[k].bytes;
        let held: f64 = choice.busy.iter().map(|&r| prices.of(bytes, r)).sum();
        self.saved(k) / (held + f64::MIN_POSITIVE)
    }

    /// Lets one candidate choose anew: what has no room cannot be held.
    fn choose(&mut self, i: usize, price: impl Fn(u64, LiveRange) -> f64) {
        let candidate = &self.model.candidates[i];
        let old = self.set(i, Choice::default());
        let this = &*self;
        let new = Choice::best(candidate, &|bytes, range| {
            let own = this.model.sharing.own_part(i, &this.model.candidates, range, Some(&this.choices));
            if own.start >= own.end {
                return 0.0;
            }
            let has_room = this.room.most(own) + bytes <= this.capacity;
            if has_room { price(bytes, own) } else { f64::INFINITY }
        });
        self.set(i, if new.traffic <= old.traffic { new } else { old });
    }

    /// Lets candidates choose anew that a packing had no place for, without being where those are that they go for. Says
    /// whether there were any.
    pub(super) fn repair(&mut self, prices: &Prices, places: Vec<Place>) -> bool {
        let reserve = self.options.search.reserve_price;
        let losses = repair(places, self.capacity, |k| self.saved(k));
        let taken: Vec<Vec<LiveRange>> =
            losses.iter().map(|loss| self.choices[loss.to].busy.clone()).collect();
        for loss in &losses {
            self.set(loss.candidate, Choice::main(&self.model.candidates[loss.candidate]));
        }
        for (loss, taken) in losses.iter().zip(taken) {
            let is_taken = |range: LiveRange| taken.iter().any(|other| range.interferes(other));
            self.choose(loss.candidate, |bytes, range| {
                if is_taken(range) { f64::INFINITY } else { reserve * prices.of(bytes, range) }
            });
        }
        !losses.is_empty()
    }

    /// Lowers what may be held at any moment: candidates that save least for the price of what they hold choose again,
    /// until the others fit.
    pub(super) fn shrink(&mut self, prices: &Prices, limit: u64) {
        let reserve = self.options.search.reserve_price;
        self.capacity = limit;
        let mut order: Vec<(f64, usize)> = (0..self.choices.len())
            .filter(|&k| self.choices[k].is_fast())
            .map(|k| (self.worth_of(k, prices), k))
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut out = Vec::new();
        for (_, k) in order {
            if self.choices[k].busy.iter().any(|&range| self.room.most(range) > limit) {
                self.set(k, Choice::main(&self.model.candidates[k]));
                out.push(k);
            }
        }
        for k in out.into_iter().rev() {
            self.choose(k, |bytes, range| reserve * prices.of(bytes, range));
        }
    }

    /// Replaces a choice, and keeps count of what is taken. Gives the old one.
    fn set(&mut self, i: usize, choice: Choice) -> Choice {
        let bytes = self.model.candidates[i].bytes;
        for &site in self.model.sharing.of(i) {
            let (at, _) = self.model.sharing.twice(site, &self.model.candidates, &self.choices);
            self.room.take(at, self.twice[site as usize]);
        }
        let old = std::mem::replace(&mut self.choices[i], choice);
        old.busy.iter().for_each(|&range| self.room.give_back(range, bytes));
        self.choices[i].busy.iter().for_each(|&range| self.room.take(range, bytes));
        for &site in self.model.sharing.of(i) {
            let (at, twice) = self.model.sharing.twice(site, &self.model.candidates, &self.choices);
            self.twice[site as usize] = twice;
            self.room.give_back(at, twice);
        }
        old
    }
}
