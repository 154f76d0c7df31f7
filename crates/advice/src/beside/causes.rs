//! What differs, by kinds of reasons.

use std::cmp::Reverse;

use indexmap::IndexMap;
use memplan_memory::Bytes;

use super::{Cause, CauseKind, Part};

/// All that differs.
#[derive(Default)]
pub(super) struct Differences(Vec<Difference>);

/// Bytes that one side has more, and why.
struct Difference {
    kind: CauseKind,
    /// The compiler's bytes less those of the estimate.
    bytes: i128,
    source: Option<String>,
    /// In words.
    example: String,
}

impl Differences {
    /// Adds values that one side has.
    pub(super) fn add(&mut self, part: &Part) {
        let n = if part.count == 1 { String::new() } else { format!("{} x ", part.count) };
        let example = format!("{n}`{}` {} {}: {}", part.instruction, part.shape, part.operation, part.why);
        let bytes = i128::from(part.bytes.0);
        let bytes = if part.is_compilers { bytes } else { -bytes };
        self.0.push(Difference { kind: part.kind, bytes, source: part.source.clone(), example });
    }

    /// Adds what is not about single values.
    pub(super) fn plain(&mut self, kind: CauseKind, bytes: i128, example: impl FnOnce() -> String) {
        if bytes != 0 {
            self.0.push(Difference { kind, bytes, source: None, example: example() });
        }
    }

    /// Kinds of reasons, the most bytes first, and what is not explained last.
    pub(super) fn causes(self) -> Vec<Cause> {
        let mut kinds: IndexMap<CauseKind, Vec<Difference>> = IndexMap::new();
        for difference in self.0 {
            kinds.entry(difference.kind).or_default().push(difference);
        }
        let mut causes: Vec<Cause> = kinds.into_iter().map(|(kind, all)| Cause::of(kind, &all)).collect();
        causes.sort_by_key(|cause| {
            (cause.kind == CauseKind::Unexplained, Reverse(cause.bytes.unsigned_abs()), cause.kind)
        });
        causes
    }
}

impl Cause {
    fn of(kind: CauseKind, all: &[Difference]) -> Cause {
        let bytes: i128 = all.iter().map(|it| it.bytes).sum();
        let sum = |sign: i128| {
            let bytes: u128 =
                all.iter().filter(|it| it.bytes.signum() == sign).map(|it| it.bytes.unsigned_abs()).sum();
            Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
        };
        // The largest of those that make the sum what it is.
        let is_against = |it: &Difference| it.bytes.signum() == -bytes.signum();
        let largest = all.iter().min_by_key(|it| (is_against(it), Reverse(it.bytes.unsigned_abs())));
        Cause {
            kind,
            bytes,
            compiler: sum(1),
            estimate: sum(-1),
            source: largest.and_then(|it| it.source.clone()),
            example: largest.map_or_else(String::new, |it| it.example.clone()),
        }
    }
}
