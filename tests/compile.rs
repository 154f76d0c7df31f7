//! One file per case under `tests/hlo/compile/`: the whole pipeline for one target, run in the arena.

use std::fmt::Write as _;

use memplan::memory::Target;
use memplan::plan::PlanOptions;
use memplan::{CompileOptions, Objective, compile, hlo};
use memplan_testkit::{Fixture, first_difference, random_inputs};

use crate::support::{evaluate, explain, plan_to_run, run_in_arena};

#[test]
fn compile_filetests() {
    insta::glob!("hlo/compile/*.hlo", |path| {
        let fixture = Fixture::read(path).unwrap();
        let target = Target::find(fixture.target.as_deref().unwrap_or("gpu-h100")).unwrap();
        let source = hlo::parse(&fixture.source).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut module = source.clone();
        let options = CompileOptions {
            objective: Objective::Memory,
            verify_each_pass: true,
            ..CompileOptions::default()
        };
        let compiled = compile(&mut module, &target, &options)
            .unwrap_or_else(|error| panic!("{path:?}: {}", explain(&error)));

        let mut alone = source.clone();
        let again = compile(&mut alone, &target, &CompileOptions { threads: 1, ..options }).unwrap();
        assert!(
            hlo::print(&alone) == hlo::print(&module) && again.planned.plan == compiled.planned.plan,
            "{path:?}: threads show"
        );

        // The kernels of the interpreter need working memory that those of the target do not.
        let mut with_scratch = module.clone();
        let planned = plan_to_run(&mut with_scratch, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        for seed in 0..3 {
            let inputs = random_inputs(&source, seed);
            let meant = evaluate(&source, &inputs).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let found =
                run_in_arena(&with_scratch, &planned, &inputs).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            if let Some(difference) = first_difference(&found, &meant, 1e-5) {
                panic!("{path:?}: {difference}");
            }
        }

        let plain = plan_without_compiling(&source, &target);
        let totals = compiled.planned.plan.totals;
        assert!(
            totals.total <= plain,
            "{path:?}: {} bytes compiled, {} as it stands",
            totals.total.0,
            plain.0
        );
        let mut text = hlo::print(&module);
        let (t, total, plain) = (totals.temp.0, totals.total.0, plain.0);
        writeln!(text, "\ntemp {t} total {total}; planned without compiling, total {plain}").unwrap();
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("compile", text);
        });
    });
}

/// Total bytes of a program as it stands, in the layouts of the machine.
fn plan_without_compiling(source: &memplan::ir::Module, target: &Target) -> memplan::memory::Bytes {
    let mut module = source.clone();
    crate::support::run_passes(&mut module, &[&memplan::passes::LAYOUT_ASSIGNMENT], target).unwrap();
    crate::support::run_passes(&mut module, &[&memplan::passes::LEGALIZE], target).unwrap();
    let planned = memplan::plan::plan(&module, target, &PlanOptions::default()).unwrap();
    planned.plan.totals.total
}

#[test]
fn a_training_step_written_out_keeps_little_of_each_layer() {
    for target in ["gpu-h100", "tpu-v5e"] {
        let target = Target::find(target).unwrap();
        let temp = |layers| {
            let mut module = memplan_testkit::unrolled_training(layers);
            let options =
                CompileOptions { objective: Objective::Memory, threads: 1, ..CompileOptions::default() };
            compile(&mut module, &target, &options).unwrap().planned.plan.totals.temp.0
        };
        // What a layer keeps for the way back: eight arrays of its width, two four times as wide, and a number for each
        // row; not how much each row attends to each other.
        let (two, four) = (temp(2), temp(4));
        assert!(four - two <= 2 * 17 * 512 * 256 * 4, "{}: {two} bytes, {four} bytes", target.name);
    }
}
