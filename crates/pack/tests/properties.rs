//! Against brute force, on problems small enough for it.

use memplan_pack::fuzz::{Case, check};
use memplan_pack::{Item, Options, Problem, Recording, Status, pack, validate};
use proptest::prelude::*;

#[test]
fn empty_and_sizeless_problems_have_height_zero() {
    let mut problem = Problem::new();
    assert_eq!(pack(&problem, &Options::quick()).map(|packing| packing.height), Ok(0));
    problem.push(Item::new(0, 0..1));
    let packing = pack(&problem, &Options::quick()).expect("nothing is wrong with it");
    assert_eq!((packing.height, packing.certificate.status), (0, Status::Packed));
}

#[test]
fn groups_share_an_offset() {
    let mut problem = Problem::new();
    let a = problem.push(Item::new(10, 0..3));
    let b = problem.push(Item::new(20, 2..5).aligned(4));
    problem.push(Item::new(5, 0..5));
    problem.colocate([a, b]);
    let packing = pack(&problem, &Options::quick()).expect("nothing is wrong with it");
    assert_eq!(packing.offsets[a], packing.offsets[b]);
    assert_eq!(validate(&problem, &packing.offsets), Ok(25));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_agree_with_brute_force(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        check(&bytes);
    }

    /// Each byte of input allocates so many bytes, or frees one of what is live.
    #[test]
    fn replayed_allocations_share_no_byte(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let is_allocation = |byte: u8, n_live: usize| byte.is_multiple_of(2) || n_live == 0;
        let mut recording = Recording::new(16);
        let mut live: Vec<usize> = Vec::new();
        for &byte in &bytes {
            match is_allocation(byte, live.len()) {
                true => live.push(recording.allocate(byte.into())),
                false => recording.free(live.remove(byte as usize % live.len())).expect("it is live"),
            }
        }
        let step = recording.pack(&Options::quick()).expect("nothing is wrong with it");
        let mut replay = step.replay();
        let mut live: Vec<(usize, u64, u64)> = Vec::new();
        for &byte in &bytes {
            match is_allocation(byte, live.len()) {
                true => {
                    let (size, placed) = (u64::from(byte), replay.allocate(byte.into()).expect("as recorded"));
                    let end = placed.offset + size;
                    prop_assert!(placed.offset % 16 == 0 && end <= step.bytes());
                    prop_assert!(live.iter().all(|&(_, other, at)| end <= at || at + other <= placed.offset || size == 0 || other == 0));
                    live.push((placed.number, size, placed.offset));
                }
                false => replay.free(live.remove(byte as usize % live.len()).0).expect("as recorded"),
            }
        }
    }
}

/// The property above would hold of a solver that is never asked anything.
#[test]
fn cases_are_interesting() {
    let mut state = 1u64;
    let mut counts = [0; 3];
    for _ in 0..1000 {
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..80).map(|_| byte()).collect();
        counts[check(&bytes) as usize] += 1;
    }
    assert!(counts[Case::Refused as usize] < 300, "{counts:?}");
    assert!(counts[Case::Gap as usize] > 30, "{counts:?}");
}
