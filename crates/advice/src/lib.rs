//! What a memory plan means to the person who wrote the program: why bytes are needed, and what would need fewer.
//!
//! Nothing here plans or proves; programs are planned by `memplan-driver`, and what values are is known to
//! `memplan-analysis`.

pub mod beside;
pub mod diff;
pub mod explain;
pub mod fit;
mod holders;
mod words;

pub use holders::{Group, GroupBy, Holder, Peak, note_peaks, peak_entries, peaks, shape_at};
pub use memplan_analysis::{
    Phase, Phases, SourceFrame, Sources, ValueClass, ValueClasses, folded_operation, operation,
};
pub use words::Words;
