//! What makes a program fit into a limit: every lever is tried, planned again and priced; the cheapest set that fits is the
//! advice.
//!
//! Advice is carried out in the program's source, and another compiler compiles it, so prices are estimates of that
//! compiler ([`memplan_driver::price`]): a lever that says what JAX would hand over is done to the module itself, as far as
//! that can be, and the whole is estimated as any other program is. What is a sum beside an estimate (gradients of
//! micro-batches, transfers over links) says so where it is made.

mod lever;
mod policy;
mod program;
mod search;
mod shard;

use memplan_driver::{CompileError, CompileOptions, Effort, EstimateError, compile, in_parallel};
use memplan_ir::Module;
use memplan_memory::{Bytes, Compiler, Target};
use memplan_passes::PassError;
use memplan_planner::ProgramCost;

use lever::Edit;
pub use lever::Lever;
use program::Program;

/// What to aim for.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// Bytes that one device may use.
    pub limit: Bytes,
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
    pub changes: Vec<Change>,
    /// The cheapest set that fits; where none does, the one that needs fewest bytes.
    pub best: Best,
    /// The dimension that counts examples, where there is one.
    pub batch: Option<BatchFound>,
    /// What was not tried, and why.
    pub refused: Vec<String>,
}

/// A change to the program, and what it comes to with it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Change {
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
    pub changes: Vec<Change>,
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

/// What a program is fitted for.
struct Setting<'a> {
    compiler: &'a Compiler,
    target: &'a Target,
    options: &'a FitOptions,
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
    let setting = Setting { compiler, target, options };
    let program = Program::new(module, &setting)?;
    let as_it_is = program.price(&setting)?;
    let edits = lever::all(&program, &setting);
    let try_one = |edit: Edit| {
        let next = program.with(&edit, &setting);
        (next.and_then(|next| next.price(&setting).map_err(|error| error.to_string())), edit)
    };
    let (mut singles, mut refused) = (Vec::new(), edits.refused);
    for (price, edit) in in_parallel(options.threads, edits.list, try_one) {
        match price {
            Ok(price) => singles.push((search::change(&edit, &program, price, &setting), edit)),
            Err(why) => refused.push(format!("{}: {why}", edit.what(&program))),
        }
    }
    singles.sort_by_key(|(change, _)| change.total);
    let best = search::best(&program, as_it_is, &singles, &setting)?;
    let mut changes: Vec<Change> = singles.into_iter().map(|(change, _)| change).collect();
    match own_kernels(module, &setting) {
        Ok(change) => changes.push(change),
        Err(error) => refused.push(format!("{}: {error}", Lever::Order)),
    }
    changes.sort_by_key(|change| change.total);
    refused.push("padding and the pool's share: what layouts pad is in `memplan plan`, what a pool holds in `plan --pool`".into());
    let batch = program.batch.as_ref().map(|batch| BatchFound {
        parameter: batch.at.0,
        dimension: batch.at.2,
        extent: batch.extent(&program.dimensions),
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
    })
}

/// What memplan makes of the program itself. No other compiler does so, hence it is in no set.
fn own_kernels(module: &Module, setting: &Setting<'_>) -> Result<Change, CompileError> {
    let (target, limit) = (setting.target, setting.options.limit);
    let mut compiled = module.clone();
    let usual = CompileOptions { threads: setting.options.threads, ..CompileOptions::default() };
    let found = compile(&mut compiled, target, &Effort::Quick.of(usual))?;
    let totals = found.planned.plan.totals;
    let total = totals.total.saturating_sub(totals.constants);
    Ok(Change {
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
