//! The entry points: what is tried, in which order, and what is thereby proved.

use crate::instance::{Instance, Mapping};
use crate::options::Clock;
use crate::{Certificate, Error, Options, Packing, Problem, Status, first_fit, niche, profile};

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

/// Asks whether the problem fits `capacity` bytes, whatever its own capacity says.
///
/// # Errors
///
/// As [`pack`].
pub fn fit(problem: &Problem, capacity: u64, options: &Options) -> Result<Packing, Error> {
    solve(problem, Some(capacity), options)
}

/// Asks for the lowest height, whatever the problem's capacity says.
///
/// # Errors
///
/// As [`pack`].
pub fn minimize(problem: &Problem, options: &Options) -> Result<Packing, Error> {
    solve(problem, None, options)
}

fn solve(problem: &Problem, capacity: Option<u64>, options: &Options) -> Result<Packing, Error> {
    let clock = Clock::new(options);
    problem.check()?;
    let (instance, mapping) = Mapping::new(problem)?;
    let lower_bound = instance.lower_bound().ok_or(Error::TooLarge)?;
    let offsets = construct(&instance, lower_bound);
    let height = profile::height(&instance, &offsets).ok_or(Error::TooLarge)?;
    let status = match capacity {
        Some(capacity) if capacity < lower_bound => Status::Infeasible,
        Some(capacity) if capacity < height => Status::Unknown,
        _ => Status::Packed,
    };
    let certificate = Certificate {
        status,
        lower_bound,
        optimal: height == lower_bound,
        nodes: clock.nodes(),
        elapsed: clock.started.elapsed(),
    };
    Ok(Packing { offsets: mapping.offsets(&offsets), height, certificate })
}

/// The best of a few orders.
fn construct(instance: &Instance, lower_bound: u64) -> Vec<u64> {
    let blocks = &instance.blocks;
    let by = |key: &dyn Fn(&crate::instance::Block) -> u128| {
        let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
        order.sort_by_cached_key(|&block| std::cmp::Reverse(key(&blocks[block as usize])));
        order
    };
    let length = |block: &crate::instance::Block| u128::from(block.upper - block.lower);
    let orders = [
        by(&|block| (length(block) << 64) + u128::from(block.size)),
        by(&|block| length(block) * u128::from(block.size)),
        by(&|block| u128::from(block.size) << 32 | length(block)),
    ];
    let mut best: Option<(u64, Vec<u64>)> = None;
    let mut consider = |offsets: Vec<u64>| {
        let height = profile::height(instance, &offsets).unwrap_or(u64::MAX);
        if best.as_ref().is_none_or(|(least, _)| height < *least) {
            best = Some((height, offsets));
        }
        best.as_ref().is_some_and(|(least, _)| *least <= lower_bound)
    };
    for order in &orders {
        let mut rank = vec![0; order.len()];
        for (place, &block) in order.iter().enumerate() {
            rank[block as usize] = (order.len() - place) as u32;
        }
        if consider(niche::pack(instance, &rank)) {
            break;
        }
        if first_fit::is_affordable(instance) && consider(first_fit::pack(instance, order)) {
            break;
        }
    }
    best.expect("there is an order").1
}
