//! Right plans, broken systematically: the checker must refuse every plan that computes wrong results.

use std::fmt::Write as _;

use memplan::hlo;
use memplan::ir::{Literal, Module, Op, fingerprint};
use memplan::memory::{Bytes, Slice, Target};
use memplan::plan::Planned;
use memplan_testkit::random_inputs;

use crate::support::{evaluate, plan_to_run, prove, run_in_arena, snapshot};

/// How often a kind of mutation was tried, refused by the proof, and noticed by running it: because the run stopped
/// at a value that is not there, or because of its numbers.
#[derive(Default)]
struct Row {
    tried: usize,
    refused: usize,
    stopped: usize,
    wrong_numbers: usize,
}

#[test]
fn mutated_plans() {
    let toy = Target::find("toy").unwrap();
    let mut table: Vec<(&str, Row)> =
        ["shift", "merge", "swap in the schedule", "drop a copy"].map(|kind| (kind, Row::default())).into();
    for case in [
        "two_branches",
        "while_state",
        "swap_loop",
        "conditional",
        "donated_parameter",
        "unread_argument",
        "loop_state_updated_in_branch",
        "nested_loops",
    ] {
        let path = format!("{}/tests/hlo/plan/{case}.hlo", env!("CARGO_MANIFEST_DIR"));
        let source = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut module = source.clone();
        let planned = plan_to_run(&mut module, &toy).unwrap();
        let inputs = random_inputs(&source, 7);
        let meant = evaluate(&source, &inputs).unwrap();
        for (kind, mutants) in
            [shifted(&planned), merged(&planned), swapped(&module, &planned)].into_iter().enumerate()
        {
            for mutant in mutants {
                judge(&mut table[kind].1, &module, &mutant, &toy, &inputs, &meant);
            }
        }
        for (module, mutant) in without_copies(&module, &planned) {
            judge(&mut table[3].1, &module, &mutant, &toy, &inputs, &meant);
        }
    }
    let mut text = String::from("mutation             tried refused stopped wrong\n");
    for (kind, row) in &table {
        let Row { tried, refused, stopped, wrong_numbers } = row;
        writeln!(text, "{kind:20} {tried:5} {refused:7} {stopped:7} {wrong_numbers:5}").unwrap();
        assert!(*refused * 2 > *tried, "most mutations matter: {kind}");
    }
    snapshot("mutated_plans", &text);
}

fn judge(
    row: &mut Row,
    module: &Module,
    mutant: &Planned,
    toy: &Target,
    inputs: &[Literal],
    meant: &Literal,
) {
    let verdict = prove(module, mutant, toy);
    row.tried += 1;
    row.refused += usize::from(verdict.is_err());
    let goes_wrong = match run_in_arena(module, mutant, inputs) {
        Err(_) => {
            row.stopped += 1;
            true
        }
        Ok(found) => {
            row.wrong_numbers += usize::from(found != *meant);
            found != *meant
        }
    };
    assert!(verdict.is_err() || !goes_wrong, "{}: accepted, and goes wrong when it runs", module.name);
}

/// Everything that lies at one slice, four bytes further.
fn shifted(planned: &Planned) -> Vec<Planned> {
    slices(planned)
        .iter()
        .map(|from| moved(planned, from, &Slice { offset: from.offset + Bytes(4), ..*from }))
        .collect()
}

/// Everything that lies at one slice, where something else of its size lies.
fn merged(planned: &Planned) -> Vec<Planned> {
    let all = slices(planned);
    let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (from, to)));
    pairs
        .filter(|(from, to)| from != to && from.size == to.size)
        .map(|(from, to)| moved(planned, from, to))
        .collect()
}

/// An instruction before its operand.
fn swapped(module: &Module, planned: &Planned) -> Vec<Planned> {
    let mut mutants = Vec::new();
    for computation in module.computations.keys() {
        let sequence = planned.schedule.sequence(computation);
        for i in 1..sequence.len() {
            if module.instructions[sequence[i]].operands.contains(&sequence[i - 1]) {
                let mut sequence = sequence.to_vec();
                sequence.swap(i - 1, i);
                let mut mutant = planned.clone();
                mutant.schedule.set(computation, sequence);
                mutants.push(mutant);
            }
        }
    }
    mutants
}

/// A program that reads the original where it read a copy.
fn without_copies(module: &Module, planned: &Planned) -> Vec<(Module, Planned)> {
    let copies = module.computations.values().flat_map(|computation| &computation.instructions);
    let copies = copies.filter(|&&id| module.instructions[id].op == Op::Copy);
    copies
        .map(|&copy| {
            let mut module = module.clone();
            let original = module.instructions[copy].operands[0];
            for instruction in module.instructions.values_mut() {
                let operands = instruction.operands.iter_mut().filter(|operand| **operand == copy);
                operands.for_each(|operand| *operand = original);
            }
            for computation in module.computations.values_mut().filter(|c| c.root == copy) {
                computation.root = original;
            }
            let mut mutant = planned.clone();
            mutant.plan.fingerprint = fingerprint(&module);
            (module, mutant)
        })
        .collect()
}

fn slices(planned: &Planned) -> Vec<Slice> {
    let mut slices: Vec<Slice> = planned.plan.slices.values().copied().collect();
    slices.sort_by_key(|slice| (slice.allocation, slice.offset, slice.size));
    slices.dedup();
    slices
}

fn moved(planned: &Planned, from: &Slice, to: &Slice) -> Planned {
    let mut mutant = planned.clone();
    mutant.plan.slices.values_mut().filter(|slice| *slice == from).for_each(|slice| *slice = *to);
    mutant
}
