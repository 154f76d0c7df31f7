//! Planning for programs of any IR: when everything runs, and where every byte lives.
//!
//! Knows what [`memplan_program`] says of a program, and no operation.

mod schedule;

pub use schedule::{Effort, Method, RegionError, RegionReport, RegionSchedule, ScheduleOptions, schedule};
