//! One kernel for all readers of an expensive result, which holds rows of it on chip, so that it need not exist.

use memplan_ir::{InstructionId, Op};
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
        (bytes(&id) >= results && !self.wait_for_each_other(kernels, MAX_STEPS)).then_some(())
    }

    /// Makes one kernel of several, and adds the expensive instruction that all of them need.
    pub(super) fn join_by_rows(&mut self, id: InstructionId, kernels: &[KernelId]) {
        let into = self.unite(kernels);
        // A block of its rows is computed once, however it is read.
        let need = Need {
            indexers: SmallVec::from_iter([id]),
            evaluations: 1,
            bijective: false,
            reused: false,
            feeds: None,
        };
        self.join(id, into, need);
        self.grouping.kernels[into].held.push(id);
        self.kernels_of[id] = SmallVec::from_iter([into]);
        self.grouping.inside.insert(id);
    }
}
