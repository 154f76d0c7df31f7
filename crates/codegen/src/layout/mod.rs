//! The layout of a program: what a runtime needs to run it in the memory that the plan gives it.
//!
//! A plan says where each value lives. A [`ProgramLayout`] says the same in the order of execution: memory spaces and
//! allocations to ask for, buffers with their addresses and lifetimes, launches with the addresses that they read and
//! write, transfers with the launches at which they start and must be done. Nothing is decided here: every address is a
//! slice of the plan, every lifetime a live range of the analysis, in launches instead of instants.
//!
//! # Launches
//!
//! A *launch* is an instruction that has something to do when the program runs. Parameters, constants, tuples, views
//! (`bitcast`) and the like only name memory and are none. Launches are numbered in the order of the flattened schedule:
//! those of a loop's condition and body stand before the loop itself, whose own launch says which computations it runs
//! and how often, where that is known.
//!
//! ```text
//!   launch   0 copy.1   [1 compare.4 | 2 fusion.7 3 copy.2]  4 while.3   5 negate.9
//!                        condition      body
//! ```
//!
//! A buffer with live range 2..5 holds its value from when launch 2 writes it until launch 4 has read it. Two buffers
//! that share bytes share no launch, except where one takes over from the other at exactly the same address.

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
