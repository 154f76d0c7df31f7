//! Decisions about fast memory, as plain data: `memplan-fast-memory` makes them, `memplan-passes` applies them.

use memplan_ir::{ComputationId, InstructionId, Position, Use};

/// One decision about the fast memory of a scheduled module. Instructions are those of the module before any insertion,
/// and a value is named by the position that defines it. Values without a decision are in main memory, and are read
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastMemoryDecision {
    /// A value is written to fast memory, and is there for as long as it is live.
    Pin {
        /// The value.
        value: Position,
    },
    /// A value that is written to fast memory is copied to main memory, from right after it is written.
    Evict {
        /// The value.
        value: Position,
        /// The instruction before which the copy is done; `None`: the end of the computation that writes the value.
        done_before: Option<InstructionId>,
    },
    /// Uses read a copy in fast memory, made of the version of a value that is in main memory.
    Prefetch(Prefetch),
    /// Uses read the value as written, or as it enters a computation. Otherwise a use behind a loop or a call that
    /// passes the value on reads the version passed in, which a prefetch may have changed.
    ReadOriginal {
        /// The value.
        value: Position,
        /// The computation of the uses.
        computation: ComputationId,
        /// Its readers.
        uses: Vec<Use>,
    },
    /// Uses read the copy in main memory that an earlier [`Evict`](FastMemoryDecision::Evict) of this value makes.
    ReadEvicted {
        /// The value.
        value: Position,
        /// Its readers in the computation that writes the value.
        uses: Vec<Use>,
    },
    /// Kernels that read only a slice of an array read a copy of the slice in fast memory.
    PrefetchSlice(SlicePrefetch),
}

/// A copy of a whole value into fast memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The value.
    pub value: Position,
    /// The computation in which it is copied and read.
    pub computation: ComputationId,
    /// The instruction before which the copy starts. It is done before the first use.
    pub start_before: InstructionId,
    /// The readers of the copy: at least one.
    pub uses: Vec<Use>,
    /// For a parameter that stays in fast memory from one call of the program to the next: its number among those
    /// (`cross_program_prefetch_index`).
    pub resident: Option<u32>,
}

/// A copy of a slice of an array into fast memory, for kernels that read nothing else of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePrefetch {
    /// The array.
    pub value: Position,
    /// The computation in which the slice is read.
    pub computation: ComputationId,
    /// The kernels' operands: at least one, in the order of time. All cut the same slice out of the array.
    pub uses: Vec<Use>,
    /// When the copy is made.
    pub timing: SliceTiming,
}

/// When a slice is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceTiming {
    /// In the computation that reads it.
    Once {
        /// The instruction before which the copy starts.
        start_before: InstructionId,
    },
    /// By a loop, one iteration ahead (software pipelining): the loop carries the slice of its next iteration in its
    /// state.
    Pipelined {
        /// The instruction before the loop before which the copy for the first iteration starts.
        first_before: InstructionId,
        /// The instruction of the loop's body before which the copy for the next iteration starts.
        next_before: InstructionId,
        /// Whether two buffers take turns, so that the next slice arrives while this one is still read.
        double_buffered: bool,
    },
}
