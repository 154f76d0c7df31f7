//! The whole pipeline in one screen: from what JAX hands over to a program that needs less memory, with a proof.

use std::time::{Duration, Instant};

use crate::check;
use crate::ir::{self, Module};
use crate::memory::{Bytes, Target};
use crate::passes::{self, Context, Pass, PassError, RunOptions};
use crate::plan::{self, PlanError, PlanOptions, Planned};

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
    let mut pipeline = Pipeline { module, target, options, stages: Vec::new() };
    pipeline.measure("before")?;
    pipeline.stage("simplify", &passes::simplification_pipeline())?;
    pipeline.stage("recompute", &[passes::SCATTER_TO_SELECT, passes::SIMPLIFY, passes::REMAT])?;
    pipeline.stage("fuse", &[passes::FUSION])?;
    pipeline.stage("insert copies", &LEGALIZE)?;
    let planned = pipeline.plan()?;
    let proof = pipeline.check(&planned)?;
    Ok(Compiled { planned, proof, stages: pipeline.stages })
}

/// The passes that make a module's aliasing legal, for modules that have no schedule.
pub const LEGALIZE: [Pass; 2] = [passes::FLATTEN_CALL_GRAPH, passes::COPY_INSERTION];

struct Pipeline<'a> {
    module: &'a mut Module,
    target: &'a Target,
    options: &'a CompileOptions,
    stages: Vec<Stage>,
}

impl Pipeline<'_> {
    fn stage(&mut self, name: &'static str, list: &[Pass]) -> Result<(), CompileError> {
        let start = Instant::now();
        let options = RunOptions { stop_after: None, verify: self.options.verify_each_pass };
        passes::run(self.module, list, &Context { target: self.target }, options)?;
        self.stages.push(Stage { name, time: start.elapsed(), total: None });
        self.measure_last()
    }

    fn measure(&mut self, name: &'static str) -> Result<(), CompileError> {
        self.stages.push(Stage { name, time: Duration::ZERO, total: None });
        self.measure_last()
    }

    /// Plans a copy of the module in the order of its text, and notes the total.
    fn measure_last(&mut self) -> Result<(), CompileError> {
        if self.options.measure_stages {
            let mut copy = self.module.clone();
            passes::run(&mut copy, &LEGALIZE, &Context { target: self.target }, RunOptions::default())?;
            copy.is_scheduled = true;
            let planned = plan::plan(&copy, self.target, &PlanOptions::default())?;
            self.stages.last_mut().expect("a stage was just added").total = Some(planned.plan.totals.total);
        }
        Ok(())
    }

    /// Schedules and assigns, and puts the module into the order of the schedule.
    fn plan(&mut self) -> Result<Planned, CompileError> {
        let start = Instant::now();
        let schedules = plan::schedules(self.module, self.target, &self.options.plan.schedule)?;
        let scheduled = start.elapsed();
        let start = Instant::now();
        let mut planned = plan::assign_best(self.module, self.target, schedules, &self.options.plan.assign)?;
        planned.apply(self.module);
        let totals = planned.plan.totals;
        // Before packing, the arena is as large as the most temp bytes live at once.
        let total = Some(totals.total.saturating_sub(totals.fragmentation));
        self.stages.push(Stage { name: "schedule", time: scheduled, total });
        self.stages.push(Stage { name: "pack", time: start.elapsed(), total: Some(totals.total) });
        Ok(planned)
    }

    fn check(&mut self, planned: &Planned) -> Result<check::Proof, CompileError> {
        let start = Instant::now();
        ir::verify(self.module)
            .map_err(|source| CompileError::Invalid { when: "after the passes", source })?;
        let proof = check::check(self.module, &planned.schedule, self.target, &planned.plan)
            .map_err(CompileError::Refuted)?;
        self.stages.push(Stage {
            name: "check",
            time: start.elapsed(),
            total: Some(planned.plan.totals.total),
        });
        Ok(proof)
    }
}
