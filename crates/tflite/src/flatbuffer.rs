//! The few parts of flatbuffers that a model needs. Everything is checked: files may be damaged.

use crate::TfliteError;

/// A table, by its place in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'b> {
    pub(crate) bytes: &'b [u8],
    pub(crate) at: usize,
}

/// A number of a width.
pub(crate) fn number<const N: usize>(
    bytes: &[u8],
    at: usize,
    what: &'static str,
) -> Result<u64, TfliteError> {
    let found = at.checked_add(N).and_then(|end| bytes.get(at..end));
    let found = found.ok_or(TfliteError::Damaged(what))?;
    let mut word = [0; 8];
    word[..N].copy_from_slice(found);
    Ok(u64::from_le_bytes(word))
}

impl<'b> Table<'b> {
    /// The table that the file begins with.
    pub(crate) fn root(bytes: &'b [u8]) -> Result<Table<'b>, TfliteError> {
        let at = number::<4>(bytes, 0, "the model")? as usize;
        Ok(Table { bytes, at })
    }

    /// The place of a field; `None` where the table does not have it.
    pub(crate) fn field(self, index: usize, what: &'static str) -> Result<Option<usize>, TfliteError> {
        let damaged = TfliteError::Damaged(what);
        // The list of fields is at a signed distance before the table.
        let distance = number::<4>(self.bytes, self.at, what)? as u32;
        let fields = self.at as i64 - i64::from(distance.cast_signed());
        let fields = usize::try_from(fields).map_err(|_| damaged)?;
        let size = number::<2>(self.bytes, fields, what)? as usize;
        let entry = 4 + 2 * index;
        if entry + 2 > size {
            return Ok(None);
        }
        let offset = number::<2>(self.bytes, fields + entry, what)? as usize;
        Ok((offset != 0).then_some(self.at + offset))
    }

    /// A number of a field, 0 where it is not there.
    pub(crate) fn number<const N: usize>(self, index: usize, what: &'static str) -> Result<u64, TfliteError> {
        match self.field(index, what)? {
            Some(at) => number::<N>(self.bytes, at, what),
            None => Ok(0),
        }
    }

    /// The place that a field leads to.
    pub(crate) fn target(self, index: usize, what: &'static str) -> Result<Option<usize>, TfliteError> {
        let Some(at) = self.field(index, what)? else { return Ok(None) };
        let distance = number::<4>(self.bytes, at, what)? as usize;
        Ok(Some(at.checked_add(distance).ok_or(TfliteError::Damaged(what))?))
    }

    /// The place of the first element of a vector, and their number.
    pub(crate) fn vector(
        self,
        index: usize,
        width: usize,
        what: &'static str,
    ) -> Result<(usize, usize), TfliteError> {
        let Some(at) = self.target(index, what)? else { return Ok((0, 0)) };
        let count = number::<4>(self.bytes, at, what)? as usize;
        let start = at + 4;
        let fits = count.checked_mul(width).and_then(|size| start.checked_add(size));
        match fits.is_some_and(|end| end <= self.bytes.len()) {
            true => Ok((start, count)),
            false => Err(TfliteError::Damaged(what)),
        }
    }

    /// The tables of a vector.
    pub(crate) fn tables(self, index: usize, what: &'static str) -> Result<Vec<Table<'b>>, TfliteError> {
        let (start, count) = self.vector(index, 4, what)?;
        let table = |i: usize| {
            let at = start + 4 * i;
            let distance = number::<4>(self.bytes, at, what)? as usize;
            let at = at.checked_add(distance).filter(|&at| at < self.bytes.len());
            Ok(Table { bytes: self.bytes, at: at.ok_or(TfliteError::Damaged(what))? })
        };
        (0..count).map(table).collect()
    }

    /// The 32-bit integers of a vector.
    pub(crate) fn integers(self, index: usize, what: &'static str) -> Result<Vec<i32>, TfliteError> {
        let (start, count) = self.vector(index, 4, what)?;
        let integer = |i| Ok((number::<4>(self.bytes, start + 4 * i, what)? as u32).cast_signed());
        (0..count).map(integer).collect()
    }

    /// A text, empty where it is not there.
    pub(crate) fn text(self, index: usize, what: &'static str) -> Result<String, TfliteError> {
        let (start, count) = self.vector(index, 1, what)?;
        Ok(String::from_utf8_lossy(&self.bytes[start..start + count]).into_owned())
    }
}
