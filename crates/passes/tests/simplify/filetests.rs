//! One file per case under `tests/hlo/passes/<pass>/`. The header `// passes: a, b` says what runs, `// target: t` for
//! which machine.

use memplan_ir::{Module, verify};
use memplan_memory::Target;
use memplan_passes::{Context, Pass, RunOptions, find, run};

use crate::simplify::equivalence;

/// Passes that change where things are, not what is computed.
const MOVE_ONLY: &[&str] = &[
    "conditional-in-place",
    "dce",
    "flat-loop-state",
    "loop-state-in-place",
    "tuple-simplifier",
    "uninitialized-results",
    "uninitialized-stacks",
];

/// Passes that compute otherwise what devices send each other: a device alone would not get its part of a sum.
const ON_ALL_DEVICES: &[&str] = &["reduce-scatter-decomposer"];

/// Parse, verify, run, verify, run again: nothing may change; and what it computes is what it computed before.
#[test]
fn filetests() {
    insta::glob!("../../../../tests/hlo/passes", "*/*.hlo", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let target = Target::find(header(&source, "target").unwrap_or("toy")).expect("a built-in target");
        let context = Context { target: &target };
        let passes = passes_of(&source);
        let before = memplan_hlo::parse(&source).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        verify(&before).unwrap_or_else(|errors| panic!("{path:?}: {errors}"));

        let after = run_twice(&before, &passes, &context);
        let has = |list: &[&str]| passes.iter().all(|pass| list.contains(&pass.name()));
        match () {
            () if has(ON_ALL_DEVICES) => equivalence::check_devices(&before, &after),
            () if has(MOVE_ONLY) => equivalence::check_bits(&before, &after),
            () => equivalence::check(&before, &after),
        }

        insta::with_settings!({
            snapshot_path => "../../../../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("passes", memplan_hlo::print(&after));
        });
    });
}

/// The module after the passes, which is what it is after running them once more.
#[track_caller]
pub(crate) fn run_twice(before: &Module, passes: &[&dyn Pass], context: &Context<'_>) -> Module {
    let options = RunOptions { verify: true, ..RunOptions::default() };
    let mut once = before.clone();
    run(&mut once, passes, context, options).unwrap_or_else(|error| panic!("{}: {error}", before.name));
    let mut twice = once.clone();
    let again = run(&mut twice, passes, context, options).unwrap();
    let (first, second) = (memplan_hlo::print(&once), memplan_hlo::print(&twice));
    for (first, second) in first.lines().zip(second.lines()) {
        assert_eq!(first, second, "{}: running the passes again changes the module", before.name);
    }
    assert!(first == second, "{}: running the passes again adds or drops lines", before.name);
    for pass in again {
        assert!(!pass.changed, "{}: pass {} reports a change on its own output", before.name, pass.name);
    }
    once
}

fn passes_of(source: &str) -> Vec<&'static dyn Pass> {
    let names = header(source, "passes").expect("a header `// passes:`");
    names.split(',').map(|name| find(name.trim()).unwrap_or_else(|| panic!("no pass {name}"))).collect()
}

/// What a header line `// KEY: VALUE` says.
fn header<'s>(source: &'s str, key: &str) -> Option<&'s str> {
    source
        .lines()
        .find_map(|line| line.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(": "))
        .map(str::trim)
}
