//! First packings: fast heuristics in a few orders.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::first_fit::Fit;
use crate::instance::{Block, Instance};
use crate::niche::{Late, Rule};
use crate::options::{BestFit, Clock};
use crate::{first_fit, niche, profile};

/// Offsets of blocks and the height they reach.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    pub(crate) offsets: Vec<u64>,
    pub(crate) height: u64,
}

/// The best of a few orders, stopping at a height that is low enough, or when the time is up; with `only_best_fit`, of
/// those alone, if there are not too many blocks for them. The first packing is made in any case.
/// `None`: above 2^64.
pub(crate) fn construct(
    instance: &Instance,
    enough: u64,
    only_best_fit: Option<BestFit>,
    clock: &Clock,
) -> Option<Offsets> {
    let mut best: Option<Offsets> = None;
    // Whether no more is to be tried: the packing is low enough, or the time was up before it was made.
    let mut consider = |offsets: Option<Vec<u64>>| {
        let Some(offsets) = offsets else { return true };
        if let Some(height) = profile::height(instance, &offsets)
            && best.as_ref().is_none_or(|best| height < best.height)
        {
            best = Some(Offsets { offsets, height });
        }
        best.as_ref().is_some_and(|best| best.height <= enough)
    };
    let has_first_fit = first_fit::is_affordable(instance);
    let own: &[Key] = if only_best_fit.is_some() && has_first_fit { &[] } else { &ORDERS };
    let orders = distinct_orders(instance, own);
    let in_niches = |order: &[u32], rule: Rule, late: Late| {
        niche::pack(instance, &ranks(order), rule, clock, late).map(|(offsets, _)| offsets)
    };
    // The rule that is n log n is often enough.
    for (number, order) in orders.iter().enumerate() {
        let late = if number == 0 { Late::Hurry } else { Late::GiveUp };
        if consider(in_niches(order, Rule::Best, late)) {
            return best;
        }
    }
    for order in &orders {
        if consider(in_niches(order, Rule::Scarce, Late::GiveUp)) {
            return best;
        }
        if has_first_fit && consider(first_fit::pack(instance, order, Fit::First, clock)) {
            return best;
        }
    }
    if has_first_fit {
        // If there are no others, these are few enough to take the time.
        let unlimited = Clock::unlimited();
        let clock = if only_best_fit.is_some() { &unlimited } else { clock };
        let keys: &[Key] = match only_best_fit.unwrap_or(BestFit::Decreasing) {
            BestFit::Decreasing => &XLA_ORDERS,
            BestFit::Beginning => &[|block| u128::from(u32::MAX - block.lower)],
        };
        for order in distinct_orders(instance, keys) {
            if consider(first_fit::pack(instance, &order, Fit::Best, clock)) {
                break;
            }
        }
    }
    best
}

type Key = fn(&Block) -> u128;

/// Long ones first suits the skyline best, large ones first suits first-fit best.
const ORDERS: [Key; 3] = [
    |block| length(block) * u128::from(block.size),
    |block| (length(block) << 64) + u128::from(block.size),
    |block| (u128::from(block.size) << 32) + length(block),
];

/// Those of XLA's heap simulator, "temporal" and "spatial", which looks at the first item alone: with best fit it is never
/// worse.
const XLA_ORDERS: [Key; 2] = [
    |block| (u128::from(block.duration) << 64) + u128::from(block.size),
    |block| (u128::from(block.size) << 64) + u128::from(block.first_duration),
];

fn length(block: &Block) -> u128 {
    u128::from(block.upper - block.lower)
}

/// The orders of some keys, each once: where all blocks are of one size, most keys say the same.
fn distinct_orders(instance: &Instance, keys: &[Key]) -> Vec<Vec<u32>> {
    let mut orders: Vec<Vec<u32>> = Vec::new();
    for &key in keys {
        let order = order(instance, key);
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders
}

/// The blocks by decreasing key, equal ones by index.
fn order(instance: &Instance, key: Key) -> Vec<u32> {
    let mut order: Vec<u32> = (0..instance.blocks.len() as u32).collect();
    order.sort_by_cached_key(|&block| Reverse(key(&instance.blocks[block as usize])));
    order
}

/// The first of the order gets the highest rank.
pub(crate) fn ranks(order: &[u32]) -> Vec<u32> {
    let mut ranks = vec![0; order.len()];
    for (place, &block) in order.iter().enumerate() {
        ranks[block as usize] = (order.len() - 1 - place) as u32;
    }
    ranks
}
