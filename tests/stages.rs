//! The stages of `compile`, as a pipeline: programs keep their results, and a second run changes nothing.

use memplan::driver::Stages;
use memplan::interp::{Options, evaluate, npz};
use memplan::ir::{Module, verify};
use memplan::memory::Target;
use memplan::passes::{Context, FUSION, FUSION_OF_UPDATES, Pass, RunOptions};
use memplan_testkit::{assert_close, corpus, numerics};

#[test]
fn programs_keep_their_numbers() {
    for case in numerics() {
        for target in ["cpu", "gpu-h100"] {
            let mut module = memplan::hlo::parse(&case.text).unwrap();
            let inputs = npz::read_inputs(&module, case.inputs()).unwrap();
            run(&mut module, &Stages::default().up_to_fusion(Some(FUSION_OF_UPDATES)), target);
            let found = evaluate(&module, &inputs, &Options::default()).unwrap();
            let expected = npz::read_outputs(&found, case.outputs()).unwrap();
            assert_close(&format!("{} for {target}", case.name), &found, &expected, 2e-5);
        }
    }
}

#[test]
fn large_programs_stay_valid_and_settle() {
    for program in corpus() {
        for target in ["cpu", "gpu-h100"] {
            let mut module = memplan::hlo::parse(&program.text("before")).unwrap();
            run(&mut module, &Stages::default().up_to_fusion(Some(FUSION_OF_UPDATES)), target);
            let changed = run(&mut module, &FUSION, target);
            assert!(!changed, "{}: fusion has left something to fuse", program.name);
        }
    }
}

/// `examples/ablation.rs`, which writes `docs/ablation.md`.
#[test]
fn techniques_are_turned_off_one_by_one() {
    let mut programs = crate::ablation::programs(std::path::Path::new("tests/corpus")).unwrap();
    programs.retain(|(name, _)| name == "kmeans");
    let text = crate::ablation::document("tests/corpus", &programs).unwrap();
    assert!(text.contains("| recomputation |") && !text.contains("not compiled"), "{text}");
}

/// Runs a pass and says whether the last one in it changed anything. The result is valid.
fn run(module: &mut Module, pass: &dyn Pass, target: &str) -> bool {
    let target = Target::find(target).unwrap();
    let runs = memplan::passes::run(module, &[pass], &Context { target: &target }, RunOptions::default());
    let runs = runs.unwrap_or_else(|error| panic!("{}: {error}", module.name));
    verify(module).unwrap_or_else(|errors| panic!("{}: {errors}", module.name));
    runs.last().is_some_and(|run| run.changed)
}
