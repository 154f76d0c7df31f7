//! Blocks of rows: one file per case under `tests/hlo/row_blocks/`, and random programs.
//!
//! The header gives the smallest array to divide, `// smallest: 256`, and how results compare: `// results: equal` bit
//! for bit, or `// results: close`, if sums are added block by block.

pub(crate) mod random;

use memplan_ir::{Module, Op, verify};
use memplan_memory::{Bytes, Target};
use memplan_passes::{Context, Pass, ROW_BLOCKS, RowBlocks, RunOptions, find, run};
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

/// Of four perceptrons of the same width, as many are cut as are asked for, the first ones first.
#[test]
fn a_part_of_the_arrays() {
    let perceptron = |n: usize| {
        format!(
            "x{n} = f32[64,8] parameter({n})
             wide{n} = f32[64,256] dot(x{n}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
             tanh{n} = f32[64,256] tanh(wide{n})
             y{n} = f32[64,8] dot(tanh{n}, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n"
        )
    };
    let perceptrons: String = (0..4).map(perceptron).collect();
    let source = format!(
        "HloModule perceptrons
         ENTRY main {{
             w = f32[8,256] parameter(4)
             v = f32[256,8] parameter(5)
             {perceptrons} ROOT all = (f32[64,8], f32[64,8], f32[64,8], f32[64,8]) tuple(y0, y1, y2, y3)
         }}"
    );
    let before = parse("perceptrons", &source);
    let loops = |parts_of_32| {
        let part = RowBlocks { parts_of_32, min_bytes: Bytes(1 << 10), ..ROW_BLOCKS };
        let mut after = before.clone();
        run(&mut after, &[&part], &Context { target: &target() }, RunOptions::default()).unwrap();
        check_equal("perceptrons", &before, &after);
        after.instructions.values().filter(|instruction| matches!(instruction.op, Op::While)).count()
    };
    assert_eq!([0, 16, 24, RowBlocks::WHOLE].map(loops), [0, 2, 3, 4]);
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
