//! The meaning of a name: an instruction, a part of its result, an argument, an operation or a line.

use indexmap::IndexMap;
use memplan::advice::explain::{NamedItem, Subject, ValueNote, find};
use memplan::advice::folded_operation;
use memplan::ir::{InstructionId, Module, ShapeIndex};
use memplan::memory::{Bytes, Target};
use memplan::{CompileOptions, compile};
use serde::Serialize;

use super::{MOST_LINES, aligned, more};
use crate::failure::Failure;
use crate::report::count;
use crate::screen::Screen;

/// The explanation of a name.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Named {
    /// The name.
    name: String,
    /// The values that the name refers to, the largest first.
    values: Vec<ValueNote>,
    /// Instructions that the name refers to whose results are never in memory, and their kernels.
    within_kernels: Vec<WithinKernel>,
    /// What `memplan compile` does with the first value.
    compiled: Option<String>,
}

#[derive(Serialize, schemars::JsonSchema)]
struct WithinKernel {
    instruction: String,
    kernel: Option<String>,
}

/// Explains a name.
pub(super) fn named(subject: &Subject<'_>, original: &Module, name: &str) -> Result<Named, Failure> {
    let found = find(subject.module, name).map_err(|error| Failure::Input(format!("error: {error}")))?;
    let mut named =
        Named { name: name.to_string(), values: Vec::new(), within_kernels: Vec::new(), compiled: None };
    let (ids, index) = match found {
        NamedItem::Instruction(id, index) => (vec![id], index),
        NamedItem::Several(ids) => (ids, None),
    };
    for &id in &ids {
        let leaves = || subject.module.shape(id).leaves().into_iter().map(|(index, _)| index);
        let indices: Vec<ShapeIndex> = index.clone().map_or_else(|| leaves().collect(), |index| vec![index]);
        let notes: Vec<ValueNote> = indices.iter().filter_map(|index| subject.value(id, index)).collect();
        if notes.is_empty() {
            let kernel =
                subject.kernel_of(id).map(|kernel| subject.module.instructions[kernel].name.to_string());
            let instruction = subject.module.instructions[id].name.to_string();
            named.within_kernels.push(WithinKernel { instruction, kernel });
        }
        named.values.extend(notes);
    }
    if let Some(index) = &index
        && named.values.is_empty()
    {
        let message = format!("error: `{name}`: the result of this instruction has no part {index}");
        return Err(Failure::Input(message));
    }
    // A value may be seen at several instructions.
    let mut seen = std::collections::BTreeSet::new();
    named.values.retain(|value| seen.insert(value.name.clone()));
    named.values.sort_by_key(|value| std::cmp::Reverse(value.bytes));
    if let [id] = ids[..] {
        named.compiled = fate(subject, original, id);
    }
    Ok(named)
}

/// What `compile` does with an instruction of an unscheduled program.
fn fate(subject: &Subject<'_>, original: &Module, id: InstructionId) -> Option<String> {
    /// Compiling larger programs takes longer than a user waits.
    const MOST_INSTRUCTIONS: usize = 20_000;
    let name = &subject.module.instructions[id].name;
    if original.is_scheduled || original.instructions.len() > MOST_INSTRUCTIONS {
        return None;
    }
    let target: &Target = subject.target;
    let mut module = original.clone();
    let compiled = compile(&mut module, target, &CompileOptions::default()).ok()?;
    let same = module.instructions.iter().find(|(_, instruction)| instruction.name == *name);
    let facts = &compiled.planned.facts;
    Some(match same {
        None => {
            "`memplan compile` removes it: it is simplified away, or merged into another value".to_string()
        }
        Some((id, instruction)) if !facts.graph.is_sequential(instruction.parent) => {
            let after = Subject::new(&module, target, &compiled.planned, &[]);
            let kernel = after
                .kernel_of(id)
                .map_or_else(String::new, |kernel| format!(" `{}`", module.instructions[kernel].name));
            format!("`memplan compile` computes it inside kernel{kernel}: it is never in memory")
        }
        Some((id, _)) => {
            let after = Subject::new(&module, target, &compiled.planned, &[]);
            match after.value(id, &ShapeIndex::root()).and_then(|value| value.bytes) {
                Some(bytes) => format!("`memplan compile` keeps it in memory, {bytes}"),
                None => "`memplan compile` gives it no memory".to_string(),
            }
        }
    })
}

impl Named {
    pub(super) fn text(&self, screen: Screen) -> String {
        let mut text = String::new();
        if let [value] = &self.values[..] {
            text.push_str(&of_value(value, screen));
        } else if !self.values.is_empty() {
            text.push_str(&self.several(screen));
        }
        for inner in self.within_kernels.iter().take(MOST_LINES) {
            text.push_str(&match &inner.kernel {
                Some(kernel) => format!(
                    "`{}` runs inside kernel `{kernel}`: its result is never in memory\n",
                    inner.instruction
                ),
                None => format!("`{}` never runs: nothing reaches it\n", inner.instruction),
            });
        }
        text.push_str(&more(self.within_kernels.len(), "instructions inside kernels"));
        text.extend(self.compiled.iter().map(|compiled| format!("{compiled}\n")));
        text
    }

    fn several(&self, screen: Screen) -> String {
        let bytes =
            self.values.iter().filter_map(|value| value.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        let at_peak = self.values.iter().filter(|value| value.is_at_peak).filter_map(|value| value.bytes);
        let at_peak = at_peak.fold(Bytes::ZERO, Bytes::saturating_add);
        let mut text = format!(
            "{} {}, {bytes}, of which {at_peak} at the peak\n",
            screen.heading(&self.name),
            count(self.values.len(), "value")
        );
        // Values of all layers share a line.
        let mut groups: IndexMap<(String, &str, &str, bool), Vec<&ValueNote>> = IndexMap::new();
        for value in &self.values {
            let key = (folded_operation(&value.operation), &*value.shape, &*value.class, value.is_at_peak);
            groups.entry(key).or_default().push(value);
        }
        let bytes_of = |values: &[&ValueNote]| {
            values.iter().filter_map(|value| value.bytes).fold(Bytes::ZERO, Bytes::saturating_add)
        };
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, values)| std::cmp::Reverse(bytes_of(values)));
        let mut table = screen.table();
        for ((_, shape, class, is_at_peak), values) in groups.iter().take(MOST_LINES) {
            let number = if values.len() == 1 { String::new() } else { format!("{} × ", values.len()) };
            table.add_row([
                bytes_of(values).to_string(),
                format!("{number}{} {shape}", values[0].name),
                class.replace('-', " "),
                format!("{}{}", values[0].why, if *is_at_peak { "; at the peak" } else { "" }),
            ]);
        }
        text.push_str(&aligned(table));
        let n = groups.len();
        text.push_str(&more(n, "kinds of values"));
        text
    }
}

/// One value.
fn of_value(value: &ValueNote, screen: Screen) -> String {
    let mut text = screen.heading(&value.name);
    text.push_str(&format!(" {} {}\n", value.shape, value.class.replace('-', " ")));
    let mut table = screen.table();
    let mut line = |what: &str, said: String| {
        if !said.is_empty() {
            table.add_row([what.to_string(), said]);
        }
    };
    let operation = match &*value.operation {
        "" => String::new(),
        name => format!(", for {name}"),
    };
    line("made by", format!("{} in `{}`{operation}", value.opcode, value.computation));
    line("at", value.source.clone().unwrap_or_default());
    line("in a library", value.library_source.clone().unwrap_or_default());
    let peak = if value.is_at_peak { ", at the peak too" } else { ", not at the peak" };
    line(
        "memory",
        match value.bytes {
            Some(bytes) => format!("{bytes} at {}{peak}", value.place),
            None => value.place.clone(),
        },
    );
    if let Some((from, to)) = value.instants {
        line("needed", format!("from instant {from} to {to} of {}", value.of_instants));
    }
    line("read by", if value.readers.is_empty() { "nobody".to_string() } else { value.readers.join(", ") });
    line("why so long", value.why.clone());
    for how in ["in place", "before", "after"] {
        let names: Vec<&str> =
            value.shares.iter().filter(|shared| shared.how == how).map(|shared| &*shared.name).collect();
        let what = match how {
            "in place" => "shares bytes with",
            "before" => "bytes held before by",
            _ => "bytes held after by",
        };
        line(what, names.join(", "));
    }
    for remedy in &value.remedies {
        line("to free it", remedy.clone());
    }
    text.push_str(&(table.trim_fmt() + "\n"));
    text
}
