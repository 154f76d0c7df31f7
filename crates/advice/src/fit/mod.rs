//! Makes a program fit a limit: tries every lever, prices the result, and advises the cheapest set of changes that fits.
//!
//! The user applies the advice in the program's source, and another compiler compiles it, so prices are estimates of
//! that compiler ([`Prices`]): a lever edits the module as JAX would write it, as far as possible, and
//! the module is estimated like any other program. Costs that are added to an estimate (gradients of micro-batches,
//! transfers over links) are documented at the code that computes them.

mod as_it_is;
mod candidate;
mod lever;
mod mesh;
mod policy;
mod search;

use std::sync::Arc;

use memplan_driver::{
    CompileError, CompileOptions, Effort, EstimateError, Known, ModuleKey, Price, Prices, compile,
    in_parallel,
};
use memplan_ir::Module;
use memplan_memory::{Bytes, Compiler, Target};
use memplan_passes::PassError;
use memplan_plan_hlo::ProgramCost;
use memplan_pool::process::{Placement, Settings};

use crate::{OneDevice, Replicated};
use as_it_is::AsItIs;
pub use as_it_is::{Padded, PaddingRemedy};
use candidate::Candidate;
use lever::Edit;
pub use lever::Lever;
pub use mesh::{ArgumentCut, MeshAdvice, MeshAxis};

/// The goal.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// Bytes that one device may use.
    pub limit: Bytes,
    /// How the process allocates memory, if the limit is its pool: a larger share may suffice then.
    pub pool: Option<Settings>,
    /// The dimension that counts examples: a parameter of the entry and a dimension; `None`: search for it.
    pub batch: Option<(usize, usize)>,
    /// Numbers of devices to spread the program over. Without 1 among them, it is spread in any case, and other changes are
    /// tried on what one device has of it.
    pub devices: Vec<i64>,
    /// The most threads to use. Results do not depend on it.
    pub threads: usize,
}

/// A program's memory, and the changes that would make it fit.
#[derive(Clone, Debug, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fit {
    /// How many devices run the program, if it is more than one. All bytes are those of one device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<u64>,
    /// Bytes that one device may use.
    pub limit: Bytes,
    /// Whether the program fits unchanged.
    pub fits: bool,
    /// The estimated bytes of the unchanged program.
    pub total: Bytes,
    /// Seconds of one step of it.
    pub seconds: f64,
    /// Every lever that was tried, alone, from fewest bytes to most.
    pub changes: Vec<Suggestion>,
    /// The cheapest set that fits; if none does, the one that needs fewest bytes.
    pub best: Best,
    /// The dimension that counts examples, if there is one.
    pub batch: Option<BatchFound>,
    /// The changes that were not tried, and why.
    pub refused: Vec<String>,
    /// Padding at the peak of the unchanged program, shape by shape, the most first.
    pub padded: Vec<Padded>,
    /// Arguments of which several devices hold equal parts, the largest first.
    pub replicated: Vec<Replicated>,
    /// A description of the process that runs the unchanged program, if [`FitOptions::pool`] is set.
    pub process: Option<String>,
}

/// A change to the program, and its price.
#[derive(Clone, Debug, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Suggestion {
    /// The kind of change.
    pub lever: Lever,
    /// Describes the change.
    pub what: String,
    /// Bytes of one device with it.
    pub total: Bytes,
    /// Seconds of one step with it.
    pub seconds: f64,
    /// Whether that fits.
    pub fits: bool,
    /// The change as source code or as a command.
    pub apply: String,
    /// The change as values for code.
    #[serde(skip)]
    pub code: Option<Code>,
    /// The mesh of devices, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshAdvice>,
}

/// A change as values for code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// A policy of `jax.checkpoint`, as an expression.
    Policy(String),
    /// How many micro-batches a batch is.
    MicroBatches(i64),
}

/// A set of changes.
#[derive(Clone, Debug, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Best {
    /// The changes in the order of application; each is priced with those before it.
    pub changes: Vec<Suggestion>,
    /// Bytes of one device with all of them.
    pub total: Bytes,
    /// Seconds of one step.
    pub seconds: f64,
    /// Whether that fits.
    pub fits: bool,
    /// The program with all of them, as JAX would write it: for micro-batches, the one that runs several times.
    #[serde(skip)]
    pub module: Module,
}

/// The dimension that counts examples.
#[derive(Clone, Debug, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BatchFound {
    /// The parameter of the entry that has it.
    pub parameter: usize,
    /// Which dimension of it.
    pub dimension: usize,
    /// Its extent, on all devices together.
    pub extent: i64,
}

/// Why a program cannot be analyzed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The dimensions of the program cannot be tracked.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// There is no estimate.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// The dimension given as the batch does not exist.
    #[error("parameter {0} has no dimension {1} of more than one element")]
    NoBatch(usize, usize),
}

/// The task, and results so far.
struct Setting<'a> {
    compiler: &'a Compiler,
    target: &'a Target,
    options: &'a FitOptions,
    /// Of all modules that levers make.
    prices: Prices<'a>,
    /// Results of `rewrite` by module and limit.
    rewritten: Known<(ModuleKey, Bytes), Arc<Module>>,
}

/// Finds the changes that make a module fit. Needs some dozens of estimates, each close to linear in the module.
///
/// # Errors
/// See [`FitError`]. A lever that cannot be applied is no error: [`Fit::refused`] has the reason.
pub fn fit(
    module: &Module,
    compiler: &Compiler,
    target: &Target,
    options: &FitOptions,
) -> Result<Fit, FitError> {
    let setting = Setting {
        compiler,
        target,
        options,
        prices: Prices::new(compiler, target),
        rewritten: Known::default(),
    };
    let OneDevice { module, devices } = OneDevice::of(module.clone(), target)?;
    let program = Candidate::new(&module, &devices, &setting)?;
    if !program.is_spread && !options.devices.is_empty() && !options.devices.contains(&1) {
        return spread(&program, &setting);
    }
    let as_it_is = program.price(&setting)?;
    let edits = lever::all(&program, &setting);
    // The longest jobs first; the others run in parallel.
    let first = [Job::Alone(Edit::Rewrite), Job::OwnKernels, Job::AsItIs].into_iter();
    let others = edits.list.into_iter().filter(|edit| *edit != Edit::Rewrite).map(Job::Alone);
    let done = in_parallel(options.threads, first.chain(others).collect(), |job| {
        job.done(&module, &program, &setting)
    });
    let (mut singles, mut changes, mut refused, mut looked) = (Vec::new(), Vec::new(), edits.refused, None);
    for done in done {
        match done? {
            Done::Suggestion(change, Some(edit)) => singles.push((change, edit)),
            Done::Suggestion(change, None) => changes.push(change),
            Done::AsItIs(found) => looked = Some(found),
            Done::Refused(why) => refused.push(why),
        }
    }
    let AsItIs { padded, placement } = looked.expect("it is one of the jobs");
    singles.sort_by_key(|(change, _)| change.total);
    let larger = placement.as_ref().and_then(|placement| larger_pool(placement, as_it_is));
    let best = match &larger {
        // It costs the program nothing.
        Some(change) => Best::of_one(change.clone(), program.module.clone()),
        None => search::best(&program, as_it_is, &singles, &setting)?,
    };
    changes.extend(larger);
    changes.extend(singles.into_iter().map(|(change, _)| change));
    changes.sort_by_key(|change| change.total);
    let batch = batch_found(&program);
    let replicated = devices.worth_cutting(as_it_is.total).cloned().collect();
    Ok(Fit {
        devices: devices.count,
        limit: options.limit,
        fits: as_it_is.total <= options.limit,
        total: as_it_is.total,
        seconds: as_it_is.seconds,
        changes,
        best,
        batch,
        refused,
        padded,
        replicated,
        process: placement.map(|placement| placement.to_string()),
    })
}

/// The same for a program that is spread over devices in any case: the cheapest mesh that fits, or one with changes that
/// make it fit.
fn spread(program: &Candidate, setting: &Setting<'_>) -> Result<Fit, FitError> {
    let meshes = mesh::all(program, &setting.options.devices, setting);
    let jobs = std::iter::once(None).chain(meshes.into_iter().map(|mesh| Some(Edit::Shard(mesh))));
    let done = in_parallel(setting.options.threads, jobs.collect(), |edit| match edit {
        None => program.price(setting).map(|price| (None, Some(price))),
        Some(edit) => Ok((Some((alone(program, &edit, setting), edit)), None)),
    });
    let (mut singles, mut refused, mut as_it_is) = (Vec::new(), Vec::new(), None);
    for done in done {
        let (mesh, price) = done?;
        as_it_is = as_it_is.or(price);
        match mesh {
            Some((Ok(change), edit)) => singles.push((change, edit)),
            Some((Err(why), edit)) => refused.push(format!("{}: {why}", edit.what(program))),
            None => {}
        }
    }
    let as_it_is = as_it_is.expect("it is one of the jobs");
    singles.sort_by_key(|(change, _)| change.total);
    refused.push("pipeline stages: they need layers that are written as a `shard_map`".into());
    let best = search::best_spread(program, as_it_is, &singles, setting)?;
    Ok(Fit {
        devices: None,
        limit: setting.options.limit,
        fits: false,
        total: as_it_is.total,
        seconds: as_it_is.seconds,
        changes: singles.into_iter().map(|(change, _)| change).collect(),
        best,
        batch: batch_found(program),
        refused,
        padded: Vec::new(),
        replicated: Vec::new(),
        process: None,
    })
}

fn batch_found(program: &Candidate) -> Option<BatchFound> {
    program.batch().map(|batch| BatchFound {
        parameter: batch.at.0,
        dimension: batch.at.2,
        extent: program.on_all(batch.extent(program.dimensions())),
    })
}

/// Jobs that run in parallel.
enum Job {
    Alone(Edit),
    OwnKernels,
    AsItIs,
}

/// Their results.
enum Done {
    /// A change, with the edit if it may be part of a set.
    Suggestion(Suggestion, Option<Edit>),
    AsItIs(AsItIs),
    Refused(String),
}

impl Job {
    fn done(
        self,
        module: &Module,
        program: &Candidate,
        setting: &Setting<'_>,
    ) -> Result<Done, EstimateError> {
        Ok(match self {
            Job::AsItIs => Done::AsItIs(as_it_is::look(module, setting)?),
            Job::OwnKernels => match own_kernels(module, setting) {
                Ok(change) => Done::Suggestion(change, None),
                Err(error) => Done::Refused(format!("{}: {error}", Lever::Order)),
            },
            Job::Alone(edit) => match alone(program, &edit, setting) {
                Ok(change) => Done::Suggestion(change, Some(edit)),
                Err(why) => Done::Refused(format!("{}: {why}", edit.what(program))),
            },
        })
    }
}

/// Prices a lever alone, or returns why it cannot be applied.
fn alone(program: &Candidate, edit: &Edit, setting: &Setting<'_>) -> Result<Suggestion, String> {
    let price = program.with(edit, setting)?.price(setting).map_err(|error| error.to_string())?;
    Ok(search::change(edit, program, price, setting))
}

/// The largest share of a device that a pool can get: CUDA's context and libraries need some hundred MiB beside it.
const MOST_OF_A_DEVICE: f64 = 0.95;

/// A larger share of the device for the pool, if the program fits it.
fn larger_pool(placement: &Placement, price: Price) -> Option<Suggestion> {
    let fraction = placement.shortage?.enough.filter(|fraction| fraction.get() <= MOST_OF_A_DEVICE)?;
    Some(Suggestion {
        lever: Lever::Pool,
        what: format!("a pool of {fraction} of the device instead of {}", placement.settings.fraction),
        total: price.total,
        seconds: price.seconds,
        fits: true,
        apply: format!("XLA_CLIENT_MEM_FRACTION={fraction} in the environment of the process"),
        code: None,
        mesh: None,
    })
}

impl Best {
    fn of_one(change: Suggestion, module: Module) -> Best {
        Best {
            total: change.total,
            seconds: change.seconds,
            fits: change.fits,
            module,
            changes: vec![change],
        }
    }
}

/// memplan's own compilation of the program. No other compiler can do it, so it is in no set.
fn own_kernels(module: &Module, setting: &Setting<'_>) -> Result<Suggestion, CompileError> {
    let (target, limit) = (setting.target, setting.options.limit);
    let mut compiled = module.clone();
    let usual = CompileOptions { threads: setting.options.threads, ..CompileOptions::default() };
    let found = compile(&mut compiled, target, &Effort::Quick.of(usual))?;
    let totals = found.planned.plan.totals;
    let total = totals.total.saturating_sub(totals.constants);
    Ok(Suggestion {
        lever: Lever::Order,
        what: format!("compiled by memplan instead, with the kernels in {}'s file", target.name),
        total,
        seconds: ProgramCost::new(&compiled, &found.planned.facts, &found.planned.plan, target).run.seconds,
        fits: total <= limit,
        apply: format!("memplan compile MODULE --target {} --memory-limit {}B", target.name, limit.0),
        code: None,
        mesh: None,
    })
}
