//! Problems for measurements and tests: shapes of real programs, and two that are hard on purpose.

use alloc::vec::Vec;

use crate::rng::Rng;
use crate::{Item, Problem};

/// Sizes as tensors have them: a few shapes, each used many times, a multiple of 256 bytes.
fn shapes(rng: &mut Rng, n: usize, most_log2: u64) -> Vec<u64> {
    (0..n).map(|_| (1 << rng.below(most_log2)) * (1 + rng.below(7)) * 256).collect()
}

/// A training step: the forward pass leaves residuals that the backward pass takes up in the opposite order,
/// and each layer has short temporaries of its own. Gradients of some layers live to the end.
pub fn training(n_items: usize, seed: u64) -> Problem {
    let mut rng = Rng::new(seed);
    let n_layers = (n_items / 12).max(1) as u64;
    let residual = shapes(&mut rng, 6, 8);
    let temporary = shapes(&mut rng, 12, 10);
    let pick = |rng: &mut Rng, sizes: &[u64]| sizes[rng.below(sizes.len() as u64) as usize];
    // Each layer takes eight steps forward and twelve back.
    let end = n_layers * 20;
    let mut problem = Problem::new();
    let mut layer = 0;
    while problem.items.len() < n_items {
        let at = layer % n_layers;
        let (forward, back) = (at * 8, end - (at + 1) * 12);
        for _ in 0..3 {
            let (from, to) = (forward + rng.below(8), back + 1 + rng.below(11));
            problem.push(Item::new(pick(&mut rng, &residual), from..to.max(from + 1)));
        }
        for _ in 0..3 {
            let from = forward + rng.below(7);
            problem.push(Item::new(pick(&mut rng, &temporary), from..from + 1 + rng.below(4)));
        }
        for _ in 0..5 {
            let from = back + rng.below(11);
            problem.push(Item::new(pick(&mut rng, &temporary), from..from + 1 + rng.below(5)));
        }
        let from = back + 6 + rng.below(5);
        let to = if rng.below(8) == 0 { end } else { from + 2 + rng.below(30) };
        problem.push(Item::new(pick(&mut rng, &temporary[..3]), from..to.max(from + 1)));
        layer += 1;
    }
    problem.items.truncate(n_items);
    problem
}

/// An inference step: activations live from one layer to the next, some skip a few layers,
/// and a cache per layer lives throughout.
pub fn inference(n_items: usize, seed: u64) -> Problem {
    let mut rng = Rng::new(seed);
    let sizes = shapes(&mut rng, 20, 9);
    let end = n_items as u64;
    let item = |at: u64| {
        let size = sizes[rng.below(sizes.len() as u64) as usize];
        let length = match rng.below(20) {
            0 => 20 + rng.below(200),
            1 => 6 + rng.below(20),
            _ => 1 + rng.below(5),
        };
        if rng.below(1000) == 0 {
            Item::new(size, 0..end)
        } else {
            Item::new(size, at..(at + length).min(end))
        }
    };
    (0..end).map(item).collect()
}

/// No structure: sizes and lengths spread over several orders of magnitude, starts anywhere.
pub fn random(n_items: usize, seed: u64) -> Problem {
    let mut rng = Rng::new(seed);
    let end = 2 * n_items as u64;
    let item = |_| {
        let size = 1 + ((1u64 << rng.below(16)) as f64 * (1.0 + rng.unit())) as u64;
        let length = 1 + ((1u64 << rng.below(10)) as f64 * rng.unit()) as u64;
        let from = rng.below(end);
        Item::new(size, from..from + length)
    };
    (0..n_items).map(item).collect()
}

/// A full strip cut into `n_items` rectangles: the least height is `height`, by construction.
///
/// Guillotine cuts: the piece of largest area is cut in two, across addresses with probability 0.65
/// (so items are rather long), else across time, at a place between a fifth and four fifths.
pub fn cut_strip(n_items: usize, width: u64, height: u64, seed: u64) -> Problem {
    let mut rng = Rng::new(seed);
    let mut heap =
        alloc::collections::BinaryHeap::from([(u128::from(width) * u128::from(height), 0, width, 0, height)]);
    let mut done = Vec::new();
    while heap.len() + done.len() < n_items {
        let Some((_, from, to, low, high)) = heap.pop() else { break };
        let area = |from: u64, to: u64, low: u64, high: u64| u128::from(to - from) * u128::from(high - low);
        let cut = |rng: &mut Rng, low: u64, high: u64| {
            let at = low + ((high - low) as f64 * (0.2 + 0.6 * rng.unit())) as u64;
            at.clamp(low + 1, high - 1)
        };
        let across_addresses = rng.unit() < 0.65;
        if high - low > 1 && (across_addresses || to - from < 2) {
            let at = cut(&mut rng, low, high);
            heap.push((area(from, to, low, at), from, to, low, at));
            heap.push((area(from, to, at, high), from, to, at, high));
        } else if to - from > 1 {
            let at = cut(&mut rng, from, to);
            heap.push((area(from, at, low, high), from, at, low, high));
            heap.push((area(at, to, low, high), at, to, low, high));
        } else {
            done.push((from, to, low, high));
        }
    }
    let rest = heap.into_iter().map(|(_, from, to, low, high)| (from, to, low, high));
    let mut items: Vec<Item> =
        done.into_iter().chain(rest).map(|(from, to, low, high)| Item::new(high - low, from..to)).collect();
    // The order in which they were cut would tell too much.
    for index in (1..items.len()).rev() {
        items.swap(index, rng.below(index as u64 + 1) as usize);
    }
    items.into_iter().collect()
}
