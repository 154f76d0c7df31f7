//! What a pass is, and how a list of them runs: verified around each, timed, stoppable.

use std::time::{Duration, Instant};

use memplan_analysis::{CallGraph, CallGraphError};
use memplan_ir::{Module, VerifyErrors, verify};
use memplan_memory::Target;

/// A rewrite of a module.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// Rewrites the module and says whether anything changed. Running it again right away changes nothing, unless the
    /// pass says that it comes last.
    pub run: fn(&mut Module, &Context<'_>) -> Result<bool, PassError>,
}

/// What a pass may look at besides the module.
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
        /// What is wrong with it.
        source: CallGraphError,
    },
    /// The module is not one the pass can work on.
    #[error("pass `{pass}` cannot run")]
    Unsupported {
        /// The pass.
        pass: &'static str,
        /// What it met.
        source: Unsupported,
    },
    /// What a pass left behind is not valid, which is a bug in the pass.
    #[error("pass `{pass}` left an invalid module behind")]
    Broke {
        /// The pass.
        pass: &'static str,
        /// What the verifier says.
        source: VerifyErrors,
    },
}

/// What a pass met in a module that it cannot work on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// Two receives of one loop would have to write one buffer.
    #[error("`{0}` cannot be kept apart from the receive of the iteration before")]
    Receive(Box<str>),
    /// A result would have to be where something is that is still needed.
    #[error("the value returned as `{0}` cannot be kept apart from what it replaces")]
    Returned(Box<str>),
    /// Two results of an instruction say that they live in one operand.
    #[error("`{instruction}` declares that two of its results live in its operand {operand}")]
    SharedOperand {
        /// The instruction.
        instruction: Box<str>,
        /// The number of the operand.
        operand: u32,
    },
    /// Copies of called computations would be too many.
    #[error("calls of calls would grow the program beyond {0} instructions")]
    Growth(usize),
}

/// The call graph of a module, for a pass that gives up where there is none.
pub(crate) fn call_graph(module: &Module, pass: &'static str) -> Result<CallGraph, PassError> {
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

/// What one pass did.
#[derive(Clone, Debug)]
pub struct PassRun {
    /// Its name.
    pub name: &'static str,
    /// Whether it changed anything.
    pub changed: bool,
    /// How long it took, verification excluded.
    pub time: Duration,
}

/// Runs passes in order.
///
/// # Errors
/// The first error of a pass, or of the verifier after it.
pub fn run(
    module: &mut Module,
    passes: &[Pass],
    context: &Context<'_>,
    options: RunOptions,
) -> Result<Vec<PassRun>, PassError> {
    let mut runs = Vec::with_capacity(passes.len());
    for pass in passes.iter().take(options.stop_after.unwrap_or(usize::MAX)) {
        let start = Instant::now();
        let changed = (pass.run)(module, context)?;
        runs.push(PassRun { name: pass.name, changed, time: start.elapsed() });
        if options.verify {
            verify(module)
                .map_err(|source| PassError::Broke { pass: pass.name, source })?;
        }
    }
    Ok(runs)
}
