//! Units as types: bytes and alignments.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// A number of bytes: a size, or an offset from the start of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// An alignment in bytes: a power of two by construction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "u64", into = "u64")]
pub struct Alignment(u8);

/// An alignment that is not a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an alignment is a power of two, not {0}")]
pub struct NotAPowerOfTwo(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// The sum; `None` beyond `u64`.
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// The sum, at most `u64::MAX`.
    #[must_use]
    pub fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    #[must_use]
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The next multiple of an alignment, at most the largest one in `u64`.
    #[must_use]
    pub fn align_up(self, alignment: Alignment) -> Bytes {
        let mask = alignment.bytes() - 1;
        Bytes(self.0.saturating_add(mask) & !mask)
    }

    /// Whether there are none.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// Whether this is a multiple of an alignment.
    pub fn is_aligned(self, alignment: Alignment) -> bool {
        self.0 & (alignment.bytes() - 1) == 0
    }
}

impl Add for Bytes {
    type Output = Bytes;

    /// # Panics
    /// When the sum is beyond `u64`.
    fn add(self, other: Bytes) -> Bytes {
        self.checked_add(other).expect("sizes of one program add up within u64")
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;

    /// # Panics
    /// When the difference is negative.
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.checked_sub(other.0).expect("only smaller sizes are taken from larger ones"))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes::ZERO, |a, b| a + b)
    }
}

/// Human-readable with binary units: `9.08 GiB`, `512 B`. With `{:#}`, exact with separators: `9,744,388,888`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            let digits = self.0.to_string();
            let mut text = String::with_capacity(digits.len() * 4 / 3);
            for (i, digit) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            return f.pad(&text);
        }
        let mut value = self.0 as f64;
        let mut unit = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = larger;
        }
        f.pad(&if unit == "B" { format!("{} B", self.0) } else { format!("{value:.2} {unit}") })
    }
}

impl Alignment {
    /// No alignment at all.
    pub const ONE: Alignment = Alignment(0);

    /// The alignment of a number of bytes.
    pub const fn new(bytes: u64) -> Result<Alignment, NotAPowerOfTwo> {
        if bytes.is_power_of_two() {
            Ok(Alignment(bytes.trailing_zeros() as u8))
        } else {
            Err(NotAPowerOfTwo(bytes))
        }
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }
}

impl TryFrom<u64> for Alignment {
    type Error = NotAPowerOfTwo;

    fn try_from(bytes: u64) -> Result<Alignment, NotAPowerOfTwo> {
        Alignment::new(bytes)
    }
}

impl From<Alignment> for u64 {
    fn from(alignment: Alignment) -> u64 {
        alignment.bytes()
    }
}

impl fmt::Debug for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}
