//! What was assigned.

use memplan_memory::{Bytes, FastMemoryDecision, SliceTiming};

/// What was assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FastMemoryReport {
    /// Copies into fast memory.
    pub prefetches: usize,
    /// Those of them that a call need not make when the one before has left their result where it is.
    pub residents: usize,
    /// Slices that kernels read in fast memory, of arrays that are in main memory.
    pub slices: usize,
    /// Those of them that a loop copies one iteration ahead.
    pub pipelined: usize,
    /// Copies out of it.
    pub evictions: usize,
    /// Bytes of fast memory that the arena takes.
    pub height: Bytes,
    /// Bytes, weighed by time as [`FastMemoryOptions::time_weight`](crate::FastMemoryOptions::time_weight) says, that
    /// main memory moves for what could have been elsewhere.
    pub traffic: f64,
    /// What no assignment under this schedule can be below, in the same unit, however packed.
    pub lower_bound: f64,
}

/// Counts decisions.
pub(crate) fn count(decisions: &[FastMemoryDecision]) -> FastMemoryReport {
    let mut report = FastMemoryReport::default();
    for decision in decisions {
        match decision {
            FastMemoryDecision::Evict { .. } => report.evictions += 1,
            FastMemoryDecision::Prefetch(prefetch) => {
                report.prefetches += 1;
                report.residents += usize::from(prefetch.resident.is_some());
            }
            FastMemoryDecision::PrefetchSlice(slice) => {
                let is_pipelined = matches!(slice.timing, SliceTiming::Pipelined { .. });
                report.prefetches += 1 + usize::from(is_pipelined);
                report.slices += 1;
                report.pipelined += usize::from(is_pipelined);
            }
            FastMemoryDecision::Pin { .. }
            | FastMemoryDecision::ReadOriginal { .. }
            | FastMemoryDecision::ReadEvicted { .. } => {}
        }
    }
    report
}
