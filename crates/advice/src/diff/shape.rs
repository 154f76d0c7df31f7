//! Shapes in the text form of plan files, and the ratios by which they grow.

use indexmap::IndexMap;

/// An array, without its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ShapeText<'t> {
    /// The element type.
    pub(super) element: &'t str,
    dimensions: &'t str,
}

impl<'t> ShapeText<'t> {
    /// Parses `f32[8,16]{1,0}`; text without brackets is only an element type.
    pub(super) fn new(text: &'t str) -> ShapeText<'t> {
        let (element, rest) = text.split_once('[').unwrap_or((text, ""));
        ShapeText { element, dimensions: rest.split(']').next().unwrap_or_default() }
    }

    /// The dimensions; a dimension that is not a number (in a dynamic shape) is 0.
    pub(super) fn dimensions(self) -> Vec<u64> {
        let parts = self.dimensions.split(',').filter(|part| !part.is_empty());
        parts.map(|part| part.trim_start_matches("<=").parse().unwrap_or(0)).collect()
    }
}

/// The ratio of a dimension, in lowest terms: from, to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ratio(pub(super) u64, pub(super) u64);

/// The most ratios to distinguish: batch, length and width may change together, and hardly more.
const MOST_RATIOS: usize = 3;

impl Ratio {
    pub(super) fn of(from: u64, to: u64) -> Ratio {
        let divisor = gcd(from, to).max(1);
        Ratio(from / divisor, to / divisor)
    }
}

/// The ratios of the dimensions of some pairs of shapes, the most frequent first.
pub(super) fn ratios<'s>(pairs: impl Iterator<Item = (&'s [u64], &'s [u64])>) -> Vec<Ratio> {
    let mut votes: IndexMap<Ratio, usize> = IndexMap::new();
    for (from, to) in pairs {
        for (&from, &to) in from.iter().zip(to).filter(|(from, to)| from != to) {
            *votes.entry(Ratio::of(from, to)).or_default() += 1;
        }
    }
    votes.sort_by(|_, a, _, b| b.cmp(a));
    votes.into_keys().take(MOST_RATIOS).collect()
}

/// Whether every dimension is unchanged, or changed by one of these ratios.
pub(super) fn is_scaled(from: &[u64], to: &[u64], ratios: &[Ratio]) -> bool {
    let is_so = |(&from, &to): (&u64, &u64)| from == to || ratios.contains(&Ratio::of(from, to));
    from.len() == to.len() && from.iter().zip(to).all(is_so)
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}
