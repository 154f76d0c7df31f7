//! The answer: offsets, and a certificate that says how good they are and why.

use alloc::vec::Vec;
#[cfg(feature = "std")]
use std::time::Duration;

/// The offset of every item, with a certificate.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Packing {
    /// The offset of each item, by index. Always a valid packing, though above the capacity
    /// where the status is not [`Status::Packed`].
    pub offsets: Vec<u64>,
    /// One past the highest byte used.
    pub height: u64,
    /// The proof about the height.
    pub certificate: Certificate,
}

#[cfg(feature = "std")]
impl Packing {
    /// The figures of this packing, ready to be written as JSON or as text.
    pub fn report(&self) -> Report {
        let Certificate { status, lower_bound, optimal, nodes, elapsed } = self.certificate;
        Report { status, height: self.height, lower_bound, optimal, seconds: elapsed.as_secs_f64(), nodes }
    }
}

/// The proof about a packing, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The answer to the question asked.
    pub status: Status,
    /// No packing is lower than this: the most bytes live at one time, or more where search showed more.
    pub lower_bound: u64,
    /// Whether the height is proved to be the least.
    pub optimal: bool,
    /// Decisions tried by the search and the improvement.
    pub nodes: u64,
    /// Wall-clock time. Only with feature `std`, which has a clock.
    #[cfg(feature = "std")]
    pub elapsed: Duration,
}

/// The answer to the question asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Status {
    /// Every item has its place, within the capacity where there is one.
    Packed,
    /// Proved: no packing is within the capacity. The offsets are the best ones known, above it.
    Infeasible,
    /// The limit was reached first. The offsets are the best ones known, above the capacity.
    Unknown,
}

/// The figures of a packing, under the names that scripts read.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// The answer to the question asked.
    pub status: Status,
    /// One past the highest byte used.
    pub height: u64,
    /// No packing is lower.
    pub lower_bound: u64,
    /// Whether the height is proved to be the least.
    pub optimal: bool,
    /// Wall-clock time.
    pub seconds: f64,
    /// Decisions tried by the search and the improvement.
    pub nodes: u64,
}

#[cfg(feature = "std")]
impl core::fmt::Display for Report {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let status = match self.status {
            Status::Packed if self.optimal => "packed, proved minimal",
            Status::Packed => "packed",
            Status::Infeasible => "infeasible, proved",
            Status::Unknown => "unknown, the limit was reached first",
        };
        let over = self.height.saturating_sub(self.lower_bound) as f64 / self.lower_bound.max(1) as f64;
        writeln!(f, "status       {status}")?;
        writeln!(f, "height       {} bytes", self.height)?;
        writeln!(f, "lower bound  {} bytes (height is {:.3} % above)", self.lower_bound, 100.0 * over)?;
        write!(f, "effort       {} nodes, {:.3} s", self.nodes, self.seconds)
    }
}
