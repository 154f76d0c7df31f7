//! Packs buffers with known lifetimes, without any program: the packer is a crate of its own.
//!
//! ```text
//! cargo run --example pack_only
//! ```
#![allow(clippy::print_stdout, reason = "an example talks")]

use memplan::pack::{Item, Options, Problem, minimize, validate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Four buffers over six instants.
    let mut problem = Problem::new();
    let items = [
        problem.push(Item::new(4, 0..2)),
        problem.push(Item::new(6, 1..4)),
        problem.push(Item::new(4, 3..6)),
        problem.push(Item::new(2, 2..5).aligned(2)),
    ];
    // Two values of one buffer, say the state of a loop: wherever one is, the other is too.
    let again = problem.push(Item::new(4, 5..6));
    problem.colocate([items[0], again]);

    let packing = minimize(&problem, &Options::default())?;
    for (item, offset) in problem.items.iter().zip(&packing.offsets) {
        println!("{} bytes live {}..{} at {offset}", item.size, item.lower, item.upper);
    }
    let certificate = &packing.certificate;
    println!("height {}, lower bound {}", packing.height, certificate.lower_bound);

    assert_eq!(validate(&problem, &packing.offsets)?, packing.height);
    assert_eq!(packing.offsets[items[0]], packing.offsets[again]);
    assert!(certificate.optimal && packing.height == certificate.lower_bound);
    Ok(())
}
