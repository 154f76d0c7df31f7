//! The price of fast memory: the value of a byte at every instant, by Lagrangian relaxation.
//!
//! With a price for every instant, each candidate makes the choice that is cheapest for itself. The cost of all
//! choices, minus the price of the whole fast memory, is a lower bound: no assignment that fits moves less (weak
//! duality). Prices rise where choices take more than the capacity and fall where they take less, by the subgradient
//! method with steps of Polyak's rule. The best bound is reported, and its prices tell the search which instants are
//! scarce.

use memplan_analysis::LiveRange;

use crate::FastMemoryOptions;
use crate::choice::Choice;
use crate::model::Model;

/// Prices, and the bound that they prove.
pub(crate) struct Prices {
    /// The sum of the prices of all instants before each one.
    sums: Vec<f64>,
    /// No assignment that fits costs less.
    pub(crate) lower_bound: f64,
}

impl Prices {
    /// Finds prices in `rounds` rounds, each linear in instants and in the competing candidates; `upper_bound` is a
    /// known possible cost.
    pub(crate) fn find(
        model: &Model,
        options: &FastMemoryOptions,
        upper_bound: f64,
        rounds: usize,
    ) -> Prices {
        let n = model.end as usize;
        let free: Vec<f64> =
            model.scratch.iter().map(|&taken| options.capacity.saturating_sub(taken) as f64).collect();
        let mut price = vec![0.0; n];
        let mut best = Prices { sums: vec![0.0; n + 1], lower_bound: f64::NEG_INFINITY };
        let mut fixed = Demand::new(n);
        let mut active: Vec<usize> = (0..model.candidates.len()).collect();
        let (mut pace, mut stuck) = (1.0, 0);
        for round in 0..rounds {
            let now = Prices { sums: prefix_sums(&price), lower_bound: 0.0 };
            let mut demand = fixed.clone();
            let choices: Vec<Choice> = active.iter().map(|&i| now.choice(model, i)).collect();
            choices.iter().zip(&active).for_each(|(choice, &i)| demand.add(model, i, choice));
            let load = demand.load();
            let worth: f64 = price.iter().zip(&free).map(|(price, free)| price * free).sum();
            let bound = demand.cost - worth;
            if bound > best.lower_bound {
                best = Prices { lower_bound: bound, ..now };
                stuck = 0;
            } else {
                stuck += 1;
            }
            if stuck == options.prices.patience {
                (pace, stuck) = (pace / 2.0, 0);
            }
            if round == 0 {
                // At instants with enough memory for all, everyone keeps theirs; a price of zero keeps the bound valid.
                let scarce: Vec<f64> =
                    load.iter().zip(&free).map(|(load, free)| f64::from(u8::from(load > free))).collect();
                let scarce = Prices { sums: prefix_sums(&scarce), lower_bound: 0.0 };
                let competes = |choice: &Choice| choice.busy.iter().any(|&range| scarce.of(1, range) > 0.0);
                let mut choices = choices.iter();
                active.retain(|&i| {
                    let choice = choices.next().expect("there is a choice for each");
                    if !competes(choice) {
                        fixed.add(model, i, choice);
                    }
                    competes(choice)
                });
            }
            // A price that is zero cannot fall.
            let beyond = |(price, (load, free)): (&f64, (&f64, &f64))| {
                let beyond = load - free;
                if *price == 0.0 { beyond.max(0.0) } else { beyond }
            };
            let excess: Vec<f64> = price.iter().zip(load.iter().zip(&free)).map(beyond).collect();
            let norm: f64 = excess.iter().map(|e| e * e).sum();
            if norm == 0.0 || upper_bound <= bound || pace < options.prices.smallest_step {
                break;
            }
            let step = pace * (upper_bound - bound) / norm;
            for (price, excess) in price.iter_mut().zip(&excess) {
                *price = (*price + step * excess).max(0.0);
            }
        }
        best
    }

    /// The choice of a candidate. Possible sharing is assumed, so that the bound holds.
    fn choice(&self, model: &Model, i: usize) -> Choice {
        let own = |range| model.sharing.own_part(i, &model.candidates, range, None);
        Choice::best(&model.candidates[i], &|bytes, range| self.of(bytes, own(range)))
    }

    /// The cost of holding bytes during a range.
    pub(crate) fn of(&self, bytes: u64, range: LiveRange) -> f64 {
        if range.start >= range.end {
            return 0.0;
        }
        bytes as f64 * (self.sums[range.end as usize] - self.sums[range.start as usize])
    }
}

/// The total cost and memory of all choices.
#[derive(Clone)]
struct Demand {
    cost: f64,
    /// Changes of the bytes held, by instant.
    change: Vec<f64>,
}

impl Demand {
    fn new(instants: usize) -> Demand {
        Demand { cost: 0.0, change: vec![0.0; instants + 1] }
    }

    fn add(&mut self, model: &Model, i: usize, choice: &Choice) {
        self.cost += choice.cost;
        let bytes = model.candidates[i].bytes() as f64;
        for &range in &choice.busy {
            let own = model.sharing.own_part(i, &model.candidates, range, None);
            self.change[own.start as usize] += bytes;
            self.change[own.end as usize] -= bytes;
        }
    }

    /// Bytes held at every instant.
    fn load(&self) -> Vec<f64> {
        let instants = self.change.len() - 1;
        let mut load = 0.0;
        let add = |change: &f64| {
            load += change;
            load
        };
        self.change[..instants].iter().map(add).collect()
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
