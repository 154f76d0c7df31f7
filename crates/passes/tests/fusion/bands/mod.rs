//! Bands of rows: one file per case under `tests/hlo/bands/`, and random networks. Results are the same bit for bit.
//!
//! The header gives the share of bytes that is aimed at, `// share: 0.5`.

mod random;

use memplan_ir::{Module, verify};
use memplan_memory::Target;
use memplan_passes::{BANDS, Bands, BandsReport, Context, Pass};
use memplan_testkit::random_inputs;

use crate::fusion::filetests::header;
use crate::fusion::numbers;
use crate::fusion::row_blocks::parse;

#[test]
fn filetests() {
    insta::glob!("../../../../../tests/hlo/bands", "*.hlo", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let name = path.display().to_string();
        let before = parse(&name, &source);
        let bands = Bands { share: header(&source, "share").parse().unwrap(), ..BANDS };
        let (after, report) = in_bands(&name, &before, bands);
        check_equal(&name, &before, &after);
        insta::with_settings!({
            snapshot_path => "../../../../../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("bands", format!("{report:#?}\n\n{}", memplan_hlo::print(&after)));
        });
    });
}

/// Runs the pass, and once more, which finds nothing.
fn in_bands(name: &str, before: &Module, bands: Bands) -> (Module, Option<BandsReport>) {
    let target = Target::find("mcu-cortex-m7").unwrap();
    let mut after = before.clone();
    let outcome = bands.run(&mut after, &Context { target: &target }).unwrap();
    verify(&after).unwrap_or_else(|errors| panic!("{name}: {errors}\n{}", memplan_hlo::print(&after)));
    let mut twice = after.clone();
    assert!(
        !outcome.changed || !bands.run(&mut twice, &Context { target: &target }).unwrap().changed,
        "{name}"
    );
    assert_eq!(memplan_hlo::print(&after), memplan_hlo::print(&twice), "{name}");
    (after, outcome.report.and_then(|report| report.downcast_ref::<BandsReport>().cloned()))
}

#[track_caller]
fn check_equal(name: &str, before: &Module, after: &Module) {
    for seed in 1..=2 {
        let inputs = random_inputs(before, seed);
        let (found, expected) = (numbers::results(after, &inputs), numbers::results(before, &inputs));
        assert!(
            found == expected,
            "{name}: other bits with inputs {seed}\n{}\nbecame\n{}",
            memplan_hlo::print(before),
            memplan_hlo::print(after)
        );
    }
}
