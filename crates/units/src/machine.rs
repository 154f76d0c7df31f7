//! A planner's questions about a machine.

use alloc::string::String;

use crate::{Alignment, Bytes, MemorySpaceId};

/// A machine's memories, and the alignments of addresses in them.
pub trait Machine {
    /// The memory with a number; `None` where the machine has none of that number.
    fn memory(&self, space: MemorySpaceId) -> Option<Memory<'_>>;

    /// The alignment of values in a memory; main memory's, if the machine has no memory of that number.
    fn alignment(&self, space: MemorySpaceId) -> Alignment;

    /// The alignment of arguments.
    fn argument_alignment(&self) -> Alignment;
}

/// One memory of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its capacity; `None`: no limit is modeled.
    pub capacity: Option<Bytes>,
    /// The part of the capacity that programs can use.
    pub usable: Option<Bytes>,
    /// Whether it is many small memories, so that a sum says nothing about what fits.
    pub is_divided: bool,
    /// Whether programs can only read it.
    pub is_read_only: bool,
    /// The unit to which sizes of allocations in it are rounded up.
    pub granule: Alignment,
}

/// A machine with one memory.
///
/// ```
/// use memplan_units::{Alignment, Bytes, Machine, MemorySpaceId, OneMemory};
///
/// let device = OneMemory { name: "hbm".into(), capacity: Some(Bytes(16 << 30)), alignment: Alignment::new(256)? };
/// assert_eq!(device.memory(MemorySpaceId::MAIN).unwrap().usable, Some(Bytes(16 << 30)));
/// assert_eq!(device.memory(MemorySpaceId(1)), None);
/// # Ok::<(), memplan_units::NotAPowerOfTwo>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneMemory {
    /// Its name.
    pub name: String,
    /// Its capacity; `None`: there is no limit.
    pub capacity: Option<Bytes>,
    /// The alignment of all addresses.
    pub alignment: Alignment,
}

impl Machine for OneMemory {
    fn memory(&self, space: MemorySpaceId) -> Option<Memory<'_>> {
        (space == MemorySpaceId::MAIN).then_some(Memory {
            name: &self.name,
            capacity: self.capacity,
            usable: self.capacity,
            is_divided: false,
            is_read_only: false,
            granule: Alignment::ONE,
        })
    }

    fn alignment(&self, _: MemorySpaceId) -> Alignment {
        self.alignment
    }

    fn argument_alignment(&self) -> Alignment {
        self.alignment
    }
}
