//! A program on its way through the stages of `compile`.

use std::time::{Duration, Instant};

use crate::compile::{CompileError, CompileOptions};
use crate::fast_memory::assign_fast_memory;
use crate::objective::Price;
use crate::report::{Stage, StageReport, TriedSchedule};
use crate::variants::Way;
use crate::{FirstGuess, parallel};
use memplan_analysis::{Aliasing, CallGraph, Costs, InPlace, RunEstimate};
use memplan_check as check;
use memplan_fast_memory::FastMemoryOptions;
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use memplan_passes as passes;
use memplan_passes::{Context, Fusion, Pass, PassRun, Pipeline, RunOptions};
use memplan_planner as plan;
use memplan_planner::{
    AssignOptions, PlaceOptions, PlanError, PlanOptions, Planned, ProgramCost, Results, ScheduleOptions,
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
    /// Whether it can be planned.
    is_legal: bool,
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
        let (fusion, is_legal, measured) = (None, false, None);
        Program { module, target, options, way, stages, guess, fusion, is_legal, measured }
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

    /// Seconds of one run of a legal program, but for what fast memory saves.
    pub(crate) fn seconds(&self) -> Result<f64, CompileError> {
        let module = &self.module;
        let graph = CallGraph::new(module).map_err(PlanError::from)?;
        let costs = Costs::new(module, &graph, &InPlace::new(module), self.target);
        Ok(RunEstimate::new(module, &graph, &costs, self.target).seconds)
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

    /// Makes a fused program one that can be planned.
    pub(crate) fn legalize(mut self) -> Result<Self, CompileError> {
        let measured = self.measured;
        self.stage(&self.way.stages.legalize)?;
        // What was measured had its copies.
        (self.is_legal, self.measured) = (true, measured);
        Ok(self)
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
                if !self.is_legal {
                    let context = Context { target: self.target };
                    passes::run(&mut module, &[&self.way.stages.legalize], &context, RunOptions::default())?;
                }
                module.is_scheduled = true;
                let options = PlanOptions { assign: self.quick_assign(), ..PlanOptions::default() };
                let planned = plan::plan(&module, self.target, &options)?;
                let run = ProgramCost::new(&module, &planned.facts, self.target).run;
                (planned.plan.totals.total, Some(run.seconds))
            }
        };
        self.measured = Some(total);
        // A stage is measured with the copies that make it legal, and so is what inserts them.
        let measured = if self.is_legal { 2 } else { 1 };
        for stage in self.stages.iter_mut().rev().take(measured) {
            (stage.total, stage.seconds) = (Some(total), seconds);
        }
        self.tell();
        Ok(())
    }

    /// Assignment as it is asked for, but that packing is no search.
    fn quick_assign(&self) -> AssignOptions {
        let mut assign = self.options.assign.clone();
        assign.place.pack = PlaceOptions::quick().pack;
        assign
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

    /// Schedules and assigns a legal program, and puts it into the order of the schedule.
    pub(crate) fn plan(mut self, depth: Depth) -> Result<Found<'a>, CompileError> {
        if let Depth::Full = depth {
            self.measure()?;
        }
        let start = Instant::now();
        let (module, target, options) = (&self.module, self.target, &self.options.schedule);
        let aliasing = Aliasing::new(module).map_err(PlanError::from)?;
        let schedules = match depth {
            Depth::Full => plan::schedules(module, &aliasing, target, options)?,
            Depth::Glance => {
                let budget = self.options.glance.of(options.budget);
                let options = ScheduleOptions { budget, ..options.clone() };
                let found = plan::schedule_with(module, &aliasing, target, &options, Results::Count);
                vec![found.map_err(PlanError::from)?]
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
            reports.into_iter().map(|report| TriedSchedule::new(module, report)).collect();
        let (chosen, mut planned) = plan::assign_best(module, aliasing, target, schedules, &assign)?;
        tried[chosen].is_chosen = true;
        planned.apply(&mut self.module);
        let totals = planned.plan.totals;
        // Before packing, the arena is as large as the most temp bytes live at once.
        let before_packing = totals.total.saturating_sub(totals.fragmentation);
        self.note_total("schedule", scheduled, before_packing, StageReport::Schedules(tried));
        self.note_total("pack", start.elapsed(), totals.total, StageReport::Nothing);
        Ok(Found::new(self, planned))
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

/// A program that was carried through to a plan.
#[derive(Clone)]
pub(crate) struct Found<'a> {
    pub(crate) program: Program<'a>,
    pub(crate) planned: Planned,
    /// What it comes to.
    pub(crate) price: Price,
}

impl<'a> Found<'a> {
    /// A program that was planned last: its last stage takes as long as it does, if stages are measured.
    fn new(mut program: Program<'a>, planned: Planned) -> Found<'a> {
        let run = ProgramCost::new(&program.module, &planned.facts, program.target).run;
        let operations = run.matrix_operations + run.vector_operations;
        let price = Price { total: planned.plan.totals.total, seconds: run.seconds, operations };
        if program.options.measure_stages {
            program.stages.last_mut().expect("planning is a stage").seconds = Some(price.seconds);
        }
        Found { program, planned, price }
    }

    /// Keeps values near the cores, on targets that have memory there, and plans what is left for main memory.
    pub(crate) fn with_fast_memory(
        self,
        options: Option<&FastMemoryOptions>,
    ) -> Result<Found<'a>, CompileError> {
        let Found { program: Program { target, options: all, .. }, .. } = self;
        let (Some(fast), Some(options)) = (target.fast_memory, options) else { return Ok(self) };
        let start = Instant::now();
        let mut module = self.program.module.clone();
        let report = assign_fast_memory(&mut module, target, options)?;
        let plan_options = PlanOptions { assign: all.assign.clone(), ..PlanOptions::default() };
        let faster = plan::plan(&module, target, &plan_options)?;
        let total = faster.plan.totals.total;
        let mut arenas = faster.plan.spaces.iter().filter(|arena| arena.space == fast.space);
        let fits = arenas.all(|arena| arena.temp.0 <= options.capacity);
        if !fits || total > self.price.total {
            return Ok(self);
        }
        let mut program = Program { module, ..self.program };
        program.note_total("fast memory", start.elapsed(), total, StageReport::FastMemory(report));
        Ok(Found::new(program, faster))
    }
}
