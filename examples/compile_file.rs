//! Compiles a program from a file, and prints the savings of each stage.
//!
//! ```text
//! cargo run --example compile_file [FILE [TARGET]]
//! ```
#![allow(clippy::print_stdout, reason = "an example talks")]

use memplan::memory::Target;
use memplan::{CompileOptions, compile, hlo};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mlp_training_step.hlo.txt");
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| default.to_string());
    let target = Target::find(arguments.next().as_deref().unwrap_or("gpu-h100"))?;

    let mut module = hlo::parse(&std::fs::read_to_string(&file)?)?;
    let options = CompileOptions { measure_stages: true, ..CompileOptions::default() };
    let compiled = compile(&mut module, &target, &options)?;

    println!("{} for {}", module.name, target.name);
    for stage in &compiled.stages {
        let total = stage.total.map_or("".into(), |total| total.0.to_string());
        println!("{:14} {total:>12} bytes {:>10.1?}", stage.name, stage.time);
    }
    println!("proved: {} reads found their value", compiled.proof.reads);

    let before = compiled.stages.first().and_then(|stage| stage.total).expect("stages are measured");
    assert!(compiled.planned.plan.totals.total <= before, "compiling never costs memory");
    Ok(())
}
