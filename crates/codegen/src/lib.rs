//! What a runtime loads, from a memory plan.
//!
//! [`layout`](mod@layout) is a whole program as a runtime needs it; JSON, text and [`c_header`] are views of that one
//! document. [`write_constants`] writes the constant data that goes with it. Nothing is decided here.
//!
//! ```
//! use memplan_codegen::layout;
//! use memplan_memory::Target;
//! use memplan_planner::{PlanOptions, plan};
//!
//! let module = memplan_hlo::parse(
//!     "HloModule m, is_scheduled=true
//!      ENTRY main {
//!        p = f32[8]{0} parameter(0)
//!        a = f32[8]{0} exponential(p)
//!        ROOT b = f32[8]{0} reverse(a), dimensions={0}
//!      }",
//! )?;
//! let target = Target::find("cpu")?;
//! let planned = plan(&module, &target, &PlanOptions::default())?;
//! let layout = layout::layout(&module, &planned.facts, &target, &planned.plan);
//! // Two launches: the exponential and the reversal.
//! assert_eq!(layout.launches, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod c_header;
mod constants;
pub mod layout;

pub use c_header::c_header;
pub use constants::{ConstantsError, write_constants};
