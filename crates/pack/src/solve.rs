//! The entry points: the methods, their order, and what each proves.

use crate::clique;
use crate::construct::construct;
use crate::improve::{Goal, improve};
use crate::instance::Mapping;
use crate::options::Clock;
use crate::prefer::prefer;
use crate::{Certificate, Error, Options, Packing, Problem, Status};

/// Packs the problem: into its capacity if it has one ([`fit`]), else as low as found ([`minimize`]).
///
/// # Errors
///
/// See [`Error`]: the problem contradicts itself, or needs addresses above 2^64.
pub fn pack(problem: &Problem, options: &Options) -> Result<Packing, Error> {
    match problem.capacity {
        Some(capacity) => fit(problem, capacity, options),
        None => minimize(problem, options),
    }
}

/// Finds out whether the problem fits `capacity` bytes, ignoring its own capacity.
///
/// It ends with the first packing within the capacity, with the proof that there is none, or at a limit.
///
/// # Errors
///
/// As [`pack`].
pub fn fit(problem: &Problem, capacity: u64, options: &Options) -> Result<Packing, Error> {
    solve(problem, Goal::Fit(capacity), options)
}

/// Finds the lowest height, ignoring the problem's capacity.
///
/// It ends with a packing that is proved to be lowest, or at a limit with the lowest one found.
///
/// # Errors
///
/// As [`pack`].
pub fn minimize(problem: &Problem, options: &Options) -> Result<Packing, Error> {
    solve(problem, Goal::Lowest, options)
}

fn solve(problem: &Problem, goal: Goal, options: &Options) -> Result<Packing, Error> {
    let clock = Clock::new(options);
    problem.check()?;
    let (instance, mapping) = Mapping::new(problem)?;
    let lower_bound = instance.lower_bound().ok_or(Error::TooLarge)?;
    let lower_bound = clique::raise(&instance, lower_bound);
    let first = construct(&instance, goal.enough(lower_bound), options.only_best_fit, &clock)
        .ok_or(Error::TooLarge)?;
    let mut best = improve(&instance, first, lower_bound, goal, options, &clock);
    prefer(&instance, best.height, &mut best.offsets);
    let status = match goal {
        Goal::Fit(capacity) if capacity < best.lower_bound => Status::Infeasible,
        Goal::Fit(capacity) if capacity < best.height => Status::Unknown,
        _ => Status::Packed,
    };
    let certificate = Certificate {
        status,
        lower_bound: best.lower_bound,
        optimal: best.height == best.lower_bound,
        nodes: best.nodes,
        #[cfg(feature = "std")]
        elapsed: clock.started.elapsed(),
    };
    Ok(Packing { offsets: mapping.offsets(&best.offsets), height: best.height, certificate })
}
