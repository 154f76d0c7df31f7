//! The number of operands or computations of an operation.

use std::fmt;

/// How many operands or computations an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Arity {
    pub min: usize,
    pub max: usize,
    /// The number is `min` plus a multiple of this.
    pub step: usize,
}

impl Arity {
    pub(crate) const ANY: Arity = Arity::at_least(0);

    pub(crate) const fn exactly(n: usize) -> Arity {
        Arity { min: n, max: n, step: 1 }
    }

    pub(crate) const fn at_least(n: usize) -> Arity {
        Arity { min: n, max: usize::MAX, step: 1 }
    }

    pub(crate) const fn between(min: usize, max: usize) -> Arity {
        Arity { min, max, step: 1 }
    }

    /// `min`, `min + 2`, `min + 4`, ...
    pub(crate) const fn in_pairs_from(min: usize) -> Arity {
        Arity { min, max: usize::MAX, step: 2 }
    }

    /// Whether `n` of them are right.
    pub fn allows(self, n: usize) -> bool {
        (self.min..=self.max).contains(&n) && (n - self.min).is_multiple_of(self.step)
    }
}

impl fmt::Display for Arity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Arity { min, max, .. } if min == max => write!(f, "{min}"),
            Arity { min, max: usize::MAX, step: 1 } => write!(f, "at least {min}"),
            Arity { min, max: usize::MAX, step } => {
                write!(f, "{min}, {}, {}, ...", min + step, min + 2 * step)
            }
            Arity { min, max, .. } => write!(f, "{min} to {max}"),
        }
    }
}
