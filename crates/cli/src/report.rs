//! The report that people read.

use comfy_table::{CellAlignment, Table, presets};
use memplan::advice::{Words, peaks};
use memplan::analysis::{Facts, Sources};
use memplan::codegen;
use memplan::codegen::layout::Padding;
use memplan::ir::{Module, Position};
use memplan::memory::{Bytes, MemoryPlan, MemorySpaceId, Target};
use memplan::plan::Planned;

use crate::holders::{self, PeakOptions};
use crate::input::JAX_RECIPE;
use crate::screen::Screen;
use crate::time;
use crate::verdict::may_fit;

/// Padding is reported from one byte in this many.
const NOTEWORTHY_PADDING: u64 = 50;

/// The most shapes whose padding is shown.
const MAX_PADDED_SHAPES: usize = 4;

/// Totals, and for each memory the curve and the holders of the peak.
pub fn render(
    module: &Module,
    target: &Target,
    planned: &Planned,
    options: &PeakOptions,
    screen: Screen,
) -> String {
    let Planned { facts, plan, .. } = planned;
    let mut text = screen.heading(&format!("{} on {}", module.name, target.name)) + "\n\n";
    text.push_str(&totals(plan));
    text.push_str(&bound(plan));
    text.push_str(&fits(target, plan, screen));
    text.push_str(&time::line(module, planned, target));
    text.push_str(&worst_padding(module, target, facts, plan));
    let words = Words::new(module, facts);
    for peak in peaks(&words, planned) {
        text.push_str(&holders::section(module, plan, &peak, options, screen));
    }
    text.push_str(&without_lines(module));
    screen.wrap(&text)
}

fn totals(plan: &MemoryPlan) -> String {
    let t = &plan.totals;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let rows: [(&str, Bytes, &str); 6] = [
        ("arguments", t.arguments, "passed by the caller"),
        ("outputs", t.outputs, "returned to the caller"),
        ("aliased", t.aliased, "outputs that live in donated arguments"),
        ("constants", t.constants, "data too large to embed in the code"),
        ("temp", t.temp, "the arena for everything else"),
        ("total", t.total, "the sum, aliased bytes counted once"),
    ];
    for (name, bytes, note) in rows {
        table.add_row([name.to_string(), bytes.to_string(), format!("{bytes:#}"), note.to_string()]);
    }
    for column in [1, 2] {
        table.column_mut(column).expect("four columns").set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

/// The distance of the plan from its lower bounds: over all plans for its schedule, and over all packings of its arena.
fn bound(plan: &MemoryPlan) -> String {
    let t = &plan.totals;
    let is_least_packing = plan.spaces.first().is_some_and(|space| space.proved_minimal);
    let percent = |part: Bytes, of: Bytes| 100.0 * part.0 as f64 / of.0 as f64;
    let mut distance = match (t.temp, t.fragmentation) {
        (Bytes(0), _) => "no arena is needed".to_string(),
        _ if t.total == t.total_lower_bound => "proved: no plan for this schedule needs less".to_string(),
        (_, Bytes(0)) => "the arena is full at its peak".to_string(),
        _ if is_least_packing => "proved: no packing of the arena is smaller".to_string(),
        (temp, extra) => {
            format!(
                "the arena is {extra} ({:.2} %) larger than the peak of live temp bytes",
                percent(extra, temp)
            )
        }
    };
    // Older plan files have no such bound.
    if t.temp > Bytes::ZERO && t.total_lower_bound < t.total && t.total_lower_bound > Bytes::ZERO {
        let (bound, above) = (t.total_lower_bound, t.total.saturating_sub(t.total_lower_bound));
        distance.push_str(&format!(
            "; every plan for this schedule needs at least {bound}, {above} ({:.2} %) less",
            percent(above, t.total)
        ));
    }
    let padding = match t.padding {
        Bytes(0) => String::new(),
        padding => format!("; layouts add {padding} of padding"),
    };
    format!("\n{distance}{padding}\n")
}

/// The shapes that lose most bytes to padding, with remedies; empty if there is little padding.
fn worst_padding(module: &Module, target: &Target, facts: &Facts, plan: &MemoryPlan) -> String {
    if plan.totals.padding.0 < plan.totals.total.0 / NOTEWORTHY_PADDING {
        return String::new();
    }
    let mut text = String::from("\nbytes lost to padding in one buffer, and remedies\n\n");
    for padding in codegen::layout::layout(module, facts, target, plan).padding.iter().take(MAX_PADDED_SHAPES)
    {
        let Padding { shape, buffers, size, lost, remedies } = padding;
        text.push_str(&format!(
            "{:>11} of {size}  {shape} ({})\n",
            lost.to_string(),
            count(buffers.len(), "buffer")
        ));
        for remedy in remedies.iter().take(2) {
            text.push_str(&format!("{:>11} {remedy}\n", ""));
        }
    }
    text
}

fn fits(target: &Target, plan: &MemoryPlan, screen: Screen) -> String {
    let mut text = String::new();
    for space in &plan.spaces {
        // Tiles are checked one by one, not by their sum.
        if target.tiles.is_some() && space.space == MemorySpaceId::MAIN {
            continue;
        }
        let Some(capacity) = space.capacity else { continue };
        let reserved = target.space(space.space).map_or(Bytes::ZERO, |s| s.reserved);
        let available = capacity.saturating_sub(reserved);
        let needed = space.total;
        let verdict = match needed <= available {
            true => screen.good(&format!("fits, {} to spare", available.saturating_sub(needed))),
            false if may_fit(space, available) => {
                let extra = needed.saturating_sub(available);
                format!("{extra} too much in this packing, although the peak of live bytes fits")
            }
            false => screen.bad(&format!("does NOT fit, {} too much", needed.saturating_sub(available))),
        };
        text.push_str(&format!("{} of {available} of {}: {verdict}\n", needed, space.name));
    }
    text
}

/// A count with its noun.
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// If no operation has a source line: how to get a module with lines.
fn without_lines(module: &Module) -> String {
    let sources = Sources::new(module);
    match module.instructions.keys().any(|id| sources.innermost(id).is_some()) {
        true => String::new(),
        false => {
            format!("\nthe operations of this module have no source lines: {JAX_RECIPE}\n")
        }
    }
}

/// An instruction, and an index into its result.
pub(crate) fn name_at(module: &Module, position: &Position) -> String {
    let name = &module.instructions[position.instruction].name;
    match position.index.is_root() {
        true => name.to_string(),
        false => format!("{name}{}", position.index),
    }
}
