//! One file per case under `tests/hlo/estimate/`, named after the compiler: the estimated program is proved, evaluates
//! like the original, and only then compared with the snapshot.

use memplan::ir::{ElementType, Module, Shape};
use memplan::memory::{Compiler, Target};
use memplan::{check, estimate, hlo, passes};
use memplan_testkit::{first_difference, random_inputs};

use crate::support::evaluate;

/// How much results may differ, relative to the largest element: by the order of sums, and where operands of products are
/// rounded to eight bits, or results are.
fn tolerance(compiler: &Compiler, source: &Module) -> f64 {
    let becomes_narrow = compiler.passes.iter().any(|pass| pass == "bfloat16-propagation");
    let result = source.shape(source.entry_computation().root).leaves();
    let is_narrow = |leaf: &Shape| leaf.as_array().is_some_and(|a| a.element_type == ElementType::Bf16);
    if becomes_narrow || result.iter().any(|(_, leaf)| is_narrow(leaf)) { 2e-2 } else { 1e-5 }
}

#[test]
fn estimate_filetests() {
    insta::glob!("hlo/estimate/*.hlo", |path| {
        let name = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.split("__").next());
        let compiler = Compiler::find(name.unwrap()).unwrap();
        let target = Target::find(&compiler.target).unwrap();
        let source = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let found = estimate(&source, &compiler, &target).unwrap();

        let machine = compiler.on(&target);
        let proof = check::check(&found.module, &found.planned.schedule, &machine, &found.planned.plan);
        assert!(proof.is_ok(), "{path:?}: {proof:?}");
        let inputs = random_inputs(&source, 0);
        let meant = evaluate(&source, &inputs).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let made = evaluate(&found.module, &inputs).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(first_difference(&made, &meant, tolerance(&compiler, &source)), None, "{path:?}");

        let text = hlo::print(&found.module);
        hlo::parse(&text).unwrap_or_else(|error| panic!("{path:?}: what `--emit hlo` writes: {error}"));
        let totals = found.totals;
        let listing = format!(
            "arguments {} outputs {} aliased {} temp {} total {}\n\n{text}",
            totals.arguments.0, totals.outputs.0, totals.aliased.0, totals.temp.0, found.total.0,
        );
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("estimate", listing);
        });
    });
}

#[test]
fn compilers_name_passes_that_there_are() {
    for compiler in Compiler::built_in() {
        for pass in &compiler.passes {
            assert!(passes::find(pass).is_some(), "{}: {pass}", compiler.name);
        }
    }
}
