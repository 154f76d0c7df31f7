//! The objective of `compile`, and how it chooses among several programs.

use std::cmp::Ordering;

use memplan_memory::{Bytes, MemoryPlan, MemorySpaceId, Target};

/// The objective of `compile`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::Display, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
pub enum Objective {
    /// The fewest bytes, at any cost in time.
    Memory,
    /// The fewest bytes among programs that are no slower, by the cost model, than the fastest one that does not need
    /// far more bytes than others ([`CompileOptions::most_growth`](crate::CompileOptions::most_growth)).
    #[default]
    Balanced,
    /// The least time by the cost model; among equally fast programs, the one of fewest bytes.
    Time,
}

/// The price of a program, by the cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Bytes of memory.
    pub total: Bytes,
    /// Seconds of one run.
    pub seconds: f64,
    /// Arithmetic operations of one run.
    pub operations: f64,
}

impl Objective {
    /// Every objective.
    pub const ALL: [Objective; 3] = [Objective::Balanced, Objective::Memory, Objective::Time];

    /// How much slower than the fastest program, as a share of its time, a program with fewer bytes may be.
    pub fn tolerance(self) -> f64 {
        match self {
            Objective::Memory => f64::INFINITY,
            // The cost model is not more exact.
            Objective::Balanced => 0.01,
            Objective::Time => 0.0,
        }
    }

    /// The best of some programs; `None` if there are none. Of equal ones, the last.
    ///
    /// More candidates never give a slower choice, except for `Memory`.
    pub fn choose(self, prices: &[Price]) -> Option<usize> {
        let fastest = prices.iter().map(|price| price.seconds).fold(f64::INFINITY, f64::min);
        let limit = fastest * (1.0 + self.tolerance());
        // The time of hundreds of nested loops is unknown: such a program is not ruled out.
        let is_slower = |i: usize| prices[i].seconds.partial_cmp(&limit) == Some(Ordering::Greater);
        let is_allowed = |&i: &usize| self == Objective::Memory || !is_slower(i);
        (0..prices.len()).rev().filter(is_allowed).min_by(|&a, &b| {
            let (a, b) = (&prices[a], &prices[b]);
            a.total.cmp(&b.total).then(a.seconds.total_cmp(&b.seconds))
        })
    }
}

/// The programs that no other one beats in both bytes and time, from fewest bytes to least time. Of equal ones, the
/// first.
pub fn undominated(prices: &[Price]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..prices.len()).collect();
    order.sort_by(|&a, &b| {
        prices[a].total.cmp(&prices[b].total).then(prices[a].seconds.total_cmp(&prices[b].seconds))
    });
    let mut fastest = f64::INFINITY;
    order.retain(|&i| {
        let is_faster = prices[i].seconds < fastest;
        fastest = fastest.min(prices[i].seconds);
        is_faster
    });
    order
}

/// The bytes that a plan needs, and the smaller number that is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// All bytes, compared with a limit; or the bytes in main memory, compared with its capacity for programs.
    pub needed: Bytes,
    /// The limit, or the capacity.
    pub available: Bytes,
}

/// How a plan exceeds a limit, or the capacity of main memory. `None` if it fits.
pub fn exceeded(plan: &MemoryPlan, target: &Target, limit: Option<Bytes>) -> Option<Excess> {
    let usable = target.space(MemorySpaceId::MAIN).and_then(|space| space.usable());
    let needed = plan.spaces.iter().find(|space| space.space == MemorySpaceId::MAIN);
    // Tiles are checked one by one, not by their sum.
    let usable = usable.filter(|_| target.tiles.is_none());
    let of_limit = limit.map(|available| Excess { needed: plan.totals.total, available });
    let of_main = needed.zip(usable).map(|(main, available)| Excess { needed: main.total, available });
    of_limit.into_iter().chain(of_main).find(|excess| excess.needed > excess.available)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(of: &[(u64, f64)]) -> Vec<Price> {
        of.iter().map(|&(total, seconds)| Price { total: Bytes(total), seconds, operations: 0.0 }).collect()
    }

    #[test]
    fn each_objective_has_its_favourite() {
        let prices = prices(&[(10, 2.0), (20, 1.005), (30, 1.0), (40, 1.0), (5, 9.0)]);
        assert_eq!(Objective::Memory.choose(&prices), Some(4));
        assert_eq!(Objective::Balanced.choose(&prices), Some(1));
        assert_eq!(Objective::Time.choose(&prices), Some(2));
        assert_eq!(Objective::Time.choose(&[]), None);
        let unknown = [Price { total: Bytes(1), seconds: f64::NAN, operations: 0.0 }];
        assert_eq!(Objective::Balanced.choose(&unknown), Some(0));
    }

    #[test]
    fn no_program_that_is_beaten_is_on_the_frontier() {
        assert_eq!(undominated(&prices(&[(30, 1.0), (10, 2.0), (20, 2.0), (10, 3.0), (30, 1.0)])), [1, 0]);
        assert!(undominated(&[]).is_empty());
    }
}
