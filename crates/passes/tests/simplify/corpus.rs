//! The whole pipeline over every program of the corpus.

use std::path::PathBuf;

use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, SIMPLIFY, TAKE_APART};

use crate::filetests::run_twice;

/// Every program is still valid afterwards, and a second run changes nothing.
#[test]
fn corpus_settles() {
    let Ok(programs) = std::fs::read_dir(shared().join("corpus")) else {
        eprintln!("skipped: no corpus");
        return;
    };
    let target = Target::find("cpu").unwrap();
    let mut programs: Vec<_> = programs.map(|entry| entry.unwrap().path()).collect();
    programs.sort();
    for program in programs {
        let Ok(source) = std::fs::read_to_string(program.join("before.hlo.txt")) else { continue };
        let before = memplan_hlo::parse(&source).unwrap();
        verify(&before).unwrap_or_else(|errors| panic!("{program:?}: {errors}"));
        let after = run_twice(&before, &[&TAKE_APART, &SIMPLIFY], &Context { target: &target });
        let n_calls = after.instructions.values().filter(|i| i.opcode() == memplan_ir::Opcode::Call).count();
        assert_eq!(n_calls, 0, "{program:?}: calls are inlined");
        eprintln!(
            "{}: {} -> {} instructions",
            program.file_name().unwrap().display(),
            before.instruction_count(),
            after.instruction_count()
        );
    }
}

/// `$MEMPLAN_SHARED`, by default beside the workspace.
pub(crate) fn shared() -> PathBuf {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared");
    std::env::var_os("MEMPLAN_SHARED").map_or_else(|| beside.into(), Into::into)
}
