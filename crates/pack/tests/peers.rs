//! Comparison with the packer inside XLA, on problems shaped like programs: with colocation and gaps.

use std::cmp::Reverse;

use memplan_pack::{Item, Options, Problem, generate, minimize, validate};

/// Blocks with a gap need not share a time to be in each other's way.
#[test]
fn a_gap_makes_more_than_the_load_necessary() {
    let mut problem = Problem::new();
    problem.push(Item::new(8, 0..6).with_gap(2..4));
    problem.push(Item::new(8, 1..3));
    problem.push(Item::new(8, 2..5));
    let packing = minimize(&problem, &Options::quick()).expect("nothing is wrong with it");
    assert_eq!((packing.height, packing.certificate.lower_bound), (24, 24));
    assert!(packing.certificate.optimal);
}

/// The end of a training step of an LSTM, as `plan` posed it: two full moments that differ in items which are
/// in each other's way at a third.
#[test]
fn a_swap_between_two_full_moments_is_refuted_without_search() {
    const MIB: u64 = 1 << 20;
    let mut problem = Problem::new();
    problem.push(Item::new(1500 * MIB, 0..177));
    for (size, live) in [(16, 171..176), (4, 170..175), (4, 169..174), (1, 165..172), (16, 25..188)] {
        problem.push(Item::new(size * MIB, live).aligned(64));
    }
    let early = problem.push(Item::new(MIB, 125..169).aligned(64));
    let late = problem.push(Item::new(MIB, 173..178).aligned(64));
    problem.colocate([early, late]);
    let packing = minimize(&problem, &Options::quick()).expect("nothing is wrong with it");
    assert_eq!(validate(&problem, &packing.offsets), Ok(1542 * MIB));
    assert!(packing.certificate.optimal, "{:?}", packing.certificate);
}

#[test]
fn heuristics_are_never_above_global_decreasing_size_best_fit() {
    for seed in 0..60 {
        let problem = colocated(generate::training(150, seed), seed);
        let packing = minimize(&problem, &Options::quick()).expect("nothing is wrong with it");
        assert_eq!(validate(&problem, &packing.offsets), Ok(packing.height));
        let peer = global_decreasing_size_best_fit(&problem);
        assert!(packing.height <= peer, "seed {seed}: {} above {peer}", packing.height);
    }
}

/// Makes items of one size that are live one after the other share an offset now and then.
fn colocated(mut problem: Problem, seed: u64) -> Problem {
    let mut last: std::collections::HashMap<u64, usize> = std::collections::HashMap::new();
    for item in 0..problem.items.len() {
        let (size, lower) = (problem.items[item].size, problem.items[item].lower);
        let before = last.insert(size, item);
        if let Some(before) = before.filter(|&before| problem.items[before].upper <= lower)
            && !(item as u64 + seed).is_multiple_of(3)
        {
            problem.colocate([before, item]);
        }
    }
    problem
}

/// The better of XLA's two orders: the largest first, or those that are live longest first; each colocated set into
/// the smallest hole that is free at all times of the set.
fn global_decreasing_size_best_fit(problem: &Problem) -> u64 {
    let mut set: Vec<usize> = (0..problem.items.len()).collect();
    for group in &problem.groups {
        // Groups are made in order of their last item, so one pass finds the first of each chain.
        let first = set[group[0]];
        set[group[1]] = first;
    }
    let mut sets: Vec<Vec<usize>> = vec![Vec::new(); set.len()];
    set.iter().enumerate().for_each(|(item, &first)| sets[first].push(item));
    sets.retain(|members| !members.is_empty());
    let size = |members: &[usize]| problem.items[members[0]].size;
    let duration = |members: &[usize]| {
        let lower = members.iter().map(|&item| problem.items[item].lower).min();
        members
            .iter()
            .map(|&item| problem.items[item].upper)
            .max()
            .zip(lower)
            .map(|(upper, lower)| upper - lower)
    };
    let first_duration = |members: &[usize]| {
        let items = members.iter().map(|&item| &problem.items[item]);
        items.min_by_key(|item| item.lower).map(|item| item.upper - item.lower)
    };
    let mut spatial = sets.clone();
    spatial.sort_by_key(|members| Reverse((size(members), first_duration(members))));
    let mut temporal = sets;
    temporal.sort_by_key(|members| Reverse((duration(members), size(members))));
    best_fit(problem, &spatial).min(best_fit(problem, &temporal))
}

fn best_fit(problem: &Problem, sets: &[Vec<usize>]) -> u64 {
    let mut placed: Vec<(u64, usize)> = Vec::new();
    let mut height = 0;
    for members in sets {
        let size = problem.items[members[0]].size;
        let meets = |&&(_, other): &&(u64, usize)| {
            let other = &problem.items[other];
            members.iter().any(|&item| {
                let item = &problem.items[item];
                item.lower < other.upper && other.lower < item.upper
            })
        };
        let mut busy: Vec<(u64, u64)> =
            placed.iter().filter(meets).map(|&(at, other)| (at, at + problem.items[other].size)).collect();
        busy.sort_unstable();
        let mut holes = Vec::new();
        let mut end = 0;
        for (lower, upper) in busy {
            if lower >= end + size {
                holes.push((lower - end, end));
            }
            end = end.max(upper);
        }
        let offset = holes.into_iter().min().map_or(end, |(_, offset)| offset);
        placed.extend(members.iter().map(|&item| (offset, item)));
        height = height.max(offset + size);
    }
    height
}
