//! Planning for programs of any IR: schedules every instruction, and gives every byte an address.
//!
//! Knows a program through [`memplan_program`], and no operation. [`schedule_regions`] schedules each region; [`place`]
//! gives every value of the scheduled program an allocation and an offset. `memplan-plan-hlo` does both for HLO.
//!
//! ```
//! use memplan_units::Bytes;
//! use memplan_plan::{ScheduleOptions, schedule_region};
//! use memplan_program::{Buffer, NodeId, Region};
//!
//! // Nodes 0 and 1 write 64 bytes each; 2 and 3 make 8 of them, which 4 adds up.
//! let mut region = Region::new(5);
//! for (writer, reader, bytes) in [(0, 2, 64), (1, 3, 64), (2, 4, 8), (3, 4, 8)] {
//!     let [writer, reader] = [writer, reader].map(NodeId::from_u32);
//!     let buffer = region.buffers.push(Buffer { bytes: Bytes(bytes), live_in: false, live_out: false });
//!     region.dependencies.push((writer, reader));
//!     region.definitions.push((writer, buffer));
//!     region.touches.extend([(writer, buffer), (reader, buffer)]);
//! }
//! let found = schedule_region(region, &ScheduleOptions::default())?;
//! // In the order of the numbers it would be 136.
//! assert_eq!(found.report.peak, Bytes(80));
//! assert!(found.report.is_optimal);
//! # Ok::<(), memplan_plan::RegionError>(())
//! ```

mod arena;
mod assignment;
mod bound;
mod error;
mod holes;
mod in_results;
mod load;
mod occupancy;
mod place;
mod schedule;
mod storage;
mod totals;

pub use error::PlaceError;
pub use holes::HoleOptions;
pub use load::Load;
pub use place::{AsXla, PlaceOptions, Sharing, SpacePlacement, place, place_below, place_space};
pub use schedule::{
    Effort, Method, RegionError, RegionReport, RegionSchedule, ScheduleOptions, schedule_region,
    schedule_regions,
};
pub use storage::{Storage, StorageId, StorageKind, Storages, TakeOver};
