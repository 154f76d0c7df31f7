//! Plain data of memory planning: [`Bytes`], memory spaces and [`Target`]s, and the [`MemoryPlan`], which is the
//! contract between the planner and its readers (the checker, the evaluator, code generation).
//!
//! Nothing here decides anything.
//!
//! ```
//! use memplan_ir::{ElementType, Shape};
//! use memplan_memory::{Bytes, Target};
//!
//! // A TPU tiles arrays: 8 x 128 elements, so most of a narrow one is padding.
//! let tpu = Target::find("tpu-v5e")?;
//! let narrow = memplan_hlo::parse("HloModule m  ENTRY main { ROOT p = f32[1024,1]{1,0:T(8,128)} parameter(0) }")?;
//! let shape = narrow.shape(narrow.entry_computation().root);
//! assert_eq!(tpu.unpadded_size_of(shape), Bytes(4096));
//! assert_eq!(tpu.size_of(shape), Bytes(128 * 4096));
//! # let _ = Shape::scalar(ElementType::F32);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod addressing;
pub mod by_name;
mod closest;
mod compiler;
mod compiler_file;
mod fast_memory;
mod fusion_rules;
mod interval;
mod kernel_scratch;
mod padding;
pub mod parallel;
mod plan;
mod plan_file;
mod plan_file_peak;
mod resident;
mod target;
mod target_checks;
#[cfg(feature = "schema")]
mod target_fields;
mod target_file;
mod target_spans;
mod tile_report;
mod tiles;
mod tpu_layout;

pub use addressing::{Addressing, Digit, is_view};
pub use closest::{closest, did_you_mean};
pub use compiler::{
    Compiler, CompilerError, HostWaits, LatencyHiding, PackingOrder, Scheduler, TupleSize, WritesOver,
};
pub use fast_memory::{FastMemoryDecision, Prefetch, SlicePrefetch, SliceTiming};
pub use fusion_rules::{ContractionRules, FusionGoal, FusionRules, KernelTimeRules, MultiOutputRules};
pub use interval::{ByteRange, Intervals, ProgramKind, Ratios};
pub use memplan_units::{
    Alignment, AllocationId, Bytes, Machine, Memory, MemorySpaceId, NotAPowerOfTwo, NotBytes, Slice,
    SpaceTotals, Totals,
};
pub use padding::{LessPadding, RemedyKind, remedies};
pub use plan::{Allocation, AllocationKind, MemoryPlan};
pub use plan_file::{CostEntry, KindName, PlanFile, PlanFileError};
pub use plan_file_peak::{HeldEntry, HolderEntry, PeakEntry};
pub use resident::{Assigned, Resident, ResidentProgram};
pub use target::{
    Family, FastMemory, Library, Link, MatrixCores, MemorySpace, Rates, Target, Transfer, VectorUnit,
    memory_space_of,
};
#[cfg(feature = "schema")]
pub use target_fields::TargetField;
pub use target_file::TargetError;
pub use tile_report::{TileCategories, TileReport, TileStage};
pub use tiles::{TileCosts, Tiles};
pub use tpu_layout::{NoTiledLayout, TileRule};
