//! The part of the report for machines with tiles: how full they are, their contents, and the holders of the fullest
//! tile.

use std::fmt::Write as _;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use memplan::analysis::Facts;
use memplan::hlo;
use memplan::ipu::{
    IpuError, IpuOptions, Placement, PlacementError, TilePlan, What, plan_pipeline, plan_tiles,
};
use memplan::ir::Module;
use memplan::memory::{Bytes, Target, TileReport, TileStage, Tiles};

use crate::failure::Failure;
use crate::input::read_text;
use crate::needless::{given, refuse};

/// Bars of the histogram.
const N_BARS: u64 = 10;

/// Characters of the longest bar.
const BAR_WIDTH: u64 = 40;

/// The most of the fullest tiles to list.
const N_TOP: usize = 5;

/// The most contents of the fullest tile to list.
const N_HOLDERS: usize = 10;

/// Flags for machines with tiles.
#[derive(Args)]
pub(crate) struct TileOptions {
    /// Place tensors and vertices on tiles as listed in a file, e.g. `tensor, weights, 0..736`
    #[arg(long, value_name = "FILE")]
    placement: Option<String>,
    /// Put tensors into streaming memory outside the chip if the chip is too small; the report lists them, and the bytes
    /// that a run moves
    #[arg(long)]
    streaming: bool,
    /// Run one stage of a pipeline on each of this many chips (at most the target's `tiles.chips`)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ipus: u32,
    /// In a pipeline, keep only the inputs of each stage for its backward pass, and recompute the rest
    #[arg(long, requires = "ipus")]
    recompute: bool,
}

impl TileOptions {
    /// Rejects the flags for machines without tiles.
    pub(crate) fn check(&self, target: &Target) -> Result<(), Failure> {
        match &target.tiles {
            Some(_) => Ok(()),
            None => refuse(&self.given(), &format!("{} has no tiles", target.name)),
        }
    }

    /// The flags that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        given([
            ("--placement", self.placement.is_some()),
            ("--streaming", self.streaming),
            ("--ipus", self.ipus > 1),
            ("--recompute", self.recompute),
        ])
    }
}

/// The contents of every tile of every chip, and the user's placements.
pub(crate) struct Chips {
    pub(crate) plans: Vec<TilePlan>,
    placement: Placement,
}

/// Plans the contents of every tile of every chip; `None` for a machine without tiles.
pub(crate) fn plan(
    options: &TileOptions,
    module: &Module,
    target: &Target,
    facts: &Facts,
) -> Result<Option<Chips>, Failure> {
    let file = options.placement.as_deref();
    if target.tiles.is_none() {
        return Ok(None);
    }
    let text = file.map(read_text).transpose()?.unwrap_or_default();
    let show = |error: &PlacementError| {
        let name = file.unwrap_or_default();
        Failure::Input(hlo::render_message(&error.to_string(), error.span.clone(), name, &text))
    };
    let placement = Placement::parse(&text).map_err(|error| show(&error))?;
    match plan_chips(options, &placement, options.streaming, module, target, facts) {
        Ok(plans) => Ok(Some(Chips { plans, placement })),
        Err(IpuError::Placement(error)) => Err(show(&error)),
        Err(error @ IpuError::Chips { .. }) => Err(Failure::Usage(error.to_string())),
        Err(error) => Err(Failure::input(&error)),
    }
}

fn plan_chips(
    options: &TileOptions,
    placement: &Placement,
    streaming: bool,
    module: &Module,
    target: &Target,
    facts: &Facts,
) -> Result<Vec<TilePlan>, IpuError> {
    let tiles = IpuOptions { placement: placement.clone(), streaming, ..IpuOptions::default() };
    match options.ipus {
        1 => Ok(vec![plan_tiles(module, facts, target, &tiles)?]),
        chips => plan_pipeline(module, facts, target, chips, options.recompute, &tiles),
    }
}

/// Shows how full the tiles are: a line for each chip, details for the fullest.
pub(crate) fn render(module: &Module, chips: &Chips) -> String {
    let chips = &chips.plans;
    let mut text = String::new();
    if chips.len() > 1 {
        let _ = writeln!(text, "\n{} stages\n", chips.len());
        text.push_str(&stages(chips));
    }
    let Some((number, plan)) = fullest(chips) else { return text };
    let which = if chips.len() > 1 { format!(" of chip {number}, the fullest") } else { String::new() };
    let stage = plan.report();
    let _ = write!(text, "\ntiles{which}: {} of {:#} bytes\n\n", plan.machine.count, plan.machine.bytes);
    text.push_str(&fullness(plan, &stage));
    text.push_str("\nwhat for\n\n");
    text.push_str(&categories(&plan.machine, &stage));
    text.push_str("\ntiles by how full they are\n\n");
    text.push_str(&histogram(&stage));
    text.push_str(&holders(module, plan, stage.fullest));
    text.push_str(&off_chip(module, plan));
    text
}

/// Fails if something does not fit, and names it, the holders of the fullest tile, and remedies.
pub(crate) fn verdict(
    options: &TileOptions,
    module: &Module,
    target: &Target,
    facts: &Facts,
    chips: &Chips,
) -> Result<(), Failure> {
    let Chips { plans: chips, placement } = chips;
    let mut lines = Vec::new();
    for (number, plan) in chips.iter().enumerate() {
        let which = if chips.len() > 1 { format!("on chip {number}, ") } else { String::new() };
        lines
            .extend(plan.overflows(module).iter().map(|overflow| format!("does not fit: {which}{overflow}")));
    }
    if lines.is_empty() {
        return Ok(());
    }
    let mut text = format!("error: {}\n", lines.join("\n  "));
    if let Some((_, plan)) = fullest(chips) {
        text.push_str(&holders(module, plan, plan.report().fullest));
    }
    text.push_str(&advice(options, placement, module, target, facts));
    Err(Failure::DoesNotFit(text))
}

/// Whether streaming memory would help.
fn advice(
    options: &TileOptions,
    placement: &Placement,
    module: &Module,
    target: &Target,
    facts: &Facts,
) -> String {
    if options.streaming {
        return "\ninstructions that run together need more memory than the chip has; more chips (--ipus) may help\n".into();
    }
    match plan_chips(options, placement, true, module, target, facts) {
        Ok(chips) if chips.iter().all(|chip| chip.overflows(module).is_empty()) => {
            let (bytes, moved) = sum_off_chip(&chips);
            format!("\nwith --streaming it fits: {bytes} are outside the chip, and a run moves {moved}\n")
        }
        _ => "\nit does not fit with --streaming either; more chips (--ipus) may help\n".into(),
    }
}

fn sum_off_chip(chips: &[TilePlan]) -> (Bytes, Bytes) {
    chips.iter().map(TilePlan::off_chip).fold((Bytes::ZERO, Bytes::ZERO), |(bytes, moved), (more, moves)| {
        (bytes.saturating_add(more), moved.saturating_add(moves))
    })
}

/// The plan file's part about tiles.
pub(crate) fn summary(module: &Module, chips: &Chips) -> TileReport {
    let chips = &chips.plans;
    let (off_chip, streamed) = sum_off_chip(chips);
    TileReport {
        tile_bytes: chips.first().map_or(Bytes::ZERO, |plan| plan.machine.bytes),
        fits: chips.iter().all(|plan| plan.overflows(module).is_empty()),
        streamed,
        off_chip,
        stages: chips.iter().map(TilePlan::report).collect(),
    }
}

/// The first chip with the fullest tile.
fn fullest(chips: &[TilePlan]) -> Option<(usize, &TilePlan)> {
    chips.iter().enumerate().max_by_key(|(number, plan)| (plan.report().maximum, std::cmp::Reverse(*number)))
}

/// A line for each chip.
fn stages(chips: &[TilePlan]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "chip",
        "instructions",
        "fullest tile",
        "mean",
        "always live",
        "stashed",
        "micro-batches",
    ]);
    for (number, plan) in chips.iter().enumerate() {
        let stage = plan.report();
        let stashed = plan.tensors.all.values().filter(|tensor| tensor.copies > 1);
        let stashed = stashed.map(|tensor| Bytes(tensor.bytes().0.saturating_mul(tensor.copies)));
        table.add_row([
            number.to_string(),
            plan.steps.all.len().to_string(),
            format!("{:#}", stage.maximum),
            format!("{:#}", stage.mean),
            stage.all.always_live.to_string(),
            stashed.fold(Bytes::ZERO, Bytes::saturating_add).to_string(),
            plan.tensors.all.values().map(|tensor| tensor.copies).max().unwrap_or(1).to_string(),
        ]);
    }
    for column in 0..7 {
        table.column_mut(column).expect("seven columns").set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

/// The tensors outside the chip, the largest first.
fn off_chip(module: &Module, plan: &TilePlan) -> String {
    let mut outside: Vec<_> = plan.tensors.all.values().filter(|tensor| tensor.streamed.is_some()).collect();
    if outside.is_empty() {
        return String::new();
    }
    outside.sort_by_key(|tensor| (std::cmp::Reverse(tensor.bytes()), tensor.name.clone()));
    let (bytes, moved) = plan.off_chip();
    let mut text =
        format!("\nstreaming memory: {bytes} in {} tensors; a run moves {moved}\n\n", outside.len());
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for tensor in outside.iter().take(N_HOLDERS) {
        let moved = tensor.streamed.as_ref().map_or(Bytes::ZERO, |streaming| streaming.moved);
        table.add_row([
            tensor.bytes().to_string(),
            tensor.name.clone(),
            tensor.shape_text(),
            format!("moves {moved}"),
        ]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(text, "{}", table.trim_fmt());
    let mut phases: Vec<_> = plan.phases().map(|(id, phases)| (std::cmp::Reverse(phases), id)).collect();
    phases.sort_unstable();
    let named = phases
        .iter()
        .take(N_TOP)
        .map(|(phases, id)| format!("`{}` in {}", module.instructions[*id].name, phases.0));
    if !phases.is_empty() {
        let named: Vec<String> = named.collect();
        let _ = writeln!(text, "\n{} instructions run in phases: {}", phases.len(), named.join(", "));
    }
    text
}

fn fullness(plan: &TilePlan, stage: &TileStage) -> String {
    let percent = |bytes: Bytes| 100.0 * bytes.0 as f64 / plan.machine.bytes.0 as f64;
    let mut text = String::new();
    let verdict = match stage.maximum <= plan.machine.bytes {
        true => "it fits",
        false => "it does NOT fit",
    };
    let _ = writeln!(
        text,
        "fullest  {:#} bytes ({:.1} %) on tile {}: {verdict}",
        stage.maximum,
        percent(stage.maximum),
        stage.fullest
    );
    let _ = writeln!(text, "mean     {:#} bytes ({:.1} %)", stage.mean, percent(stage.mean));
    let _ = writeln!(text, "balance  {:.3} (mean over fullest)", stage.balance());
    let mut order: Vec<usize> = (0..stage.tiles.len()).collect();
    order.sort_by_key(|&tile| (std::cmp::Reverse(stage.tiles[tile]), tile));
    let top: Vec<String> =
        order.iter().take(N_TOP).map(|&tile| format!("{tile} ({:#})", stage.tiles[tile])).collect();
    let _ = writeln!(text, "top      {}", top.join(", "));
    let _ = writeln!(text, "packed   {} different tiles of {}", plan.n_problems(), stage.tiles.len());
    text
}

fn categories(machine: &Tiles, stage: &TileStage) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["", "fullest tile", "all tiles", ""]);
    let (fullest, all) = (&stage.at_fullest, &stage.all);
    let mut row = |name: &str, fullest: Bytes, all: Bytes, note: &str| {
        table.add_row([name.to_string(), format!("{fullest:#}"), format!("{all:#}"), note.to_string()]);
    };
    let room = match machine.code_bytes {
        Bytes::ZERO => String::new(),
        room => format!("; it must fit {room:#} bytes that are not interleaved"),
    };
    row("code", fullest.code, all.code, &format!("each codelet once, and calling it{room}"));
    row("vertex state", fullest.state, all.state, "pointers, lengths and work lists");
    row("always live", fullest.always_live, all.always_live, "parameters and constants");
    row("not always live", fullest.not_always_live, all.not_always_live, "everything else, packed by time");
    let note = "received and partial results of one instruction, at most";
    row("  of it exchange", fullest.exchange, all.exchange, note);
    row("total", fullest.total(), all.total(), "");
    for column in [1, 2] {
        table.column_mut(column).expect("four columns").set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

/// The number of tiles by fullness, from the emptiest to the fullest.
fn histogram(stage: &TileStage) -> String {
    let least = stage.tiles.iter().copied().min().unwrap_or_default().0;
    let step = (stage.maximum.0 - least) / N_BARS + 1;
    let bar_of = |tile: &Bytes| ((tile.0 - least) / step) as usize;
    let mut counts = vec![0u64; bar_of(&stage.maximum) + 1];
    for tile in &stage.tiles {
        counts[bar_of(tile)] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut text = String::new();
    for (i, &count) in (0..).zip(&counts) {
        let from = least + i * step;
        let (from, to) = (Bytes(from), Bytes(from.saturating_add(step - 1).min(stage.maximum.0)));
        let bar = "#".repeat((count * BAR_WIDTH).div_ceil(most) as usize);
        let line = format!("{from:>#11} to {to:>#11}  {count:>5}  {bar}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn holders(module: &Module, plan: &TilePlan, tile: u32) -> String {
    let (time, live) = plan.peak(tile);
    let at = plan
        .instruction_at(time)
        .map_or_else(String::new, |id| format!(" while `{}` runs", module.instructions[id].name));
    let mut text = format!("\ntile {tile} holds most{at}\n\n");
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for placed in live.iter().take(N_HOLDERS) {
        let (what, shape) = match placed.what {
            What::Code | What::State => ("", String::new()),
            What::Tensor(id) if plan.tensors.all[id].is_always_live() => {
                ("always live", plan.tensors.all[id].shape_text())
            }
            What::Tensor(id) => ("not always live", plan.tensors.all[id].shape_text()),
            What::Step(_) => ("exchange", String::new()),
        };
        table.add_row([
            format!("{:#}", placed.bytes),
            plan.name(module, placed.what),
            shape,
            what.to_string(),
        ]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(text, "{}", table.trim_fmt());
    let rest = live.get(N_HOLDERS..).unwrap_or_default();
    if !rest.is_empty() {
        let bytes = rest.iter().map(|placed| placed.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        let _ = writeln!(text, "and {} smaller ones, {bytes} together", rest.len());
    }
    text
}
