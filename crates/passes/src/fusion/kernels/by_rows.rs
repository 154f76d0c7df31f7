//! Making one kernel of several, so that an expensive result that all of them read need not exist.

use memplan_ir::{InstructionId, Op};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{Grouper, Kernel, KernelId, Need, rows};
use crate::cost::{self, CostClass, Hero};

/// Most kernels that become one because they read the same rows. Attention has three: maximum, sum and product.
const MAX_MERGED: usize = 6;

/// Most dots in one kernel: fused attention has two, and so have fused perceptrons.
const MAX_DOTS: usize = 2;

/// Most edges that are followed to see whether kernels wait for each other.
const MAX_STEPS: usize = 4096;

impl Grouper<'_> {
    /// Whether the kernels that need an expensive result can be one that walks over blocks of its rows, holding each
    /// block on chip. Fusing them must save more than their own results take, or it is not worth the constraint.
    pub(super) fn can_walk_rows(&self, id: InstructionId, kernels: &[KernelId]) -> Option<()> {
        let rules = &self.target.fusion;
        let is_walked = match &self.module.instructions[id].op {
            Op::Dot(_) => rules.dot.prologue && rules.dot.epilogue,
            Op::Reduce { .. } => true,
            _ => false,
        };
        if !is_walked
            || kernels.len() > MAX_MERGED
            || self.check_consumers(id).is_err()
            || self.check_producer(id).is_err()
        {
            return None;
        }
        let group: SmallVec<[&Kernel; 4]> =
            kernels.iter().map(|&kernel| &self.grouping.kernels[kernel]).collect();
        if group.iter().any(|kernel| matches!(kernel.hero, Some((_, Hero::Update | Hero::Convolution)))) {
            return None;
        }
        let merged = self.merged(kernels);
        let n_members = merged.members.len() + 1;
        if n_members > rules.max_instructions
            || merged.operands.len() > rules.max_operands
            || merged.roots.len() > rules.max_outputs
        {
            return None;
        }
        let bytes = |id: &InstructionId| cost::result_bytes(self.module, self.target, *id);
        let dependents: Vec<InstructionId> = merged.members.iter().rev().copied().collect();
        let is_dot = |member: &&InstructionId| matches!(self.module.instructions[**member].op, Op::Dot(_));
        let n_dots = dependents.iter().chain([&id]).filter(is_dot).count();
        // One walk serves everything that is expensive or written, so all of it must be made from the rows below.
        let expensive = dependents
            .iter()
            .filter(|&&member| matches!(cost::class_of(self.module, member), CostClass::Hero(_)));
        let all_of: Vec<InstructionId> = merged.roots.iter().chain(expensive).copied().collect();
        let rows = rows::rows(self.module, id, &dependents, &all_of)?;
        let held = merged.held.iter().chain([&id]).map(bytes).fold(0, u64::saturating_add);
        let block = if n_dots > 0 { rules.rows_per_block } else { 1 };
        if n_dots > MAX_DOTS || (held / rows).saturating_mul(block) > rules.row_block_bytes.0 {
            return None;
        }
        let results = merged.roots.iter().map(bytes).fold(0, u64::saturating_add);
        (bytes(&id) >= results && !self.wait_for_each_other(kernels)).then_some(())
    }

    /// Makes one kernel of several, and adds the expensive instruction that all of them need.
    pub(super) fn join_by_rows(&mut self, id: InstructionId, kernels: &[KernelId]) {
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
        self.grouping.kernels[into] = merged;
        // A block of its rows is computed once, however it is read.
        let need =
            Need { indexers: SmallVec::from_iter([id]), evaluations: 1, bijective: false, feeds: None };
        self.join(id, into, need);
        self.grouping.kernels[into].held.push(id);
        self.kernels_of[id] = SmallVec::from_iter([into]);
        self.grouping.inside.insert(id);
    }

    /// Several kernels as one. What only they read of each other is not written to memory.
    fn merged(&self, kernels: &[KernelId]) -> Kernel {
        let [first, rest @ ..] = kernels else {
            unreachable!("an instruction with a verdict about kernels has some")
        };
        let mut merged = self.grouping.kernels[*first].clone();
        for kernel in rest.iter().map(|&kernel| &self.grouping.kernels[kernel]) {
            merged.roots.extend(kernel.roots.iter().copied());
            merged
                .members
                .extend(kernel.members.iter().copied().filter(|member| !merged.needs.contains_key(member)));
            merged.needs.extend(kernel.members.iter().map(|member| (*member, kernel.needs[member].clone())));
            merged.operands.extend(kernel.operands.iter().copied());
            merged.held.extend(kernel.held.iter().copied());
            merged.hero = merged.hero.or(kernel.hero);
        }
        merged.members.sort_unstable_by_key(|&member| std::cmp::Reverse(self.positions[member]));
        merged.roots.sort_unstable_by_key(|&root| std::cmp::Reverse(self.positions[root]));
        merged.operands.retain(|operand| !merged.needs.contains_key(operand));
        let is_read_outside = |root: &InstructionId| {
            let users = self.users.of(*root);
            users.is_empty()
                || *root == self.root
                || users.iter().any(|&user| {
                    let of = &self.kernels_of[user];
                    of.is_empty() || of.iter().any(|kernel| !kernels.contains(kernel))
                })
        };
        merged.roots = merged.roots.iter().copied().filter(is_read_outside).collect();
        merged
    }

    /// Whether a way out of one of these kernels leads, through others, back into one of them. Long ways count as such.
    fn wait_for_each_other(&self, kernels: &[KernelId]) -> bool {
        let roots = |kernel: KernelId| self.grouping.kernels[kernel].roots.iter().copied();
        let mut open: Vec<InstructionId> = kernels.iter().flat_map(|&kernel| roots(kernel)).collect();
        let last = open.iter().map(|&root| self.positions[root]).max().unwrap_or(0);
        let mut seen: FxHashSet<InstructionId> = open.iter().copied().collect();
        let mut is_outside: FxHashSet<InstructionId> = FxHashSet::default();
        let mut steps = 0;
        while let Some(id) = open.pop() {
            for &user in self.users.of(id) {
                steps += 1;
                if steps > MAX_STEPS {
                    return true;
                }
                let of = &self.kernels_of[user];
                let goes_in = of.iter().any(|kernel| kernels.contains(kernel));
                if goes_in && is_outside.contains(&id) {
                    return true;
                }
                // What is read by a kernel comes out at its roots; anything else at itself.
                let exits: SmallVec<[InstructionId; 2]> = match of.is_empty() {
                    true => SmallVec::from_iter([user]),
                    false => of
                        .iter()
                        .filter(|kernel| !kernels.contains(kernel))
                        .flat_map(|&kernel| roots(kernel))
                        .collect(),
                };
                for exit in exits {
                    // Later than all of them, except through another kernel with several results, which ends later still.
                    if self.positions[exit] < last || self.has_several_roots(exit) {
                        is_outside.insert(exit);
                        if seen.insert(exit) {
                            open.push(exit);
                        }
                    }
                }
            }
        }
        false
    }

    fn has_several_roots(&self, id: InstructionId) -> bool {
        self.grouping.kernel_rooted_at(id).is_some_and(|kernel| kernel.roots.len() > 1)
    }
}
