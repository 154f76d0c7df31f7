//! The interface between a memory planner and a program of any IR.
//!
//! This crate only has data and traits, and knows no operation.
//!
//! * A program with a schedule is a [`Program`]: values with bytes and live ranges, and which may share.
//!   `memplan_plan::place` returns a [`Placement`], which `memplan_check_placement::check_placement` proves.
//! * A program without a schedule is a list of [`Region`]s: nodes, their dependencies, and the bytes that they touch.
//!   `memplan_plan::schedule_regions` finds an order with a low peak for each. [`Region::of`] makes the region of a
//!   program without calls from the program in source order.
//!
//! `memplan-plan-hlo` implements this for HLO; `examples/plan_other_ir.rs` for another kind of graph, on one page.
//!
//! | word | meaning |
//! |---|---|
//! | instant | a step of the run: one operation |
//! | value | bytes with one definition |
//! | group | values that must have the same place |
//! | take over | to write a result over an operand that dies |
//! | argument | a value that the caller gives; writable if the caller gave its memory up |
//! | scratch | working memory of one instant |
//! | region | a part of the program that is scheduled by itself: a body of a function or loop |
//! | buffer | in a region: bytes that are live from the first node that touches them to the last |
//!
//! ```
//! use memplan_units::Bytes;
//! use memplan_program::{LiveRange, Program, Region, Time, Value, ValueId};
//!
//! /// Each instant reads the value before, and writes one of so many bytes.
//! struct Chain([u64; 3]);
//!
//! impl Program for Chain {
//!     fn end(&self) -> Time {
//!         3
//!     }
//!     fn n_values(&self) -> usize {
//!         3
//!     }
//!     fn value(&self, value: ValueId) -> Value {
//!         let start = value.as_u32();
//!         let live = LiveRange { start, end: (start + 2).min(3) };
//!         Value { is_result: start == 2, ..Value::computed(Bytes(self.0[start as usize]), live) }
//!     }
//!     fn reads(&self, time: Time) -> impl Iterator<Item = ValueId> {
//!         time.checked_sub(1).map(ValueId::from_u32).into_iter()
//!     }
//!     fn writes(&self, time: Time) -> impl Iterator<Item = ValueId> {
//!         std::iter::once(ValueId::from_u32(time))
//!     }
//! }
//!
//! let region = Region::of(&Chain([4, 8, 2]));
//! assert_eq!((region.n_nodes, region.buffers.len(), region.dependencies.len()), (3, 3, 2));
//! ```

#![no_std]

extern crate alloc;

mod placement;
mod program;
mod region;
mod straight;
mod time;
mod value;

pub use placement::{Allocation, AllocationKind, Placement};
pub use program::Program;
pub use region::{Buffer, BufferId, Call, InFlight, NodeId, Region, RegionId, Reuse};
pub use time::{LiveRange, Time, union_of_ranges};
pub use value::{Origin, Scratch, Value, ValueId};
