//! The memory plan: the allocation and offset of every value. Plain data, the contract between the planner and its
//! readers.

use cranelift_entity::PrimaryMap;
use indexmap::IndexMap;
use memplan_ir::{InstructionId, Position, ShapeIndex};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::{Alignment, AllocationId, Bytes, MemorySpaceId, Slice, SpaceTotals, Totals};

/// A contiguous region of one memory space, asked for once and held for the whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AllocationKind {
    /// A leaf (or tuple table) of an entry parameter, given by the caller.
    Argument {
        /// The parameter's number.
        parameter: u32,
        /// The position within the parameter.
        index: ShapeIndex,
    },
    /// A result of the entry that does not live in an argument.
    Output,
    /// The data of constants.
    Constant,
    /// The arena for everything else in one memory space.
    Temp,
}

/// The address of every value.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct MemoryPlan {
    /// Name of the target it was made for.
    pub target: String,
    /// [`fingerprint`](memplan_ir::fingerprint()) of the module it was made for.
    pub fingerprint: u64,
    /// The allocations.
    pub allocations: PrimaryMap<AllocationId, Allocation>,
    /// The slice of every position whose buffer lives in an allocation, in the order of computations and
    /// instructions. Positions of one must-alias group have the same slice.
    pub slices: IndexMap<Position, Slice, FxBuildHasher>,
    /// Working memory of instructions whose kernels need some, for as long as they run: one slice in each memory space
    /// where they do.
    pub scratch: IndexMap<InstructionId, SmallVec<[Slice; 1]>, FxBuildHasher>,
    /// Totals.
    pub totals: Totals,
    /// Totals of each memory space that is used.
    pub spaces: Vec<SpaceTotals>,
}

impl MemoryPlan {
    /// The working memory of an instruction's kernel in one memory space.
    pub fn scratch_in(&self, instruction: InstructionId, space: MemorySpaceId) -> Option<Slice> {
        let is_there =
            |slice: &&Slice| self.allocations.get(slice.allocation).is_some_and(|a| a.space == space);
        self.scratch.get(&instruction)?.iter().find(is_there).copied()
    }
}
