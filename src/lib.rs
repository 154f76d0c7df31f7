//! Memory planning for tensor programs: from HLO to proven buffer assignments.
//!
//! [`compile()`] is the whole pipeline. The crates behind this façade can be used on their own; ARCHITECTURE.md says what
//! is where.
//!
//! ```
//! use memplan::{CompileOptions, compile, hlo, memory::Target};
//!
//! let text = "
//! HloModule sum_of_squares
//! add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT s = f32[] add(x, y) }
//! ENTRY main {
//!   p = f32[1024] parameter(0)
//!   square = f32[1024] multiply(p, p)
//!   zero = f32[] constant(0)
//!   ROOT sum = f32[] reduce(square, zero), dimensions={0}, to_apply=add
//! }";
//! let mut module = hlo::parse(text)?;
//! let compiled = compile(&mut module, &Target::find("gpu-h100")?, &CompileOptions::default())?;
//! // The squares are never in memory.
//! assert_eq!(compiled.planned.plan.totals.temp.0, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use memplan_analysis as analysis;
pub use memplan_check as check;
pub use memplan_codegen as codegen;
pub use memplan_driver as driver;
pub use memplan_driver::{
    CompileError, CompileOptions, Compiled, Estimate, EstimateError, Price, RewriteError, RewriteOptions,
    Rewritten, Stage, Step, assign_fast_memory, compile, estimate, rewrite, trace_of_plan,
};
pub use memplan_fast_memory as fast_memory;
pub use memplan_hlo as hlo;
pub use memplan_interp as interp;
pub use memplan_ipu as ipu;
pub use memplan_ir as ir;
pub use memplan_memory as memory;
pub use memplan_pack as pack;
pub use memplan_passes as passes;
pub use memplan_passes::LEGALIZE;
pub use memplan_planner as plan;
pub use memplan_pool as pool;
