//! The time of a program by the cost model, and its parts.

use memplan::analysis::RunEstimate;
use memplan::ir::Module;
use memplan::memory::{Bytes, Target};
use memplan::plan::{Planned, ProgramCost};

/// States how long one run takes and its largest parts; empty for targets without speeds.
pub(crate) fn line(module: &Module, planned: &Planned, target: &Target) -> String {
    let run = ProgramCost::new(module, &planned.facts, &planned.plan, target).run;
    if run.seconds <= 0.0 {
        return String::new();
    }
    let parts = shares(&run).filter(|(_, share)| *share >= 0.005);
    let parts: Vec<String> = parts.map(|(name, share)| format!("{:.0} % {name}", 100.0 * share)).collect();
    format!(
        "one run takes {} by the cost model: {}; {} moved\n",
        duration(run.seconds),
        parts.join(", "),
        Bytes(run.main_memory_bytes as u64)
    )
}

/// The parts of a run's time, the largest first.
fn shares(run: &RunEstimate) -> impl Iterator<Item = (&'static str, f64)> {
    let mut parts = [
        ("links to other devices", run.link_seconds),
        ("matrix work", run.matrix_seconds),
        ("vector work", run.vector_seconds),
        ("memory", run.memory_seconds),
        ("overhead", run.overhead),
        ("waiting", run.waiting),
    ];
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let seconds = run.seconds;
    parts.into_iter().map(move |(name, part)| (name, part / seconds))
}

/// The change in percent; empty if there was nothing before.
pub(crate) fn change_in_percent(before: f64, after: f64) -> String {
    if before > 0.0 { format!("{:+.1} %", 100.0 * (after / before - 1.0)) } else { String::new() }
}

/// Seconds in the unit with at most three digits before the point.
pub(crate) fn duration(seconds: f64) -> String {
    let (factor, unit) = match seconds {
        s if s >= 1.0 => (1.0, "s"),
        s if s >= 1e-3 => (1e3, "ms"),
        s if s >= 1e-6 => (1e6, "µs"),
        _ => (1e9, "ns"),
    };
    format!("{:.3} {unit}", seconds * factor)
}
