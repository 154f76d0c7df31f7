//! HLO in and out: text and protobuf.
//!
//! [`parse`] reads HLO text as XLA prints it, [`print()`] writes text that XLA reads back to the same module, and
//! [`render`] shows an error the way a person wants to see it.

mod async_notes;
mod error;
pub mod fuzzing;
mod lexer;
mod parser;
mod printer;
pub mod proto;
mod tables;

pub use error::{ParseError, ParseErrorKind, Related, render, render_message, render_with_help};
use memplan_ir::Module;
pub use printer::{literal_text, print, shape_text, write};

/// Reads a module from HLO text, or a single instruction, around which a module is made.
///
/// This checks what XLA's parser checks: names, numbers of operands, attributes, and that shapes that are declared
/// twice agree. Whether shapes follow from operands is for the verifier. Takes time linear in the text.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(source: &str) -> Result<Module, ParseError> {
    parser::Parser::new(source).parse().map_err(|error| *error)
}
