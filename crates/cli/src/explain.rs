//! `memplan explain`

use clap::Args;
use comfy_table::{CellAlignment, Table};
use indexmap::IndexMap;
use memplan::advice::explain::{
    ConstantNote, CopyNote, Donation, Found, Overview, Reserved, ReservedFor, Subject, ValueNote, find,
};
use memplan::advice::{folded_operation, peaks};
use memplan::ir::{InstructionId, Module, ShapeIndex};
use memplan::memory::{Bytes, Target};
use memplan::plan::PlanOptions;
use memplan::{CompileOptions, compile};
use serde::Serialize;

use crate::emit::json;
use crate::failure::Failure;
use crate::holders::{self, PeakOptions};
use crate::input::{Form, read_module, target};
use crate::options::{Format, OutputArgs};
use crate::plan::plan_with_copies;
use crate::report::{self, count};
use crate::screen::Screen;
use crate::verdict::verdict;

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// HLO text or protobuf, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// What to explain: an instruction (`fusion.3`), a part of its result (`while.2{1}`), an argument or operation as the
    /// framework names it (`params['w']`), or a line of your program (`model.py:42`); by default the whole program
    value: Option<String>,
    /// Machine to plan for: a name from `memplan targets`, or a TOML file
    #[arg(long, default_value = "cpu")]
    target: String,
    #[command(flatten)]
    peak: PeakOptions,
    #[command(flatten)]
    result: OutputArgs,
}

/// Most lines of one kind that are shown.
const MOST_LINES: usize = 10;

pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let target = target(&args.target)?;
    let original = read_module(&args.module, Form::Compiled)?;
    let per_device = report::per_device(&original, &target);
    let mut module = original.clone();
    let (planned, _, inserted) = plan_with_copies(&mut module, &target, true, &PlanOptions::default())?;
    let subject = Subject::new(&module, &target, &planned, &inserted);
    let screen = args.result.screen();
    let text = match &args.value {
        None => {
            let overview = subject.overview();
            match args.result.format {
                Format::Json => json(&overview),
                Format::Text => screen.wrap(&whole(&subject, &overview, &args.peak, screen)),
            }
        }
        Some(name) => {
            let explained = named(&subject, &original, name)?;
            match args.result.format {
                Format::Json => json(&explained),
                Format::Text => screen.wrap(&explained.text(screen)),
            }
        }
    };
    args.result.write(text)?;
    verdict(&module, &target, &planned, None, per_device)
}

/// The program as a whole.
fn whole(subject: &Subject<'_>, overview: &Overview, options: &PeakOptions, screen: Screen) -> String {
    let title = format!("{} on {}: {}", overview.module, overview.target, overview.totals.total);
    let mut text = screen.heading(&title) + "\n";
    for peak in peaks(&subject.words, subject.planned) {
        text.push_str(&holders::live_at_the_peak(
            subject.module,
            &subject.planned.plan,
            &peak,
            options,
            screen,
        ));
    }
    text.push_str(&donations(overview, screen));
    text.push_str(&copies(&overview.copies, screen));
    text.push_str(&reserved(&overview.reserved, screen));
    text.push_str(&constants(&overview.constants, screen));
    text
}

/// Data that is part of the program.
fn constants(constants: &[ConstantNote], screen: Screen) -> String {
    if constants.is_empty() {
        return String::new();
    }
    let bytes = constants.iter().map(|constant| constant.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
    let mut text = format!("\n{} {bytes}\n", screen.heading("constants, which are part of the program:"));
    let mut table = screen.table();
    for constant in constants.iter().take(MOST_LINES) {
        let twice =
            constant.same_as.as_ref().map_or_else(String::new, |other| format!(", the same as `{other}`"));
        table.add_row([
            constant.bytes.to_string(),
            format!("{} {}", constant.name, constant.shape),
            constant.source.clone().unwrap_or_default(),
            format!("captured{twice}: pass it as an argument, and it is there once for all programs"),
        ]);
    }
    text.push_str(&aligned(table));
    text.push_str(&more(constants.len(), "constants"));
    text
}

/// Arguments by whether they are donated, those of all layers in one line.
fn donations(overview: &Overview, screen: Screen) -> String {
    let totals = &overview.donation;
    let mut text = format!(
        "\n{} {} are donated and used, {} are donated in vain, {} could be donated\n",
        screen.heading("arguments:"),
        totals.used,
        totals.unused,
        totals.possible
    );
    type Kind<'a> = (Donation, String, &'a str, String);
    let mut groups: IndexMap<Kind<'_>, (Bytes, Vec<u32>)> = IndexMap::new();
    for argument in &overview.arguments {
        // Of many results only the first is named, so that those of all layers are told in one line.
        let why = match argument.donation {
            Donation::Used | Donation::Possible => String::new(),
            _ => argument.why.clone(),
        };
        let key = (argument.donation, folded_operation(&argument.name), &*argument.class, why);
        let (bytes, numbers) = groups.entry(key).or_default();
        *bytes = bytes.saturating_add(argument.bytes);
        numbers.push(argument.number);
    }
    let mut table = screen.table();
    let mut kinds: Vec<_> = groups.into_iter().collect();
    // What could be better comes first.
    let rank = |donation| match donation {
        Donation::Possible => 0,
        Donation::Unused => 1,
        Donation::Used => 2,
        Donation::Useless => 3,
    };
    kinds.sort_by_key(|((donation, ..), (bytes, _))| (rank(*donation), std::cmp::Reverse(*bytes)));
    for ((donation, name, class, why), (bytes, numbers)) in kinds.iter().take(MOST_LINES) {
        let said = match donation {
            Donation::Possible => "not donated: a result of its shape could live in it".to_string(),
            Donation::Used => "donated, and used".to_string(),
            Donation::Unused => format!("donated in vain: {why}"),
            Donation::Useless => format!("not donated: {why}"),
        };
        table.add_row([
            bytes.to_string(),
            format!("{name} ({})", numbered(numbers)),
            class.replace('-', " "),
            said,
        ]);
    }
    text.push_str(&aligned(table));
    text.push_str(&more(kinds.len(), "kinds of arguments"));
    if totals.possible > Bytes::ZERO {
        let numbers: Vec<u32> = overview
            .arguments
            .iter()
            .filter(|argument| argument.donation == Donation::Possible)
            .map(|argument| argument.number)
            .collect();
        text.push_str(&format!(
            "{} to save {}: `jax.jit(..., donate_argnums=...)`, or `memplan.jit`, for {}\n",
            screen.bad("donate"),
            totals.possible,
            numbered(&numbers)
        ));
    }
    text
}

/// Copies of one cause and shape in one line.
fn copies(copies: &[CopyNote], screen: Screen) -> String {
    if copies.is_empty() {
        return format!("\n{} none\n", screen.heading("copies:"));
    }
    let bytes = copies.iter().map(|copy| copy.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
    let mut text = format!("\n{} {}, {bytes} together\n", screen.heading("copies:"), copies.len());
    let mut groups: IndexMap<(&str, Bytes, String), Vec<&CopyNote>> = IndexMap::new();
    for copy in copies {
        let key = (<&str>::from(copy.cause), copy.bytes, folded_operation(&copy.operation));
        groups.entry(key).or_default().push(copy);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, copies)| {
        std::cmp::Reverse(copies.iter().map(|copy| copy.bytes).fold(Bytes::ZERO, Bytes::saturating_add))
    });
    let mut table = screen.table();
    for ((cause, bytes, operation), of) in groups.iter().take(MOST_LINES) {
        let first = of[0];
        let number = if of.len() == 1 { String::new() } else { format!("{} × ", of.len()) };
        let runs = if first.runs > 1.0 { format!(", {:.0} times", first.runs) } else { String::new() };
        let place = first.source.clone().unwrap_or_else(|| operation.clone());
        table.add_row([
            format!("{number}{bytes}"),
            format!("{} of {}{runs}", first.instruction, first.of),
            cause.to_string(),
            format!("{}{}", first.why, if place.is_empty() { String::new() } else { format!(" ({place})") }),
        ]);
    }
    text.push_str(&aligned(table));
    text.push_str(&more(groups.len(), "kinds of copies"));
    text
}

fn reserved(reserved: &[Reserved], screen: Screen) -> String {
    if reserved.is_empty() {
        return format!("\n{} nothing\n", screen.heading("reserved by kernels, libraries and collectives:"));
    }
    let mut text = format!("\n{}\n", screen.heading("reserved by kernels, libraries and collectives"));
    let mut groups: IndexMap<(&str, &str, &str), (Bytes, usize, &Reserved)> = IndexMap::new();
    for entry in reserved {
        // Kernels of any kind are alike.
        let opcode = if entry.what == ReservedFor::Kernel { "kernel" } else { &*entry.opcode };
        let key = (<&str>::from(entry.what), &*entry.space, opcode);
        let group = groups.entry(key).or_insert((Bytes::ZERO, 0, entry));
        group.1 += 1;
        if entry.bytes > group.0 {
            (group.0, group.2) = (entry.bytes, entry);
        }
    }
    let mut table = screen.table();
    for ((what, space, opcode), (most, n, entry)) in groups.iter().take(MOST_LINES) {
        let whose = match *what {
            "kernel" => "working memory while it runs",
            "library" => "working memory that the library asks for",
            _ => "a result beside the operands",
        };
        table.add_row([
            most.to_string(),
            format!("of {space}"),
            match n {
                1 => format!("`{}` ({opcode})", entry.instruction),
                n => format!("{n} × {opcode}, most for `{}`", entry.instruction),
            },
            whose.to_string(),
        ]);
    }
    text.push_str(&aligned(table));
    text
}

fn aligned(mut table: Table) -> String {
    if let Some(bytes) = table.column_mut(0) {
        bytes.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

fn more(n: usize, what: &str) -> String {
    match n.saturating_sub(MOST_LINES) {
        0 => String::new(),
        n => format!("and {n} more {what} (`--format json` has all)\n"),
    }
}

/// Numbers of arguments: `0 to 5, 7`.
fn numbered(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number || *last == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |&(from, to): &(u32, u32)| match from == to {
        true => from.to_string(),
        false => format!("{from} to {to}"),
    };
    let shown: Vec<String> = runs.iter().take(6).map(text).collect();
    let rest = if runs.len() > 6 { ", ..." } else { "" };
    let what = if numbers.len() == 1 { "argument" } else { "arguments" };
    format!("{what} {}{rest}", shown.join(", "))
}

/// What a name stands for, explained.
#[derive(Serialize)]
struct Named {
    /// The name.
    name: String,
    /// The values that it stands for, the largest first.
    values: Vec<ValueNote>,
    /// Instructions that it stands for whose results are never in memory, and the kernels that they run within.
    within_kernels: Vec<WithinKernel>,
    /// What `memplan compile` makes of the first value.
    compiled: Option<String>,
}

#[derive(Serialize)]
struct WithinKernel {
    instruction: String,
    kernel: Option<String>,
}

/// Explains what a name stands for.
fn named(subject: &Subject<'_>, original: &Module, name: &str) -> Result<Named, Failure> {
    let found = find(subject.module, name).map_err(|error| Failure::Input(format!("error: {error}")))?;
    let mut named =
        Named { name: name.to_string(), values: Vec::new(), within_kernels: Vec::new(), compiled: None };
    let (ids, index) = match found {
        Found::Instruction(id, index) => (vec![id], index),
        Found::Several(ids) => (ids, None),
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
    // One value may be seen at several instructions.
    let mut seen = std::collections::BTreeSet::new();
    named.values.retain(|value| seen.insert(value.name.clone()));
    named.values.sort_by_key(|value| std::cmp::Reverse(value.bytes));
    if let [id] = ids[..] {
        named.compiled = fate(subject, original, id);
    }
    Ok(named)
}

/// What `compile` makes of an instruction, of a program that nobody has scheduled yet.
fn fate(subject: &Subject<'_>, original: &Module, id: InstructionId) -> Option<String> {
    /// Beyond this, compiling takes longer than people wait for an answer.
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
            "`memplan compile` needs no such value: it is simplified away, or part of another".to_string()
        }
        Some((id, instruction)) if !facts.graph.is_sequential(instruction.parent) => {
            let after = Subject::new(&module, target, &compiled.planned, &[]);
            let kernel = after
                .kernel_of(id)
                .map_or_else(String::new, |kernel| format!(" `{}`", module.instructions[kernel].name));
            format!("`memplan compile` computes it within kernel{kernel}: it is never in memory")
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
    fn text(&self, screen: Screen) -> String {
        let mut text = String::new();
        if let [value] = &self.values[..] {
            text.push_str(&of_value(value, screen));
        } else if !self.values.is_empty() {
            text.push_str(&self.several(screen));
        }
        for inner in self.within_kernels.iter().take(MOST_LINES) {
            text.push_str(&match &inner.kernel {
                Some(kernel) => format!(
                    "`{}` runs within kernel `{kernel}`: its result is never in memory\n",
                    inner.instruction
                ),
                None => format!("`{}` never runs: nothing reaches it\n", inner.instruction),
            });
        }
        text.push_str(&more(self.within_kernels.len(), "instructions within kernels"));
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
        // Those of all layers in one line.
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
            "in place" => "same place as",
            "before" => "bytes before of",
            _ => "bytes after of",
        };
        line(what, names.join(", "));
    }
    for remedy in &value.remedies {
        line("to free it", remedy.clone());
    }
    text.push_str(&(table.trim_fmt() + "\n"));
    text
}
