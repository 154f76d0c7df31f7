//! The layout of a program: all that a runtime needs to run it in the memory of its plan.
//!
//! A plan gives each value an address. A [`ProgramLayout`] gives the same data in the order of execution: memory spaces
//! and allocations to make, buffers with their addresses and lifetimes, launches with the addresses that they read and
//! write, transfers with the launches at which they start and must be done. Nothing is decided here: every address is a
//! slice of the plan, every lifetime a live range of the analysis, in launches instead of instants.
//!
//! # Launches
//!
//! A *launch* is an instruction that does work when the program runs. Parameters, constants, tuples, views (`bitcast`)
//! and similar instructions only name memory and are not launches. Launches are numbered in the order of the flattened
//! schedule: those of a loop's condition and body precede the loop itself, whose own launch names the computations that
//! it runs and, if known, how often.
//!
//! ```text
//!   launch   0 copy.1   [1 compare.4 | 2 fusion.7 3 copy.2]  4 while.3   5 negate.9
//!                        condition      body
//! ```
//!
//! A buffer with live range 2..5 holds its value from the write by launch 2 to the read by launch 4. Two buffers that
//! share bytes share no launch, except if one overwrites the other at exactly the same address.

mod build;
mod document;
mod padding;
mod picture;
pub(crate) mod program;
mod table;
mod text;
mod transfer;

pub(crate) use build::document;
pub use build::layout;
pub use document::{
    Address, Allocation, Argument, Buffer, Call, CallRole, Computation, Launch, LaunchKind, Lifetime,
    Padding, Port, ProgramLayout, Remedy, Space, Transfer,
};
pub use memplan_memory::RemedyKind;
