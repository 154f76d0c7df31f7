//! The positions of fields in a target file, and the sources of their values.

use std::ops::Range;

use indexmap::IndexMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Target;

impl Target {
    /// The sources of the values of a target file: the comment behind each, or else the one behind the header of its
    /// table, by path with indices (`spaces[1].capacity`), in the order of the file.
    pub fn sources(text: &str) -> IndexMap<String, String> {
        let behind = |line: &str| line.split_once('#').map(|(_, comment)| comment.trim().to_string());
        let mut headers: Vec<(usize, Option<String>)> = Vec::new();
        let mut offset = 0;
        for line in text.split_inclusive('\n') {
            // No key in a header has a `#`.
            if line.starts_with('[') {
                headers.push((offset, behind(line)));
            }
            offset += line.len();
        }
        let sources = leaves(text).into_iter().filter_map(|(path, span)| {
            let own = text[span.end..].lines().next().and_then(behind);
            let above = headers.partition_point(|(header, _)| *header <= span.start);
            let of_table = || above.checked_sub(1).and_then(|header| headers[header].1.clone());
            Some((path, own.or_else(of_table)?))
        });
        sources.collect()
    }
}

/// The line and the column in characters of a byte of a text, from 1.
pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The position of a field in a TOML document, given keys and list indices between dots; for a missing field, that of
/// the innermost existing table that would contain it.
pub(crate) fn span_of(text: &str, field: &str) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut span = None;
    let mut value: Option<&Spanned<DeValue<'_>>> = None;
    for key in field.split('.') {
        let next = match value.map(Spanned::get_ref) {
            None => table.get_ref().get(key),
            Some(DeValue::Table(table)) => table.get(key),
            Some(DeValue::Array(array)) => key.parse::<usize>().ok().and_then(|i| array.get(i)),
            Some(_) => None,
        };
        let Some(next) = next else { break };
        span = Some(next.span());
        value = Some(next);
    }
    span
}

/// The values of a TOML document that are no tables or lists, in order, each with its path as
/// `TargetField` writes it but list indices in the brackets, `spaces[1].capacity`, and where it is, from its key on where it has one.
pub(crate) fn leaves(text: &str) -> Vec<(String, Range<usize>)> {
    let mut leaves = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        list_leaves(table.get_ref(), "", &mut leaves);
    }
    leaves.sort_by_key(|(_, span)| span.start);
    leaves
}

/// As deep as documents nest, which the parser bounds.
fn list_leaves(table: &DeTable<'_>, prefix: &str, leaves: &mut Vec<(String, Range<usize>)>) {
    for (key, value) in table {
        list_leaf(value, format!("{prefix}{}", key.get_ref()), key.span().start, leaves);
    }
}

fn list_leaf(
    value: &Spanned<DeValue<'_>>,
    path: String,
    start: usize,
    leaves: &mut Vec<(String, Range<usize>)>,
) {
    match value.get_ref() {
        DeValue::Table(table) => list_leaves(table, &format!("{path}."), leaves),
        DeValue::Array(array) => {
            for (i, value) in array.iter().enumerate() {
                list_leaf(value, format!("{path}[{i}]"), value.span().start, leaves);
            }
        }
        _ => leaves.push((path, start..value.span().end)),
    }
}
