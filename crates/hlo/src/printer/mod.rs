//! From [`Module`] to text.
//!
//! The output is equal to XLA's, including the order of attributes, so that texts can be compared, and so that XLA
//! reads them back.

mod attributes;
mod instruction;
mod literal;
mod module;
mod notes;
mod shape;
mod sharding;
mod sugar;
mod windows;

use std::fmt;

pub(crate) use attributes::Printer;
pub(crate) use literal::{number, shaped_literal};
use memplan_ir::{Literal, Module, Shape};
pub(crate) use shape::{Layouts, shape};
pub(crate) use sharding::{replica_groups, sharding};
pub(crate) use windows::{dimension_labels, sparsity, window};

/// The text of a module.
pub fn print(module: &Module) -> String {
    // Most lines are longer than this; the string grows a few times at most.
    let mut out = String::with_capacity(module.instructions.len() * 128);
    write(module, &mut out).expect("a string takes everything");
    out
}

/// Writes the text of a module.
///
/// # Errors
/// Those of `out`.
pub fn write(module: &Module, out: &mut impl fmt::Write) -> fmt::Result {
    module::module(module, out)
}

/// The text of a shape, with its layout unless that is not chosen.
pub fn shape_text(shape: &Shape) -> String {
    let mut out = String::new();
    self::shape(shape, Layouts::Print, &mut out).expect("a string takes everything");
    out
}

/// The text of a literal without its shape: `1.5`, `{1, 2}`.
pub fn literal_text(literal: &Literal) -> String {
    let mut out = String::new();
    literal::literal(literal, &mut out).expect("a string takes everything");
    out
}

/// Writes items with a separator between them.
pub(crate) fn separated<W: fmt::Write, T>(
    out: &mut W,
    separator: &str,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut W, T) -> fmt::Result,
) -> fmt::Result {
    for (i, it) in items.into_iter().enumerate() {
        if i > 0 {
            out.write_str(separator)?;
        }
        item(out, it)?;
    }
    Ok(())
}

/// `1,0`
pub(crate) fn integers<W: fmt::Write>(out: &mut W, values: &[i64]) -> fmt::Result {
    separated(out, ",", values, |out, value| write!(out, "{value}"))
}

/// A string in quotes, with XLA's escapes: octal for anything but printable ASCII.
pub(crate) fn quoted<W: fmt::Write>(out: &mut W, bytes: &[u8]) -> fmt::Result {
    out.write_char('"')?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let plain =
            rest.iter().position(|&b| !(b' '..=b'~').contains(&b) || matches!(b, b'"' | b'\'' | b'\\'));
        let (run, tail) = rest.split_at(plain.unwrap_or(rest.len()));
        out.write_str(std::str::from_utf8(run).expect("printable ASCII is UTF-8"))?;
        let Some((&byte, tail)) = tail.split_first() else { break };
        match byte {
            b'\n' => out.write_str("\\n")?,
            b'\r' => out.write_str("\\r")?,
            b'\t' => out.write_str("\\t")?,
            b'"' | b'\'' | b'\\' => write!(out, "\\{}", char::from(byte))?,
            _ => write!(out, "\\{byte:03o}")?,
        }
        rest = tail;
    }
    out.write_char('"')
}

/// A string in quotes, or bare where it is a JSON dictionary.
fn json_or_quoted<W: fmt::Write>(out: &mut W, bytes: &[u8]) -> fmt::Result {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.starts_with('{') && crate::lexer::json_end(text, 0) == Some(text.len()) => {
            out.write_str(text)
        }
        _ => quoted(out, bytes),
    }
}
