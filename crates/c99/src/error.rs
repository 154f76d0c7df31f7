//! Why a program is refused.

use memplan_analysis::Sources;
use memplan_ir::{InstructionId, Module};

/// A program that cannot be written as C.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction `{instruction}` ({opcode}{}) cannot be written as C: {reason}", place(.source_line))]
pub struct Refusal {
    /// The instruction.
    pub instruction: String,
    /// Its operation.
    pub opcode: String,
    /// The line of the user's program that made it, if it is known: `file.py:12`.
    pub source_line: Option<String>,
    /// What is missing.
    pub reason: String,
}

fn place(line: &Option<String>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!(", {line}"))
}

/// A refusal of an instruction.
pub(crate) fn refusal(module: &Module, id: InstructionId, reason: impl Into<String>) -> Refusal {
    let instruction = &module.instructions[id];
    Refusal {
        instruction: instruction.name.to_string(),
        opcode: instruction.opcode().to_string(),
        source_line: Sources::new(module).user(id).map(|frame| frame.to_string()),
        reason: reason.into(),
    }
}
