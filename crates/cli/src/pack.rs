//! `memplan pack`

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use memplan::memory::Bytes;
use memplan::pack::table::{Table, TableError};
use memplan::pack::{Options, Packing, Problem, Progress, Status, pack};

use crate::failure::Failure;
use crate::input::{read, render_at};
use crate::options::{Format, parse_bytes, parse_seconds};
use crate::output::{distinct, say, write_result};
use crate::progress;

#[derive(Args)]
pub(crate) struct PackArgs {
    /// CSV with `id,lower,upper,size` and optionally `alignment` and `offset` (fixed); `-` is standard input
    problem: String,
    /// Decide only whether everything fits into this many bytes, instead of finding the lowest height
    #[arg(long, value_name = "BYTES", value_parser = parse_capacity, allow_negative_numbers = true)]
    capacity: Option<Bytes>,
    /// Search this many steps (default: 250,000, some seconds), so that all machines give the same answer
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Search for this long, instead of a fixed number of steps
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "steps")]
    time_limit: Option<Duration>,
    /// File for the table with offsets (default: standard output)
    #[arg(short, long, value_name = "OUT.csv")]
    output: Option<String>,
    /// `text`: the table, with figures on standard error; `json`: figures instead of the table
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Packs a problem from a file.
pub(crate) fn run(args: &PackArgs) -> Result<(), Failure> {
    if args.output.is_some() && args.format == Format::Json {
        distinct([args.output.as_deref(), None])?;
    }
    let text = read(&args.problem)?;
    let mut table = Table::parse(&text).map_err(|error| {
        let TableError { line, column, kind } = &error;
        Failure::Input(render_at(*line, *column, kind, &args.problem, &text))
    })?;
    table.problem.capacity = args.capacity.map(|Bytes(capacity)| capacity);
    let bar = progress::spinner("packing");
    let shown = bar.clone();
    let options = Options {
        progress: Some(Arc::new(move |p: Progress| {
            shown.set_message(format!("height {}, at least {}, {} nodes", p.height, p.lower_bound, p.nodes));
        })),
        ..limits(args)
    };
    let packing = pack(&table.problem, &options);
    bar.finish_and_clear();
    let packing = packing.map_err(|error| Failure::Input(format!("error: {}: {error}", args.problem)))?;
    let is_packed = packing.certificate.status == Status::Packed;
    let report = packing.report();
    if is_packed && (args.output.is_some() || args.format == Format::Text) {
        write_result(args.output.as_deref(), table.with_offsets(&packing.offsets))?;
    }
    match args.format {
        Format::Json => {
            let json = serde_json::to_string_pretty(&report).expect("a report is plain figures");
            write_result(None, json + "\n")?;
        }
        Format::Text => say(&report.to_string()),
    }
    match table.problem.capacity {
        Some(capacity) if !is_packed => Err(Failure::DoesNotFit(shortage(&table, &packing, capacity))),
        _ => Ok(()),
    }
}

/// A number of bytes. A packing problem has no units, so a plain number is in the problem's own.
fn parse_capacity(text: &str) -> Result<Bytes, String> {
    text.trim().parse().map(Bytes).or_else(|_| parse_bytes(text))
}

fn limits(args: &PackArgs) -> Options {
    match (args.time_limit, args.steps) {
        (Some(time), _) => Options::within(time),
        (None, Some(steps)) => Options { node_limit: Some(steps), ..Options::default() },
        (None, None) => Options::default(),
    }
}

/// The excess, and the holders of the peak.
fn shortage(table: &Table, packing: &Packing, capacity: u64) -> String {
    let certificate = &packing.certificate;
    let mut text = match certificate.status {
        Status::Infeasible => format!(
            "no packing fits {capacity} bytes: at least {} are needed, {} more",
            certificate.lower_bound,
            certificate.lower_bound - capacity
        ),
        _ => format!(
            "the limit was reached: the lowest packing found is {} bytes, {} more than the capacity of {capacity}",
            packing.height,
            packing.height.saturating_sub(capacity)
        ),
    };
    let Some(peak) = table.problem.peak() else { return text };
    text.push_str(&format!(
        "\nmost bytes are live at time {}: {}, the largest of them",
        peak.time, peak.bytes
    ));
    let Problem { items, .. } = &table.problem;
    for &item in peak.items.iter().take(5) {
        let name = table.id(item);
        text.push_str(&format!(
            "\n  {:>15}  {name}, live in [{}, {})",
            items[item].size, items[item].lower, items[item].upper
        ));
    }
    text
}
