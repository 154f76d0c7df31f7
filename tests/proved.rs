//! One file per case under `tests/hlo/proved/`: valid programs of kinds that are rarely met. Each is planned as it is
//! scheduled, or compiled, for machines of every kind, proved, and run in the arena where the evaluator can run it.

use memplan::ir::Module;
use memplan::memory::Target;
use memplan::plan::Planned;
use memplan::{CompileOptions, compile, hlo};
use memplan_testkit::first_difference;

use memplan_properties::{evaluate_on_devices, inputs_of_devices, run_in_arena_on_devices};

use crate::support::{explain, plan_and_prove, plan_to_run, prove};

const TARGETS: [&str; 5] = ["toy", "cpu", "gpu-h100", "tpu-v5e", "tpu-v4"];

#[test]
fn proved_filetests() {
    let mut failures = Vec::new();
    insta::glob!("hlo/proved/*.hlo", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let source = hlo::parse(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        memplan::ir::verify(&source).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        for name in TARGETS {
            let target = Target::find(name).unwrap();
            let outcome = std::panic::catch_unwind(|| check(&source, &target));
            if let Err(failure) = outcome.unwrap_or_else(|_| Err("panics".into())) {
                failures.push(format!("{}, {name}: {failure}", path.display()));
            }
        }
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Rows that a loop sends to the host take their bytes there, and a row at a time on the device.
#[test]
fn what_is_offloaded_is_counted_on_the_host() {
    let text = std::fs::read_to_string("tests/hlo/proved/offloaded_rows.hlo").unwrap();
    let source = hlo::parse(&text).unwrap();
    let gpu = Target::find("gpu-h100").unwrap();
    let on_host = |planned: &Planned| {
        let host = planned.plan.spaces.iter().find(|space| space.name == "host");
        host.map_or(0, |space| space.temp.0)
    };
    let planned = plan_and_prove(&mut source.clone(), &gpu).unwrap();
    assert!(on_host(&planned) >= 4 * 64 * 32 * 4, "planned as it stands");
    let compiled = compile(&mut source.clone(), &gpu, &CompileOptions::default()).unwrap();
    assert_eq!(on_host(&compiled.planned), 4 * 64 * 32 * 4, "compiled");
}

/// Plans a program as it stands and, without a schedule, compiles it; proves both, and compares what they compute.
fn check(source: &Module, target: &Target) -> Result<(), String> {
    let mut planned = source.clone();
    plan_and_prove(&mut planned, target).map_err(|error| format!("planned: {error}"))?;
    run(source, source.clone(), target).map_err(|error| format!("planned to run: {error}"))?;
    if source.is_scheduled {
        return Ok(());
    }
    let mut module = source.clone();
    let options = CompileOptions { verify_each_pass: true, ..CompileOptions::default() };
    let compiled =
        compile(&mut module, target, &options).map_err(|e| format!("compiled: {}", explain(&e)))?;
    prove(&module, &compiled.planned, target).map_err(|error| format!("compiled: {error}"))?;
    run(source, module, target).map_err(|error| format!("compiled: {error}"))
}

/// Runs a program in the arena of a plan for it, if the evaluator knows what it does.
fn run(source: &Module, mut module: Module, target: &Target) -> Result<(), String> {
    let planned = plan_to_run(&mut module, target)?;
    let inputs = inputs_of_devices(source);
    let Ok(meant) = evaluate_on_devices(source, &inputs) else { return Ok(()) };
    let found = run_in_arena_on_devices(&module, &planned, &inputs)?;
    first_difference(&found, &meant, 1e-5).map_or(Ok(()), Err)
}
