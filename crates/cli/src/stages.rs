//! The price of each stage of `compile`, and its decisions.

use std::fmt::{Display, Write as _};

use comfy_table::{CellAlignment, Table, presets};
use memplan::Compiled;
use memplan::advice::explain::why_inserted;
use memplan::driver::{StageReport, TriedPrograms, TriedSchedule};
use memplan::fast_memory::{FastMemoryEntry, FastMemoryReport, Residence};
use memplan::passes::{BandsReport, CopyReport, FusionReport, Halo, RematReport, Report, ResidualsReport};

use crate::time::{change_in_percent, duration};

/// Tables the bytes after each stage, and the time of a run by the cost model.
pub(crate) fn table(compiled: &Compiled, timings: bool) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut header = vec!["stage", "total", "", "a run", ""];
    header.extend(timings.then_some("time"));
    table.set_header(&header);
    let (mut bytes, mut seconds) = (None, None);
    for stage in &compiled.stages {
        let total = stage.total.map(|total| total.0 as f64);
        // A machine without speeds takes no time.
        let run = stage.seconds.filter(|&seconds| seconds > 0.0);
        let mut row = vec![
            stage.name.to_string(),
            stage.total.map_or_else(String::new, |total| total.to_string()),
            change(bytes, total),
            run.map_or_else(String::new, duration),
            change(seconds, run),
        ];
        (bytes, seconds) = (total.or(bytes), run.or(seconds));
        if timings {
            row.push(format!("{:.1} ms", stage.time.as_secs_f64() * 1e3));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

/// The growth in percent.
fn change(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => change_in_percent(before, after),
        _ => String::new(),
    }
}

/// The verdict on every edge of the program that was compiled.
pub(crate) fn explain_fusion(report: &FusionReport) -> String {
    format!("\nfusion, edge by edge\n\n{}", report.to_text())
}

/// Lists the decisions of each stage, except the verdicts on edges.
pub(crate) fn explain(compiled: &Compiled) -> String {
    let mut text = "\ndecisions of the stages\n".to_string();
    for stage in &compiled.stages {
        let decided = match &stage.report {
            StageReport::Passes(runs) => {
                runs.iter().filter_map(|run| run.report.as_ref()).map(of_pass).collect()
            }
            StageReport::Schedules(tried) => tried.iter().map(of_schedule).collect(),
            StageReport::Programs(tried) => of_programs(tried),
            StageReport::FastMemory(report) => fast_memory(report),
            _ => String::new(),
        };
        if !decided.is_empty() {
            write!(text, "\n{}\n{decided}", stage.name).expect("strings can be written to");
        }
    }
    text
}

fn of_pass(report: &Report) -> String {
    let text = report.downcast_ref().map(recomputed);
    let text = text.or_else(|| report.downcast_ref().map(residuals));
    let text = text.or_else(|| report.downcast_ref().map(bands));
    text.or_else(|| report.downcast_ref().map(copies)).unwrap_or_default()
}

fn recomputed(report: &RematReport) -> String {
    let peaks = report.peaks.iter().map(|peak| {
        format!("  the peak of `{}` falls from {} to {}", peak.computation, peak.before, peak.after)
    });
    let values = report.values.iter().map(|value| {
        format!(
            "  `{}` is recomputed: {}, {}, {:.0} operations",
            value.value,
            value.bytes,
            times(value.uses, "use"),
            value.operations
        )
    });
    lines(peaks.chain(values))
}

fn residuals(report: &ResidualsReport) -> String {
    lines(report.pairs.iter().map(|pair| {
        let rows: Vec<String> = pair.recomputed.iter().map(|row| format!("`{row}`")).collect();
        format!(
            "  `{}` keeps {} for `{}` instead of {}; each of its {} steps recomputes {}",
            pair.producer,
            pair.after,
            pair.consumer,
            pair.before,
            pair.steps,
            rows.join(", ")
        )
    }))
}

fn bands(report: &BandsReport) -> String {
    let parts = report.parts.iter().map(|part| {
        let from = part.from.as_ref().map_or("the arguments".to_string(), |from| format!("`{from}`"));
        let halo = match part.halo {
            Halo::Kept => "keeps rows that the next band needs",
            Halo::Narrow => "keeps narrow rows that the next band needs, and computes the others again",
            Halo::Recomputed => "computes again rows that it needs of the band before",
        };
        let in_loop =
            if part.in_loop > 0 { format!(", {} of them in a loop", part.in_loop) } else { String::new() };
        format!(
            "  from {from} to `{}` in {} bands of {}{in_loop}; each {halo}",
            part.to,
            part.bands,
            times(part.rows as u32, "row"),
        )
    });
    let estimate = format!("  about {} instead of {} at the peak", report.after, report.before);
    lines(parts.chain([estimate]))
}

fn copies(report: &CopyReport) -> String {
    let more = (report.unlisted > 0).then(|| format!("and {} more copies", report.unlisted));
    let listed = report.copies.iter().map(|copy| {
        format!("  `{}` copies `{}`, {}: {}", copy.copy, copy.source, copy.bytes, why_inserted(copy))
    });
    lines(listed.chain(more))
}

fn fast_memory(report: &FastMemoryReport) -> String {
    let described = |entry: &FastMemoryEntry| {
        let index = if entry.index.0.is_empty() { String::new() } else { entry.index.to_string() };
        let residence = match entry.residence {
            Residence::Main => "is in main memory; in fast memory it would save",
            Residence::Pinned => "is pinned, which saves",
            Residence::Prefetched => "is prefetched, which saves",
            Residence::Evicted => "is evicted, which saves",
            Residence::Resident => "stays from call to call, which saves",
            Residence::Slice => "has a slice prefetched, which saves",
            Residence::PipelinedSlice => "has a slice prefetched one iteration ahead, which saves",
            _ => "saves",
        };
        let FastMemoryEntry { name, bytes, saved, .. } = entry;
        format!("  `{name}{index}`, {bytes}, {residence} {saved:.0} bytes of traffic")
    };
    let copies = format!(
        "  {} of fast memory, {} copies in, {} out; {:.0} bytes of traffic, at least {:.0}",
        report.height, report.prefetches, report.evictions, report.traffic, report.lower_bound
    );
    lines(std::iter::once(copies).chain(report.assigned.iter().chain(&report.refused).map(described)))
}

fn of_schedule(tried: &TriedSchedule) -> String {
    let chosen = if tried.is_chosen { ", chosen" } else { "" };
    let computations = tried.computations.iter().map(|(name, of)| {
        let candidates: Vec<String> =
            of.candidates.iter().map(|(method, peak)| format!("{method:?} {peak}")).collect();
        let proof = if of.is_optimal { ", proved minimal" } else { "" };
        format!("    `{name}`: {} from {:?}{proof}; tried {}", of.peak, of.chosen, candidates.join(", "))
    });
    format!("  a schedule with at most {} live{chosen}\n{}", tried.peak, lines(computations))
}

fn of_programs(tried: &TriedPrograms) -> String {
    let chosen = |is_chosen| if is_chosen { ", chosen" } else { "" };
    let guesses = tried.guesses.iter().map(|of| {
        let total = of.total.map_or_else(String::new, |total| format!(": {total} in a quick plan"));
        format!("  first guess {:?}{total}{}", of.guess, chosen(of.is_chosen))
    });
    let programs = tried.programs.iter().map(|of| {
        let price = of
            .price
            .map_or_else(String::new, |price| format!(": {}, {:.3} ms", price.total, price.seconds * 1e3));
        let fusion = of.fusion.unwrap_or("no fusion");
        format!("  {}, {:?}, {fusion}{price}{}", of.variant, of.guess, chosen(of.is_chosen))
    });
    lines(guesses.chain(programs))
}

fn times(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn lines(of: impl Iterator<Item = impl Display>) -> String {
    of.map(|line| format!("{line}\n")).collect()
}
