//! Output of a memory plan, for runtimes and for people.
//!
//! [`layout`](mod@layout) is a whole program for a runtime; JSON, text and [`c_header`] are views of that document.
//! [`write_constants`] writes its constant data. [`offline_memory_allocation`] and [`executorch()`] are plans in the
//! formats of TFLite Micro and ExecuTorch.
//!
//! [`view`] is the same program for people; the viewer ([`view::html`]), pictures ([`view::svg`]) and traces
//! ([`view::perfetto`]) are made from it. [`dot()`] is the program's graph, and [`xprof()`] a profile for XProf.
//! Nothing is decided here.
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
