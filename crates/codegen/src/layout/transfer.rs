//! Transfers: asynchronous moves, and moves between memory spaces.

use memplan_ir::{InstructionId, Op, PositionId};
use memplan_memory::Bytes;

use super::program::NumberedProgram;
use super::{Address, LaunchKind, Transfer};

/// All transfers, by the launch that starts them.
pub(super) fn transfers(program: &NumberedProgram<'_>) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    // The transfer that each start has become.
    let mut started = memplan_ir::SecondaryMap::<InstructionId, Option<usize>>::new();
    for &id in &program.facts.line.instructions {
        let instruction = &program.module.instructions[id];
        if program.wrapped(instruction.parent).is_some() {
            continue;
        }
        match program.kind(id) {
            LaunchKind::Start => {
                started[id] = Some(transfers.len());
                transfers.push(transfer(program, id));
            }
            LaunchKind::Done => {
                if let Some(i) = start_of(program, id).and_then(|start| started[start]) {
                    transfers[i].done = Some(program.launch_number(id));
                }
            }
            _ if instruction.op == Op::Copy => {
                let copy = transfer(program, id);
                if copy.from != copy.to {
                    transfers.push(Transfer { done: Some(copy.start), ..copy });
                }
            }
            _ => {}
        }
    }
    transfers
}

/// The instruction that started what another one waits for: its operand, through updates in between.
fn start_of(program: &NumberedProgram<'_>, done: InstructionId) -> Option<InstructionId> {
    let mut at = *program.module.instructions[done].operands.first()?;
    loop {
        let instruction = &program.module.instructions[at];
        match &instruction.op {
            Op::AsyncUpdate(_) => at = *instruction.operands.first()?,
            op if op.only_passes_on() => at = *instruction.operands.first()?,
            _ => return (program.kind(at) == LaunchKind::Start).then_some(at),
        }
    }
}

fn transfer(program: &NumberedProgram<'_>, id: InstructionId) -> Transfer {
    let instruction = &program.module.instructions[id];
    let positions = &program.facts.flow.positions;
    let wrapped = match instruction.op {
        Op::AsyncStart(_) => instruction.called.first().and_then(|&called| program.wrapped(called)),
        _ => None,
    };
    let operation = wrapped.map_or(&instruction.op, |wrapped| &program.module.instructions[wrapped].op);
    // A slice's other operands are indices; a transfer with a destination operand reads the second.
    let read = match operation {
        Op::Slice { .. } | Op::DynamicSlice { .. } => 0..1,
        Op::DynamicUpdateSlice => 1..2,
        Op::Send(_) => 0..1,
        _ => 0..instruction.operands.len(),
    };
    let read = instruction.operands.get(read).unwrap_or_default();
    let addresses = |positions: &mut dyn Iterator<Item = PositionId>| -> Vec<Address> {
        positions.filter_map(|position| program.address(position)).collect()
    };
    let sources = addresses(&mut read.iter().flat_map(|&operand| positions.of(operand)));
    let is_written = |&position: &PositionId| {
        let first = positions.shape_index(position).0.first().copied();
        match instruction.op {
            // The others are flags by which the end of the transfer is known.
            Op::CopyStart { .. } | Op::Recv(_) => first == Some(0),
            Op::AsyncStart(_) => first == Some(1),
            Op::CollectivePermuteStart(_) => program.is_started(id, position) && first < Some(2),
            Op::Send(_) => false,
            _ => program.is_started(id, position),
        }
    };
    let destinations = addresses(&mut positions.of(id).filter(is_written));
    // An update in place writes as much as it reads, into something larger.
    let moved: &[Address] = match operation {
        Op::DynamicUpdateSlice => &sources,
        _ if destinations.is_empty() => &sources,
        _ => &destinations,
    };
    let ends = (sources.first().or(destinations.first()), destinations.first().or(sources.first()));
    let space = |address: Option<&Address>| address.map_or_else(Default::default, |a| program.space(a));
    let opcode = wrapped.map_or(id, |wrapped| wrapped);
    let opcode = program.module.instructions[opcode].opcode().to_string();
    Transfer {
        name: instruction.name.to_string(),
        operation: opcode.trim_end_matches("-start").to_string(),
        computation: program.module.computations[instruction.parent].name.to_string(),
        from: space(ends.0),
        to: space(ends.1),
        bytes: moved.iter().map(|address| address.size).fold(Bytes::ZERO, Bytes::saturating_add),
        start: program.launch_number(id),
        done: None,
        runs: program.nesting(instruction.parent).runs,
        cross_program_prefetch: match instruction.op {
            Op::CopyStart { cross_program_prefetch_index } => cross_program_prefetch_index,
            _ => None,
        },
        sources,
        destinations,
    }
}
