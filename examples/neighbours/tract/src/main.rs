//! The memory schema that tract makes for its GPU backends, and memplan's packing of the same buffers.
//!
//!     cargo run --release -- MODEL.onnx 1,3,640,640
//!
//! tract gives a node's output a partition whose buffers are never live at the same time, and each partition is as large as its
//! largest buffer. No GPU is needed: every node is said to be on the device, as if all had a kernel there.

use memplan_pack::{Item, Options, Problem, minimize, validate};
use tract_gpu::fact::{DeviceFact, DeviceTensorOrigin};
use tract_gpu::memory::DeviceMemSchema;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::{SimplePlan, SymbolValues, vector_size};

fn main() -> TractResult<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(shape)) = (arguments.next(), arguments.next()) else {
        panic!("usage: memplan-beside-tract MODEL.onnx SHAPE, such as 1,3,640,640");
    };
    let shape = shape.split(',').map(str::parse).collect::<Result<TVec<usize>, _>>()?;
    let model = tract_onnx::onnx().model_for_path(&path)?.with_input_fact(0, f32::fact(&shape).into())?;
    let mut model = model.into_typed()?.into_decluttered()?;
    let plan = SimplePlan::new(model.clone())?;
    let order = plan.order_without_consts();
    for &node in order {
        for output in &mut model.nodes[node].outputs {
            let fact = DeviceFact::new(DeviceTensorOrigin::FromDevice, output.fact.clone())?;
            output.fact = fact.into_exotic_fact();
        }
    }
    let none = SymbolValues::default();
    let schema = DeviceMemSchema::build(&model, order, &none)?;

    // What replaces the schema: an item for each requirement, and an offset for each item.
    let mut problem = Problem::new();
    for need in schema.by_partition.iter().flat_map(|partition| &partition.nodes) {
        let (bytes, live) = (need.mem_size.eval_to_i64(&none)? as u64, need.lifetime);
        problem.push(Item::new(bytes, live.start as u64..live.end as u64).aligned(vector_size() as u64));
    }
    let packing = minimize(&problem, &Options::default())?;

    assert_eq!(validate(&problem, &packing.offsets), Ok(packing.height));
    let (theirs, ours) = (schema.eval_memory_size(&none)?, packing.height);
    println!("{path}: {} buffers of {} nodes", problem.items.len(), order.len());
    println!("tract    {theirs:>11} bytes in {} partitions", schema.by_partition.len());
    println!(
        "memplan  {ours:>11} bytes, {:.3} of that, bound {}",
        ours as f64 / theirs as f64,
        packing.certificate.lower_bound
    );
    Ok(())
}
