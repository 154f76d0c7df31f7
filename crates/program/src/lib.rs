//! What a memory planner asks of a program of any IR, and what it answers.
//!
//! Nothing here decides anything, and nothing knows an operation.
//!
//! * In the order in which it runs, a program is a [`Program`]: values with bytes and live ranges, and who may share with
//!   whom. `memplan_plan::place` answers with a [`Placement`], which `memplan_check_placement::check_placement` proves.
//! * Before there is an order, it is [`Region`]s: nodes, what depends on what, and the bytes that they touch.
//!   `memplan_plan::schedule_regions` finds an order with a low peak for each. The region of a program without calls can be
//!   read off the program in the order of its source ([`Region::of`]).
//!
//! `memplan-plan-hlo` does this for HLO; `examples/plan_other_ir.rs` for a graph of another kind, on one page.
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
