//! Slow operations that several kernels read: whether each kernel computes them, or one stores the results for all.
//!
//! The time of a kernel is the greater of its compute time and its memory time. Computing a hyperbolic tangent twice
//! costs more than writing and reading it in `bf16`, and less than that in `f32`. XLA's GPU compiler compares both by
//! its model of time; [`ColumnRules`] has the numbers of this model.

use memplan_ir::{ElementType, InstructionId, Op};
use memplan_memory::ColumnRules;
use memplan_rewriter::cost::CostClass;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::kernel::elements;
use super::{Grouper, KernelId, columns};

/// Most instructions that are looked at; what takes more is not slow.
const MOST_INSTRUCTIONS: usize = 512;

/// What reads more than this many times its own bytes is fused into its readers after what it reads is fused into it.
const LATE: f64 = 1.5;

/// An operation is slow if it takes longer than moving its result this many times.
const SLOW: f64 = 2.0;

/// A chain of operations is slow if it takes longer than moving its result this many times: random bits do.
const LONG: f64 = 4.0;

/// What a kernel does.
#[derive(Clone, Copy, Default)]
struct Work {
    cycles: f64,
    bytes: f64,
}

impl Work {
    fn seconds(self, rules: &ColumnRules) -> f64 {
        rules.seconds(self.cycles).max(self.bytes / rules.bandwidth)
    }
}

impl Grouper<'_> {
    /// Whether kernels take longer if each computes a value than if another one writes it for them. Where it is fused late,
    /// what is computed for it alone counts with it.
    pub(super) fn is_slower_in_each(
        &self,
        id: InstructionId,
        kernels: &[KernelId],
        rules: &ColumnRules,
    ) -> bool {
        let bytes = self.bytes[id] as f64;
        let Some((cycles, read)) = self.computed_for(id, bytes, rules) else { return false };
        let apart = Work { cycles, bytes: read + bytes }.seconds(rules) + rules.launch;
        let longer = kernels.iter().map(|&kernel| {
            let work = self.work_of(kernel, id, rules);
            let without = Work { bytes: work.bytes + bytes, ..work };
            let with = Work { cycles: work.cycles + cycles, bytes: work.bytes + read };
            with.seconds(rules) - without.seconds(rules)
        });
        longer.sum::<f64>() > apart
    }

    /// The cycles that a value takes, and the bytes that are read for it; `None` where nothing that is computed for it is
    /// slow, or too much is.
    fn computed_for(&self, id: InstructionId, bytes: f64, rules: &ColumnRules) -> Option<(f64, f64)> {
        let mut chain: SmallVec<[InstructionId; 16]> = SmallVec::from_iter([id]);
        let mut read: SmallVec<[InstructionId; 16]> = SmallVec::new();
        let (mut cycles, mut slowest, mut next) = (0.0, 0.0_f64, 0);
        let own: f64 = self.distinct_arrays_read(id).iter().map(|&operand| self.bytes[operand] as f64).sum();
        let is_late = own > LATE * bytes;
        while let Some(&at) = chain.get(next) {
            next += 1;
            cycles += self.cycles(at, rules);
            slowest = slowest.max(self.cycles(at, rules));
            for operand in self.distinct_arrays_read(at) {
                let is_ours = is_late
                    && self.classes[operand] == CostClass::Cheap
                    && self.users.of(operand).iter().all(|user| chain.contains(user));
                let list = if is_ours { &mut chain } else { &mut read };
                if !list.contains(&operand) {
                    list.push(operand);
                }
            }
            if chain.len() > MOST_INSTRUCTIONS {
                return None;
            }
        }
        let read: f64 = read.iter().map(|&operand| self.bytes[operand] as f64).sum();
        let moved = bytes / rules.bandwidth;
        let is_slow = rules.seconds(slowest) > SLOW * moved || rules.seconds(cycles) > LONG * moved;
        is_slow.then_some((cycles, read))
    }

    /// What a kernel does so far, if it also computes what can be but for one value.
    fn work_of(&self, kernel: KernelId, but: InstructionId, rules: &ColumnRules) -> Work {
        let kernel = &self.grouping.kernels[kernel];
        let cycles = kernel.members.iter().map(|&member| self.cycles(member, rules)).sum();
        let mut open: Vec<InstructionId> =
            kernel.operands.iter().copied().filter(|&operand| operand != but).collect();
        open.sort_unstable();
        let mut seen: FxHashSet<InstructionId> = open.iter().copied().collect();
        let mut bytes: f64 = kernel.roots.iter().map(|&root| self.bytes[root] as f64).sum();
        while let Some(at) = open.pop() {
            if self.classes[at] != CostClass::Cheap || seen.len() > MOST_INSTRUCTIONS {
                bytes += self.bytes[at] as f64;
                continue;
            }
            open.extend(self.distinct_arrays_read(at).into_iter().filter(|&operand| seen.insert(operand)));
        }
        Work { cycles, bytes }
    }

    /// Cycles that an operation takes for all its elements.
    fn cycles(&self, id: InstructionId, rules: &ColumnRules) -> f64 {
        elements(self.module, id) * self.cycles_of_element(id, rules)
    }

    /// Cycles that an operation takes for an element. Numbers of `bf16` are computed as `f32`.
    pub(super) fn cycles_of_element(&self, id: InstructionId, rules: &ColumnRules) -> f64 {
        let instruction = &self.module.instructions[id];
        let Some(array) = self.module.shape(id).as_array() else { return 0.0 };
        let element_type = match array.element_type {
            ElementType::Bf16 => ElementType::F32,
            other => other,
        };
        match instruction.op {
            Op::Concatenate { dimension } => {
                let first = self.module.shape(instruction.operands[0]).as_array();
                let extent = first.map_or(0, |array| array.dimensions[dimension as usize]);
                let threads = self.target.fusion.reduction_threads.max(1);
                let is_crossed = dimension > 0 && !(extent as u64).is_multiple_of(threads);
                if is_crossed { rules.concatenate_across } else { rules.concatenate }
            }
            _ => columns::cycles(rules, &instruction.op, element_type),
        }
    }
}
