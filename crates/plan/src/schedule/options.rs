//! How to schedule.

/// How to schedule.
///
/// Budgets count steps, so that answers do not depend on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    /// About how many moves the search may look at, over all regions; the default is a few tenths of a second. One-pass
    /// orders are always made.
    pub budget: u64,
    /// The one-pass orders to begin with, all but breadth first by default; of none, the order of the source.
    pub methods: Vec<Method>,
    /// The most moves that a node is worth: more has not been seen to find anything in small programs.
    pub steps_per_node: u64,
    /// How many of the one-pass orders are improved, the best first: they share the budget.
    pub improved_orders: usize,
    /// How hard to search a region, or a part of one that nothing can leave, of at most 128 nodes. An exact search proves
    /// something there, so it gets some ten milliseconds.
    pub segment: Effort,
    /// How hard to search a window of a longer part, in each round: a millisecond or two at first, then some ten.
    pub windows: [Effort; 2],
    /// Nodes of the windows that are tried around the peak, in this order; at most 128.
    pub window_sizes: [usize; 3],
    /// How many places to either side of the peak a minimum cut looks at: its time grows faster than the range.
    pub reach: usize,
}

/// How hard to search a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Most states of the search that commits.
    pub committing: usize,
    /// Most states of the exact search.
    pub exact: usize,
    /// States per level of the beam search.
    pub width: usize,
}

/// A way of finding an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The order of the source: the schedule that a scheduled program has.
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
    /// One that came with the region, by its number.
    Given(u8),
    /// One of these orders, improved.
    Search,
}

impl Default for ScheduleOptions {
    fn default() -> ScheduleOptions {
        use Method::{DepthFirst, List, PostOrder, Reverse, Textual, Tree};
        ScheduleOptions {
            budget: 12_000_000,
            methods: vec![Textual, List, DepthFirst, PostOrder, Tree, Reverse],
            steps_per_node: 12_000,
            improved_orders: 3,
            segment: Effort { committing: 1000, exact: 5000, width: 16 },
            windows: [
                Effort { committing: 300, exact: 0, width: 6 },
                Effort { committing: 2000, exact: 0, width: 24 },
            ],
            window_sizes: [32, 96, 128],
            reach: 10_000,
        }
    }
}
