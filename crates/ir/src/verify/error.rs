//! The errors of a module, from the outside in.

use crate::{ComputationId, InferError, InstructionId, Opcode, ShapeIndex};

/// One thing that is wrong with a module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum VerifyError {
    #[error("the module is invalid")]
    Module(#[source] ModuleError),
    #[error("computation {name} ({id}) is invalid")]
    Computation { id: ComputationId, name: Box<str>, source: ComputationError },
    #[error("instruction {name} ({id}, {opcode}) in {computation} is invalid")]
    Instruction {
        id: InstructionId,
        name: Box<str>,
        opcode: Opcode,
        computation: Box<str>,
        source: InstructionError,
    },
}

/// Errors of a module as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ModuleError {
    #[error("its entry {0} is not a computation of it")]
    NoEntry(ComputationId),
    #[error("entry_computation_layout has {found} parameters, the entry computation {expected}")]
    EntryParameterCount { expected: usize, found: usize },
    #[error(
        "entry_computation_layout has {found} for {part}, which the entry computation declares as {expected}"
    )]
    EntryShape { part: EntryPart, expected: String, found: String },
    #[error("entry_computation_layout has an invalid shape for {part}")]
    EntryShapeInvalid { part: EntryPart, source: ShapeError },
    #[error("{attribute} names {part} at {index}, which is not an array in {shape}")]
    NotAnArray { attribute: &'static str, part: EntryPart, index: ShapeIndex, shape: String },
    #[error("{attribute} names parameter {parameter} of {count}")]
    NoSuchParameter { attribute: &'static str, parameter: u32, count: usize },
    #[error("input_output_alias gives result {0} two parameters")]
    OutputAliasedTwice(ShapeIndex),
    #[error("parameter {parameter} at {index} is aliased or donated twice")]
    ParameterUsedTwice { parameter: u32, index: ShapeIndex },
    #[error(
        "input_output_alias joins result {output} and parameter {parameter} at {index}, in two memory spaces"
    )]
    AliasedSpaces { output: ShapeIndex, parameter: u32, index: ShapeIndex },
    #[error(
        "input_output_alias joins result {output} of {output_bytes} bytes with \
         parameter {parameter} at {index} of {parameter_bytes}"
    )]
    AliasedSizes {
        output: ShapeIndex,
        output_bytes: u64,
        parameter: u32,
        index: ShapeIndex,
        parameter_bytes: u64,
    },
}

/// A parameter or the result of the entry computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum EntryPart {
    Parameter(usize),
    Result,
}

/// Errors of a computation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ComputationError {
    #[error("another computation has its name")]
    DuplicateName,
    #[error("it has no instructions")]
    Empty,
    #[error("it lists {0}, which is not an instruction of the module")]
    UnknownInstruction(InstructionId),
    #[error("its root {0} is not one of its instructions")]
    Root(InstructionId),
    #[error("it lists {found} as parameter {number}, which is not one of its parameters")]
    Parameter { number: usize, found: InstructionId },
    #[error("operands and control predecessors form a cycle through {0}")]
    Cycle(Box<str>),
}

/// Errors of an instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum InstructionError {
    #[error("another instruction of its computation has its name")]
    DuplicateName,
    #[error("it is listed twice, in one computation or in two")]
    Repeated,
    #[error("its parent is {0}, which does not list it")]
    Parent(ComputationId),
    #[error("its shape is not one of the module's")]
    UnknownShape,
    #[error("operand {operand} is {id}, which is not in its computation")]
    Operand { operand: usize, id: InstructionId },
    #[error("operand {operand}, {name}, comes after it")]
    LateOperand { operand: usize, name: Box<str> },
    #[error("control predecessor {0} is not in its computation")]
    ControlPredecessor(InstructionId),
    #[error("control predecessor {0} comes after it in the schedule")]
    LateControlPredecessor(Box<str>),
    #[error("it calls {0}, which is not a computation of the module")]
    UnknownCallee(ComputationId),
    #[error("it calls {0}, which does not precede its own computation")]
    LateCallee(Box<str>),
    #[error("it calls the entry computation")]
    CallsEntry,
    #[error("parameter number {0} is given twice or leaves a gap")]
    ParameterNumber(u32),
    #[error("its shape is invalid")]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Infer(#[from] InferError),
    #[error("it declares {declared}, but yields {inferred}")]
    Declared { declared: String, inferred: String },
    #[error("its literal has {found} bytes of data, its shape needs {expected}")]
    LiteralSize { expected: u64, found: usize },
    #[error("it must have one user, {expected}; it has {found}")]
    NotDone { expected: String, found: String },
    #[error("its operand must be {expected}, is {found}")]
    NotStarted { expected: String, found: Opcode },
    #[error("its {0} differs from that of its operand")]
    PairDiffers(&'static str),
    #[error("it runs on thread {found:?}, the computation {computation} it calls on {expected:?}")]
    Thread { computation: Box<str>, expected: Box<str>, found: Box<str> },
    #[error("another transfer with the host on channel {0} does something else")]
    HostChannel(i64),
    #[error("another async-start calls computation {0} too")]
    WrappedTwice(Box<str>),
    #[error("replica_groups are invalid")]
    Groups(#[from] GroupError),
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// Errors of a shape or its layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ShapeError {
    #[error("extent {extent} of dimension {dimension} in {shape} is negative")]
    Extent { dimension: usize, extent: i64, shape: String },
    #[error("dimension {dimension} of {shape} is unbounded but not dynamic")]
    UnboundedStatic { dimension: usize, shape: String },
    #[error("{shape} has {found} marks for dynamic dimensions")]
    DynamicMarks { found: usize, shape: String },
    #[error("{shape} is larger than 63 bits of bytes")]
    TooLarge { shape: String },
    #[error("{shape} nests too deep")]
    TooDeep { shape: String },
    #[error("the minor_to_major of {shape} is {order:?}, which is not a permutation of its dimensions")]
    Order { order: Vec<i64>, shape: String },
    #[error("a tile of {shape} has extents {tile:?}, which must be positive or *")]
    Tile { tile: Vec<i64>, shape: String },
    #[error("the layout of {shape} has {attribute} {value}")]
    Attribute { attribute: &'static str, value: i64, shape: String },
    #[error("the layout of {shape} splits dimension {dimension} at {indices:?}")]
    Split { dimension: i64, indices: Vec<i64>, shape: String },
}

/// Errors of references to memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BufferError {
    #[error("it has a buffer as operand or result, which only calls, loops and tuples may")]
    NotAllowed,
    #[error("it must turn {0}")]
    Signature(&'static str),
    #[error("its result must be that of its operand, and aliased to it")]
    NotThatOfOperand,
    #[error("buffer {index} of operand {operand} must be one part of the result, is {found}")]
    OperandAliases { operand: u32, index: ShapeIndex, found: usize },
    #[error("buffer {index} of its result must be one part of an operand, is {found}")]
    ResultAliases { index: ShapeIndex, found: usize },
    #[error("buffer {0} of its result is written by more than one")]
    SeveralWriters(ShapeIndex),
}

/// Errors of replica groups or source-target pairs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum GroupError {
    #[error("a group is empty")]
    Empty,
    #[error("use_global_device_ids needs a channel_id")]
    NoChannel,
    #[error("use_global_device_ids needs groups")]
    NoGroups,
    #[error("its layout is constrained, that of another all-reduce is not")]
    SomeConstrained,
    #[error("groups have {0} and {1} members")]
    Uneven(usize, usize),
    #[error("device {0} is in two groups, or twice in one")]
    Repeated(i64),
    #[error("device {device} is not one of the {count} that the groups have members for")]
    Gap { device: i64, count: usize },
    #[error("an iota of {iota:?} does not fill {groups} groups of {members}")]
    Iota { iota: Vec<i64>, groups: i64, members: i64 },
    #[error("the transpose {0:?} is not a permutation of the iota's dimensions")]
    Transpose(Vec<i64>),
    #[error("axis {0} is not one of the mesh")]
    Axis(u32),
    #[error("device {0} sends or receives twice")]
    Pair(i64),
    #[error("source_target_pairs has device {0}")]
    NegativeDevice(i64),
}

/// Everything wrong with a module, in the order of its computations and instructions; at least one error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyErrors(pub Vec<VerifyError>);

impl std::error::Error for VerifyErrors {}

/// One line per error, with its cause.
impl std::fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                write!(f, ": {cause}")?;
                source = cause.source();
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for EntryPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EntryPart::Parameter(n) => write!(f, "parameter {n}"),
            EntryPart::Result => f.write_str("the result"),
        }
    }
}
