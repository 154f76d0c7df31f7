//! IPU: assigns bytes to tiles.
//!
//! An IPU has some thousand tiles, each a core with its own memory for code and data. [`plan_tiles`] takes a scheduled
//! program and decides for every tensor which tile has which elements ([`mapping`], [`placement`]), finds the other
//! needs of every instruction ([`steps`]: vertices, code, exchanged bytes) and packs each tile by time. A tile's memory
//! is
//!
//! ```text
//!   0        code          vertex state   always live      not always live
//!   |--------|-------------|--------------|----------------|-----------------------|
//!   not interleaved: code lies only here                    packed by time, exchange buffers included
//! ```
//!
//! A program fits if its fullest tile does, and if its code fits the part of the tile for code. Values that do not fit
//! can be in memory outside the chip ([`IpuOptions::streaming`]), from which slices and parts are loaded, or on several
//! chips ([`plan_pipeline`]). Runtimes read a [`TileDocument`].
//!
//! # Limits
//!
//! All tiles with a part of a tensor get the bytes of the largest part: at most one grain (8 bytes) too many, at the
//! same offset on every tile. All vertices of one instruction count as much as the busiest one. Data is not assigned to
//! banks: vertices that need two operands in different banks, or one in interleaved memory, could take some bytes more.

mod alignment;
mod chip;
mod codelets;
pub mod contraction;
mod document;
mod error;
pub mod mapping;
mod pack;
mod phases;
mod pipeline;
pub mod placement;
mod placement_file;
mod plan;
pub mod steps;
mod streaming;
mod tensors;
mod tile_plan;
mod tile_set;

pub use document::{
    ChipDocument, CodeletDocument, GroupDocument, ItemDocument, MappingDocument, PieceDocument, StepDocument,
    TensorDocument, TileDocument, VerticesDocument, WhatDocument,
};
pub use error::IpuError;
pub use mapping::{Grain, LinearMapping, Mapping, Piece, imbalance, linear_mapping, start_tile};
pub use pipeline::stash_depth;
pub use placement::Policy;
pub use placement_file::{Placement, PlacementError, PlacementProblem};
pub use plan::{IpuOptions, plan_pipeline, plan_tiles};
pub use tensors::{Role, Streaming, Tensor, TensorId, Tensors, Touch, Visit};
pub use tile_plan::{Overflow, Placed, TilePlan, What};
pub use tile_set::TileSet;
