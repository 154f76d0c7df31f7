//! The peak of a memory on a screen: the curve, classes, and holders.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::{CellAlignment, Table, presets};
use memplan::advice::{Group, GroupBy, Peak, Words};
use memplan::ir::Module;
use memplan::memory::{Bytes, MemoryPlan, MemorySpaceId};
use memplan::plan::Planned;

use crate::failure::Failure;
use crate::needless::{given, refuse};
use crate::options::Format;
use crate::picture;
use crate::report::{count, name_at};
use crate::screen::Screen;

/// The column of source lines.
const SOURCE: usize = 4;

/// A memory that holds less than this share of the main memory gets a single line.
const NOTEWORTHY: u64 = 10_000;

/// How to list the holders of the peak.
#[derive(Args, Default)]
pub struct PeakOptions {
    /// How many lines to show of the holders of the peak; one more line has the sum of the others (default: 12)
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// How to group values into lines: `kind` (the default) groups by operation (in all layers), shape, class and
    /// source line; `none` lists every value
    #[arg(long, value_name = "BY", value_parser = group_by())]
    group: Option<GroupBy>,
    /// Also show the library line that made a value, beside the line of your program that called it
    #[arg(long)]
    library_frames: bool,
}

/// The default number of lines.
const USUAL_LINES: usize = 12;

impl PeakOptions {
    /// The flags that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        given([
            ("--top", self.top.is_some()),
            ("--group", self.group.is_some()),
            ("--library-frames", self.library_frames),
        ])
    }

    /// Rejects the flags if the peak is not shown as a table.
    pub(crate) fn check(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Text => Ok(()),
            Format::Json => {
                refuse(&self.given(), "`--format json` already lists every value that is live at the peak")
            }
        }
    }

    fn top(&self) -> usize {
        self.top.unwrap_or(USUAL_LINES)
    }

    fn group(&self) -> GroupBy {
        self.group.unwrap_or_default()
    }
}

fn group_by() -> impl TypedValueParser<Value = GroupBy> {
    PossibleValuesParser::new(GroupBy::ALL.map(<&str>::from)).try_map(|name| name.parse::<GroupBy>())
}

/// The peak of one memory.
pub(crate) fn section(
    module: &Module,
    plan: &MemoryPlan,
    peak: &Peak,
    options: &PeakOptions,
    screen: Screen,
) -> String {
    let report = &peak.report;
    // A read-only memory has a constant curve.
    let is_read_only = plan.spaces.iter().any(|totals| totals.space == peak.space && totals.read_only);
    if is_read_only || !is_noteworthy(plan, peak) {
        return live_at_the_peak(module, plan, peak, options, screen);
    }
    let memory = memory(plan, peak);
    let title = screen.heading(&format!("bytes live{memory} over the program"));
    let picture = picture::draw(&report.curve, report.time as usize, screen);
    format!("\n{title}\n\n{picture}") + &live_at_the_peak(module, plan, peak, options, screen)
}

/// The same without the curve.
pub(crate) fn live_at_the_peak(
    module: &Module,
    plan: &MemoryPlan,
    peak: &Peak,
    options: &PeakOptions,
    screen: Screen,
) -> String {
    let report = &peak.report;
    let memory = memory(plan, peak);
    let title = screen.heading(&format!("live{memory} at the peak: {}", report.bytes));
    let at = &module.instructions[report.instruction].name;
    let mut text = format!("\n{title} while `{at}` runs\n");
    if !is_noteworthy(plan, peak) {
        return text;
    }
    text.push_str(&screen.faint(&by_class(peak)));
    text.push('\n');
    text.push_str(&table(module, peak, options, screen));
    text
}

fn is_noteworthy(plan: &MemoryPlan, peak: &Peak) -> bool {
    peak.space == MemorySpaceId::MAIN || peak.report.bytes.0 > plan.totals.total.0 / NOTEWORTHY
}

/// The name of a memory, empty for the main one.
fn memory(plan: &MemoryPlan, peak: &Peak) -> String {
    match peak.space {
        MemorySpaceId::MAIN => String::new(),
        space => {
            let space = plan.spaces.iter().find(|totals| totals.space == space);
            space.map_or_else(String::new, |space| format!(" in {}", space.name))
        }
    }
}

/// The bytes of each class, in one line.
fn by_class(peak: &Peak) -> String {
    let groups = peak.groups(GroupBy::Class);
    let name =
        |group: &Group| group.class.map_or_else(String::new, |class| plural(&class.to_string(), group));
    let parts: Vec<String> = groups.iter().map(|group| format!("{} {}", group.bytes, name(group))).collect();
    parts.join(" · ") + "\n"
}

fn plural(class: &str, group: &Group) -> String {
    match (class, group.members.len()) {
        ("optimizer-state", _) => "optimizer state".to_string(),
        ("state", _) | (_, 1) => class.to_string(),
        _ => format!("{class}s").replace("temporarys", "temporaries"),
    }
}

/// The peak of main memory as reports show it, for other pages than a screen.
#[derive(Clone, Debug)]
pub struct PeakTable {
    /// When, and how many bytes.
    pub title: String,
    /// The heads, then a row for each of the largest lines.
    pub rows: Vec<Vec<String>>,
    /// What is said of the other lines; empty if there are none.
    pub rest: String,
}

impl PeakTable {
    /// Linear in the module.
    pub fn new(module: &Module, planned: &Planned) -> PeakTable {
        let peak = Peak::new(&Words::new(module, &planned.facts), planned, MemorySpaceId::MAIN);
        let options = PeakOptions::default();
        let groups = peak.groups(options.group());
        let at = &module.instructions[peak.report.instruction].name;
        PeakTable {
            title: format!("live at the peak: {} while {at} runs", peak.report.bytes),
            rows: rows(module, &peak, &groups, &options),
            rest: rest(&groups, &options),
        }
    }
}

fn table(module: &Module, peak: &Peak, options: &PeakOptions, screen: Screen) -> String {
    let groups = peak.groups(options.group());
    let mut rows = rows(module, peak, &groups, options);
    let texts = 2..rows[0].len();
    screen.break_cells(&mut rows, texts);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(rows.remove(0)).add_rows(rows);
    for column in [0, 1] {
        table.column_mut(column).expect("they are figures").set_cell_alignment(CellAlignment::Right);
    }
    match rest(&groups, options) {
        rest if rest.is_empty() => table.trim_fmt() + "\n",
        rest => table.trim_fmt() + "\n" + &rest + "\n",
    }
}

/// The largest groups, after the heads of the columns.
fn rows(module: &Module, peak: &Peak, groups: &[Group], options: &PeakOptions) -> Vec<Vec<String>> {
    let mut rows = vec![["bytes", "sum", "what", "class", "source", "kept by"].map(str::to_string).to_vec()];
    let mut sum = Bytes::ZERO;
    for group in groups.iter().take(options.top()) {
        sum = sum.saturating_add(group.bytes);
        let share = 100.0 * sum.0 as f64 / report_bytes(peak) as f64;
        rows.push(vec![
            group.bytes.to_string(),
            format!("{share:.1} %"),
            what(module, peak, group, options),
            group.class.map_or_else(String::new, |class| class.to_string().replace('-', " ")),
            source(group, options),
            keepers(group),
        ]);
    }
    // The column is empty for modules without lines.
    if rows[1..].iter().all(|row| row[SOURCE].is_empty()) {
        rows.iter_mut().for_each(|row| drop(row.remove(SOURCE)));
    }
    rows
}

/// What is said of the groups that are not listed; empty if all are.
fn rest(groups: &[Group], options: &PeakOptions) -> String {
    let rest = groups.get(options.top()..).unwrap_or_default();
    if rest.is_empty() {
        return String::new();
    }
    let bytes = rest.iter().map(|group| group.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
    let values: usize = rest.iter().map(|group| group.members.len()).sum();
    format!(
        "and {} of {}, {bytes} together (--top {} lists all)",
        count(rest.len(), "smaller line"),
        count(values, "value"),
        groups.len()
    )
}

fn report_bytes(peak: &Peak) -> u64 {
    peak.report.bytes.0.max(1)
}

/// The count, operation and shape of a group.
fn what(module: &Module, peak: &Peak, group: &Group, options: &PeakOptions) -> String {
    if options.group() == GroupBy::None {
        let buffer = &peak.report.buffers[group.members[0]];
        let shape = group.shape.as_deref().unwrap_or_default();
        return format!("{} {shape}", name_at(module, &buffer.position));
    }
    line(group)
}

/// The count, operation and shape of a group by kind.
pub(crate) fn line(group: &Group) -> String {
    let number = match group.members.len() {
        1 => String::new(),
        n => format!("{n} × "),
    };
    let operation = group.operation.as_deref().unwrap_or("several operations");
    match &group.shape {
        Some(shape) => format!("{number}{operation} {shape}"),
        None => format!("{number}{operation}"),
    }
}

fn source(group: &Group, options: &PeakOptions) -> String {
    let source = group.source.clone().unwrap_or_default();
    match &group.library_source {
        Some(library) if options.library_frames => format!("{source} ({library})"),
        _ => source,
    }
}

fn keepers(group: &Group) -> String {
    match group.other_keepers {
        0 => group.kept_by.clone(),
        n => format!("{}, and {n} more", group.kept_by),
    }
}
