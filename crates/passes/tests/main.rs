//! Passes, alone and together.

mod fusion;
mod micro_batches;
mod remat;
mod resize;
mod simplify;
