//! The planner's plans of real programs.

use memplan_hlo::parse;
use memplan_ir::{Module, fingerprint};
use memplan_memory::Target;
use memplan_passes as passes;
use memplan_plan_hlo::{PlanOptions, Planned, plan};
use memplan_testkit::corpus;

use crate::support::Case;

/// What the planner makes of a program.
pub(crate) fn planned(text: &str, target: &str) -> Case {
    let mut module: Module = parse(text).unwrap();
    let target = Target::find(target).unwrap();
    passes::legalize(&mut module, &target).unwrap();
    let Planned { schedule, plan, .. } = plan(&module, &target, &PlanOptions::default()).unwrap();
    schedule.apply(&mut module);
    let mut case = Case { module, schedule, target, plan };
    case.plan.fingerprint = fingerprint(&case.module);
    case
}

#[track_caller]
fn accepts_all(form: &str, target: &str) {
    // Larger programs take their time in the dev profile; MEMPLAN_LARGEST raises the limit.
    let largest = std::env::var("MEMPLAN_LARGEST").map_or(200_000, |text| text.parse().unwrap());
    let mut refuted = String::new();
    for program in corpus() {
        let (name, text) = (&program.name, program.text(form));
        if text.len() > largest {
            continue;
        }
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
    accepts_all("cpu", "cpu");
}

#[test]
fn gpu_programs() {
    accepts_all("gpu", "gpu-h100");
}

#[test]
fn programs_without_a_schedule() {
    accepts_all("before", "cpu");
}

#[test]
fn tpu_programs() {
    accepts_all("tpu", "gpu-h100");
}
