//! Programs of JAX: what they mean stays what it was, and nothing is left to do after the passes.

use std::path::PathBuf;

use memplan_interp::npz;
use memplan_ir::{Module, verify};
use memplan_memory::Target;
use memplan_passes::{
    ALL, Context, FUSION, FUSION_OF_UPDATES, LOOP_RESIDUALS, Pass, REMAT, RunOptions, SCATTER_TO_SELECT,
    SIMPLIFY, run,
};
use memplan_testkit::{corpus, numerics};

use crate::numbers;

/// What `compile` does to a module before it schedules it.
const PIPELINE: [&dyn Pass; 7] =
    [&SIMPLIFY, &LOOP_RESIDUALS, &SIMPLIFY, &SCATTER_TO_SELECT, &SIMPLIFY, &REMAT, &FUSION_OF_UPDATES];

#[test]
fn programs_keep_their_numbers() {
    for case in numerics() {
        for target in ["cpu", "gpu-h100"] {
            let mut module = memplan_hlo::parse(&case.text).unwrap();
            let inputs = npz::read_inputs(&module, case.inputs()).unwrap();
            apply(&mut module, &PIPELINE, target);
            let found = numbers::results(&module, &inputs);
            let expected = npz::read_outputs(&found, case.outputs()).unwrap();
            numbers::check_close(&case.name, &found, &expected);
        }
    }
}

#[test]
fn large_programs_stay_valid_and_settle() {
    for program in corpus() {
        for target in ["cpu", "gpu-h100"] {
            let mut module = parse(&program.text_path("before"));
            apply(&mut module, &PIPELINE, target);
            let changed = apply(&mut module, &[&FUSION], target);
            assert!(!changed, "{}: fusion has left something to fuse", program.name);
        }
    }
}

/// Passes that come last, and leave a program whose peak is elsewhere behind barriers: run again, they look there.
const COME_LAST: [&str; 2] = ["remat-behind-barriers", "remat-behind-selects"];

/// Every other pass, on programs as the passes before it leave them: run again, it changes nothing.
#[test]
fn every_pass_settles() {
    let target = Target::find("gpu-h100").unwrap();
    let context = Context { target: &target };
    for path in corpus().iter().map(|program| program.text_path("before")) {
        let mut simplified = parse(&path);
        apply(&mut simplified, &[&SIMPLIFY], "gpu-h100");
        for pass in ALL.iter().filter(|pass| !COME_LAST.contains(&pass.name())) {
            let mut module = simplified.clone();
            let run = |module: &mut Module| {
                pass.run(module, &context).unwrap_or_else(|error| panic!("{path:?}: {error}"))
            };
            run(&mut module);
            verify(&module).unwrap_or_else(|errors| panic!("{path:?}, {}: {errors}", pass.name()));
            let before = memplan_hlo::print(&module);
            let changed = run(&mut module);
            assert!(!changed, "{path:?}: a second run of {} changes something", pass.name());
            assert!(before == memplan_hlo::print(&module), "{path:?}: {} changes and says not", pass.name());
        }
    }
}

fn parse(path: &PathBuf) -> Module {
    memplan_hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs passes and says whether the last one changed anything. The result is valid.
fn apply(module: &mut Module, passes: &[&dyn Pass], target: &str) -> bool {
    let target = Target::find(target).unwrap();
    let runs = run(module, passes, &Context { target: &target }, RunOptions::default()).unwrap();
    verify(module).unwrap_or_else(|errors| panic!("{}: {errors}", module.name));
    runs.last().is_some_and(|run| run.changed)
}
