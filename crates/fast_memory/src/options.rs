//! How to assign fast memory.

use memplan_memory::{Bytes, Target};

/// What an assignment is to make small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The bytes that main memory moves.
    Traffic,
    /// The most bytes of main memory that are taken at one moment; then the bytes that it moves.
    Footprint,
}

/// How values find their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// By prices that all compete for.
    ByPrice,
    /// As XLA does: one after the other, those first that save most for the square root of their size; what nobody reads
    /// not at all.
    AsXla,
}

/// How to assign fast memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to make small.
    pub objective: Objective,
    /// How values find their places.
    pub selection: Selection,
    /// Bytes of the fast memory that values may take together with the scratch of kernels.
    pub capacity: u64,
    /// Bytes of the largest value that may be in it.
    pub largest: u64,
    /// What a byte is worth that main memory moves while the cores wait for it, on top of the byte itself. Below 1, so
    /// that fewer bytes always win over less time.
    pub time_weight: f64,
    /// Rounds of adjusting the price of fast memory.
    pub price_rounds: usize,
    /// Steps of local search for each candidate that is not yet where it is best off.
    pub search_steps: usize,
    /// The most parameters that stay in fast memory from one call of the program to the next.
    pub cross_program_prefetches: usize,
}

impl Options {
    /// The capacity of a target's fast memory that programs can use; `None` for targets without fast memory.
    pub fn for_target(target: &Target) -> Option<Options> {
        let space = target.space(target.fast_memory?.space)?;
        let Bytes(capacity) = space.usable()?;
        Some(Options {
            objective: Objective::Traffic,
            selection: Selection::ByPrice,
            capacity,
            largest: capacity,
            time_weight: 0.25,
            price_rounds: 40,
            search_steps: 4,
            cross_program_prefetches: 1,
        })
    }
}
