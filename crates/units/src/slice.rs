//! Places: memories, allocations in them, and slices of those.

use core::fmt;

use cranelift_entity::entity_impl;

use crate::Bytes;

/// A memory space by the number that layouts use, `S(n)`; 0 is the main memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct MemorySpaceId(pub u32);

impl MemorySpaceId {
    /// The device's main memory.
    pub const MAIN: MemorySpaceId = MemorySpaceId(0);
    /// The memory of the host beside a device, by the number that XLA gives it.
    pub const HOST: MemorySpaceId = MemorySpaceId(5);
}

impl fmt::Display for MemorySpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S({})", self.0)
    }
}

/// A contiguous region of one memory space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(u32);
entity_impl!(AllocationId, "alloc");

/// A range of bytes within an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The allocation.
    pub allocation: AllocationId,
    /// From its start.
    pub offset: Bytes,
    /// Padded size of the value in it.
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
