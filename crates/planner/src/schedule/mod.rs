//! Scheduling for memory: an order of execution with a low peak.
//!
//! The peak is the true one: operands and results of an instruction are live together, except where a result is
//! written over an operand; what a called computation needs is live beside what its caller holds; results stay to
//! the end; parameters that the caller gave up are bytes to reuse. Computations are scheduled callees first.
//!
//! For each computation several one-pass orders ([`starts`]) are made and replayed, and the best few are improved
//! ([`search`]): exactly where few nodes are involved ([`window`]), by a minimum cut at the peak where nodes have far to
//! go ([`cut`]). A budget counts steps, not seconds, so the same input gives the same schedule on every machine.
//!
//! What this does not see: offsets. An order with a lower peak may pack worse, above all where results as scratch
//! memory are the reason; who wants the best plan plans a few schedules ([`ScheduleOptions::weigh`] makes others) and
//! compares. Operands that several nodes read count for their caller throughout a call, although the call may be the
//! last of them. Take-overs that involve buffers of several values are judged by the order of the text.

mod cut;
mod graph;
mod problem;
mod profile;
mod search;
mod starts;
#[cfg(test)]
mod tests;
mod window;

use cranelift_entity::SecondaryMap;
use memplan_analysis::{CallGraph, CallGraphError};
use memplan_ir::{ComputationId, Module, Schedule};
use memplan_memory::{Bytes, Target};

use graph::{Graph, Node};
use problem::{Inner, Source};

/// How to schedule.
#[derive(Clone, Debug)]
pub struct ScheduleOptions {
    /// About how many moves the search may look at, over all computations; the default is a few tenths of a second.
    /// One-pass orders are always made.
    pub budget: u64,
    /// What a value of so many bytes counts.
    pub weigh: fn(Role, Bytes) -> Bytes,
    /// The one-pass orders to begin with; all but breadth first by default.
    pub methods: Vec<Method>,
}

/// What a value is to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A parameter that the caller gave up.
    Argument,
    /// A result.
    Output,
    /// Neither.
    Temp,
}

/// What each way of scheduling found.
#[derive(Clone, Debug, Default)]
pub struct ScheduleReport {
    /// The most bytes live at once under the schedule found, less what is there under every schedule: constants, and
    /// parameters that the caller keeps.
    pub peak: Bytes,
    /// One entry for each sequential computation, callees first.
    pub computations: Vec<ComputationReport>,
}

/// What each way of scheduling one computation found.
#[derive(Clone, Debug)]
pub struct ComputationReport {
    /// The computation.
    pub computation: ComputationId,
    /// Its instructions that take part: those that compute.
    pub n_nodes: usize,
    /// Peaks of the orders tried, in the order in which they were tried.
    pub candidates: Vec<(Method, Bytes)>,
    /// Where the order chosen comes from.
    pub chosen: Method,
    /// The most bytes live at once.
    pub peak: Bytes,
    /// Whether it is proved that no order of this computation has a lower peak, those of its callees as they are.
    pub is_optimal: bool,
    /// Moves that the search looked at.
    pub steps: u64,
}

/// A way of finding an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The order of the text: the schedule that a scheduled module has.
    Textual,
    /// Greedy by bytes freed.
    List,
    /// Depth first by fan-out and size.
    DepthFirst,
    /// Depth first, operands from left to right.
    PostOrder,
    /// Depth first by what operands need beyond their result.
    Tree,
    /// Greedy from the end.
    Reverse,
    /// As soon as operands are there.
    BreadthFirst,
    /// One of these orders, improved.
    Search,
}

/// Why no schedule was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The call graph is not one that memory can be planned for.
    #[error(transparent)]
    CallGraph(#[from] CallGraphError),
    /// Values that must share storage cannot.
    #[error(
        "instruction `{instruction}` in computation `{computation}` would have to run before what it depends on: \
         values that must share storage are needed at the same time; copies must be inserted first (pass \
         `copy-insertion`)"
    )]
    Cycle {
        /// The computation.
        computation: Box<str>,
        /// An instruction that cannot be placed.
        instruction: Box<str>,
    },
}

impl Default for ScheduleOptions {
    fn default() -> ScheduleOptions {
        use Method::{DepthFirst, List, PostOrder, Reverse, Textual, Tree};
        let methods = vec![Textual, List, DepthFirst, PostOrder, Tree, Reverse];
        ScheduleOptions { budget: 12_000_000, weigh: |_, bytes| bytes, methods }
    }
}

/// The most steps that a node is worth: more has not been seen to find anything in small programs.
const STEPS_PER_NODE: u64 = 12_000;
/// How many of the one-pass orders are improved.
const N_IMPROVED: usize = 3;

/// Finds an order for every computation of a module, those of called computations included.
///
/// The call graph must be flat, and copies inserted where values that must share storage would interfere. Where the
/// module has a schedule, that is one of the orders tried.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedule(
    module: &Module,
    target: &Target,
    options: &ScheduleOptions,
) -> Result<(Schedule, ScheduleReport), ScheduleError> {
    let calls = CallGraph::new(module)?;
    calls.require_flat(module)?;
    let problems = Source::new(module, &calls, target, options).problems();
    let mut schedule = Schedule::in_textual_order(module);
    let mut report = ScheduleReport::default();
    let mut inner: SecondaryMap<ComputationId, Inner> = SecondaryMap::new();
    let mut is_placed = SecondaryMap::new();
    let total: u64 = problems.iter().map(|problem| problem.len() as u64).sum();
    for mut problem in problems.into_iter().rev() {
        let graph = problem.graph(&inner);
        let computation = problem.computation;
        let share = u128::from(options.budget) * graph.len() as u128 / u128::from(total.max(1));
        let budget = (share as u64).min(STEPS_PER_NODE * graph.len() as u64);
        let (order, found) =
            best_order(&graph, budget, &options.methods).map_err(|node| ScheduleError::Cycle {
                computation: module.computations[computation].name.clone(),
                instruction: problem.name(module, node),
            })?;
        inner[computation] = problem.inner(&inner, found.peak.0);
        schedule.set(computation, problem.sequence(module, &order, &mut is_placed));
        report.peak = found.peak;
        report.computations.push(ComputationReport { computation, ..found });
    }
    Ok((schedule, report))
}

/// The best order found for one computation; a node on a cycle if there is one.
fn best_order(
    graph: &Graph,
    budget: u64,
    methods: &[Method],
) -> Result<(Vec<Node>, ComputationReport), Node> {
    let textual = starts::textual(graph).ok_or_else(|| starts::on_cycle(graph))?;
    let order = |method| match method {
        Method::List => starts::list(graph),
        Method::DepthFirst => starts::depth_first(graph, &textual),
        Method::PostOrder => starts::post_order(graph),
        Method::Tree => starts::tree(graph, &textual),
        Method::Reverse => starts::reverse(graph),
        Method::BreadthFirst => starts::breadth_first(graph),
        Method::Textual | Method::Search => textual.clone(),
    };
    let orders = methods.iter().map(|&method| (method, order(method)));
    let mut orders: Vec<(Method, Vec<Node>, u64)> = orders
        .map(|(method, order)| {
            let peak = graph.peak(&order);
            (method, order, peak)
        })
        .collect();
    let mut candidates: Vec<(Method, Bytes)> =
        orders.iter().map(|&(method, _, peak)| (method, Bytes(peak))).collect();
    // Stable: among equals the one nearer to the text comes first.
    orders.sort_by_key(|&(_, _, peak)| peak);
    orders.dedup_by(|a, b| a.1 == b.1);
    orders.truncate(N_IMPROVED);
    let mut best: Option<(Vec<Node>, Method, u64)> = None;
    let mut is_optimal = false;
    let mut steps = 0;
    let n = orders.len() as u64;
    for (method, order, _) in orders {
        let improved = search::improve(graph, order, budget / n);
        candidates.push((Method::Search, Bytes(improved.peak)));
        steps += improved.steps;
        is_optimal |= improved.is_optimal;
        if best.as_ref().is_none_or(|best| improved.peak < best.2) {
            best = Some((improved.order, method, improved.peak));
        }
        if improved.is_optimal {
            break;
        }
    }
    let (order, chosen, peak) = best.expect("there are orders");
    let report = ComputationReport {
        computation: ComputationId::from_u32(0),
        n_nodes: graph.len(),
        candidates,
        chosen,
        peak: Bytes(peak),
        is_optimal,
        steps,
    };
    Ok((order, report))
}
