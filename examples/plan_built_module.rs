//! Builds a module in code, plans it, and reads offsets out: what an embedder with a compiler of its own does.
//!
//! ```text
//! cargo run --example plan_built_module
//! ```
#![allow(clippy::print_stdout, reason = "an example talks")]

use memplan::ir::{BinaryOp, ElementType::F32, Insert, ModuleBuilder, Position, Shape, ShapeIndex, UnaryOp};
use memplan::memory::{AllocationKind, Bytes, Target};
use memplan::plan::{PlanOptions, plan};
use memplan::{check, legalize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // tanh(x w) + x, the result in the memory of x, which the caller gives up.
    let mut builder = ModuleBuilder::new("residual");
    let mut main = builder.computation("main");
    let x = main.parameter("x", Shape::array(F32, [64, 64]));
    let w = main.parameter("w", Shape::array(F32, [64, 64]));
    let product = main.matmul(x, w)?;
    let activated = main.unary(UnaryOp::Tanh, product)?;
    let sum = main.binary(BinaryOp::Add, activated, x)?;
    let main = main.finish(sum)?;
    builder.alias(ShapeIndex::root(), 0, ShapeIndex::root());
    let mut module = builder.finish(main)?;

    // Copies where aliasing needs them (here: nowhere), then a schedule and a place for everything.
    let target = Target::find("gpu-h100")?;
    legalize(&mut module, &target)?;
    let planned = plan(&module, &target, &PlanOptions::default())?;
    check::check(&module, &planned.schedule, &target, &planned.plan)?;

    for &instruction in planned.schedule.sequence(module.entry) {
        let name = &module.instructions[instruction].name;
        let position = Position { instruction, index: ShapeIndex::root() };
        let slice = planned.plan.slices[&position];
        println!("{name:8} {} + {}, {} bytes", slice.allocation, slice.offset.0, slice.size.0);
    }

    // One matrix of scratch, in which the product and its activation live; the sum is where x was.
    assert_eq!(planned.plan.totals.temp, Bytes(64 * 64 * 4));
    let [scratch, result] = [activated, sum]
        .map(|instruction| planned.plan.slices[&Position { instruction, index: ShapeIndex::root() }]);
    assert_eq!(planned.plan.allocations[scratch.allocation].kind, AllocationKind::Temp);
    let argument = AllocationKind::Argument { parameter: 0, index: ShapeIndex::root() };
    assert_eq!(planned.plan.allocations[result.allocation].kind, argument);
    Ok(())
}
