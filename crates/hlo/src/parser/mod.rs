//! From text to [`Module`](memplan_ir::Module).
//!
//! Recursive descent over the tokens of [`lexer`](crate::lexer). [`cursor`] moves through them; the other files each
//! read one part of the language, from the outside in: [`module`], [`instruction`], [`op`], [`attributes`], and the
//! small languages inside attributes.

mod attributes;
mod cursor;
mod instruction;
mod literal;
mod module;
mod notes;
mod op;
mod shape;
mod sharding;
mod windows;

pub(crate) use attributes::value;
pub(crate) use cursor::Parsed;
pub(crate) use module::Parser;
pub(crate) use op::Operation;

/// A sharding by itself, with its braces.
pub(crate) fn sharding(source: &str) -> Parsed<memplan_ir::Sharding> {
    let mut cursor = cursor::Cursor::new(source);
    let found = cursor.sharding()?;
    cursor.finish("the sharding")?;
    Ok(found)
}
