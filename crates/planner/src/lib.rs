//! Planning: when everything runs, and where every byte lives.
//!
//! [`plan`] is the whole of it: a schedule for modules that have none, the facts of liveness and aliasing, storage
//! shared by need and by choice, and an offset for everything. What comes out is a
//! [`MemoryPlan`](memplan_memory::MemoryPlan): plain data that `memplan-check` proves right.

mod assign;
mod cost;
mod error;
mod holes;
mod lifetimes;
mod load;
mod plan;
mod regions;
mod report;
mod schedule;
mod storage;

pub use assign::{AssignOptions, Sharing, SpacePlan, assign, assign_space};
pub use cost::ProgramCost;
pub use error::PlanError;
pub use lifetimes::{Lifetime, lifetimes};
pub use load::{Load, temp_load};
pub use memplan_plan::{Effort, Method, RegionError, RegionReport, ScheduleOptions};
pub use plan::{PlanOptions, Planned, assign_best, plan, schedules};
pub use report::{KeptBy, PeakBuffer, PeakReport, peak_report};
pub use schedule::{ScheduleError, ScheduleReport, schedule};
pub use storage::{Home, Storage, StorageId, Storages, TakeOver, storages};
