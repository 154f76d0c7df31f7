//! The order constraints of a computation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memplan_ir::{ComputationId, InstructionId, Module, Op};
use rustc_hash::FxHashMap;

use super::{Conflict, Node, NodeData, Separate};

/// Most steps of reachability searches in one computation, a second or so: a limit for hostile programs. Beyond it a search
/// counts as having found a cycle, which costs a copy and nothing else.
const MAX_SEARCH_STEPS: usize = 100_000_000;

impl Separate<'_> {
    /// The conflict if one of `targets`, other than `from` itself, must run after `from`. Looks only at nodes whose places
    /// allow it, so that it costs little where all targets come before `from` in the text.
    pub(super) fn later_reader(&mut self, from: Node, targets: &[Node]) -> Result<(), Conflict> {
        self.stamp += 2;
        let (target, seen) = (self.stamp, self.stamp + 1);
        let mut last = 0;
        for &node in targets.iter().filter(|&&node| node != from) {
            self.nodes[node].visited = target;
            last = last.max(self.nodes[node].place);
        }
        let mut stack = vec![from];
        self.nodes[from].visited = seen;
        while let Some(node) = stack.pop() {
            if self.nodes[node].place > last {
                continue;
            }
            self.steps += self.nodes[node].successors.len();
            if self.steps > MAX_SEARCH_STEPS {
                return Err(Conflict::SearchLimit);
            }
            for i in 0..self.nodes[node].successors.len() {
                let next = self.nodes[node].successors[i];
                let visited = std::mem::replace(&mut self.nodes[next].visited, seen);
                if visited == target {
                    return Err(Conflict::ReadLater { by: self.name(self.nodes[next].id) });
                }
                if visited != seen {
                    stack.push(next);
                }
            }
        }
        Ok(())
    }

    /// The conflict if nothing says that one of `sources`, other than `to` itself, runs before `to`.
    pub(super) fn unordered_reader(&mut self, to: Node, sources: &[Node]) -> Result<(), Conflict> {
        self.stamp += 2;
        let (source, seen) = (self.stamp, self.stamp + 1);
        let (mut first, mut missing) = (usize::MAX, 0);
        for &node in sources.iter().filter(|&&node| node != to) {
            missing += usize::from(self.nodes[node].visited != source);
            self.nodes[node].visited = source;
            first = first.min(self.nodes[node].place);
        }
        let mut stack = vec![to];
        self.nodes[to].visited = seen;
        while let Some(node) = stack.pop().filter(|_| missing > 0) {
            let instruction = &self.module.instructions[self.nodes[node].id];
            let before = instruction.operands.iter().chain(&instruction.control_predecessors);
            self.steps += instruction.operands.len() + instruction.control_predecessors.len();
            if self.steps > MAX_SEARCH_STEPS {
                return Err(Conflict::SearchLimit);
            }
            for before in before {
                let before = self.node_of[before];
                let visited = std::mem::replace(&mut self.nodes[before].visited, seen);
                missing -= usize::from(visited == source);
                if visited != seen && self.nodes[before].place >= first {
                    stack.push(before);
                }
            }
        }
        let unordered = sources.iter().find(|&&node| self.nodes[node].visited == source);
        match unordered {
            Some(&node) => Err(Conflict::ReadInAnyOrder { by: self.name(self.nodes[node].id) }),
            None => Ok(()),
        }
    }

    /// Makes one node run before another, if nothing says so yet: one that is in a tuple for the other is before it.
    pub(super) fn add_order(&mut self, before: Node, after: Node) {
        let (first, second) = (self.nodes[before].id, self.nodes[after].id);
        let instruction = &self.module.instructions[second];
        let successors = &self.nodes[before].successors;
        let is_known = match instruction.operands.len() + instruction.control_predecessors.len() {
            n if n < successors.len() => {
                instruction.operands.contains(&first) || instruction.control_predecessors.contains(&first)
            }
            _ => successors.contains(&after),
        };
        let is_tuple_for_it = |&node: &Node| {
            let NodeData { id, successors, .. } = &self.nodes[node];
            self.module.instructions[*id].op == Op::Tuple && successors.contains(&after)
        };
        if is_known || successors.iter().any(is_tuple_for_it) {
            return;
        }
        self.changed = true;
        self.module.instructions[second].control_predecessors.push(first);
        self.nodes[before].successors.push(after);
        self.move_behind(after, self.nodes[before].place);
    }

    /// Moves a node, and the nodes that must run after it, to `place` if it is before that.
    fn move_behind(&mut self, node: Node, place: usize) {
        let mut stack = vec![node];
        while let Some(node) = stack.pop() {
            // When the steps are used up, nobody asks for places any more.
            if self.nodes[node].place >= place || self.steps > MAX_SEARCH_STEPS {
                continue;
            }
            self.nodes[node].place = place;
            self.steps += self.nodes[node].successors.len();
            stack.extend(&self.nodes[node].successors);
        }
    }
}

/// Orders the instructions of a computation by operands and control dependencies, otherwise in their old order.
pub(crate) fn sort_topologically(module: &mut Module, computation: ComputationId) {
    let ids = module.computations[computation].instructions.clone();
    let place: FxHashMap<InstructionId, usize> = ids.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); ids.len()];
    let mut waiting = vec![0usize; ids.len()];
    for (i, &id) in ids.iter().enumerate() {
        let instruction = &module.instructions[id];
        for before in instruction.operands.iter().chain(&instruction.control_predecessors) {
            successors[place[before]].push(i);
            waiting[i] += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..ids.len()).filter(|&i| waiting[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(ids.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(ids[i]);
        for &next in &successors[i] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    assert_eq!(order.len(), ids.len(), "control dependencies are added only where they close no cycle");
    module.computations[computation].instructions = order;
}
