//! Every opcode against the values XLA computes: see `scripts/make_opcode_cases.py` and those beside it.

mod moves;
mod traits;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::support;
use memplan_interp::{Devices, Options, evaluate_on, limits, run_in_arena_on, scratch, writes_memory};
use memplan_ir::{ArrayLiteral, ArrayShape, Literal, Module, Opcode};
use memplan_testkit::difference_from_xla;
use strum::IntoEnumIterator;

#[test]
fn opcodes_give_the_values_of_xla_in_both_modes() {
    let mut wrong = Vec::new();
    let cases = cases();
    for case in &cases {
        let name = case.trim_start_matches("HloModule ").split([',', '\n']).next().unwrap_or_default();
        if let Err(reason) = check(case) {
            wrong.push(format!("{name}: {reason}"));
        }
    }
    assert!(cases.len() > 1500, "only {} cases were found", cases.len());
    assert!(wrong.is_empty(), "{} of {} cases are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/opcodes.md");

/// After a change of the cases: `MEMPLAN_UPDATE=1 cargo test -p memplan-interp opcodes::table`.
///
/// That a case agrees with XLA in both modes is what the other test says.
#[test]
fn the_table_of_opcodes_is_up_to_date() {
    let table = table();
    if std::env::var_os("MEMPLAN_UPDATE").is_some() {
        std::fs::write(TABLE, &table).expect("the table can be written");
    }
    let found = std::fs::read_to_string(TABLE).unwrap_or_default();
    assert!(found == table, "docs/opcodes.md is not that of this version: run with MEMPLAN_UPDATE=1");
}

/// What the cases say of each opcode.
#[derive(Default)]
struct Row {
    cases: usize,
    /// Whether one needs working memory, and whether one needs none.
    has_scratch: bool,
    has_none: bool,
    /// Whether one writes memory at all.
    has_result: bool,
}

fn table() -> String {
    let mut rows: BTreeMap<Opcode, Row> = Opcode::iter().map(|opcode| (opcode, Row::default())).collect();
    for case in cases() {
        let module = memplan_hlo::parse(&case).expect("cases are valid");
        let scratch = scratch(&module);
        let mut seen = BTreeSet::new();
        for (id, instruction) in module.instructions.iter() {
            let row = rows.get_mut(&instruction.opcode()).expect("all opcodes have rows");
            row.cases += usize::from(seen.insert(instruction.opcode()));
            row.has_scratch |= scratch[id].0 > 0;
            row.has_none |= scratch[id].0 == 0;
            row.has_result |= writes_memory(&module, id);
        }
    }
    let mut text = String::from(
        "# Operations of the evaluator\n\n\
         Made by `MEMPLAN_UPDATE=1 cargo test -p memplan-interp opcodes`, and checked by that test.\n\n\
         *Cases* are modules in `tests/opcodes` that have the operation; their results agree with those of XLA, or \
         where XLA's CPU backend has no code for the operation, with what the scripts that make them say. Each runs \
         with separate buffers and in the arena of its plan, with results that are equal bit for bit.\n\n\
         *In the arena* says what an operation needs besides operands and result: nothing; *scratch*, some working \
         memory in the plan, *at times* where extents are dynamic, functions have control flow, or the kind of call \
         decides; or that it *moves nothing*, since its result is where its operands are or what is called \
         writes it.\n\n\
         | operation | supported | in the arena | cases | note |\n|---|---|---|---:|---|\n",
    );
    for (opcode, row) in rows {
        let note = limits(opcode).unwrap_or_default();
        let is_supported = !note.starts_with("not supported");
        assert!(is_supported == (row.cases > 0), "{opcode} has {} cases", row.cases);
        let arena = match row {
            _ if !is_supported => "",
            Row { has_scratch: true, has_none: true, .. } => "at times scratch",
            Row { has_scratch: true, .. } => "scratch",
            Row { has_result: false, .. } => "moves nothing",
            _ => "nothing",
        };
        let supported = if is_supported { "yes" } else { "no" };
        writeln!(text, "| {opcode} | {supported} | {arena} | {} | {note} |", row.cases)
            .expect("text takes text");
    }
    text
}

/// All cases of all families.
fn cases() -> Vec<String> {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/opcodes"));
    let entries = std::fs::read_dir(directory).expect("the cases are in the repository");
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    files.sort();
    let texts = files.iter().map(|file| std::fs::read_to_string(file).expect("a family is text"));
    texts.flat_map(|text| split_cases(&text).into_iter().map(str::to_string).collect::<Vec<_>>()).collect()
}

/// The modules of a file, each with its comments.
fn split_cases(text: &str) -> Vec<&str> {
    let starts: Vec<usize> =
        text.match_indices("HloModule ").map(|(at, _)| at).chain(std::iter::once(text.len())).collect();
    starts.windows(2).map(|w| &text[w[0]..w[1]]).collect()
}

fn check(case: &str) -> Result<(), String> {
    let module = memplan_hlo::parse(case).map_err(|e| format!("{e}"))?;
    let devices = Devices::of(&module);
    let shapes: Vec<&ArrayShape> = module
        .entry_computation()
        .parameters
        .iter()
        .map(|&p| module.shape(p).as_array().expect("parameters are arrays"))
        .collect();
    let parameters = shapes.iter().enumerate().map(|(k, s)| arrays(case, &format!("// p{k}:"), s));
    let inputs = per_device(parameters.collect(), devices.count());
    let inputs: Vec<Vec<Literal>> =
        inputs.into_iter().map(|i| i.into_iter().map(Literal::Array).collect()).collect();
    let found = evaluate_on(&module, devices, &inputs, &Options::default()).map_err(|e| e.to_string())?;
    let leaves = module.shape(module.entry_computation().root).leaves();
    let results = leaves.iter().filter_map(|(_, s)| s.as_array()).enumerate();
    let expected = results.map(|(k, s)| arrays(case, &format!("// o{k}:"), s)).collect();
    for (d, (found, expected)) in found.iter().zip(per_device(expected, devices.count())).enumerate() {
        for (k, (found, expected)) in leaves_of(found).into_iter().zip(expected).enumerate() {
            if let Some(reason) = difference_from_xla(&found, &expected) {
                return Err(format!("o{k} of device {d}: {reason}"));
            }
        }
    }
    for target in ["cpu", "tpu-v5e"] {
        let planned =
            in_arena(&module, target, devices, &inputs).map_err(|reason| format!("on {target}: {reason}"))?;
        if planned != found {
            return Err(format!("on {target} the arena gives {planned:?} instead of {found:?}"));
        }
    }
    Ok(())
}

/// What a module computes inside the memory of its plan, arrays laid out as the target likes them.
fn in_arena(
    module: &Module,
    target: &str,
    devices: Devices,
    inputs: &[Vec<Literal>],
) -> Result<Vec<Literal>, String> {
    let (module, planned) = support::planned(&support::laid_out(module, target)?, target)?;
    run_in_arena_on(&module, &planned.schedule, &planned.plan, devices, inputs, &Options::default())
        .map_err(|e| e.to_string())
}

fn leaves_of(literal: &Literal) -> Vec<ArrayLiteral> {
    match literal {
        Literal::Array(array) => vec![array.clone()],
        Literal::Tuple(elements) => elements.iter().flat_map(leaves_of).collect(),
        Literal::Token => Vec::new(),
    }
}

/// From the arrays of each device, device by device.
fn per_device(arrays: Vec<Vec<ArrayLiteral>>, n: usize) -> Vec<Vec<ArrayLiteral>> {
    (0..n)
        .map(|d| arrays.iter().map(|of_devices| of_devices[d % of_devices.len()].clone()).collect())
        .collect()
}

/// The arrays after a prefix, one for each device.
fn arrays(case: &str, prefix: &str, shape: &ArrayShape) -> Vec<ArrayLiteral> {
    let hex = case.lines().find_map(|l| l.strip_prefix(prefix)).expect("a case has all its arrays").trim();
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal"))
        .collect();
    let size =
        shape.element_count().expect("extents are known") as usize * shape.element_type.byte_width() as usize;
    let array = |bytes| ArrayLiteral::new(shape.element_type, shape.dimensions.iter().copied(), bytes);
    if bytes.is_empty() {
        vec![array(Vec::new())]
    } else {
        bytes.chunks(size).map(|b| array(b.to_vec())).collect()
    }
}
