//! Values: the items to place.

use cranelift_entity::entity_impl;
use memplan_units::{Alignment, Bytes, MemorySpaceId};

use crate::{LiveRange, Time};

/// A value: bytes with one definition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(u32);
entity_impl!(ValueId, "value");

/// The planner's facts about a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Bytes; a value of none gets no place.
    pub size: Bytes,
    /// The alignment of its address, if that exceeds the target's for its memory space.
    pub alignment: Alignment,
    /// The memory it is in.
    pub space: MemorySpaceId,
    /// From the instant that writes it to one past the last that needs it; to the end for results and for arguments that
    /// the caller keeps. The operands and results of an operation are
    /// live together, so that they share bytes only where [`Program::may_overwrite`](crate::Program::may_overwrite)
    /// allows it.
    pub live: LiveRange,
    /// The origin of its bytes.
    pub origin: Origin,
    /// Whether the caller receives it.
    pub is_result: bool,
}

impl Value {
    /// A value in main memory that an operation computes.
    pub fn computed(size: Bytes, live: LiveRange) -> Value {
        Value {
            size,
            alignment: Alignment::ONE,
            space: MemorySpaceId::MAIN,
            live,
            origin: Origin::Computed,
            is_result: false,
        }
    }

    /// An argument in main memory that the caller gave up, needed until some instant.
    pub fn given(size: Bytes, number: u32, end: Time) -> Value {
        let origin = Origin::Argument { number, writable: true };
        Value { origin, ..Value::computed(size, LiveRange { start: 0, end }) }
    }

    /// An argument in main memory that the caller keeps, there during all `instants`.
    pub fn kept(size: Bytes, number: u32, instants: Time) -> Value {
        let origin = Origin::Argument { number, writable: false };
        Value { origin, ..Value::computed(size, LiveRange { start: 0, end: instants }) }
    }
}

/// The origin of a value's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The caller gives them, in an allocation of its own.
    Argument {
        /// Which of the arguments it is: allocations are made in this order.
        number: u32,
        /// Whether the caller gave the memory up, so that the program may write into it.
        writable: bool,
    },
    /// They are constant data, which nothing may write.
    Constant,
    /// An operation writes them.
    Computed,
}

/// Working memory that an operation needs while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// The instant at which it begins.
    pub time: Time,
    /// The first instant at which it is not needed any more: the next one, or a later one where the operation runs on while
    /// others do.
    pub end: Time,
    /// The memory.
    pub space: MemorySpaceId,
    /// How many bytes.
    pub size: Bytes,
}
