//! The header of an `.npy` file, which describes its array.
//!
//! ```text
//! \x93NUMPY 1 0 <length: u16>  {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   <blanks> \n
//! ```
//!
//! Versions 2 and 3 have a length of four bytes. The text is a Python dictionary with these three keys in any order. No
//! other Python is accepted: no nesting, and no lists, which describe arrays of records.

use std::io::{Read, Write};

/// Longer headers are no plain arrays.
const LONGEST: usize = 1 << 16;

/// The alignment of the array in the file.
const ALIGNMENT: usize = 64;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The type, order and shape of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The type as NumPy writes it: `<f4`.
    pub(crate) dtype: String,
    /// Whether the first index varies fastest.
    pub(crate) is_fortran: bool,
    pub(crate) shape: Vec<u64>,
}

impl Header {
    /// Reads a header; what follows is the array.
    ///
    /// # Errors
    /// Describes the error.
    pub(crate) fn read(from: &mut impl Read) -> Result<Header, String> {
        let mut read = |n: usize| {
            let mut bytes = vec![0; n];
            from.read_exact(&mut bytes).map(|()| bytes).map_err(|error| format!("no NumPy array: {error}"))
        };
        let start = read(MAGIC.len() + 2)?;
        let length = match start.split_at(MAGIC.len()) {
            (MAGIC, [1, _]) => read(2)?,
            (MAGIC, [2 | 3, _]) => read(4)?,
            (MAGIC, [version, _]) => return Err(format!("a NumPy array of unknown version {version}")),
            _ => return Err("no NumPy array".into()),
        };
        let length = length.iter().rev().fold(0, |length, &byte| length << 8 | usize::from(byte));
        if length > LONGEST {
            return Err(format!(
                "the header of a NumPy array has {length} bytes; at most {LONGEST} are read"
            ));
        }
        let text = String::from_utf8(read(length)?).map_err(|_| "the header of a NumPy array is no text")?;
        parse(&text).ok_or_else(|| format!("no header of a plain NumPy array: {}", text.trim_end()))
    }

    /// Writes a header.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let Header { dtype, is_fortran, shape } = self;
        let order = if *is_fortran { "True" } else { "False" };
        let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
        let shape = if shape.len() == 1 { extents.trim_end() } else { extents.trim_end_matches(", ") };
        let text = format!("{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': ({shape}), }}");
        // Version, length and newline.
        let whole = (MAGIC.len() + 4 + text.len() + 1).next_multiple_of(ALIGNMENT);
        let length = whole - MAGIC.len() - 4;
        let length =
            u16::try_from(length).map_err(|_| std::io::Error::other("an array of too many dimensions"))?;
        to.write_all(MAGIC)?;
        to.write_all(&[1, 0])?;
        to.write_all(&length.to_le_bytes())?;
        writeln!(to, "{text:width$}", width = usize::from(length) - 1)
    }
}

fn parse(text: &str) -> Option<Header> {
    let mut rest = Rest(text);
    let (mut dtype, mut is_fortran, mut shape) = (None, None, None);
    rest.eat("{")?;
    while rest.eat("}").is_none() {
        let key = rest.string()?;
        rest.eat(":")?;
        match key {
            "descr" => dtype = Some(rest.string()?.to_string()),
            "fortran_order" => is_fortran = Some(rest.boolean()?),
            "shape" => shape = Some(rest.extents()?),
            _ => return None,
        }
        if rest.eat(",").is_none() {
            rest.eat("}")?;
            break;
        }
    }
    rest.0.trim().is_empty().then_some(Header { dtype: dtype?, is_fortran: is_fortran?, shape: shape? })
}

/// The unread rest. Every function skips blanks, parses one item, and fails on anything else.
struct Rest<'t>(&'t str);

impl<'t> Rest<'t> {
    fn eat(&mut self, token: &str) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(token)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'t str> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (string, rest) = text[1..].split_once(quote)?;
        self.0 = rest;
        Some(string)
    }

    fn boolean(&mut self) -> Option<bool> {
        self.eat("True").map(|()| true).or_else(|| self.eat("False").map(|()| false))
    }

    /// `()`, `(2,)`, `(2, 3)`.
    fn extents(&mut self) -> Option<Vec<u64>> {
        self.eat("(")?;
        let (extents, rest) = self.0.split_once(')')?;
        self.0 = rest;
        let extents = extents.trim();
        let extents = extents.strip_suffix(',').unwrap_or(extents);
        if extents.is_empty() {
            return Some(Vec::new());
        }
        // Python 2 marked long integers.
        extents.split(',').map(|extent| extent.trim().trim_end_matches('L').parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str) -> Result<Header, String> {
        let length = (text.len() as u16).to_le_bytes();
        Header::read(&mut [MAGIC, &[1, 0], &length, text.as_bytes()].concat().as_slice())
    }

    #[test]
    fn headers_read_back() {
        for shape in [vec![], vec![3], vec![2, 0, 5], vec![1; 100]] {
            let header = Header { dtype: "<f4".into(), is_fortran: shape.len() == 3, shape };
            let mut bytes = Vec::new();
            header.write(&mut bytes).unwrap();
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(Header::read(&mut bytes.as_slice()), Ok(header));
        }
    }

    #[test]
    fn headers_as_others_write_them() {
        let expected = Header { dtype: "|u1".into(), is_fortran: false, shape: vec![2, 3] };
        for text in [
            "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }    \n",
            "{\"shape\":(2L,3L),\"descr\":\"|u1\",\"fortran_order\":False}",
        ] {
            assert_eq!(header(text), Ok(expected.clone()), "{text}");
        }
    }

    /// A few bytes take no more memory than they are, and no more stack.
    #[test]
    fn hostile_headers_are_errors() {
        let mut long = [MAGIC, &[2, 0], &u32::MAX.to_le_bytes()].concat();
        assert!(Header::read(&mut long.as_slice()).unwrap_err().contains("at most 65536 are read"));
        long.truncate(9);
        assert!(Header::read(&mut long.as_slice()).is_err());
        for text in [
            "",
            "{",
            "{}",
            &"(".repeat(60_000),
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
        ] {
            assert!(header(text).is_err(), "{text}");
        }
    }
}
