//! Why nothing was placed.

use memplan_program::ValueId;
use memplan_units::MemorySpaceId;

/// Why nothing was placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Two arguments would have to share bytes.
    #[error("{first} and {second} are arguments of one group, but each has memory of its own")]
    Merged {
        /// One argument.
        first: ValueId,
        /// The other.
        second: ValueId,
    },
    /// A constant would be overwritten or returned to the caller.
    #[error("{constant} is a constant in a group with others, or a result: it would have to be copied first")]
    ReadOnly {
        /// The constant.
        constant: ValueId,
    },
    /// A value comes before the first one of its group.
    #[error(
        "{value} is in the group of {first}, which comes after it: groups have the name of their first value"
    )]
    Group {
        /// The value.
        value: ValueId,
        /// The first value of its group.
        first: ValueId,
    },
    /// A live range is empty, goes on after the last instant, or is too short for an argument or a result.
    #[error(
        "the live range of {value} is empty, goes on after the end, is not from the start as that of an argument, or not \
         to the end as that of a result or of an argument that the caller keeps"
    )]
    Range {
        /// The value.
        value: ValueId,
    },
    /// The sizes do not add up within 64 bits.
    #[error("the values in {space} add up to more than 2^64 bytes")]
    TooLarge {
        /// The memory space.
        space: MemorySpaceId,
    },
}
