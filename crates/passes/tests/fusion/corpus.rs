//! Every pass on programs of JAX: run again, it has nothing left to do.

use memplan_ir::{Module, verify};
use memplan_memory::Target;
use memplan_passes::{ALL, Context, Pass, SIMPLIFY};
use memplan_testkit::corpus;

/// Passes that come last, and leave a program whose peak is elsewhere behind barriers: run again, they look there.
const COME_LAST: [&str; 2] = ["remat-behind-barriers", "remat-behind-selects"];

/// Every other pass, on programs as the passes before it leave them: run again, it changes nothing.
#[test]
fn every_pass_settles() {
    let target = Target::find("gpu-h100").unwrap();
    let context = Context { target: &target };
    for program in corpus() {
        let name = program.name.as_str();
        let mut simplified = memplan_hlo::parse(&program.text("before")).unwrap();
        SIMPLIFY.run(&mut simplified, &context).unwrap();
        for pass in ALL.iter().filter(|pass| !COME_LAST.contains(&pass.name())) {
            let mut module = simplified.clone();
            let run = |module: &mut Module| {
                pass.run(module, &context).unwrap_or_else(|error| panic!("{name}: {error}")).changed
            };
            run(&mut module);
            verify(&module).unwrap_or_else(|errors| panic!("{name}, {}: {errors}", pass.name()));
            let before = memplan_hlo::print(&module);
            let changed = run(&mut module);
            assert!(!changed, "{name}: a second run of {} changes something", pass.name());
            assert!(before == memplan_hlo::print(&module), "{name}: {} changes and says not", pass.name());
        }
    }
}
