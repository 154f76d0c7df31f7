//! Times scheduling on generated programs, a chain and a wide graph:
//! `cargo run --release -p memplan-plan-hlo --example schedule_scale -- N...`
#![allow(clippy::print_stdout, reason = "a table for people")]

use std::error::Error;
use std::time::Instant;

use memplan_ir::{BinaryOp, ElementType, Instruction, Module, Op, Shape, UnaryOp};
use memplan_memory::Target;
use memplan_plan_hlo::{ScheduleOptions, schedule};

fn main() -> Result<(), Box<dyn Error>> {
    let target = Target::find("gpu-h100")?;
    for n in std::env::args().skip(1) {
        let n: usize = n.parse()?;
        for (name, module) in [("chain", chain(n)), ("wide", wide(n))] {
            let start = Instant::now();
            let (_, report) = schedule(&module, &target, &ScheduleOptions::default())?;
            let (_, entry) = report.computations.last().ok_or("a module has an entry")?;
            let textual = entry.candidates[0].1;
            println!(
                "{name} {n}: {:.2?}, {} steps, peak {} (text {textual}), {}",
                start.elapsed(),
                entry.steps,
                report.peak,
                if entry.is_optimal { "optimal" } else { "not proved" }
            );
        }
    }
    Ok(())
}

/// Each node reads the last one, and every tenth an array from a hundred nodes ago.
fn chain(n: usize) -> Module {
    let mut module = Module::new("chain");
    let entry = module.add_computation("main");
    module.entry = entry;
    let shape = module.intern(Shape::array(ElementType::F32, [1024]));
    let mut all =
        vec![module.add_instruction(Instruction::new("p", shape, Op::Parameter { number: 0 }, [], entry))];
    module.computations[entry].parameters.push(all[0]);
    for i in 1..n {
        let last = all[i - 1];
        let (op, operands) = match i % 10 {
            0 => (Op::Binary(BinaryOp::Add), vec![last, all[i.saturating_sub(100)]]),
            3 => (Op::Reverse { dimensions: [0].into_iter().collect() }, vec![last]),
            _ => (Op::Unary(UnaryOp::Negate), vec![last]),
        };
        all.push(module.add_instruction(Instruction::new(format!("n{i}"), shape, op, operands, entry)));
    }
    module.computations[entry].root = all[n - 1];
    module
}

/// Many short branches from one array, summed up at the end in pairs.
fn wide(n: usize) -> Module {
    let mut module = Module::new("wide");
    let entry = module.add_computation("main");
    module.entry = entry;
    let shape = module.intern(Shape::array(ElementType::F32, [1024]));
    let root = module.add_instruction(Instruction::new("p", shape, Op::Parameter { number: 0 }, [], entry));
    module.computations[entry].parameters.push(root);
    let mut ends = std::collections::VecDeque::new();
    for i in 0..n / 4 {
        let mut at = root;
        for step in 0..3 {
            let op = Op::Reverse { dimensions: [0].into_iter().collect() };
            at = module.add_instruction(Instruction::new(format!("b{i}.{step}"), shape, op, [at], entry));
        }
        ends.push_back(at);
    }
    let mut i = 0;
    while let (Some(a), Some(b)) = (ends.pop_front(), ends.pop_front()) {
        let op = Op::Binary(BinaryOp::Add);
        let sum = module.add_instruction(Instruction::new(format!("s{i}"), shape, op, [a, b], entry));
        ends.push_back(sum);
        module.computations[entry].root = sum;
        i += 1;
        if ends.len() == 1 {
            break;
        }
    }
    module
}
