//! Compiles a program and writes a runtime's inputs: the layout as JSON, the header for C, the constants.
//!
//! ```text
//! cargo run --example emit_layout [FILE [TARGET [FOLDER]]]
//! ```
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use memplan::codegen::layout::{LaunchKind, layout};
use memplan::codegen::{c_header, write_constants};
use memplan::memory::Target;
use memplan::{CompileOptions, compile, hlo};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/lstm.hlo.txt");
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| default.to_string());
    let target = Target::find(arguments.next().as_deref().unwrap_or("tpu-v5e"))?;
    let folder = arguments.next().map_or_else(|| std::env::temp_dir().join("memplan_layout"), PathBuf::from);
    std::fs::create_dir_all(&folder)?;

    let mut module = hlo::parse(&std::fs::read_to_string(&file)?)?;
    let compiled = compile(&mut module, &target, &CompileOptions::default())?;
    let planned = &compiled.planned;
    let layout = layout(&module, &planned.facts, &target, &planned.plan);

    std::fs::write(folder.join("layout.json"), serde_json::to_string_pretty(&layout)?)?;
    std::fs::write(folder.join("layout.txt"), layout.to_string())?;
    std::fs::write(folder.join("program.h"), c_header(&layout))?;
    let mut constants = BufWriter::new(File::create(folder.join("constants.bin"))?);
    write_constants(&module, &planned.plan, &mut constants)?;

    // A runtime gets the allocations, then issues the launches in order.
    for space in &layout.spaces {
        println!("{} {}: {} bytes", space.id, space.name, space.used.0);
    }
    for (computation, launch) in layout.launches_in_order() {
        let addresses = |arguments: &[memplan::codegen::layout::Argument]| {
            let texts = arguments.iter().filter_map(|argument| argument.address);
            texts.map(|a| format!("{}+{}", a.allocation, a.offset.0)).collect::<Vec<_>>().join(" ")
        };
        match launch.kind {
            LaunchKind::Kernel => println!(
                "{:3} {} {}({}) -> {}",
                launch.index,
                computation.name,
                launch.opcode,
                addresses(&launch.operands),
                addresses(&launch.results)
            ),
            other => println!("{:3} {} {other:?} {}", launch.index, computation.name, launch.name),
        }
    }
    assert_eq!(layout.launches_in_order().len(), layout.launches as usize);
    println!("written to {}", folder.display());
    Ok(())
}
