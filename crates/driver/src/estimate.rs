//! Estimates what another compiler will need for a module from JAX, without running it.
//!
//! The estimate runs that compiler's stages on the program (simplify, fuse, copy, schedule, assign), each with that
//! compiler's rules, which are data ([`Compiler`]). The result is the size of a plan, not a plan to run.

use crate::fast_memory::assign_fast_memory;
use crate::latency_hiding::{has_transfers, hide_latency};
use memplan_analysis::{CallGraph, RunEstimate};
use memplan_fast_memory::{FastMemoryOptions, Selection, TransferOptions};
use memplan_ir as ir;
use memplan_ir::{Module, Op, Role};
use memplan_memory::{
    ByteRange, Bytes, Compiler, CompilerError, LatencyHiding, MemorySpaceId, PackingOrder, ProgramKind,
    Scheduler, Target, Totals, TupleSize, WritesOver,
};
use memplan_pack as pack;
use memplan_pack::BestFit;
use memplan_passes as passes;
use memplan_passes::{
    AddsOrder, COPY_INSERTION, Context, CopyInsertion, CopyReport, InsertedCopy, LEGALIZE, Pass, PassError,
    Pipeline, RunOptions,
};
use memplan_plan_hlo as plan;
use memplan_plan_hlo::{
    AsXla, AssignOptions, PeakReport, PlaceOptions, PlanError, PlanOptions, Planned, ProgramCost, Results,
    ScheduleOptions, Sharing, TakeOver,
};

/// What a compiler will need for a program.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Bytes by kind, as in the plan file. What code takes of main memory is among the temporaries.
    pub totals: Totals,
    /// Arguments, outputs that are not aliased, and temporaries.
    pub total: Bytes,
    /// Between which bytes the compiler's own figure falls for four programs of five like this one; `None` where nobody
    /// measured that compiler, or it has compiled the program.
    pub interval: Option<ByteRange>,
    /// Who holds the peak.
    pub peak: PeakReport,
    /// What one run costs, by the cost model of the machine.
    pub run: RunEstimate,
    /// The program as that compiler is expected to have it when it assigns memory, which is what `peak` speaks of.
    pub module: Module,
    /// The expected plan.
    pub planned: Planned,
    /// Over how many devices shardings spread the program, of which all figures are those of one; `None` where they say
    /// nothing, or what is not understood.
    pub devices: Option<u64>,
    /// The copies that it will have beside those of the program, and why.
    pub copies: Vec<InsertedCopy>,
}

impl Estimate {
    /// Bytes in the host's memory: arguments, results and temporaries.
    pub fn host(&self) -> Bytes {
        host(&self.planned)
    }

    /// Bytes of main memory that the program itself takes: its tuples of addresses.
    pub fn code(&self) -> Bytes {
        self.totals.temp.saturating_sub(self.planned.plan.totals.temp)
    }
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// The module is not valid.
    #[error("the module is not valid")]
    Invalid(#[source] ir::VerifyErrors),
    /// A module that a compiler is said to have compiled has no order.
    #[error("the module is not scheduled (`is_scheduled=true` is missing), so no compiler has finished it")]
    NotScheduled,
    /// The compiler's file names a pass that there is not, or options that a pass does not have.
    #[error(transparent)]
    Compiler(#[from] CompilerError),
    /// A pass gave up.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// No plan could be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Estimates what a compiler will need for a module on a machine; for a program that shardings spread over several
/// devices, on one of them. Close to linear in the module, and no search.
///
/// # Errors
/// See [`EstimateError`].
pub fn estimate(module: &Module, compiler: &Compiler, target: &Target) -> Result<Estimate, EstimateError> {
    ir::verify(module).map_err(EstimateError::Invalid)?;
    let machine = compiler.on(target);
    let of_one = passes::partition(module, &Context { target: &machine })?;
    let devices = of_one.as_ref().map(|of_one| of_one.devices);
    let of_one = of_one.map_or_else(|| module.clone(), |of_one| of_one.module);
    let kind = kind_of(&of_one);
    let estimate = Estimate::from(Expected::new(of_one, compiler, &passes_of(compiler)?, &machine)?);
    let interval = compiler.interval(kind, estimate.total, estimate.totals.temp);
    Ok(Estimate { interval, devices, ..estimate })
}

/// What a compiler needs for a module that it has compiled and scheduled itself, as its own files have it: the order is
/// kept, and values share memory and are packed in its ways. Such a file does not say what its code takes of main memory:
/// `code` does. Close to linear in the module.
///
/// # Errors
/// See [`EstimateError`]: also where the module has no schedule.
pub fn estimate_compiled(
    module: &Module,
    compiler: &Compiler,
    target: &Target,
    code: Bytes,
) -> Result<Estimate, EstimateError> {
    ir::verify(module).map_err(EstimateError::Invalid)?;
    if !module.is_scheduled {
        return Err(EstimateError::NotScheduled);
    }
    let machine = compiler.on(target);
    Ok(Expected::of_scheduled(module.clone(), compiler, &machine, code)?.into())
}

/// What a compiler is expected to make of a valid module, and what that needs.
pub(crate) struct Expected {
    module: Module,
    /// Its plan, without a fingerprint.
    planned: Planned,
    /// Bytes by kind.
    pub(crate) totals: Totals,
    /// What one run costs.
    pub(crate) run: RunEstimate,
    /// Copies that it inserts.
    copies: Vec<InsertedCopy>,
}

impl Expected {
    /// Follows a module through a compiler, which runs these [passes](passes_of), on a machine as that compiler sees it.
    pub(crate) fn new(
        mut module: Module,
        compiler: &Compiler,
        of_compiler: &Pipeline,
        machine: &Target,
    ) -> Result<Expected, EstimateError> {
        module.is_scheduled = false;
        let context = Context { target: machine };
        let runs = passes::run(&mut module, &[of_compiler], &context, RunOptions::default())?;
        let reports = runs.iter().filter_map(|run| run.report.as_ref()?.downcast_ref::<CopyReport>());
        let copies = reports.flat_map(|report| report.copies.iter().cloned()).collect();
        let options = plan_options(compiler);
        let mut planned = plan::plan_unnamed(&module, machine, &options)?;
        planned.schedule.apply(&mut module);
        if let Some(rules) = &compiler.latency_hiding
            && let Some((order, hidden)) = hidden(&module, &planned, rules, machine, &options)
        {
            (module, planned) = (order, hidden);
        }
        if let Some(fast) = fast_memory_options(compiler, machine, planned.plan.totals.temp) {
            module.is_scheduled = true;
            assign_fast_memory(&mut module, machine, &fast)?;
            planned = plan::plan_unnamed(&module, machine, &options)?;
        }
        let code = match planned.plan.totals.temp {
            // Without temporaries in main memory, there is no arena that tuples would be in.
            Bytes::ZERO => Bytes::ZERO,
            _ => tuple_bytes(&module, &planned.facts.graph, &compiler.tuples),
        };
        Ok(Expected::planned(module, planned, copies, machine, code))
    }

    /// A valid module that the compiler has scheduled.
    fn of_scheduled(
        mut module: Module,
        compiler: &Compiler,
        machine: &Target,
        code: Bytes,
    ) -> Result<Expected, EstimateError> {
        let context = Context { target: machine };
        passes::run(&mut module, &[&LEGALIZE], &context, RunOptions::default())?;
        let planned = plan::plan_unnamed(&module, machine, &plan_options(compiler))?;
        planned.schedule.apply(&mut module);
        Ok(Expected::planned(module, planned, Vec::new(), machine, code))
    }

    fn planned(
        module: Module,
        planned: Planned,
        copies: Vec<InsertedCopy>,
        machine: &Target,
        code: Bytes,
    ) -> Expected {
        let totals = with_code(planned.plan.totals, code);
        let run = ProgramCost::new(&module, &planned.facts, &planned.plan, machine).run;
        Expected { module, planned, totals, run, copies }
    }

    /// Arguments, outputs that are not aliased, and temporaries.
    pub(crate) fn total(&self) -> Bytes {
        self.totals.total.saturating_sub(self.totals.constants)
    }

    /// Bytes in the host's memory.
    pub(crate) fn host(&self) -> Bytes {
        host(&self.planned)
    }
}

/// Bytes of a plan in the host's memory.
fn host(planned: &Planned) -> Bytes {
    let host = planned.plan.spaces.iter().find(|space| space.space == MemorySpaceId::HOST);
    host.map_or(Bytes::ZERO, |space| space.total)
}

impl From<Expected> for Estimate {
    fn from(expected: Expected) -> Estimate {
        let peak = plan::peak_report(&expected.module, &expected.planned.facts, &expected.planned.plan);
        let total = expected.total();
        let Expected { module, mut planned, totals, run, copies } = expected;
        planned.plan.fingerprint = ir::fingerprint(&module);
        Estimate { totals, total, interval: None, peak, run, module, planned, devices: None, copies }
    }
}

/// The kind of a program as it is given to a compiler.
pub(crate) fn kind_of(module: &Module) -> ProgramKind {
    let has = |is: fn(&Op) -> bool| module.instructions.values().any(|instruction| is(&instruction.op));
    let has_loops = has(|op| matches!(op, Op::While));
    if has(|op| matches!(op, Op::OptimizationBarrier)) {
        ProgramKind::Checkpointed
    } else if has(|op| matches!(op, Op::Convolution(_))) {
        if has_loops { ProgramKind::ConvolutionsInLoops } else { ProgramKind::Convolutions }
    } else if has_loops {
        ProgramKind::Loops
    } else {
        ProgramKind::Straight
    }
}

/// What a compiler does to a program before it orders it, and what makes the result legal if it has not. Reads the file
/// of the compiler.
pub(crate) fn passes_of(compiler: &Compiler) -> Result<Pipeline, EstimateError> {
    let own = passes::of_compiler(compiler)?.into_iter();
    // Copies that rely on no added order are all that a program needs.
    let copies: Option<CopyInsertion> = compiler.options_of(COPY_INSERTION.name())?;
    let has_copies = copies.is_some_and(|copies| copies.adds_order == AddsOrder::Never);
    let legalize = if has_copies { LEGALIZE.without(COPY_INSERTION.name()) } else { LEGALIZE };
    let list = own.chain([legalize.into()]);
    Ok(Pipeline::new("estimate", "what the compiler does before it orders a program", list))
}

/// The module in the order that hides transfers, and its plan. `None` where there are no transfers, or
/// where the program would need more memory than the scheduler allows for.
fn hidden(
    module: &Module,
    planned: &Planned,
    rules: &LatencyHiding,
    machine: &Target,
    options: &PlanOptions,
) -> Option<(Module, Planned)> {
    if !has_transfers(module, rules) {
        return None;
    }
    let costs = ProgramCost::new(module, &planned.facts, &planned.plan, machine).kernels(
        module,
        &planned.facts,
        machine,
    );
    let mut ordered = module.clone();
    if !hide_latency(&mut ordered, rules, &|id| costs.of(id).seconds - costs.of(id).overhead) {
        return None;
    }
    ordered.is_scheduled = true;
    // What would write over a value before all have read it keeps its order.
    let found = plan::plan_unnamed(&ordered, machine, options).ok()?;
    let needed = found.plan.totals.total.0 as f64;
    let usable = machine.space(MemorySpaceId::MAIN).and_then(|space| space.usable());
    let is_allowed = usable.is_none_or(|usable| needed <= usable.0 as f64 * rules.memory_share);
    is_allowed.then_some((ordered, found))
}

/// One-pass orders as the compiler tries them, and its ways of sharing and packing.
fn plan_options(compiler: &Compiler) -> PlanOptions {
    let method = |scheduler: &Scheduler| match scheduler {
        Scheduler::List => plan::LIST_AS_XLA,
        Scheduler::DepthFirst => plan::DEPTH_FIRST_AS_XLA,
        Scheduler::PostOrder => plan::POST_ORDER_AS_XLA,
        Scheduler::BreadthFirst => plan::BREADTH_FIRST_AS_XLA,
    };
    let methods = compiler.schedulers.iter().map(method).collect();
    let take_over = match compiler.writes_over {
        WritesOver::Operands => TakeOver::SingleValues,
        WritesOver::SameShapes => TakeOver::SameShapes,
        WritesOver::Arrays => TakeOver::Arrays,
    };
    let order = match compiler.packs {
        PackingOrder::Decreasing => BestFit::Decreasing,
        PackingOrder::Beginning => BestFit::Beginning,
    };
    PlanOptions {
        reschedule: false,
        schedule: ScheduleOptions { budget: 0, methods, ..ScheduleOptions::default() },
        // A scheduler counts the memory of results if temporaries may use that memory.
        results: Some(if compiler.temps_in_results { Results::Count } else { Results::AreFree }),
        assign: AssignOptions {
            place: PlaceOptions {
                pack: pack::Options::as_compiler(order),
                sharing: Sharing::AsXla(AsXla { take_over, temps_in_results: compiler.temps_in_results }),
                ..PlaceOptions::default()
            },
            results_in_tuples: compiler.results_in_tuples.clone(),
            reductions_beside: compiler.reductions_beside,
            over_sources: compiler.over_sources,
            ..AssignOptions::default()
        },
    }
}

/// Fast memory as XLA assigns it; `None` where the compiler has none, or the program hardly fits any of its arrays there.
fn fast_memory_options(compiler: &Compiler, machine: &Target, temp: Bytes) -> Option<FastMemoryOptions> {
    let options = FastMemoryOptions::for_target(machine).filter(|_| compiler.fast_memory_reach > 0)?;
    let matters = temp.0 <= options.capacity.saturating_mul(compiler.fast_memory_reach);
    let transfers = TransferOptions {
        longest_stay: compiler.fast_memory_stay.unwrap_or(options.transfers.longest_stay),
        ..options.transfers
    };
    matters.then_some(FastMemoryOptions {
        selection: Selection::AsXla,
        cross_program_prefetches: 0,
        transfers,
        ..options
    })
}

/// The bytes of all tuples of addresses.
fn tuple_bytes(module: &Module, graph: &CallGraph, size: &TupleSize) -> Bytes {
    let is_near = |array: &ir::ArrayShape| array.memory_space() != i64::from(MemorySpaceId::MAIN.0);
    let is_sliced = |array: &ir::ArrayShape| {
        is_near(array) && array.dense_bytes().is_some_and(|bytes| bytes >= size.sliced_from.0)
    };
    let n_tuples = |id: ir::InstructionId| {
        let instruction = &module.instructions[id];
        let is_made = id == module.entry_computation().root
            || !instruction.op.only_passes_on()
                && !matches!(instruction.op.traits().role, Role::Provides | Role::Regroups);
        match &instruction.op {
            Op::CopyStart { .. } if module.shape(id).first_array().is_some_and(is_sliced) => 2 * size.slices,
            _ => u64::from(is_made && module.shape(id).is_tuple()),
        }
    };
    let of_computation = |&computation: &ir::ComputationId| {
        module.computations[computation].instructions.iter().map(|&id| n_tuples(id)).sum::<u64>()
    };
    let all: u64 = graph.sequential().iter().map(of_computation).sum();
    Bytes(size.per_tuple.0.saturating_mul(all))
}

fn with_code(mut totals: Totals, code: Bytes) -> Totals {
    let Totals { temp, temp_lower_bound, total, total_lower_bound, peak_live, .. } = &mut totals;
    for sum in [temp, temp_lower_bound, total, total_lower_bound, peak_live] {
        *sum = sum.saturating_add(code);
    }
    totals
}
