//! Reading modules: HLO text or protobuf, told apart by content, from a file or standard input.

use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use memplan::hlo;
use memplan::ir::{self, Module};
use memplan::memory::{Target, TargetError};

use crate::failure::Failure;
use crate::output::say;

/// Reads and verifies a module.
pub(crate) fn read_module(path: &str) -> Result<Module, Failure> {
    let bytes = read(path)?;
    parse_module(bytes, if path == "-" { "<stdin>" } else { path })
}

/// Parses and verifies a module: HLO text or protobuf, told apart by content. Errors point into `name`.
///
/// # Errors
/// [`Failure::Input`], with line, column and a caret where there is a text to point into.
pub fn parse_module(bytes: Vec<u8>, name: &str) -> Result<Module, Failure> {
    let (module, text) = match String::from_utf8(bytes) {
        Ok(text) if !looks_binary(&text) => {
            let module =
                hlo::parse(&text).map_err(|error| Failure::Input(hlo::render(&error, name, &text)))?;
            (module, text)
        }
        Ok(text) => (read_proto(name, text.as_bytes())?, String::new()),
        Err(error) => (read_proto(name, error.as_bytes())?, String::new()),
    };
    ir::verify(&module).map_err(|errors| Failure::Input(render_verify_errors(&errors, name, &text)))?;
    Ok(module)
}

/// The target with a name, or from a file.
///
/// # Errors
/// There is no such target, or the file describes none.
pub fn target(name: &str) -> Result<Target, Failure> {
    target_and_file(name).map(|(target, _)| target)
}

/// The target with a name, or from a file, and the text of its file.
pub(crate) fn target_and_file(name: &str) -> Result<(Target, String), Failure> {
    if !name.ends_with(".toml") {
        let target = Target::find(name).map_err(|error| Failure::input(&error))?;
        let file = Target::built_in_file(name).expect("built-in targets have files");
        return Ok((target, file.to_string()));
    }
    let text = read_text(name)?;
    let target = Target::parse(&text, name).map_err(|error| match error {
        TargetError::File { span, message, help, .. } => {
            Failure::Input(hlo::render_with_help(&message, help.as_deref(), span, name, &text))
        }
        error => Failure::input(&error),
    })?;
    Ok((target, text))
}

/// Reads a whole file, or standard input for `-`, once.
pub(crate) fn read(path: &str) -> Result<Vec<u8>, Failure> {
    static IS_READ: AtomicBool = AtomicBool::new(false);
    if path == "-" && IS_READ.swap(true, Ordering::Relaxed) {
        return Err(Failure::Usage("standard input (`-`) is asked for twice, and can be read once".into()));
    }
    let mut bytes = Vec::new();
    let result = match path {
        "-" => std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ()),
        _ => std::fs::read(path).map(|contents| bytes = contents),
    };
    result.map_err(|error| Failure::Input(format!("error: cannot read `{path}`: {error}")))?;
    Ok(bytes)
}

/// Reads a whole file, or standard input for `-`, that is text in UTF-8.
pub(crate) fn read_text(path: &str) -> Result<String, Failure> {
    String::from_utf8(read(path)?).map_err(|error| {
        let text = String::from_utf8_lossy(error.as_bytes());
        // Up to the first wrong byte both are the same, and there stands a replacement character.
        let wrong = error.utf8_error().valid_up_to();
        let span = wrong..wrong + char::REPLACEMENT_CHARACTER.len_utf8();
        Failure::Input(hlo::render_message("this is no text in UTF-8", span, path, &text))
    })
}

/// What is wrong at a line and byte column of a file, both from 1, with the line and a caret.
pub(crate) fn render_at(
    line: usize,
    column: usize,
    error: &dyn std::fmt::Display,
    name: &str,
    text: &[u8],
) -> String {
    let source = text.split(|&byte| byte == b'\n').nth(line - 1).unwrap_or_default();
    // A window around the column, as a hostile line may be long.
    const BEFORE: usize = 60;
    let from = (column - 1).saturating_sub(BEFORE).min(source.len());
    let to = (column + 40).min(source.len());
    let window = String::from_utf8_lossy(&source[from..to]);
    let before = String::from_utf8_lossy(&source[from..(column - 1).min(source.len())]);
    let blanks = " ".repeat(before.chars().count());
    format!("error: {error}\n --> {name}:{line}:{column}\n  | {}\n  | {blanks}^", window.trim_end())
}

/// Protobuf has control characters early on; text has none but white space.
fn looks_binary(text: &str) -> bool {
    text.bytes().take(256).any(|byte| byte < b' ' && !matches!(byte, b'\n' | b'\r' | b'\t'))
}

fn read_proto(name: &str, bytes: &[u8]) -> Result<Module, Failure> {
    let imported = hlo::proto::read(bytes).map_err(|error| {
        Failure::Input(format!("error: `{name}` is neither HLO text nor an HLO protobuf: {error}"))
    })?;
    for warning in &imported.warnings {
        say(&format!("warning: {name}: {warning}"));
    }
    Ok(imported.module)
}

/// Each error with the line of the instruction it is about, where there is a text to point into.
fn render_verify_errors(errors: &ir::VerifyErrors, name: &str, text: &str) -> String {
    let mut rendered = format!("error: `{name}` is not a valid module");
    for error in errors.0.iter().take(MOST_SHOWN) {
        let mut message = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            message.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        rendered.push('\n');
        match culprit(text, error) {
            Some(span) => rendered.push_str(&hlo::render_message(&message, span, name, text)),
            None => rendered.push_str(&format!("error: {message}")),
        }
    }
    if let Some(more) = errors.0.len().checked_sub(MOST_SHOWN).filter(|&more| more > 0) {
        rendered.push_str(&format!("\nerror: {more} more are not shown"));
    }
    rendered
}

/// Errors of one module that are shown: each is looked for in the whole text.
const MOST_SHOWN: usize = 100;

/// Where in the text an error is: the definition of the instruction or computation it is about.
fn culprit(text: &str, error: &ir::VerifyError) -> Option<Range<usize>> {
    match error {
        ir::VerifyError::Computation { name, .. } => locate(text, name, 0),
        ir::VerifyError::Instruction { name, computation, .. } => {
            locate(text, name, locate(text, computation, 0).map_or(0, |span| span.end))
        }
        _ => None,
    }
}

/// Where an instruction or computation of that name is defined, from an offset on.
fn locate(text: &str, name: &str, mut from: usize) -> Option<Range<usize>> {
    while let Some(found) = text.get(from..)?.find(name) {
        let (start, end) = (from + found, from + found + name.len());
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let starts = !text[..start].ends_with(is_name);
        let line = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let opens = text[line..start].trim_start().trim_start_matches("ROOT ").trim_start_matches("ENTRY ");
        let is_definition = opens.trim_start_matches('%').is_empty() && !text[end..].starts_with(is_name);
        if starts && is_definition {
            return Some(start..end);
        }
        from = end;
    }
    None
}
