//! Exact and beam search over the orders of up to 128 consecutive nodes.
//!
//! A state is the set of window nodes that have run; the live bytes depend on nothing else. The exact search visits
//! states in order of the peak on the path to them, so the first complete one is best (a bottleneck Dijkstra over
//! downsets). *Free moves* keep the number of states small: a ready node that leaves no more bytes than before, and
//! needs no more than the peak so far, runs at once. Live bytes are a submodular function of the set of nodes that have
//! run, so the best later order stays best with this node moved to the front.
//!
//! Before that, a search *commits*: when it reaches a state from an earlier one with no more live bytes and no higher
//! peak, it drops the earlier state's other continuations. This is right unless some of the nodes in between should
//! have waited, so it finds good orders soon, and proves nothing.
//!
//! ```text
//!   bytes        hill
//!      |    ____/    \
//!      |___/          \_____ T      from A to T without passing the peak so far, and T holds less:
//!      |  A                         go on from T
//! ```
//!
//! When there are too many states for the exact search, a beam search keeps the best few for each number of nodes
//! run. (Downsets as states: Ahn et al., Ordering Chaos, MLSys 2020. Hills and valleys: Liu, SIAM J. Algebraic and
//! Discrete Methods 8, 1987.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::Effort;
use super::graph::{BufferIndex, Graph, Node};

/// Most nodes in a window.
pub(crate) const MAX_WINDOW: usize = 128;

/// A set of nodes of a window.
type Set = u128;

/// A run of nodes whose order is sought; all others run before or after.
pub(crate) struct Window {
    nodes: Vec<WindowNode>,
    buffers: Vec<WindowBuffer>,
    /// Bytes live before the first node.
    start: u64,
}

struct WindowNode {
    predecessors: Set,
    successors: Set,
    /// Buffers of the window that it touches.
    touches: Vec<u32>,
    defined: u64,
    needed: u64,
    reuses: Vec<WindowReuse>,
}

struct WindowReuse {
    bytes: u64,
    n_results: usize,
    /// Buffers that may die in the window.
    operands: Vec<u32>,
}

/// A buffer that begins or ends in the window.
struct WindowBuffer {
    bytes: u64,
    /// Whether it begins in the window.
    begins: bool,
    /// Nodes of the window.
    touched_by: Set,
    /// Whether it is still live after the window.
    stays: bool,
}

/// The result of a search of a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SearchResult {
    /// Places in the old order, in the new one; `None` when nothing below the limit was found.
    pub(crate) order: Option<Vec<u8>>,
    /// Whether every order was looked at or ruled out.
    pub(crate) is_exhaustive: bool,
    /// Moves looked at.
    pub(crate) steps: u64,
}

#[derive(Clone, Copy)]
struct State {
    done: Set,
    ready: Set,
    live: u64,
    peak: u64,
    /// The state from which this one was reached.
    parent: u32,
    /// The nodes run since: a range of `Search::moves`.
    moves: (u32, u32),
    /// A state reached from this one that is no worse: other continuations of this one are given up.
    superseded_by: u32,
}

const NONE: u32 = u32::MAX;

impl Window {
    /// The window of the nodes `order`, run when `live` bytes are live. `is_inside` tells, for a buffer, whether
    /// its first and its last node are in the window; `place` is scratch space by node, all zero.
    pub(crate) fn new(
        graph: &Graph,
        order: &[Node],
        live: u64,
        is_inside: impl Fn(BufferIndex) -> (bool, bool),
        place: &mut [u8],
    ) -> Window {
        debug_assert!(order.len() <= MAX_WINDOW);
        let mut buffers: Vec<WindowBuffer> = Vec::new();
        let mut index: FxHashMap<BufferIndex, u32> = FxHashMap::default();
        order.iter().zip(1..).for_each(|(&node, i)| place[node as usize] = i);
        let to_set = |row: &[Node], place: &[u8]| {
            let inside = row.iter().map(|&node| place[node as usize]).filter(|&i| i > 0);
            inside.fold(0, |set: Set, i| set | 1 << (i - 1))
        };
        for (i, &node) in order.iter().enumerate() {
            for &buffer in graph.touches.row(node) {
                let (begins, ends) = is_inside(buffer);
                if !begins && !ends {
                    continue;
                }
                let number = *index.entry(buffer).or_insert_with(|| {
                    let bytes = graph.buffers[buffer as usize].bytes;
                    buffers.push(WindowBuffer { bytes, begins, touched_by: 0, stays: !ends });
                    buffers.len() as u32 - 1
                });
                buffers[number as usize].touched_by |= 1 << i;
            }
        }
        let locals = |row: &[BufferIndex]| row.iter().filter_map(|s| index.get(s).copied()).collect();
        let nodes = order.iter().map(|&node| WindowNode {
            predecessors: to_set(graph.predecessors.row(node), place),
            successors: to_set(graph.successors.row(node), place),
            touches: locals(graph.touches.row(node)),
            defined: graph.defined_bytes[node as usize],
            needed: graph.needed_bytes[node as usize],
            reuses: graph
                .reuses(node)
                .map(|(result, n_results, operands)| WindowReuse {
                    bytes: graph.buffers[result as usize].bytes,
                    n_results,
                    operands: locals(operands),
                })
                .collect(),
        });
        let nodes = nodes.collect();
        order.iter().for_each(|&node| place[node as usize] = 0);
        Window { nodes, buffers, start: live }
    }

    /// Looks for an order with a peak below `limit`: committing, then, where `effort` says so, exactly, then with a
    /// beam.
    pub(crate) fn search(&self, limit: u64, effort: Effort) -> SearchResult {
        let floor = self.floor();
        if floor >= limit {
            return SearchResult { order: None, is_exhaustive: true, steps: self.nodes.len() as u64 };
        }
        let mut steps = 0;
        for (commits, max_states) in [(true, effort.committing), (false, effort.exact)] {
            let mut search = Search::new(self, limit, floor);
            let order = search.best_first(max_states, commits);
            steps += search.steps;
            match order {
                Some(Some(order)) => return SearchResult { order: Some(order), is_exhaustive: false, steps },
                Some(None) if !commits => return SearchResult { order: None, is_exhaustive: true, steps },
                _ => {}
            }
        }
        let mut search = Search::new(self, limit, floor);
        let order = search.beam(effort.width);
        SearchResult { order, is_exhaustive: false, steps: steps + search.steps }
    }

    /// A bound on the peak of every order: live bytes across the window, plus the bytes that one node touches.
    fn floor(&self) -> u64 {
        let sum = |f: fn(&WindowBuffer) -> bool| -> u64 {
            self.buffers.iter().filter(|s| f(s)).map(|s| s.bytes).sum()
        };
        let across = self.start - sum(|s| !s.begins && !s.stays);
        let end = across + sum(|s| s.begins && s.stays);
        let alone = self.nodes.iter().map(|node| {
            let touched: u64 = node.touches.iter().map(|&s| self.buffers[s as usize].bytes).sum();
            let taken: u64 =
                node.reuses.iter().map(|t| t.bytes * t.operands.len().min(t.n_results) as u64).sum();
            across + (touched - node.defined) + (node.needed - taken)
        });
        alone.max().unwrap_or_default().max(self.start).max(end)
    }

    fn all(&self) -> Set {
        Set::MAX >> (MAX_WINDOW - self.nodes.len())
    }

    /// Whether a buffer is gone after a node, when `done` has run.
    fn dies(&self, done: Set, node: usize, buffer: u32) -> bool {
        let buffer = &self.buffers[buffer as usize];
        !buffer.stays && buffer.touched_by & !done == 1 << node
    }

    /// Bytes live while a node runs, and after it.
    fn levels(&self, done: Set, live: u64, node: usize) -> (u64, u64) {
        let n = &self.nodes[node];
        let mut taken = 0;
        for t in &n.reuses {
            let dying = t.operands.iter().filter(|&&s| self.dies(done, node, s)).count();
            taken += t.bytes * dying.min(t.n_results) as u64;
        }
        let dying = n.touches.iter().filter(|&&s| self.dies(done, node, s));
        let freed: u64 = dying.map(|&s| self.buffers[s as usize].bytes).sum();
        (live + n.needed - taken, live + n.defined - freed)
    }
}

/// One search of one window.
struct Search<'w> {
    window: &'w Window,
    limit: u64,
    states: Vec<State>,
    /// The state of each set of nodes.
    seen: FxHashMap<Set, u32>,
    moves: Vec<u8>,
    /// Scratch space for the states on the way to one.
    way: Vec<u32>,
    steps: u64,
}

impl<'w> Search<'w> {
    fn new(window: &'w Window, limit: u64, floor: u64) -> Search<'w> {
        let mut search = Search {
            window,
            limit,
            states: Vec::new(),
            seen: FxHashMap::default(),
            moves: Vec::new(),
            way: Vec::new(),
            steps: 0,
        };
        let ready = (0..window.nodes.len()).filter(|&i| window.nodes[i].predecessors == 0);
        let ready = ready.fold(0, |set: Set, i| set | 1 << i);
        let start = State {
            done: 0,
            ready,
            live: window.start,
            peak: floor,
            parent: NONE,
            moves: (0, 0),
            superseded_by: NONE,
        };
        search.add(start);
        search
    }

    /// The best order, `Some(None)` if there is none below the limit; `None` if there are too many states.
    fn best_first(&mut self, max_states: usize, commits: bool) -> Option<Option<Vec<u8>>> {
        let all = self.window.all();
        let mut heap = BinaryHeap::new();
        heap.push(self.key(0));
        while let Some((.., Reverse(index))) = heap.pop() {
            let state = self.states[index as usize];
            if state.done == all {
                return Some(Some(self.order(index)));
            }
            if commits && self.is_superseded(index) {
                continue;
            }
            if self.states.len() > max_states {
                return None;
            }
            let mut ready = state.ready;
            while ready != 0 {
                let node = ready.trailing_zeros() as usize;
                ready &= ready - 1;
                if let Some(next) = self.advance(index, node)
                    && let Some(next) = self.add(next)
                {
                    heap.push(self.key(next));
                    if commits {
                        self.commit(next);
                    }
                }
            }
        }
        Some(None)
    }

    /// A good order, from the best `width` states for each number of nodes run.
    fn beam(&mut self, width: usize) -> Option<Vec<u8>> {
        let n = self.window.nodes.len();
        let mut levels: Vec<Vec<u32>> = vec![Vec::new(); n + 1];
        levels[self.states[0].done.count_ones() as usize].push(0);
        for level in 0..n {
            let mut states = std::mem::take(&mut levels[level]);
            states.sort_unstable_by_key(|&i| (self.states[i as usize].peak, self.states[i as usize].live, i));
            states.dedup();
            states.truncate(width);
            for index in states {
                let mut ready = self.states[index as usize].ready;
                while ready != 0 {
                    let node = ready.trailing_zeros() as usize;
                    ready &= ready - 1;
                    if let Some(next) = self.advance(index, node)
                        && let Some(next) = self.add(next)
                    {
                        levels[self.states[next as usize].done.count_ones() as usize].push(next);
                    }
                }
            }
        }
        let best = levels[n].iter().min_by_key(|&&i| (self.states[i as usize].peak, i))?;
        Some(self.order(*best))
    }

    /// Lowest peak first, then the state with the most nodes run.
    fn key(&self, index: u32) -> (Reverse<u64>, u32, Reverse<u64>, Reverse<u32>) {
        let state = &self.states[index as usize];
        (Reverse(state.peak), state.done.count_ones(), Reverse(state.live), Reverse(index))
    }

    /// The state after a node and the free moves that follow; `None` at the limit.
    fn advance(&mut self, index: u32, node: usize) -> Option<State> {
        let mut state = self.states[index as usize];
        self.steps += 1;
        let (during, after) = self.window.levels(state.done, state.live, node);
        if during >= self.limit {
            return None;
        }
        state.parent = index;
        state.superseded_by = NONE;
        state.peak = state.peak.max(during);
        state.moves = (self.moves.len() as u32, self.moves.len() as u32);
        self.run(&mut state, node, after);
        Some(state)
    }

    fn run(&mut self, state: &mut State, node: usize, after: u64) {
        state.live = after;
        state.done |= 1 << node;
        state.ready &= !(1 << node);
        let mut next = self.window.nodes[node].successors & !state.done;
        while next != 0 {
            let node = next.trailing_zeros() as usize;
            next &= next - 1;
            if self.window.nodes[node].predecessors & !state.done == 0 {
                state.ready |= 1 << node;
            }
        }
        self.moves.push(node as u8);
        state.moves.1 += 1;
    }

    /// Runs what costs nothing.
    fn run_free_moves(&mut self, state: &mut State) {
        let mut untried = state.ready;
        while untried != 0 {
            let node = untried.trailing_zeros() as usize;
            untried &= untried - 1;
            self.steps += 1;
            let (during, after) = self.window.levels(state.done, state.live, node);
            if during <= state.peak && after <= state.live {
                self.run(state, node, after);
                untried = state.ready;
            }
        }
    }

    /// Keeps a state unless its set was reached with as low a peak before.
    fn add(&mut self, mut state: State) -> Option<u32> {
        self.run_free_moves(&mut state);
        match self.seen.get(&state.done) {
            Some(&old) if self.states[old as usize].peak <= state.peak => {
                self.moves.truncate(state.moves.0 as usize);
                None
            }
            Some(&old) => {
                self.states[old as usize] = state;
                Some(old)
            }
            None => {
                let index = self.states.len() as u32;
                self.seen.insert(state.done, index);
                self.states.push(state);
                Some(index)
            }
        }
    }

    /// Marks the earliest state on the way to this one that held as many bytes or more, with no higher peak since.
    fn commit(&mut self, index: u32) {
        let state = self.states[index as usize];
        let mut earliest = None;
        let mut at = state.parent;
        while at != NONE && self.states[at as usize].peak == state.peak {
            if self.states[at as usize].live >= state.live {
                earliest = Some(at);
            }
            at = self.states[at as usize].parent;
        }
        if let Some(at) = earliest {
            self.states[at as usize].superseded_by = index;
        }
    }

    /// Whether a state on the way to this one was superseded by one that is not on it.
    fn is_superseded(&mut self, index: u32) -> bool {
        let mut way = std::mem::take(&mut self.way);
        way.clear();
        way.push(index);
        let is_superseded = self.leaves_way(&mut way);
        self.way = way;
        is_superseded
    }

    fn leaves_way(&self, way: &mut Vec<u32>) -> bool {
        let index = way[0];
        let mut at = self.states[index as usize].parent;
        while at != NONE {
            let by = self.states[at as usize].superseded_by;
            if by != NONE && !way.contains(&by) {
                return true;
            }
            way.push(at);
            at = self.states[at as usize].parent;
        }
        false
    }

    fn order(&self, index: u32) -> Vec<u8> {
        let mut order: Vec<u8> = Vec::with_capacity(self.window.nodes.len());
        let mut at = index;
        while at != NONE {
            let state = &self.states[at as usize];
            order.extend(self.moves[state.moves.0 as usize..state.moves.1 as usize].iter().rev());
            at = state.parent;
        }
        order.reverse();
        order
    }
}
