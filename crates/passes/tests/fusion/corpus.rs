//! Programs of JAX: what they mean stays what it was, and nothing is left to do after the passes.

use std::fs::File;
use std::path::PathBuf;

use memplan_interp::npz;
use memplan_ir::{Module, verify};
use memplan_memory::Target;
use memplan_passes::{Context, FUSION, Pass, REMAT, RunOptions, SCATTER_TO_SELECT, SIMPLIFY, run};

use crate::numbers;

/// What `compile` does to a module before it schedules it.
const PIPELINE: [Pass; 5] = [SIMPLIFY, SCATTER_TO_SELECT, SIMPLIFY, REMAT, FUSION];

#[test]
fn programs_keep_their_numbers() {
    for case in folders("numerics") {
        for target in ["cpu", "gpu-h100"] {
            let name = case.file_name().unwrap().to_string_lossy().into_owned();
            let mut module = parse(&case.join("module.hlo.txt"));
            let inputs = npz::read_inputs(&module, File::open(case.join("inputs.npz")).unwrap()).unwrap();
            apply(&mut module, &PIPELINE, target);
            let found = numbers::results(&module, &inputs);
            let expected = npz::read_outputs(&found, File::open(case.join("outputs.npz")).unwrap()).unwrap();
            numbers::check_close(&name, &found, &expected);
        }
    }
}

#[test]
fn large_programs_stay_valid_and_settle() {
    for case in folders("corpus") {
        for target in ["cpu", "gpu-h100"] {
            let mut module = parse(&case.join("before.hlo.txt"));
            apply(&mut module, &PIPELINE, target);
            let changed = apply(&mut module, &[FUSION], target);
            assert!(!changed, "{case:?}: fusion has left something to fuse");
        }
    }
}

fn parse(path: &PathBuf) -> Module {
    memplan_hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs passes and says whether the last one changed anything. The result is valid.
fn apply(module: &mut Module, passes: &[Pass], target: &str) -> bool {
    let target = Target::find(target).unwrap();
    let runs = run(module, passes, &Context { target: &target }, RunOptions::default()).unwrap();
    verify(module).unwrap_or_else(|errors| panic!("{}: {errors}", module.name));
    runs.last().is_some_and(|run| run.changed)
}

/// The folders in a part of `$MEMPLAN_SHARED`, by default beside the workspace.
fn folders(part: &str) -> Vec<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared");
    let shared = std::env::var_os("MEMPLAN_SHARED").map_or_else(|| beside.into(), PathBuf::from);
    let Ok(entries) = std::fs::read_dir(shared.join(part)) else {
        eprintln!("skipped: no corpus");
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}
