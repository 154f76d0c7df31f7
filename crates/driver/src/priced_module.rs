//! A program during `compile`: its steps and its price.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::FirstGuess;
use crate::compile::{CompileError, CompileOptions};
use crate::objective::{Price, exceeded};
use crate::planned::Depth;
use crate::report::{Stage, StageReport};
use memplan_analysis::{CallGraph, Costs, InPlace, RunEstimate};
use memplan_ir::{Module, fingerprint};
use memplan_memory::{Bytes, MemoryPlan, Target};
use memplan_passes as passes;
use memplan_passes::{Context, Pipeline, RunOptions};
use memplan_plan_hlo as plan;
use memplan_plan_hlo::{AssignOptions, PlaceOptions, PlanError, PlanOptions, ProgramCost};

/// A module during `compile`, with facts about it. Two are equal if their modules are.
#[derive(Clone)]
pub(crate) struct PricedModule {
    pub(crate) module: Module,
    /// Shared by programs between which nothing changed.
    comes_to: Arc<CameTo>,
    glance: OnceLock<Price>,
    seconds: OnceLock<f64>,
}

/// Total bytes and seconds of the program, planned unchanged, once that is measured.
type CameTo = OnceLock<(Bytes, f64)>;

/// A step of `compile`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Passes run.
    Stage(Pipeline),
    /// Passes run that put operations into kernels.
    Fuse(Pipeline),
    /// Orders the program by a first guess, if the guess gives an order.
    Order(FirstGuess),
}

/// The result of a step.
pub(crate) struct Done {
    /// The stage of the report, if the step is one.
    stage: Option<Stage>,
    /// The guess that gave an order.
    pub(crate) order: Option<FirstGuess>,
    /// The fingerprint of a fused program.
    pub(crate) fused: Option<u64>,
    /// The price of the program, if this step was measured.
    came_to: CameTo,
}

impl PricedModule {
    pub(crate) fn new(module: Module) -> PricedModule {
        PricedModule { module, comes_to: Arc::default(), glance: OnceLock::new(), seconds: OnceLock::new() }
    }
}

impl PartialEq for PricedModule {
    fn eq(&self, other: &PricedModule) -> bool {
        self.module == other.module
    }
}

impl Done {
    /// The stage, with its price if that was measured.
    pub(crate) fn stage(&self) -> Option<Stage> {
        let (total, seconds) = self.came_to.get().copied().unzip();
        Some(Stage { total, seconds, ..self.stage.clone()? })
    }
}

/// The request to `compile`.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) target: &'a Target,
    pub(crate) options: &'a CompileOptions,
}

impl Request<'_> {
    /// Whether a plan fits the limit and the machine.
    pub(crate) fn fits(&self, plan: &MemoryPlan) -> bool {
        exceeded(plan, self.target, self.options.memory_limit).is_none()
    }

    /// Applies a step to a program.
    pub(crate) fn take(
        &self,
        program: Arc<PricedModule>,
        step: &Step,
    ) -> Result<(PricedModule, Done), CompileError> {
        let (target, options) = (self.target, self.options);
        match step {
            Step::Order(guess) => {
                let fusion = options.stages.fusions.first();
                let ordered = guess.order(&program.module, target, &options.schedule, fusion)?;
                let order = ordered.is_some().then_some(*guess);
                let program = match ordered {
                    Some(module) if module != program.module => PricedModule::new(module),
                    _ => Arc::unwrap_or_clone(program),
                };
                Ok((program, Done { stage: None, order, fused: None, came_to: CameTo::new() }))
            }
            Step::Stage(stage) | Step::Fuse(stage) => {
                let start = Instant::now();
                let mut program = Arc::unwrap_or_clone(program);
                let run_options = RunOptions { stop_after: None, verify: options.verify_each_pass };
                let runs = passes::run(&mut program.module, &[stage], &Context { target }, run_options)?;
                if runs.iter().any(|run| run.changed) {
                    program = PricedModule::new(program.module);
                }
                let stage = self.stage(stage.name, start.elapsed(), None, StageReport::Passes(runs));
                let fused = matches!(step, Step::Fuse(_)).then(|| fingerprint(&program.module));
                Ok((program, Done { stage: Some(stage), order: None, fused, came_to: CameTo::new() }))
            }
        }
    }

    /// Makes a finished stage, and calls the watcher.
    pub(crate) fn stage(
        &self,
        name: &'static str,
        time: Duration,
        total: Option<Bytes>,
        report: StageReport,
    ) -> Stage {
        let stage = Stage { name, time, total, seconds: None, report };
        self.tell(&stage);
        stage
    }

    fn tell(&self, stage: &Stage) {
        self.options.watch.iter().for_each(|watch| watch.tell(stage));
    }

    /// Prices the last stage, if stages are measured, by planning the program in the order of its text. Stages before
    /// copy insertion are measured with copies, so inserting them changes nothing.
    pub(crate) fn measure(
        &self,
        program: &PricedModule,
        done: &[Arc<Done>],
        is_legal: bool,
    ) -> Result<(), CompileError> {
        if !self.options.measure_stages {
            return Ok(());
        }
        let stages = done.iter().rev().filter(|done| done.stage.is_some());
        let measured: Vec<_> = stages.take(if is_legal { 2 } else { 1 }).collect();
        let came_to =
            known_or(&program.comes_to, || self.plan_as_it_stands(program.module.clone(), is_legal))?;
        for done in &measured {
            done.came_to.get_or_init(|| came_to);
        }
        measured.first().and_then(|done| done.stage()).iter().for_each(|stage| self.tell(stage));
        Ok(())
    }

    fn plan_as_it_stands(&self, mut module: Module, is_legal: bool) -> Result<(Bytes, f64), CompileError> {
        if !is_legal {
            let context = Context { target: self.target };
            let legalize = &self.options.stages.legalize;
            passes::run(&mut module, &[legalize], &context, RunOptions::default())?;
        }
        module.is_scheduled = true;
        let options = PlanOptions { assign: self.quick_assign(), ..PlanOptions::default() };
        let planned = plan::plan(&module, self.target, &options)?;
        let run = ProgramCost::new(&module, &planned.facts, &planned.plan, self.target).run;
        Ok((planned.plan.totals.total, run.seconds))
    }

    /// The requested assignment, with packing but without a search.
    pub(crate) fn quick_assign(&self) -> AssignOptions {
        let mut assign = self.options.assign.clone();
        assign.place.pack = PlaceOptions::quick().pack;
        assign
    }

    /// Seconds of one run of a legal program, without the savings of fast memory.
    pub(crate) fn seconds(&self, program: &PricedModule) -> Result<f64, CompileError> {
        known_or(&program.seconds, || {
            // What is read where it is, in flash or elsewhere, is known from a plan only.
            if self.target.spaces.iter().filter(|space| self.target.reaches_directly(space.id)).count() > 1 {
                return Ok(self.glance(program)?.seconds);
            }
            let module = &program.module;
            let graph = CallGraph::new(module).map_err(PlanError::from)?;
            let costs = Costs::new(module, &graph, &InPlace::new(module), self.target);
            Ok(RunEstimate::new(module, &graph, &costs, self.target).seconds)
        })
    }

    /// The price of a legal program by a quick plan.
    pub(crate) fn glance(&self, program: &PricedModule) -> Result<Price, CompileError> {
        known_or(&program.glance, || Ok(self.plan(program, Depth::Glance)?.price))
    }
}

fn known_or<T: Copy, E>(known: &OnceLock<T>, find: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    match known.get() {
        Some(&known) => Ok(known),
        None => find().map(|found| *known.get_or_init(|| found)),
    }
}
