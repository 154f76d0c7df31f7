//! Packs without the standard library, as firmware would: `cargo check` in this folder is the proof that it is not needed,
//! since a panic handler beside that of `std` would be an error. A program that links this brings an allocator.

#![no_std]

extern crate alloc;

use alloc::vec::Vec;

use memplan_check_placement::{Misplacement, check_order};
use memplan_pack::{Error, Item, Options, Problem, minimize};
use memplan_program::{NodeId, Region};
use memplan_units::Bytes;

/// Where to put buffers that are live in `[from, to)`, each given as `(bytes, from, to)`, and how many bytes they take
/// together.
pub fn place(buffers: &[(Bytes, u64, u64)]) -> Result<(Vec<Bytes>, Bytes), Error> {
    let problem: Problem =
        buffers.iter().map(|&(bytes, from, to)| Item::new(bytes.0, from..to).aligned(8)).collect();
    let packing = minimize(&problem, &Options::quick())?;
    Ok((packing.offsets.into_iter().map(Bytes).collect(), Bytes(packing.height)))
}

/// Whether nodes run once each, after what they depend on.
pub fn check(region: &Region, order: &[NodeId]) -> Result<(), Misplacement> {
    check_order(region, order)
}

#[panic_handler]
fn stop(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
