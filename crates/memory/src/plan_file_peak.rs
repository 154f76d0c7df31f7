//! The peak of a plan in the plan file.

use serde::{Deserialize, Serialize};

use crate::{Bytes, MemorySpaceId};

/// The moment with most bytes live in one memory, and who holds them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeakEntry {
    /// The memory.
    pub space: MemorySpaceId,
    /// The instant, in the flattened schedule: instructions of a called computation precede their caller.
    pub time: u32,
    /// The instruction that runs then.
    pub instruction: String,
    /// Bytes live then, each byte once.
    pub bytes: Bytes,
    /// The holders, the most bytes first. Values of one kind are one holder.
    pub holders: Vec<HolderEntry>,
    /// Bytes live at every instant of the flattened schedule.
    pub curve: Vec<Bytes>,
}

/// Values of one kind that are live at the peak: the same operation in different layers, of the same shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HolderEntry {
    /// Bytes of all of them.
    pub bytes: Bytes,
    /// How many there are.
    pub count: usize,
    /// The framework's operation that makes them, numbers of layers as `*`; an argument's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The shape of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// The line of the user's program, as `file:line`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The line within an installed package, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library_source: Option<String>,
    /// Their class: `parameter`, `optimizer-state`, `state`, `input`, `gradient`, `activation`, `temporary`, `output`
    /// or `constant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The last instruction that needs them, in words. If there are several, that of most of the bytes.
    pub kept_by: String,
    /// Each value.
    pub values: Vec<HeldEntry>,
}

/// A value that is live at the peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "the names say it")]
pub struct HeldEntry {
    pub computation: String,
    pub instruction: String,
    pub index: Vec<u32>,
    pub bytes: Bytes,
    pub allocation: u32,
    pub offset: Bytes,
}
