//! Real programs made by JAX: planned, compiled, proved; a snapshot has their bytes.

use std::fmt::Write as _;

use memplan::memory::Target;
use memplan::{CompileOptions, compile, hlo};
use memplan_testkit::{first_difference, random_inputs};

use crate::support::{evaluate, explain, plan_and_prove, plan_to_run, run_in_arena};

#[test]
fn examples_need() {
    let mut count = 0;
    insta::glob!("../examples", "*.hlo.txt", |path| {
        let source = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let inputs = random_inputs(&source, 1);
        let meant = evaluate(&source, &inputs).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let mut text = String::new();
        for name in ["cpu", "gpu-h100"] {
            let target = Target::find(name).unwrap();
            let mut module = source.clone();
            let planned = plan_and_prove(&mut module, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let mut module = source.clone();
            let options = CompileOptions { verify_each_pass: true, ..CompileOptions::default() };
            let compiled = compile(&mut module, &target, &options)
                .unwrap_or_else(|error| panic!("{path:?}: {}", explain(&error)));

            let runnable = plan_to_run(&mut module, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let found = run_in_arena(&module, &runnable, &inputs).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            if let Some(difference) = first_difference(&found, &meant, 1e-4) {
                panic!("{path:?}: {difference}");
            }
            let (plain, compiled) = (planned.plan.totals, compiled.planned.plan.totals);
            assert!(compiled.total <= plain.total, "{path:?}: compiled for {name} it needs more");
            writeln!(
                text,
                "{name}: as it stands temp {} total {}; compiled temp {} total {}",
                plain.temp.0, plain.total.0, compiled.temp.0, compiled.total.0
            )
            .unwrap();
        }
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            insta::assert_snapshot!("example", text);
        });
        count += 1;
    });
    assert!(count >= 8, "there are {count} examples");
}

#[path = "../examples/own_pass.rs"]
mod own_pass;

#[test]
fn a_pass_of_another_crate_reports_and_fails() {
    own_pass::main().unwrap();
}

#[path = "../examples/plan_other_ir.rs"]
mod plan_other_ir;

#[test]
fn a_graph_that_is_not_hlo_is_planned() {
    plan_other_ir::main().unwrap();
}
