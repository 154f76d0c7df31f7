//! Selects the programs with which the search continues, and the result.

use std::cmp::Ordering;

use memplan_memory::Bytes;

use super::RewriteOptions;
use crate::Estimated;

/// The number of the program to choose; the first is the one as it was.
///
/// Under a limit it is the fastest program that fits: of those that surely do, or, if that costs much time, of those that
/// probably do, or else the smallest one. Without a limit it is the smallest one of those that are fast enough and save enough.
pub(super) fn choose(found: &[Estimated], options: &RewriteOptions) -> usize {
    let before = &found[0];
    let most_seconds = most_seconds(before, options);
    // The time of hundreds of nested loops is unknown: such a program is not ruled out.
    let is_too_slow = |i: usize| found[i].price.seconds.partial_cmp(&most_seconds) == Some(Ordering::Greater);
    let allowed: Vec<usize> = (0..found.len()).filter(|&i| i == 0 || !is_too_slow(i)).collect();
    let fastest = |fits: &dyn Fn(&Estimated) -> bool| {
        let fitting = allowed.iter().copied().filter(|&i| fits(&found[i]));
        fitting.min_by(|&a, &b| by_seconds(&found[a], &found[b]))
    };
    match options.memory_limit {
        Some(limit) => {
            let probably = fastest(&|of| of.price.total <= limit);
            let most = probably.map_or(0.0, |i| found[i].price.seconds * (1.0 + options.worth_of_certainty));
            let surely = fastest(&|of| of.high() <= limit).filter(|&i| found[i].price.seconds <= most);
            let by_bytes = |&a: &usize, &b: &usize| {
                let total = |i: usize| found[i].price.total;
                total(a).cmp(&total(b)).then(by_seconds(&found[a], &found[b]))
            };
            surely.or(probably).or(allowed.into_iter().min_by(by_bytes)).unwrap_or(0)
        }
        None => {
            let worth_it: Vec<usize> =
                allowed.into_iter().filter(|&i| i == 0 || is_worth_it(before, &found[i], options)).collect();
            smallest(found, &worth_it, options)
        }
    }
}

/// Whether a program saves enough, since estimates have an error.
fn is_worth_it(before: &Estimated, after: &Estimated, options: &RewriteOptions) -> bool {
    let saved = before.price.total.saturating_sub(after.price.total);
    let is_slower = after.price.seconds > before.price.seconds * (1.0 + options.same_seconds);
    let (of_temporaries, of_all) = match is_slower {
        true => (options.min_saving_if_slower, options.min_share_if_slower),
        false => (options.min_saving, 0.0),
    };
    saved >= options.min_saved
        && saved.0 as f64 >= before.temp.0 as f64 * of_temporaries
        && saved.0 as f64 >= before.price.total.0 as f64 * of_all
}

/// The smallest program that takes no more time than the first, if it is smaller.
pub(super) fn free(found: &[Estimated]) -> Option<usize> {
    let before = &found[0];
    let as_fast = (1..found.len()).filter(|&i| {
        found[i].price.seconds <= before.price.seconds && found[i].price.total < before.price.total
    });
    as_fast.min_by_key(|&i| found[i].price.total)
}

/// The most time that the chosen program may take.
fn most_seconds(before: &Estimated, options: &RewriteOptions) -> f64 {
    let is_limited = options.memory_limit.is_some() || options.is_frontier;
    let slowdown = options.max_slowdown.or_else(|| (!is_limited).then_some(options.usual_slowdown));
    slowdown.map_or(f64::INFINITY, |share| before.price.seconds * (1.0 + share))
}

/// Whether a rewritten program is chosen in order rather than as it is, or is as good and hardly slower.
pub(super) fn is_better_in_order(
    before: Estimated,
    as_it_is: Estimated,
    ordered: Estimated,
    options: &RewriteOptions,
) -> bool {
    let most_seconds = as_it_is.price.seconds * (1.0 + options.worth_of_order);
    let is_as_good = ordered.price.total <= as_it_is.price.total && ordered.price.seconds <= most_seconds;
    choose(&[before, as_it_is, ordered], options) == 2
        || is_as_good && choose(&[before, ordered], options) == 1
}

/// Whether order costs a program time and hardly saves bytes.
pub(super) fn only_costs(as_it_is: Estimated, ordered: Estimated, options: &RewriteOptions) -> bool {
    let least = as_it_is.price.total.0 as f64 * (1.0 - options.same_bytes);
    ordered.price.seconds > as_it_is.price.seconds * (1.0 + options.time_of_order)
        && ordered.price.total.0 as f64 > least
}

/// The programs that are smaller than the one that would be chosen, and only too slow by what their order may cost.
pub(super) fn nearly_fast_enough(found: &[Estimated], options: &RewriteOptions) -> Vec<usize> {
    let chosen = found[choose(found, options)].price.total;
    let most = most_seconds(&found[0], options);
    let is_close = |of: &Estimated| {
        let seconds = of.price.seconds;
        of.price.total < chosen && most < seconds && seconds <= most * (1.0 + options.time_of_order)
    };
    undominated(found).into_iter().filter(|&i| is_close(&found[i])).collect()
}

/// By which share a program exceeds a limit, below zero if it keeps it: the limit of bytes where a program `now` exceeds that,
/// otherwise the limit of time.
pub(super) fn excess(before: &Estimated, now: &Estimated, of: &Estimated, options: &RewriteOptions) -> f64 {
    match options.memory_limit.filter(|&limit| limit < now.high()) {
        Some(limit) => of.high().0 as f64 / limit.0 as f64 - 1.0,
        None => of.price.seconds / most_seconds(before, options) - 1.0,
    }
}

/// The programs to go on with, in order: the first, and of those that none other beats in both bytes and time, the one
/// that would be chosen now, and the ones that save most beside their neighbours. In a plot of bytes and time, both by
/// their logarithms, a program covers the area of all that it beats; one that covers little alone goes first. Programs that
/// are so slow that they will not be chosen are left out.
pub(super) fn thin(found: &[Estimated], width: usize, options: &RewriteOptions) -> Vec<usize> {
    let fits = |of: &&Estimated| options.memory_limit.is_some_and(|limit| of.high() <= limit);
    let fastest = found.iter().filter(fits).map(|of| of.price.seconds).fold(f64::INFINITY, f64::min);
    let most_seconds = most_seconds(&found[0], options).min(fastest) * options.reach;
    let mut kept = undominated(found);
    kept.retain(|&i| found[i].price.seconds <= most_seconds);
    let bytes = |i: usize| (found[i].price.total.0.max(1) as f64).ln();
    let time = |i: usize| found[i].price.seconds.ln();
    let chosen = choose(found, options);
    while kept.len() > width.max(3) {
        let covered_alone = |&place: &usize| {
            let [smaller, this, larger] = [kept[place - 1], kept[place], kept[place + 1]];
            (bytes(larger) - bytes(this)) * (time(smaller) - time(this))
        };
        let others = (1..kept.len() - 1).filter(|&place| kept[place] != chosen);
        let least = others.min_by(|a, b| covered_alone(a).total_cmp(&covered_alone(b)));
        kept.remove(least.expect("there are four or more"));
    }
    kept.retain(|&i| i != 0);
    kept.insert(0, 0);
    kept
}

/// The programs that none other beats in both bytes and time, from fewest bytes to least time; of equal ones the first.
pub(super) fn undominated(found: &[Estimated]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by(|&a, &b| {
        let of = |i: usize| found[i].price;
        of(a).total.cmp(&of(b).total).then(of(a).seconds.total_cmp(&of(b).seconds)).then(a.cmp(&b))
    });
    let mut least = f64::INFINITY;
    order.retain(|&i| {
        let is_faster = found[i].price.seconds < least;
        least = least.min(found[i].price.seconds);
        is_faster
    });
    order
}

/// Of the programs that have hardly more bytes than the smallest one, that which saves most time for its bytes. Shares are
/// those of the first program.
fn smallest(found: &[Estimated], allowed: &[usize], options: &RewriteOptions) -> usize {
    let before = &found[0].price;
    let least = allowed.iter().map(|&i| found[i].price.total).min().unwrap_or(Bytes::ZERO);
    let more = |i: usize| (found[i].price.total.0 - least.0) as f64 / before.total.0.max(1) as f64;
    let cost = |i: usize| found[i].price.seconds / before.seconds + options.worth_of_bytes * more(i);
    let small = allowed.iter().copied().filter(|&i| more(i) <= options.same_bytes);
    small.min_by(|&a, &b| cost(a).total_cmp(&cost(b)).then(by_seconds(&found[a], &found[b]))).unwrap_or(0)
}

fn by_seconds(a: &Estimated, b: &Estimated) -> Ordering {
    a.price.seconds.total_cmp(&b.price.seconds).then(a.price.total.cmp(&b.price.total))
}
