//! The HLO language as data.
//!
//! A [`Module`] owns everything: instructions and computations by typed ids, shapes interned. An
//! [`Instruction`] is an [`Op`] (what it computes, attributes included) with operands, called computations and notes.
//! Nothing here decides anything about memory; facts about instructions live in tables beside the module.
//!
//! [`ModuleBuilder`] makes modules, a [`Cursor`] adds to them, [`infer`] computes the shapes of results, and
//! [`verify`](verify()) reports all errors of a module. One training step of a linear layer, with weights updated in
//! place:
//!
//! ```
//! use memplan_ir::{ElementType::F32, Literal, ModuleBuilder, Shape, *};
//!
//! # fn main() -> Result<(), BuildError> {
//! let mut module = ModuleBuilder::new("step");
//! let add = module.combiner(BinaryOp::Add, F32)?;
//!
//! let mut main = module.computation("main");
//! let weights = main.parameter("weights", Shape::array(F32, [256, 64]));
//! let inputs = main.parameter("inputs", Shape::array(F32, [32, 256]));
//! let targets = main.parameter("targets", Shape::array(F32, [32, 64]));
//!
//! let outputs = main.matmul(inputs, weights)?;
//! let errors = main.binary(BinaryOp::Subtract, outputs, targets)?;
//! let transposed = main.transpose(inputs, [1, 0])?;
//! let gradient = main.matmul(transposed, errors)?;
//! let rate = main.constant(Literal::f32(0.01));
//! let rates = main.broadcast(rate, [256, 64], [])?;
//! let change = main.binary(BinaryOp::Multiply, gradient, rates)?;
//! let updated = main.binary(BinaryOp::Subtract, weights, change)?;
//!
//! let squares = main.binary(BinaryOp::Multiply, errors, errors)?;
//! let zero = main.constant(Literal::f32(0.0));
//! let loss = main.reduce(squares, zero, [0, 1], add)?;
//! let results = main.tuple([updated, loss])?;
//! let main = main.finish(results)?;
//!
//! module.alias([0].into(), 0, ShapeIndex::root()); // result 0 in the memory of parameter 0
//! let module = module.finish(main)?;
//! assert_eq!(*module.shape(module.entry_computation().root).subshape(&[1].into()).unwrap(), Shape::scalar(F32));
//! # Ok(())
//! # }
//! ```

mod agreement;
mod arity;
mod attributes;
mod bitcasts;
mod builder;
mod compact;
mod copies;
mod cursor;
mod edit;
mod element_type;
mod entities;
mod fingerprint;
mod float;
pub mod indexing;
pub mod infer;
mod insert;
mod instruction;
mod layout;
mod library_calls;
mod literal;
mod metadata;
mod module;
mod names;
mod op;
mod opcode;
mod partition;
mod position;
mod post_order;
mod scalar;
mod schedule;
pub mod scopes;
mod shape;
mod sharding;
mod traits;
mod users;
mod verify;

pub use agreement::{layouts_agree, layouts_are_assigned, use_default_layouts};
pub use arity::Arity;
pub use attributes::*;
pub use bitcasts::expand_bitcasts;
pub use builder::{BuildError, ComputationBuilder, ModuleBuilder};
pub use copies::{copied_as, copy_into, other_layout};
pub use cranelift_entity::{EntityRef, EntitySet, PrimaryMap, SecondaryMap, packed_option::PackedOption};
pub use cursor::Cursor;
pub use element_type::ElementType;
pub use entities::*;
pub use fingerprint::fingerprint;
pub use infer::{InferError, infer_shape, infer_shape_given};
pub use insert::Insert;
pub use instruction::{Extras, FrontendAttributes, Instruction, Operands};
pub use layout::{Dimensions, Layout, RareLayout, SplitConfig, Tile};
pub use library_calls::{copy_around_library_calls, layouts_asked_for, results_of_library_calls};
pub use literal::{ArrayLiteral, Literal, LiteralData};
pub use metadata::*;
pub use module::*;
pub use names::Names;
pub use op::{BinaryOp, Op, UnaryOp};
pub use opcode::Opcode;
pub use position::{Position, PositionId, Positions, ShapeTree};
pub use scalar::Scalar;
pub use schedule::Schedule;
pub use shape::{ArrayShape, Shape, ShapeIndex};
pub use sharding::*;
pub use traits::{Access, Arithmetic, Callees, Effect, Role, Traits};
pub use users::{Use, Users};
pub use verify::*;
