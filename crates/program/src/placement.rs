//! Placements: the planner's result.

use alloc::vec::Vec;

use cranelift_entity::{PrimaryMap, SecondaryMap};
use memplan_units::{Alignment, AllocationId, Bytes, MemorySpaceId, Slice, SpaceTotals, Totals};

use crate::{Time, ValueId};

/// A place for every value of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// The allocations: arguments in their order, results and constants, then one arena for each memory space.
    pub allocations: PrimaryMap<AllocationId, Allocation>,
    /// The bytes of each value; `None` for a value of none.
    pub slices: SecondaryMap<ValueId, Option<Slice>>,
    /// The working memory of instants, by memory space and time.
    pub scratch: Vec<(Time, Slice)>,
    /// Totals; nothing is known of padding.
    pub totals: Totals,
    /// Totals of each memory space that is used.
    pub spaces: Vec<SpaceTotals>,
}

/// A contiguous region of one memory space, held for the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its purpose.
    pub kind: AllocationKind,
    /// Its memory space.
    pub space: MemorySpaceId,
    /// How large it is.
    pub size: Bytes,
    /// The alignment of its address.
    pub alignment: Alignment,
    /// Whether a result of the program is in it at the end.
    pub live_out: bool,
}

/// The purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocationKind {
    /// This argument, given by the caller.
    Argument(ValueId),
    /// A result that is not in an argument.
    Output,
    /// Constant data.
    Constant,
    /// The arena for everything else in one memory space.
    Temp,
}
