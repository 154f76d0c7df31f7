//! Fusion: removes arrays that need not exist.
//!
//! Before: every instruction writes its result to memory. After: instructions that one kernel can compute together are
//! one `fusion` instruction, and values between them stay in registers.
//!
//! ```text
//!   a = f32[n] exponential(x)              f = f32[n] fusion(x, y), kind=kLoop, calls={
//!   b = f32[n] add(a, y)              =>     a = exponential(x)
//!   c = f32[n] tanh(b)                       b = add(a, y)
//!                                            ROOT c = tanh(b) }
//! ```
//!
//! Fusion reduces live bytes and, within limits, moved bytes (`check_cost` in `kernels/bytes.rs`). The kernels of a
//! target are data ([`memplan_memory::FusionRules`]), other limits are options ([`FusionOptions`]). Each kernel that
//! needs a cheap operation computes it; expensive operations are never computed twice.
//!
//! Left alone: computations that are not part of the control flow (reducers, comparators, existing fusions), anything
//! with control dependencies, dynamic shapes, memory spaces other than the main one. Requires no schedule; the order of
//! the text serves as a first guess of one. Every cheap operation ends up in a fusion, so a second run finds nothing.

mod emit;
mod kernels;
mod options;
mod report;

use memplan_ir::{ComputationId, Module, Names, layouts_agree};
use memplan_rewriter::{Context, DCE, Outcome, Pass, PassError, Report, call_graph};

pub use kernels::{Grouping, Kernel, KernelId, Siblings, group};
pub use options::{FusionOptions, RowTileOptions, SiblingOptions};
pub use report::{FusionEdge, FusionReport, Verdict};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// Whether updates of an array share a kernel also where others read the array before, as optimizers update
    /// parameters. The others are expected to have read it by then, in the order of the text; a schedule with fewer bytes
    /// alive may have delayed them.
    pub updates: bool,
    /// Whether to report the verdict on every edge ([`FusionReport`]).
    pub explain: bool,
    /// Limits and tolerances.
    pub options: FusionOptions,
}

/// Fusion that leaves schedules free.
pub const FUSION: Fusion = Fusion { updates: false, explain: false, options: FusionOptions::DEFAULT };

/// Fusion that joins updates too.
pub const FUSION_OF_UPDATES: Fusion = Fusion { updates: true, ..FUSION };

impl Default for Fusion {
    fn default() -> Fusion {
        FUSION
    }
}

impl Pass for Fusion {
    fn name(&self) -> &'static str {
        if self.updates { "fusion-of-updates" } else { "fusion" }
    }

    fn description(&self) -> &'static str {
        match self.updates {
            true => {
                "Fusion that joins updates of one array with those of others even if it is read elsewhere"
            }
            false => "Compute together what one kernel can, so that fewer arrays are in memory",
        }
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let graph = call_graph(module, self.name())?;
        let siblings = if self.updates { Siblings::JoinUpdates } else { Siblings::Join };
        let computations = graph.sequential();
        let groupings = group(module, computations, context.target, siblings, self.explain, &self.options);
        let report = self.explain.then(|| Report::new(explain(module, &groupings)));
        let changed = emit_all(module, context, &groupings)?;
        Ok(Outcome { changed, report })
    }
}

fn explain(module: &Module, groupings: &[(ComputationId, Grouping)]) -> FusionReport {
    let mut report = FusionReport::default();
    for (_, grouping) in groupings {
        report.add(module, &grouping.decisions);
    }
    report
}

fn emit_all(
    module: &mut Module,
    context: &Context<'_>,
    groupings: &[(ComputationId, Grouping)],
) -> Result<bool, PassError> {
    let mut names = Names::new(module);
    // Before layout assignment, a transpose is not a view.
    let views_are_bitcasts = layouts_agree(module);
    let mut changed = false;
    for (computation, grouping) in groupings {
        changed |= emit::emit(module, context.target, *computation, grouping, views_are_bitcasts, &mut names);
    }
    if changed {
        module.compact();
        // Constants that are part of kernels now are of no use outside.
        DCE.run(module, context)?;
    }
    Ok(changed)
}
