//! Plans of programs of any representation.

mod least;
mod programs;
