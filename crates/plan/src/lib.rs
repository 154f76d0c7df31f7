//! Planning for programs of any IR: when everything runs, and where every byte lives.
//!
//! Knows what [`memplan_program`] says of a program, and no operation. [`schedule_regions`] finds an order for each region;
//! [`place`] gives every value of the program in that order an allocation and an offset. `memplan-planner` does both for
//! HLO.

mod arena;
mod assignment;
mod error;
mod holes;
mod load;
mod occupancy;
mod place;
mod schedule;
mod storage;
mod totals;

pub use error::PlaceError;
pub use holes::HoleOptions;
pub use load::Load;
pub use place::{PlaceOptions, Sharing, SpacePlacement, place, place_below, place_space};
pub use schedule::{
    Effort, Method, RegionError, RegionReport, RegionSchedule, ScheduleOptions, schedule_region,
    schedule_regions,
};
pub use storage::{Home, Storage, StorageId, Storages, TakeOver};
