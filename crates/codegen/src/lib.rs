//! What a backend or a runtime needs besides the plan: how the memory of a machine is handed out and spread.
//!
//! [`bfc`] is the allocator of GPU runtimes, [`mod@replay`] runs it on a [`trace`]; [`ipu`] spreads tensors over tiles.

pub mod bfc;
pub mod ipu;
pub mod replay;
pub mod trace;
