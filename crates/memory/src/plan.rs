//! The memory plan: which allocation, at which offset, every value lives in. Plain data, the contract between the
//! planner and everyone else.

use cranelift_entity::{PrimaryMap, entity_impl};
use indexmap::IndexMap;
use memplan_ir::{InstructionId, Position, ShapeIndex};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::{Alignment, Bytes, MemorySpaceId};

/// A contiguous region of one memory space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(u32);
entity_impl!(AllocationId, "alloc");

/// A contiguous region of one memory space, asked for once and held for the whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// What it is for.
    pub kind: AllocationKind,
    /// Where it is.
    pub space: MemorySpaceId,
    /// How large it is.
    pub size: Bytes,
    /// What its address is a multiple of.
    pub alignment: Alignment,
    /// Whether a result of the program is in it at the end.
    pub live_out: bool,
}

/// What an allocation is for.
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

/// A range of bytes within an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The allocation.
    pub allocation: AllocationId,
    /// From its start.
    pub offset: Bytes,
    /// Padded size of what lives there.
    pub size: Bytes,
}

impl Slice {
    /// One past the last byte.
    ///
    /// # Panics
    /// When the end is beyond `u64`.
    pub fn end(&self) -> Bytes {
        self.offset + self.size
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Slice) -> bool {
        self.allocation == other.allocation
            && self.offset.0 < other.offset.0.saturating_add(other.size.0)
            && other.offset.0 < self.offset.0.saturating_add(self.size.0)
    }
}

/// Where everything lives.
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

/// Totals of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Totals {
    /// Entry parameters.
    pub arguments: Bytes,
    /// Entry results, tuple tables included.
    pub outputs: Bytes,
    /// Bytes of outputs that live in a donated parameter.
    pub aliased: Bytes,
    /// Constants too large to be embedded in code.
    pub constants: Bytes,
    /// The arena for everything else, in the target's main memory.
    pub temp: Bytes,
    /// arguments + outputs - aliased + constants + temp.
    pub total: Bytes,
    /// What every plan for this schedule takes in total, whichever values share bytes and wherever they lie. Arguments and
    /// constants count with all their bytes, as they have memory of their own. At every instant the values that are live
    /// are beside them, or in donated arguments that are not needed then, and only a result that is written over an
    /// operand shares bytes with it. Not bounded: other schedules, values in other memories, values of other sizes. A
    /// total that is equal to it is proved to be minimal; one above it may be minimal all the same.
    #[serde(default)]
    pub total_lower_bound: Bytes,
    /// Most bytes live at one moment, arguments and outputs included, each byte once.
    pub peak_live: Bytes,
    /// Most bytes live at one moment of what this plan leaves to the arena: no packing of the same values can use less.
    /// Which values share bytes, and which lie in arguments and results, is the plan's choice; that no other choice takes
    /// less, only `total_lower_bound` can say.
    pub temp_lower_bound: Bytes,
    /// temp - temp_lower_bound.
    pub fragmentation: Bytes,
    /// Bytes that exist only because of layout padding.
    pub padding: Bytes,
}

/// Totals of one memory space.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpaceTotals {
    /// The space.
    pub space: MemorySpaceId,
    /// Its name.
    pub name: String,
    /// Its capacity in bytes, when it has one.
    pub capacity: Option<Bytes>,
    /// What programs can have of the capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<Bytes>,
    /// What the program needs beyond that: it does not fit.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub excess: Bytes,
    /// Whether programs can only read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Entry parameters in it.
    #[serde(default)]
    pub arguments: Bytes,
    /// Entry results in it that do not live in parameters.
    #[serde(default)]
    pub outputs: Bytes,
    /// Constants in it that are too large to be embedded in code.
    #[serde(default)]
    pub constants: Bytes,
    /// Its arena.
    pub temp: Bytes,
    /// Everything in it, each allocation rounded up to the granule of the space.
    #[serde(default)]
    pub total: Bytes,
    /// Most bytes live in it at one moment of what this plan leaves to its arena.
    pub temp_lower_bound: Bytes,
    /// Whether it is proved that no packing of what this plan leaves to the arena is smaller. Which values those are, and
    /// which of them share bytes, is the plan's choice: see `total_lower_bound` for a bound of every choice.
    #[serde(default)]
    pub proved_minimal: bool,
}
