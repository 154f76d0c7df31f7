//! Plans in the memory of a GPU process: as allocations and frees, and by memory space.

use memplan::memory::{Bytes, Target};
use memplan::pool::process::{Settings, place};
use memplan::pool::replay::{Platform, replay};
use memplan::{hlo, trace_of_plan};

use crate::support::plan_and_prove;

#[test]
fn the_peak_of_the_trace_is_the_peak_of_the_plan() {
    let target = Target::find("gpu-h100").unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let mut module = hlo::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let planned = plan_and_prove(&mut module, &target).unwrap();
        let trace = trace_of_plan(&module, &planned);
        let result = replay(&mut Platform::new(Bytes(1 << 50)), &trace, None);
        let totals = planned.plan.totals;
        let peak = result.peak(|sample| sample.requested).1;
        assert_eq!(peak, totals.peak_live.saturating_sub(totals.constants), "{path:?}");
        count += 1;
    }
    assert!(count >= 8);
}

/// What lies in collective and in host memory is counted there, in whole granules, and not in device memory.
#[test]
fn spaces_have_totals_of_their_own() {
    let target = Target::find("gpu-h100").unwrap();
    let mut module = hlo::parse(include_str!("hlo/plan/collective_and_host_memory.hlo")).unwrap();
    let plan = plan_and_prove(&mut module, &target).unwrap().plan;
    let spaces: Vec<_> =
        plan.spaces.iter().map(|s| (s.space.0, s.arguments.0, s.outputs.0, s.temp.0, s.total.0)).collect();
    assert_eq!(spaces, [(0, 0, 400, 400, 800), (1, 0, 0, 912, 2 << 20), (5, 400, 0, 0, 400)]);
    let placement = place(&target, &plan, &Settings::default()).unwrap();
    assert_eq!(
        (placement.program, placement.collective, placement.host),
        (Bytes(800), Bytes(2 << 20), Bytes(400))
    );
}
