//! What a runtime loads, and what people look at, from a memory plan.
//!
//! [`layout`](mod@layout) is a whole program as a runtime needs it; JSON, text and [`c_header`] are views of that one
//! document. [`write_constants`] writes the constant data that goes with it.
//! [`offline_memory_allocation`] and [`executorch()`] are plans as TFLite Micro and ExecuTorch read them.
//!
//! [`view`] is the same program as people look at it, from which the viewer ([`view::html`]), pictures ([`view::svg`]) and
//! traces ([`view::perfetto`]) are made; [`dot()`] is its graph, and [`xprof()`] what XProf opens. Nothing is decided here.
//!
//! ```
//! use memplan_codegen::layout;
//! use memplan_memory::Target;
//! use memplan_plan_hlo::{PlanOptions, plan};
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
mod dot;
pub mod layout;
mod micro;
pub mod view;
#[cfg(feature = "proto")]
mod xprof;

pub use c_header::c_header;
pub use constants::{ConstantsError, write_constants};
pub use dot::{Around, dot};
pub use micro::{
    AllocationDetails, ExecutorchPlan, ExecutorchValue, MicroError, executorch, offline_memory_allocation,
};
#[cfg(feature = "proto")]
pub use xprof::xprof;
