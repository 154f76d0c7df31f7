//! Finds what a user names: a value, an argument, or a line of the program.

use memplan_analysis::{Sources, operation};
use memplan_ir::{InstructionId, Module, ShapeIndex};

/// What a name refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedItem {
    /// One instruction, or a part of its result.
    Instruction(InstructionId, Option<ShapeIndex>),
    /// All instructions of a line of the program, or of an operation of the framework.
    Several(Vec<InstructionId>),
}

/// The program has nothing of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program has no instruction, argument, operation or line `{name}`{}", suggestions(.close))]
pub struct UnknownName {
    /// The name.
    pub name: String,
    /// Similar names, the most similar first.
    pub close: Vec<String>,
}

fn suggestions(close: &[String]) -> String {
    match close {
        [] => String::new(),
        close => format!("\n  close to it: {}", close.join(", ")),
    }
}

/// The number of suggestions, and their minimum similarity.
const MOST_SUGGESTIONS: usize = 5;
const LEAST_LIKENESS: f64 = 0.75;

/// Finds `fusion.3`, `%fusion.3`, `while.2{1}`, `params['w']`, `jit(step)/dot_general` or `model.py:42`. Linear in the
/// module and its call stacks.
///
/// # Errors
/// The program has nothing of this name.
pub fn find(module: &Module, name: &str) -> Result<NamedItem, UnknownName> {
    let name = name.trim();
    let (stem, index) = with_index(name.strip_prefix('%').unwrap_or(name));
    let instructions = || module.instructions.iter().map(|(id, _)| id);
    let named = |wanted: &str| instructions().find(|&id| *module.instructions[id].name == *wanted);
    if let Some(id) = named(stem).or_else(|| named(name)) {
        return Ok(NamedItem::Instruction(id, index));
    }
    let of_operation: Vec<InstructionId> =
        instructions().filter(|&id| operation(module, id) == name).collect();
    let several = match of_operation.is_empty() {
        true => at_line(module, name),
        false => of_operation,
    };
    match several[..] {
        [] => Err(UnknownName { name: name.to_string(), close: close_to(module, name) }),
        [only] => Ok(NamedItem::Instruction(only, None)),
        _ => Ok(NamedItem::Several(several)),
    }
}

/// Splits a name from the index behind it: `while.2{1}`.
fn with_index(name: &str) -> (&str, Option<ShapeIndex>) {
    let parsed = name.strip_suffix('}').and_then(|name| name.rsplit_once('{'));
    let index = parsed.and_then(|(_, index)| {
        let parts = index.split(',').map(|part| part.trim().parse::<u32>());
        parts.collect::<Result<Vec<u32>, _>>().ok()
    });
    match (parsed, index) {
        (Some((stem, _)), Some(index)) => (stem, Some(ShapeIndex(index.into()))),
        _ => (name, None),
    }
}

/// The instructions made at `file:line`, or by functions called there. Any suffix of the file's path suffices.
fn at_line(module: &Module, place: &str) -> Vec<InstructionId> {
    let Some((file, line)) = place.rsplit_once(':') else { return Vec::new() };
    let Ok(line) = line.parse::<i32>() else { return Vec::new() };
    let ends_with = |path: &str, end: &str| {
        path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with(['/', '\\']))
    };
    let sources = Sources::new(module);
    let is_at = |id: &InstructionId| {
        sources.frames(*id).any(|frame| {
            // The user may give the whole path, although reports omit the module's common folder.
            frame.line == line && (ends_with(frame.file, file) || ends_with(file, frame.file))
        })
    };
    module.instructions.keys().filter(is_at).collect()
}

fn close_to(module: &Module, name: &str) -> Vec<String> {
    let sources = Sources::new(module);
    let mut scored: Vec<(f64, String)> = Vec::new();
    for (id, instruction) in module.instructions.iter() {
        let lines = sources.frames(id).map(|frame| {
            let file = frame.file.rsplit(['/', '\\']).next().unwrap_or(frame.file);
            format!("{file}:{}", frame.line)
        });
        let is_line = name.contains(':');
        let names = [instruction.name.to_string(), operation(module, id).to_string()];
        for candidate in names.into_iter().chain(lines.filter(|_| is_line)) {
            let likeness = strsim::jaro_winkler(name, &candidate);
            if likeness >= LEAST_LIKENESS {
                scored.push((likeness, candidate));
            }
        }
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.into_iter().take(MOST_SUGGESTIONS).map(|(_, name)| name).collect()
}
