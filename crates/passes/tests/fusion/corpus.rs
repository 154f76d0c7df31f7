//! Programs of JAX: what they mean stays what it was, and nothing is left to do after the passes.

use std::fs::File;
use std::path::PathBuf;

use memplan_interp::npz;
use memplan_ir::{Module, verify};
use memplan_memory::Target;
use memplan_passes::{
    ALL, Context, FUSION, FUSION_OF_UPDATES, LOOP_RESIDUALS, Pass, REMAT, RunOptions, SCATTER_TO_SELECT,
    SIMPLIFY, run,
};

use crate::numbers;

/// What `compile` does to a module before it schedules it.
const PIPELINE: [&dyn Pass; 7] =
    [&SIMPLIFY, &LOOP_RESIDUALS, &SIMPLIFY, &SCATTER_TO_SELECT, &SIMPLIFY, &REMAT, &FUSION_OF_UPDATES];

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
            let changed = apply(&mut module, &[&FUSION], target);
            assert!(!changed, "{case:?}: fusion has left something to fuse");
        }
    }
}

/// Passes that come last, and leave a program whose peak is elsewhere behind barriers: run again, they look there.
const COME_LAST: [&str; 2] = ["remat-behind-barriers", "remat-behind-selects"];

/// Every other pass, on examples and programs as the passes before it leave them: run again, it changes nothing.
#[test]
fn every_pass_settles() {
    let target = Target::find("gpu-h100").unwrap();
    let context = Context { target: &target };
    for path in examples().into_iter().chain(folders("corpus").iter().map(|case| case.join("before.hlo.txt")))
    {
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

fn examples() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(".hlo.txt")).collect();
    paths.sort();
    paths
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
