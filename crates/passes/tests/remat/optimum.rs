//! The least time that a step can take within so many bytes: the shortest way through all sets of values that can be live
//! (the problem of Checkmate, MLSys 2020, whose integer program finds the same optimum).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::remat::step::Step;

/// Budgets below `most`, the largest first, with the least time within each. Each is the largest at which less is possible
/// than with the one before; the last one is the least with which the step can be computed at all.
pub(crate) fn times(step: &Step, most: u64) -> Vec<(u64, f64)> {
    let mut found = Vec::new();
    let mut budget = most;
    while let Some((seconds, peak)) = fastest(step, budget) {
        found.push((peak, seconds));
        let Some(less) = peak.checked_sub(1) else { break };
        budget = less;
    }
    found
}

/// The least time within a budget, and of the ways that take it the least peak.
fn fastest(step: &Step, budget: u64) -> Option<(f64, u64)> {
    let n = step.values.len();
    let results: usize =
        step.values.iter().enumerate().filter(|(_, v)| v.is_result).map(|(i, _)| 1 << i).sum();
    // Times are whole numbers of operations, so that ways compare exactly.
    let mut best = vec![(u64::MAX, u64::MAX); 1 << n];
    let mut open = BinaryHeap::from([Reverse(((0u64, 0u64), 0usize))]);
    best[0] = (0, 0);
    while let Some(Reverse(((time, peak), live))) = open.pop() {
        if best[live] < (time, peak) {
            continue;
        }
        if live & results == results {
            return Some((time as f64, peak));
        }
        let bytes: u64 = (0..n).filter(|i| live >> i & 1 == 1).map(|i| step.values[i].bytes).sum();
        let mut visit = |next: usize, cost: (u64, u64)| {
            if cost < best[next] {
                best[next] = cost;
                open.push(Reverse((cost, next)));
            }
        };
        for (i, value) in step.values.iter().enumerate() {
            if live >> i & 1 == 1 {
                // A result stays; anything else may be dropped.
                if !value.is_result {
                    visit(live & !(1 << i), (time, peak));
                }
            } else if value.operands.iter().all(|operand| live >> operand & 1 == 1) {
                let with = bytes + value.bytes;
                if with <= budget {
                    visit(live | 1 << i, (time + value.seconds as u64, peak.max(with)));
                }
            }
        }
    }
    None
}
