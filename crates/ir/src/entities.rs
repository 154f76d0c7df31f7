//! Typed indices. Their `Display` is what log lines and errors print.

use cranelift_entity::entity_impl;

/// An instruction. Ids are module-wide, so one dense table serves an analysis across all computations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstructionId(u32);
entity_impl!(InstructionId, "inst");

/// A computation: the entry, a loop body, a reducer, a fusion body, ...
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputationId(u32);
entity_impl!(ComputationId, "comp");

/// A shape interned in its module: equal ids, equal shapes (layouts included).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShapeId(u32);
entity_impl!(ShapeId, "shape");
