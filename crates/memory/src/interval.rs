//! How far what a compiler needs is from estimates of it.
//!
//! Estimates were compared with what the compiler said of hundreds of programs (docs/truth.md). Programs of one kind err
//! alike, so that each kind has two ratios, between which the compiler's bytes lie over those of the estimate for four
//! programs of five, of families that the ratios were not taken from.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Compiler};

/// What decides how far an estimate may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramKind {
    /// The program has optimization barriers, as those that `jax.checkpoint` makes.
    Checkpointed,
    /// It has convolutions and loops.
    ConvolutionsInLoops,
    /// It has convolutions.
    Convolutions,
    /// It has loops.
    Loops,
    /// It has none of these.
    Straight,
}

/// The compiler's bytes over those of the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Ratios(f64, f64);

/// The ratios of each kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Intervals {
    /// How many programs were measured.
    pub programs: u32,
    checkpointed: Ratios,
    convolutions_in_loops: Ratios,
    convolutions: Ratios,
    loops: Ratios,
    straight: Ratios,
}

/// Bytes between which what a compiler needs falls for four programs of five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ByteRange {
    /// The fewest.
    pub low: Bytes,
    /// The most.
    pub high: Bytes,
}

impl Intervals {
    fn of(&self, kind: ProgramKind) -> Ratios {
        match kind {
            ProgramKind::Checkpointed => self.checkpointed,
            ProgramKind::ConvolutionsInLoops => self.convolutions_in_loops,
            ProgramKind::Convolutions => self.convolutions,
            ProgramKind::Loops => self.loops,
            ProgramKind::Straight => self.straight,
        }
    }
}

impl Compiler {
    /// The bytes between which the compiler's own figure falls for four programs of five of a kind, by an estimate of it:
    /// of all bytes, `temp` are temporaries, and the others are known. `None` where nobody measured. The estimate is within.
    pub fn interval(&self, kind: ProgramKind, total: Bytes, temp: Bytes) -> Option<ByteRange> {
        let Ratios(low, high) = self.intervals.as_ref()?.of(kind);
        let times = |ratio: f64| Bytes((total.0 as f64 * ratio).round() as u64);
        Some(ByteRange {
            low: times(low).max(total.saturating_sub(temp)).min(total),
            high: times(high).max(total),
        })
    }
}
