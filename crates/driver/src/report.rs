//! The work of the stages of `compile`, as data.

use std::time::Duration;

use memplan_fast_memory::FastMemoryReport;
use memplan_ir::Module;
use memplan_memory::Bytes;
use memplan_passes::PassRun;
use memplan_plan_hlo::{RegionReport, ScheduleReport};

use crate::{FirstGuess, Price};

/// The work of one stage of `compile`.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// How long it took.
    pub time: Duration,
    /// Total bytes of the program after it, planned unchanged; `None` when not measured.
    pub total: Option<Bytes>,
    /// Seconds of one run of that program, by the cost model; `None` when not measured.
    pub seconds: Option<f64>,
    /// Its decisions.
    pub report: StageReport,
}

/// The decisions of one stage.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum StageReport {
    /// The stage reports none.
    #[default]
    Nothing,
    /// Passes in the order in which they ran, each with its report.
    Passes(Vec<PassRun>),
    /// Schedules that were assigned, among them the one that needs fewest bytes.
    Schedules(Vec<TriedSchedule>),
    /// Programs that were planned, among them the one that needs fewest bytes.
    Programs(TriedPrograms),
    /// The contents of fast memory.
    FastMemory(FastMemoryReport),
}

/// A schedule that was assigned.
#[derive(Clone, Debug)]
pub struct TriedSchedule {
    /// The peak of live bytes, by the weights of this schedule's objective.
    pub peak: Bytes,
    /// Each sequential computation with the results of each scheduling method, callees first.
    pub computations: Vec<(Box<str>, RegionReport)>,
    /// Whether the plan uses this schedule.
    pub is_chosen: bool,
}

impl TriedSchedule {
    pub(crate) fn new(module: &Module, report: ScheduleReport) -> TriedSchedule {
        let computations = report.computations.into_iter();
        let computations = computations.map(|(id, of)| (module.computations[id].name.clone(), of)).collect();
        TriedSchedule { peak: report.peak, computations, is_chosen: false }
    }
}

/// The alternatives that `compile` chose from.
#[derive(Clone, Debug, Default)]
pub struct TriedPrograms {
    /// First guesses of the order, without those that lead to the same program as an earlier one.
    pub guesses: Vec<TriedGuess>,
    /// Variants and ways to fuse, likewise.
    pub programs: Vec<TriedProgram>,
}

/// A first guess of the order.
#[derive(Clone, Debug)]
pub struct TriedGuess {
    /// The guess.
    pub guess: FirstGuess,
    /// Total bytes of the quick plan; `None` if there was only one guess.
    pub total: Option<Bytes>,
    /// Whether the chosen program uses this guess.
    pub is_chosen: bool,
}

/// A fused program.
#[derive(Clone, Debug)]
pub struct TriedProgram {
    /// The name of the variant; `usual` for the unchanged stages.
    pub variant: &'static str,
    /// The first guess of its order.
    pub guess: FirstGuess,
    /// The name of the pass that fused it; `None` if nothing is fused.
    pub fusion: Option<&'static str>,
    /// Total bytes and time of the plan with fast memory; `None` if a quick plan ruled it out.
    pub price: Option<Price>,
    /// Whether this program was chosen.
    pub is_chosen: bool,
}
