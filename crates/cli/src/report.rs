//! The report that people read.

use comfy_table::{CellAlignment, Table, presets};
use memplan::analysis::{Facts, operation, user_frame};
use memplan::codegen::layout::Padding;
use memplan::ir::{InstructionId, Module, Position, Shape};
use memplan::memory::parallel::arguments_per_device;
use memplan::memory::{AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Target};
use memplan::plan::{KeptBy, PeakReport, peak_report};
use memplan::{codegen, hlo};

use crate::input::JAX_RECIPE;
use crate::screen::Screen;
use crate::{picture, time};

/// Characters of a size.
const SIZE: usize = 12;

/// Most buffers to list. Those after them are summed up.
const MAX_BUFFERS: usize = 16;

/// One byte in this many is enough padding to speak of.
const NOTEWORTHY_PADDING: u64 = 50;

/// Most shapes to show the padding of.
const MAX_PADDED_SHAPES: usize = 4;

/// Totals, the picture, the largest buffers at the peak.
pub fn render(
    module: &Module,
    target: &Target,
    facts: &Facts,
    plan: &MemoryPlan,
    per_device: Option<Bytes>,
    screen: Screen,
) -> String {
    let peak = peak_report(module, facts, plan);
    let mut text = screen.heading(&format!("{} on {}", module.name, target.name)) + "\n\n";
    text.push_str(&totals(plan));
    text.push_str(&bound(plan));
    text.push_str(&fits(target, plan, screen));
    text.push_str(&time::line(module, facts, target));
    text.extend(per_device.map(whole_program));
    text.push_str(&worst_padding(module, target, facts, plan));
    // The peak counts every memory, the totals above only the main one.
    let memories = match plan.spaces.iter().filter(|space| space.total > Bytes::ZERO).count() {
        0 | 1 => "",
        _ => " in all memories",
    };
    let title = screen.heading(&format!("bytes live{memories} over the program"));
    text.push_str(&format!("\n{title}\n\n"));
    text.push_str(&picture::draw(&peak.curve, peak.time as usize, screen));
    let title = screen.heading(&format!("live at the peak: {}{memories}", peak.bytes));
    let at = &module.instructions[peak.instruction].name;
    text.push_str(&format!("\n{title} while `{at}` runs\n\n"));
    text.push_str(&buffers(module, plan, &peak, screen));
    text.push_str(&without_lines(module));
    screen.wrap(&text)
}

fn totals(plan: &MemoryPlan) -> String {
    let t = &plan.totals;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let rows: [(&str, Bytes, &str); 6] = [
        ("arguments", t.arguments, "what the caller passes"),
        ("outputs", t.outputs, "what the caller gets"),
        ("aliased", t.aliased, "outputs that live in donated arguments"),
        ("constants", t.constants, "data too large to be part of the code"),
        ("temp", t.temp, "the arena for everything else"),
        ("total", t.total, "all of it, aliased bytes once"),
    ];
    for (name, bytes, note) in rows {
        table.add_row([name.to_string(), bytes.to_string(), format!("{bytes:#}"), note.to_string()]);
    }
    for column in [1, 2] {
        table.column_mut(column).expect("four columns").set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

/// How far the arena is from what its schedule makes necessary.
fn bound(plan: &MemoryPlan) -> String {
    let t = &plan.totals;
    let proved = plan.spaces.first().is_some_and(|space| space.proved_minimal);
    let distance = match (t.temp, t.fragmentation) {
        (Bytes(0), _) => "no arena is needed".to_string(),
        (_, Bytes(0)) => "the arena is as small as this schedule allows: proved".to_string(),
        (_, _) if proved => "no packing is smaller: proved".to_string(),
        (temp, extra) => format!(
            "the arena is {extra} ({:.2} %) above the most temp bytes live at once",
            100.0 * extra.0 as f64 / temp.0 as f64
        ),
    };
    let padding = match t.padding {
        Bytes(0) => String::new(),
        padding => format!("; layouts pad {padding}"),
    };
    format!("\n{distance}{padding}\n")
}

/// The shapes that lose most bytes to padding, and what would make them lose less; nothing where it is little.
fn worst_padding(module: &Module, target: &Target, facts: &Facts, plan: &MemoryPlan) -> String {
    if plan.totals.padding.0 < plan.totals.total.0 / NOTEWORTHY_PADDING {
        return String::new();
    }
    let mut text = String::from("\nlost to padding in one buffer, and what would lose less\n\n");
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
        // Whether the parts fit their tiles is not a question of the sum.
        if target.tiles.is_some() && space.space == MemorySpaceId::MAIN {
            continue;
        }
        let Some(capacity) = space.capacity else { continue };
        let reserved = target.space(space.space).map_or(Bytes::ZERO, |s| s.reserved);
        let available = capacity.saturating_sub(reserved);
        let needed = space.total;
        let verdict = match needed <= available {
            true => screen.good(&format!("fits, {} to spare", available.saturating_sub(needed))),
            false => screen.bad(&format!("does NOT fit, {} too much", needed.saturating_sub(available))),
        };
        text.push_str(&format!("{} of {available} of {}: {verdict}\n", needed, space.name));
    }
    text
}

/// Figures of a program that will be partitioned are of all devices together.
fn whole_program(per_device: Bytes) -> String {
    format!(
        "not partitioned yet: these are figures of the whole program; cut as their shardings say, the arguments take \
         {per_device} on each device ({per_device:#} bytes)\n"
    )
}

/// Bytes of the arguments on each device, for programs that will be partitioned. What has a schedule was partitioned
/// before.
pub(crate) fn per_device(module: &Module, target: &Target) -> Option<Bytes> {
    if module.is_scheduled { None } else { arguments_per_device(module, target) }
}

/// A number of things.
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Where no operation says from which line of the program it comes: how to get a module that does.
fn without_lines(module: &Module) -> String {
    match module.instructions.keys().any(|id| user_frame(module, id).is_some()) {
        true => String::new(),
        false => {
            format!("\nno operation of this module says where in the program it comes from: {JAX_RECIPE}\n")
        }
    }
}

/// Two lines a buffer: what it is, and why it is there.
fn buffers(module: &Module, plan: &MemoryPlan, peak: &PeakReport, screen: Screen) -> String {
    let mut text = String::new();
    for buffer in peak.buffers.iter().take(MAX_BUFFERS) {
        let name = name_at(module, &buffer.position);
        let room = screen.width.saturating_sub(SIZE + 4 + name.chars().count());
        let shape = shorten(&shape_at(module, &buffer.position), room.max(16));
        text.push_str(&format!("{:>SIZE$}  {name}  {shape}\n", buffer.slice.size.to_string()));
        let why = format!("{}, kept by {}", place(plan, buffer.slice), kept_by(module, buffer.kept_by));
        let room = screen.width.saturating_sub(SIZE + 4 + why.chars().count());
        let origin = shorten(&origin(module, buffer.position.instruction), room);
        let line = format!("{:SIZE$}  {why}  {origin}", "");
        text.push_str(&format!("{}\n", screen.faint(line.trim_end())));
    }
    let rest = peak.buffers.get(MAX_BUFFERS..).unwrap_or_default();
    if !rest.is_empty() {
        let bytes = rest.iter().map(|buffer| buffer.slice.size).fold(Bytes::ZERO, Bytes::saturating_add);
        text.push_str(&format!("and {}, {bytes} together\n", count(rest.len(), "smaller one")));
    }
    text
}

/// What has a buffer at a position: an array, or the table of a tuple, whose elements may be many.
pub fn shape_at(module: &Module, position: &Position) -> String {
    match module.shape(position.instruction).subshape(&position.index) {
        Some(Shape::Tuple(elements)) => format!("table of {}", elements.len()),
        Some(shape) => hlo::shape_text(shape),
        None => String::new(),
    }
}

/// An instruction, and where in its result.
pub(crate) fn name_at(module: &Module, position: &Position) -> String {
    let name = &module.instructions[position.instruction].name;
    match position.index.is_root() {
        true => name.to_string(),
        false => format!("{name}{}", position.index),
    }
}

fn place(plan: &MemoryPlan, slice: memplan::memory::Slice) -> String {
    match &plan.allocations[slice.allocation].kind {
        AllocationKind::Argument { parameter, index } if index.is_root() => format!("argument {parameter}"),
        AllocationKind::Argument { parameter, index } => format!("argument {parameter}{index}"),
        AllocationKind::Output => "output".to_string(),
        AllocationKind::Constant => "constant".to_string(),
        AllocationKind::Temp if plan.allocations[slice.allocation].space == MemorySpaceId::MAIN => {
            format!("temp +{}", slice.offset.0)
        }
        AllocationKind::Temp => {
            let space = plan.allocations[slice.allocation].space;
            let name = plan.spaces.iter().find(|totals| totals.space == space).map_or("temp", |s| &s.name);
            format!("{name} +{}", slice.offset.0)
        }
    }
}

/// Framework operation and source line.
fn origin(module: &Module, instruction: InstructionId) -> String {
    let name = operation(module, instruction);
    match user_frame(module, instruction) {
        Some(location) => format!("{name} {location}"),
        None => name.to_string(),
    }
}

/// The end of a long name, which says most; nothing where there is no room for any.
fn shorten(name: &str, width: usize) -> String {
    let n = name.chars().count();
    if n <= width {
        name.to_string()
    } else if width < 8 {
        String::new()
    } else {
        format!("…{}", name.chars().skip(n + 1 - width).collect::<String>())
    }
}

fn kept_by(module: &Module, kept_by: KeptBy) -> String {
    let name = |id: InstructionId| shorten(&module.instructions[id].name, 28);
    match kept_by {
        KeptBy::Caller => "the caller".to_string(),
        KeptBy::Result => "being a result".to_string(),
        KeptBy::Constant => "being constant".to_string(),
        KeptBy::Loop(id) => format!("the loop, {}", name(id)),
        KeptBy::Reader(id) => name(id),
    }
}
