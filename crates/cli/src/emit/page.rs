//! `--emit html=FILE` of verbs that show two programs beside each other, and `--emit policy=FILE` of the one whose result
//! is code.

use clap::Args;

use crate::failure::Failure;
use crate::output::{distinct, write_result};

#[derive(Args)]
pub(crate) struct PageArgs {
    /// Write a page for a browser: both programs side by side, on one scale, with the tables of the report
    #[arg(long, value_name = "html=FILE", value_parser = path)]
    emit: Option<String>,
}

impl PageArgs {
    pub(crate) fn is_asked_for(&self) -> bool {
        self.emit.is_some()
    }

    /// Checks that the page and the result go to different places.
    pub(crate) fn check(&self, result: Option<&str>) -> Result<(), Failure> {
        self.emit.as_ref().map_or(Ok(()), |page| distinct([Some(page.as_str()), result]))
    }

    /// Writes the page if it was requested.
    pub(crate) fn write(&self, page: impl FnOnce() -> Result<String, Failure>) -> Result<(), Failure> {
        self.emit.as_ref().map_or(Ok(()), |path| write_result(Some(path), page()?))
    }
}

fn path(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("html", path)) if !path.is_empty() => Ok(path.to_string()),
        _ => Err("expected html=FILE, the only kind that this verb writes".to_string()),
    }
}

/// What `memplan fit` writes beside its report.
#[derive(Args)]
pub(crate) struct AdviceArgs {
    /// Also write another form; may be given several times. KIND is html: a page for a browser with both programs side by
    /// side; policy: the best changes as Python, checkpoints and micro-batches as functions
    #[arg(long, value_name = "KIND=FILE", value_parser = advice_path)]
    emit: Vec<(AdviceKind, String)>,
}

/// A form of advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdviceKind {
    Page,
    Policy,
}

impl AdviceArgs {
    /// Checks that all results go to different places.
    pub(crate) fn check(&self, result: Option<&str>) -> Result<(), Failure> {
        distinct(self.emit.iter().map(|(_, path)| Some(path.as_str())).chain([result]))
    }

    /// Writes what was requested.
    pub(crate) fn write(&self, form: impl Fn(AdviceKind) -> Result<String, Failure>) -> Result<(), Failure> {
        self.emit.iter().try_for_each(|(kind, path)| write_result(Some(path), form(*kind)?))
    }
}

fn advice_path(text: &str) -> Result<(AdviceKind, String), String> {
    match text.split_once('=') {
        Some(("html", path)) if !path.is_empty() => Ok((AdviceKind::Page, path.to_string())),
        Some(("policy", path)) if !path.is_empty() => Ok((AdviceKind::Policy, path.to_string())),
        _ => Err("expected html=FILE or policy=FILE, the kinds that this verb writes".to_string()),
    }
}
