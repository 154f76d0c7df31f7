//! Problems as CSV: `id,lower,upper,size` and optionally `alignment` and `offset`; further columns are kept.
//!
//! Errors name the line and the column (in bytes, from 1) of the field that is wrong.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::{Item, Problem};

/// Columns that a header may have. Real files have under ten; a line of millions is a mistake to be told, not stored.
const MOST_COLUMNS: usize = 1024;

/// A problem with the text it came from, so that the answer can be written beside it.
#[derive(Clone, Debug)]
pub struct Table {
    /// The items, in the order of the lines.
    pub problem: Problem,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// What is wrong with a CSV file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {kind}")]
pub struct TableError {
    /// The line, from 1.
    pub line: usize,
    /// The byte within the line, from 1.
    pub column: usize,
    /// What is wrong there.
    pub kind: TableErrorKind,
}

/// What is wrong with a CSV file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableErrorKind {
    /// There is no header.
    #[error("the file is empty; a header with id,lower,upper,size is required")]
    Empty,
    /// A required column is not in the header.
    #[error("the header has no column `{0}`; id,lower,upper,size are required")]
    MissingColumn(&'static str),
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
    /// A field that should be a number.
    #[error("`{field}` is not a whole number: {text:?}")]
    NotANumber {
        /// The column's name.
        field: &'static str,
        /// The field, shortened.
        text: String,
    },
    /// A number below zero.
    #[error("`{field}` is negative: {text}")]
    Negative {
        /// The column's name.
        field: &'static str,
        /// The field, shortened.
        text: String,
    },
    /// A number that does not fit.
    #[error("`{field}` is too large: {text} (the most is {most})")]
    Overflow {
        /// The column's name.
        field: &'static str,
        /// The field, shortened.
        text: String,
        /// The largest number allowed.
        most: u64,
    },
    /// A live range without a time in it.
    #[error("upper ({upper}) is not above lower ({lower})")]
    EmptyRange {
        /// The first time.
        lower: u64,
        /// The end.
        upper: u64,
    },
    /// An alignment of zero.
    #[error("`alignment` is 0")]
    ZeroAlignment,
    /// A fixed offset that is not a multiple of the alignment.
    #[error("`offset` ({offset}) is not a multiple of the alignment ({alignment})")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A fixed item that would end above 2^64.
    #[error("offset + size exceeds 2^64")]
    EndOverflow,
    /// An id that an earlier line has.
    #[error("the id {id:?} is already on line {first_line}")]
    DuplicateId {
        /// The id, shortened.
        id: String,
        /// The earlier line.
        first_line: usize,
    },
    /// A quoted field that does not end, or goes on after its end.
    #[error("a quoted field does not end with a quote and a comma")]
    Quote,
    /// Bytes that are not UTF-8.
    #[error("the file is not UTF-8 from here on")]
    NotText,
}

impl Table {
    /// Reads a problem.
    ///
    /// Lines may end in LF or CRLF; blank lines are skipped; fields may be quoted as in RFC 4180; blanks
    /// around a number are ignored. An empty `alignment` means 1, an empty `offset` means not fixed.
    /// Time and memory are linear in the length of `text`.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with its place.
    pub fn parse(text: &[u8]) -> Result<Table, TableError> {
        let text = std::str::from_utf8(text).map_err(|error| not_text(text, error.valid_up_to()))?;
        let mut reader =
            Reader { text: text.strip_prefix('\u{feff}').unwrap_or(text), at: 0, line: 1, line_start: 0 };
        let columns = Columns::read(&mut reader)?;
        let mut table = Table { problem: Problem::new(), header: columns.names.clone(), rows: Vec::new() };
        let mut first_lines = HashMap::new();
        while let Some(fields) = reader.record(columns.names.len(), false)? {
            let item = columns.item(&fields)?;
            let id = &fields[columns.id];
            if let Some(&first_line) = first_lines.get(&id.text) {
                return Err(id.error(TableErrorKind::DuplicateId { id: shorten(&id.text), first_line }));
            }
            first_lines.insert(id.text.clone(), id.line);
            table.problem.push(item);
            table.rows.push(fields.into_iter().map(|field| field.text).collect());
        }
        Ok(table)
    }

    /// The id of an item.
    ///
    /// # Panics
    ///
    /// If there is no such item.
    pub fn id(&self, item: usize) -> &str {
        let column = self.header.iter().position(|name| name == "id").expect("parsing required the column");
        &self.rows[item][column]
    }

    /// The same table with the given offsets in its `offset` column, which is added at the end if there was none.
    pub fn with_offsets(&self, offsets: &[u64]) -> String {
        let column = self.header.iter().position(|name| name == "offset");
        let mut out = String::new();
        let write_row = |out: &mut String, row: &[String], offset: &str| {
            for (index, field) in row.iter().enumerate() {
                let field = if Some(index) == column { offset } else { field };
                write_field(out, field, index > 0);
            }
            if column.is_none() {
                write_field(out, offset, !row.is_empty());
            }
            out.push('\n');
        };
        write_row(&mut out, &self.header, "offset");
        for (row, offset) in self.rows.iter().zip(offsets) {
            write_row(&mut out, row, &offset.to_string());
        }
        out
    }
}

/// A problem as CSV, with item indices as ids. Gaps, groups and preferences have no column and are left out.
pub fn write_problem(problem: &Problem) -> String {
    let mut out = String::from("id,lower,upper,size,alignment,offset\n");
    for (id, item) in problem.items.iter().enumerate() {
        let Item { lower, upper, size, alignment, fixed, .. } = item;
        let fixed = fixed.map_or(String::new(), |offset| offset.to_string());
        writeln!(out, "{id},{lower},{upper},{size},{alignment},{fixed}").expect("strings take everything");
    }
    out
}

/// Where the columns of the header are.
struct Columns {
    names: Vec<String>,
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
    alignment: Option<usize>,
    offset: Option<usize>,
}

impl Columns {
    fn read(reader: &mut Reader<'_>) -> Result<Columns, TableError> {
        let fields = reader.record(MOST_COLUMNS, true)?;
        let fields = fields.ok_or(TableError { line: 1, column: 1, kind: TableErrorKind::Empty })?;
        let mut places = HashMap::new();
        for (index, field) in fields.iter().enumerate() {
            if places.insert(field.text.trim(), index).is_some() {
                return Err(field.error(TableErrorKind::RepeatedColumn(shorten(field.text.trim()))));
            }
        }
        let required = |name| {
            let first = &fields[0];
            places.get(name).copied().ok_or_else(|| first.error(TableErrorKind::MissingColumn(name)))
        };
        Ok(Columns {
            id: required("id")?,
            lower: required("lower")?,
            upper: required("upper")?,
            size: required("size")?,
            alignment: places.get("alignment").copied(),
            offset: places.get("offset").copied(),
            names: fields.iter().map(|field| field.text.trim().to_owned()).collect(),
        })
    }

    fn item(&self, fields: &[Field]) -> Result<Item, TableError> {
        let lower = number(&fields[self.lower], "lower", u64::MAX)?;
        let upper = number(&fields[self.upper], "upper", u64::MAX)?;
        if upper <= lower {
            return Err(fields[self.upper].error(TableErrorKind::EmptyRange { lower, upper }));
        }
        let mut item = Item::new(number(&fields[self.size], "size", 1 << 63)?, lower..upper);
        if let Some(field) = self.alignment.map(|column| &fields[column]).filter(|field| !field.is_blank()) {
            item.alignment = number(field, "alignment", 1 << 63)?;
            if item.alignment == 0 {
                return Err(field.error(TableErrorKind::ZeroAlignment));
            }
        }
        if let Some(field) = self.offset.map(|column| &fields[column]).filter(|field| !field.is_blank()) {
            let offset = number(field, "offset", u64::MAX)?;
            if offset % item.alignment != 0 {
                let alignment = item.alignment;
                return Err(field.error(TableErrorKind::Misaligned { offset, alignment }));
            }
            if offset.checked_add(item.size).is_none() {
                return Err(field.error(TableErrorKind::EndOverflow));
            }
            item.fixed = Some(offset);
        }
        Ok(item)
    }
}

fn number(field: &Field, name: &'static str, most: u64) -> Result<u64, TableError> {
    let text = field.text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let kind = if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        TableErrorKind::NotANumber { field: name, text: shorten(text) }
    } else if text.starts_with('-') && digits.bytes().any(|byte| byte != b'0') {
        TableErrorKind::Negative { field: name, text: shorten(text) }
    } else {
        match digits.parse::<u64>() {
            Ok(number) if number <= most => return Ok(number),
            _ => TableErrorKind::Overflow { field: name, text: shorten(text), most },
        }
    };
    Err(field.error(kind))
}

/// One field of a line, unquoted, with its place.
struct Field {
    text: String,
    line: usize,
    column: usize,
}

impl Field {
    fn error(&self, kind: TableErrorKind) -> TableError {
        TableError { line: self.line, column: self.column, kind }
    }

    fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }
}

/// A cursor over the text that knows its line.
struct Reader<'t> {
    text: &'t str,
    at: usize,
    line: usize,
    line_start: usize,
}

impl Reader<'_> {
    /// The fields of the next line that is not blank: exactly `n_fields`, or up to that many for the header.
    fn record(&mut self, n_fields: usize, is_header: bool) -> Result<Option<Vec<Field>>, TableError> {
        self.skip_blank_lines();
        if self.at == self.text.len() {
            return Ok(None);
        }
        let mut fields = Vec::with_capacity(if is_header { 8 } else { n_fields });
        loop {
            if fields.len() == n_fields {
                let kind = match is_header {
                    true => TableErrorKind::TooManyColumns,
                    false => TableErrorKind::TooManyFields { expected: n_fields },
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
            return Err(self.error(TableErrorKind::TooFewFields { found: fields.len(), expected: n_fields }));
        }
        Ok(Some(fields))
    }

    /// Reads up to the comma or the end of the line, and leaves the cursor there.
    fn field(&mut self) -> Result<Field, TableError> {
        let (line, column) = (self.line, self.at - self.line_start + 1);
        let rest = &self.text[self.at..];
        if !rest.starts_with('"') {
            let end = rest.find([',', '\n', '\r']).unwrap_or(rest.len());
            self.at += end;
            return Ok(Field { text: rest[..end].to_owned(), line, column });
        }
        let mut text = String::new();
        loop {
            // Here the cursor is on a quote that opens or continues the field.
            self.at += 1;
            let rest = &self.text[self.at..];
            let unterminated = TableError { line, column, kind: TableErrorKind::Quote };
            let end = rest.find('"').ok_or(unterminated.clone())?;
            text.push_str(&rest[..end]);
            if let Some(newline) = rest[..end].rfind('\n') {
                self.line += rest[..end].matches('\n').count();
                self.line_start = self.at + newline + 1;
            }
            self.at += end + 1;
            match self.text.as_bytes().get(self.at) {
                Some(b'"') => text.push('"'),
                None | Some(b',' | b'\n' | b'\r') => return Ok(Field { text, line, column }),
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

    fn error(&self, kind: TableErrorKind) -> TableError {
        TableError { line: self.line, column: self.at - self.line_start + 1, kind }
    }
}

fn not_text(text: &[u8], at: usize) -> TableError {
    let before = &text[..at];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    TableError { line, column: at - line_start + 1, kind: TableErrorKind::NotText }
}

/// A field for a message: hostile ones are long.
fn shorten(text: &str) -> String {
    const MOST: usize = 40;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn write_field(out: &mut String, field: &str, separate: bool) {
    if separate {
        out.push(',');
    }
    if field.contains([',', '"', '\n', '\r']) {
        write!(out, "\"{}\"", field.replace('"', "\"\"")).expect("strings take everything");
    } else {
        out.push_str(field);
    }
}
