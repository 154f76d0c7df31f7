//! The whole pipeline in one screen: from what JAX hands over to a program that needs less memory, with a proof.

use std::time::{Duration, Instant};

use crate::FirstGuess;
use crate::parallel;
use crate::program::{Effort, Program};
use crate::report::{Stage, StageReport, TriedFusion, TriedPrograms};
use crate::stages::Stages;
use crate::watch::Watch;
use memplan_check as check;
use memplan_fast_memory::{FastMemoryOptions, Objective};
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use memplan_passes::{FusionReport, OneIn, PassError, Report};
use memplan_planner::{AssignOptions, PlanError, Planned, ScheduleOptions};

/// How to compile.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// The passes, stage by stage.
    pub stages: Stages,
    /// First guesses of the order, each carried through to a plan at a glance, the cheapest first. Values are recomputed
    /// under the one whose plan is smallest. A program that no guess can order is compiled in the order of its text.
    pub guesses: Vec<FirstGuess>,
    /// The part of the scheduling budget that telling guesses apart takes, for each guess: moves that matter are found
    /// first.
    pub glance: OneIn,
    /// How to schedule.
    pub schedule: ScheduleOptions,
    /// How to assign. Scratch is refused ([`CompileError::Scratch`]): it belongs to instructions of the module that is
    /// planned, which is not the module that is compiled.
    pub assign: AssignOptions,
    /// Whether and how fast memory is used.
    pub fast_memory: FastMemoryUse,
    /// Verify the module after every pass, not only at the end.
    pub verify_each_pass: bool,
    /// Also plan the program as it was before and between the stages, to say what each stage brought.
    pub measure_stages: bool,
    /// Report the verdict on every edge that could be fused.
    pub explain_fusion: bool,
    /// Who is told of each stage when it is done.
    pub watch: Option<Watch>,
    /// The most threads that work at a time: by default, as many as there are cores. Results do not depend on it.
    pub threads: usize,
}

/// Whether and how `compile` uses fast memory, on targets that have some.
#[derive(Clone, Debug, Default)]
pub enum FastMemoryUse {
    /// With the options for the target, to lower the footprint in main memory.
    #[default]
    Footprint,
    /// With options of one's own.
    With(FastMemoryOptions),
    /// Not at all.
    Unused,
}

impl FastMemoryUse {
    /// The options for a target; `None` where no fast memory is used.
    pub(crate) fn options(&self, target: &Target) -> Option<FastMemoryOptions> {
        let of_target = FastMemoryOptions::for_target(target)?;
        match self {
            FastMemoryUse::Footprint => {
                Some(FastMemoryOptions { objective: Objective::Footprint, ..of_target })
            }
            FastMemoryUse::With(options) => Some(options.clone()),
            FastMemoryUse::Unused => None,
        }
    }
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        CompileOptions {
            stages: Stages::default(),
            guesses: vec![FirstGuess::Text, FirstGuess::OnePass, FirstGuess::Searched],
            glance: OneIn(16),
            schedule: ScheduleOptions::default(),
            assign: AssignOptions::default(),
            fast_memory: FastMemoryUse::default(),
            verify_each_pass: false,
            measure_stages: false,
            explain_fusion: false,
            watch: None,
            threads,
        }
    }
}

/// A compiled program: the module itself is rewritten in place, in the order of the schedule.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Schedule, facts and plan.
    pub planned: Planned,
    /// What the checker did to prove the plan.
    pub proof: check::Proof,
    /// What each stage did.
    pub stages: Vec<Stage>,
}

impl Compiled {
    /// What the passes report, in the order in which they ran: of the program that was compiled, and not of those that it
    /// was chosen from.
    pub fn pass_reports(&self) -> impl Iterator<Item = &Report> {
        let runs = self.stages.iter().flat_map(|stage| match &stage.report {
            StageReport::Passes(runs) => runs.as_slice(),
            _ => &[],
        });
        runs.filter_map(|run| run.report.as_ref())
    }

    /// The verdict on every edge, where [`CompileOptions::explain_fusion`] asks for it.
    pub fn fusion(&self) -> Option<&FusionReport> {
        self.pass_reports().find_map(|report| match report {
            Report::Fusion(report) => Some(report),
            _ => None,
        })
    }
}

/// Why a program was not compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The module is not valid, before or after the passes.
    #[error("the module is not valid {when}")]
    Invalid {
        /// Before or after.
        when: &'static str,
        /// What is wrong with it.
        source: ir::VerifyErrors,
    },
    /// The options name scratch of instructions.
    #[error("scratch cannot be given to `compile`, which plans other instructions than those of its input")]
    Scratch,
    /// A pass gave up.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// No plan could be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan was refuted, which is a bug in memplan.
    #[error("the plan is wrong, which is a bug in memplan")]
    Refuted(#[from] check::Violations),
}

/// Optimizes, fuses, schedules, plans and checks a module for a target. A module that has a schedule loses it: the
/// order is chosen anew.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(
    module: &mut Module,
    target: &Target,
    options: &CompileOptions,
) -> Result<Compiled, CompileError> {
    ir::verify(module).map_err(|source| CompileError::Invalid { when: "to begin with", source })?;
    if options.assign.scratch.values().any(|bytes| *bytes > Bytes::ZERO) {
        return Err(CompileError::Scratch);
    }
    module.is_scheduled = false;
    let mut front = Program::new(module.clone(), target, options);
    front.note("before", Duration::ZERO, StageReport::Nothing);
    front.measure()?;
    for stage in &options.stages.front {
        front.stage(stage)?;
        front.measure()?;
    }
    let n_front = front.stages.len();
    let start = Instant::now();
    let (mut back, guesses) = front.recompute()?;
    back.measure()?;
    let fused = parallel::map(options.threads, ways_to_fuse(options), |fusion| back.clone().fuse(fusion));
    let fused = distinct(fused)?;
    drop(back);
    let plans = parallel::map(options.threads, fused, |program| program.legalize_and_plan(Effort::Full));
    let mut plans = plans.into_iter().collect::<Result<Vec<_>, _>>()?;
    let totals: Vec<Bytes> = plans.iter().map(total).collect();
    let chosen = (0..totals.len()).rev().min_by_key(|&i| totals[i]).expect("there is a way to fuse");
    let fusions = plans.iter().enumerate().map(|(i, (program, _))| TriedFusion {
        fusion: program.fusion,
        total: totals[i],
        is_chosen: i == chosen,
    });
    let tried = TriedPrograms { guesses, fusions: fusions.collect() };
    let (mut best, planned) = plans.swap_remove(chosen);
    drop(plans);
    // What was measured on the way counts here, too.
    let own: Duration = best.stages[n_front..].iter().map(|stage| stage.time).sum();
    let others = start.elapsed().saturating_sub(own);
    best.note_total("other orders", others, planned.plan.totals.total, StageReport::Programs(tried));
    let planned = best.assign_fast_memory(planned)?;
    let proof = best.check(&planned)?;
    *module = best.module;
    Ok(Compiled { planned, proof, stages: best.stages })
}

/// The ways to fuse: at least one, which may be not to.
fn ways_to_fuse(options: &CompileOptions) -> Vec<Option<memplan_passes::Fusion>> {
    match options.stages.fusions.is_empty() {
        true => vec![None],
        false => options.stages.fusions.iter().map(|&fusion| Some(fusion)).collect(),
    }
}

pub(crate) fn total((_, planned): &(Program<'_>, Planned)) -> Bytes {
    planned.plan.totals.total
}

/// Those of some programs that differ from all before them: what is planned once need not be planned again.
pub(crate) fn distinct<'a>(
    programs: impl IntoIterator<Item = Result<Program<'a>, CompileError>>,
) -> Result<Vec<Program<'a>>, CompileError> {
    let mut kept: Vec<Program<'_>> = Vec::new();
    for next in programs {
        let next = next?;
        if kept.iter().all(|other| other.module != next.module) {
            kept.push(next);
        }
    }
    Ok(kept)
}
