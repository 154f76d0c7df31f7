//! Instructions: one operation with its operands and metadata.

use std::sync::Arc;

use indexmap::IndexMap;
use smallvec::SmallVec;

use crate::{
    ComputationId, InstructionId, Metadata, Op, Opcode, OriginalValue, ResultAccuracy, ShapeId, Sharding,
    Statistics,
};

/// Keys and values in the order written. JSON values are kept as their text.
pub type FrontendAttributes = IndexMap<Box<str>, Box<str>, rustc_hash::FxBuildHasher>;

/// Numbers of operands, most often at most three.
pub type Operands = SmallVec<[InstructionId; 3]>;

/// One operation of a computation.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Unique in its computation; without the `%` of the text.
    pub name: Box<str>,
    /// Result shape; resolve with [`Module::shape`](crate::Module::shape).
    pub shape: ShapeId,
    /// The operation.
    pub op: Op,
    /// Operands, in order; each is in the same computation and precedes this instruction.
    pub operands: Operands,
    /// Called computations, in the order that [`Op`] documents.
    pub called: SmallVec<[ComputationId; 1]>,
    /// The computation that lists it.
    pub parent: ComputationId,
    /// Instructions of the same computation that must run before this one.
    pub control_predecessors: Vec<InstructionId>,
    /// Framework operation and source line, shared by all copies of an instruction.
    pub metadata: Option<Arc<Metadata>>,
    /// Whatever the backend wrote, usually JSON.
    pub backend_config: Option<Box<[u8]>>,
    /// Data of few instructions.
    pub extras: Option<Box<Extras>>,
}

/// Notes that only few instructions have.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct Extras {
    pub sharding: Option<Sharding>,
    pub frontend_attributes: FrontendAttributes,
    pub statistics: Option<Statistics>,
    /// One entry per leaf of the shape; empty when not given.
    pub parameter_replication: Vec<bool>,
    pub origin: Option<OriginalValue>,
    pub result_accuracy: Option<ResultAccuracy>,
    /// Wire bytes of protobuf fields this version does not know, kept for the way back.
    pub unknown_fields: Box<[u8]>,
}

impl Instruction {
    /// An instruction without notes.
    pub fn new(
        name: impl Into<Box<str>>,
        shape: ShapeId,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        parent: ComputationId,
    ) -> Instruction {
        Instruction {
            name: name.into(),
            shape,
            op,
            operands: operands.into_iter().collect(),
            called: SmallVec::new(),
            parent,
            control_predecessors: Vec::new(),
            metadata: None,
            backend_config: None,
            extras: None,
        }
    }

    /// The operation's name.
    pub fn opcode(&self) -> Opcode {
        self.op.opcode()
    }

    /// The frontend attribute `key`.
    pub fn frontend_attribute(&self, key: &str) -> Option<&str> {
        self.extras.as_ref()?.frontend_attributes.get(key).map(|value| &**value)
    }

    /// The notes, created when absent.
    pub fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }
}
