//! Explains a memory plan to the author of the program: what the bytes are for, and which changes would save some.
//!
//! Nothing here plans or proves: `memplan-driver` plans programs, and `memplan-analysis` classifies values.

pub mod beside;
mod devices;
pub mod diff;
pub mod explain;
pub mod fit;
mod holders;
mod words;

pub use devices::{Devices, OneDevice, Replicated};
pub use holders::{Group, GroupBy, Holder, Peak, note_peaks, peak_entries, peaks, shape_at};
pub use memplan_analysis::{
    Phase, Phases, SourceFrame, Sources, ValueClass, ValueClasses, folded_operation, operation,
};
pub use words::Words;
