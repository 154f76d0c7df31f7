//! Scheduling for memory: orders the nodes of each region such that the peak is low.
//!
//! The peak is exact: operands and results of a node are live together, except for a result that overwrites an operand;
//! memory of regions that a node runs adds to the node's; results stay to the end. Regions are scheduled callees first.
//!
//! For each region, several one-pass orders ([`starts`]) are replayed, and the best few are improved ([`search`]):
//! exactly if few nodes are involved ([`window`]), by a minimum cut at the peak if nodes must move far ([`cut`]). A
//! budget counts steps, not seconds, so the same input gives the same schedule on every machine.
//!
//! Limits: offsets are not considered. An order with a lower peak may pack worse, mostly because of results used as
//! scratch; for the best plan, try several schedules. A call's operands with several readers count as live throughout
//! the call, although the last reader may be inside it.

mod cut;
mod graph;
mod options;
mod profile;
mod search;
mod starts;
#[cfg(test)]
mod tests;
mod window;

use cranelift_entity::{PrimaryMap, SecondaryMap};
use memplan_program::{Call, NodeId, Region, RegionId};
use memplan_units::Bytes;

use graph::{Graph, Node};
pub use options::{Effort, Method, ScheduleOptions};

/// The order found for one region.
#[derive(Clone, Debug)]
pub struct RegionSchedule {
    /// Every node once, after its dependencies.
    pub order: Vec<NodeId>,
    /// The results of each scheduling method.
    pub report: RegionReport,
}

/// The results of each scheduling method for one region.
#[derive(Clone, Debug)]
pub struct RegionReport {
    /// The nodes of the region.
    pub n_nodes: usize,
    /// Peaks of the orders tried, in the order in which they were tried.
    pub candidates: Vec<(Method, Bytes)>,
    /// The method of the chosen order.
    pub chosen: Method,
    /// The peak of live bytes, including the needs of the regions that it runs.
    pub peak: Bytes,
    /// Whether it is proved that no order of this region has a lower peak, given the orders of its callees.
    pub is_optimal: bool,
    /// Moves that the search looked at.
    pub steps: u64,
}

/// Why no schedule was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Nodes depend on each other.
    #[error("{node} of {region} would have to run before its dependencies")]
    Cycle {
        /// The region.
        region: RegionId,
        /// A node that cannot be placed.
        node: NodeId,
    },
    /// A region runs one that does not come before it.
    #[error("{caller} runs {callee}, which does not precede it: callees come first")]
    CalleeAfterCaller {
        /// The region.
        caller: RegionId,
        /// The region that it runs.
        callee: RegionId,
    },
    /// The bytes do not add up within 63 bits.
    #[error("the buffers of {region} add up to 2^63 bytes or more")]
    TooLarge {
        /// The region.
        region: RegionId,
    },
}

/// Facts about a scheduled region that its caller needs.
#[derive(Clone, Copy, Debug, Default)]
struct Inner {
    /// The most bytes live at once.
    peak: u64,
    /// Bytes of everything written, regions that it runs included.
    written: u64,
}

/// Finds an order for a region that runs no others.
///
/// # Errors
/// See [`RegionError`].
///
/// # Panics
/// As [`schedule_regions`].
pub fn schedule_region(region: Region, options: &ScheduleOptions) -> Result<RegionSchedule, RegionError> {
    let found = schedule_regions(std::iter::once(region).collect(), options)?;
    Ok(found.into_iter().next().expect("there is an order for each region").1)
}

/// Finds an order for every region of a program; callees come before callers.
///
/// # Errors
/// See [`RegionError`].
///
/// # Panics
/// When a region names a node or a buffer that it does not have.
pub fn schedule_regions(
    regions: PrimaryMap<RegionId, Region>,
    options: &ScheduleOptions,
) -> Result<PrimaryMap<RegionId, RegionSchedule>, RegionError> {
    let mut schedules = PrimaryMap::with_capacity(regions.len());
    let mut inner: SecondaryMap<RegionId, Inner> = SecondaryMap::new();
    let total: u64 = regions.values().map(|region| region.n_nodes as u64).sum();
    for (id, mut region) in regions {
        let own = region.buffers.values().filter(|buffer| !buffer.live_in);
        let mut written = own.fold(0u64, |sum, buffer| sum.saturating_add(buffer.bytes.0));
        for &(callee, _) in region.calls.iter().flat_map(|call| &call.callees) {
            if callee >= id {
                return Err(RegionError::CalleeAfterCaller { caller: id, callee });
            }
            written = written.saturating_add(inner[callee].written);
        }
        let calls = needs_of_calls(&mut region, &inner);
        let mut bytes = region.buffers.values().map(|buffer| buffer.bytes.0);
        let sum = bytes.try_fold(0u64, u64::checked_add).filter(|&sum| sum < LIMIT);
        if sum.is_none() || calls.iter().any(|&(_, bytes)| bytes >= LIMIT) {
            return Err(RegionError::TooLarge { region: id });
        }
        let graph = Graph::new(region, &calls);
        let share = u128::from(options.budget) * graph.len() as u128 / u128::from(total.max(1));
        let budget = (share as u64).min(options.steps_per_node.saturating_mul(graph.len() as u64));
        let schedule = best_order(&graph, budget, options)
            .map_err(|node| RegionError::Cycle { region: id, node: NodeId::from_u32(node) })?;
        inner[id] = Inner { peak: schedule.report.peak.0, written };
        schedules.push(schedule);
    }
    Ok(schedules)
}

/// Sums of bytes stay below this, so that a capacity above all of them exists.
const LIMIT: u64 = 1 << 63;

/// The bytes that each call needs while it runs in addition to live bytes before it, given the needs of its callees.
/// Bytes that a call keeps until it is done become the size of its buffer.
fn needs_of_calls(region: &mut Region, inner: &SecondaryMap<RegionId, Inner>) -> Vec<(Node, u64)> {
    let mut needs = Vec::with_capacity(region.calls.len());
    for Call { node, callees, handed_over, in_flight } in &region.calls {
        match in_flight {
            Some(kept) => {
                let written = callees.iter().map(|&(callee, _)| inner[callee].written);
                let written = written.fold(0, u64::saturating_add);
                region.buffers[kept.buffer].bytes = Bytes(written.saturating_sub(kept.results.0));
            }
            None => {
                let peaks = callees.iter().map(|&(c, beside)| inner[c].peak.saturating_add(beside.0));
                let peak = peaks.max().unwrap_or_default();
                needs.push((node.as_u32(), peak.saturating_sub(handed_over.0)));
            }
        }
    }
    needs
}

/// The best order found for one region; a node on a cycle if there is one.
fn best_order(graph: &Graph, budget: u64, options: &ScheduleOptions) -> Result<RegionSchedule, Node> {
    let textual = starts::textual(graph).ok_or_else(|| starts::on_cycle(graph))?;
    let order = |method| match method {
        Method::List => starts::list(graph),
        Method::DepthFirst => starts::depth_first(graph, &textual),
        Method::PostOrder => starts::post_order(graph),
        Method::Tree => starts::tree(graph, &textual),
        Method::Reverse => starts::reverse(graph),
        Method::BreadthFirst => starts::breadth_first(graph),
        Method::Given(number) => match graph.given.get(usize::from(number)) {
            Some(places) => starts::given(graph, places),
            None => textual.clone(),
        },
        Method::Textual | Method::Search => textual.clone(),
    };
    let methods = if options.methods.is_empty() { &[Method::Textual][..] } else { &options.methods };
    let orders = methods.iter().map(|&method| (method, order(method)));
    let mut orders: Vec<(Method, Vec<Node>, u64)> = orders
        .map(|(method, order)| {
            let peak = graph.peak(&order);
            (method, order, peak)
        })
        .collect();
    let mut candidates: Vec<(Method, Bytes)> =
        orders.iter().map(|&(method, _, peak)| (method, Bytes(peak))).collect();
    // Stable: among equals the one nearer to the source comes first.
    orders.sort_by_key(|&(_, _, peak)| peak);
    orders.dedup_by(|a, b| a.1 == b.1);
    orders.truncate(options.improved_orders.max(1));
    let mut best: Option<(Vec<Node>, Method, u64)> = None;
    let mut is_optimal = false;
    let mut steps = 0;
    let n = orders.len() as u64;
    for (method, order, _) in orders {
        let improved = search::improve(graph, order, budget / n, options);
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
    let order = order.into_iter().map(NodeId::from_u32).collect();
    let n_nodes = graph.len();
    let report = RegionReport { n_nodes, candidates, chosen, peak: Bytes(peak), is_optimal, steps };
    Ok(RegionSchedule { order, report })
}
