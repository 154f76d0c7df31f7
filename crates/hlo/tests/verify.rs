//! The verifier finds nothing wrong with what XLA wrote, before and after optimization for three kinds of device.

use std::path::Path;

#[test]
fn the_corpus_is_valid() {
    let shared = std::env::var_os("MEMPLAN_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), Into::into);
    let Ok(programs) = std::fs::read_dir(shared.join("corpus")) else {
        eprintln!("skipped: no corpus");
        return;
    };
    let mut checked = 0;
    for program in programs {
        let program = program.expect("the corpus is readable").path();
        for kind in ["before", "cpu", "gpu", "tpu"] {
            let path = program.join(kind).with_extension("hlo.txt");
            let Ok(source) = std::fs::read_to_string(&path) else { continue };
            let module = memplan_hlo::parse(&source).expect("the corpus parses");
            if let Err(errors) = memplan_ir::verify(&module) {
                panic!("{}:\n{errors}", path.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 0, "the corpus has modules");
}
