//! HLO in and out: text and protobuf.
//!
//! [`parse`] reads HLO text as XLA prints it, [`print()`] writes text that XLA reads back to the same module, and
//! [`render`] formats an error for people.
//!
//! ```
//! let text = "HloModule m\nENTRY main { p = f32[4] parameter(0)  ROOT n = f32[4] negate(p) }";
//! let module = memplan_hlo::parse(text)?;
//! assert_eq!(module.entry_computation().instructions.len(), 2);
//! assert!(memplan_hlo::print(&module).contains("ROOT %n = f32[4]{0} negate(%p)"));
//!
//! let wrong = text.replace("negate", "negat");
//! let error = memplan_hlo::parse(&wrong).unwrap_err();
//! // It shows the line, a caret below the word, and a suggestion.
//! println!("{}", memplan_hlo::render(&error, "m.hlo", &wrong));
//! # Ok::<(), memplan_hlo::ParseError>(())
//! ```

mod async_notes;
mod attributes;
mod error;
pub mod fuzzing;
mod lexer;
mod parser;
mod printer;
#[cfg(feature = "proto")]
pub mod proto;
mod tables;

pub use error::{ParseError, ParseErrorKind, Related, render, render_message, render_with_help};
use memplan_ir::{Module, Sharding};
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

/// Reads a sharding as HLO text has it, with its braces: `{devices=[2,2]<=[4]}`.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse_sharding(text: &str) -> Result<Sharding, ParseError> {
    parser::sharding(text).map_err(|error| *error)
}
