//! Target files: the built-in ones, and those of users, with errors that name their position.

use std::ops::Range;
use std::path::Path;

use crate::Target;
use crate::closest::did_you_mean;
use crate::target_spans::{leaves, line_and_column, span_of};

/// The errors of a target description.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// No built-in target has this name.
    #[error("there is no target `{name}`{meant}\n  the built-in ones are {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The name that was likely meant, as the end of a sentence; or nothing.
        meant: String,
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
        /// The bytes of the file that are wrong; empty at the start where something is missing altogether.
        span: Range<usize>,
        /// The error.
        message: String,
        /// The allowed values.
        help: Option<String>,
    },
    /// A number makes no sense.
    #[error("target `{target}`: {message}")]
    Invalid {
        /// The target.
        target: String,
        /// Which field, as keys and list indices between dots: `spaces.1.reserved`.
        field: String,
        /// The error.
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
    include_str!("../targets/mcu-cortex-m7.toml"),
    include_str!("../targets/mcu-nrf52840.toml"),
    include_str!("../targets/mcu-rp2040.toml"),
    include_str!("../targets/mcu-stm32f746.toml"),
    include_str!("../targets/toy.toml"),
];

impl Target {
    /// All built-in targets.
    pub fn built_in() -> Vec<Target> {
        let parse = |text: &&str| toml::from_str(text).expect("built-in target files are valid");
        BUILT_IN.iter().map(parse).collect()
    }

    /// The file of a built-in target: each number has its source in a comment beside it, so users can copy the file for
    /// their own target.
    pub fn built_in_file(name: &str) -> Option<&'static str> {
        Target::built_in_named(name).map(|(text, _)| text)
    }

    /// A built-in target and its file. Parses only files that have the name in a line.
    fn built_in_named(name: &str) -> Option<(&'static str, Target)> {
        let line = format!("name = \"{name}\"");
        let parse = |&text: &&'static str| {
            let target = toml::from_str::<Target>(text).expect("built-in target files are valid");
            (target.name == name).then_some((text, target))
        };
        BUILT_IN.iter().filter(|text| text.contains(&line)).find_map(parse)
    }

    /// The built-in target with a name, or the one in a file whose name ends in `.toml`.
    ///
    /// # Errors
    /// No target has the name, or the file is none.
    pub fn find(name: &str) -> Result<Target, TargetError> {
        if name.ends_with(".toml") {
            return Target::read(Path::new(name));
        }
        match Target::built_in_named(name) {
            Some((_, target)) => Ok(target),
            None => {
                let all = Target::built_in();
                let known: Vec<&str> = all.iter().map(|target| target.name.as_str()).collect();
                let meant = did_you_mean(name, known.iter().copied());
                Err(TargetError::Unknown { name: name.to_string(), meant, known: known.join(", ") })
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
            let span = span.unwrap_or(0..0);
            let (line, column) = line_and_column(text, span.start);
            let help = help(text, &span, message);
            TargetError::File {
                path: path.to_string(),
                line,
                column,
                span,
                message: message.to_string(),
                help,
            }
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

/// The allowed values at an error: of the field that is there, or of the missing field in the message.
fn help(text: &str, span: &Range<usize>, message: &str) -> Option<String> {
    let quoted = |start: &str| message.strip_prefix(start).and_then(|rest| rest.split('`').next());
    if let Some(missing) = quoted("missing field `") {
        return describe(&format!("{}{missing}", table_at(text, span.start)));
    }
    let at = leaves(text).into_iter().find(|(_, leaf)| leaf.start <= span.start && span.end <= leaf.end);
    match at {
        // The table's description says what its keys name.
        Some((path, _)) => describe(&path).or_else(|| {
            describe(path.rsplit_once('.')?.0).filter(|table| table.contains(" is a table of numbers"))
        }),
        None => describe(table_at(text, span.start).trim_end_matches(['.', '[', ']'])),
    }
}

/// The table of a TOML document that a header like `[[spaces]]` or `[fusion.dot]` in a place opens, as the beginning of
/// a path; the document itself elsewhere.
fn table_at(text: &str, offset: usize) -> String {
    let line = text.get(offset..).and_then(|rest| rest.lines().next()).unwrap_or_default().trim();
    let name =
        |open: &str, close: &str| line.strip_prefix(open)?.split_once(close).map(|(name, _)| name.trim());
    match (name("[[", "]]"), name("[", "]")) {
        (Some(list), _) => format!("{list}[]."),
        (None, Some(table)) => format!("{table}."),
        (None, None) => String::new(),
    }
}

/// Describes the field at a path, with any indices.
#[cfg(feature = "schema")]
fn describe(path: &str) -> Option<String> {
    let without_indices: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
    let found =
        Target::fields().into_iter().find(|field| field.path == path || field.path == without_indices);
    found.map(|field| format!("`{}` is {}: {}", field.path, field.kind, field.description))
}

#[cfg(not(feature = "schema"))]
fn describe(_: &str) -> Option<String> {
    None
}
