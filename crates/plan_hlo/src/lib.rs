//! Planning: schedules every instruction, and gives every byte an address.
//!
//! [`plan`] does all of it: it schedules modules without a schedule, analyzes liveness and aliasing, shares storage by
//! need and by choice, and assigns offsets. The result is a [`MemoryPlan`](memplan_memory::MemoryPlan): plain data that
//! `memplan-check` proves right.
//!
//! ```
//! use memplan_memory::{Bytes, Target};
//! use memplan_plan_hlo::{PlanOptions, plan};
//!
//! let module = memplan_hlo::parse(
//!     "HloModule m, is_scheduled=true
//!      ENTRY main {
//!        p = f32[8]{0} parameter(0)
//!        a = f32[8]{0} exponential(p)
//!        b = f32[8]{0} reverse(a), dimensions={0}
//!        ROOT r = f32[8]{0} multiply(a, b)
//!      }",
//! )?;
//! let planned = plan(&module, &Target::find("cpu")?, &PlanOptions::default())?;
//! // The parameter, the result, which takes over `a`, and `b`.
//! assert_eq!(planned.plan.totals.temp, Bytes(32));
//! for (position, slice) in &planned.plan.slices {
//!     let name = &module.instructions[position.instruction].name;
//!     println!("{name}: {} + {}", slice.allocation, slice.offset);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assign;
mod buffers_as_xla;
mod cost;
mod error;
mod given_orders;
mod lifetimes;
mod pins;
mod plan;
mod program;
mod regions;
mod report;
mod schedule;
mod spaces;
mod walk;

pub use assign::{AssignOptions, SpacePlan, assign, assign_space, storages};
pub use cost::ProgramCost;
pub use error::PlanError;
pub use given_orders::{BREADTH_FIRST_AS_XLA, DEPTH_FIRST_AS_XLA, LIST_AS_XLA, POST_ORDER_AS_XLA};
pub use lifetimes::{Lifetime, lifetimes};
pub use memplan_plan::{
    AsXla, Effort, HoleOptions, Load, Method, PlaceError, PlaceOptions, RegionError, RegionReport,
    RegionSchedule, ScheduleOptions, Sharing, Storage, StorageId, StorageKind, Storages, TakeOver, place,
    schedule_region, schedule_regions,
};
pub use pins::{Pin, PinError, Pinned};
pub use plan::{PlanOptions, Planned, assign_best, plan, plan_unnamed};
pub use program::HloProgram;
pub use regions::Results;
pub use report::{KeptBy, PeakBuffer, PeakReport, kept_by, peak_report, peak_report_in, report_at};
pub use schedule::{ScheduleError, ScheduleReport, schedule, schedule_with, schedules};
pub use spaces::SpaceError;
