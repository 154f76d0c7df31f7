//! How a command ends when it does not succeed: what is shown, and the exit status.

use std::fmt::Write as _;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The input is wrong. The text is shown as it is.
    Input(String),
    /// The flags contradict each other.
    Usage(String),
    /// The program does not fit the capacity asked for.
    DoesNotFit(String),
    /// A plan was refuted.
    Refuted(String),
}

impl Failure {
    /// An input error with everything that led to it.
    pub fn input(error: &dyn std::error::Error) -> Failure {
        Failure::Input(chain(error))
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Failure::Input(_) => 1,
            Failure::Usage(_) => 2,
            Failure::DoesNotFit(_) => 3,
            Failure::Refuted(_) => 4,
        }
    }

    /// What went wrong, for people.
    pub fn text(&self) -> &str {
        match self {
            Failure::Input(text)
            | Failure::Usage(text)
            | Failure::DoesNotFit(text)
            | Failure::Refuted(text) => text,
        }
    }
}

/// An error with its sources, a line each.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = format!("error: {error}");
    let mut last = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Transparent wrappers repeat their source.
        if cause.to_string() != last {
            last = cause.to_string();
            let _ = write!(text, "\n  because: {last}");
        }
        source = cause.source();
    }
    text
}
