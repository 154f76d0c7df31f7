//! Schedules of real and made-up programs: legal for their buffers, planned and proved, as low as expected.

use std::path::{Path, PathBuf};

use memplan_analysis::Facts;
use memplan_ir::{Module, SecondaryMap};
use memplan_memory::Target;
use memplan_plan_hlo::{
    HloProgram, Method, PlaceOptions, ScheduleOptions, ScheduleReport, place, plan, schedule,
};
use memplan_testkit::{CorpusProgram, corpus};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A module with what scheduling asks for: a flat call graph, and copies.
fn prepared(text: &str, target: &Target) -> Module {
    let mut module = memplan_hlo::parse(text).expect("the module parses");
    if !module.is_scheduled {
        memplan_passes::legalize(&mut module, target).expect("the passes leave valid modules");
    }
    module
}

/// Schedules a module, and proves that the order is one that its buffers allow.
#[track_caller]
fn check(mut module: Module, target: &Target) -> (Module, ScheduleReport) {
    let (order, report) = schedule(&module, target, &ScheduleOptions::default()).expect("there is an order");
    order.apply(&mut module);
    memplan_ir::verify(&module).expect("operands and control predecessors precede their users");
    let facts = Facts::new(&module, &order).expect("the call graph is flat");
    // No two values of one buffer are live together, but at the instant that writes one over the other.
    for (buffer, values) in facts.buffers.values.iter() {
        let mut ranges: Vec<_> = values.iter().map(|&value| facts.live.of(value)).collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].end <= pair[1].start + 1, "{buffer}: {pair:?}");
        }
    }
    let planned = plan(&module, target, &Default::default()).expect("there is a plan");
    memplan_check::check(&module, &planned.schedule, target, &planned.plan).expect("the plan is right");
    let program = HloProgram::new(&module, &planned.facts, target, &SecondaryMap::new());
    let placement = place(&program, target, &PlaceOptions::default()).expect("there are places");
    memplan_check::check_placement(&program, target, &placement).expect("the placement is right");
    (module, report)
}

fn peak_of(report: &ScheduleReport, method: Method) -> u64 {
    let (_, entry) = report.computations.last().expect("there is an entry");
    let found = entry.candidates.iter().find(|candidate| candidate.0 == method);
    found.expect("every one-pass order is tried").1.0
}

#[test]
fn cases_have_the_peaks_they_state() {
    let target = Target::find("toy").expect("built in");
    let folder = workspace().join("tests/hlo/schedule");
    let mut files: Vec<PathBuf> =
        folder.read_dir().expect("cases exist").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("readable");
        let (_, report) = check(prepared(&text, &target), &target);
        let (_, entry) = report.computations.last().expect("there is an entry");
        for line in text.lines() {
            let stated = |key: &str| line.strip_prefix(key).map(|n| n.trim().parse::<u64>().expect("bytes"));
            let name = file.display();
            if let Some(bytes) = stated("// peak:") {
                assert_eq!(report.peak.0, bytes, "{name}");
                assert!(entry.is_optimal, "{name}");
            }
            if let Some(bytes) = stated("// list:") {
                assert_eq!(peak_of(&report, Method::List), bytes, "{name}: list");
            }
            if let Some(bytes) = stated("// depth-first:") {
                assert_eq!(peak_of(&report, Method::DepthFirst), bytes, "{name}: depth first");
            }
        }
    }
    assert!(files.len() >= 5, "cases found: {}", files.len());
}

#[test]
fn corpus_programs_get_legal_orders_no_worse_than_the_text() {
    let target = Target::find("gpu-h100").expect("built in");
    // The larger programs take seconds without optimization; `examples/schedules.rs` covers them.
    for program in corpus().into_iter().filter(CorpusProgram::is_small) {
        for form in ["before", "cpu", "gpu"] {
            let mut module = prepared(&program.text(form), &target);
            let (scheduled, report) = check(module.clone(), &target);
            for (_, computation) in &report.computations {
                let textual = computation.candidates[0].1;
                assert!(computation.peak <= textual, "{} {form}", program.name);
            }
            // A second round starts from the first one's result.
            let again =
                schedule(&scheduled, &target, &ScheduleOptions::default()).expect("there is an order").1;
            assert!(again.peak <= report.peak, "{} {form}", program.name);
            module.is_scheduled = true;
            let twice = schedule(&module, &target, &ScheduleOptions::default()).expect("there is an order");
            assert_eq!(twice.1.peak, report.peak, "the same input gives the same schedule");
        }
    }
}
