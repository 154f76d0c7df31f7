//! What another compiler will need for a module that JAX hands over, without asking it.
//!
//! The program goes through the same stages as there (simplify, fuse, copy, schedule, assign), each with that compiler's
//! rules, which are data ([`Compiler`]). What comes out is no plan for anybody to run, but the bytes of one.

use crate::analysis::{CallGraph, CallGraphError, Costs, RunEstimate};
use crate::ir::{self, Module};
use crate::memory::{Bytes, Compiler, Target, Totals};
use crate::passes::{self, Context, Pass, PassError, RunOptions};
use crate::plan::{
    self, AssignOptions, PeakReport, PlanError, PlanOptions, Planned, ScheduleOptions, Sharing,
};

/// What a compiler will need for a program.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Bytes by kind, as in the plan file.
    pub totals: Totals,
    /// Arguments, outputs that are not aliased, and temporaries.
    pub total: Bytes,
    /// Who holds the peak.
    pub peak: PeakReport,
    /// Seconds of one run, by the cost model of the machine.
    pub seconds: f64,
    /// The program as that compiler is expected to have it when it assigns memory, which is what `peak` speaks of.
    pub module: Module,
    /// The expected plan.
    pub planned: Planned,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// The module is not valid.
    #[error("the module is not valid")]
    Invalid(#[source] ir::VerifyErrors),
    /// A pass gave up.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The module's computations call each other in a circle.
    #[error(transparent)]
    CallGraph(#[from] CallGraphError),
    /// No plan could be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Estimates what a compiler will need for a module on a machine. Close to linear in the module, and no search.
///
/// # Errors
/// See [`EstimateError`].
pub fn estimate(module: &Module, compiler: &Compiler, target: &Target) -> Result<Estimate, EstimateError> {
    ir::verify(module).map_err(EstimateError::Invalid)?;
    let machine = compiler.on(target);
    let mut module = module.clone();
    module.is_scheduled = false;
    let mut passes = Vec::new();
    if !compiler.keeps_barriers {
        passes.push(passes::OPTIMIZATION_BARRIER_EXPANDER);
    }
    passes.extend(passes::simplification_pipeline());
    passes.extend([passes::HOST_OFFLOAD, passes::LAYOUT_ASSIGNMENT]);
    passes.extend([passes::OPTIMIZATION_BARRIER_EXPANDER, passes::FUSION]);
    passes.extend(passes::LEGALIZE);
    run(&mut module, &passes, &machine)?;
    let options = PlanOptions {
        schedule: ScheduleOptions { budget: 0, ..ScheduleOptions::default() },
        assign: AssignOptions { sharing: Sharing::AsXla, ..AssignOptions::quick() },
        ..PlanOptions::default()
    };
    let mut planned = plan::plan(&module, &machine, &options)?;
    planned.apply(&mut module);
    let graph = CallGraph::new(&module)?;
    let costs = Costs::new(&module, &graph, &planned.facts.in_place, &machine);
    let totals = planned.plan.totals;
    Ok(Estimate {
        totals,
        total: totals.total,
        peak: plan::peak_report(&module, &planned.facts, &planned.plan),
        seconds: RunEstimate::new(&module, &graph, &costs, &machine).seconds,
        module,
        planned,
    })
}

fn run(module: &mut Module, passes: &[Pass], machine: &Target) -> Result<(), PassError> {
    passes::run(module, passes, &Context { target: machine }, RunOptions::default()).map(|_| ())
}
