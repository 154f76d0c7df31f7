//! The cost model's facts about each instruction of a scheduled module, as a table: `scripts/fit_cost_model.py` fits
//! the numbers in target files to it.
//!
//! ```text
//! cargo run --release --example kernel_features -- TARGET MODULE [COMPILER]
//! ```
//!
//! With a compiler, the target's rates are those that it reaches, as for f32 that it multiplies as TF32.

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;

use memplan::analysis::{Costs, KernelCosts, Machine};
use memplan::ir::{InstructionId, Module, Shape};
use memplan::memory::{Compiler, MemorySpaceId, Target};
use memplan::plan::{PlanOptions, plan};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(target), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: kernel_features TARGET MODULE [COMPILER]".into());
    };
    let target = Target::find(&target)?;
    let target = match arguments.next() {
        Some(compiler) => Compiler::find(&compiler)?.on(&target),
        None => target,
    };
    let module = memplan::hlo::parse(&std::fs::read_to_string(path)?)?;
    print!("{}", table(&module, &target)?);
    Ok(())
}

/// A row for every instruction that does something. Seconds are those of the rates in the target file alone.
fn table(module: &Module, target: &Target) -> Result<String, Box<dyn Error>> {
    let planned = plan(module, target, &PlanOptions::default())?;
    let graph = &planned.facts.graph;
    let costs = Costs::new(module, graph, &planned.facts.in_place, target);
    let machine = Machine::new(target);
    let kernels = KernelCosts::new(module, graph, &costs, target);
    let bandwidth =
        |space| target.space(space).and_then(|space| space.bandwidth).map_or(f64::INFINITY, |rate| rate);
    let mut text = String::from(
        "instruction\topcode\truns\thas_products\tis_move\tmain_memory_seconds\tother_memory_seconds\tmatrix_seconds\
         \tarithmetic_seconds\tevaluated\taccessed\tseconds\n",
    );
    for &computation in graph.sequential() {
        let runs = costs.frequency(computation);
        for (id, instruction) in module.instructions_of(computation) {
            let work = costs.work(id);
            if work.accesses.is_empty() {
                continue;
            }
            let (mut main, mut other) = (0.0, 0.0);
            for access in &work.accesses {
                let at = access.operand.map_or(id, |number| instruction.operands[number as usize]);
                let space = memory_space(module, at, &access.index);
                let seconds = access.bytes.0 as f64 / bandwidth(space);
                *(if space == MemorySpaceId::MAIN { &mut main } else { &mut other }) += seconds;
            }
            let registers = work.registers;
            text.push_str(&format!(
                "{}\t{}\t{runs}\t{}\t{}\t{main:e}\t{other:e}\t{:e}\t{:e}\t{}\t{}\t{:e}\n",
                instruction.name,
                instruction.op.opcode(),
                u8::from(!work.matrix.is_empty()),
                u8::from(registers.is_move),
                machine.matrix_seconds(work),
                target.vector_rate.map_or(0.0, |rate| work.vector / rate),
                registers.evaluated,
                registers.accessed,
                kernels.of(id).seconds,
            ));
        }
    }
    Ok(text)
}

fn memory_space(module: &Module, id: InstructionId, index: &memplan::ir::ShapeIndex) -> MemorySpaceId {
    let part = module.shape(id).subshape(index).and_then(Shape::as_array);
    MemorySpaceId(part.map_or(0, |array| u32::try_from(array.memory_space()).unwrap_or(0)))
}
