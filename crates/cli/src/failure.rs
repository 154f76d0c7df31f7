//! How a command fails: the message and the exit status.

use std::fmt::Write as _;

use memplan::memory::{PlanFileError, TargetError};
use memplan::plan::PlanError;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The input is wrong. The text is printed unchanged.
    Input(String),
    /// The flags contradict each other.
    Usage(String),
    /// The program does not fit the capacity asked for.
    DoesNotFit(String),
    /// A plan was refuted.
    Refuted(String),
    /// A program grew by more than allowed.
    Grew(String),
}

impl Failure {
    /// An input error with all its sources, and the flag that helps, if there is one.
    pub fn input(error: &(dyn std::error::Error + 'static)) -> Failure {
        Failure::Input(chain(error))
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Failure::Input(_) => 1,
            Failure::Usage(_) => 2,
            Failure::DoesNotFit(_) => 3,
            Failure::Refuted(_) => 4,
            Failure::Grew(_) => 5,
        }
    }

    /// The message.
    pub fn text(&self) -> &str {
        match self {
            Failure::Input(text)
            | Failure::Usage(text)
            | Failure::DoesNotFit(text)
            | Failure::Refuted(text)
            | Failure::Grew(text) => text,
        }
    }
}

/// An error with its sources, one per line, and advice.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = format!("error: {error}");
    let mut last = error.to_string();
    let mut help = way_out(error);
    let mut source = error.source();
    while let Some(cause) = source {
        // Transparent wrappers repeat their source.
        if cause.to_string() != last {
            last = cause.to_string();
            let _ = write!(text, "\n  because: {last}");
        }
        help = help.or_else(|| way_out(cause));
        source = cause.source();
    }
    if let Some(help) = help {
        let _ = write!(text, "\n  help: {help}");
    }
    text
}

/// Returns the flag that helps. The libraries name the problem and know of no flags.
fn way_out(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(TargetError::Unknown { .. }) = error.downcast_ref() {
        return Some("`--target FILE.toml` reads your own description of a machine");
    }
    if let Some(PlanFileError::OtherModule { .. }) = error.downcast_ref() {
        return Some("`--emit hlo=FILE` writes the module that a plan describes");
    }
    match error.downcast_ref() {
        Some(PlanError::Merged { .. } | PlanError::ReadOnly { .. }) => {
            Some("`--schedule memory` makes a new schedule, and inserts copies")
        }
        _ => None,
    }
}
