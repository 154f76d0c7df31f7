//! A forward pass of two models of candle-transformers, recorded, packed, and held against the rule of candle's pool for Metal.
//!
//!     RAYON_NUM_THREADS=1 cargo run --release -- FOLDER
//!
//! On the CPU, candle asks the system for every tensor. On Metal its device keeps buffers whose sizes are powers of two, and
//! gives out the smallest that is free and large enough; nothing is released in a step without a wait in it. Weights are zeros,
//! since sizes do not depend on them.

#[path = "../../trace.rs"]
mod trace;

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, resnet};

#[global_allocator]
static NOTES: trace::Notes = trace::Notes;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).expect("usage: memplan-beside-candle FOLDER");
    std::fs::create_dir_all(&folder)?;
    let device = Device::Cpu;
    let weights = || VarBuilder::zeros(DType::F32, &device);

    // The sizes of all-MiniLM-L6-v2.
    let config = bert::Config {
        hidden_size: 384,
        num_hidden_layers: 6,
        num_attention_heads: 12,
        intermediate_size: 1536,
        ..bert::Config::default()
    };
    let model = bert::BertModel::load(weights(), &config)?;
    let tokens = Tensor::zeros((8, 128), DType::U32, &device)?;
    let step = trace::record(|| drop(model.forward(&tokens, &tokens, None)));
    report(&step, "minilm", &folder)?;

    let model = resnet::resnet18(1000, weights())?;
    let images = Tensor::zeros((4, 3, 224, 224), DType::F32, &device)?;
    let step = trace::record(|| drop(model.forward(&images)));
    report(&step, "resnet18", &folder)
}

fn report(step: &[trace::Call], name: &str, folder: &str) -> Result<()> {
    let metal = trace::pool(step, u64::next_power_of_two, |block, size| block >= size);
    let packed = trace::pack(step);
    let n_allocations = packed.packing().offsets.len();
    let bound = packed.packing().certificate.lower_bound;
    println!("{name}: {n_allocations} allocations");
    println!("candle's rule for Metal  {metal:>11} bytes");
    println!(
        "memplan                  {:>11} bytes, {:.3} of that, bound {bound}",
        packed.bytes(),
        packed.bytes() as f64 / metal as f64
    );
    trace::write_csv(step, &format!("{folder}/{name}.csv"))?;
    Ok(())
}
