//! A transformer encoder of luminal, run on the CPU, recorded, packed, and held against the rule of luminal's storage buffers
//! for Metal.
//!
//!     cargo run --release -- FOLDER
//!
//! On the CPU, luminal makes a vector for every node and drops it after its last reader. On Metal, a node gets the buffer of a
//! node that is over before it, if that has exactly its size, else one of its own.

#[path = "../../trace.rs"]
mod trace;

use luminal::nn::transformer::encoder::TransformerEncoder;
use luminal::prelude::*;

#[global_allocator]
static NOTES: trace::Notes = trace::Notes;

fn main() {
    let folder = std::env::args().nth(1).expect("usage: memplan-beside-luminal FOLDER");
    std::fs::create_dir_all(&folder).unwrap();
    let mut graph = Graph::new();
    let model = TransformerEncoder::<128, 512, 4, 4>::initialize(&mut graph);
    let input = graph.tensor::<R3<4, 64, 128>>().set(vec![0.5; 4 * 64 * 128]);
    let mut output = model.forward(input).retrieve();
    graph.compile(<(GenericCompiler, CPUCompiler)>::default(), &mut output);

    let step = trace::record(|| graph.execute());
    let metal = trace::pool(&step, |size| size, |block, size| block == size);
    let packed = trace::pack(&step);
    let bound = packed.packing().certificate.lower_bound;
    println!("transformer: {} allocations", packed.packing().offsets.len());
    println!("luminal's rule for Metal  {metal:>11} bytes");
    println!(
        "memplan                   {:>11} bytes, {:.3} of that, bound {bound}",
        packed.bytes(),
        packed.bytes() as f64 / metal as f64
    );
    trace::write_csv(&step, &format!("{folder}/transformer.csv")).unwrap();
}
