//! Improves an order at its peak.
//!
//! A node that every other node must precede or follow has the same position in every order: it divides the problem
//! into independent segments. If the segment with the peak is small, it is searched exactly. Otherwise windows around
//! the peak are searched, exactly or, with too many states, by a beam. If that does not help, a minimum cut tells which
//! nodes should run before the peak and which after, at any distance. Each success moves the peak, until nothing helps
//! or the budget is used up.

use rustc_hash::FxHashMap;

use super::cut;
use super::graph::{Graph, Node};
use super::profile::Profile;
use super::window::{MAX_WINDOW, Window};
use super::{Effort, ScheduleOptions};

/// An order, and whether its peak is known to be the lowest.
pub(crate) struct Improved {
    pub(crate) order: Vec<Node>,
    pub(crate) peak: u64,
    pub(crate) is_optimal: bool,
    /// Steps used.
    pub(crate) steps: u64,
}

/// Lowers the peak of a legal order, looking at about `budget` moves.
pub(crate) fn improve(graph: &Graph, order: Vec<Node>, budget: u64, options: &ScheduleOptions) -> Improved {
    let mut search = Search {
        graph,
        options,
        cuts: cuts(graph, &order),
        profile: Profile::new(graph, order),
        place: vec![0; graph.len()],
        steps: graph.len() as u64,
        budget,
    };
    let mut is_optimal = graph.len() == 0;
    while search.steps < budget && !is_optimal {
        match search.lower_peak() {
            Step::Lower => {}
            Step::Optimal => is_optimal = true,
            Step::Stuck => break,
        }
    }
    let Search { profile, steps, .. } = search;
    Improved { peak: profile.peak(), order: profile.order, is_optimal, steps }
}

enum Step {
    Lower,
    Optimal,
    Stuck,
}

struct Search<'a> {
    graph: &'a Graph,
    options: &'a ScheduleOptions,
    profile: Profile,
    /// Places where every order has the same node, and one past the last; ascending.
    cuts: Vec<usize>,
    /// Scratch space for [`Window::new`].
    place: Vec<u8>,
    steps: u64,
    budget: u64,
}

impl Search<'_> {
    fn lower_peak(&mut self) -> Step {
        let peak = self.profile.peak();
        let place = self.profile.peak_place();
        if self.profile.before[0] == peak {
            return Step::Optimal;
        }
        let after = self.cuts.partition_point(|&cut| cut <= place);
        // The segment goes from one cut to the next; the cut itself leads it.
        let segment = after.checked_sub(1).map_or(0, |i| self.cuts[i])..self.cuts[after];
        if segment.len() <= MAX_WINDOW {
            return self.try_window(segment, peak, self.options.segment);
        }
        match self.try_cut(segment.clone(), place) {
            Step::Stuck => {}
            step => return step,
        }
        for effort in self.options.windows {
            for size in self.options.window_sizes.map(|size| size.clamp(1, MAX_WINDOW)) {
                // The peak is in the middle, in the last quarter, or in the first.
                for lead in [size / 2, size - size / 4, size / 4] {
                    let start = place.saturating_sub(lead).max(segment.start).min(segment.end - size);
                    if let Step::Lower = self.try_window(start..start + size, peak, effort) {
                        return Step::Lower;
                    }
                    if self.steps > self.budget {
                        return Step::Stuck;
                    }
                }
            }
        }
        Step::Stuck
    }

    /// Moves nodes across the place of the peak so that the least is live there, far as they may have to go.
    fn try_cut(&mut self, segment: std::ops::Range<usize>, place: usize) -> Step {
        let start = place.saturating_sub(self.options.reach).max(segment.start);
        let range = start..place.saturating_add(self.options.reach).max(place + 1).min(segment.end);
        let peak = self.profile.peak();
        let Some(cut) = cut::least_live(self.graph, &self.profile, place, range.clone()) else {
            return Step::Stuck;
        };
        self.steps += self.graph.len() as u64 + cut.steps;
        let node = self.profile.order[place];
        if range == (0..self.graph.len()) && cut.bytes + self.graph.least_needed(node) >= peak {
            return Step::Optimal;
        }
        let old: Vec<Node> = self.profile.order[range.clone()].to_vec();
        let new = self.split(&old, &cut.runs_before, place - start);
        self.profile.reorder(self.graph, start, &new);
        if self.profile.peak() < peak {
            return Step::Lower;
        }
        self.profile.reorder(self.graph, start, &old);
        Step::Stuck
    }

    /// First the nodes to run before a place, then the rest. A node that moves back behind the place goes right before
    /// its first user; a node that moves forward goes right after the last of its operands or of their constraints.
    fn split(&mut self, nodes: &[Node], runs_before: &[bool], place: usize) -> Vec<Node> {
        let mut index: FxHashMap<Node, usize> = FxHashMap::default();
        nodes.iter().enumerate().for_each(|(i, &node)| {
            index.insert(node, i);
        });
        let graph = self.graph;
        let inside =
            |row: &[Node]| row.iter().filter_map(|node| index.get(node)).copied().collect::<Vec<_>>();
        let mut at: Vec<usize> = (0..nodes.len()).collect();
        for i in (0..place).rev().filter(|&i| !runs_before[i]) {
            let users = inside(graph.successors.row(nodes[i]));
            at[i] = users.into_iter().map(|user| at[user]).min().unwrap_or(nodes.len());
        }
        let moves_forward = |i: &usize| runs_before[*i];
        for i in (place..nodes.len()).filter(moves_forward) {
            let operands = inside(graph.predecessors.row(nodes[i]));
            at[i] = operands.into_iter().map(|operand| at[operand]).max().unwrap_or(0);
        }
        for i in (place..nodes.len()).rev().filter(moves_forward) {
            let users = inside(graph.successors.row(nodes[i])).into_iter().filter(moves_forward);
            at[i] = users.map(|user| at[user]).min().unwrap_or(at[i]);
        }
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        // A node that moves forward comes after the node that it follows, which precedes it in the old order.
        order.sort_by_key(|&i| (!runs_before[i], at[i], i));
        order.into_iter().map(|i| nodes[i]).collect()
    }

    fn try_window(&mut self, range: std::ops::Range<usize>, limit: u64, effort: Effort) -> Step {
        let live = self.profile.before[range.start];
        let is_inside = |buffer| self.profile.ends_inside(buffer, &range);
        let nodes = &self.profile.order[range.clone()];
        let window = Window::new(self.graph, nodes, live, is_inside, &mut self.place);
        let found = window.search(limit, effort);
        self.steps += found.steps;
        match found.order {
            Some(places) => {
                let nodes: Vec<Node> = places.iter().map(|&i| nodes[i as usize]).collect();
                self.profile.reorder(self.graph, range.start, &nodes);
                Step::Lower
            }
            None if found.is_exhaustive => Step::Optimal,
            None => Step::Stuck,
        }
    }
}

/// The places at which every legal order has the same node, and the number of nodes; linear.
fn cuts(graph: &Graph, order: &[Node]) -> Vec<usize> {
    let mut place = vec![0; order.len()];
    order.iter().zip(0..).for_each(|(&node, i)| place[node as usize] = i);
    let places = |row: &[Node]| row.iter().map(|&node| place[node as usize]).collect::<Vec<usize>>();
    // All earlier nodes precede the one at `i` when each has a successor up to there: then each leads there.
    let mut first_users: Vec<usize> = Vec::with_capacity(order.len());
    let mut most = 0;
    for &node in order {
        first_users.push(most);
        most = most.max(places(graph.successors.row(node)).into_iter().min().unwrap_or(usize::MAX));
    }
    // Likewise from the other side; a node without predecessors could run at any time.
    let mut cuts = vec![order.len()];
    let mut least = Some(usize::MAX);
    for (i, &node) in order.iter().enumerate().rev() {
        if first_users[i] <= i && least.is_some_and(|least| least >= i) {
            cuts.push(i);
        }
        let last_operand = places(graph.predecessors.row(node)).into_iter().max();
        least = least.and_then(|least| Some(least.min(last_operand?)));
    }
    cuts.reverse();
    cuts
}
