//! Errors in a protobuf module, or in writing one.

use memplan_ir::{ComputationId, InstructionId};

/// Why bytes are not a module.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ImportError {
    #[error("this is not a well-formed protobuf message")]
    Wire(#[from] prost::DecodeError),
    #[error("a field ends after the end of its message")]
    Truncated,
    #[error("a field is a group, which HLO does not use")]
    Group,
    #[error("messages nest too deep")]
    TooDeep,
    #[error("two computations have the id {0}")]
    DuplicateComputation(i64),
    #[error("the entry computation {0} does not exist")]
    Entry(i64),
    #[error("the module is invalid")]
    Module(#[source] FieldError),
    #[error("computation {computation} is invalid")]
    Computation { computation: String, source: FieldError },
    #[error("instruction {instruction} in {computation} is invalid")]
    Instruction { instruction: String, computation: String, source: FieldError },
}

/// An error in one field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum FieldError {
    #[error("there is no opcode {0:?}")]
    Opcode(String),
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("{field} cannot be {value}")]
    Value { field: &'static str, value: String },
    #[error("{field} names instruction {id}, which does not exist")]
    UnknownInstruction { field: &'static str, id: i64 },
    #[error("{field} names computation {id}, which does not exist")]
    UnknownComputation { field: &'static str, id: i64 },
    #[error("another instruction has the id {0}")]
    DuplicateInstruction(i64),
    #[error("its literal has {found} bytes of elements, its shape asks for {expected}")]
    LiteralSize { expected: u64, found: usize },
    #[error("its schedule does not have every instruction of the computation once")]
    Schedule,
}

/// A field that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("field {field} of {message} is unknown and was dropped")]
pub struct Warning {
    /// The message that has it.
    pub message: &'static str,
    /// Its number.
    pub field: u32,
}

/// Why a module cannot be written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ExportError {
    #[error("{0} is not an instruction of the module, or has no shape")]
    Instruction(InstructionId),
    #[error("{0} is not a computation of the module")]
    Computation(ComputationId),
    #[error("a recovery module of the origin_recovery_table cannot be read")]
    RecoveryModule(#[source] Box<crate::ParseError>),
}

impl FieldError {
    pub(super) fn value(field: &'static str, value: impl ToString) -> FieldError {
        FieldError::Value { field, value: value.to_string() }
    }
}
