//! Memory planning for tensor programs: from HLO to proven buffer assignments.
//!
//! [`compile()`] is the whole pipeline. The crates behind this façade can be used on their own:
//!
//! | to | use |
//! |---|---|
//! | compile, rewrite for XLA, or estimate XLA, in one call; change the stages | [`driver`] |
//! | read and write HLO | [`hlo`] |
//! | read StableHLO, and what `jax.export` writes | [`stablehlo`] |
//! | build a module in code, or look at one | [`ir`] |
//! | plan a module as it is: schedule, offsets, peak | [`plan`] |
//! | prove a plan right | [`check`](mod@check) |
//! | run a module, also inside its plan | [`interp`] |
//! | run single passes, or your own | [`passes`] |
//! | write a pass | [`rewriter`] |
//! | write files for a runtime | [`codegen`] |
//! | write a planned program as C that runs in its arena | [`c99`] |
//! | plan a program of another IR | [`program`], and [`plan::place`] |
//! | pack buffers of anything | [`pack`] |
//! | know targets, bytes, the plan file | [`memory`] |
//! | analyze liveness, aliasing and costs | [`analysis`] |
//! | explain why bytes are needed, and find changes that need fewer | [`advice`] |
//! | decide which values are in fast memory | [`fast_memory`] |
//! | plan for machines of tiles | [`ipu`] |
//! | plan a TFLite model in its own numbering of tensors | [`tflite`] |
//! | simulate the pool allocator of a GPU runtime | [`pool`] |
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

pub use memplan_advice as advice;
pub use memplan_analysis as analysis;
pub use memplan_c99 as c99;
pub use memplan_check as check;
pub use memplan_codegen as codegen;
pub use memplan_driver as driver;
pub use memplan_driver::{
    CompileError, CompileOptions, Compiled, Effort, Estimate, EstimateError, Estimated, Lever, Objective,
    Price, RewriteError, RewriteOptions, Rewritten, Stage, Step, assign_fast_memory, compile, estimate,
    rewrite, trace_of_plan,
};
pub use memplan_fast_memory as fast_memory;
pub use memplan_hlo as hlo;
pub use memplan_interp as interp;
pub use memplan_ipu as ipu;
pub use memplan_ir as ir;
pub use memplan_memory as memory;
pub use memplan_pack as pack;
pub use memplan_passes as passes;
pub use memplan_passes::legalize;
pub use memplan_plan_hlo as plan;
pub use memplan_pool as pool;
pub use memplan_program as program;
pub use memplan_rewriter as rewriter;
pub use memplan_stablehlo as stablehlo;
pub use memplan_tflite as tflite;
pub use memplan_units as units;
