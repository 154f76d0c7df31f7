//! Sums over a plan.

use alloc::string::String;

use crate::{Bytes, MemorySpaceId};

/// Totals of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    #[cfg_attr(feature = "serde", serde(default))]
    pub total_lower_bound: Bytes,
    /// Most bytes live at one moment, arguments and outputs included, each byte once.
    pub peak_live: Bytes,
    /// The peak of live bytes among the values that this plan leaves to the arena: no packing of the same values can
    /// use less. Which values share bytes, and which are in arguments and results, is the plan's choice; only
    /// `total_lower_bound` says that no other choice takes less.
    pub temp_lower_bound: Bytes,
    /// temp - temp_lower_bound.
    pub fragmentation: Bytes,
    /// Bytes that exist only because of layout padding.
    pub padding: Bytes,
}

/// Totals of one memory space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpaceTotals {
    /// The space.
    pub space: MemorySpaceId,
    /// Its name.
    pub name: String,
    /// Its capacity in bytes, when it has one.
    pub capacity: Option<Bytes>,
    /// The part of the capacity that programs can use.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub available: Option<Bytes>,
    /// The program's excess over that: it does not fit.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Bytes::is_zero"))]
    pub excess: Bytes,
    /// Whether programs can only read it.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "core::ops::Not::not"))]
    pub read_only: bool,
    /// Entry parameters in it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub arguments: Bytes,
    /// Entry results in it that do not live in parameters.
    #[cfg_attr(feature = "serde", serde(default))]
    pub outputs: Bytes,
    /// Constants in it that are too large to be embedded in code.
    #[cfg_attr(feature = "serde", serde(default))]
    pub constants: Bytes,
    /// Its arena.
    pub temp: Bytes,
    /// Everything in it, each allocation rounded up to the granule of the space.
    #[cfg_attr(feature = "serde", serde(default))]
    pub total: Bytes,
    /// The peak of live bytes among the values that this plan leaves to its arena.
    pub temp_lower_bound: Bytes,
    /// Whether it is proved that no packing of the values that this plan leaves to the arena is smaller. Which values
    /// these are, and which of them share bytes, is the plan's choice: see `total_lower_bound` for a bound over all
    /// choices.
    #[cfg_attr(feature = "serde", serde(default))]
    pub proved_minimal: bool,
}
