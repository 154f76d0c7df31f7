//! Passes, alone and together.

mod fusion;
mod remat;
mod resize;
mod simplify;
