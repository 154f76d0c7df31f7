//! The budget file.

use memplan::hlo;
use memplan::memory::{Bytes, Target};
use serde::Deserialize;

use crate::diff::{Limit, Preparation, parse_limit, parse_way};
use crate::estimate::machine_of;
use crate::failure::Failure;
use crate::input::{read_text, target};
use crate::options::parse_bytes;

/// A program, and what it may need.
pub(super) struct Program {
    pub(super) name: Option<String>,
    pub(super) module: String,
    pub(super) compiler: Option<String>,
    pub(super) way: Preparation,
    pub(super) target: Target,
    pub(super) limit: Option<Bytes>,
    pub(super) growth: Option<Limit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    program: Vec<toml::Spanned<Entry>>,
}

/// As it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    module: String,
    compiler: Option<String>,
    target: Option<String>,
    limit: Option<String>,
    growth: Option<String>,
}

/// Reads a budget.
pub(super) fn read(path: &str) -> Result<Vec<Program>, Failure> {
    let text = read_text(path)?;
    let wrong = |message: &str, span: std::ops::Range<usize>| {
        Failure::Input(hlo::render_message(message, span, path, &text))
    };
    let file: File =
        toml::from_str(&text).map_err(|error| wrong(error.message(), error.span().unwrap_or(0..0)))?;
    if file.program.is_empty() {
        return Err(Failure::Input(format!("error: `{path}` has no [[program]]")));
    }
    let one = |entry: toml::Spanned<Entry>| {
        let span = entry.span();
        let Entry { name, module, compiler, target: machine, limit, growth } = entry.into_inner();
        let within = |message: String| wrong(&message, span.clone());
        let way = compiler.as_deref().map(parse_way).transpose().map_err(within)?.unwrap_or_default();
        let target = match &way {
            Preparation::Estimated(compiler) => machine_of(compiler, machine.as_deref())?,
            Preparation::Planned | Preparation::Compiled => target(machine.as_deref().unwrap_or("cpu"))?,
        };
        let limit = limit.as_deref().map(parse_bytes).transpose().map_err(within)?;
        let growth = growth.as_deref().map(parse_limit).transpose().map_err(within)?;
        Ok(Program { name, module, compiler, way, target, limit, growth })
    };
    file.program.into_iter().map(one).collect()
}
