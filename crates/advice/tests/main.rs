//! What a plan means for the author of a program.

mod beside;
mod fit;
