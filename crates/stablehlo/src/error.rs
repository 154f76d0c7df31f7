//! What is wrong with a program, and where.

use std::ops::Range;

/// Something wrong with StableHLO, or something in it that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The message.
    pub message: String,
    /// The bytes of the text that are wrong, on character boundaries; `None` for bytecode.
    pub span: Option<Range<usize>>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), span: None }
    }

    pub(crate) fn at(span: Range<usize>, message: impl Into<String>) -> Error {
        Error { message: message.into(), span: Some(span).filter(|span| !span.is_empty()) }
    }
}
