//! Instructions.

use std::fmt;

use memplan_ir::{Instruction, InstructionId, Module, Op};

use super::{
    attributes::attributes,
    json_or_quoted, literal, notes,
    shape::{Layouts, index_comment, shape},
    sugar::Sugar,
};

/// `%name = shape opcode(operands), attributes`
pub(super) fn instruction<W: fmt::Write>(
    module: &Module,
    sugar: &Sugar,
    id: InstructionId,
    out: &mut W,
) -> fmt::Result {
    let instruction = &module.instructions[id];
    out.write_str("%")?;
    out.write_str(&instruction.name)?;
    out.write_str(" = ")?;
    shape(module.shape(id), Layouts::Print, out)?;
    out.write_char(' ')?;
    opcode(module, sugar, instruction, out)?;
    out.write_char('(')?;
    match &instruction.op {
        Op::Parameter { number } => write!(out, "{number}")?,
        Op::Constant(value) => literal::literal(value, out)?,
        _ => {
            for (i, &operand) in instruction.operands.iter().enumerate() {
                index_comment(out, i)?;
                out.write_str("%")?;
                out.write_str(&module.instructions[operand].name)?;
            }
        }
    }
    out.write_char(')')?;
    attributes(module, sugar, instruction, out)?;
    if let Some(origin) = instruction.extras.as_ref().and_then(|extras| extras.origin.as_ref()) {
        out.write_str(", origin=")?;
        notes::original_value(origin, out)?;
    }
    if let Some(metadata) = &instruction.metadata {
        out.write_str(", metadata={")?;
        notes::metadata(metadata, out)?;
        out.write_char('}')?;
    }
    if let Some(config) = &instruction.backend_config {
        out.write_str(", backend_config=")?;
        json_or_quoted(out, config)?;
    }
    Ok(())
}

/// The opcode; that of the wrapped operation in front of `-start`, `-update` or `-done` where XLA writes it so.
fn opcode<W: fmt::Write>(
    module: &Module,
    sugar: &Sugar,
    instruction: &Instruction,
    out: &mut W,
) -> fmt::Result {
    let suffix = match instruction.op {
        Op::AsyncStart(_) => "-start",
        Op::AsyncUpdate(_) => "-update",
        Op::AsyncDone(_) => "-done",
        _ => return out.write_str(instruction.opcode().into()),
    };
    match instruction.called.first().and_then(|&called| sugar.wrapped(called)) {
        Some(wrapped) => {
            out.write_str(module.instructions[wrapped].opcode().into())?;
            out.write_str(suffix)
        }
        None => out.write_str(instruction.opcode().into()),
    }
}
