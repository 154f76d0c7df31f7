//! Lines of CSV, each field with its position for error messages.
//!
//! Lines end in LF or CRLF, blank lines are skipped, fields may be quoted as in RFC 4180, a byte order mark is ignored.
//! Only quoted fields are copied. The caller interprets the fields: problems ([`table`](crate::table)), and traces of
//! allocators in other crates.

use alloc::borrow::Cow;
use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The most columns of a header. Real files have under ten; a line of millions is a mistake to report, not to store.
const MOST_COLUMNS: usize = 1024;

/// An error in the lines of a file, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {kind}")]
pub struct Error {
    /// The line, from 1.
    pub line: usize,
    /// The byte within the line, from 1.
    pub column: usize,
    /// The error.
    pub kind: ErrorKind,
}

/// The errors in the lines of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A column of the header appears twice.
    #[error("the header has the column `{0}` twice")]
    RepeatedColumn(String),
    /// A header beyond reason.
    #[error("the header has more than {MOST_COLUMNS} columns")]
    TooManyColumns,
    /// A line with fewer fields than the header.
    #[error("the line has {found} fields, the header has {expected}")]
    TooFewFields {
        /// Fields in the line.
        found: usize,
        /// Fields in the header.
        expected: usize,
    },
    /// A line with more fields than the header.
    #[error("the line has more fields than the {expected} of the header")]
    TooManyFields {
        /// Fields in the header.
        expected: usize,
    },
    /// A quoted field that does not end, or goes on after its end.
    #[error("a quoted field does not end with a quote and a comma")]
    Quote,
    /// Bytes that are not UTF-8.
    #[error("the file is not UTF-8 from here on")]
    NotText,
}

/// One field of a line, unquoted, with its place.
#[derive(Clone, Debug)]
pub struct Field<'t> {
    /// Its text, blanks included.
    pub text: Cow<'t, str>,
    /// The line, from 1.
    pub line: usize,
    /// The byte within the line at which it begins, from 1.
    pub column: usize,
}

impl Field<'_> {
    /// Its text, without the blanks around it.
    pub fn trimmed(&self) -> &str {
        self.text.trim()
    }
}

/// A file whose header has been read. Iterates over the lines after it; behind an error, lines are not to be trusted.
#[derive(Clone, Debug)]
pub struct Lines<'t> {
    /// The names of the columns, each once.
    pub header: Vec<Field<'t>>,
    cursor: Cursor<'t>,
}

impl<'t> Lines<'t> {
    /// Reads the header of a file, which is empty where the file is.
    ///
    /// # Errors
    /// When the file is no text, or its header is wrong.
    pub fn new(text: &'t [u8]) -> Result<Lines<'t>, Error> {
        let text = core::str::from_utf8(text).map_err(|error| not_text(text, error.valid_up_to()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut cursor = Cursor { text, at: 0, line: 1, line_start: 0 };
        let header = cursor.record(MOST_COLUMNS, true)?.unwrap_or_default();
        let mut names = BTreeSet::new();
        for field in &header {
            if !names.insert(field.trimmed()) {
                let kind = ErrorKind::RepeatedColumn(shorten(field.trimmed()));
                return Err(Error { line: field.line, column: field.column, kind });
            }
        }
        Ok(Lines { header, cursor })
    }
}

impl<'t> Iterator for Lines<'t> {
    type Item = Result<Vec<Field<'t>>, Error>;

    /// The fields of the next line, as many as the header has.
    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.record(self.header.len(), false).transpose()
    }
}

/// A place in the text that knows its line.
#[derive(Clone, Debug)]
struct Cursor<'t> {
    text: &'t str,
    at: usize,
    line: usize,
    line_start: usize,
}

impl<'t> Cursor<'t> {
    /// The fields of the next line that is not blank: exactly `n_fields`, or up to that many for the header.
    fn record(&mut self, n_fields: usize, is_header: bool) -> Result<Option<Vec<Field<'t>>>, Error> {
        self.skip_blank_lines();
        if self.at == self.text.len() {
            return Ok(None);
        }
        let mut fields = Vec::with_capacity(if is_header { 8 } else { n_fields });
        loop {
            if fields.len() == n_fields {
                let kind = match is_header {
                    true => ErrorKind::TooManyColumns,
                    false => ErrorKind::TooManyFields { expected: n_fields },
                };
                return Err(self.error(kind));
            }
            fields.push(self.field()?);
            match self.text.as_bytes().get(self.at) {
                Some(b',') => self.at += 1,
                _ => break,
            }
        }
        if !is_header && fields.len() < n_fields {
            return Err(self.error(ErrorKind::TooFewFields { found: fields.len(), expected: n_fields }));
        }
        Ok(Some(fields))
    }

    /// Reads up to the comma or the end of the line, and leaves the cursor there.
    fn field(&mut self) -> Result<Field<'t>, Error> {
        let (line, column) = (self.line, self.at - self.line_start + 1);
        let rest = &self.text[self.at..];
        if !rest.starts_with('"') {
            let end = rest.find([',', '\n', '\r']).unwrap_or(rest.len());
            self.at += end;
            return Ok(Field { text: rest[..end].into(), line, column });
        }
        let mut text = String::new();
        loop {
            // Here the cursor is on a quote that opens or continues the field.
            self.at += 1;
            let rest = &self.text[self.at..];
            let unterminated = Error { line, column, kind: ErrorKind::Quote };
            let end = rest.find('"').ok_or(unterminated.clone())?;
            text.push_str(&rest[..end]);
            if let Some(newline) = rest[..end].rfind('\n') {
                self.line += rest[..end].matches('\n').count();
                self.line_start = self.at + newline + 1;
            }
            self.at += end + 1;
            match self.text.as_bytes().get(self.at) {
                Some(b'"') => text.push('"'),
                None | Some(b',' | b'\n' | b'\r') => {
                    return Ok(Field { text: text.into(), line, column });
                }
                Some(_) => return Err(unterminated),
            }
        }
    }

    fn skip_blank_lines(&mut self) {
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            match byte {
                b'\n' => {
                    self.at += 1;
                    self.line += 1;
                    self.line_start = self.at;
                }
                b'\r' => self.at += 1,
                _ => break,
            }
        }
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error { line: self.line, column: self.at - self.line_start + 1, kind }
    }
}

fn not_text(text: &[u8], at: usize) -> Error {
    let before = &text[..at];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    Error { line, column: at - line_start + 1, kind: ErrorKind::NotText }
}

/// A field as messages show it: hostile ones are long.
pub fn shorten(text: &str) -> String {
    const MOST: usize = 40;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
