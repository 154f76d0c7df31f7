//! What a runtime loads, from a memory plan.
//!
//! [`layout`](mod@layout) is a whole program as a runtime needs it; JSON, text and [`c_header`] are views of that one
//! document. [`write_constants`] writes the constant data that goes with it. Nothing is decided here.

mod c_header;
mod constants;
pub mod layout;

pub use c_header::c_header;
pub use constants::{ConstantsError, write_constants};
