//! Kernels with several results, as XLA's GPU compiler makes them: to move fewer bytes, even if more values stay live.
//!
//! ```text
//!   w = multiply(normal, s)        one kernel draws the numbers `normal`, and writes all three:
//!   p = add(weights, w)            no schedule can compute `m` where it is needed
//!   m = subtract(weights, w)
//! ```
//!
//! Arrays are visited from the last to the first. First, kernels that read the array and iterate over the same elements
//! become one, unless one waits for the other or the array is the result of a matrix product's kernel. Then the kernel that
//! writes it joins one of those that read it, if others do as well. A kernel that writes in place, multiplies or looks up
//! stays alone.

use memplan_ir::{ComputationId, InstructionId, Op};
use memplan_memory::MultiOutputRules;
use memplan_rewriter::cost::{CostClass, Hero};
use smallvec::SmallVec;

use super::super::report::{FusionEdge, Verdict};
use super::limits::is_complex;
use super::siblings::IterationSpace;
use super::{Grouper, Kernel, KernelId};

impl Grouper<'_> {
    /// Merges kernels of a computation by these rules. Every array is visited once.
    pub(super) fn make_several_results(&mut self, computation: ComputationId, rules: &MultiOutputRules) {
        let body = &self.module.computations[computation];
        self.needs.look_at(self.module, &body.instructions, self.users, |id| self.positions[id]);
        for &id in body.instructions.iter().rev() {
            if self.is_array(id) && !self.grouping.is_view(id) {
                if !self.is_multiplied(id) {
                    self.join_readers(id, rules);
                }
                self.join_with_reader(id, rules);
            }
        }
        for FusionEdge { producer, consumer, verdict } in &mut self.grouping.decisions {
            let kernel = self.grouping.rooted.get(producer);
            if kernel.is_some_and(|kernel| self.kernels_of[*consumer].contains(kernel)) {
                *verdict = Verdict::Together;
            }
        }
    }

    /// Whether an instruction is in memory and has more than one element.
    fn is_array(&self, id: InstructionId) -> bool {
        let array = self.module.shape(id).as_array();
        self.grouping.is_materialized(id) && array.is_some_and(|array| array.element_count() != Some(1))
    }

    /// Whether a kernel of a matrix product writes an array. Complex numbers are multiplied by a library.
    fn is_multiplied(&self, id: InstructionId) -> bool {
        let kernel = self.grouping.rooted.get(&id).map(|&kernel| &self.grouping.kernels[kernel]);
        kernel.is_some_and(
            |kernel| matches!(kernel.hero, Some((dot, Hero::Dot)) if !is_complex(self.module, dot)),
        )
    }

    /// Kernels that read an array, those with several results first, then those with several operations.
    fn readers_of(&self, id: InstructionId) -> Vec<KernelId> {
        let mut readers: Vec<KernelId> = Vec::new();
        for user in self.users_behind_views(id) {
            for &kernel in &self.kernels_of[user] {
                if !readers.contains(&kernel) && self.grouping.kernels[kernel].operands_reach(id, self) {
                    readers.push(kernel);
                }
            }
        }
        readers.sort_by_key(|&kernel| std::cmp::Reverse(self.preference(kernel)));
        readers
    }

    /// The users of an array, also of its views.
    fn users_behind_views(&self, id: InstructionId) -> SmallVec<[InstructionId; 8]> {
        let mut users: SmallVec<[InstructionId; 8]> = SmallVec::new();
        let mut open: SmallVec<[InstructionId; 8]> = SmallVec::from_iter([id]);
        while let Some(id) = open.pop() {
            for &user in self.users.of(id) {
                match self.grouping.is_view(user) {
                    true => open.push(user),
                    false => users.push(user),
                }
            }
        }
        users.sort_unstable_by_key(|&user| self.positions[user]);
        users.dedup();
        users
    }

    fn preference(&self, kernel: KernelId) -> u32 {
        let kernel = &self.grouping.kernels[kernel];
        u32::from(kernel.roots.len() > 1) + u32::from(kernel.members.len() > 1)
    }

    fn join_readers(&mut self, id: InstructionId, rules: &MultiOutputRules) {
        let space = |this: &Self, kernel| this.loop_to_join(&this.grouping.kernels[kernel]);
        // Found once for each reader: most pairs iterate over different elements.
        let (mut readers, mut spaces): (Vec<KernelId>, Vec<IterationSpace>) =
            self.readers_of(id).into_iter().filter_map(|kernel| Some((kernel, space(self, kernel)?))).unzip();
        let mut at = 0;
        while at < readers.len() {
            let mut other = at + 1;
            while other < readers.len() && self.preference(readers[at]) > 0 {
                let pair = [readers[at], readers[other]];
                let is_fine = spaces[at].agrees_with(&spaces[other])
                    && !self.reads_from(pair[0], pair[1])
                    && !self.reads_from(pair[1], pair[0])
                    && self.can_be_one(pair, rules);
                match is_fine {
                    true => {
                        readers[at] = self.merge(&[pair[0].min(pair[1]), pair[0].max(pair[1])]);
                        readers.remove(other);
                        spaces.remove(other);
                        match space(self, readers[at]) {
                            Some(merged) => spaces[at] = merged,
                            None => break,
                        }
                    }
                    false => other += 1,
                }
            }
            at += 1;
        }
    }

    /// Merges the kernel that writes an array with the first of those that read it that can be one with it.
    fn join_with_reader(&mut self, id: InstructionId, rules: &MultiOutputRules) {
        let Some(&writer) = self.grouping.rooted.get(&id) else { return };
        let kernel = &self.grouping.kernels[writer];
        let is_plain = kernel.roots.len() == 1 && kernel.hero.is_none();
        if !is_plain || self.loop_to_join(kernel).is_none() || self.transposes(kernel) {
            return;
        }
        let readers = self.readers_of(id);
        let n_readers = self.users_behind_views(id).len();
        let is_for_one =
            n_readers == 1 && readers.iter().all(|&reader| self.grouping.kernels[reader].roots.len() == 1);
        if is_for_one {
            return;
        }
        let can_join = |&&reader: &&KernelId| {
            self.loop_to_join(&self.grouping.kernels[reader]).is_some()
                && self.can_be_one([writer, reader], rules)
        };
        if let Some(&reader) = readers.iter().find(can_join) {
            self.merge(&[writer.min(reader), writer.max(reader)]);
        }
    }

    /// The elements that a kernel iterates over, if it may have more results.
    fn loop_to_join(&self, kernel: &Kernel) -> Option<IterationSpace> {
        let is_fine = |&root: &InstructionId| {
            root != self.root && !matches!(self.classes[root], CostClass::Hero(Hero::Update))
        };
        let has_loop = matches!(kernel.hero, None | Some((_, Hero::Reduction)));
        (has_loop && kernel.roots.iter().all(is_fine)).then(|| self.space(kernel)).flatten()
    }

    /// Whether a kernel reads a result of another one.
    fn reads_from(&self, reader: KernelId, writer: KernelId) -> bool {
        let reader = &self.grouping.kernels[reader];
        self.grouping.kernels[writer].roots.iter().any(|&root| reader.operands_reach(root, self))
    }

    /// Whether one kernel can write the results of two.
    fn can_be_one(&self, pair: [KernelId; 2], rules: &MultiOutputRules) -> bool {
        let [a, b] = pair.map(|kernel| &self.grouping.kernels[kernel]);
        let (Some(of_a), Some(of_b)) = (self.loop_to_join(a), self.loop_to_join(b)) else { return false };
        let is_kept_apart = |kernel: &Kernel, other: &Kernel| {
            let is_kept = |&&root: &&InstructionId| self.kept_from_readers.contains(root);
            kernel.roots.iter().filter(is_kept).any(|root| other.operands.contains(root))
        };
        let n_reductions = |kernel: &Kernel| {
            kernel
                .roots
                .iter()
                .filter(|&&root| matches!(self.module.instructions[root].op, Op::Reduce { .. }))
                .count()
        };
        of_a.agrees_with(&of_b)
            && self.transposes(a) == self.transposes(b)
            && !is_kept_apart(a, b)
            && !is_kept_apart(b, a)
            && n_reductions(a) + n_reductions(b) <= rules.max_reductions
            && self.fit_together(pair)
            && !self.certainly_wait(pair)
            && !self.wait_for_each_other(&pair, rules.max_steps)
    }

    fn transposes(&self, kernel: &Kernel) -> bool {
        kernel.members.iter().any(|&member| self.is_across(member))
    }

    /// Whether an instruction is a transpose that moves elements.
    fn is_across(&self, id: InstructionId) -> bool {
        matches!(self.module.instructions[id].op, Op::Transpose { .. }) && self.reads_across.contains(id)
    }
}

impl Kernel {
    /// Whether a kernel reads an array, or a view of it.
    fn operands_reach(&self, id: InstructionId, grouper: &Grouper<'_>) -> bool {
        self.operands.iter().any(|&operand| {
            let mut at = operand;
            while grouper.grouping.is_view(at) {
                at = grouper.module.instructions[at].operands[0];
            }
            at == id
        })
    }
}
