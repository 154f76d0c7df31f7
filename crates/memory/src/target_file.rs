//! Target files: the built-in ones, and those of users, with errors that say where.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Target;

/// What is wrong with a target description.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No built-in target has this name.
    #[error(
        "there is no target `{name}`; the built-in ones are {known}, and `--target FILE.toml` reads your own"
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read target file `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file does not describe a target.
    #[error("{path}:{line}:{column}: {message}")]
    File {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A number makes no sense.
    #[error("target `{target}`: {message}")]
    Invalid {
        /// The target.
        target: String,
        /// Which field, as keys and list indices between dots: `spaces.1.reserved`.
        field: String,
        /// What is wrong.
        message: String,
    },
}

/// The built-in targets, each a TOML file in this crate.
const BUILT_IN: &[&str] = &[
    include_str!("../targets/cpu.toml"),
    include_str!("../targets/gpu-a100.toml"),
    include_str!("../targets/gpu-a100-40gb.toml"),
    include_str!("../targets/gpu-h100.toml"),
    include_str!("../targets/gpu-h200.toml"),
    include_str!("../targets/gpu-b200.toml"),
    include_str!("../targets/gpu-gb200.toml"),
    include_str!("../targets/gpu-mi250x.toml"),
    include_str!("../targets/gpu-mi300x.toml"),
    include_str!("../targets/gpu-mi325x.toml"),
    include_str!("../targets/gpu-mi350x.toml"),
    include_str!("../targets/tpu-v2.toml"),
    include_str!("../targets/tpu-v3.toml"),
    include_str!("../targets/tpu-v4.toml"),
    include_str!("../targets/tpu-v5e.toml"),
    include_str!("../targets/tpu-v5p.toml"),
    include_str!("../targets/tpu-v6e.toml"),
    include_str!("../targets/tpu-v7x.toml"),
    include_str!("../targets/ipu-gc200.toml"),
    include_str!("../targets/ipu-bow.toml"),
    include_str!("../targets/toy.toml"),
];

impl Target {
    /// All built-in targets.
    pub fn built_in() -> Vec<Target> {
        let parse = |text: &&str| toml::from_str(text).expect("built-in target files are valid");
        BUILT_IN.iter().map(parse).collect()
    }

    /// The built-in target with a name, or the one in a file whose name ends in `.toml`.
    ///
    /// # Errors
    /// No target has the name, or the file is none.
    pub fn find(name: &str) -> Result<Target, TargetError> {
        if name.ends_with(".toml") {
            return Target::read(Path::new(name));
        }
        let mut all = Target::built_in();
        match all.iter().position(|target| target.name == name) {
            Some(i) => Ok(all.swap_remove(i)),
            None => {
                let known = all.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
                Err(TargetError::Unknown { name: name.to_string(), known })
            }
        }
    }

    /// Reads a target from a TOML file.
    ///
    /// # Errors
    /// The file cannot be read, is no TOML, or describes no machine: with line and column.
    pub fn read(path: &Path) -> Result<Target, TargetError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TargetError::Read { path: path.display().to_string(), source })?;
        Target::parse(&text, &path.display().to_string())
    }

    /// Reads a target from the text of a TOML file; `path` is for errors alone.
    ///
    /// # Errors
    /// The text is no TOML or describes no machine: with line and column.
    pub fn parse(text: &str, path: &str) -> Result<Target, TargetError> {
        let error_at = |span: Option<Range<usize>>, message: &str| {
            let (line, column) = line_and_column(text, span.map_or(0, |span| span.start));
            TargetError::File { path: path.to_string(), line, column, message: message.to_string() }
        };
        let target: Target = toml::from_str(text).map_err(|error| error_at(error.span(), error.message()))?;
        match target.validate() {
            Err(TargetError::Invalid { field, message, .. }) => {
                Err(error_at(span_of(text, &field), &message))
            }
            checked => checked.map(|()| target),
        }
    }
}

/// Where a field is in a TOML document; of a field that is not there, the innermost table that it would be in.
fn span_of(text: &str, field: &str) -> Option<Range<usize>> {
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

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
