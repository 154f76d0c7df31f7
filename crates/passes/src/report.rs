//! What passes report: their decisions, as data.

use crate::{CopyReport, FusionReport, RematReport, ResidualsReport};

/// The decisions of one run of a pass. Instructions and computations are named as they were when the pass had run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Report {
    /// The verdict on every edge, of fusion that was asked to explain itself.
    Fusion(FusionReport),
    /// The values that are recomputed after the peak.
    Recomputed(RematReport),
    /// The rows that a loop recomputes rather than reads.
    Residuals(ResidualsReport),
    /// The copies that make aliasing legal.
    Copies(CopyReport),
}
