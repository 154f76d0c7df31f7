//! `memplan rewrite`

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, ColorChoice};
use comfy_table::{CellAlignment, ColumnConstraint};
use memplan::codegen::view as drawn;
use memplan::ir::Module;
use memplan::memory::{Bytes, Compiler, Target};
use memplan::passes::{OffloadReport, PartsReport, RematReport, ResidualsReport};
use memplan::{Estimated, Lever, Price, RewriteOptions, Rewritten, Step, estimate, hlo, rewrite};

use crate::emit::{PageArgs, Shown, page_of_two};
use crate::estimate::{compiler, machine_of};
use crate::failure::Failure;
use crate::input::{Form, read_module};
use crate::options::{parse_bytes, parse_share};
use crate::output::{say, write_result};
use crate::progress;
use crate::screen::Screen;
use crate::time::change_in_percent;
use crate::verdict::{beyond, fits};

#[derive(Args)]
pub(crate) struct RewriteArgs {
    /// HLO text or protobuf from JAX, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// The compiler that will compile the program: xla-gpu, xla-cpu or xla-tpu
    #[arg(long, value_parser = compiler)]
    compiler: Compiler,
    /// Machine that the compiler compiles for: a name from `memplan targets`, or a TOML file (default: the compiler's usual one)
    #[arg(long)]
    target: Option<String>,
    /// Find the fastest program that needs at most this much, e.g. 16GiB; exit with status 3 if none does
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    memory_limit: Option<Bytes>,
    /// Find the smallest program that takes at most this much more time, by the cost model (default: 10%, or any time
    /// under a limit)
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    max_slowdown: Option<f64>,
    /// List the best programs from fewest bytes to least time; `--memory-limit` with the bytes of one writes that program
    #[arg(long)]
    frontier: bool,
    /// Use only these levers: within, recompute, state, layouts, gathers, checkpoint, parts, blocks, order, offload, flags
    #[arg(long, value_name = "LEVER,..", value_delimiter = ',', value_parser = Lever::find)]
    only: Vec<Lever>,
    /// Use all levers but these
    #[arg(long, value_name = "LEVER,..", value_delimiter = ',', value_parser = Lever::find, conflicts_with = "only")]
    without: Vec<Lever>,
    /// File to write the tried rewrites to, with the bytes and time of each, as JSON
    #[arg(long, value_name = "FILE.json")]
    report: Option<String>,
    #[command(flatten)]
    page: PageArgs,
    /// File to write the rewritten program to: protobuf if the name ends in `.pb`, text otherwise
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
}

pub(crate) fn run(args: &RewriteArgs) -> Result<(), Failure> {
    args.page.check(args.output.as_deref())?;
    let target = machine_of(&args.compiler, args.target.as_deref())?;
    let module = read_module(&args.module, Form::Given)?;
    let bar = progress::spinner("rewriting");
    let given = args.page.is_asked_for().then(|| module.clone());
    let rewritten = rewrite(module, &args.compiler, &target, &args.options());
    bar.finish_and_clear();
    let rewritten = rewritten.map_err(|error| Failure::input(&error))?;
    let screen = Screen::of(None, ColorChoice::Never);
    say(&report(&rewritten, &args.compiler, screen));
    if args.frontier {
        say(&frontier(&rewritten, screen));
    }
    if let Some(given) = &given {
        args.page.write(|| page(given, &rewritten, &args.compiler, &target))?;
    }
    if let Some(path) = &args.report {
        write_result(Some(path), json(&rewritten))?;
    }
    write_module(args.output.as_deref(), &rewritten.module)?;
    let after = rewritten.after();
    let needed = after.price.total;
    let available = match args.memory_limit {
        Some(limit) if needed > limit => limit,
        Some(limit) => {
            if after.high() > limit {
                say(&screen.wrap(&format!(
                    "It probably fits, and may not: {} needs between {} and {} for four programs of five like this one.\n",
                    args.compiler.name, after.low(), after.high()
                )));
            }
            return Ok(());
        }
        None => match fits(needed, &target) {
            Ok(()) => return Ok(()),
            Err(available) => available,
        },
    };
    Err(Failure::DoesNotFit(format!(
        "error: by memplan's estimate, for the rewritten program {} needs {}",
        args.compiler.name,
        beyond(needed, available)
    )))
}

impl RewriteArgs {
    fn options(&self) -> RewriteOptions {
        let mut options = RewriteOptions {
            memory_limit: self.memory_limit,
            max_slowdown: self.max_slowdown,
            is_frontier: self.frontier,
            ..RewriteOptions::default()
        };
        options.pull(&self.only, &self.without);
        options
    }
}

/// Writes protobuf or text, depending on the file's name.
fn write_module(path: Option<&str>, module: &Module) -> Result<(), Failure> {
    if path.is_some_and(|path| path.ends_with(".pb")) {
        let bytes = hlo::proto::write_module(module).map_err(|error| Failure::input(&error))?;
        return write_result(path, bytes);
    }
    write_result(path, hlo::print(module))
}

/// A page of the compiler's estimates for the program before and after.
fn page(given: &Module, now: &Rewritten, compiler: &Compiler, target: &Target) -> Result<String, Failure> {
    let expected = |module| estimate(module, compiler, target).map_err(|error| Failure::input(&error));
    let (before, after) = (expected(given)?, expected(&now.module)?);
    let table = drawn::Table {
        title: "rewrites".to_string(),
        columns: COLUMNS.map(str::to_string).to_vec(),
        rows: rows(now).into_iter().map(|cells| drawn::Row { cells, query: String::new() }).collect(),
    };
    let shown = |name, (module, planned)| Shown { name, module, target, planned };
    let before = shown("original", (&before.module, &before.planned));
    Ok(page_of_two(before, shown("rewritten", (&after.module, &after.planned)), &[table]))
}

/// Tables the savings and costs of each rewrite.
pub fn report(rewritten: &Rewritten, compiler: &Compiler, screen: Screen) -> String {
    let mut table = screen.table();
    // The descriptions follow below, where there is room for them.
    table.set_header(&COLUMNS[..FIGURES]);
    table.add_rows(rows(rewritten).into_iter().map(|row| row.into_iter().take(FIGURES)));
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_constraint(ColumnConstraint::ContentWidth);
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let title = screen.wrap(&format!("{}, by memplan's estimate\n", compiler.description));
    let mut text = format!("{title}\n{}\n", table.trim_fmt());
    let mut described = BTreeSet::new();
    for step in rewritten.steps.iter().filter(|step| step.is_kept && described.insert(step.name)) {
        text.push_str(&screen.wrap(&format!("\n{}: {}\n", step.name, step.description)));
    }
    for (name, value) in &rewritten.flags {
        text.push_str(&format!("\ncompile it with --{name}={value}\n"));
    }
    if rewritten.steps.iter().all(|step| !step.is_kept) {
        text.push_str("\nno rewrite is worth it: the program is unchanged\n");
    }
    let mut now = rewritten.before.price;
    for step in &rewritten.steps {
        if step.is_kept {
            now = step.estimated.price;
        } else {
            let [bytes, seconds, _] = changes(step.estimated.price, now);
            let why = why_not(step, now);
            let line = format!("\nnot kept: {} ({bytes}, {seconds} time): {why}", step.name);
            text.push_str(&screen.wrap(&line));
        }
    }
    let takes_more_time = now.seconds > rewritten.before.price.seconds;
    if let Some(free) = rewritten.free.filter(|_| takes_more_time) {
        let [bytes, seconds, _] = changes(free.price, rewritten.before.price);
        let line = format!(
            "\n\nat no more time: {} ({bytes}, {seconds} time), by `--max-slowdown 0%`",
            free.price.total
        );
        text.push_str(&screen.wrap(&line));
    }
    text
}

/// Why a lever was not kept, from what its smallest form would have come to after those that were.
fn why_not(step: &Step, now: Price) -> &'static str {
    let price = step.estimated.price;
    match (price.total < now.total, price.seconds > now.seconds) {
        (false, _) => "it saves nothing here",
        (true, true) => "other levers save as much in less time",
        (true, false) => "other levers save more",
    }
}

/// Tables the best programs.
fn frontier(rewritten: &Rewritten, screen: Screen) -> String {
    let mut table = screen.table();
    table.set_header(["total", "", "time", ""]);
    for point in &rewritten.frontier {
        let [bytes, seconds, _] = changes(point.price, rewritten.before.price);
        table.add_row([
            point.price.total.to_string(),
            bytes,
            format!("{:.3} ms", point.price.seconds * 1e3),
            seconds,
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_constraint(ColumnConstraint::ContentWidth);
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("\nfrom fewest bytes to least time:\n\n{}\n", table.trim_fmt())
}

/// The name of what was done, and in which form.
fn what(step: &Step) -> String {
    let parts = step.reports.iter().find_map(|report| report.downcast_ref::<PartsReport>());
    let offload = step.reports.iter().find_map(|report| report.downcast_ref::<OffloadReport>());
    match (parts, offload) {
        (Some(PartsReport { n, examples, .. }), _) => format!("{}: {n} of {examples}", step.name),
        (None, Some(offload)) => format!("{}: {}", step.name, offload.total()),
        (None, None) => step.name.to_string(),
    }
}

/// The instructions that a step changed, as far as it names them.
fn places(step: &Step) -> Vec<String> {
    let mut places = Vec::new();
    for report in &step.reports {
        if let Some(residuals) = report.downcast_ref::<ResidualsReport>() {
            places.extend(residuals.pairs.iter().map(|pair| pair.producer.to_string()));
        }
        if let Some(remat) = report.downcast_ref::<RematReport>() {
            places.extend(remat.values.iter().map(|value| value.value.to_string()));
        }
        if let Some(offload) = report.downcast_ref::<OffloadReport>() {
            places.extend(offload.arrays.iter().map(|(name, _)| name.to_string()));
        }
    }
    places
}

/// What `--report` writes. Sizes are in bytes.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Document {
    after: Priced,
    before: Priced,
    /// How many run the program; figures are those of one.
    devices: u64,
    /// Options of the compiler to give with the program, by name.
    flags: BTreeMap<String, String>,
    /// What there is to choose from, from fewest bytes to least time.
    frontier: Vec<Priced>,
    /// What was tried, in order.
    steps: Vec<Tried>,
}

/// What the compiler is estimated to need for a program.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct Priced {
    /// The most bytes that four of five such programs need.
    high: Bytes,
    /// On the host.
    host: Bytes,
    /// The lower end.
    low: Bytes,
    /// One run.
    seconds: f64,
    total: Bytes,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Tried {
    host: Bytes,
    kept: bool,
    lever: String,
    /// One run with it, and with what was kept before.
    seconds: f64,
    total: Bytes,
    what: String,
    /// The loops and functions that it changes.
    #[serde(rename = "where")]
    places: Vec<String>,
    /// What it does, or why it was not kept.
    why: &'static str,
}

/// What was tried, for programs.
fn json(rewritten: &Rewritten) -> String {
    let priced = |of: Estimated| Priced {
        high: of.high(),
        host: of.host,
        low: of.low(),
        seconds: of.price.seconds,
        total: of.price.total,
    };
    let mut now = rewritten.before.price;
    let mut steps = Vec::new();
    for step in &rewritten.steps {
        let price = step.estimated.price;
        steps.push(Tried {
            host: step.estimated.host,
            kept: step.is_kept,
            lever: step.lever.to_string(),
            seconds: price.seconds,
            total: price.total,
            what: what(step),
            places: places(step),
            why: if step.is_kept { step.description } else { why_not(step, now) },
        });
        if step.is_kept {
            now = price;
        }
    }
    let document = Document {
        after: priced(rewritten.after()),
        before: priced(rewritten.before),
        devices: rewritten.devices.unwrap_or(1),
        flags: rewritten.flags.iter().cloned().collect(),
        frontier: rewritten.frontier.iter().map(|&point| priced(point)).collect(),
        steps,
    };
    serde_json::to_string_pretty(&document).expect("keys of figures are strings") + "\n"
}

/// The number of columns with figures, and the name.
const FIGURES: usize = 7;

const COLUMNS: [&str; 8] = ["", "memory", "", "time", "", "ops", "", "what"];

/// The original program, and the program after each rewrite that was kept.
fn rows(rewritten: &Rewritten) -> Vec<Vec<String>> {
    let mut now = rewritten.before.price;
    let mut rows = vec![row("original", now, None, "")];
    for step in rewritten.steps.iter().filter(|step| step.is_kept) {
        rows.push(row(what(step), step.estimated.price, Some(now), step.description));
        now = step.estimated.price;
    }
    rows
}

fn row(name: impl Into<String>, price: Price, before: Option<Price>, description: &str) -> Vec<String> {
    let [bytes, seconds, operations] = before.map(|before| changes(price, before)).unwrap_or_default();
    vec![
        name.into(),
        price.total.to_string(),
        bytes,
        format!("{:.3} ms", price.seconds * 1e3),
        seconds,
        operations_of(price.operations),
        operations,
        description.to_string(),
    ]
}

/// Formats with the unit that leaves at most three digits before the point.
fn operations_of(n: f64) -> String {
    let (factor, unit) = match n {
        n if n >= 1e12 => (1e12, "T"),
        n if n >= 1e9 => (1e9, "G"),
        n if n >= 1e6 => (1e6, "M"),
        _ => (1e3, "k"),
    };
    format!("{:.2} {unit}", n / factor)
}

/// The changes in bytes, seconds and operations.
fn changes(to: Price, from: Price) -> [String; 3] {
    [
        change_in_percent(from.total.0 as f64, to.total.0 as f64),
        change_in_percent(from.seconds, to.seconds),
        change_in_percent(from.operations, to.operations),
    ]
}
