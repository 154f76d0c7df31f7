//! Alignments.

use core::fmt;

/// An alignment in bytes: a power of two by construction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(try_from = "u64", into = "u64"))]
pub struct Alignment(u8);

/// An alignment that is not a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an alignment is a power of two, not {0}")]
pub struct NotAPowerOfTwo(pub u64);

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
