//! Packing and checking for C programs: implements `include/memplan.h`.
//!
//! Structures and functions are those of the header; a test compares the header with this file. The functions read C's
//! arrays, call `memplan-pack` or `memplan-check-placement`, and write the answer; they decide nothing.

#![expect(unsafe_code, reason = "pointers from C are read and written, and functions have C's names")]

mod border;
mod check;
mod pack;

pub use check::memplan_check_placement;
pub use pack::{memplan_default_options, memplan_pack};

/// `MEMPLAN_OK`.
pub const OK: i32 = 0;
/// `MEMPLAN_INFEASIBLE`.
pub const INFEASIBLE: i32 = 1;
/// `MEMPLAN_UNKNOWN`.
pub const UNKNOWN: i32 = 2;
/// `MEMPLAN_BAD_POINTER`.
pub const BAD_POINTER: i32 = -1;
/// `MEMPLAN_BAD_PROBLEM`.
pub const BAD_PROBLEM: i32 = -2;
/// `MEMPLAN_MISPLACED`.
pub const MISPLACED: i32 = -3;
/// `MEMPLAN_BUG`.
pub const BUG: i32 = -4;
/// `MEMPLAN_NONE`.
pub const NONE: u64 = u64::MAX;

/// `memplan_item`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Bytes.
    pub size: u64,
    /// The alignment of the offset.
    pub alignment: u64,
    /// The first time.
    pub lower: u64,
    /// One past the last time.
    pub upper: u64,
}

/// `memplan_problem`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    /// The items.
    pub items: *const Item,
    /// How many there are.
    pub n_items: usize,
    /// NULL, or the only offset of each item.
    pub fixed: *const u64,
    /// NULL, or the first item of each item's group.
    pub groups: *const u64,
    /// The bytes there are, or 0.
    pub capacity: u64,
}

/// `memplan_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most decisions of each thread.
    pub node_limit: u64,
    /// Milliseconds, or 0.
    pub time_limit_ms: u64,
    /// Varies the random choices.
    pub seed: u64,
    /// Threads.
    pub threads: u32,
}

/// `memplan_packing`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// One past the highest byte used.
    pub height: u64,
    /// No packing is lower.
    pub lower_bound: u64,
    /// Decisions that were tried.
    pub nodes: u64,
    /// Whether the height is proved to be the least.
    pub is_optimal: bool,
}

/// `memplan_access`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The instant.
    pub time: u64,
    /// The item that is read or written.
    pub item: u64,
}

/// `memplan_overwrite`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Overwrite {
    /// The instant.
    pub time: u64,
    /// The operand that is read.
    pub operand: u64,
    /// The result that may overwrite it.
    pub result: u64,
}

/// `memplan_program`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// How many instants there are.
    pub n_instants: u64,
    /// Their reads.
    pub reads: *const Access,
    /// How many reads there are.
    pub n_reads: usize,
    /// Their writes.
    pub writes: *const Access,
    /// How many writes there are.
    pub n_writes: usize,
    /// Their possible overwrites.
    pub overwrites: *const Overwrite,
    /// How many of those there are.
    pub n_overwrites: usize,
}

/// `memplan_error`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Error {
    /// The item that is to blame.
    pub first: u64,
    /// The item that it is in conflict with.
    pub second: u64,
    /// When.
    pub time: u64,
    /// UTF-8, ending with a zero.
    pub message: [u8; 256],
}
