//! The whole pipeline over every program of the corpus.

use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, SIMPLIFY, TAKE_APART};
use memplan_testkit::corpus;

use crate::simplify::filetests::run_twice;

/// Every program is still valid afterwards, and a second run changes nothing.
#[test]
fn corpus_settles() {
    let target = Target::find("cpu").unwrap();
    for program in corpus() {
        let before = memplan_hlo::parse(&program.text("before")).unwrap();
        let program = program.name;
        verify(&before).unwrap_or_else(|errors| panic!("{program}: {errors}"));
        let after = run_twice(&before, &[&TAKE_APART, &SIMPLIFY], &Context { target: &target });
        let n_calls = after.instructions.values().filter(|i| i.opcode() == memplan_ir::Opcode::Call).count();
        assert_eq!(n_calls, 0, "{program}: calls are inlined");
        eprintln!("{program}: {} -> {} instructions", before.instruction_count(), after.instruction_count());
    }
}
