//! Fusion and recomputation: rule by rule, on programs of JAX, and on modules of 100,000 instructions.

mod bands;
mod corpus;
mod filetests;
pub(crate) mod numbers;
mod parts;
mod row_blocks;
mod scaling;
