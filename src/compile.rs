//! The whole pipeline in one screen: from what JAX hands over to a program that needs less memory, with a proof.

use std::time::{Duration, Instant};

use crate::check;
use crate::ir::{self, Module};
use crate::memory::{Bytes, Target};
use crate::passes::{self, Context, Pass, PassError, RunOptions};
use crate::plan::fast_memory::{FastMemoryOptions, Objective};
use crate::plan::{self, PlanError, PlanOptions, Planned, ScheduleOptions};

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// How to schedule and assign.
    pub plan: PlanOptions,
    /// Verify the module after every pass, not only at the end.
    pub verify_each_pass: bool,
    /// Also plan the program as it was before and between the stages, to say what each stage brought.
    pub measure_stages: bool,
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
    #[error("the plan is wrong, which is a bug in memplan: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refuted(Vec<check::Violation>),
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
    let mut front = Pipeline { module: module.clone(), target, options, stages: Vec::new() };
    front.note("before", Duration::ZERO);
    front.stage("simplify", &passes::simplification_pipeline())?;
    front.stage("recompute rows", &[passes::LOOP_RESIDUALS, passes::SIMPLIFY])?;
    // What is worth recomputing depends on padded sizes; what is new then is laid out again.
    front.stage("lay out", &[passes::LAYOUT_ASSIGNMENT, passes::DONATION])?;
    let start = Instant::now();
    let mut best: Option<(Pipeline<'_>, Bytes)> = None;
    for guess in first_guesses(&front.module, target)? {
        let mut back = Pipeline { module: guess, ..front.clone() };
        back.stage("recompute", &RECOMPUTE)?;
        let found = total(&back.clone().fuse_and_plan(passes::FUSION, Effort::Glance)?);
        if best.as_ref().is_none_or(|&(_, best)| found < best) {
            best = Some((back, found));
        }
    }
    let (back, _) = best.expect("the order of the text is a guess");
    let mut best = back.clone().fuse_and_plan(passes::FUSION, Effort::Full)?;
    // Fewer bytes are moved then, but more may be alive.
    let other = back.fuse_and_plan(passes::FUSION_OF_UPDATES, Effort::Full)?;
    if total(&other) <= total(&best) {
        best = other;
    }
    let (mut best, planned) = best;
    let chosen: Duration = best.stages[front.stages.len()..].iter().map(|noted| noted.stage.time).sum();
    best.note_total("other orders", start.elapsed().saturating_sub(chosen), planned.plan.totals.total);
    let planned = best.assign_fast_memory(planned)?;
    let proof = best.check(&planned)?;
    let stages = best.stages.into_iter().map(|noted| noted.measured(target)).collect::<Result<_, _>>()?;
    *module = best.module;
    Ok(Compiled { planned, proof, stages })
}

fn total((_, planned): &(Pipeline<'_>, Planned)) -> Bytes {
    planned.plan.totals.total
}

/// What is worth recomputing, and what fusing brings, depends on what is alive when, so on an order that is only found
/// afterwards. Each guess is carried through to a plan, at a glance, and that with the smallest is kept: the order of
/// the text, which is a person's or a depth-first walk; a one-pass schedule; and a schedule that is searched for.
fn first_guesses(module: &Module, target: &Target) -> Result<Vec<Module>, CompileError> {
    let mut guesses = vec![module.clone()];
    for budget in [0, ScheduleOptions::default().budget] {
        let mut guess = module.clone();
        passes::run(&mut guess, &[passes::FLATTEN_CALL_GRAPH], &Context { target }, RunOptions::default())?;
        let options = ScheduleOptions { budget, ..ScheduleOptions::default() };
        // Where values that must share storage interfere there is no order yet; copies come later.
        let Ok((schedule, _)) = plan::schedule(&guess, target, &options) else { break };
        schedule.apply(&mut guess);
        guess.is_scheduled = false;
        guesses.push(guess);
    }
    Ok(guesses)
}

/// The passes that keep less for later.
const RECOMPUTE: [Pass; 4] =
    [passes::SCATTER_TO_SELECT, passes::SIMPLIFY, passes::REMAT, passes::LAYOUT_ASSIGNMENT];

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
struct Pipeline<'a> {
    module: Module,
    target: &'a Target,
    options: &'a CompileOptions,
    stages: Vec<Noted>,
}

/// A stage that is over.
#[derive(Clone)]
struct Noted {
    stage: Stage,
    /// What it left, where that is to be measured: only once it is known that no other guess is better.
    module: Option<Module>,
}

impl Noted {
    /// Plans the module in the order of its text, and notes the total.
    fn measured(mut self, target: &Target) -> Result<Stage, CompileError> {
        if let Some(module) = &mut self.module {
            passes::run(module, &passes::LEGALIZE, &Context { target }, RunOptions::default())?;
            module.is_scheduled = true;
            let planned = plan::plan(module, target, &PlanOptions::default())?;
            self.stage.total = Some(planned.plan.totals.total);
        }
        Ok(self.stage)
    }
}

impl Pipeline<'_> {
    fn stage(&mut self, name: &'static str, list: &[Pass]) -> Result<(), CompileError> {
        let start = Instant::now();
        let options = RunOptions { stop_after: None, verify: self.options.verify_each_pass };
        passes::run(&mut self.module, list, &Context { target: self.target }, options)?;
        self.note(name, start.elapsed());
        Ok(())
    }

    /// Everything between recomputation and the check.
    fn fuse_and_plan(mut self, fusion: Pass, effort: Effort) -> Result<(Self, Planned), CompileError> {
        self.stage("fuse", &[fusion])?;
        self.stage("insert copies", &passes::LEGALIZE)?;
        let planned = self.plan(effort)?;
        Ok((self, planned))
    }

    /// Notes a stage before planning.
    fn note(&mut self, name: &'static str, time: Duration) {
        let module = self.options.measure_stages.then(|| self.module.clone());
        self.stages.push(Noted { stage: Stage { name, time, total: None }, module });
    }

    /// Notes a stage from planning on.
    fn note_total(&mut self, name: &'static str, time: Duration, total: Bytes) {
        self.stages.push(Noted { stage: Stage { name, time, total: Some(total) }, module: None });
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
        let mut planned = plan::assign_best(&self.module, self.target, schedules, &self.options.plan.assign)?;
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
        plan::fast_memory::assign(&mut module, self.target, &options)?;
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
