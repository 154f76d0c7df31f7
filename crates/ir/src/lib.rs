//! The HLO language as data.
//!
//! A [`Module`] owns everything: instructions and computations by typed ids, shapes interned. An
//! [`Instruction`] is an [`Op`] (what it computes, attributes included) with operands, called computations and notes.
//! Nothing here decides anything about memory; facts about instructions live in tables beside the module.

mod attributes;
mod element_type;
mod entities;
mod fingerprint;
pub mod infer;
mod instruction;
mod layout;
mod literal;
mod metadata;
mod module;
mod op;
mod opcode;
mod position;
mod schedule;
mod shape;
mod sharding;
mod users;
mod verify;

pub use attributes::*;
pub use cranelift_entity::{EntityRef, EntitySet, PrimaryMap, SecondaryMap, packed_option::PackedOption};
pub use element_type::ElementType;
pub use entities::*;
pub use fingerprint::fingerprint;
pub use infer::{InferError, infer_shape, infer_shape_given};
pub use instruction::{Extras, FrontendAttributes, Instruction, Operands};
pub use layout::{Dimensions, Layout, RareLayout, SplitConfig, Tile};
pub use literal::{ArrayLiteral, Literal, LiteralData};
pub use metadata::*;
pub use module::*;
pub use op::{BinaryOp, Op, UnaryOp};
pub use opcode::Opcode;
pub use position::{Position, PositionId, Positions, ShapeTree};
pub use schedule::Schedule;
pub use shape::{ArrayShape, Shape, ShapeIndex};
pub use sharding::*;
pub use users::Users;
pub use verify::*;
