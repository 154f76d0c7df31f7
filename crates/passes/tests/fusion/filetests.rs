//! One file per case under `tests/hlo/fusion/`. The header says what runs: `// target: cpu`, `// passes: fusion`.
//!
//! Each rule has a case that fuses and the nearest one that must not. The snapshot shows the module, and what the
//! report says about every edge.

use memplan_ir::{Module, verify};
use memplan_memory::Target;
use memplan_passes::{Context, FUSION, Fusion, FusionReport, Pass, RunOptions, find, run};

use crate::fusion::numbers;

#[test]
fn filetests() {
    insta::glob!("../../../../tests/hlo/fusion", "*.hlo", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let target = Target::find(header(&source, "target")).unwrap();
        let passes: Vec<&dyn Pass> =
            header(&source, "passes").split(',').map(|name| find(name.trim()).expect("a pass")).collect();
        let before = memplan_hlo::parse(&source).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        verify(&before).unwrap_or_else(|errors| panic!("{path:?}: {errors}"));
        let report = verdicts(&before, &target);

        let mut after = before.clone();
        let changes = |module: &mut Module| {
            let runs = run(module, &passes, &Context { target: &target }, RunOptions::default()).unwrap();
            verify(module).unwrap_or_else(|errors| panic!("{path:?}: {errors}"));
            runs.iter().any(|run| run.changed)
        };
        changes(&mut after);
        if source.contains("// evaluate: no") {
            eprintln!("{path:?}: not evaluated");
        } else {
            numbers::check_same(&before, &after);
        }
        let text = memplan_hlo::print(&after);
        assert!(!changes(&mut after), "{path:?}: a second run changes something");
        assert_eq!(text, memplan_hlo::print(&after), "{path:?}");

        insta::with_settings!({
            snapshot_path => "../../../../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("fusion", format!("{text}\n{}", report.to_text()));
        });
    });
}

/// The verdict on every edge.
fn verdicts(module: &Module, target: &Target) -> FusionReport {
    let fusion = Fusion { explain: true, ..FUSION };
    let report = fusion.run(&mut module.clone(), &Context { target }).unwrap().report;
    let report = report.expect("fusion was asked to explain itself");
    report.downcast_ref::<FusionReport>().expect("its report is one of fusion").clone()
}

pub(crate) fn header<'a>(source: &'a str, key: &str) -> &'a str {
    let line =
        source.lines().find_map(|line| line.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("a header `// {key}: `")).trim()
}
