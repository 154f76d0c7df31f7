//! Numbers and bytes of MLIR bytecode.

use crate::Error;

/// Bytes to be read from their beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'b> {
    pub(super) rest: &'b [u8],
}

impl<'b> Bytes<'b> {
    pub(super) fn new(rest: &'b [u8]) -> Bytes<'b> {
        Bytes { rest }
    }

    pub(super) fn byte(&mut self) -> Result<u8, Error> {
        let (&first, rest) = self.rest.split_first().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(first)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'b [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number of one to nine bytes: the zeros that end the first byte count the bytes after it.
    pub(super) fn number(&mut self) -> Result<u64, Error> {
        let first = self.byte()?;
        let more = first.trailing_zeros() as usize;
        let mut word = [0; 8];
        match more {
            8 => {
                word.copy_from_slice(self.take(8)?);
                Ok(u64::from_le_bytes(word))
            }
            _ => {
                word[0] = first;
                word[1..=more].copy_from_slice(self.take(more)?);
                Ok(u64::from_le_bytes(word) >> (more + 1))
            }
        }
    }

    /// A number whose lowest bit is the sign.
    pub(super) fn signed(&mut self) -> Result<i64, Error> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// A number, and its lowest bit apart.
    pub(super) fn flagged(&mut self) -> Result<(u64, bool), Error> {
        let number = self.number()?;
        Ok((number >> 1, number & 1 == 1))
    }

    /// A number of things of at least a byte each.
    pub(super) fn count(&mut self) -> Result<usize, Error> {
        let count = self.number()?;
        self.check_count(count)
    }

    /// Things that are still to come are at least a byte each.
    pub(super) fn check_count(&self, count: u64) -> Result<usize, Error> {
        usize::try_from(count).ok().filter(|&count| count <= self.rest.len()).ok_or_else(truncated)
    }

    /// A number of bytes, and the bytes.
    pub(super) fn blob(&mut self) -> Result<&'b [u8], Error> {
        let count = self.count()?;
        self.take(count)
    }

    pub(super) fn signed_list(&mut self) -> Result<Vec<i64>, Error> {
        (0..self.count()?).map(|_| self.signed()).collect()
    }

    /// The bits of a number of a width, at most 64.
    pub(super) fn bits(&mut self, width: u32) -> Result<u64, Error> {
        match width {
            0..=8 => Ok(self.byte()?.into()),
            _ => Ok(self.signed()?.cast_unsigned()),
        }
    }
}

/// The error of bytes that end too early.
pub(super) fn truncated() -> Error {
    Error::new("the bytecode ends in the middle, or a count in it is wrong")
}
