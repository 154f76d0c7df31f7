//! A program on its way through the stages of `compile`.

use std::time::{Duration, Instant};

use crate::compile::{CompileError, CompileOptions};
use crate::fast_memory::assign_fast_memory;
use crate::objective::Price;
use crate::report::{Stage, StageReport, TriedSchedule};
use crate::variants::Way;
use crate::{FirstGuess, parallel};
use memplan_analysis::{CallGraph, Costs, InPlace, RunEstimate};
use memplan_check as check;
use memplan_fast_memory::FastMemoryOptions;
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use memplan_passes as passes;
use memplan_passes::{Context, Fusion, Pass, PassRun, Pipeline, RunOptions};
use memplan_planner as plan;
use memplan_planner::{
    AssignOptions, PlaceOptions, PlanError, PlanOptions, Planned, ProgramCost, ScheduleOptions,
};

/// How much of a search scheduling is.
#[derive(Clone, Copy)]
pub(crate) enum Depth {
    /// Enough to tell programs apart.
    Glance,
    Full,
}

/// A module on its way.
#[derive(Clone)]
pub(crate) struct Program<'a> {
    pub(crate) module: Module,
    target: &'a Target,
    options: &'a CompileOptions,
    /// How it is compiled.
    pub(crate) way: &'a Way,
    pub(crate) stages: Vec<Stage>,
    /// The first guess of the order that the text follows.
    pub(crate) guess: FirstGuess,
    /// The pass that fused it.
    pub(crate) fusion: Option<&'static str>,
    /// What the program comes to as it stands, where that was measured since it changed last.
    measured: Option<Bytes>,
}

impl<'a> Program<'a> {
    pub(crate) fn new(
        module: Module,
        target: &'a Target,
        options: &'a CompileOptions,
        way: &'a Way,
    ) -> Program<'a> {
        let (stages, guess) = (Vec::new(), FirstGuess::Text);
        Program { module, target, options, way, stages, guess, fusion: None, measured: None }
    }

    pub(crate) fn stage(&mut self, stage: &Pipeline) -> Result<(), CompileError> {
        let start = Instant::now();
        let runs = self.run(stage)?;
        self.note(stage.name, start.elapsed(), StageReport::Passes(runs));
        Ok(())
    }

    fn run(&mut self, pass: &dyn Pass) -> Result<Vec<PassRun>, CompileError> {
        let options = RunOptions { stop_after: None, verify: self.options.verify_each_pass };
        let runs = passes::run(&mut self.module, &[pass], &Context { target: self.target }, options)?;
        if runs.iter().any(|run| run.changed) {
            self.measured = None;
        }
        Ok(runs)
    }

    /// The program in the order of each first guess that gives another one; as it is where none gives any.
    pub(crate) fn in_each_order(self) -> Result<Vec<Self>, CompileError> {
        let guesses = self.options.guesses.clone();
        let guesses = parallel::map(self.options.threads, guesses, |guess| self.guess(guess));
        let mut ordered: Vec<Self> = Vec::new();
        for guess in guesses.into_iter().filter_map(Result::transpose) {
            let guess = guess?;
            if ordered.iter().all(|other| other.module != guess.module) {
                ordered.push(guess);
            }
        }
        if ordered.is_empty() {
            ordered.push(self);
        }
        Ok(ordered)
    }

    pub(crate) fn recompute(&mut self) -> Result<(), CompileError> {
        self.stage(&self.way.stages.recompute)
    }

    /// The program in the order of a first guess; `None` where there is no such order.
    pub(crate) fn guess(&self, guess: FirstGuess) -> Result<Option<Self>, CompileError> {
        let (schedule, fusion) = (&self.options.schedule, self.way.stages.fusions.first());
        let Some(module) = guess.order(&self.module, self.target, schedule, fusion)? else { return Ok(None) };
        let measured = self.measured.filter(|_| module == self.module);
        Ok(Some(Program { module, guess, stages: self.stages.clone(), measured, ..*self }))
    }

    /// What a fused program comes to at a glance.
    pub(crate) fn glance(&self) -> Result<Price, CompileError> {
        let (program, planned) = self.clone().legalize_and_plan(Depth::Glance)?;
        Ok(program.price(&planned))
    }

    /// Seconds of one run of a fused program, but for what fast memory saves.
    pub(crate) fn seconds(&self) -> Result<f64, CompileError> {
        let mut module = self.module.clone();
        let context = Context { target: self.target };
        passes::run(&mut module, &[&self.way.stages.legalize], &context, RunOptions::default())?;
        let graph = CallGraph::new(&module).map_err(PlanError::from)?;
        let costs = Costs::new(&module, &graph, &InPlace::new(&module), self.target);
        Ok(RunEstimate::new(&module, &graph, &costs, self.target).seconds)
    }

    /// What a planned program comes to.
    pub(crate) fn price(&self, planned: &Planned) -> Price {
        let run = ProgramCost::new(&self.module, &planned.facts, self.target).run;
        let operations = run.matrix_operations + run.vector_operations;
        Price { total: planned.plan.totals.total, seconds: run.seconds, operations }
    }

    /// Puts operations into kernels.
    pub(crate) fn fuse(mut self, fusion: Option<Fusion>) -> Result<Self, CompileError> {
        let before = &self.way.stages.before_fusion;
        let start = Instant::now();
        let mut runs = self.run(before)?;
        if let Some(fusion) = fusion {
            runs.extend(
                self.run(&Fusion { explain: fusion.explain || self.options.explain_fusion, ..fusion })?,
            );
            self.fusion = Some(fusion.name());
        }
        self.note(before.name, start.elapsed(), StageReport::Passes(runs));
        Ok(self)
    }

    /// Fuses in each way, of which one may be not to.
    pub(crate) fn fuse_in_each_way(&self, threads: usize) -> Vec<Result<Self, CompileError>> {
        let fusions = &self.way.stages.fusions;
        let ways = match fusions.is_empty() {
            true => vec![None],
            false => fusions.iter().map(|&fusion| Some(fusion)).collect(),
        };
        parallel::map(threads, ways, |fusion| self.clone().fuse(fusion))
    }

    /// Everything between fusion and the check.
    pub(crate) fn legalize_and_plan(mut self, depth: Depth) -> Result<(Self, Planned), CompileError> {
        if let Depth::Full = depth {
            self.measure()?;
        }
        let (total, seconds) = (self.measured, self.last_stage().seconds);
        self.stage(&self.way.stages.legalize)?;
        // What was measured had its copies.
        (self.last_stage().total, self.last_stage().seconds) = (total, seconds);
        let planned = self.plan(depth)?;
        Ok((self, planned))
    }

    /// Plans the program in the order of its text, if that is asked for: what the last stage came to.
    pub(crate) fn measure(&mut self) -> Result<(), CompileError> {
        if !self.options.measure_stages {
            return Ok(());
        }
        let (total, seconds) = match self.measured {
            // What the stage before came to.
            Some(total) => (total, self.stages.iter().rev().find_map(|stage| stage.seconds)),
            None => {
                let mut module = self.module.clone();
                let context = Context { target: self.target };
                passes::run(&mut module, &[&self.way.stages.legalize], &context, RunOptions::default())?;
                module.is_scheduled = true;
                let options = PlanOptions { assign: self.quick_assign(), ..PlanOptions::default() };
                let planned = plan::plan(&module, self.target, &options)?;
                let run = ProgramCost::new(&module, &planned.facts, self.target).run;
                (planned.plan.totals.total, Some(run.seconds))
            }
        };
        self.measured = Some(total);
        (self.last_stage().total, self.last_stage().seconds) = (Some(total), seconds);
        self.tell();
        Ok(())
    }

    /// Notes how long the planned program runs, if stages are to be measured.
    fn time_stage(&mut self, planned: &Planned) {
        if self.options.measure_stages {
            self.last_stage().seconds = Some(self.price(planned).seconds);
        }
    }

    /// Assignment as it is asked for, but that packing is no search.
    fn quick_assign(&self) -> AssignOptions {
        let mut assign = self.options.assign.clone();
        assign.place.pack = PlaceOptions::quick().pack;
        assign
    }

    fn last_stage(&mut self) -> &mut Stage {
        self.stages.last_mut().expect("the program as it came is a stage")
    }

    /// Notes a stage before planning.
    pub(crate) fn note(&mut self, name: &'static str, time: Duration, report: StageReport) {
        self.stages.push(Stage { name, time, total: None, seconds: None, report });
        self.tell();
    }

    /// Notes a stage from planning on.
    pub(crate) fn note_total(
        &mut self,
        name: &'static str,
        time: Duration,
        total: Bytes,
        report: StageReport,
    ) {
        self.stages.push(Stage { name, time, total: Some(total), seconds: None, report });
        self.tell();
    }

    /// Tells who watches of the last stage.
    fn tell(&self) {
        if let (Some(watch), Some(stage)) = (&self.options.watch, self.stages.last()) {
            watch.tell(stage);
        }
    }

    /// Schedules and assigns, and puts the module into the order of the schedule.
    fn plan(&mut self, depth: Depth) -> Result<Planned, CompileError> {
        let start = Instant::now();
        let options = &self.options.schedule;
        let schedules = match depth {
            Depth::Full => plan::schedules(&self.module, self.target, options)?,
            Depth::Glance => {
                let budget = self.options.glance.of(options.budget);
                let options = ScheduleOptions { budget, ..options.clone() };
                vec![plan::schedule(&self.module, self.target, &options).map_err(PlanError::from)?]
            }
        };
        let scheduled = start.elapsed();
        let start = Instant::now();
        let assign = match depth {
            Depth::Full => self.options.assign.clone(),
            Depth::Glance => self.quick_assign(),
        };
        let (schedules, reports): (Vec<_>, Vec<_>) = schedules.into_iter().unzip();
        let mut tried: Vec<_> =
            reports.into_iter().map(|report| TriedSchedule::new(&self.module, report)).collect();
        let (chosen, mut planned) = plan::assign_best(&self.module, self.target, schedules, &assign)?;
        tried[chosen].is_chosen = true;
        planned.apply(&mut self.module);
        let totals = planned.plan.totals;
        // Before packing, the arena is as large as the most temp bytes live at once.
        let before_packing = totals.total.saturating_sub(totals.fragmentation);
        self.note_total("schedule", scheduled, before_packing, StageReport::Schedules(tried));
        self.note_total("pack", start.elapsed(), totals.total, StageReport::Nothing);
        self.time_stage(&planned);
        Ok(planned)
    }

    /// Keeps values near the cores, on targets that have memory there, and plans what is left for main memory.
    pub(crate) fn assign_fast_memory(
        &mut self,
        planned: Planned,
        options: Option<&FastMemoryOptions>,
    ) -> Result<Planned, CompileError> {
        let (Some(fast), Some(options)) = (self.target.fast_memory, options) else { return Ok(planned) };
        let start = Instant::now();
        let mut module = self.module.clone();
        let report = assign_fast_memory(&mut module, self.target, options)?;
        let plan_options = PlanOptions { assign: self.options.assign.clone(), ..PlanOptions::default() };
        let faster = plan::plan(&module, self.target, &plan_options)?;
        let mut arenas = faster.plan.spaces.iter().filter(|arena| arena.space == fast.space);
        let fits = arenas.all(|arena| arena.temp.0 <= options.capacity);
        if !fits || faster.plan.totals.total > planned.plan.totals.total {
            return Ok(planned);
        }
        self.module = module;
        let report = StageReport::FastMemory(report);
        self.note_total("fast memory", start.elapsed(), faster.plan.totals.total, report);
        self.time_stage(&faster);
        Ok(faster)
    }

    pub(crate) fn check(&mut self, planned: &Planned) -> Result<check::Proof, CompileError> {
        let start = Instant::now();
        ir::verify(&self.module)
            .map_err(|source| CompileError::Invalid { when: "after the passes", source })?;
        let proof = check::check(&self.module, &planned.schedule, self.target, &planned.plan)
            .map_err(CompileError::Refuted)?;
        self.note_total("check", start.elapsed(), planned.plan.totals.total, StageReport::Nothing);
        Ok(proof)
    }
}
