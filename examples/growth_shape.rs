//! Prints a program that is large in one way; `scripts/growth.py` plans and compiles such programs of growing size.
//!
//! ```text
//! cargo run --release --example growth_shape NAME N
//! ```
#![allow(clippy::print_stdout, reason = "an example talks")]

use memplan_testkit::{GROWTH_SHAPES, INSTRUCTIONS_PER_LAYER, unrolled_training};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (name, n) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    if name == "layers" {
        let layers = n.parse::<usize>()?.div_ceil(INSTRUCTIONS_PER_LAYER);
        print!("{}", memplan::hlo::print(&unrolled_training(layers)));
        return Ok(());
    }
    let Some((_, text)) = GROWTH_SHAPES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = GROWTH_SHAPES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no shape `{name}`: there are layers, {}", names.join(", ")).into());
    };
    print!("{}", text(n.parse()?));
    Ok(())
}
