//! Tests arbitrary bytes: the body of the fuzz target and the smoke test.
//!
//! The bytes become a small problem with every feature; the solver's answers are compared with those of brute force,
//! which uses only the problem.

use alloc::vec::Vec;

use crate::{Error, Item, Options, Problem, Status, fit, minimize, table::Table, validate};

/// The kind of a case, so that a test can count the interesting ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// The problem contradicts itself, and was refused.
    Refused,
    /// The least height is the most bytes live at one time.
    Tight,
    /// It is more, which only search can prove.
    Gap,
}

/// Solves the problem that the bytes encode, and checks all claims of the solver.
///
/// # Panics
///
/// If the solver is wrong.
pub fn check(bytes: &[u8]) -> Case {
    // Whatever the bytes are as CSV: an error or a table, but no panic.
    let _ = Table::parse(bytes);
    let problem = problem(bytes);
    let options = Options { threads: 1, ..Options::default() };
    let packing = match minimize(&problem, &options) {
        Ok(packing) => packing,
        Err(error) => {
            let expected = matches!(
                error,
                Error::FixedOverlap { .. } | Error::GroupOffsets { .. } | Error::Misaligned { .. }
            );
            assert!(expected, "{error} in {problem:?}");
            return Case::Refused;
        }
    };
    let least = brute_force(&problem);
    assert_eq!(validate(&problem, &packing.offsets), Ok(packing.height), "{problem:?}");
    assert_eq!(packing.height, least, "the least height of {problem:?}");
    assert!(packing.certificate.optimal && packing.certificate.lower_bound == least, "{problem:?}");
    let status = |capacity| fit(&problem, capacity, &options).map(|packing| packing.certificate.status);
    assert_eq!(status(least), Ok(Status::Packed), "{problem:?}");
    if least > 0 {
        assert_eq!(status(least - 1), Ok(Status::Infeasible), "{problem:?}");
    }
    let quick = minimize(&problem, &Options::quick()).expect("the other limits made no error");
    assert_eq!(validate(&problem, &quick.offsets), Ok(quick.height), "{problem:?}");
    assert!(quick.certificate.lower_bound <= least, "{problem:?}");
    if quick.certificate.lower_bound == least { Case::Tight } else { Case::Gap }
}

/// At most this many items, as brute force tries all orders.
const MOST_ITEMS: usize = 7;

fn problem(bytes: &[u8]) -> Problem {
    let mut bytes = bytes.iter().copied();
    let mut below = |n: u8| u64::from(bytes.next().unwrap_or(0) % n);
    let mut problem = Problem::new();
    let n_items = 1 + below(MOST_ITEMS as u8) as usize;
    let features = below(16);
    for _ in 0..n_items {
        let lower = below(8);
        let upper = lower + 1 + below(5);
        let mut item = Item::new(below(12), lower..upper);
        if features & 1 != 0 {
            item.alignment = [1, 1, 2, 4, 3, 8][below(6) as usize];
        }
        if features & 2 != 0 && below(4) == 0 {
            item.fixed = Some(below(20) / item.alignment * item.alignment);
        }
        if features & 4 != 0 && below(2) == 0 {
            let start = lower + below(4);
            let end = start + 1 + below(2);
            if end <= upper && end - start < upper - lower {
                item.gaps.push(start..end);
            }
        }
        problem.push(item);
    }
    if features & 8 != 0 {
        for _ in 0..1 + below(2) {
            let (a, b) = (below(n_items as u8) as usize, below(n_items as u8) as usize);
            problem.colocate([a, b]);
        }
    }
    problem
}

/// The least height, by placing the groups in every order, each as low as it goes.
///
/// In the order of offsets of a lowest packing, none ends up higher than it is there.
fn brute_force(problem: &Problem) -> u64 {
    let n = problem.items.len();
    let mut unit: Vec<usize> = (0..n).collect();
    for _ in 0..n {
        for group in &problem.groups {
            let least = group.iter().map(|&item| unit[item]).min().unwrap_or(0);
            group.iter().for_each(|&item| unit[item] = least);
        }
    }
    let mut units: Vec<Vec<usize>> =
        (0..n).map(|u| (0..n).filter(|&item| unit[item] == u).collect()).collect();
    units.retain(|members| !members.is_empty());
    let fixed = |members: &[usize]| members.iter().find_map(|&item| problem.items[item].fixed);
    let mut placed: Vec<(usize, u64)> = Vec::new();
    for members in &units {
        if let Some(offset) = fixed(members) {
            placed.extend(members.iter().map(|&item| (item, offset)));
        }
    }
    units.retain(|members| fixed(members).is_none());
    let mut least = u64::MAX;
    try_orders(problem, &mut units, 0, &mut placed, &mut least);
    least
}

fn try_orders(
    problem: &Problem,
    units: &mut [Vec<usize>],
    done: usize,
    placed: &mut Vec<(usize, u64)>,
    least: &mut u64,
) {
    if done == units.len() {
        let end = |&(item, offset): &(usize, u64)| match problem.items[item].size {
            0 => 0,
            size => offset + size,
        };
        *least = (*least).min(placed.iter().map(end).max().unwrap_or(0));
        return;
    }
    for next in done..units.len() {
        units.swap(done, next);
        let members = units[done].clone();
        let fits = |offset: u64| {
            members.iter().all(|&item| {
                let here = &problem.items[item];
                let clash = |&(other, at): &(usize, u64)| {
                    let there = &problem.items[other];
                    let meets = offset < at + there.size && at < offset + here.size;
                    meets && (0..16).any(|time| is_live(here, time) && is_live(there, time))
                };
                offset.is_multiple_of(here.alignment) && !placed.iter().any(clash)
            })
        };
        let offset = (0..).find(|&offset| fits(offset)).expect("far enough up everything fits");
        placed.extend(members.iter().map(|&item| (item, offset)));
        try_orders(problem, units, done + 1, placed, least);
        placed.truncate(placed.len() - members.len());
        units.swap(done, next);
    }
}

fn is_live(item: &Item, time: u64) -> bool {
    item.size > 0
        && (item.lower..item.upper).contains(&time)
        && !item.gaps.iter().any(|gap| gap.contains(&time))
}
