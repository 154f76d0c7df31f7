//! Passes, and how a list of them runs: verified around each, timed, stoppable.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memplan_analysis::{CallGraph, CallGraphError};
use memplan_ir::{InstructionId, Module, VerifyErrors, verify};
use memplan_memory::Target;

use crate::{Report, Rewriter};

/// A rewrite of a module. Passes are values: those with options have them as fields, and two passes are equal that are of
/// one type and have equal options, so that what equal passes do to equal modules needs to be done only once.
pub trait Pass: PassEq + Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// One line for people.
    fn description(&self) -> &'static str;

    /// Rewrites the module; returns whether anything changed, and the decisions. Running it again right away changes
    /// nothing, unless the pass documents that it must run last.
    ///
    /// # Errors
    /// See [`PassError`].
    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError>;

    /// Its passes, if it is only a list of other passes.
    fn as_pipeline(&self) -> Option<&Pipeline> {
        None
    }
}

/// Equality of passes of any types; every type that is `PartialEq` has it.
pub trait PassEq: Any {
    /// Whether another value is of the same type and equal.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> PassEq for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

impl PartialEq for dyn Pass {
    fn eq(&self, other: &dyn Pass) -> bool {
        self.equals(other)
    }
}

/// The result of one run of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Whether the module changed.
    pub changed: bool,
    /// The pass's decisions, if it reports them.
    pub report: Option<Report>,
}

impl From<bool> for Outcome {
    fn from(changed: bool) -> Outcome {
        Outcome { changed, report: None }
    }
}

/// A pass without options and without a report.
#[derive(Clone, Copy, Debug)]
pub struct PassFn {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// See [`Pass::run`].
    pub run: fn(&mut Module, &Context<'_>) -> Result<bool, PassError>,
}

impl PartialEq for PassFn {
    fn eq(&self, other: &PassFn) -> bool {
        let PassFn { name, description, run } = *self;
        // Functions of one address do the same.
        (name, description) == (other.name, other.description) && std::ptr::fn_addr_eq(run, other.run)
    }
}

impl Pass for PassFn {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        (self.run)(module, context).map(Outcome::from)
    }
}

/// A pass without options that replaces instructions one after the other, by one rule: [`Rewriter::sweep`].
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// The replacement of an instruction.
    pub rule: fn(&mut Rewriter<'_>, InstructionId) -> Option<InstructionId>,
}

impl PartialEq for Sweep {
    fn eq(&self, other: &Sweep) -> bool {
        let Sweep { name, description, rule } = *self;
        (name, description) == (other.name, other.description) && std::ptr::fn_addr_eq(rule, other.rule)
    }
}

impl Pass for Sweep {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        Ok(Rewriter::swept(module, self.rule).into())
    }
}

/// A pass as lists hold it: known when the program was compiled, or made while it runs.
#[derive(Clone)]
pub enum AnyPass {
    /// A pass with constant options, such as those of this crate.
    Static(&'static dyn Pass),
    /// One with options of somebody's own.
    Shared(Arc<dyn Pass>),
}

impl<P: Pass + 'static> From<P> for AnyPass {
    fn from(pass: P) -> AnyPass {
        AnyPass::Shared(Arc::new(pass))
    }
}

impl Deref for AnyPass {
    type Target = dyn Pass;

    fn deref(&self) -> &(dyn Pass + 'static) {
        match self {
            AnyPass::Static(pass) => *pass,
            AnyPass::Shared(pass) => &**pass,
        }
    }
}

impl PartialEq for AnyPass {
    fn eq(&self, other: &AnyPass) -> bool {
        **self == **other
    }
}

impl fmt::Debug for AnyPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Passes that run in an order, round after round until nothing changes. [`run`] looks inside: each of its passes is
/// timed, verified, and counted by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// The passes, in order.
    pub passes: Cow<'static, [AnyPass]>,
    /// Most rounds.
    pub rounds: usize,
}

impl Pipeline {
    /// Passes that run in an order, once.
    pub fn new(
        name: &'static str,
        description: &'static str,
        passes: impl IntoIterator<Item = AnyPass>,
    ) -> Pipeline {
        Pipeline { name, description, passes: passes.into_iter().collect(), rounds: 1 }
    }

    /// The same without the passes of a name, also in pipelines within.
    #[must_use]
    pub fn without(&self, name: &str) -> Pipeline {
        self.replacing(name, None)
    }

    /// The same with another pass for each of a name, also in pipelines within.
    #[must_use]
    pub fn with(&self, name: &str, pass: impl Into<AnyPass>) -> Pipeline {
        self.replacing(name, Some(&pass.into()))
    }

    /// Whether a pass of a name is in it, also in pipelines within.
    pub fn contains(&self, name: &str) -> bool {
        let mut passes = self.passes.iter();
        passes.any(|pass| pass.name() == name || pass.as_pipeline().is_some_and(|inner| inner.contains(name)))
    }

    fn replacing(&self, name: &str, by: Option<&AnyPass>) -> Pipeline {
        let replaced = self.passes.iter().filter_map(|pass| match pass.as_pipeline() {
            _ if pass.name() == name => by.cloned(),
            Some(inner) => Some(inner.replacing(name, by).into()),
            None => Some(pass.clone()),
        });
        Pipeline { passes: replaced.collect(), ..self.clone() }
    }

    /// Runs the passes by a function that says whether one changed anything.
    fn run_with<'a>(
        &'a self,
        mut run: impl FnMut(&'a dyn Pass) -> Result<bool, PassError>,
    ) -> Result<bool, PassError> {
        let mut changed_any = false;
        // A pass that met this very module before left it as it is.
        let mut n_settled = 0;
        for pass in std::iter::repeat_n(&self.passes, self.rounds).flat_map(|passes| passes.iter()) {
            if n_settled == self.passes.len() {
                break;
            }
            match run(&**pass)? {
                true => (changed_any, n_settled) = (true, 0),
                false => n_settled += 1,
            }
        }
        Ok(changed_any)
    }
}

impl Pass for Pipeline {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        self.run_with(|pass| Ok(pass.run(module, context)?.changed)).map(Outcome::from)
    }

    fn as_pipeline(&self) -> Option<&Pipeline> {
        Some(self)
    }
}

/// The inputs of a pass besides the module.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The machine to compile for.
    pub target: &'a Target,
}

/// Why a pass gave up. The module may be half rewritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The module has no call graph that the pass can work on.
    #[error("pass `{pass}` cannot run")]
    CallGraph {
        /// The pass.
        pass: &'static str,
        /// The error.
        source: CallGraphError,
    },
    /// The pass cannot work on the module, for a reason of its own.
    #[error("pass `{pass}` cannot run")]
    Failed {
        /// The pass.
        pass: &'static str,
        /// The reason, an error of any type.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The pass left an invalid module, which is a bug in the pass.
    #[error("pass `{pass}` left an invalid module behind")]
    Broke {
        /// The pass.
        pass: &'static str,
        /// The verifier's errors.
        source: VerifyErrors,
    },
}

impl PassError {
    /// The error of a pass that has a reason of its own: [`PassError::Failed`].
    pub fn failed(pass: &'static str, reason: impl Into<Box<dyn Error + Send + Sync>>) -> PassError {
        PassError::Failed { pass, source: reason.into() }
    }
}

/// The call graph of a module, for a pass that gives up where there is none.
///
/// # Errors
/// [`PassError::CallGraph`], in the name of the pass.
pub fn call_graph(module: &Module, pass: &'static str) -> Result<CallGraph, PassError> {
    CallGraph::new(module).map_err(|source| PassError::CallGraph { pass, source })
}

/// How to run a list of passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Run only the first this many passes.
    pub stop_after: Option<usize>,
    /// Verify the module after each pass.
    pub verify: bool,
}

/// The work of one pass.
#[derive(Clone, Debug)]
pub struct PassRun {
    /// Its name.
    pub name: &'static str,
    /// Whether it changed anything.
    pub changed: bool,
    /// How long it took, verification excluded.
    pub time: Duration,
    /// The pass's decisions, if it reports them.
    pub report: Option<Report>,
}

/// Runs passes in order; the passes of a pipeline run one by one. A pass does not run again on a module that an equal one
/// left as it is.
///
/// # Errors
/// The first error of a pass, or of the verifier after it.
pub fn run<'a>(
    module: &mut Module,
    passes: &[&'a dyn Pass],
    context: &'a Context<'a>,
    options: RunOptions,
) -> Result<Vec<PassRun>, PassError> {
    let runs = Vec::with_capacity(passes.len());
    let mut runner = Runner { context, options, runs, settled: Vec::new() };
    for &pass in passes {
        runner.run(module, pass)?;
    }
    Ok(runner.runs)
}

struct Runner<'a> {
    context: &'a Context<'a>,
    options: RunOptions,
    runs: Vec<PassRun>,
    /// The passes that left this very module as it is.
    settled: Vec<&'a dyn Pass>,
}

impl<'a> Runner<'a> {
    fn run(&mut self, module: &mut Module, pass: &'a dyn Pass) -> Result<bool, PassError> {
        if let Some(pipeline) = pass.as_pipeline() {
            return pipeline.run_with(|pass| self.run(module, pass));
        }
        if self.options.stop_after.is_some_and(|n| self.runs.len() >= n) {
            return Ok(false);
        }
        if self.settled.contains(&pass) {
            return Ok(false);
        }
        let start = Instant::now();
        let Outcome { changed, report } = pass.run(module, self.context)?;
        match changed {
            true => self.settled.clear(),
            false => self.settled.push(pass),
        }
        self.runs.push(PassRun { name: pass.name(), changed, time: start.elapsed(), report });
        if self.options.verify {
            verify(module).map_err(|source| PassError::Broke { pass: pass.name(), source })?;
        }
        Ok(changed)
    }
}
