//! The report that people read.

use comfy_table::{CellAlignment, Table, presets};
use memplan::analysis::Facts;
use memplan::codegen::layout::Padding;
use memplan::ir::{InstructionId, Module, Position, Shape};
use memplan::memory::parallel::arguments_per_device;
use memplan::memory::{AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Target};
use memplan::plan::{KeptBy, PeakReport, peak_report};
use memplan::{codegen, hlo};

use crate::picture;

/// Most buffers to list. Those after them are summed up.
const MAX_BUFFERS: usize = 16;

/// One byte in this many is enough padding to speak of.
const NOTEWORTHY_PADDING: u64 = 50;

/// Most shapes to show the padding of.
const MAX_PADDED_SHAPES: usize = 4;

/// Totals, the picture, the largest buffers at the peak.
pub(crate) fn render(module: &Module, target: &Target, facts: &Facts, plan: &MemoryPlan) -> String {
    let peak = peak_report(module, facts, plan);
    let mut text = format!("{} on {}\n\n", module.name, target.name);
    text.push_str(&totals(plan));
    text.push_str(&bound(plan));
    text.push_str(&fits(target, plan));
    text.push_str(&worst_padding(module, target, facts, plan));
    text.push_str("\nbytes live over the program\n\n");
    text.push_str(&picture::draw(&peak.curve, peak.time as usize));
    text.push_str(&format!(
        "\nlive at the peak: {} while `{}` runs\n\n",
        peak.bytes, module.instructions[peak.instruction].name
    ));
    text.push_str(&buffers(module, plan, &peak));
    text
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
        ("total", t.total, "arguments + outputs - aliased + constants + temp"),
    ];
    for (name, bytes, note) in rows {
        table.add_row([name.to_string(), bytes.to_string(), format!("{bytes:#}"), note.to_string()]);
    }
    for column in [1, 2] {
        table.column_mut(column).expect("four columns").set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
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
        text.push_str(&format!("{:>11} of {size}  {shape} ({} buffers)\n", lost.to_string(), buffers.len()));
        for remedy in remedies.iter().take(2) {
            text.push_str(&format!("{:>11} {remedy}\n", ""));
        }
    }
    text
}

fn fits(target: &Target, plan: &MemoryPlan) -> String {
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
            true => format!("fits, {} to spare", available.saturating_sub(needed)),
            false => format!("does NOT fit, {} too much", needed.saturating_sub(available)),
        };
        text.push_str(&format!("{} of {available} of {}: {verdict}\n", needed, space.name));
    }
    text
}

/// What one device holds of the arguments, for programs that will be partitioned.
pub(crate) fn per_device(module: &Module, target: &Target) -> Option<String> {
    let bytes = arguments_per_device(module, target)?;
    Some(format!("cut as their shardings say, the arguments take {bytes} on each device ({bytes:#} bytes)\n"))
}

fn buffers(module: &Module, plan: &MemoryPlan, peak: &PeakReport) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "size",
        "where",
        "shape",
        "instruction",
        "operation",
        "kept by",
    ]);
    for buffer in peak.buffers.iter().take(MAX_BUFFERS) {
        table.add_row([
            buffer.slice.size.to_string(),
            place(plan, buffer.slice),
            shape_at(module, &buffer.position),
            name_at(module, &buffer.position),
            origin(module, buffer.position.instruction),
            kept_by(module, buffer.kept_by),
        ]);
    }
    table.column_mut(0).expect("six columns").set_cell_alignment(CellAlignment::Right);
    let mut text = format!("{table}\n");
    let rest = peak.buffers.get(MAX_BUFFERS..).unwrap_or_default();
    if !rest.is_empty() {
        let bytes = rest.iter().map(|buffer| buffer.slice.size).fold(Bytes::ZERO, Bytes::saturating_add);
        text.push_str(&format!("and {} smaller ones, {bytes} together\n", rest.len()));
    }
    text
}

/// What has a buffer at a position: an array, or the table of a tuple, whose elements may be many.
pub(crate) fn shape_at(module: &Module, position: &Position) -> String {
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
        AllocationKind::Temp => format!("temp +{}", slice.offset.0),
    }
}

/// Framework operation and source line.
fn origin(module: &Module, instruction: InstructionId) -> String {
    let Some(metadata) = &module.instructions[instruction].metadata else { return String::new() };
    let frames = &module.config.stack_frames;
    let frame =
        usize::try_from(metadata.stack_frame_id).ok().and_then(|id| frames.frames.get(id.checked_sub(1)?));
    let location = frame.and_then(|frame| {
        let location =
            frames.file_locations.get(usize::try_from(frame.file_location_id).ok()?.checked_sub(1)?)?;
        let file = frames.file_names.get(usize::try_from(location.file_name_id).ok()?.checked_sub(1)?)?;
        Some(format!("{file}:{}", location.line))
    });
    let written = (!metadata.source_file.is_empty())
        .then(|| format!("{}:{}", metadata.source_file, metadata.source_line));
    let name = shorten(&metadata.op_name, 44);
    match location.or(written) {
        Some(location) => format!("{name} {location}"),
        None => name,
    }
}

/// The end of a long name, which says most.
fn shorten(name: &str, width: usize) -> String {
    let n = name.chars().count();
    if n <= width {
        name.to_string()
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
