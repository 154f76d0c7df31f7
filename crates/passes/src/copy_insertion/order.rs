//! The order of a computation: what must run after what.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memplan_ir::{ComputationId, InstructionId, Module};
use rustc_hash::FxHashMap;

use super::{Node, Separate};

/// Most steps of reachability searches in one computation, a second or so. Beyond it a search counts as having found
/// a cycle, which costs a copy and nothing else.
const MAX_SEARCH_STEPS: usize = 100_000_000;

impl Separate<'_> {
    /// Whether one of `targets`, other than `from` itself, must run after `from`.
    pub(super) fn reaches_any(&mut self, from: Node, targets: &[Node]) -> bool {
        self.stamp += 2;
        let (target, seen) = (self.stamp, self.stamp + 1);
        targets.iter().filter(|&&node| node != from).for_each(|&node| self.visited[node] = target);
        let mut stack = vec![from];
        self.visited[from] = seen;
        while let Some(node) = stack.pop() {
            self.steps += self.nodes[node].successors.len();
            if self.steps > MAX_SEARCH_STEPS {
                return true;
            }
            for &next in &self.nodes[node].successors {
                if self.visited[next] == target {
                    return true;
                }
                if self.visited[next] != seen {
                    self.visited[next] = seen;
                    stack.push(next);
                }
            }
        }
        false
    }

    pub(super) fn add_order(&mut self, before: Node, after: Node) {
        let (first, second) = (self.nodes[before].id, self.nodes[after].id);
        let instruction = &mut self.module.instructions[second];
        if instruction.operands.contains(&first) || instruction.control_predecessors.contains(&first) {
            return;
        }
        self.changed = true;
        instruction.control_predecessors.push(first);
        self.nodes[before].successors.push(after);
    }
}

/// Orders the instructions of a computation by operands and control dependencies, otherwise as they stood.
pub(super) fn sort_topologically(module: &mut Module, computation: ComputationId) {
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
