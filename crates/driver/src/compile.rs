//! The pipeline of `compile`: from JAX's module to a program that needs less memory, with a plan and its proof.

use crate::FirstGuess;
use crate::candidates::Purpose;
use crate::objective::Objective;
use crate::parallel;
use crate::priced_module::Request;
use crate::report::{Stage, StageReport};
use crate::search::Search;
use crate::stages::Stages;
use crate::variants::Variant;
use crate::watch::Watch;
use memplan_check as check;
use memplan_fast_memory as fast_memory;
use memplan_fast_memory::FastMemoryOptions;
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use memplan_passes::{FusionReport, OneIn, PassError, Report};
use memplan_plan_hlo::{AssignOptions, PlanError, Planned, ScheduleOptions};

/// How to compile.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// The objective.
    pub objective: Objective,
    /// Bytes that the program should fit into: the fastest program that fits is chosen, or with [`Objective::Memory`]
    /// the smallest. If none fits, the smallest is chosen.
    pub memory_limit: Option<Bytes>,
    /// The passes, stage by stage.
    pub stages: Stages,
    /// Variants of the stages that may be faster, tried for every objective except [`Objective::Memory`].
    pub faster: Vec<Variant>,
    /// Variants of the stages that may need fewer bytes, tried if there is a limit.
    pub smaller: Vec<Variant>,
    /// The most instructions to compile again for variants, summed over variants: large programs try fewer.
    pub max_varied: usize,
    /// The number of programs to plan in full: the fastest ones, and of those fast enough the ones with fewest bytes in
    /// a quick plan.
    pub finalists: usize,
    /// For [`Objective::Balanced`]: the share of bytes by which the fastest program may exceed the usual one in a quick
    /// plan. The last percents of time may cost any number of bytes; [`Objective::Time`] pays that.
    pub most_growth: f64,
    /// How much slower than the fastest program, as a share, a program may be before fast memory is assigned and still
    /// be the best afterwards: training steps gain up to a third.
    pub fast_memory_share: f64,
    /// The number of programs to plan in full if there is a limit, from fewest bytes to least time.
    pub points: usize,
    /// First guesses of the order, the cheapest first. Each leads to a quick plan, and values are recomputed under the
    /// guess whose plan is smallest. A program that no guess can order is compiled in the order of its text.
    pub guesses: Vec<FirstGuess>,
    /// The share of the scheduling budget spent on each guess to compare guesses: a schedule finds the moves that
    /// matter first.
    pub glance: OneIn,
    /// How to schedule.
    pub schedule: ScheduleOptions,
    /// How to assign. Scratch is rejected ([`CompileError::Scratch`]): it belongs to instructions of the module to
    /// plan, while `compile` plans a different module.
    pub assign: AssignOptions,
    /// Whether and how to use fast memory.
    pub fast_memory: FastMemoryUse,
    /// Verify the module after every pass, not only at the end.
    pub verify_each_pass: bool,
    /// Also plan the program before, between and after the stages, to report the savings of each stage.
    pub measure_stages: bool,
    /// Report the verdict on every edge that fusion considered.
    pub explain_fusion: bool,
    /// The callback for each stage that is done.
    pub watch: Option<Watch>,
    /// The most threads to use: by default, the number of cores. Large programs use fewer, since each thread has a
    /// copy. Results do not depend on it.
    pub threads: usize,
}

/// Whether and how `compile` uses fast memory, if the target has some.
#[derive(Clone, Debug, Default)]
pub enum FastMemoryUse {
    /// With the options for the target: to move fewer bytes of main memory, or, for [`Objective::Memory`], to lower the
    /// peak there.
    #[default]
    ByObjective,
    /// With the caller's options.
    With(Box<FastMemoryOptions>),
    /// Not at all.
    Unused,
}

impl FastMemoryUse {
    /// The options for a target; `None` if no fast memory is used.
    pub(crate) fn options(&self, objective: Objective, target: &Target) -> Option<FastMemoryOptions> {
        let of_target = FastMemoryOptions::for_target(target)?;
        let objective = match objective {
            Objective::Memory => fast_memory::Objective::Footprint,
            Objective::Balanced | Objective::Time => fast_memory::Objective::Traffic,
        };
        match self {
            FastMemoryUse::ByObjective => Some(FastMemoryOptions { objective, ..of_target }),
            FastMemoryUse::With(options) => Some(FastMemoryOptions::clone(options)),
            FastMemoryUse::Unused => None,
        }
    }
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        CompileOptions {
            objective: Objective::default(),
            memory_limit: None,
            stages: Stages::default(),
            faster: Variant::faster(),
            smaller: Variant::smaller(),
            max_varied: 1 << 18,
            finalists: 2,
            most_growth: 0.25,
            fast_memory_share: 0.3,
            points: 10,
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
    /// The checker's proof of the plan.
    pub proof: check::Proof,
    /// What each stage did.
    pub stages: Vec<Stage>,
}

impl Compiled {
    /// The reports of the passes, in the order in which they ran: only those of the chosen program.
    pub fn pass_reports(&self) -> impl Iterator<Item = &Report> {
        let runs = self.stages.iter().flat_map(|stage| match &stage.report {
            StageReport::Passes(runs) => runs.as_slice(),
            _ => &[],
        });
        runs.filter_map(|run| run.report.as_ref())
    }

    /// The verdict on every edge, if [`CompileOptions::explain_fusion`] is set.
    pub fn fusion(&self) -> Option<&FusionReport> {
        self.pass_reports().find_map(Report::downcast_ref)
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
        /// Its errors.
        source: ir::VerifyErrors,
    },
    /// The options name scratch of instructions.
    #[error("`compile` accepts no scratch: it plans other instructions than those of its input")]
    Scratch,
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The program cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan was refuted, which is a bug in memplan.
    #[error("the plan is wrong, which is a bug in memplan")]
    Refuted(#[from] check::Violations),
}

/// Optimizes, fuses, schedules, plans and checks a module for a target. The schedule of the module, if it has one, is
/// replaced.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(
    module: &mut Module,
    target: &Target,
    options: &CompileOptions,
) -> Result<Compiled, CompileError> {
    let options = &affordable(options, module);
    let request = Request { target, options };
    let mut search = Search::new(checked(module, options)?, request);
    search.lay_out(Purpose::needed(options))?;
    search.choose_order()?;
    let (mut found, mut objective) = (search.for_objective()?, options.objective);
    if !found.iter().any(|(_, found)| request.fits(&found.planned.plan)) {
        // More memory must never give a slower program, so the set of candidates does not depend on the limit.
        (found, objective) = (search.all()?, Objective::Time);
    }
    let mut best = search.choose(found, objective);
    let proof = request.check(&mut best)?;
    *module = best.module;
    Ok(Compiled { planned: best.planned, proof, stages: best.stages })
}

/// The options, with the number of threads that a module leaves memory for.
pub(crate) fn affordable(options: &CompileOptions, module: &Module) -> CompileOptions {
    CompileOptions { threads: parallel::affordable(options.threads, module), ..options.clone() }
}

/// A module to compile, without its schedule.
pub(crate) fn checked(module: &Module, options: &CompileOptions) -> Result<Module, CompileError> {
    ir::verify(module).map_err(|source| CompileError::Invalid { when: "to begin with", source })?;
    if options.assign.scratch.values().any(|bytes| *bytes > Bytes::ZERO) {
        return Err(CompileError::Scratch);
    }
    let mut module = module.clone();
    module.is_scheduled = false;
    Ok(module)
}
