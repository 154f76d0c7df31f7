//! Three passes that others run on their results.

mod call_inliner;
mod cse;
mod dce;

pub use call_inliner::{CALL_INLINER, MAX_INLINED_PER_INSTRUCTION, SINGLE_CALL_INLINER, inline};
pub use cse::{CSE, Cse};
pub use dce::DCE;
