//! One kernel for all readers of an expensive result. The kernel keeps one tile of its rows on chip at a time, so the
//! whole result need not be in memory.

use memplan_ir::{InstructionId, Op};
use memplan_rewriter::cost::{CostClass, Hero};
use smallvec::SmallVec;

use super::{Grouper, Kernel, KernelId, Usage, row_dimensions};

impl Grouper<'_> {
    /// Whether the kernels that read an expensive result can be merged into one that computes it tile by tile, each tile a
    /// few of its rows. The result must take more bytes than the results of the merged kernel, or little is saved for the
    /// constraint on the schedule.
    pub(super) fn can_tile_rows(&self, id: InstructionId, kernels: &[KernelId]) -> bool {
        self.rows_to_tile(id, kernels).is_some()
            && !self.wait_for_each_other(kernels, self.options.rows.max_steps)
    }

    /// The number of rows that the merged kernel would compute one after the other; `None` where the target has no such
    /// kernel.
    fn rows_to_tile(&self, id: InstructionId, kernels: &[KernelId]) -> Option<u64> {
        let rules = &self.target.fusion;
        let is_tiled = match &self.module.instructions[id].op {
            Op::Dot(_) => rules.dot.prologue && rules.dot.epilogue,
            Op::Reduce { .. } => true,
            _ => false,
        };
        let can_join = is_tiled && self.check_consumers(id).is_ok() && self.check_producer(id).is_ok();
        can_join.then(|| self.rows_in_one_kernel(id, kernels)).flatten()
    }

    /// Whether one kernel could hold rows of a result and compute everything that these do from it.
    pub(super) fn can_read_rows(&self, id: InstructionId, kernels: &[KernelId]) -> bool {
        self.rows_in_one_kernel(id, kernels).is_some()
            && !self.wait_for_each_other(kernels, self.options.rows.max_steps)
    }

    /// The rows that one kernel in place of these would process one after the other, for any producer.
    fn rows_in_one_kernel(&self, id: InstructionId, kernels: &[KernelId]) -> Option<u64> {
        let (rules, limits) = (&self.target.fusion, &self.options.rows);
        if kernels.len() > limits.max_kernels {
            return None;
        }
        let group: SmallVec<[&Kernel; 4]> =
            kernels.iter().map(|&kernel| &self.grouping.kernels[kernel]).collect();
        if group.iter().any(|kernel| matches!(kernel.hero, Some((_, Hero::Update | Hero::Convolution)))) {
            return None;
        }
        let bytes = |id: &InstructionId| self.bytes[*id];
        let roots = || group.iter().flat_map(|kernel| &kernel.roots);
        let results = roots().filter(|root| self.is_read_outside(**root, kernels)).map(bytes);
        // Before the kernels are merged, and before the rows are looked for, which takes longest.
        if bytes(&id) < results.fold(0, u64::saturating_add) {
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
        let dependents: Vec<InstructionId> = merged.members.iter().rev().copied().collect();
        let is_dot = |member: &&InstructionId| matches!(self.module.instructions[**member].op, Op::Dot(_));
        let n_dots = dependents.iter().chain([&id]).filter(is_dot).count();
        if n_dots > limits.max_dots {
            return None;
        }
        // The same rows serve everything that is expensive or written to memory, so all of it must depend on them.
        let expensive =
            dependents.iter().filter(|&&member| matches!(self.classes[member], CostClass::Hero(_)));
        let all_of: Vec<InstructionId> = merged.roots.iter().chain(expensive).copied().collect();
        let rows = row_dimensions::n_rows(self.module, id, &dependents, &all_of)?;
        let held = merged.held.iter().chain([&id]).map(bytes).fold(0, u64::saturating_add);
        let block = if n_dots > 0 { rules.rows_per_block } else { 1 };
        ((held / rows).saturating_mul(block) <= rules.row_block_bytes.0).then_some(rows)
    }

    /// Merges kernels, and adds the expensive instruction that all of them read.
    pub(super) fn merge_over_rows(&mut self, id: InstructionId, kernels: &[KernelId]) {
        let into = self.merge(kernels);
        self.join(id, into, Usage::of_held(id));
        self.grouping.kernels[into].held.push(id);
        self.kernels_of[id] = SmallVec::from_iter([into]);
        self.grouping.inside.insert(id);
    }
}
