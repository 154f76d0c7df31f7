//! Merges several kernels into one, if none of them waits for another.

use memplan_ir::{EntitySet, InstructionId};
use memplan_rewriter::cost::Hero;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

use super::{Grouper, Kernel, KernelId};

/// The parts of the text that kernels with several results span, from the first result to the last. Overlapping spans are
/// one.
///
/// A path along the data leads down the text, except through a kernel with several results: the kernel reads the operands
/// of its last result, and writes its first result, which is further up. So a path that is below a span, and in none
/// itself, never comes back above it.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(BTreeMap<u32, u32>);

impl Spans {
    fn add(&mut self, mut first: u32, mut last: u32) {
        while let Some((&start, &end)) = self.0.range(..=last).next_back().filter(|(_, end)| **end >= first) {
            self.0.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.0.insert(first, last);
    }

    /// The last position from which a path may lead back to `position` or above it.
    fn end_at(&self, position: u32) -> u32 {
        self.0.range(..=position).next_back().map_or(position, |(_, &end)| end.max(position))
    }
}

impl Grouper<'_> {
    /// Merges kernels that do not wait for each other into the first of them, and returns that.
    pub(super) fn merge(&mut self, kernels: &[KernelId]) -> KernelId {
        let merged = self.merged(kernels);
        let into = kernels[0];
        for root in kernels.iter().flat_map(|&kernel| self.grouping.kernels[kernel].roots.clone()) {
            self.grouping.rooted.remove(&root);
            if !merged.roots.contains(&root) {
                self.grouping.inside.insert(root);
            }
        }
        for &root in &merged.roots {
            self.grouping.rooted.insert(root, into);
        }
        for &member in &merged.members {
            let of = &mut self.kernels_of[member];
            of.retain(|kernel| !kernels.contains(kernel));
            of.push(into);
            of.sort_unstable();
        }
        for &kernel in kernels {
            self.grouping.kernels[kernel] = Kernel::default();
        }
        if let [last, .., first] = merged.roots[..] {
            self.spans.add(self.positions[first], self.positions[last]);
        }
        self.grouping.kernels[into] = merged;
        into
    }

    /// The kernel that several would be. Results that only they read are not written to memory.
    pub(super) fn merged(&self, kernels: &[KernelId]) -> Kernel {
        let [first, rest @ ..] = kernels else {
            unreachable!("an instruction with a verdict about kernels has some")
        };
        let mut merged = self.grouping.kernels[*first].clone();
        for kernel in rest.iter().map(|&kernel| &self.grouping.kernels[kernel]) {
            merged.roots.extend(kernel.roots.iter().copied());
            for &member in &kernel.members {
                match merged.usages.get_mut(&member) {
                    Some(usage) => usage.add(&kernel.usages[&member]),
                    None => {
                        merged.members.push(member);
                        merged.usages.insert(member, kernel.usages[&member].clone());
                    }
                }
            }
            merged.operands.extend(kernel.operands.iter().copied());
            merged.held.extend(kernel.held.iter().copied());
            // A kernel of products that also reduces is built around the products.
            let is_reduction = matches!(merged.hero, Some((_, Hero::Reduction)));
            merged.hero =
                if is_reduction { kernel.hero.or(merged.hero) } else { merged.hero.or(kernel.hero) };
        }
        // Those of each kernel are in order: a stable sort merges them.
        merged.members.sort_by_key(|&member| std::cmp::Reverse(self.positions[member]));
        merged.roots.sort_by_key(|&root| std::cmp::Reverse(self.positions[root]));
        merged.operands.retain(|operand| !merged.usages.contains_key(operand));
        merged.roots.retain(|root| self.is_read_outside(*root, kernels));
        merged
    }

    /// Whether others than some kernels read a result of theirs.
    pub(super) fn is_read_outside(&self, root: InstructionId, kernels: &[KernelId]) -> bool {
        let users = self.users.of(root);
        users.is_empty()
            || root == self.root
            || users.iter().any(|&user| self.is_computed_outside(user, kernels))
    }

    /// Whether others than some kernels compute an instruction.
    pub(super) fn is_computed_outside(&self, id: InstructionId, kernels: &[KernelId]) -> bool {
        let of = &self.kernels_of[id];
        of.is_empty() || of.iter().any(|kernel| !kernels.contains(kernel))
    }

    /// Whether one kernel can only run after an instruction, for another reason than waiting for the other kernel. Also
    /// `false` if the search takes more than `max_steps` edges. Known dependencies count on any path: two kernels of
    /// which one waits for the other through a third are not merged anyway.
    pub(super) fn waits_for(
        &self,
        [kernel, other]: [&Kernel; 2],
        id: InstructionId,
        max_steps: usize,
    ) -> bool {
        let whether = |at| self.needs.whether(self.positions[at], self.positions[id]);
        let mut open: Vec<InstructionId> = Vec::new();
        for &operand in kernel.operands.iter().filter(|operand| !other.usages.contains_key(*operand)) {
            match whether(operand) {
                Some(true) => return true,
                Some(false) => {}
                None => open.push(operand),
            }
        }
        // Whatever the order of the set: the search may end before it has seen everything.
        open.sort_unstable_by_key(|&operand| self.positions[operand]);
        let mut seen: FxHashSet<InstructionId> = open.iter().copied().collect();
        let mut steps = 0;
        while let Some(at) = open.pop() {
            for &operand in &self.module.instructions[at].operands {
                steps += 1;
                if steps > max_steps {
                    return false;
                }
                match whether(operand) {
                    _ if other.usages.contains_key(&operand) => {}
                    Some(true) => return true,
                    Some(false) => {}
                    None if seen.insert(operand) => open.push(operand),
                    None => {}
                }
            }
        }
        false
    }

    /// Whether a path out of one of these kernels leads, through others, back into one of them. `true` too where the search
    /// takes more than `max_steps` edges.
    pub(super) fn wait_for_each_other(&self, kernels: &[KernelId], max_steps: usize) -> bool {
        let roots = |kernel: KernelId| self.grouping.kernels[kernel].roots.iter().copied();
        let mut open: Vec<InstructionId> = kernels.iter().flat_map(|&kernel| roots(kernel)).collect();
        let last = open.iter().map(|&root| self.positions[root]).max().unwrap_or(0);
        let end = self.spans.end_at(last);
        let mut seen: EntitySet<InstructionId> = EntitySet::new();
        seen.extend(open.iter().copied());
        let mut is_outside: EntitySet<InstructionId> = EntitySet::new();
        let mut left: EntitySet<KernelId> = EntitySet::new();
        let mut steps = 0;
        while let Some(id) = open.pop() {
            for &user in self.users.of(id) {
                steps += 1;
                if steps > max_steps {
                    return true;
                }
                let of = &self.kernels_of[user];
                let goes_in = of.iter().any(|kernel| kernels.contains(kernel));
                if goes_in && is_outside.contains(id) {
                    return true;
                }
                let mut leave = |exit: InstructionId| {
                    if self.positions[exit] <= end {
                        is_outside.insert(exit);
                        if seen.insert(exit) {
                            open.push(exit);
                        }
                    }
                };
                // A path into a kernel continues at the kernel's roots, any other at the user itself.
                if of.is_empty() {
                    leave(user);
                }
                for &kernel in of.iter().filter(|kernel| !kernels.contains(kernel)) {
                    if left.insert(kernel) {
                        roots(kernel).for_each(&mut leave);
                    }
                }
            }
        }
        false
    }
}
