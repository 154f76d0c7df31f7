//! `memplan estimate --beside`: compares the estimate with a module that the compiler made.

use comfy_table::{CellAlignment, Table, presets};
use memplan::Estimate;
use memplan::advice::beside::{Beside, Cause, CauseKind, Instant, Surplus, as_assigned, beside};
use memplan::advice::diff::signed;
use memplan::driver::{EstimateError, estimate_compiled};
use memplan::ir::{Module, Shape};
use memplan::memory::{Bytes, Compiler, Target};

use crate::failure::Failure;
use crate::input::{Form, find, note_choice};
use crate::programs;
use crate::report::count;
use crate::screen::Screen;

/// Kinds of values that are listed of each side.
const MOST_KINDS: usize = 8;

/// Values that make up less than one part in so many of everything that differs are not listed.
const NOTEWORTHY: u128 = 1000;

/// Where people find a module that XLA made.
const WHERE: &str = "`XLA_FLAGS=--xla_dump_to=FOLDER` makes XLA write its module, as `...after_optimizations.txt`, and \
                     `jitted.lower(...).compile().as_text()` returns it; name that file, or the folder";

/// A module that the compiler made, with its plan.
pub(super) struct Compiled {
    file: String,
    found: Estimate,
    /// Whether the values are placed as the compiler's own buffer assignment says.
    is_assigned: bool,
}

impl Compiled {
    /// Reads a compiled module, from a file or a dump. Of several programs in a dump it takes the one with the name of the
    /// module that is estimated, or else the one that needs most. `code` is what the program itself takes of main memory.
    pub(super) fn read(
        path: &str,
        name: &str,
        compiler: &Compiler,
        target: &Target,
        code: Bytes,
    ) -> Result<Compiled, Failure> {
        let programs = find(path, Form::Compiled)?;
        let chosen = match programs.iter().position(|program| program.is_called(name)) {
            Some(chosen) => chosen,
            None if programs.len() == 1 => 0,
            None => programs::largest(&programs)?,
        };
        note_choice(path, &programs, chosen);
        let program = &programs[chosen];
        let module = program.module()?;
        check_machine(&program.file, &module, target)?;
        let found = estimate_compiled(&module, compiler, target, code).map_err(|error| match error {
            EstimateError::NotScheduled => Failure::Input(format!(
                "error: `{}` is not scheduled (`is_scheduled=true` is missing), so XLA has not finished compiling it\n  \
                 help: {WHERE}",
                program.file
            )),
            error => Failure::input(&error),
        })?;
        let assignment = program.assignment(&found.module);
        let assigned = assignment.and_then(|assignment| as_assigned(found.clone(), &assignment));
        Ok(Compiled {
            file: program.file.clone(),
            is_assigned: assigned.is_some(),
            found: assigned.unwrap_or(found),
        })
    }

    /// Compares it with what is expected of the compiler.
    pub(super) fn beside(
        &self,
        given: &Module,
        estimate: &Estimate,
        machine: &Target,
    ) -> Result<Beside, Failure> {
        beside(given, estimate, &self.found, machine).map_err(|_| {
            Failure::Input(format!(
                "error: `{}` was not compiled from `{}`: they share no operation and no argument\n  help: give the \
                 module that JAX handed over and the one that XLA made of the same program; {WHERE}",
                self.file, given.name
            ))
        })
    }

    /// The report.
    pub(super) fn text(&self, beside: &Beside, screen: Screen) -> String {
        let total = beside.totals.last().expect("it has a total");
        let mut text = format!(
            "\n{}\n",
            screen.heading(&format!(
                "XLA needs {}, the estimate is {}: {} of it",
                total.after,
                total.before,
                ratio(total.before, total.after)
            ))
        );
        let places = match self.is_assigned {
            true => "values are placed as its buffer assignment says",
            false => "it has no buffer assignment, so values are placed as the estimate places them",
        };
        text.push_str(&format!("XLA's module: {}; {places}\n\n{}\n", self.file, totals(beside)));
        text.push_str(&format!(
            "\ncompared: {}, and {}\n",
            live("XLA", &beside.compiler),
            live("the estimate", &beside.estimate)
        ));
        let difference: i128 = beside.causes.iter().map(|cause| cause.bytes).sum();
        let why = match difference {
            0 => "XLA needs as much".to_string(),
            bytes => format!(
                "why XLA needs {} {}",
                Bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX)),
                if bytes > 0 { "more" } else { "less" }
            ),
        };
        text.push_str(&format!("\n{}\n\n", screen.heading(&why)));
        text.push_str(&causes(&beside.causes, screen));
        if let Some(first) = &beside.first {
            text.push_str(&format!("\n{}\n\n", screen.heading("the first decision that differs")));
            text.push_str(&item(first, screen));
        }
        let all: u128 = beside.only_compiler.iter().chain(&beside.only_estimate).map(bytes).sum();
        for (of, surpluses) in [("in XLA", &beside.only_compiler), ("in the estimate", &beside.only_estimate)]
        {
            if !surpluses.is_empty() {
                text.push_str(&format!("\n{}\n\n", screen.heading(&format!("live only {of}"))));
                text.push_str(&list(surpluses, all, screen));
            }
        }
        screen.wrap(&text)
    }
}

/// Refuses a module that was compiled for another kind of machine, as far as layouts show it: only TPUs tile arrays.
fn check_machine(file: &str, module: &Module, target: &Target) -> Result<(), Failure> {
    let is_tiled = |id| match module.shape(id) {
        Shape::Array(array) => array.layout.as_ref().is_some_and(|layout| !layout.tiles.is_empty()),
        _ => false,
    };
    let has_tiles = module.instructions.keys().any(is_tiled);
    if has_tiles == target.layout.is_some() {
        return Ok(());
    }
    let (what, compilers) = match has_tiles {
        true => ("its layouts have tiles, so it was compiled for a TPU", "--compiler xla-tpu"),
        false => (
            "its layouts have no tiles, so it was not compiled for a TPU",
            "--compiler xla-gpu` or `--compiler xla-cpu",
        ),
    };
    Err(Failure::Input(format!(
        "error: `{file}` was not compiled for {}: {what}\n  help: name the compiler that made it, `{compilers}`",
        target.name
    )))
}

/// What is live in a plan at the instant that is compared, in words.
fn live(of: &str, instant: &Instant) -> String {
    let peak = match instant.is_peak {
        true => "its peak".to_string(),
        false => format!("its peak is {}", instant.peak),
    };
    format!("{} live in {of} while `{}` runs ({peak})", instant.bytes, instant.instruction)
}

fn bytes(surplus: &Surplus) -> u128 {
    u128::from(surplus.bytes.0)
}

fn ratio(estimate: Bytes, compiler: Bytes) -> String {
    match compiler {
        Bytes::ZERO => "-".to_string(),
        compiler => format!("{:.2}", estimate.0 as f64 / compiler.0 as f64),
    }
}

fn totals(beside: &Beside) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["", "XLA", "estimate", "ratio"]);
    for figure in &beside.totals {
        let ratio = ratio(figure.before, figure.after);
        table.add_row([figure.name.to_string(), figure.after.to_string(), figure.before.to_string(), ratio]);
    }
    for column in 1..4 {
        table.column_mut(column).expect("four columns").set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// A row for each cause, and their sum.
fn causes(causes: &[Cause], screen: Screen) -> String {
    let sum: i128 = causes.iter().map(|cause| cause.bytes).sum();
    let is_much =
        |cause: &&Cause| cause.bytes.unsigned_abs() * NOTEWORTHY >= sum.unsigned_abs() && cause.bytes != 0;
    let mut rows = vec![["bytes", "cause", "where", "the largest"].map(str::to_string).to_vec()];
    for cause in causes.iter().filter(is_much) {
        rows.push(vec![
            signed(cause.bytes),
            name(cause.kind),
            cause.source.clone().unwrap_or_default(),
            cause.example.clone(),
        ]);
    }
    let others: Vec<&Cause> = causes.iter().filter(|cause| !is_much(cause)).collect();
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|cause| name(cause.kind)).collect();
        let bytes = others.iter().map(|cause| cause.bytes).sum();
        rows.push(vec![signed(bytes), "others".to_string(), String::new(), names.join(", ")]);
    }
    rows.push(vec![signed(sum), "together".to_string(), String::new(), String::new()]);
    screen.break_cells(&mut rows, 1..4);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(rows.remove(0)).add_rows(rows);
    table.column_mut(0).expect("they are figures").set_cell_alignment(CellAlignment::Right);
    table.trim_fmt() + "\n"
}

fn name(kind: CauseKind) -> String {
    <&str>::from(kind).replace('-', " ")
}

fn list(surpluses: &[Surplus], all: u128, screen: Screen) -> String {
    let is_listed = |it: &&Surplus| bytes(it) * NOTEWORTHY >= all;
    let n = surpluses.iter().take(MOST_KINDS).take_while(is_listed).count();
    let mut text: String = surpluses[..n].iter().map(|it| item(it, screen)).collect();
    let rest = &surpluses[n..];
    if !rest.is_empty() {
        let sum = rest.iter().map(|it| it.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        text.push_str(&screen.item(&sum.to_string(), &count(rest.len(), "smaller kind")));
    }
    text
}

/// What it is, what needs it, and why only one side has it.
fn item(of: &Surplus, screen: Screen) -> String {
    let n = if of.count == 1 { String::new() } else { format!("{} × ", of.count) };
    let source = of.source.as_ref().map_or_else(String::new, |source| format!(" ({source})"));
    let what = format!("{n}`{}` {} {}{source}", of.instruction, of.shape, of.operation);
    let why = format!("{}: {}; kept by {}", name(of.kind), of.why, of.kept_by);
    screen.item(&of.bytes.to_string(), &what) + &screen.item("", &screen.faint(&why))
}
