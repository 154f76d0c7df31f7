//! Errors of the evaluator.

use memplan_ir::{ElementType, Opcode};

/// Why a module could not be evaluated.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
#[non_exhaustive]
pub enum Error {
    #[error("parameter {number} ({name}) is missing: {expected} expected")]
    MissingInput { number: usize, name: String, expected: String },
    #[error("{given} arrays given for {expected} expected ones: `{first}` is the first too many")]
    ExtraInput { given: usize, expected: usize, first: String },
    #[error("parameter {number} ({name}) is {found}, but {expected} is expected")]
    WrongInput { number: usize, name: String, expected: String, found: String },
    #[error("{instruction} ({opcode}) cannot be evaluated: {reason}")]
    Unsupported { instruction: String, opcode: Opcode, reason: String },
    #[error("{instruction} calls `{target}`, which is not in the registry of custom calls")]
    UnknownCustomCall { instruction: String, target: String },
    #[error("{instruction} calls `{target}`, which fails: {reason}")]
    CustomCall { instruction: String, target: String, reason: String },
    #[error("{instruction} ({opcode}) is invalid: {reason}")]
    Invalid { instruction: String, opcode: Opcode, reason: String },
    #[error("{instruction} has element type {element_type}, which {opcode} does not take")]
    ElementType { instruction: String, opcode: Opcode, element_type: ElementType },
    #[error("{shape} has a layout or an extent that cannot be addressed")]
    Layout { shape: String },
    #[error("calls nest deeper than {limit} at computation {computation}")]
    TooDeep { computation: String, limit: usize },
    #[error("a value of {needed} bytes does not fit: {used} of {limit} bytes are in use")]
    OutOfMemory { needed: usize, used: usize, limit: usize },
    #[error(
        "{reader} reads bytes {begin}..{end} of {allocation} for the value of {value}, but byte {byte} was last \
         written by {writer}"
    )]
    Poison {
        reader: String,
        value: String,
        allocation: String,
        begin: u64,
        end: u64,
        byte: u64,
        writer: String,
    },
    #[error("the plan has no slice for {position}")]
    NoSlice { position: String },
    #[error("the plan puts {position} at {found}, but its value is at {expected}")]
    Moved { position: String, expected: String, found: String },
    #[error("the plan is broken: {0}")]
    BrokenPlan(String),
    #[error("inputs are given for {given} devices, but the program runs on {expected}, of at most {limit}")]
    Devices { given: usize, expected: usize, limit: usize },
    #[error("devices wait for each other: {0}")]
    Deadlock(String),
    #[error("the archive of arrays is broken: {0}")]
    Archive(String),
}

impl Error {
    /// Something about an instruction that the evaluator cannot do.
    pub(crate) fn unsupported(
        module: &memplan_ir::Module,
        id: memplan_ir::InstructionId,
        reason: impl Into<String>,
    ) -> Error {
        let instruction = &module.instructions[id];
        Error::Unsupported {
            instruction: instruction.name.to_string(),
            opcode: instruction.opcode(),
            reason: reason.into(),
        }
    }

    /// Something about an instruction that no valid module has.
    pub(crate) fn invalid(
        module: &memplan_ir::Module,
        id: memplan_ir::InstructionId,
        reason: impl Into<String>,
    ) -> Error {
        let instruction = &module.instructions[id];
        Error::Invalid {
            instruction: instruction.name.to_string(),
            opcode: instruction.opcode(),
            reason: reason.into(),
        }
    }
}
