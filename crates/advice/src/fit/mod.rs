//! What makes a program fit into a limit: every lever is tried, planned again and priced; the cheapest set that fits is the
//! advice.
//!
//! Advice is carried out in the program's source, and another compiler compiles it, so prices are estimates of that
//! compiler ([`memplan_driver::price`]): a lever that says what JAX would hand over is done to the module itself, as far as
//! that can be, and the whole is estimated as any other program is. What is a sum beside an estimate (gradients of
//! micro-batches, transfers over links) says so where it is made.

mod as_it_is;
mod candidate;
mod lever;
mod policy;
mod search;
mod shard;

use std::sync::Arc;

use memplan_driver::{
    CompileError, CompileOptions, Effort, EstimateError, Known, Price, compile, in_parallel,
};
use memplan_ir::{Module, ProgramShape, fingerprint};
use memplan_memory::{Bytes, Compiler, Target};
use memplan_passes::PassError;
use memplan_plan_hlo::ProgramCost;
use memplan_pool::process::{Placement, Settings};

use as_it_is::AsItIs;
pub use as_it_is::{Padded, PaddingRemedy, Replicated};
use candidate::Candidate;
use lever::Edit;
pub use lever::Lever;

/// What to aim for.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// Bytes that one device may use.
    pub limit: Bytes,
    /// How the process gets its memory, where the limit is what its pool may have: a larger share may do then.
    pub pool: Option<Settings>,
    /// The dimension that examples are counted by: a parameter of the entry and a dimension; `None`: found out.
    pub batch: Option<(usize, usize)>,
    /// Numbers of devices to spread the program over.
    pub devices: Vec<i64>,
    /// The most threads that work at a time. Results do not depend on it.
    pub threads: usize,
}

/// What a program needs, and what would make it fit.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Fit {
    /// Bytes that one device may use.
    pub limit: Bytes,
    /// Whether the program fits as it is.
    pub fits: bool,
    /// What the compiler is expected to need for the program as it is.
    pub total: Bytes,
    /// Seconds of one step of it.
    pub seconds: f64,
    /// Every lever that was tried, alone, from fewest bytes to most.
    pub changes: Vec<Suggestion>,
    /// The cheapest set that fits; where none does, the one that needs fewest bytes.
    pub best: Best,
    /// The dimension that counts examples, where there is one.
    pub batch: Option<BatchFound>,
    /// What was not tried, and why.
    pub refused: Vec<String>,
    /// What padding takes at the peak of the program as it is, shape by shape, the most first.
    pub padded: Vec<Padded>,
    /// Arguments that every device holds all of, although the program's shardings cut others; the largest first.
    pub replicated: Vec<Replicated>,
    /// What a process makes of the program as it is, in words; where [`FitOptions::pool`] says how it gets its memory.
    pub process: Option<String>,
}

/// A change to the program, and what it comes to with it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Suggestion {
    /// What kind of change.
    pub lever: Lever,
    /// What is changed, for people.
    pub what: String,
    /// Bytes of one device with it.
    pub total: Bytes,
    /// Seconds of one step with it.
    pub seconds: f64,
    /// Whether that fits.
    pub fits: bool,
    /// How it is written.
    pub apply: String,
}

/// A set of changes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Best {
    /// The changes in the order in which they are made; each with those before it.
    pub changes: Vec<Suggestion>,
    /// Bytes of one device with all of them.
    pub total: Bytes,
    /// Seconds of one step.
    pub seconds: f64,
    /// Whether that fits.
    pub fits: bool,
    /// The program with all of them, as JAX would hand it over: of micro-batches the one that runs several times.
    #[serde(skip)]
    pub module: Module,
}

/// The dimension that counts examples.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BatchFound {
    /// The parameter of the entry that has it.
    pub parameter: usize,
    /// Which dimension of it.
    pub dimension: usize,
    /// Its extent.
    pub extent: i64,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The program cannot be made one whose dimensions can be followed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// What the compiler will need is not known.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// The dimension that was named as the batch is none.
    #[error("parameter {0} has no dimension {1} of more than one element")]
    NoBatch(usize, usize),
}

/// What tells the modules apart that levers make of one: all but notes, which levers leave as they are, and with the
/// memories that arguments and results are in.
#[derive(PartialEq)]
struct ModuleKey {
    fingerprint: u64,
    interface: Option<ProgramShape>,
}

impl ModuleKey {
    fn new(module: &Module) -> ModuleKey {
        ModuleKey {
            fingerprint: fingerprint(module),
            interface: module.config.entry_computation_layout.clone(),
        }
    }
}

/// What a program is fitted for, and what was found out so far.
struct Setting<'a> {
    compiler: &'a Compiler,
    target: &'a Target,
    options: &'a FitOptions,
    prices: Known<ModuleKey, Price>,
    /// What `rewrite` makes of a module that may need so many bytes.
    rewritten: Known<(ModuleKey, Bytes), Arc<Module>>,
}

/// Finds what makes a module fit. Some dozens of estimates, each close to linear in the module.
///
/// # Errors
/// See [`FitError`]. A lever that cannot be pulled is none: [`Fit::refused`] says why.
pub fn fit(
    module: &Module,
    compiler: &Compiler,
    target: &Target,
    options: &FitOptions,
) -> Result<Fit, FitError> {
    let setting =
        Setting { compiler, target, options, prices: Known::default(), rewritten: Known::default() };
    let program = Candidate::new(module, &setting)?;
    let as_it_is = program.price(&setting)?;
    let edits = lever::all(&program, &setting);
    // What takes longest first: the others are done beside it.
    let first = [Job::Alone(Edit::Rewrite), Job::OwnKernels, Job::AsItIs].into_iter();
    let others = edits.list.into_iter().filter(|edit| *edit != Edit::Rewrite).map(Job::Alone);
    let done = in_parallel(options.threads, first.chain(others).collect(), |job| {
        job.done(module, &program, &setting)
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
    let AsItIs { padded, placement, replicated } = looked.expect("it is one of the jobs");
    singles.sort_by_key(|(change, _)| change.total);
    let larger = placement.as_ref().and_then(|placement| larger_pool(placement, as_it_is));
    let best = match &larger {
        // It asks nothing of the program.
        Some(change) => Best::of_one(change.clone(), program.module.clone()),
        None => search::best(&program, as_it_is, &singles, &setting)?,
    };
    changes.extend(larger);
    changes.extend(singles.into_iter().map(|(change, _)| change));
    changes.sort_by_key(|change| change.total);
    let batch = program.batch().map(|batch| BatchFound {
        parameter: batch.at.0,
        dimension: batch.at.2,
        extent: batch.extent(program.dimensions()),
    });
    Ok(Fit {
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

/// What is done beside other things.
enum Job {
    Alone(Edit),
    OwnKernels,
    AsItIs,
}

/// What came of it.
enum Done {
    /// A change, with the edit where it may be in a set.
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

/// What a lever brings without others, or why it cannot be pulled.
fn alone(program: &Candidate, edit: &Edit, setting: &Setting<'_>) -> Result<Suggestion, String> {
    let price = program.with(edit, setting)?.price(setting).map_err(|error| error.to_string())?;
    Ok(search::change(edit, program, price, setting))
}

/// The largest share of a device that a pool can be given: CUDA's context and libraries need some hundred MiB beside it.
const MOST_OF_A_DEVICE: f64 = 0.95;

/// A larger share of the device for the pool, where the program has a place in it then.
fn larger_pool(placement: &Placement, price: Price) -> Option<Suggestion> {
    let fraction = placement.shortage?.enough.filter(|fraction| fraction.get() <= MOST_OF_A_DEVICE)?;
    Some(Suggestion {
        lever: Lever::Pool,
        what: format!("a pool of {fraction} of the device instead of {}", placement.settings.fraction),
        total: price.total,
        seconds: price.seconds,
        fits: true,
        apply: format!("XLA_CLIENT_MEM_FRACTION={fraction} in the environment of the process"),
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

/// What memplan makes of the program itself. No other compiler does so, hence it is in no set.
fn own_kernels(module: &Module, setting: &Setting<'_>) -> Result<Suggestion, CompileError> {
    let (target, limit) = (setting.target, setting.options.limit);
    let mut compiled = module.clone();
    let usual = CompileOptions { threads: setting.options.threads, ..CompileOptions::default() };
    let found = compile(&mut compiled, target, &Effort::Quick.of(usual))?;
    let totals = found.planned.plan.totals;
    let total = totals.total.saturating_sub(totals.constants);
    Ok(Suggestion {
        lever: Lever::Order,
        what: format!(
            "compiled by memplan, with the kernels that {}'s file promises, and no other compiler's",
            target.name
        ),
        total,
        seconds: ProgramCost::new(&compiled, &found.planned.facts, target).run.seconds,
        fits: total <= limit,
        apply: format!("memplan compile MODULE --target {} --memory-limit {}", target.name, limit.0),
    })
}
