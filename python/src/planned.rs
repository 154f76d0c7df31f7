//! Plans: made, estimated, proved, and read column by column.

use std::sync::Arc;

use memplan::advice::{Devices, OneDevice};
use memplan::analysis::Sources;
use memplan::driver::exceeded;
use memplan::memory::{AllocationKind, Bytes, Compiler, MemoryPlan, PlanFile, Target, Totals};
use memplan::plan::{KeptBy, Lifetime, PeakReport, PlanOptions, lifetimes, peak_report};
use memplan::{CompileError, CompileOptions, Objective, check as checker, ir, plan as planner};
use memplan_cli::Failure;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{DoesNotFit, InputError, Refuted, exception, input};
use crate::module::Module;
use crate::work;

/// The machine with a name, or the one in a TOML file.
pub(crate) fn target(name: &str) -> PyResult<Target> {
    memplan_cli::target(name).map_err(|failure| exception(&failure))
}

/// The compiler with a name.
pub(crate) fn compiler(name: &str) -> PyResult<Compiler> {
    Compiler::find(name).map_err(|error| input(&error))
}

/// A program with a plan: one that was made, or one that another compiler is expected to make.
#[pyclass(frozen, module = "memplan")]
pub(crate) struct Planned {
    module: Arc<ir::Module>,
    target: Target,
    planned: planner::Planned,
    totals: Totals,
    peak: PeakReport,
    /// Seconds of one run by the cost model, where it was asked.
    seconds: Option<f64>,
    /// The devices that run it, of which all bytes are those of one.
    devices: Devices,
    lifetimes: Vec<Lifetime>,
}

impl Planned {
    fn new(
        module: ir::Module,
        target: Target,
        planned: planner::Planned,
        totals: Totals,
        seconds: Option<f64>,
        devices: Devices,
    ) -> Planned {
        let peak = peak_report(&module, &planned.facts, &planned.plan);
        let lifetimes = lifetimes(&module, &planned.facts, &planned.plan);
        Planned { module: Arc::new(module), target, planned, totals, peak, seconds, devices, lifetimes }
    }

    fn plan(&self) -> &MemoryPlan {
        &self.planned.plan
    }

    fn column<'py>(&self, py: Python<'py>, of: impl Fn(&Lifetime) -> u64) -> Bound<'py, PyArray1<u64>> {
        self.lifetimes.iter().map(of).collect::<Vec<u64>>().into_pyarray(py)
    }

    /// What people want to know of the value at a position.
    fn describe<'py>(
        &self,
        py: Python<'py>,
        sources: &Sources<'_>,
        position: &ir::Position,
    ) -> PyResult<Bound<'py, PyDict>> {
        let row = PyDict::new(py);
        let instruction = &self.module.instructions[position.instruction];
        row.set_item("instruction", &*instruction.name)?;
        row.set_item("index", position.index.0.to_vec())?;
        row.set_item("computation", &*self.module.computations[instruction.parent].name)?;
        row.set_item("opcode", instruction.op.opcode().to_string())?;
        row.set_item("shape", memplan::advice::shape_at(&self.module, position))?;
        row.set_item("operation", memplan::analysis::operation(&self.module, position.instruction))?;
        row.set_item("source", sources.user(position.instruction).map(|frame| frame.to_string()))?;
        Ok(row)
    }

    fn kind(&self, slice: memplan::memory::Slice) -> &'static str {
        match self.plan().allocations[slice.allocation].kind {
            AllocationKind::Argument { .. } => "argument",
            AllocationKind::Output => "output",
            AllocationKind::Constant => "constant",
            AllocationKind::Temp => "temp",
        }
    }
}

#[pymethods]
impl Planned {
    /// The program that the plan describes, in the order in which it runs.
    #[getter]
    fn module(&self) -> Module {
        Module(Arc::clone(&self.module))
    }

    #[getter]
    fn target(&self) -> &str {
        &self.target.name
    }

    /// How many devices run the program, if it is more than one: all bytes are those of one of them.
    #[getter]
    fn devices(&self) -> Option<u64> {
        self.devices.count
    }

    #[getter]
    fn seconds(&self) -> Option<f64> {
        self.seconds
    }

    /// Bytes by kind, as in the plan file.
    #[getter]
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let t = &self.totals;
        let totals = PyDict::new(py);
        for (name, Bytes(bytes)) in [
            ("arguments", t.arguments),
            ("outputs", t.outputs),
            ("aliased", t.aliased),
            ("constants", t.constants),
            ("temp", t.temp),
            ("total", t.total),
            ("total_lower_bound", t.total_lower_bound),
            ("peak_live", t.peak_live),
            ("temp_lower_bound", t.temp_lower_bound),
            ("fragmentation", t.fragmentation),
            ("padding", t.padding),
        ] {
            totals.set_item(name, bytes)?;
        }
        Ok(totals)
    }

    /// The memories in use: number, name, usable bytes, bytes needed.
    #[getter]
    fn spaces(&self) -> Vec<(u32, String, Option<u64>, u64)> {
        let row = |space: &memplan::memory::SpaceTotals| {
            let usable = self.target.space(space.space).and_then(|space| space.usable());
            (space.space.0, space.name.clone(), usable.map(|bytes| bytes.0), space.total.0)
        };
        self.plan().spaces.iter().map(row).collect()
    }

    /// The allocations: kind, memory, bytes, alignment, and for arguments the number of the parameter.
    #[getter]
    fn allocations(&self) -> Vec<(&'static str, u32, u64, u64, Option<u32>)> {
        let row = |allocation: &memplan::memory::Allocation| {
            let (kind, parameter) = match &allocation.kind {
                AllocationKind::Argument { parameter, .. } => ("argument", Some(*parameter)),
                AllocationKind::Output => ("output", None),
                AllocationKind::Constant => ("constant", None),
                AllocationKind::Temp => ("temp", None),
            };
            (kind, allocation.space.0, allocation.size.0, allocation.alignment.bytes(), parameter)
        };
        self.plan().allocations.values().map(row).collect()
    }

    /// Bytes live at every instant.
    #[getter]
    fn curve<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.peak.curve.iter().map(|bytes| bytes.0).collect::<Vec<u64>>().into_pyarray(py)
    }

    /// When most bytes are live, how many, and the instruction that runs then.
    #[getter]
    fn peak(&self) -> (u32, u64, &str) {
        (self.peak.time, self.peak.bytes.0, &self.module.instructions[self.peak.instruction].name)
    }

    /// What is live at the peak, the largest first.
    fn holders<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let name = |id: ir::InstructionId| self.module.instructions[id].name.to_string();
        let sources = Sources::new(&self.module);
        self.peak
            .buffers
            .iter()
            .map(|buffer| {
                let row = self.describe(py, &sources, &buffer.position)?;
                row.set_item("bytes", buffer.slice.size.0)?;
                row.set_item("kind", self.kind(buffer.slice))?;
                row.set_item("offset", buffer.slice.offset.0)?;
                row.set_item("start", buffer.live.start)?;
                row.set_item("end", buffer.live.end)?;
                let kept_by = match buffer.kept_by {
                    KeptBy::Caller => "the caller".to_string(),
                    KeptBy::Result => "being a result".to_string(),
                    KeptBy::Constant => "being constant".to_string(),
                    KeptBy::Loop(id) => format!("the loop, {}", name(id)),
                    KeptBy::Reader(id) => name(id),
                };
                row.set_item("kept_by", kept_by)?;
                Ok(row)
            })
            .collect()
    }

    /// The same in the lines of reports: the title, the table with heads first, and what is said of lines that it leaves
    /// out.
    fn lines(&self) -> (String, Vec<Vec<String>>, String) {
        let memplan_cli::PeakTable { title, rows, rest } =
            memplan_cli::PeakTable::new(&self.module, &self.planned);
        (title, rows, rest)
    }

    /// The columns of the table of buffers: allocation, offset, size, start, end. A slice has a row for each time that it
    /// is in use without a break.
    #[getter]
    fn buffers<'py>(&self, py: Python<'py>) -> [Bound<'py, PyArray1<u64>>; 5] {
        [
            self.column(py, |l| u64::from(l.slice.allocation.as_u32())),
            self.column(py, |l| l.slice.offset.0),
            self.column(py, |l| l.slice.size.0),
            self.column(py, |l| u64::from(l.live.start)),
            self.column(py, |l| u64::from(l.live.end)),
        ]
    }

    /// The table of buffers row by row, with the value that each begins with.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let flow = &self.planned.facts.flow;
        let sources = Sources::new(&self.module);
        self.lifetimes
            .iter()
            .map(|l| {
                let row =
                    self.describe(py, &sources, &flow.positions.position(flow.values[l.value].definition))?;
                row.set_item("kind", self.kind(l.slice))?;
                row.set_item("allocation", l.slice.allocation.as_u32())?;
                row.set_item("offset", l.slice.offset.0)?;
                row.set_item("size", l.slice.size.0)?;
                row.set_item("start", l.live.start)?;
                row.set_item("end", l.live.end)?;
                Ok(row)
            })
            .collect()
    }

    /// The plan file.
    fn to_json(&self) -> String {
        let mut file = PlanFile::new(&self.module, &self.planned.schedule, self.plan());
        file.devices = self.devices.count;
        memplan::advice::note_peaks(&self.module, &self.planned, &mut file);
        serde_json::to_string_pretty(&file).expect("plan files have only string keys")
    }

    fn __str__(&self) -> String {
        memplan_cli::whose_bytes(&self.devices)
            + &memplan_cli::report(
                &self.module,
                &self.target,
                &self.planned,
                &memplan_cli::PeakOptions::default(),
                memplan_cli::Screen::PLAIN,
            )
    }
}

/// What a compiler will need for a program on a machine.
#[pyfunction]
#[pyo3(signature = (module, compiler_name, target_name=None))]
pub(crate) fn estimate(
    py: Python<'_>,
    module: &Module,
    compiler_name: &str,
    target_name: Option<&str>,
) -> PyResult<Planned> {
    let compiler = compiler(compiler_name)?;
    let machine = target(target_name.unwrap_or(&compiler.target))?;
    let module = Arc::clone(&module.0);
    let job = move || {
        let OneDevice { module, devices } =
            OneDevice::of(Arc::unwrap_or_clone(module), &compiler.on(&machine))?;
        let found = memplan::estimate(&module, &compiler, &machine)?;
        Ok(Planned::new(found.module, machine, found.planned, found.totals, Some(found.run.seconds), devices))
    };
    work::run(py, "estimating", job)?.map_err(|error: memplan::EstimateError| input(&error))
}

/// Gives every buffer of a program an address, as it stands.
#[pyfunction]
pub(crate) fn plan(
    py: Python<'_>,
    module: &Module,
    target_name: &str,
    keep_schedule: bool,
) -> PyResult<Planned> {
    let machine = target(target_name)?;
    let module = Arc::clone(&module.0);
    let job = move || {
        let one = OneDevice::of(Arc::unwrap_or_clone(module), &machine);
        let OneDevice { mut module, devices } = one.map_err(|error| Failure::input(&error))?;
        let options = PlanOptions::default();
        let (planned, _) = memplan_cli::plan_module(&mut module, &machine, keep_schedule, &options)?;
        let totals = planned.plan.totals;
        Ok(Planned::new(module, machine, planned, totals, None, devices))
    };
    work::run(py, "planning", job)?.map_err(|failure: Failure| exception(&failure))
}

/// Optimizes, fuses, schedules, plans and proves a program for a machine.
#[pyfunction]
#[pyo3(signature = (module, target_name, memory_limit=None, objective=None))]
pub(crate) fn compile(
    py: Python<'_>,
    module: &Module,
    target_name: &str,
    memory_limit: Option<u64>,
    objective: Option<&str>,
) -> PyResult<Planned> {
    let machine = target(target_name)?;
    let memory_limit = memory_limit.map(Bytes);
    let objective = objective.map_or(Ok(Objective::default()), |name| {
        let names = Objective::ALL.map(|objective| objective.to_string()).join(", ");
        name.parse().map_err(|_| InputError::new_err(format!("`{name}` is no objective; there are {names}")))
    })?;
    let module = Arc::clone(&module.0);
    let job = move || {
        let one = OneDevice::of(Arc::unwrap_or_clone(module), &machine)?;
        let OneDevice { mut module, devices } = one;
        let options = CompileOptions { objective, memory_limit, ..CompileOptions::default() };
        let compiled = memplan::compile(&mut module, &machine, &options)?;
        let story = exceeded(&compiled.planned.plan, &machine, memory_limit)
            .map(|excess| memplan_cli::too_large(&module, &compiled.planned, excess));
        let totals = compiled.planned.plan.totals;
        Ok((Planned::new(module, machine, compiled.planned, totals, None, devices), story))
    };
    let (planned, story) =
        work::run(py, "compiling", job)?.map_err(|error: CompileError| exception(&Failure::input(&error)))?;
    match story {
        Some(story) => Err(DoesNotFit::new_err(story)),
        None => Ok(planned),
    }
}

/// What was looked at: computations, instructions, reads, writes; and memory spaces whose arenas are said to be minimal,
/// which could not be verified.
type Proof = (usize, usize, usize, usize, Vec<u32>);

/// Proves a plan, as JSON, right for a module.
#[pyfunction]
#[pyo3(signature = (module, plan, target_name=None))]
pub(crate) fn check(
    py: Python<'_>,
    module: &Module,
    plan: String,
    target_name: Option<&str>,
) -> PyResult<Proof> {
    let module = Arc::clone(&module.0);
    let file: PlanFile = serde_json::from_str(&plan).map_err(|error| {
        InputError::new_err(format!("{}:{}: not a plan: {error}", error.line(), error.column()))
    })?;
    let machine = target(target_name.unwrap_or(&file.target))?;
    let job = move || {
        let one = OneDevice::of(Arc::unwrap_or_clone(module), &machine);
        let mut module = one.map_err(|error| error.to_string())?.module;
        if let Some(prepared) = prepared(&file, &module, &machine) {
            module = prepared;
        }
        let (schedule, plan) = file.resolve(&module).map_err(|error| error.to_string())?;
        checker::check(&module, &schedule, &machine, &plan).map_err(|violations| violations.to_string())
    };
    let proof = work::run(py, "checking", job)?.map_err(Refuted::new_err)?;
    let on_trust = proof.on_trust.iter().map(|space| space.0).collect();
    Ok((proof.computations, proof.instructions, proof.reads, proof.writes, on_trust))
}

/// The module in the order and with the copies that [`plan`] gives it, where the plan is for that and not for the module as
/// it is.
fn prepared(file: &PlanFile, module: &ir::Module, machine: &Target) -> Option<ir::Module> {
    let is_for = |module: &ir::Module| file.fingerprint == format!("{:016x}", ir::fingerprint(module));
    if is_for(module) {
        return None;
    }
    let mut schedules = [true, false].into_iter();
    schedules.find_map(|keep_schedule| {
        let mut module = module.clone();
        memplan_cli::plan_module(&mut module, machine, keep_schedule, &PlanOptions::default()).ok()?;
        is_for(&module).then_some(module)
    })
}
