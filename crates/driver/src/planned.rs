//! A program of `compile` with its plan.

use std::time::Instant;

use crate::compile::CompileError;
use crate::fast_memory::assign_fast_memory;
use crate::objective::Price;
use crate::priced_module::{PricedModule, Request};
use crate::report::{Stage, StageReport, TriedSchedule};
use memplan_analysis::Aliasing;
use memplan_check as check;
use memplan_fast_memory::FastMemoryOptions;
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_plan_hlo as plan;
use memplan_plan_hlo::{PlanError, PlanOptions, Planned, ProgramCost, Results, ScheduleOptions};

/// How long to search for a schedule.
#[derive(Clone, Copy)]
pub(crate) enum Depth {
    /// Long enough to compare programs.
    Glance,
    Full,
}

/// A program with a plan.
#[derive(Clone)]
pub(crate) struct Solution {
    /// In the order of its schedule.
    pub(crate) module: Module,
    pub(crate) planned: Planned,
    /// Its price.
    pub(crate) price: Price,
    /// The stages from planning on.
    pub(crate) stages: Vec<Stage>,
}

impl Request<'_> {
    /// Schedules and assigns a legal program.
    pub(crate) fn plan(&self, program: &PricedModule, depth: Depth) -> Result<Solution, CompileError> {
        let start = Instant::now();
        let mut module = program.module.clone();
        let (target, options) = (self.target, &self.options.schedule);
        let aliasing = Aliasing::new(&module).map_err(PlanError::from)?;
        let schedules = match depth {
            Depth::Full => plan::schedules(&module, &aliasing, target, options)?,
            Depth::Glance => {
                let budget = self.options.glance.of(options.budget);
                let options = ScheduleOptions { budget, ..options.clone() };
                let found = plan::schedule_with(&module, &aliasing, target, &options, Results::Count);
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
            reports.into_iter().map(|report| TriedSchedule::new(&module, report)).collect();
        let (chosen, mut planned) = plan::assign_best(&module, aliasing, target, schedules, &assign)?;
        tried[chosen].is_chosen = true;
        planned.apply(&mut module);
        let totals = planned.plan.totals;
        // Before packing, the arena is as large as the peak of live temp bytes.
        let before_packing = totals.total.saturating_sub(totals.fragmentation);
        let stages = vec![
            self.stage("schedule", scheduled, Some(before_packing), StageReport::Schedules(tried)),
            self.stage("pack", start.elapsed(), Some(totals.total), StageReport::Nothing),
        ];
        Ok(self.found(module, planned, stages))
    }

    /// The planned program; if stages are measured, its last stage has the price of the whole.
    fn found(&self, module: Module, planned: Planned, mut stages: Vec<Stage>) -> Solution {
        let run = ProgramCost::new(&module, &planned.facts, &planned.plan, self.target).run;
        let operations = run.matrix_operations + run.vector_operations;
        let price = Price { total: planned.plan.totals.total, seconds: run.seconds, operations };
        if self.options.measure_stages {
            stages.last_mut().expect("planning is a stage").seconds = Some(price.seconds);
        }
        Solution { module, planned, price, stages }
    }

    /// Assigns fast memory, if the target has some, and plans the rest in main memory.
    pub(crate) fn with_fast_memory(
        &self,
        found: Solution,
        options: Option<&FastMemoryOptions>,
    ) -> Result<Solution, CompileError> {
        let (Some(fast), Some(options)) = (self.target.fast_memory, options) else { return Ok(found) };
        let start = Instant::now();
        let mut module = found.module.clone();
        let report = assign_fast_memory(&mut module, self.target, options)?;
        let plan_options = PlanOptions { assign: self.options.assign.clone(), ..PlanOptions::default() };
        let planned = plan::plan(&module, self.target, &plan_options)?;
        let total = planned.plan.totals.total;
        let mut arenas = planned.plan.spaces.iter().filter(|arena| arena.space == fast.space);
        let fits = arenas.all(|arena| arena.temp.0 <= options.capacity);
        if !fits || total > found.price.total {
            return Ok(found);
        }
        let mut stages = found.stages;
        let report = StageReport::FastMemory(report);
        stages.push(self.stage("fast memory", start.elapsed(), Some(total), report));
        Ok(self.found(module, planned, stages))
    }

    /// Proves a plan, independently of the planner.
    pub(crate) fn check(&self, found: &mut Solution) -> Result<check::Proof, CompileError> {
        let start = Instant::now();
        let Solution { module, planned, stages, .. } = found;
        ir::verify(module).map_err(|source| CompileError::Invalid { when: "after the passes", source })?;
        let proof = check::check(module, &planned.schedule, self.target, &planned.plan)
            .map_err(CompileError::Refuted)?;
        let total = Some(planned.plan.totals.total);
        stages.push(self.stage("check", start.elapsed(), total, StageReport::Nothing));
        Ok(proof)
    }
}
