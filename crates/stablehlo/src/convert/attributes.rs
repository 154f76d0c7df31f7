//! Attributes of operations as the values that HLO needs.

use memplan_ir::Dimensions;

use crate::Error;
use crate::mlir::{Attribute, Attributes, Elements, Operation, Region, Type};
use crate::text;

/// Reads attributes by name; errors name the operation.
pub(super) trait Fields {
    fn error(&self, message: impl Into<String>) -> Error;
    fn unsupported(&self) -> Error;
    fn missing(&self, name: &str) -> Error;
    /// Numbers, in any of the forms that MLIR has for them; `None` where they are not written.
    fn numbers(&self, name: &str) -> Result<Option<Vec<i64>>, Error>;
    fn dimensions(&self, name: &str) -> Result<Dimensions, Error>;
    fn integer(&self, name: &str) -> Result<Option<i64>, Error>;
    fn flag(&self, name: &str) -> Result<bool, Error>;
    fn word(&self, name: &str) -> Result<Option<&str>, Error>;
    fn text<'o>(&'o self, name: &str) -> Result<&'o str, Error>;
    fn dictionaries<'o>(&'o self, name: &str) -> impl Iterator<Item = &'o Attributes>;
    fn region(&self, number: usize) -> Result<&Region, Error>;
    /// Rows of a table of numbers, each of a width.
    fn rows(&self, name: &str) -> Result<Option<Vec<Vec<i64>>>, Error>;
}

impl Fields for Operation {
    fn error(&self, message: impl Into<String>) -> Error {
        Error::at(self.span.clone(), message)
    }

    fn unsupported(&self) -> Error {
        self.error(format!("operation `{}` is not supported", self.name))
    }

    fn missing(&self, name: &str) -> Error {
        self.error(format!("`{}` has no attribute `{name}`, or one of another kind", self.name))
    }

    fn numbers(&self, name: &str) -> Result<Option<Vec<i64>>, Error> {
        let Some(attribute) = self.attribute(name) else { return Ok(None) };
        list(attribute).map(Some).ok_or_else(|| self.missing(name))
    }

    fn dimensions(&self, name: &str) -> Result<Dimensions, Error> {
        Ok(self.numbers(name)?.unwrap_or_default().into_iter().collect())
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, Error> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Integer(value, _)) => Ok(Some(*value)),
            Some(_) => Err(self.missing(name)),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.attribute(name) {
            None => Ok(false),
            Some(Attribute::Bool(value)) => Ok(*value),
            Some(Attribute::Unit) => Ok(true),
            Some(_) => Err(self.missing(name)),
        }
    }

    fn word(&self, name: &str) -> Result<Option<&str>, Error> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Word(word)) => Ok(Some(word)),
            Some(_) => Err(self.missing(name)),
        }
    }

    fn text<'o>(&'o self, name: &str) -> Result<&'o str, Error> {
        match self.attribute(name) {
            Some(Attribute::String(text) | Attribute::Symbol(text)) => Ok(text),
            _ => Err(self.missing(name)),
        }
    }

    fn dictionaries<'o>(&'o self, name: &str) -> impl Iterator<Item = &'o Attributes> {
        static NONE: Attributes = Attributes::new();
        let entries = match self.attribute(name) {
            Some(Attribute::Array(entries)) => &entries[..],
            _ => &[],
        };
        entries.iter().map(|entry| match entry {
            Attribute::Dictionary(entries) => entries,
            _ => &NONE,
        })
    }

    fn region(&self, number: usize) -> Result<&Region, Error> {
        let region = self.regions.get(number).filter(|region| !region.operations.is_empty());
        region.ok_or_else(|| self.error(format!("`{}` has no region {number}", self.name)))
    }

    fn rows(&self, name: &str) -> Result<Option<Vec<Vec<i64>>>, Error> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Elements(elements)) => rows(elements).map(Some).ok_or_else(|| self.missing(name)),
            Some(Attribute::Array(entries)) => {
                let found: Option<Vec<Vec<i64>>> = entries.iter().map(list).collect();
                found.map(Some).ok_or_else(|| self.missing(name))
            }
            Some(_) => Err(self.missing(name)),
        }
    }
}

/// Numbers in any form.
pub(super) fn list(attribute: &Attribute) -> Option<Vec<i64>> {
    match attribute {
        Attribute::Integers(numbers, _) => Some(numbers.clone()),
        Attribute::Elements(elements) => text::integers_of(elements),
        Attribute::Array(entries) => entries
            .iter()
            .map(|entry| match entry {
                Attribute::Integer(value, _) => Some(*value),
                Attribute::Bool(value) => Some(i64::from(*value)),
                _ => None,
            })
            .collect(),
        Attribute::Integer(value, _) => Some(vec![*value]),
        _ => None,
    }
}

fn rows(elements: &Elements) -> Option<Vec<Vec<i64>>> {
    let numbers = text::integers_of(elements)?;
    match elements.shape.dimensions[..] {
        [_, width] if width > 0 => Some(numbers.chunks(width as usize).map(<[i64]>::to_vec).collect()),
        [n, 0] => (n <= 1).then(|| vec![Vec::new(); n as usize]),
        _ => None,
    }
}

/// An attribute as MLIR prints it.
pub(super) fn print(attribute: &Attribute, out: &mut String) {
    use std::fmt::Write;
    let list = |entries: &[Attribute], out: &mut String| {
        for (number, entry) in entries.iter().enumerate() {
            out.push_str(if number == 0 { "" } else { ", " });
            print(entry, out);
        }
    };
    // Writing to a string does not fail.
    let _ = match attribute {
        Attribute::Unit => write!(out, "unit"),
        Attribute::Bool(value) => write!(out, "{value}"),
        Attribute::Integer(value, kind) if kind.is_empty() => write!(out, "{value} : i64"),
        Attribute::Integer(value, kind) => write!(out, "{value} : {kind}"),
        Attribute::Float(value, kind) => write!(out, "{} : {kind}", float(*value)),
        Attribute::String(text) => write!(out, "\"{}\"", escaped(text)),
        Attribute::Symbol(name) => write!(out, "@{name}"),
        Attribute::Word(word) => write!(out, "{word}"),
        Attribute::Dialect(name, body) => write!(out, "#{name}<{body}>"),
        Attribute::Array(entries) => {
            out.push('[');
            list(entries, out);
            write!(out, "]")
        }
        Attribute::Dictionary(entries) => {
            out.push('{');
            for (number, (name, value)) in entries.iter().enumerate() {
                out.push_str(if number == 0 { "" } else { ", " });
                out.push_str(name);
                if *value != Attribute::Unit {
                    out.push_str(" = ");
                    print(value, out);
                }
            }
            write!(out, "}}")
        }
        Attribute::Integers(numbers, kind) => {
            let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
            match numbers.is_empty() {
                true => write!(out, "array<{kind}>"),
                false => write!(out, "array<{kind}: {}>", numbers.join(", ")),
            }
        }
        Attribute::Type(r#type) => print_type(r#type, out),
        Attribute::Elements(_) | Attribute::Resource(..) => write!(out, "dense<...>"),
    };
}

fn print_type(r#type: &Type, out: &mut String) -> std::fmt::Result {
    use std::fmt::Write;
    match r#type {
        Type::Other(text) => write!(out, "{text}"),
        _ => write!(out, "type"),
    }
}

/// A float as MLIR prints it: `1.000000e+00`.
fn float(value: f64) -> String {
    let scientific = format!("{value:.6e}");
    match scientific.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            format!("{mantissa}e{exponent:+03}")
        }
        None => scientific,
    }
}

/// A text within quotes.
pub(super) fn escaped(text: &str) -> String {
    text.replace('\\', "\\5C").replace('"', "\\22").replace('\n', "\\0A")
}
