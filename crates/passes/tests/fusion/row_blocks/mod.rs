//! Blocks of rows: one file per case under `tests/hlo/row_blocks/`, and random programs.
//!
//! The header gives the smallest array to divide, `// smallest: 256`, and how results compare: `// results: equal` bit
//! for bit, or `// results: close`, if sums are added block by block.

pub(crate) mod random;

use memplan_ir::{Module, verify};
use memplan_memory::{Bytes, Target};
use memplan_passes::{Context, Pass, ROW_BLOCKS, RunOptions, find, run};
use memplan_testkit::random_inputs;

use crate::fusion::filetests::header;
use crate::fusion::numbers;

#[test]
fn filetests() {
    insta::glob!("../../../../../tests/hlo/row_blocks", "*.hlo", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let name = path.display().to_string();
        let before = parse(&name, &source);
        let smallest = Bytes(header(&source, "smallest").parse().unwrap());
        let after = cut_twice(&name, &before, smallest);
        match header(&source, "results") {
            "equal" => check_equal(&name, &before, &after),
            "close" => numbers::check_same(&before, &after),
            other => panic!("{name}: results are equal or close, not {other}"),
        }
        insta::with_settings!({
            snapshot_path => "../../../../../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("row_blocks", memplan_hlo::print(&after));
        });
    });
}

/// Calls are inlined first, as the pass requires.
pub(crate) fn parse(name: &str, source: &str) -> Module {
    let mut module = memplan_hlo::parse(source).unwrap_or_else(|error| panic!("{name}: {error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let passes: Vec<&dyn Pass> =
        ["call-inliner", "tuple-simplifier", "dce"].map(|name| find(name).unwrap()).into();
    run(&mut module, &passes, &Context { target: &target() }, RunOptions::default()).unwrap();
    module
}

fn cut_twice(name: &str, before: &Module, smallest: Bytes) -> Module {
    let mut after = before.clone();
    ROW_BLOCKS.cut(&mut after, &target(), smallest).unwrap();
    verify(&after).unwrap_or_else(|errors| panic!("{name}: {errors}\n{}", memplan_hlo::print(&after)));
    let text = memplan_hlo::print(&after);
    assert!(!ROW_BLOCKS.cut(&mut after, &target(), smallest).unwrap(), "{name}: cut again:\n{text}");
    assert_eq!(text, memplan_hlo::print(&after), "{name}");
    after
}

#[track_caller]
fn check_equal(name: &str, before: &Module, after: &Module) {
    for seed in 1..=3 {
        let inputs = random_inputs(before, seed);
        let (found, expected) = (numbers::results(after, &inputs), numbers::results(before, &inputs));
        assert!(found == expected, "{name}: other bits with inputs {seed}\n{}", memplan_hlo::print(after));
    }
}

pub(crate) fn target() -> Target {
    Target::find("gpu-h100").unwrap()
}
