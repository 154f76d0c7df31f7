//! Defragmentation: the moves, executed on bytes, keep every buffer.

use std::collections::{BTreeMap, BTreeSet};

use memplan_memory::{Alignment, Bytes};
use memplan_pool::defragment::{Buffer, Compaction, DefragmentError, Move, Options, make_hole, order};
use proptest::prelude::*;

fn options(allow_overlap: bool) -> Options {
    Options { alignment: Alignment::ONE, allow_overlap }
}

fn buffers(places: &[(u64, u64)]) -> Vec<Buffer> {
    places.iter().enumerate().map(|(id, &(address, size))| Buffer { id, address, size }).collect()
}

fn hole(places: &[(u64, u64)], region: u64, wanted: u64) -> Compaction {
    make_hole(&buffers(places), region, wanted, &options(true)).unwrap()
}

fn moves(compaction: &Compaction) -> Vec<(usize, u64, u64)> {
    compaction.moves.iter().map(|m| (m.id, m.from, m.to)).collect()
}

#[test]
fn a_hole_that_is_there_costs_nothing() {
    let found = hole(&[(0, 4), (10, 4)], 20, 6);
    assert_eq!((moves(&found), found.hole, found.lower_bound), (vec![], (4, 6), Bytes(0)));
}

#[test]
fn a_small_buffer_goes_to_a_hole_elsewhere() {
    // Sliding everything moves 9 bytes, and no window is free.
    let found = hole(&[(0, 4), (10, 1), (17, 6), (25, 1)], 26, 13);
    assert_eq!((moves(&found), found.hole), (vec![(1, 10, 23)], (4, 13)));
    assert_eq!((found.lower_bound, found.slide_all), (Bytes(1), Bytes(8)));
}

#[test]
fn only_what_lies_between_enough_holes_slides() {
    // No hole elsewhere takes the 3 bytes at 16; sliding them joins two holes.
    let found = hole(&[(0, 10), (12, 2), (16, 3), (21, 9)], 30, 4);
    assert_eq!((moves(&found), found.hole), (vec![(1, 12, 10)], (12, 4)));
    assert!(found.bytes_moved() < found.slide_all);
}

#[test]
fn all_that_is_free_in_one_piece() {
    let found = hole(&[(1, 2), (4, 2), (7, 2)], 9, 3);
    assert_eq!((moves(&found), found.hole), (vec![(0, 1, 0), (1, 4, 2)], (4, 3)), "the last one stays");
    assert_eq!((found.bytes_moved(), found.slide_all), (Bytes(4), Bytes(6)));
    let wanted = make_hole(&buffers(&[(1, 2)]), 9, 8, &options(true));
    assert_eq!(wanted, Err(DefragmentError::TooLarge { wanted: Bytes(8), free: Bytes(7) }));
}

#[test]
fn alignment_is_kept() {
    let options = Options { alignment: Alignment::new(4).unwrap(), allow_overlap: true };
    let found = make_hole(&buffers(&[(4, 3), (12, 5)]), 20, 11, &options).unwrap();
    assert_eq!(moves(&found), [(0, 4, 0), (1, 12, 4)]);
    let found = make_hole(&buffers(&[(4, 3), (12, 5)]), 20, 12, &options);
    assert_eq!(found, Err(DefragmentError::TooLarge { wanted: Bytes(12), free: Bytes(11) }));
}

#[test]
fn moves_that_overlap_themselves_are_made_in_pieces() {
    let one = buffers(&[(3, 10)]);
    for (allow_overlap, piece) in [(true, 10), (false, 3)] {
        let found = make_hole(&one, 14, 4, &options(allow_overlap)).unwrap();
        assert_eq!(found.moves, [Move { id: 0, from: 3, to: 0, bytes: 10, piece }]);
    }
}

#[test]
fn cycles_are_broken_by_way_of_free_space() {
    let places = buffers(&[(0, 4), (4, 4), (8, 2)]);
    let swap = BTreeMap::from([(0, 4), (1, 0)]);
    let found = order(&places, &swap, 14, &options(true)).unwrap();
    let found: Vec<_> = found.iter().map(|m| (m.id, m.from, m.to)).collect();
    assert_eq!(found, [(0, 0, 10), (1, 4, 0), (0, 10, 4)]);
    assert_eq!(order(&places, &swap, 13, &options(true)), Err(DefragmentError::NoRoom(0)));
}

#[test]
fn what_cannot_be_is_refused() {
    let overlap = buffers(&[(0, 4), (3, 4)]);
    assert_eq!(make_hole(&overlap, 20, 1, &options(true)), Err(DefragmentError::Overlap(1)));
    let outside = buffers(&[(u64::MAX, 4)]);
    assert_eq!(make_hole(&outside, 20, 1, &options(true)), Err(DefragmentError::Overlap(0)));
    let apart = buffers(&[(0, 4), (4, 4)]);
    assert_eq!(
        order(&apart, &BTreeMap::from([(0, 2)]), 20, &options(true)),
        Err(DefragmentError::Overlap(1))
    );
}

#[test]
fn alignments_may_be_larger_than_what_they_are_for() {
    let high = 1 << 63;
    let placed = buffers(&[(0, 256), (512, 256), (high, 256)]);
    let options = Options { alignment: Alignment::new(high).unwrap(), allow_overlap: true };
    let found = make_hole(&placed, u64::MAX, high, &options);
    assert!(matches!(found, Err(DefragmentError::TooLarge { .. })), "{found:?}");
    let two = make_hole(&placed[..2], u64::MAX, 1 << 62, &options).unwrap();
    assert!(two.moves.is_empty(), "{two:?}");
}

/// Executes moves on bytes, each copy as `memmove` or, in pieces, as `memcpy` that refuses overlap.
fn execute(memory: &mut [u8], moves: &[Move], allow_overlap: bool) {
    for &Move { from, to, bytes, piece, .. } in moves {
        let pieces: Vec<u64> = (0..bytes).step_by(piece as usize).collect();
        let in_order: Vec<u64> = if to < from { pieces } else { pieces.into_iter().rev().collect() };
        for start in in_order {
            let length = piece.min(bytes - start);
            assert!(allow_overlap || from.abs_diff(to) >= length, "a copy overlaps itself");
            let range = (from + start) as usize..(from + start + length) as usize;
            memory.copy_within(range, (to + start) as usize);
        }
    }
}

/// Buffers with gaps between them, by (gap, size) in units of the alignment, and the region's end.
fn layout(gaps: &[(u64, u64)], unit: u64, tail: u64) -> (Vec<Buffer>, u64) {
    let mut end = 0;
    let place = |(id, &(gap, size)): (usize, &(u64, u64))| {
        let address = end + gap * unit;
        end = address + size * unit;
        Buffer { id, address, size: size * unit }
    };
    let buffers = gaps.iter().enumerate().map(place).collect();
    (buffers, end + tail * unit)
}

fn fill(buffers: &[Buffer], region: u64) -> Vec<u8> {
    let mut memory = vec![0u8; region as usize];
    for buffer in buffers {
        memory[buffer.address as usize..(buffer.address + buffer.size) as usize].fill(buffer.id as u8 + 1);
    }
    memory
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn holes_are_made_and_buffers_kept(
        gaps in prop::collection::vec((0u64..6, 1u64..9), 1..24), tail in 0u64..6, share in 0.0f64..=1.0, allow_overlap: bool,
    ) {
        let (buffers, region) = layout(&gaps, 4, tail);
        let free = region - buffers.iter().map(|b| b.size).sum::<u64>();
        let wanted = (free as f64 * share) as u64;
        let options = Options { alignment: Alignment::new(4).unwrap(), allow_overlap };
        let found = make_hole(&buffers, region, wanted, &options).unwrap();
        let mut memory = fill(&buffers, region);
        execute(&mut memory, &found.moves, allow_overlap);
        let mut places: BTreeMap<usize, u64> = buffers.iter().map(|b| (b.id, b.address)).collect();
        places.extend(found.moves.iter().map(|m| (m.id, m.to)));
        let (start, size) = found.hole;
        prop_assert!(size >= wanted && start + size <= region);
        for buffer in &buffers {
            let at = places[&buffer.id];
            prop_assert!(at.is_multiple_of(4));
            prop_assert!(memory[at as usize..(at + buffer.size) as usize].iter().all(|&b| b == buffer.id as u8 + 1));
            prop_assert!(size == 0 || at + buffer.size <= start || start + size <= at, "the hole is free");
        }
        prop_assert!(found.lower_bound <= found.bytes_moved() && found.bytes_moved() <= found.slide_all);
        prop_assert_eq!(found.moves.iter().map(|m| m.id).collect::<BTreeSet<_>>().len(), found.moves.len());
    }

    #[test]
    fn any_order_of_buffers_is_reached(
        gaps in prop::collection::vec((0u64..3, 1u64..9), 1..16), tail in 60u64..80, keys in prop::collection::vec(any::<u32>(), 16),
        allow_overlap: bool,
    ) {
        let (buffers, region) = layout(&gaps, 1, tail);
        let mut order_of: Vec<&Buffer> = buffers.iter().collect();
        order_of.sort_by_key(|buffer| (keys[buffer.id], buffer.id));
        let mut end = 0;
        let mut targets = BTreeMap::new();
        for buffer in order_of {
            targets.insert(buffer.id, end);
            end += buffer.size;
        }
        let moves = order(&buffers, &targets, region, &options(allow_overlap)).unwrap();
        let mut memory = fill(&buffers, region);
        execute(&mut memory, &moves, allow_overlap);
        for buffer in &buffers {
            let at = targets[&buffer.id] as usize;
            prop_assert!(memory[at..at + buffer.size as usize].iter().all(|&b| b == buffer.id as u8 + 1));
        }
        prop_assert!(moves.len() <= 2 * buffers.len());
    }
}
