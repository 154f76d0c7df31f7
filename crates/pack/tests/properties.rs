//! Against brute force, on problems small enough for it.

use memplan_pack::{Item, Options, Problem, Status, pack, validate};

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
