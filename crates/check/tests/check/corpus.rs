//! The planner's plans of real programs.

use std::path::PathBuf;

use memplan_hlo::parse;
use memplan_ir::{Module, fingerprint};
use memplan_memory::Target;
use memplan_passes as passes;
use memplan_plan::{PlanOptions, Planned, plan};

use crate::support::Case;

/// The corpus, where there is one.
pub(crate) fn corpus() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared");
    let shared = std::env::var_os("MEMPLAN_SHARED").map_or_else(|| PathBuf::from(default), PathBuf::from);
    let corpus = shared.join("corpus");
    if !corpus.is_dir() {
        eprintln!("skipped: no corpus");
        return None;
    }
    Some(corpus)
}

/// The programs of the corpus with at most `largest` bytes of text: name and text.
pub(crate) fn programs(file: &str, largest: u64) -> Vec<(String, String)> {
    let Some(corpus) = corpus() else { return Vec::new() };
    let mut folders: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let paths = folders.iter().map(|folder| folder.join(file));
    let small = paths.filter(|path| path.metadata().is_ok_and(|meta| meta.len() <= largest));
    small.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap())).collect()
}

/// What the planner makes of a program.
pub(crate) fn planned(text: &str, target: &str) -> Case {
    let mut module: Module = parse(text).unwrap();
    let target = Target::find(target).unwrap();
    let context = passes::Context { target: &target };
    passes::run(&mut module, &[&passes::LEGALIZE], &context, passes::RunOptions::default()).unwrap();
    let Planned { schedule, plan, .. } = plan(&module, &target, &PlanOptions::default()).unwrap();
    schedule.apply(&mut module);
    let mut case = Case { module, schedule, target, plan };
    case.plan.fingerprint = fingerprint(&case.module);
    case
}

#[track_caller]
fn accepts_all(file: &str, target: &str) {
    // Larger programs take their time in the dev profile; MEMPLAN_LARGEST raises the limit.
    let largest = std::env::var("MEMPLAN_LARGEST").map_or(200_000, |text| text.parse().unwrap());
    let mut refuted = String::new();
    for (name, text) in programs(file, largest) {
        let case = planned(&text, target);
        let start = std::time::Instant::now();
        let complaints = case.complaints();
        let instructions = case.module.instruction_count();
        eprintln!("{name}: {instructions} instructions, checked in {:?}", start.elapsed());
        let complaints: Vec<String> = complaints.lines().take(4).map(str::to_string).collect();
        if !complaints.is_empty() {
            refuted += &format!("{name}:\n  {}\n", complaints.join("\n  "));
        }
    }
    assert!(refuted.is_empty(), "{refuted}");
}

#[test]
fn cpu_programs() {
    accepts_all("cpu.hlo.txt", "cpu");
}

#[test]
fn gpu_programs() {
    accepts_all("gpu.hlo.txt", "gpu-h100");
}

#[test]
fn programs_without_a_schedule() {
    accepts_all("before.hlo.txt", "cpu");
}

#[test]
fn tpu_programs() {
    accepts_all("tpu.hlo.txt", "gpu-h100");
}
