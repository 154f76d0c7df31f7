//! Fast memory as libtpu assigned it, and as memplan does, for the TPU programs of a corpus.
//!
//! ```text
//! cargo run --release --example compare_fast_memory -- ../shared/corpus [PROGRAM]... > docs/fast_memory.md
//! ```
//!
//! Each `tpu.hlo.txt` is taken with its schedule. Its fast memory assignment is taken out (`strip_fast_memory`),
//! and ours is put in. Both programs, and the one in between, are followed by the same cost model; our plan is
//! proved by the checker, and values and the scratch of kernels never take more than the fast memory has.

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use memplan::analysis::{CallGraph, Costs, InPlace, RunEstimate};
use memplan::fast_memory::{FastMemoryOptions, FastMemoryReport};
use memplan::ir::{self, Module};
use memplan::memory::{Bytes, Target};
use memplan::passes::strip_fast_memory;
use memplan::plan::{self, PlanOptions};
use memplan::{assign_fast_memory, check, hlo};

struct Row {
    name: String,
    /// Seconds by libtpu's own estimate: the cycles that it writes at each kernel, as often as that runs.
    said: f64,
    theirs: RunEstimate,
    stripped: RunEstimate,
    ours: RunEstimate,
    /// Seconds if main memory was as fast as the fast one.
    least: f64,
    report: FastMemoryReport,
    seconds: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let corpus = arguments.next().ok_or("usage: compare_fast_memory CORPUS [PROGRAM]...")?;
    let wanted: Vec<String> = arguments.collect();
    let target = Target::find("tpu-v5e")?;
    let options = FastMemoryOptions::for_target(&target).ok_or("the target has no fast memory")?;
    let mut names: Vec<String> = std::fs::read_dir(&corpus)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| wanted.is_empty() || wanted.contains(name))
        .filter(|name| Path::new(&corpus).join(name).join("tpu.hlo.txt").exists())
        .collect();
    names.sort();
    let mut rows = Vec::new();
    for name in names {
        match row(&corpus, &name, &target, &options) {
            Ok(row) => rows.push(row),
            Err(error) if !wanted.is_empty() => return Err(error),
            Err(error) => eprintln!("{name}: {error}"),
        }
    }
    write_table(&rows, &options);
    Ok(())
}

fn row(
    corpus: &str,
    name: &str,
    target: &Target,
    options: &FastMemoryOptions,
) -> Result<Row, Box<dyn Error>> {
    let text = std::fs::read_to_string(Path::new(corpus).join(name).join("tpu.hlo.txt"))?;
    let mut module = hlo::parse(&text)?;
    ir::verify(&module)?;
    let theirs = estimate(&module, target)?;
    let said = libtpu_seconds(&module, target)?;
    strip_fast_memory(&mut module, target)?;
    prove(&module, target).map_err(|error| format!("without fast memory: {error}"))?;
    let stripped = estimate(&module, target)?;
    let least = estimate(&module, &with_fast_main_memory(target))?.seconds;
    let start = Instant::now();
    let report = assign_fast_memory(&mut module, target, options)?;
    let seconds = start.elapsed().as_secs_f64();
    prove(&module, target)?;
    if report.height > Bytes(options.capacity) {
        return Err(format!("{} of fast memory", report.height).into());
    }
    let ours = estimate(&module, target)?;
    Ok(Row { name: name.into(), said, theirs, stripped, ours, least, report, seconds })
}

/// Cycles a second of a TPU v5e.
const CLOCK: f64 = 1.5e9;

fn libtpu_seconds(module: &Module, target: &Target) -> Result<f64, Box<dyn Error>> {
    let graph = CallGraph::new(module)?;
    let costs = Costs::new(module, &graph, &InPlace::new(module), target);
    let mut seconds = 0.0;
    for computation in module.computations.keys() {
        for (_, instruction) in module.instructions_of(computation) {
            let Some(config) = &instruction.backend_config else { continue };
            let config: serde_json::Value = serde_json::from_slice(config).unwrap_or_default();
            let cycles = config["window_config"]["estimated_cycles"]
                .as_str()
                .and_then(|cycles| cycles.parse::<f64>().ok());
            // libtpu writes a number without meaning where it does not know.
            let cycles = cycles.filter(|&cycles| cycles < 1e15).unwrap_or(0.0);
            seconds += costs.frequency(computation) * cycles / CLOCK;
        }
    }
    Ok(seconds)
}

/// No assignment of fast memory makes a program faster than this machine would.
fn with_fast_main_memory(target: &Target) -> Target {
    let mut target = target.clone();
    let fast = target.fast_memory.expect("a target with fast memory").space;
    let fast =
        target.spaces.iter().find(|space| space.id == fast).expect("the fast memory is listed").clone();
    let main = &mut target.spaces[0];
    (main.bandwidth, main.kernel_share, main.latency) = (fast.bandwidth, fast.kernel_share, fast.latency);
    target
}

fn estimate(module: &Module, target: &Target) -> Result<RunEstimate, Box<dyn Error>> {
    let graph = CallGraph::new(module)?;
    let costs = Costs::new(module, &graph, &InPlace::new(module), target);
    Ok(RunEstimate::new(module, &graph, &costs, target))
}

/// Programs that are over sooner are counted apart: their time is that of starting kernels.
const LONG: f64 = 5e-4;

/// The verifier accepts the module, a plan can be made, and the checker proves it.
fn prove(module: &Module, target: &Target) -> Result<(), Box<dyn Error>> {
    ir::verify(module)?;
    let planned = plan::plan(module, target, &PlanOptions::default())?;
    check::check(module, &planned.schedule, target, &planned.plan).map_err(|violations| {
        violations.iter().take(5).map(ToString::to_string).collect::<Vec<_>>().join("; ")
    })?;
    Ok(())
}

fn write_table(rows: &[Row], options: &FastMemoryOptions) {
    let mut out = String::from("# Fast memory: memplan and libtpu\n\n");
    out += "Written by `cargo run --release --example compare_fast_memory -- ../shared/corpus`; do not edit.\n\n";
    out += &format!(
        "Each `tpu.hlo.txt` of the corpus, scheduled by libtpu 0.0.51 for a TPU v5e, once with libtpu's own \
         assignment of VMEM and once, after that was taken out, with memplan's. Ours may use {:.0} MiB together with \
         the scratch that each kernel reserves there while it runs. The cost model is memplan's for both: MB are \
         bytes (10^6) that move between HBM and the cores in one run, transfers included, loops as often as they run; µs are estimated time. *libtpu says* is the sum of \
         the cycles that libtpu itself estimates for its kernels, at 1.5 GHz; *least* the time if HBM was as fast as VMEM, below which no \
         assignment comes. *naked* is the program with \
         everything in HBM, *next call* what ours moves when a parameter is still there from the call before, *bound* the least that any assignment under this schedule could move, as a share of \
         what ours does.\n\n",
        options.capacity as f64 / f64::from(1 << 20)
    );
    out += "| program | naked MB | libtpu MB | ours MB | ratio | next call MB | bound | libtpu says µs | libtpu µs | ours µs | ratio | least | VMEM MiB | copies in / out |\n";
    out += "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    let (mut bytes, mut time, mut least) = (0.0, 0.0, 0.0);
    let mut long: Vec<f64> = Vec::new();
    for row in rows {
        let ratio = row.ours.main_memory_bytes / row.theirs.main_memory_bytes;
        let faster = row.ours.seconds / row.theirs.seconds;
        bytes += ratio.ln();
        time += faster.ln();
        least += (row.least / row.theirs.seconds).ln();
        if row.theirs.seconds >= LONG {
            long.push(faster.ln());
        }
        out += &format!(
            "| {} | {:.2} | {:.2} | {:.2} | {ratio:.3} | {:.2} | {:.3} | {:.1} | {:.1} | {:.1} | {faster:.3} | {:.3} | {:.1} | {} / {} |\n",
            row.name,
            row.stripped.main_memory_bytes / 1e6,
            row.theirs.main_memory_bytes / 1e6,
            row.ours.main_memory_bytes / 1e6,
            row.ours.steady_bytes() / 1e6,
            row.report.lower_bound / row.report.traffic.max(f64::MIN_POSITIVE),
            row.said * 1e6,
            row.theirs.seconds * 1e6,
            row.ours.seconds * 1e6,
            row.least / row.theirs.seconds,
            row.report.height.0 as f64 / f64::from(1 << 20),
            row.report.prefetches,
            row.report.evictions,
        );
        eprintln!("{}: {:.3} s", row.name, row.seconds);
    }
    let n = rows.len().max(1) as f64;
    out += &format!(
        "\nGeometric means over {} programs: HBM bytes {:.4}, time {:.4} (least {:.4}); time of the {} that take {} µs \
         and more: {:.4}.\n",
        rows.len(),
        (bytes / n).exp(),
        (time / n).exp(),
        (least / n).exp(),
        long.len(),
        LONG * 1e6,
        (long.iter().sum::<f64>() / long.len().max(1) as f64).exp()
    );
    print!("{out}");
}
