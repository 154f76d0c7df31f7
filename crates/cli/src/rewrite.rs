//! `memplan rewrite`

use clap::{Args, ColorChoice};
use comfy_table::{CellAlignment, ColumnConstraint};
use memplan::codegen::view as drawn;
use memplan::ir::Module;
use memplan::memory::{Bytes, Compiler, Target};
use memplan::{Price, RewriteOptions, Rewritten, estimate, hlo, rewrite};

use crate::emit::{PageArgs, Shown, page_of_two};
use crate::estimate::{compiler, machine_of};
use crate::failure::Failure;
use crate::input::{Form, read_module};
use crate::options::parse_bytes;
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
    /// Machine that it compiles for: a name from `memplan targets`, or a TOML file (default: the compiler's usual one)
    #[arg(long)]
    target: Option<String>,
    /// Save bytes at any cost in time until the program needs at most this much, e.g. 16GiB; exit with status 3 if it
    /// needs more
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    memory_limit: Option<Bytes>,
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
    let options = RewriteOptions { memory_limit: args.memory_limit, ..RewriteOptions::default() };
    let rewritten = rewrite(module, &args.compiler, &target, &options);
    bar.finish_and_clear();
    let rewritten = rewritten.map_err(|error| Failure::input(&error))?;
    say(&report(&rewritten, &args.compiler, Screen::of(None, ColorChoice::Never)));
    if let Some(given) = &given {
        args.page.write(|| page(given, &rewritten, &args.compiler, &target))?;
    }
    write_module(args.output.as_deref(), &rewritten.module)?;
    let needed = rewritten.after().total;
    let available = match args.memory_limit {
        Some(limit) if needed > limit => limit,
        Some(_) => return Ok(()),
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
    for step in rewritten.steps.iter().filter(|step| step.is_kept) {
        text.push_str(&screen.wrap(&format!("\n{}: {}\n", step.name, step.description)));
    }
    if rewritten.steps.iter().all(|step| !step.is_kept) {
        text.push_str("\nno rewrite is worth it: the program is unchanged\n");
    }
    let mut now = rewritten.before;
    for step in &rewritten.steps {
        if step.is_kept {
            now = step.price;
        } else {
            let [bytes, seconds, _] = changes(step.price, now);
            text.push_str(&format!("\nnot worth it: {} ({bytes}, {seconds} time)", step.name));
        }
    }
    text
}

/// The number of columns with figures, and the name.
const FIGURES: usize = 7;

const COLUMNS: [&str; 8] = ["", "memory", "", "time", "", "operations", "", "what"];

/// The original program, and the program after each rewrite that was kept.
fn rows(rewritten: &Rewritten) -> Vec<Vec<String>> {
    let mut rows = vec![row("original", rewritten.before, None, "")];
    let mut now = rewritten.before;
    for step in rewritten.steps.iter().filter(|step| step.is_kept) {
        rows.push(row(step.name, step.price, Some(now), step.description));
        now = step.price;
    }
    rows
}

fn row(name: &str, price: Price, before: Option<Price>, description: &str) -> Vec<String> {
    let [bytes, seconds, operations] = before.map(|before| changes(price, before)).unwrap_or_default();
    vec![
        name.to_string(),
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
