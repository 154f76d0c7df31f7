//! What a backend or a runtime needs besides the plan: how the memory of a machine is handed out and spread.
//!
//! [`bfc`] is the allocator of GPU runtimes, [`mod@replay`] runs it on a [`trace`], [`defragment`] tidies up after it,
//! [`pool`] says what a planned program takes of it; [`ipu`] spreads tensors over tiles.
//! [`layout`](mod@layout) is a whole program as a runtime needs it, [`write_constants`] its constant data.

pub mod bfc;
mod c_header;
mod constants;
pub mod defragment;
pub mod ipu;
pub mod layout;
pub mod pool;
pub mod replay;
pub mod trace;

pub use c_header::c_header;
pub use constants::{ConstantsError, write_constants};
