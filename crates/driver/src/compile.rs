//! The whole pipeline in one screen: from what JAX hands over to a program that needs less memory, with a proof.

use std::time::{Duration, Instant};

use crate::fast_memory::assign_fast_memory;
use crate::first_guess::FirstGuess;
use crate::parallel;
use crate::stages::Stages;
use memplan_check as check;
use memplan_fast_memory::{FastMemoryOptions, Objective};
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use memplan_passes as passes;
use memplan_passes::{Context, Fusion, FusionReport, Pass, PassError, Pipeline, RunOptions};
use memplan_planner as plan;
use memplan_planner::{AssignOptions, PlanError, PlanOptions, Planned, ScheduleOptions};

/// How to compile.
#[derive(Clone)]
pub struct CompileOptions {
    /// The passes, stage by stage.
    pub stages: Stages,
    /// How to schedule and assign.
    pub plan: PlanOptions,
    /// Verify the module after every pass, not only at the end.
    pub verify_each_pass: bool,
    /// Also plan the program as it was before and between the stages, to say what each stage brought.
    pub measure_stages: bool,
    /// Say of every edge that could be fused what became of it.
    pub explain_fusion: bool,
    /// The most threads that work at a time: by default, as many as there are cores. Results do not depend on it.
    pub threads: usize,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        CompileOptions {
            stages: Stages::default(),
            plan: PlanOptions::default(),
            verify_each_pass: false,
            measure_stages: false,
            explain_fusion: false,
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
    /// The verdict on every edge, where [`CompileOptions::explain_fusion`] asks for it.
    pub fusion: Option<FusionReport>,
}

/// What one stage of the pipeline did.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// How long it took.
    pub time: Duration,
    /// Total bytes of the program after it, planned as it stands; `None` when not measured.
    pub total: Option<Bytes>,
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
    module.is_scheduled = false;
    let mut front =
        Program { module: module.clone(), target, options, stages: Vec::new(), fusion: None, measured: None };
    front.note("before", Duration::ZERO);
    front.measure()?;
    for stage in &options.stages.front {
        front.stage(stage)?;
        front.measure()?;
    }
    let n_front = front.stages.len();
    let start = Instant::now();
    let mut back = front.recompute()?;
    back.measure()?;
    let fusions = options.stages.fusions.clone();
    let fused = distinct(parallel::map(options.threads, fusions, |fusion| back.clone().fuse(fusion)))?;
    drop(back);
    let plans = parallel::map(options.threads, fused, |program| program.legalize_and_plan(Effort::Full));
    let plans = plans.into_iter().collect::<Result<Vec<_>, _>>()?;
    let best = plans.into_iter().reduce(|best, next| if total(&next) <= total(&best) { next } else { best });
    let (mut best, planned) = best.expect("there are ways to fuse");
    // What was measured on the way counts here, too.
    let chosen: Duration = best.stages[n_front..].iter().map(|stage| stage.time).sum();
    best.note_total("other orders", start.elapsed().saturating_sub(chosen), planned.plan.totals.total);
    let planned = best.assign_fast_memory(planned)?;
    let proof = best.check(&planned)?;
    *module = best.module;
    Ok(Compiled { planned, proof, stages: best.stages, fusion: best.fusion })
}

fn total((_, planned): &(Program<'_>, Planned)) -> Bytes {
    planned.plan.totals.total
}

/// Those of some programs that differ from all before them: what is planned once need not be planned again.
fn distinct(programs: Vec<Result<Program<'_>, CompileError>>) -> Result<Vec<Program<'_>>, CompileError> {
    let mut kept: Vec<Program<'_>> = Vec::new();
    for next in programs {
        let next = next?;
        if kept.iter().all(|other| other.module != next.module) {
            kept.push(next);
        }
    }
    Ok(kept)
}

/// How much of a search scheduling is.
#[derive(Clone, Copy)]
enum Effort {
    /// Enough to tell guesses apart.
    Glance,
    Full,
}

/// A glance looks at so many times fewer moves.
const GLANCE: u64 = 16;

/// A module on its way.
#[derive(Clone)]
struct Program<'a> {
    module: Module,
    target: &'a Target,
    options: &'a CompileOptions,
    stages: Vec<Stage>,
    /// What fusion decided, where that is asked for.
    fusion: Option<FusionReport>,
    /// What the program comes to as it stands, where that was measured since it changed last.
    measured: Option<Bytes>,
}

impl Program<'_> {
    fn stage(&mut self, stage: &Pipeline) -> Result<(), CompileError> {
        let start = Instant::now();
        self.run(stage)?;
        self.note(stage.name, start.elapsed());
        Ok(())
    }

    fn run(&mut self, pass: &dyn Pass) -> Result<(), CompileError> {
        let options = RunOptions { stop_after: None, verify: self.options.verify_each_pass };
        let runs = passes::run(&mut self.module, &[pass], &Context { target: self.target }, options)?;
        if runs.iter().any(|run| run.changed) {
            self.measured = None;
        }
        Ok(())
    }

    /// Recomputes rather than keeps, under the first guess that comes to the smallest plan at a glance.
    fn recompute(self) -> Result<Self, CompileError> {
        let threads = self.options.threads;
        let guesses = parallel::map(threads, FirstGuess::OF_COMPILE.to_vec(), |guess| self.guess(guess));
        let guesses = distinct(guesses.into_iter().filter_map(Result::transpose).collect())?;
        drop(self);
        let is_decided = guesses.len() == 1;
        let glances = parallel::map(threads, guesses, |mut back| {
            back.stage(&back.options.stages.recompute)?;
            let found = match is_decided {
                true => Bytes::ZERO,
                false => total(&back.clone().fuse(passes::FUSION)?.legalize_and_plan(Effort::Glance)?),
            };
            Ok((back, found))
        });
        let glances = glances.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
        let best = glances.into_iter().reduce(|best, next| if next.1 < best.1 { next } else { best });
        Ok(best.expect("the order of the text is a guess").0)
    }

    /// The program in the order of a first guess.
    fn guess(&self, guess: FirstGuess) -> Result<Option<Self>, CompileError> {
        let Some(module) = guess.order(&self.module, self.target)? else { return Ok(None) };
        let measured = self.measured.filter(|_| module == self.module);
        Ok(Some(Program { module, stages: self.stages.clone(), fusion: None, measured, ..*self }))
    }

    /// Puts operations into kernels.
    fn fuse(mut self, fusion: Fusion) -> Result<Self, CompileError> {
        let before = &self.options.stages.before_fusion;
        let start = Instant::now();
        self.run(before)?;
        if self.options.explain_fusion {
            self.fusion = Some(passes::explain_fusion(&self.module, self.target, fusion)?);
        }
        self.run(&fusion)?;
        self.note(before.name, start.elapsed());
        Ok(self)
    }

    /// Everything between fusion and the check.
    fn legalize_and_plan(mut self, effort: Effort) -> Result<(Self, Planned), CompileError> {
        if let Effort::Full = effort {
            self.measure()?;
        }
        let measured = self.measured;
        self.stage(&self.options.stages.legalize)?;
        // What was measured had its copies.
        self.last_stage().total = measured;
        let planned = self.plan(effort)?;
        Ok((self, planned))
    }

    /// Plans the program in the order of its text, if that is asked for: what the last stage came to.
    fn measure(&mut self) -> Result<(), CompileError> {
        if !self.options.measure_stages {
            return Ok(());
        }
        let total = match self.measured {
            Some(total) => total,
            None => {
                let mut module = self.module.clone();
                let context = Context { target: self.target };
                passes::run(&mut module, &[&self.options.stages.legalize], &context, RunOptions::default())?;
                module.is_scheduled = true;
                let options = PlanOptions { assign: AssignOptions::quick(), ..PlanOptions::default() };
                plan::plan(&module, self.target, &options)?.plan.totals.total
            }
        };
        self.measured = Some(total);
        self.last_stage().total = Some(total);
        Ok(())
    }

    fn last_stage(&mut self) -> &mut Stage {
        self.stages.last_mut().expect("the program as it came is a stage")
    }

    /// Notes a stage before planning.
    fn note(&mut self, name: &'static str, time: Duration) {
        self.stages.push(Stage { name, time, total: None });
    }

    /// Notes a stage from planning on.
    fn note_total(&mut self, name: &'static str, time: Duration, total: Bytes) {
        self.stages.push(Stage { name, time, total: Some(total) });
    }

    /// Schedules and assigns, and puts the module into the order of the schedule.
    fn plan(&mut self, effort: Effort) -> Result<Planned, CompileError> {
        let start = Instant::now();
        let options = &self.options.plan.schedule;
        let schedules = match effort {
            Effort::Full => plan::schedules(&self.module, self.target, options)?,
            Effort::Glance => {
                let options = ScheduleOptions { budget: options.budget / GLANCE, ..options.clone() };
                vec![plan::schedule(&self.module, self.target, &options).map_err(PlanError::from)?.0]
            }
        };
        let scheduled = start.elapsed();
        let start = Instant::now();
        let assign = match effort {
            Effort::Full => self.options.plan.assign.clone(),
            Effort::Glance => {
                AssignOptions { pack: AssignOptions::quick().pack, ..self.options.plan.assign.clone() }
            }
        };
        let mut planned = plan::assign_best(&self.module, self.target, schedules, &assign)?;
        planned.apply(&mut self.module);
        let totals = planned.plan.totals;
        // Before packing, the arena is as large as the most temp bytes live at once.
        self.note_total("schedule", scheduled, totals.total.saturating_sub(totals.fragmentation));
        self.note_total("pack", start.elapsed(), totals.total);
        Ok(planned)
    }

    /// Keeps values near the cores, on targets that have memory there, and plans what is left for main memory.
    fn assign_fast_memory(&mut self, planned: Planned) -> Result<Planned, CompileError> {
        let (Some(fast), Some(options)) =
            (self.target.fast_memory, FastMemoryOptions::for_target(self.target))
        else {
            return Ok(planned);
        };
        let start = Instant::now();
        let options = FastMemoryOptions { objective: Objective::Footprint, ..options };
        let mut module = self.module.clone();
        assign_fast_memory(&mut module, self.target, &options)?;
        let plan_options = PlanOptions { reschedule: false, ..self.options.plan.clone() };
        let faster = plan::plan(&module, self.target, &plan_options)?;
        let mut arenas = faster.plan.spaces.iter().filter(|arena| arena.space == fast.space);
        let fits = arenas.all(|arena| arena.temp.0 <= options.capacity);
        if !fits || faster.plan.totals.total > planned.plan.totals.total {
            return Ok(planned);
        }
        self.module = module;
        self.note_total("fast memory", start.elapsed(), faster.plan.totals.total);
        Ok(faster)
    }

    fn check(&mut self, planned: &Planned) -> Result<check::Proof, CompileError> {
        let start = Instant::now();
        ir::verify(&self.module)
            .map_err(|source| CompileError::Invalid { when: "after the passes", source })?;
        let proof = check::check(&self.module, &planned.schedule, self.target, &planned.plan)
            .map_err(CompileError::Refuted)?;
        self.note_total("check", start.elapsed(), planned.plan.totals.total);
        Ok(proof)
    }
}
