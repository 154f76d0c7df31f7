//! Why no plan was made.

use memplan_analysis::CallGraphError;
use memplan_ir::ShapeIndex;
use memplan_memory::MemorySpaceId;
use memplan_plan::PlaceError;

use crate::{HloProgram, PinError, ScheduleError, SpaceError};

/// Why no plan was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The call graph is not one that memory can be planned for.
    #[error(transparent)]
    CallGraph(#[from] CallGraphError),
    /// No order of execution was found.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Two parameters would have to share storage.
    #[error(
        "parameters `{first}` and `{second}` would have to share storage, because their values meet in a loop, a \
         conditional or an aliased result; copies must be inserted first, which a schedule of its own keeps memplan from \
         doing"
    )]
    Merged {
        /// One parameter.
        first: Box<str>,
        /// The other.
        second: Box<str>,
    },
    /// Two results of an instruction would have to share storage.
    #[error(
        "results {first} and {second} of `{instruction}` would have to share storage, because each of them is to replace \
         one and the same value"
    )]
    SharedResults {
        /// The instruction.
        instruction: Box<str>,
        /// One part of its result.
        first: ShapeIndex,
        /// The other.
        second: ShapeIndex,
    },
    /// A constant would be overwritten or returned to the caller.
    #[error(
        "constant `{constant}` would have to share storage with a value that changes, or be a result; a copy must be \
         inserted first, which a schedule of its own keeps memplan from doing"
    )]
    ReadOnly {
        /// The constant.
        constant: Box<str>,
    },
    /// Nobody knows how many bytes a value has.
    #[error(
        "a dimension of `{instruction}` has no bound, so that no memory can be planned for it: lower the program with arrays \
         of known extents, or with bounds (`f32[<=8]`)"
    )]
    Unbounded {
        /// The instruction that defines it.
        instruction: Box<str>,
    },
    /// Layouts put one value into two memories.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A value cannot be in the memory that it is pinned to.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The sizes do not add up within 64 bits.
    #[error("the buffers in {space} add up to more than 2^64 bytes")]
    TooLarge {
        /// The memory space.
        space: MemorySpaceId,
    },
    /// The module is none that values can be placed for.
    #[error(transparent)]
    Place(PlaceError),
}

impl PlanError {
    /// The error of a placement, with the names of instructions.
    pub(crate) fn of_place(program: &HloProgram<'_>, error: PlaceError) -> PlanError {
        match error {
            PlaceError::Merged { first, second } => {
                PlanError::Merged { first: program.name(first), second: program.name(second) }
            }
            PlaceError::ReadOnly { constant } => PlanError::ReadOnly { constant: program.name(constant) },
            PlaceError::TooLarge { space } => PlanError::TooLarge { space },
            other => PlanError::Place(other),
        }
    }
}
