//! Facts about HLO modules: call graph, dataflow, must-alias buffers, the flattened schedule, live ranges, cost.
//!
//! Each analysis is a plain function from shared references to a new value; the borrow checker ensures that no fact
//! outlives a change of its module.
//!
//! ```
//! use memplan_analysis::Facts;
//! use memplan_ir::Schedule;
//!
//! let module = memplan_hlo::parse(
//!     "HloModule m
//!      ENTRY main {
//!        p = f32[8] parameter(0)
//!        t = (f32[8]) tuple(p)
//!        g = f32[8] get-tuple-element(t), index=0
//!        ROOT n = f32[8] negate(g)
//!      }",
//! )?;
//! let facts = Facts::new(&module, &Schedule::in_textual_order(&module))?;
//! let [p, t, g, n] = module.entry_computation().instructions[..] else { unreachable!() };
//! // The element is the parameter: no bytes move. It is read last by the negation.
//! assert_eq!(facts.flow.value_of(g), facts.flow.value_of(p));
//! assert_eq!(facts.live.of(facts.flow.value_of(p).unwrap()).end, facts.line.time(n) + 1);
//! # let _ = t;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffers;
mod call_graph;
mod cost;
mod dataflow;
mod dimensions;
mod facts;
mod in_place;
mod kernel_scratch;
mod live_range;
mod origin;
mod parts;
mod phase;
mod scalars;
mod sliced_operand;
mod sources;
mod timeline;
mod trip_count;
mod value_class;
mod weights;

pub use buffers::{BufferId, Buffers, aliased_values, buffers, given_parameters, in_place_values};
pub use call_graph::{CallGraph, CallGraphError, Context};
pub use cost::{
    Access, Costs, Durations, KernelCosts, Machine, Products, Registers, RunEstimate, Work, frequencies,
    operations,
};
pub use dataflow::{Dataflow, Value, ValueKind, dataflow};
pub use dimensions::{
    Batch, BatchOfArguments, DimensionId, Dimensions, FactorId, FactorList, Relation, RelationKind,
    prefix_windows,
};
pub use facts::{Aliasing, Facts};
pub use in_place::{InPlace, InPlacePair};
pub use kernel_scratch::{KernelScratch, kernel_scratch};
pub use live_range::{Flight, LiveRanges, flights, live_ranges};
pub use memplan_program::{LiveRange, Time, ValueId, union_of_ranges};
pub use origin::{folded_operation, operation, operation_or_name};
pub use parts::{Part, Parts};
pub use phase::{Phase, Phases};
pub use scalars::{Iteration, ScalarOrigin, ScalarScope, TupleLoop};
pub use sliced_operand::SlicedOperand;
pub use sources::{Owner, SourceFrame, Sources};
pub use timeline::{Timeline, timeline};
pub use trip_count::{noted_trip_count, trip_count};
pub use value_class::{ValueClass, ValueClasses};
