//! Facts about HLO modules: call graph, dataflow, must-alias buffers, the flattened schedule, live ranges,
//! cost.
//!
//! Each analysis is a plain function from shared references to a new value; the borrow checker sees to it that no
//! fact outlives the module it is about.

mod buffers;
mod call_graph;
mod cost;
mod dataflow;
mod facts;
mod in_place;
mod kernel_scratch;
mod live_range;
mod ranges;
mod scalars;
mod sliced_operand;
mod timeline;
mod trip_count;

pub use buffers::{BufferId, Buffers, aliased_values, buffers, given_parameters, in_place_values};
pub use call_graph::{CallGraph, CallGraphError, Context};
pub use cost::{Access, Costs, Durations, KernelCosts, Machine, RunEstimate, Work, operations};
pub use dataflow::{Dataflow, Value, ValueId, ValueKind, dataflow};
pub use facts::Facts;
pub use in_place::{InPlace, InPlacePair};
pub use kernel_scratch::{KernelScratch, kernel_scratch};
pub use live_range::{LiveRange, LiveRanges, live_ranges};
pub use ranges::union_of_ranges;
pub use scalars::{Iteration, ScalarOrigin, ScalarScope, TupleLoop};
pub use sliced_operand::SlicedOperand;
pub use timeline::{Time, Timeline, timeline};
pub use trip_count::trip_count;
