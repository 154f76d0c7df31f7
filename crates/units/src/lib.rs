//! Types for sizes and places in memory, shared by planners, checkers and programs of any IR, and the trait for a
//! planner's questions about a machine.
//!
//! ```
//! use memplan_units::{Alignment, Bytes};
//!
//! let size: Bytes = "1.5 MiB".parse()?;
//! assert_eq!(size, Bytes(1_572_864));
//! assert_eq!(Bytes(1000).align_up(Alignment::new(256)?), Bytes(1024));
//! assert_eq!(size.to_string(), "1.50 MiB");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With feature `serde`, all types can be read and written; with `schema`, they have JSON schemas.

#![no_std]

extern crate alloc;

mod alignment;
mod bytes;
#[cfg(feature = "serde")]
mod bytes_in_files;
mod machine;
mod slice;
mod totals;

pub use alignment::{Alignment, NotAPowerOfTwo};
pub use bytes::{Bytes, NotBytes};
pub use machine::{Machine, Memory, OneMemory};
pub use slice::{AllocationId, MemorySpaceId, Slice};
pub use totals::{SpaceTotals, Totals};
