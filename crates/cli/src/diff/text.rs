//! Differences as text: for a screen, or for a comment on a pull request.

use comfy_table::{CellAlignment, Table, presets};
use memplan::advice::diff::{Diff, Figure, Matched, MemoryDiff, ValueChange, signed};
use memplan::memory::Bytes;

use super::programs::Compared;
use crate::report::count;
use crate::screen::Screen;

/// The most changes to list.
const MOST_CHANGES: usize = 12;

/// The most programs to list.
const MOST_PROGRAMS: usize = 20;

/// Lists the programs, and describes the one that changed most.
pub(super) fn text(compared: &Compared, screen: Screen) -> String {
    let diff = &compared.programs[0];
    let mut text = String::new();
    if compared.programs.len() > 1 {
        text.push_str(&format!("{}\n\n", programs(compared).trim_fmt()));
    }
    text.push_str(&only(compared));
    text.push_str(&screen.heading(&title(diff)));
    text.push_str(&format!("\n\n{}", memory(&diff.main, screen)));
    text.push_str(&without_peak(diff));
    for other in &diff.other_memories {
        text.push_str(&format!("\n{}\n\n{}", screen.heading(&title_of(other)), memory(other, screen)));
    }
    screen.wrap(&text)
}

/// Figures of a memory, the causes of changes, and the changes at its peak.
fn memory(memory: &MemoryDiff, screen: Screen) -> String {
    let mut text = format!("{}\n", totals(memory).trim_fmt());
    if !memory.causes.is_empty() {
        text.push_str(&format!("\n{}\n\n", screen.heading("why")));
    }
    for cause in &memory.causes {
        text.push_str(&screen.item(&signed(cause.bytes), &cause.what));
    }
    if !memory.changes.is_empty() {
        text.push_str(&format!("\n{}\n\n", screen.heading(heading(memory))));
    }
    for change in memory.changes.iter().take(MOST_CHANGES) {
        let [name, held] = lines(change);
        text.push_str(&screen.item(&signed(change.bytes()), &name));
        text.push_str(&screen.item("", &screen.faint(&held)));
    }
    if let Some(rest) = memory.changes.get(MOST_CHANGES..).filter(|rest| !rest.is_empty()) {
        text.push_str(&screen.item(&signed(sum(rest)), &count(rest.len(), "other change")));
    }
    text
}

/// The place in the programs that the changes are of.
fn heading(memory: &MemoryDiff) -> &'static str {
    match &memory.moved {
        None => "what changed at the peak",
        Some(moved) if moved.to.after >= moved.from.before => "what changed where the peak is now",
        Some(_) => "what changed where the peak was",
    }
}

/// A comment: totals and causes, and the changes behind a fold.
pub(crate) fn markdown(compared: &Compared, grown: &[&Diff]) -> String {
    let diff = &compared.programs[0];
    let mut text = format!("### {}\n\n", title(diff));
    if !grown.is_empty() {
        text.push_str(&format!(":x: {} grew by more than allowed\n\n", count(grown.len(), "program")));
    }
    if compared.programs.len() > 1 {
        text.push_str(&format!("{}\n\n", markdown_table(programs(compared))));
    }
    text.push_str(&only(compared));
    text.push_str(&markdown_of(&diff.main));
    text.push_str(&without_peak(diff));
    for other in &diff.other_memories {
        text.push_str(&format!("\n#### {}\n\n{}", title_of(other), markdown_of(other)));
    }
    text
}

fn markdown_of(memory: &MemoryDiff) -> String {
    let mut text = format!("{}\n", markdown_table(totals(memory)));
    for cause in &memory.causes {
        text.push_str(&format!("\n- **{}** {}", signed(cause.bytes), cause.what));
    }
    if !memory.changes.is_empty() {
        let mut table = Table::new();
        table.set_header(["bytes", "what", "values"]);
        for change in memory.changes.iter().take(MOST_CHANGES) {
            let [name, held] = lines(change);
            table.add_row([signed(change.bytes()), name, held]);
        }
        let what = heading(memory).trim_start_matches("what changed");
        let summary = format!("{}{what}", count(memory.changes.len(), "change"));
        text.push_str(&format!(
            "\n\n<details><summary>{summary}</summary>\n\n{}\n\n</details>\n",
            markdown_table(table)
        ));
    }
    text
}

/// The growth of a program: in bytes and as a share.
pub(super) fn growth(diff: &Diff) -> String {
    format!("{} ({:+.2} %)", signed(diff.bytes()), 100.0 * (diff.ratio() - 1.0))
}

fn title(diff: &Diff) -> String {
    let (a, b) = (&diff.before, &diff.after);
    let module =
        if a.module == b.module { a.module.clone() } else { format!("{} -> {}", a.module, b.module) };
    let target =
        if a.target == b.target { a.target.clone() } else { format!("{} -> {}", a.target, b.target) };
    match diff.bytes() {
        0 => format!("{module} on {target}: no change in bytes"),
        _ => format!("{module} on {target}: {}", growth(diff)),
    }
}

fn title_of(other: &MemoryDiff) -> String {
    format!("{}: {}", other.memory, signed(other.growth("total")))
}

fn programs(compared: &Compared) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["before", "after", "change", "program"]);
    for diff in compared.programs.iter().take(MOST_PROGRAMS) {
        let (before, after) = (&diff.before, &diff.after);
        table.add_row([
            before.total.to_string(),
            after.total.to_string(),
            growth(diff),
            after.module.clone(),
        ]);
    }
    right(table, 0..3)
}

fn only(compared: &Compared) -> String {
    let list = |what: &str, names: &[String]| match names.is_empty() {
        true => String::new(),
        false => format!("only {what}: {}\n\n", names.join(", ")),
    };
    list("before", &compared.only_before) + &list("after", &compared.only_after)
}

/// Figures that are above zero on either side.
fn totals(memory: &MemoryDiff) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["", "before", "after", "change"]);
    let is_there = |figure: &&Figure| figure.before.max(figure.after) > Bytes::ZERO;
    for Figure { name, before, after } in memory.totals.iter().filter(is_there) {
        let change = match i128::from(after.0) - i128::from(before.0) {
            0 => String::new(),
            bytes => signed(bytes),
        };
        table.add_row([name.replace('_', " "), before.to_string(), after.to_string(), change]);
    }
    right(table, 1..4)
}

fn right(mut table: Table, columns: std::ops::Range<usize>) -> Table {
    for column in columns {
        table.column_mut(column).expect("it is there").set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn markdown_table(mut table: Table) -> String {
    table.load_preset(presets::ASCII_MARKDOWN);
    table.to_string()
}

/// Plans without holders have no causes.
fn without_peak(diff: &Diff) -> String {
    let missing = [&diff.before, &diff.after].map(|side| !side.has_peak);
    match missing {
        [false, false] => String::new(),
        _ => "\nthe plan file does not list the holders of the peak; plan files of this version do\n"
            .to_string(),
    }
}

/// The value that changed, and its shapes before and after.
pub(super) fn lines(change: &ValueChange) -> [String; 2] {
    let was = change.operation_before.as_ref().map(|was| format!(", was {was}"));
    let source = change.source.as_ref().map(|source| format!(" {source}"));
    let name = format!(
        "{}{} ({}){}",
        change.operation,
        was.unwrap_or_default(),
        change.class,
        source.unwrap_or_default()
    );
    let times = |count: usize| if count == 1 { String::new() } else { format!("{count} x ") };
    let held = match (&change.before, &change.after) {
        (Some(a), Some(b)) if a.shape == b.shape => {
            format!("{} of {}, were {}", count(b.count, "value"), b.shape, a.count)
        }
        (Some(a), Some(b)) => {
            let like = if change.matched == Matched::Shape { " (by shape)" } else { "" };
            format!("{}{} -> {}{}{like}", times(a.count), a.shape, times(b.count), b.shape)
        }
        (None, Some(b)) => format!("new: {}{}", times(b.count), b.shape),
        (Some(a), None) => format!("gone: {}{}", times(a.count), a.shape),
        (None, None) => String::new(),
    };
    [name, held]
}

fn sum(changes: &[ValueChange]) -> i128 {
    changes.iter().map(ValueChange::bytes).sum()
}
