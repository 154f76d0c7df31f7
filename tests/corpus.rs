//! The programs of the repository compared with XLA's own compilers: from JAX's modules, and on XLA's own schedules.
//! Every plan is proved, and every compiled program computes JAX's results.

use std::fmt::Write as _;

use memplan::interp::npz;
use memplan::ir::Module;
use memplan::memory::{Target, Totals};
use memplan::{CompileOptions, Objective, compile, hlo};
use memplan_testkit::{CorpusProgram, corpus, first_difference, numerics};

use crate::support::{explain, plan_and_prove, plan_to_run, prove, run_in_arena, snapshot};

/// XLA's compilers, and the targets that stand for their devices.
const COMPILERS: [(&str, &str); 3] = [("cpu", "cpu"), ("gpu", "gpu-h100"), ("tpu", "tpu-v5e")];

/// Bytes at whose multiples XLA's buffers begin on a GPU: of programs this small, a scalar more or less is as many.
const ALIGNMENT: u64 = 256;

#[test]
fn compiled_programs_need_no_more_than_xla_lets_them() {
    let mut text = String::new();
    for program in ours() {
        for (compiler, target) in COMPILERS {
            let name = format!("{} for {target}", program.name);
            let target = Target::find(target).unwrap();
            let (module, totals) = compiled(&program, &target);
            let (ours, theirs) = (requested(&totals), xla_total(&program, compiler));
            writeln!(text, "{name}: total {ours}, XLA {theirs}; temp {}", totals.temp.0).unwrap();
            assert!(ours <= theirs + ALIGNMENT, "{name}: {ours} bytes, XLA {theirs}");
            assert!(module.is_scheduled, "{name}");
        }
    }
    snapshot("corpus_compiled", &text);
}

#[test]
fn schedules_of_xla_are_planned_and_proved() {
    let mut text = String::new();
    for program in ours() {
        for (compiler, target) in COMPILERS {
            let target = Target::find(target).unwrap();
            let mut module = hlo::parse(&program.text(compiler)).unwrap();
            let planned = plan_and_prove(&mut module, &target)
                .unwrap_or_else(|error| panic!("{} for {compiler}: {error}", program.name));
            let totals = planned.plan.totals;
            let (ours, theirs) = (requested(&totals), xla_total(&program, compiler));
            writeln!(
                text,
                "{} for {}: total {ours}, XLA {theirs}; temp {}, at least {}",
                program.name, target.name, totals.temp.0, totals.temp_lower_bound.0
            )
            .unwrap();
        }
    }
    snapshot("corpus_scheduled", &text);
}

#[test]
fn compiled_programs_compute_what_jax_computes() {
    let target = Target::find("gpu-h100").unwrap();
    for case in numerics() {
        let name = &case.name;
        let mut module = hlo::parse(&case.text).unwrap();
        let inputs = npz::read_inputs(&module, case.inputs()).unwrap();
        compile(&mut module, &target, &CompileOptions::default())
            .unwrap_or_else(|error| panic!("{name}: {}", explain(&error)));
        let planned = plan_to_run(&mut module, &target).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found =
            run_in_arena(&module, &planned, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = npz::read_outputs(&found, case.outputs()).unwrap();
        assert_eq!(first_difference(&found, &expected, 2e-5), None, "{name}");
    }
}

/// The programs of which the plans are in snapshots.
fn ours() -> impl Iterator<Item = CorpusProgram> {
    corpus().into_iter().filter(|program| program.is_ours)
}

/// What a program becomes, verified after each pass, and the totals of its plan, which is proved. The text of what it
/// becomes is a program like any other: it is read, verified and planned once more.
fn compiled(program: &CorpusProgram, target: &Target) -> (Module, Totals) {
    let mut module = hlo::parse(&program.text("before")).unwrap();
    let options =
        CompileOptions { objective: Objective::Memory, verify_each_pass: true, ..CompileOptions::default() };
    let compiled = compile(&mut module, target, &options)
        .unwrap_or_else(|error| panic!("{} for {}: {}", program.name, target.name, explain(&error)));
    prove(&module, &compiled.planned, target)
        .unwrap_or_else(|error| panic!("{} for {}: {error}", program.name, target.name));
    plan_and_prove(&mut hlo::parse(&hlo::print(&module)).unwrap(), target)
        .unwrap_or_else(|error| panic!("{} for {}, once more: {error}", program.name, target.name));
    (module, compiled.planned.plan.totals)
}

/// What XLA's statistics count: constants are in its executable.
fn requested(totals: &Totals) -> u64 {
    totals.total.0 - totals.constants.0
}

/// Bytes of arguments, results that are no arguments, and temp, as XLA's compiler says.
fn xla_total(program: &CorpusProgram, compiler: &str) -> u64 {
    let text = std::fs::read_to_string(program.folder.join(format!("{compiler}.json"))).unwrap();
    let statistics: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bytes = |what: &str| statistics[format!("{what}_size_in_bytes")].as_u64().unwrap();
    bytes("argument") + bytes("output") - bytes("alias") + bytes("temp")
}
