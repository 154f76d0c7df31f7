//! Plans as allocations and frees: what is live in the trace is what the plan says is live.

use memplan::codegen::replay::{Platform, replay};
use memplan::memory::{Bytes, Target};
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
