//! What a pass is, and how a list of them runs: verified around each, timed, stoppable.

use std::time::{Duration, Instant};

use memplan_analysis::{CallGraph, CallGraphError};
use memplan_ir::{Module, verify};
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
    /// The module is not one the pass can work on.
    #[error("pass `{pass}` cannot run: {message}")]
    Unsupported {
        /// The pass.
        pass: &'static str,
        /// What it met, naming the culprit.
        message: String,
    },
    /// What a pass left behind is not valid, which is a bug in the pass.
    #[error("pass `{pass}` left an invalid module behind: {message}")]
    Broke {
        /// The pass.
        pass: &'static str,
        /// What the verifier says.
        message: String,
    },
}

/// The call graph of a module, for a pass that gives up where there is none.
pub(crate) fn call_graph(module: &Module, pass: &'static str) -> Result<CallGraph, PassError> {
    CallGraph::new(module).map_err(unsupported(pass))
}

/// Why a pass gave up, where a call graph is not what it needs.
pub(crate) fn unsupported(pass: &'static str) -> impl Fn(CallGraphError) -> PassError {
    move |error| PassError::Unsupported { pass, message: error.to_string() }
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
                .map_err(|errors| PassError::Broke { pass: pass.name, message: errors.to_string() })?;
        }
    }
    Ok(runs)
}
