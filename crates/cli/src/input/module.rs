//! From bytes to a verified module: HLO text or protobuf, StableHLO as text or bytecode, detected by content.

use std::ops::Range;

use memplan::hlo;
use memplan::ir::{self, Module};
use memplan::stablehlo;

use super::{foreign, out_of_memory};
use crate::failure::Failure;
use crate::output::say;

/// Parses and verifies a module: HLO text or protobuf, StableHLO text or bytecode, or an artifact of `jax.export`,
/// detected by content. Errors point into `name`.
///
/// # Errors
/// [`Failure::Input`], with line, column and a caret if the input is text.
pub fn parse_module(bytes: Vec<u8>, name: &str) -> Result<Module, Failure> {
    if stablehlo::is_binary(&bytes) {
        let module =
            stablehlo::read(&bytes).map_err(|error| Failure::Input(format!("error: `{name}`: {error}")))?;
        return verified(module, name, "");
    }
    let (module, text) = match String::from_utf8(bytes) {
        Ok(text) if foreign::is_mlir(text.as_bytes()) => {
            let module =
                stablehlo::parse(&text).map_err(|error| Failure::Input(render_mlir(&error, name, &text)))?;
            return verified(module, name, "");
        }
        Ok(text) if !looks_binary(&text) => {
            let module = hlo::parse(&text).map_err(|error| {
                not_hlo(text.as_bytes(), name)
                    .unwrap_or_else(|| Failure::Input(hlo::render(&error, name, &text)))
            })?;
            (module, text)
        }
        Ok(text) => (read_proto(name, text.as_bytes())?, String::new()),
        Err(error) => (read_proto(name, error.as_bytes())?, String::new()),
    };
    verified(module, name, &text)
}

fn verified(module: Module, name: &str, text: &str) -> Result<Module, Failure> {
    ir::verify(&module).map_err(|errors| Failure::Input(render_verify_errors(&errors, name, text)))?;
    Ok(module)
}

/// An error in a text of MLIR, with its line.
fn render_mlir(error: &stablehlo::Error, name: &str, text: &str) -> String {
    match &error.span {
        Some(span) => hlo::render_message(&error.message, span.clone(), name, text),
        None => format!("error: `{name}`: {error}"),
    }
}

/// Protobuf has control characters early on; text has only white space.
fn looks_binary(text: &str) -> bool {
    text.bytes().take(256).any(|byte| byte < b' ' && !matches!(byte, b'\n' | b'\r' | b'\t'))
}

fn read_proto(name: &str, bytes: &[u8]) -> Result<Module, Failure> {
    let imported = hlo::proto::read(bytes).map_err(|error| {
        not_hlo(bytes, name).unwrap_or_else(|| {
            Failure::Input(format!("error: `{name}` is neither HLO text nor an HLO protobuf: {error}"))
        })
    })?;
    for warning in &imported.warnings {
        say(&format!("warning: {name}: {warning}"));
    }
    Ok(imported.module)
}

/// The format of a file without HLO, if it is known. What XLA says about a lack of memory is reported.
fn not_hlo(bytes: &[u8], name: &str) -> Option<Failure> {
    let report = std::str::from_utf8(bytes).ok().and_then(|text| out_of_memory::report(text, name));
    if let Some(report) = report.filter(|_| !foreign::begins_as_hlo(bytes)) {
        return Some(Failure::DoesNotFit(report));
    }
    let (what, help) = foreign::name(bytes)?;
    Some(Failure::Input(format!("error: `{name}` is {what}; memplan reads HLO\n  help: {help}")))
}

/// Renders each error with the line of its instruction, if the input is text.
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

/// The most errors of one module to show: each is searched in the whole text.
const MOST_SHOWN: usize = 100;

/// The position of an error in the text: the definition of its instruction or computation.
fn culprit(text: &str, error: &ir::VerifyError) -> Option<Range<usize>> {
    match error {
        ir::VerifyError::Computation { name, .. } => locate(text, name, 0),
        ir::VerifyError::Instruction { name, computation, .. } => {
            locate(text, name, locate(text, computation, 0).map_or(0, |span| span.end))
        }
        _ => None,
    }
}

/// The position after an offset that defines an instruction or computation of this name.
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
