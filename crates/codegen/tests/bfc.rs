//! The allocator simulator: a test for each rule of DEVICES.md section 4.1, and what holds after any trace.

use std::collections::BTreeMap;

use memplan_codegen::bfc::{
    Allocator, BINS, Bfc, End, Event, GRANULE, Options, ReplayError, TwoEnded, bin, replay,
};
use memplan_memory::{Alignment, Bytes};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn pool(bytes: u64) -> Bfc {
    Bfc::new(Options::preallocated(Bytes(bytes)))
}

fn take(pool: &mut Bfc, bytes: u64) -> u64 {
    pool.allocate(Bytes(bytes), Alignment::ONE).expect("it fits")
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
    assert_eq!(pool.allocate(Bytes(256), align(4096)), Some(4096));
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
    assert_eq!(pool.allocate(Bytes(26 * MIB), Alignment::ONE), None);
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
}

#[test]
fn empty_regions_are_released_before_a_request_fails() {
    for release_regions in [false, true] {
        let mut pool = Bfc::new(Options { release_regions, ..Options::growing(Bytes(8 * MIB)) });
        let first = take(&mut pool, 2 * MIB);
        assert!(pool.free(first));
        let served = pool.allocate(Bytes(7 * MIB), Alignment::ONE);
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

#[test]
fn ends_do_not_disturb_each_other() {
    let mut pool = TwoEnded::new(Bytes(16 * KIB));
    let take = |pool: &mut TwoEnded, end, bytes| pool.allocate(end, Bytes(bytes), Alignment::ONE);
    let [low, high] = [End::Lower, End::Upper].map(|end| take(&mut pool, end, 2048).unwrap());
    assert_eq!((low, high), (0, 14 * KIB));
    let guards = [End::Lower, End::Upper].map(|end| take(&mut pool, end, 1024).unwrap());
    assert_eq!((guards, pool.gap()), ([2048, 13 * KIB], (3 * KIB, 13 * KIB)));
    assert!(pool.free(low) && pool.free(high));
    // Exact splitting below; above, a rest of less than half stays with the chunk.
    assert_eq!([End::Lower, End::Upper].map(|end| take(&mut pool, end, 1280)), [Some(0), Some(14 * KIB)]);
    assert_eq!(pool.holes(End::Lower).collect::<Vec<_>>(), [(1280, 768)]);
    assert_eq!(pool.holes(End::Upper).count(), 0);
    // Freed at the boundary, chunks rejoin the gap, and the holes next to them.
    assert!(pool.free(guards[0]));
    assert_eq!(pool.gap(), (1280, 13 * KIB));
    assert_eq!(take(&mut pool, End::Lower, 12 * KIB), None);
}

#[test]
fn equal_holes_are_taken_from_the_end_inward() {
    for (end, expected) in [(End::Lower, 0), (End::Upper, 1)] {
        let mut pool = TwoEnded::new(Bytes(16 * KIB));
        let chunks = [1024; 4].map(|bytes| pool.allocate(end, Bytes(bytes), Alignment::ONE).unwrap());
        let mut holes = [chunks[0], chunks[2]];
        holes.iter().for_each(|&hole| assert!(pool.free(hole)));
        holes.sort_unstable();
        assert_eq!(pool.allocate(end, Bytes(1024), Alignment::ONE), Some(holes[expected]));
    }
}

#[test]
fn traces_that_cannot_be_are_refused() {
    let request = Event::Allocate { id: 7, bytes: Bytes(1), alignment: Alignment::ONE };
    let twice = replay(&mut pool(MIB), &[request, request]);
    assert_eq!(twice, Err(ReplayError::Allocated { event: 1, id: 7 }));
    let unknown = replay(&mut pool(MIB), &[request, Event::Free { id: 8 }]);
    assert_eq!(unknown, Err(ReplayError::NotAllocated { event: 1, id: 8 }));
    let large = Event::Allocate { id: 7, bytes: Bytes(2 * MIB), alignment: Alignment::ONE };
    assert_eq!(replay(&mut pool(MIB), &[large, Event::Free { id: 7 }]).unwrap().addresses, [None]);
}

/// Chunks cover the regions, no two free ones are neighbors, bins hold the free ones, and the figures add up.
fn check(pool: &Bfc) {
    let regions: Vec<_> = pool.regions().collect();
    let (mut free, mut in_use, mut chunks) = (BTreeMap::new(), 0, pool.chunks().peekable());
    for &(start, bytes) in &regions {
        let (mut end, mut was_free) = (start, false);
        while let Some((address, chunk)) = chunks.next_if(|&(address, _)| address < start + bytes) {
            assert_eq!(address, end);
            assert!(chunk.size > 0 && chunk.size % GRANULE == 0);
            let is_free = chunk.requested.is_none();
            assert!(!(is_free && was_free), "free neighbors merge");
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
    let mut filed = BTreeMap::new();
    for i in 0..BINS {
        for (size, address) in pool.bin(i) {
            assert_eq!(bin(size), i);
            filed.insert(address, size);
        }
    }
    assert_eq!(filed, free);
    let sample = pool.sample();
    assert_eq!(sample.in_use, Bytes(in_use));
    assert_eq!(sample.reserved, Bytes(regions.iter().map(|&(_, bytes)| bytes).sum()));
    assert_eq!(sample.largest_free, Bytes(free.values().copied().max().unwrap_or(0)));
}

/// A request (bytes, logarithm of the alignment), or the free of one of those that live.
fn step() -> impl Strategy<Value = (Option<(u64, u32)>, usize)> {
    (prop::option::weighted(0.6, (1u64..3 * MIB, 0u32..14)), any::<usize>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pools_stay_sound(steps in prop::collection::vec(step(), 1..120), growth: bool, release_regions: bool) {
        let limit = Bytes(24 * MIB);
        let mut pool = Bfc::new(Options { growth, release_regions, ..Options::preallocated(limit) });
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (request, pick) in steps {
            match request {
                Some((bytes, log)) => {
                    if let Some(address) = pool.allocate(Bytes(bytes), align(1 << log)) {
                        prop_assert_eq!(address % (1 << log), 0);
                        let apart = |&(other, size): &(u64, u64)| address + bytes <= other || other + size <= address;
                        prop_assert!(live.iter().all(apart));
                        live.push((address, bytes));
                    }
                }
                None if live.is_empty() => {}
                None => prop_assert!(pool.free(live.swap_remove(pick % live.len()).0)),
            }
            check(&pool);
            prop_assert!(pool.sample().reserved <= limit);
        }
    }

    #[test]
    fn two_ended_pools_stay_sound(steps in prop::collection::vec((step(), any::<bool>()), 1..120)) {
        let limit = 24 * MIB;
        let mut pool = TwoEnded::new(Bytes(limit));
        let mut live: Vec<u64> = Vec::new();
        for ((request, pick), lower) in steps {
            match request {
                Some((bytes, log)) => {
                    let end = if lower { End::Lower } else { End::Upper };
                    let address = pool.allocate(end, Bytes(bytes), align(1 << log));
                    prop_assert!(address.is_none_or(|address| address % (1 << log) == 0));
                    live.extend(address);
                }
                None if live.is_empty() => {}
                None => prop_assert!(pool.free(live.swap_remove(pick % live.len()))),
            }
            // What is in use, the holes and the gap tile the pool.
            let (start, end) = pool.gap();
            let holes = pool.holes(End::Lower).chain(pool.holes(End::Upper));
            let mut parts: Vec<(u64, u64)> = pool.used().chain(holes).chain([(start, end - start)]).collect();
            parts.sort_unstable();
            let covered = parts.iter().try_fold(0, |at, &(address, size)| (at == address).then_some(at + size));
            prop_assert_eq!(covered, Some(limit));
            prop_assert_eq!(pool.used().count(), live.len());
        }
    }
}
