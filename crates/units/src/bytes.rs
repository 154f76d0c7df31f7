//! Numbers of bytes, as numbers and as text.

use alloc::format;
use alloc::string::String;
use alloc::string::ToString as _;
use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};
use core::str::FromStr;

use crate::Alignment;

/// A number of bytes: a size, or an offset from the start of an allocation.
///
/// As text it has a unit (`16 GiB`, `64MB`, `512B`); files that people write may have that text instead of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Bytes(pub u64);

/// Why a text is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotBytes {
    /// There is no number in front.
    #[error("`{0}` is not a number of bytes; write it as `16GiB` or `512B`")]
    NotANumber(String),
    /// The number has no unit. Zero needs none.
    #[error("`{0}` has no unit; write `{0}GiB`, `{0}MiB` or `{0}B`")]
    NoUnit(String),
    /// Nobody counts in this unit.
    #[error("`{0}` is not a unit of bytes; the units are B, KiB, MiB, GiB, TiB, kB, MB, GB and TB")]
    UnknownUnit(String),
    /// The number is too large.
    #[error("`{0}` is beyond 64 bits")]
    TooLarge(String),
}

impl FromStr for Bytes {
    type Err = NotBytes;

    /// Reads a number with a binary or decimal unit: `16GiB`, `16GB`, `1.5 MiB`. Only zero needs no unit.
    fn from_str(text: &str) -> Result<Bytes, NotBytes> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim());
        let value: f64 = number.parse().map_err(|_| NotBytes::NotANumber(text.to_string()))?;
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" if value == 0.0 => 1,
            "" => return Err(NotBytes::NoUnit(text.to_string())),
            "b" => 1,
            "kib" | "k" => 1 << 10,
            "mib" | "m" => 1 << 20,
            "gib" | "g" => 1 << 30,
            "tib" | "t" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(NotBytes::UnknownUnit(unit.to_string())),
        };
        let too_large = || NotBytes::TooLarge(text.to_string());
        if !number.contains('.') {
            let whole = number.parse::<u64>().ok().and_then(|whole| whole.checked_mul(factor));
            return whole.map(Bytes).ok_or_else(too_large);
        }
        let bytes = value * factor as f64;
        if bytes < u64::MAX as f64 { Ok(Bytes(bytes as u64)) } else { Err(too_large()) }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_bytes_has_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("16GiB", 16 << 30),
            ("1.5 kB", 1500),
            ("64 MiB", 64 << 20),
            ("7b", 7),
            ("4096B", 4096),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!("16".parse::<Bytes>(), Err(NotBytes::NoUnit("16".into())));
        for text in
            ["", "GiB", "-1", "1 QB", "99999999999999999999B", "1e3", "18446744073709551615k", "1.2.3MiB"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
