//! What a backend or a runtime needs besides the plan: how the memory of a machine is handed out and spread.
//!
//! [`bfc`] replays allocations as the GPU runtime would serve them; [`ipu`] spreads tensors over tiles.

pub mod bfc;
pub mod ipu;
