//! IPU: which tile holds which bytes.
//!
//! An IPU has some thousand tiles, each a core with memory of its own for code and data together. [`plan_tiles`] takes a
//! scheduled program and decides for every tensor which tile holds which elements ([`mapping`], [`placement`]), finds
//! what every instruction needs besides ([`steps`]: vertices, code, bytes that are exchanged) and packs each tile
//! by time. A tile's memory is
//!
//! ```text
//!   0        code          vertex state   always live      not always live
//!   |--------|-------------|--------------|----------------|-----------------------|
//!   not interleaved: code lies only here                    packed by time, exchange buffers included
//! ```
//!
//! A program fits when its fullest tile does, and its code lies in the part of the tile that code may lie in. What does
//! not fit can live in memory outside the chip ([`IpuOptions::streaming`]), of which slices and parts visit it, or run on
//! several chips ([`plan_pipeline`]). [`TileDocument`] is what a runtime reads.
//!
//! # Limits
//!
//! All tiles that hold a part of a tensor are given what the one with the largest part needs: at most one grain (8 bytes)
//! too much, and the same offset on every tile. Vertices of one instruction are all taken to need what the busiest of
//! them needs. Data is not assigned to banks: that a vertex wants two operands in different ones, or one in interleaved
//! memory, is not planned for, and could take some bytes more.

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
