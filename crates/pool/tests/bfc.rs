//! The allocator simulator: a test for each rule of `xla/tsl/framework/bfc_allocator.cc`, and what holds after
//! any trace.

use std::collections::BTreeMap;

use memplan_memory::{Alignment, Bytes};
use memplan_pool::bfc::{Append, BINS, Bfc, BinUsage, Growth, Options, bin};
use memplan_pool::{Allocator, End, GRANULE, Request};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn pool(bytes: u64) -> Bfc {
    Bfc::new(Options::preallocated(Bytes(bytes)))
}

fn take(pool: &mut Bfc, bytes: u64) -> u64 {
    pool.allocate(Request::new(Bytes(bytes))).expect("it fits")
}

fn align(bytes: u64) -> Alignment {
    Alignment::new(bytes).unwrap()
}

#[test]
fn sizes_are_rounded_up() {
    let mut pool = pool(MIB);
    assert_eq!([take(&mut pool, 1), take(&mut pool, 257), take(&mut pool, 1)], [0, 256, 768]);
    let sample = pool.sample();
    assert_eq!((sample.requested, sample.in_use), (Bytes(259), Bytes(1024)));
}

#[test]
fn alignment_leaves_a_free_prefix() {
    let mut pool = pool(MIB);
    take(&mut pool, 256);
    assert_eq!(pool.allocate(Request::new(Bytes(256)).aligned(align(4096))), Some(4096));
    assert_eq!(take(&mut pool, 256), 256, "the prefix is used");
}

#[test]
fn bins_double() {
    let sizes = [1, 256, 511, 512, 1024, 128 * MIB, 256 * MIB, 1 << 40];
    assert_eq!(sizes.map(bin), [0, 0, 0, 1, 2, 19, 20, 20]);
}

#[test]
fn the_smallest_fitting_chunk_is_taken_and_the_lowest_of_equals() {
    let mut pool = pool(MIB);
    // Free afterward: 4096 bytes at 0, 2048 at 4352, 2048 at 6656; each behind a guard that stays.
    let holes: Vec<u64> = [4096, 2048, 2048]
        .map(|bytes| {
            let hole = take(&mut pool, bytes);
            take(&mut pool, 256);
            hole
        })
        .into();
    holes.iter().for_each(|&hole| assert!(pool.free(hole)));
    assert_eq!(take(&mut pool, 1536), holes[1]);
    assert_eq!(take(&mut pool, 1536), holes[2]);
    assert_eq!(take(&mut pool, 1536), holes[0], "a higher bin serves what its own does not");
}

#[test]
fn a_rest_is_given_back_when_it_is_worth_it() {
    // Half of the chunk is left: split. Less: the whole chunk is given.
    let mut half = pool(4096);
    take(&mut half, 2048);
    assert_eq!(half.sample().in_use, Bytes(2048));
    let mut less = pool(4096);
    take(&mut less, 2304);
    assert_eq!(less.sample().in_use, Bytes(4096));
    // 128 MiB left: split, however large the request.
    let mut large = pool(1024 * MIB);
    take(&mut large, 896 * MIB);
    assert_eq!(large.sample().in_use, Bytes(896 * MIB));
    let mut larger = pool(1024 * MIB);
    take(&mut larger, 896 * MIB + 1);
    assert_eq!(larger.sample().in_use, Bytes(1024 * MIB));
}

#[test]
fn the_largest_waste_can_be_a_share_of_the_limit() {
    let options = |fragmentation_fraction| Options {
        fragmentation_fraction,
        ..Options::preallocated(Bytes(100 * KIB))
    };
    for (fraction, in_use) in [(0.0, 100), (0.25, 75), (0.26, 100)] {
        let mut pool = Bfc::new(options(fraction));
        take(&mut pool, 75 * KIB);
        assert_eq!(pool.sample().in_use, Bytes(in_use * KIB), "{fraction}");
    }
}

#[test]
fn nothing_is_not_served() {
    let mut pool = pool(MIB);
    assert_eq!(pool.allocate(Request::new(Bytes::ZERO)), None);
    assert_eq!(pool.sample().reserved, Bytes::ZERO, "not even a region is taken");
}

#[test]
fn freed_chunks_merge_with_both_neighbors() {
    let mut pool = pool(MIB);
    let [a, b, c] = [4096; 3].map(|bytes| take(&mut pool, bytes));
    assert!(pool.free(a) && pool.free(c));
    assert_eq!(pool.chunks().count(), 3, "c merged with the rest of the region");
    assert!(pool.free(b));
    assert_eq!(pool.chunks().map(|(address, chunk)| (address, chunk.size)).collect::<Vec<_>>(), [(0, MIB)]);
    assert!(!pool.free(b), "nothing is there any more");
}

#[test]
fn a_growing_pool_doubles_its_regions() {
    let mut pool = Bfc::new(Options::growing(Bytes(64 * MIB)));
    let regions = |pool: &Bfc| pool.regions().map(|(_, bytes)| bytes / MIB).collect::<Vec<_>>();
    take(&mut pool, KIB);
    assert_eq!(regions(&pool), [2]);
    take(&mut pool, 2 * MIB);
    assert_eq!(regions(&pool), [2, 4], "the next size doubled after the first region");
    take(&mut pool, 20 * MIB);
    assert_eq!(regions(&pool), [2, 4, 32], "doubled until it fits");
    take(&mut pool, 24 * MIB);
    assert_eq!(regions(&pool), [2, 4, 32, 26], "capped at what remains");
    assert_eq!(pool.allocate(Request::new(Bytes(26 * MIB))), None);
}

#[test]
fn a_small_limit_is_the_first_region() {
    let mut pool = Bfc::new(Options::growing(Bytes(MIB)));
    take(&mut pool, KIB);
    assert_eq!(pool.regions().collect::<Vec<_>>(), [(0, MIB)]);
}

#[test]
fn a_refused_region_is_asked_for_smaller() {
    let options = Options { device: Bytes(1800 * KIB), ..Options::growing(Bytes(64 * MIB)) };
    let mut pool = Bfc::new(options);
    take(&mut pool, KIB);
    // 2 MiB * 0.9 = 1843.2 KiB, and another tenth less, rounded up to 256 bytes.
    assert_eq!(pool.regions().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [1_698_816]);
    // Nothing at all is given, and asking ends.
    let mut pool = Bfc::new(Options { device: Bytes::ZERO, ..options });
    assert_eq!(pool.allocate(Request::new(Bytes(1))), None);
}

#[test]
fn a_pool_that_does_not_grow_is_one_region() {
    let mut pool = pool(5 * MIB + 100);
    take(&mut pool, 1);
    assert_eq!(pool.regions().collect::<Vec<_>>(), [(0, 5 * MIB)], "rounded down to the granule");
    assert_eq!(pool.allocate(Request::new(Bytes(5 * MIB))), None);
}

#[test]
fn empty_regions_are_released_before_a_request_fails() {
    for release_regions in [false, true] {
        let mut pool = Bfc::new(Options { release_regions, ..Options::growing(Bytes(8 * MIB)) });
        let first = take(&mut pool, 2 * MIB);
        assert!(pool.free(first));
        let served = pool.allocate(Request::new(Bytes(7 * MIB)));
        assert_eq!(served.is_some(), release_regions);
    }
}

#[test]
fn fragmentation_is_the_share_outside_the_largest_hole() {
    let mut pool = pool(4096);
    let [a, _b, c, _d] = [1024; 4].map(|bytes| take(&mut pool, bytes));
    assert_eq!(pool.sample().fragmentation(), 0.0);
    assert!(pool.free(a) && pool.free(c));
    assert_eq!(pool.sample().fragmentation(), 0.5);
}

#[test]
fn the_strip_shows_the_pool() {
    let mut pool = pool(100 * KIB);
    take(&mut pool, 25 * KIB);
    let hole = take(&mut pool, 25 * KIB);
    // The remaining 50 KiB chunk is not split for more than 25 KiB.
    take(&mut pool, 26 * KIB);
    assert!(pool.free(hole));
    let expected = format!("{}{}{}{}", "*".repeat(25), "_".repeat(25), "*".repeat(26), "x".repeat(24));
    assert_eq!(pool.strip(), expected);
}

/// A growing pool whose frees carry times: two regions of 2 and 4 MiB are in use, and 2 MiB are left.
fn timed() -> (Bfc, [u64; 3]) {
    let mut pool = Bfc::new(timed_options());
    let chunks = [2 * MIB, 2 * MIB, 2 * MIB].map(|bytes| take(&mut pool, bytes));
    (pool, chunks)
}

#[test]
fn timed_frees_merge_once_they_are_safe() {
    let free = |pool: &Bfc| pool.chunks().filter(|(_, chunk)| chunk.requested.is_none()).count();
    let (mut pool, [_, b, c]) = timed();
    assert!(pool.free(b) && pool.free(c));
    assert_eq!(free(&pool), 2, "apart, though they are neighbors");
    pool.set_safe_frontier(2);
    take(&mut pool, 256);
    assert_eq!(free(&pool), 2, "only frees before the frontier are safe: the first, of which this is a part");
    pool.set_safe_frontier(3);
    take(&mut pool, 256);
    assert_eq!(free(&pool), 1, "both merged");
}

#[test]
fn a_request_may_insist_on_old_memory() {
    let mut pool = Bfc::new(Options { timestamps: true, ..Options::preallocated(Bytes(4 * KIB)) });
    let [a, b] = [2 * KIB; 2].map(|bytes| take(&mut pool, bytes));
    assert!(pool.free(b) && pool.free(a));
    let before = |freed_before| Request { freed_before, ..Request::new(Bytes(2 * KIB)) };
    assert_eq!(pool.clone().allocate(before(0)), Some(a), "the lowest of equals");
    assert_eq!(pool.allocate(before(1)), Some(b), "the other one was freed too late");
    assert_eq!(pool.allocate(before(1)), None);
    let too_large = Request { bytes: Bytes(4 * KIB), ..before(2) };
    assert!(pool.free(b));
    assert_eq!(pool.allocate(too_large), None, "unsafe chunks are not merged for it");
}

#[test]
fn a_miss_extends_then_merges_unsafe_chunks_then_releases_regions() {
    // What is left can be had: nothing is merged, though merging would do too.
    let (mut pool, [_, b, c]) = timed();
    assert!(pool.free(b) && pool.free(c));
    let mut larger = Bfc::new(Options { limit: Bytes(64 * MIB), device: Bytes(64 * MIB), ..timed_options() });
    let chunks = [2 * MIB, 2 * MIB, 2 * MIB].map(|bytes| take(&mut larger, bytes));
    assert!(larger.free(chunks[1]) && larger.free(chunks[2]));
    take(&mut larger, 4 * MIB);
    assert_eq!(larger.regions().count(), 3);
    // It cannot: the two unsafe chunks become one.
    assert_eq!(pool.allocate(Request::new(Bytes(4 * MIB))), Some(b));
    assert_eq!(pool.regions().count(), 2);
    // No merging helps: empty regions go, and the request gets a new one.
    let (mut pool, [_, b, c]) = timed();
    assert!(pool.free(b) && pool.free(c));
    let address = take(&mut pool, 6 * MIB);
    let sizes: Vec<u64> = pool.regions().map(|(_, bytes)| bytes / MIB).collect();
    assert_eq!((sizes, pool.chunks().last().map(|(a, _)| a)), (vec![2, 6], Some(address)));
    // Releasing would not be enough: it is not done.
    let (mut pool, [_, b, c]) = timed();
    assert!(pool.free(b) && pool.free(c));
    assert_eq!(pool.allocate(Request::new(Bytes(7 * MIB))), None);
    assert_eq!(pool.regions().count(), 2);
}

/// The original asks only what merged into the chunk before it again: what stayed alone is no start of a merge any more,
/// though it becomes a part of one.
#[test]
fn unsafe_chunks_are_tried_once() {
    let mut pool = Bfc::new(Options { timestamps: true, ..Options::preallocated(Bytes(8 * KIB)) });
    let chunks = [(); 4].map(|()| take(&mut pool, 2 * KIB));
    assert!(pool.free(chunks[0]));
    assert_eq!(pool.allocate(Request::new(Bytes(4 * KIB))), None, "nothing to merge with");
    pool.set_safe_frontier(pool.frees() + 1);
    assert!(pool.free(chunks[1]));
    pool.set_safe_frontier(pool.frees() + 1);
    // The second is safe, but the first has still its time.
    take(&mut pool, 256);
    assert_eq!(pool.chunks().filter(|(_, chunk)| chunk.requested.is_none()).count(), 2);
    // A miss looks at all that is in the queue, and the queue is empty.
    assert_eq!(pool.allocate(Request::new(Bytes(4 * KIB))), None);
}

fn timed_options() -> Options {
    Options { timestamps: true, release_regions: true, ..Options::growing(Bytes(8 * MIB)) }
}

#[test]
fn ends_do_not_disturb_each_other() {
    let mut pool = Bfc::new(Options::two_ended(Bytes(16 * KIB)));
    let take = |pool: &mut Bfc, end, bytes| pool.allocate(Request::new(Bytes(bytes)).at(end));
    let [low, high] = [End::Lower, End::Upper].map(|end| take(&mut pool, end, 2048).unwrap());
    assert_eq!((low, high), (0, 14 * KIB));
    let guards = [End::Lower, End::Upper].map(|end| take(&mut pool, end, 1024).unwrap());
    assert_eq!((guards, pool.gap()), ([2048, 13 * KIB], Some((3 * KIB, 13 * KIB))));
    assert!(pool.free(low) && pool.free(high));
    // Exact splitting below; above, a rest of less than half stays with the chunk.
    assert_eq!([End::Lower, End::Upper].map(|end| take(&mut pool, end, 1280)), [Some(0), Some(14 * KIB)]);
    assert_eq!(pool.bin(bin(768)).collect::<Vec<_>>(), [(768, 1280)]);
    assert_eq!(pool.sample().in_use, Bytes(1280 + 1024 + 2048 + 1024));
    // Freed at the boundary, chunks rejoin the gap, and the holes next to them.
    assert!(pool.free(guards[0]));
    assert_eq!(pool.gap(), Some((1280, 13 * KIB)));
    assert_eq!(take(&mut pool, End::Lower, 12 * KIB), None);
}

#[test]
fn the_upper_end_takes_the_high_end_of_a_hole() {
    let mut pool = Bfc::new(Options::two_ended(Bytes(16 * KIB)));
    let hole = take(&mut pool, 4 * KIB);
    take(&mut pool, KIB);
    assert!(pool.free(hole));
    assert_eq!(take(&mut pool, KIB), 15 * KIB);
    assert_eq!(pool.allocate(Request::new(Bytes(KIB)).aligned(align(4 * KIB))), Some(12 * KIB));
}

#[test]
fn alignment_leaves_a_hole_of_its_own_end() {
    for (end, address, hole) in [(End::Lower, 4096, 256), (End::Upper, 8192, 12_288)] {
        let mut pool = Bfc::new(Options::two_ended(Bytes(16 * KIB)));
        let first = pool.allocate(Request::new(Bytes(256)).at(end)).unwrap();
        let large = Request::new(Bytes(4096)).aligned(align(4096)).at(end);
        assert_eq!(pool.allocate(large), Some(address), "{end:?}");
        // A hole of 3840 bytes; the upper end fills it from above.
        let again = pool.allocate(Request::new(Bytes(256)).at(end)).unwrap();
        assert_eq!(again, if end == End::Lower { hole } else { first - 256 });
        assert!(pool.bin(bin(3584)).next().is_some());
    }
}

#[test]
fn all_of_one_end_then_all_of_the_other() {
    let mut pool = Bfc::new(Options::two_ended(Bytes(16 * KIB)));
    for end in [End::Lower, End::Upper, End::Lower] {
        let chunks = [4 * KIB; 4].map(|bytes| pool.allocate(Request::new(Bytes(bytes)).at(end)).unwrap());
        assert_eq!(pool.gap(), None);
        assert!(chunks.into_iter().all(|chunk| pool.free(chunk)));
        assert_eq!(pool.gap(), Some((0, 16 * KIB)));
    }
}

#[test]
fn equal_holes_are_taken_from_the_end_inward() {
    for (end, expected) in [(End::Lower, 0), (End::Upper, 1)] {
        let mut pool = Bfc::new(Options::two_ended(Bytes(16 * KIB)));
        let request = Request::new(Bytes(1024)).at(end);
        let chunks = [(); 4].map(|()| pool.allocate(request).unwrap());
        let mut holes = [chunks[0], chunks[2]];
        holes.iter().for_each(|&hole| assert!(pool.free(hole)));
        holes.sort_unstable();
        assert_eq!(pool.allocate(request), Some(holes[expected]));
    }
}

#[test]
fn appended_memory_belongs_to_the_upper_end() {
    let append = Append {
        first: Bytes(4 * MIB),
        increment: Bytes(2 * MIB),
        headroom: Bytes(MIB),
        ..Append::default()
    };
    let options = Options {
        growth: Growth::Append(append),
        device: Bytes(10 * MIB),
        ..Options::two_ended(Bytes(16 * MIB))
    };
    let mut pool = Bfc::new(options);
    let request = |end, bytes| Request::new(Bytes(bytes)).at(end);
    let lower = pool.allocate(request(End::Lower, 2 * MIB)).unwrap();
    let upper = pool.allocate(request(End::Upper, 2 * MIB)).unwrap();
    assert_eq!(pool.allocate(request(End::Lower, 256)), None, "collective memory does not grow");
    let appended = pool.allocate(request(End::Upper, 3 * MIB)).unwrap();
    assert!(appended >= 4 * MIB);
    assert_eq!(pool.sample().reserved, Bytes(8 * MIB), "whole increments");
    assert_eq!(pool.allocate(request(End::Upper, 2 * MIB)), None, "the headroom is left to others");
    assert!(pool.free(appended));
    assert_eq!(pool.allocate(request(End::Lower, 256)), None);
    assert!(pool.free(upper) && pool.free(lower));
    assert_eq!(pool.gap(), Some((0, 4 * MIB)));
    assert_eq!(pool.allocate(request(End::Lower, 5 * MIB)), None);
}

#[test]
fn a_reserve_is_kept_for_collective_memory() {
    let append = Append { first: Bytes(4 * MIB), collective_reserve: Bytes(3 * MIB), ..Append::default() };
    let options = Options { growth: Growth::Append(append), ..Options::two_ended(Bytes(4 * MIB)) };
    let mut pool = Bfc::new(options);
    assert_eq!(pool.allocate(Request::new(Bytes(2 * MIB))), None);
    take(&mut pool, MIB);
    assert_eq!(pool.allocate(Request::new(Bytes(3 * MIB)).at(End::Lower)), Some(0));
    let default = Append::default();
    assert_eq!((default.headroom, default.increment), (Bytes(1 << 30), Bytes(64 * MIB)));
}

#[test]
fn the_dump_tells_everything() {
    let mut pool = pool(64 * KIB);
    take(&mut pool, 1000);
    let hole = take(&mut pool, 1000);
    take(&mut pool, 3000);
    assert!(pool.free(hole));
    let kib = |n: u64| Bytes(n * KIB);
    let usage = pool.bin_usage();
    let expected =
        BinUsage { chunks: 2, chunks_in_use: 1, bytes: kib(2), in_use: kib(1), requested: Bytes(1000) };
    assert_eq!(usage[2], expected);
    assert_eq!(usage[3].requested, Bytes(3000));
    let text = pool.dump(Some(kib(60)));
    for part in [
        "bin 2 (from 1.00 KiB): 2 chunks, 1 in use; 2.00 KiB, 1.00 KiB in use, 1000 B asked for",
        "free in bin 7, that of the 60.00 KiB asked for:\n  0x1400 of size 60416\n",
        "  free   at 0x400 of size 1024\n  in use at 0x800 of size 3072\n",
        "1 in use of size 3072, together 3.00 KiB\n",
        "64.00 KiB in the pool of at most 64.00 KiB; 4.00 KiB in use, 3.91 KiB asked for; 60.00 KiB free, 59.00 KiB in one piece",
        "\n[**_*****____",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
}

/// Chunks cover the regions, no two free ones are neighbors unless frees carry times, bins and gap hold the free ones,
/// and the figures add up.
fn check(pool: &Bfc, timestamps: bool) {
    let regions: Vec<_> = pool.regions().collect();
    let (mut free, mut in_use, mut chunks) = (BTreeMap::new(), 0, pool.chunks().peekable());
    for &(start, bytes) in &regions {
        let (mut end, mut was_free) = (start, false);
        while let Some((address, chunk)) = chunks.next_if(|&(address, _)| address < start + bytes) {
            assert_eq!(address, end);
            assert!(chunk.size > 0 && chunk.size % GRANULE == 0);
            let is_free = chunk.requested.is_none();
            assert!(timestamps || !(is_free && was_free), "free neighbors merge");
            assert!(timestamps || chunk.freed_at == 0);
            if is_free {
                free.insert(address, chunk.size);
            } else {
                in_use += chunk.size;
            }
            (end, was_free) = (end + chunk.size, is_free);
        }
        assert_eq!(end, start + bytes);
    }
    assert!(chunks.next().is_none());
    let mut filed: BTreeMap<u64, u64> =
        pool.gap().map(|(start, end)| (start, end - start)).into_iter().collect();
    for i in 0..BINS {
        let mut last = 0;
        for (size, address) in pool.bin(i) {
            assert!(bin(size) == i && size >= last);
            filed.insert(address, size);
            last = size;
        }
    }
    assert_eq!(filed, free);
    let sample = pool.sample();
    assert_eq!(sample.in_use, Bytes(in_use));
    assert_eq!(sample.reserved, Bytes(regions.iter().map(|&(_, bytes)| bytes).sum()));
    assert_eq!(sample.largest_free, Bytes(free.values().copied().max().unwrap_or(0)));
}

/// A request (bytes, logarithm of the alignment, end), or the free of one of those that live.
type Step = (Option<(u64, u32, bool)>, usize);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (prop::option::weighted(0.6, (1u64..3 * MIB, 0u32..14, any::<bool>())), any::<usize>());
    prop::collection::vec(step, 1..120)
}

fn modes() -> impl Strategy<Value = Options> {
    let limit = Bytes(24 * MIB);
    let append =
        Append { first: Bytes(8 * MIB), increment: Bytes(MIB), headroom: Bytes(MIB), ..Append::default() };
    let modes = [
        Options::preallocated(limit),
        Options::growing(limit),
        Options::two_ended(limit),
        Options { growth: Growth::Append(append), ..Options::two_ended(limit) },
    ];
    (
        prop::sample::select(modes.to_vec()),
        any::<bool>(),
        any::<bool>(),
        prop::sample::select(vec![0.0, 0.01]),
    )
        .prop_map(|(mode, release_regions, timestamps, fragmentation_fraction)| Options {
            // A pool that gives its first region back has nowhere to put its gap.
            release_regions: release_regions && !mode.two_ended,
            timestamps,
            fragmentation_fraction,
            ..mode
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pools_stay_sound(options in modes(), steps in steps()) {
        let mut pool = Bfc::new(options);
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (request, pick) in steps {
            match request {
                Some((bytes, log, lower)) => {
                    let end = if lower { End::Lower } else { End::Upper };
                    let request = Request::new(Bytes(bytes)).aligned(align(1 << log)).at(end);
                    if let Some(address) = pool.allocate(request) {
                        prop_assert_eq!(address % (1 << log), 0);
                        let apart = |&(other, size): &(u64, u64)| address + bytes <= other || other + size <= address;
                        prop_assert!(live.iter().all(apart));
                        live.push((address, bytes));
                    }
                }
                None if live.is_empty() => {}
                None => prop_assert!(pool.free(live.swap_remove(pick % live.len()).0)),
            }
            if pick % 7 == 0 {
                pool.set_safe_frontier(pool.frees());
            }
            check(&pool, options.timestamps);
            prop_assert!(pool.sample().reserved <= options.limit);
        }
        prop_assert_eq!(pool.sample().requested, Bytes(live.iter().map(|&(_, bytes)| bytes).sum()));
        // Everything freed and safe, the next request finds each region whole.
        live.iter().for_each(|&(address, _)| assert!(pool.free(address)));
        prop_assert_eq!(pool.sample().in_use, Bytes::ZERO);
        if !options.timestamps {
            prop_assert_eq!(pool.chunks().count(), pool.regions().count());
        }
    }

    /// Offsets of one end depend on nothing but its own requests, as long as the gap lasts.
    #[test]
    fn ends_are_independent(steps in steps()) {
        let place = |only: Option<bool>| {
            let mut pool = Bfc::new(Options::two_ended(Bytes(1 << 40)));
            let mut live: [Vec<u64>; 2] = Default::default();
            let mut places = Vec::new();
            for &(request, pick) in &steps {
                let lower = request.map_or(pick % 2 == 0, |(_, _, lower)| lower);
                if only.is_some_and(|only| only != lower) {
                    continue;
                }
                let own = &mut live[usize::from(lower)];
                if let Some((bytes, log, _)) = request {
                    let end = if lower { End::Lower } else { End::Upper };
                    let request = Request::new(Bytes(bytes)).aligned(align(1 << log)).at(end);
                    let address = pool.allocate(request).unwrap();
                    own.push(address);
                    places.push((lower, address));
                } else if !own.is_empty() {
                    pool.free(own.swap_remove((pick / 2) % own.len()));
                }
            }
            places
        };
        let both = place(None);
        for lower in [false, true] {
            let own: Vec<_> = both.iter().copied().filter(|&(other, _)| other == lower).collect();
            prop_assert_eq!(own, place(Some(lower)));
        }
    }
}
