//! Problems as CSV: `id,lower,upper,size` and optionally `alignment` and `offset`; further columns are kept.
//!
//! Errors name the line and the column (in bytes, from 1) of the wrong field.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::csv::{self, Field, Lines, shorten};
use crate::{Item, Problem};

/// A problem with the text it came from, so that the answer can be written beside it.
#[derive(Clone, Debug)]
pub struct Table {
    /// The items, in the order of the lines.
    pub problem: Problem,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// An error in a CSV file, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {kind}")]
pub struct TableError {
    /// The line, from 1.
    pub line: usize,
    /// The byte within the line, from 1.
    pub column: usize,
    /// The error.
    pub kind: TableErrorKind,
}

/// The errors of a CSV file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableErrorKind {
    /// Lines that are no CSV.
    #[error(transparent)]
    Csv(csv::ErrorKind),
    /// There is no header.
    #[error("the file is empty; a header with id,lower,upper,size is required")]
    Empty,
    /// A required column is not in the header.
    #[error("the header has no column `{0}`; id,lower,upper,size are required")]
    MissingColumn(&'static str),
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
}

impl From<csv::Error> for TableError {
    fn from(error: csv::Error) -> TableError {
        TableError { line: error.line, column: error.column, kind: TableErrorKind::Csv(error.kind) }
    }
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
        let lines = Lines::new(text)?;
        let columns = Columns::of(&lines.header)?;
        let mut table = Table { problem: Problem::new(), header: columns.names.clone(), rows: Vec::new() };
        let mut first_lines = BTreeMap::new();
        for fields in lines {
            let fields = fields?;
            let item = columns.item(&fields)?;
            let id = &fields[columns.id];
            if let Some(&first_line) = first_lines.get(&*id.text) {
                let kind = TableErrorKind::DuplicateId { id: shorten(&id.text), first_line };
                return Err(error_at(id, kind));
            }
            first_lines.insert(id.text.to_string(), id.line);
            table.problem.push(item);
            table.rows.push(fields.into_iter().map(|field| field.text.into_owned()).collect());
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

/// The positions of the header's columns.
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
    fn of(header: &[Field<'_>]) -> Result<Columns, TableError> {
        let Some(first) = header.first() else {
            return Err(TableError { line: 1, column: 1, kind: TableErrorKind::Empty });
        };
        let place = |name| header.iter().position(|field| field.trimmed() == name);
        let required = |name| place(name).ok_or_else(|| error_at(first, TableErrorKind::MissingColumn(name)));
        Ok(Columns {
            id: required("id")?,
            lower: required("lower")?,
            upper: required("upper")?,
            size: required("size")?,
            alignment: place("alignment"),
            offset: place("offset"),
            names: header.iter().map(|field| field.trimmed().to_owned()).collect(),
        })
    }

    fn item(&self, fields: &[Field<'_>]) -> Result<Item, TableError> {
        let lower = number(&fields[self.lower], "lower", u64::MAX)?;
        let upper = number(&fields[self.upper], "upper", u64::MAX)?;
        if upper <= lower {
            return Err(error_at(&fields[self.upper], TableErrorKind::EmptyRange { lower, upper }));
        }
        let mut item = Item::new(number(&fields[self.size], "size", 1 << 63)?, lower..upper);
        if let Some(field) =
            self.alignment.map(|column| &fields[column]).filter(|field| !field.trimmed().is_empty())
        {
            item.alignment = number(field, "alignment", 1 << 63)?;
            if item.alignment == 0 {
                return Err(error_at(field, TableErrorKind::ZeroAlignment));
            }
        }
        if let Some(field) =
            self.offset.map(|column| &fields[column]).filter(|field| !field.trimmed().is_empty())
        {
            let offset = number(field, "offset", u64::MAX)?;
            if offset % item.alignment != 0 {
                let alignment = item.alignment;
                return Err(error_at(field, TableErrorKind::Misaligned { offset, alignment }));
            }
            if offset.checked_add(item.size).is_none() {
                return Err(error_at(field, TableErrorKind::EndOverflow));
            }
            item.fixed = Some(offset);
        }
        Ok(item)
    }
}

fn number(field: &Field<'_>, name: &'static str, most: u64) -> Result<u64, TableError> {
    let text = field.trimmed();
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
    Err(error_at(field, kind))
}

fn error_at(field: &Field<'_>, kind: TableErrorKind) -> TableError {
    TableError { line: field.line, column: field.column, kind }
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
