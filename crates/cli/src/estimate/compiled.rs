//! `memplan estimate --beside`: what the compiler made of the program, and where the estimate parts from it.

use comfy_table::{CellAlignment, Table, presets};
use memplan::Estimate;
use memplan::advice::beside::{Beside, Cause, CauseKind, Part, Place, as_assigned, beside};
use memplan::advice::diff::signed;
use memplan::driver::{EstimateError, estimate_compiled};
use memplan::ir::Module;
use memplan::memory::{Bytes, Compiler, Target};

use crate::failure::Failure;
use crate::input::{Form, find, note_choice};
use crate::programs;
use crate::report::count;
use crate::screen::Screen;

/// Values of each side that are listed.
const MOST_PARTS: usize = 8;

/// Values that are less than this part of all that differs are not listed.
const NOTEWORTHY: u128 = 1000;

/// A module that the compiler made, with its plan.
pub(super) struct Compiled {
    file: String,
    found: Estimate,
    /// Whether the places are those of the compiler's own assignment.
    is_assigned: bool,
}

impl Compiled {
    /// Reads the module that a path names; `code` is what the program itself takes of main memory. Of a folder with several programs, the one of that name, or else the one that needs
    /// most.
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
        let found = estimate_compiled(&module, compiler, target, code).map_err(|error| match error {
            EstimateError::NotScheduled => Failure::Input(format!(
                "error: `{}` is not scheduled (`is_scheduled=true` is missing), so no compiler has finished it\n  help: \
                 with `XLA_FLAGS=--xla_dump_to=FOLDER` XLA writes it as `...after_optimizations.txt`; name that file, or \
                 the folder",
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
                "error: `{}` is another program than `{}`: no operation and no argument of one is in the other",
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
            true => "as its own buffer assignment says",
            false => "its values placed as that compiler is expected to: no buffer assignment is beside it",
        };
        text.push_str(&format!("XLA's module is {}, {places}\n\n{}\n", self.file, totals(beside)));
        let live = |of: &str, place: &Place| {
            let peak =
                if place.is_peak { "its peak".to_string() } else { format!("its peak is {}", place.peak) };
            format!("{} live in {of} while `{}` runs ({peak})", place.bytes, place.instruction)
        };
        text.push_str(&format!(
            "\ncompared: {}, and {}\n",
            live("XLA", &beside.compiler),
            live("the estimate", &beside.estimate)
        ));
        text.push_str(&format!("\n{}\n\n", screen.heading("why XLA needs more, or less")));
        text.push_str(&causes(&beside.causes, screen));
        if let Some(first) = &beside.first {
            text.push_str(&format!("\n{}\n\n", screen.heading("what was decided otherwise first")));
            text.push_str(&item(first, screen));
        }
        let all: u128 = beside.only_compiler.iter().chain(&beside.only_estimate).map(bytes).sum();
        for (of, parts) in [("in XLA", &beside.only_compiler), ("in the estimate", &beside.only_estimate)] {
            if !parts.is_empty() {
                text.push_str(&format!("\n{}\n\n", screen.heading(&format!("in memory only {of}"))));
                text.push_str(&list(parts, all, screen));
            }
        }
        screen.wrap(&text)
    }
}

fn bytes(part: &Part) -> u128 {
    u128::from(part.bytes.0)
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

fn list(parts: &[Part], all: u128, screen: Screen) -> String {
    let n = parts.iter().take(MOST_PARTS).take_while(|part| bytes(part) * NOTEWORTHY >= all).count();
    let mut text: String = parts[..n].iter().map(|part| item(part, screen)).collect();
    if let Some(rest) = parts.get(n..).filter(|rest| !rest.is_empty()) {
        let sum = rest.iter().map(|part| part.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        text.push_str(&screen.item(&sum.to_string(), &count(rest.len(), "smaller kind")));
    }
    text
}

/// What it is, and who needs it and why it is there.
fn item(part: &Part, screen: Screen) -> String {
    let n = if part.count == 1 { String::new() } else { format!("{} × ", part.count) };
    let source = part.source.as_ref().map_or_else(String::new, |source| format!(" ({source})"));
    let what = format!("{n}`{}` {} {}{source}", part.instruction, part.shape, part.operation);
    let why = format!("kept by {}; {}: {}", part.kept_by, name(part.kind), part.why);
    screen.item(&part.bytes.to_string(), &what) + &screen.item("", &screen.faint(&why))
}
