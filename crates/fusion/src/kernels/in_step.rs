//! The indices at which a kernel reads its operands: those of the elements that it computes, or others.
//!
//! Two kernels that read an array at the same indices can load it once. One kernel must not overwrite elements that the
//! other reads at different indices.

use memplan_ir::indexing::{IndexMap, operands_read};
use memplan_ir::{InstructionId, Op};
use memplan_rewriter::cost;
use smallvec::SmallVec;

use super::{Grouper, Kernel};

/// Operands of a kernel that it reads at another index than that of the element that it computes, each behind the member
/// that reads it.
pub(super) type OutOfStep = SmallVec<[(InstructionId, InstructionId); 4]>;

impl Grouper<'_> {
    /// Whether both kernels read their common operands at the same index, so that one load serves both, and neither
    /// could overwrite elements in place that the other has yet to read. Small operands, such as one number for each
    /// column, are loaded twice, and save no bytes; products load their operands separately.
    pub(super) fn read_alike(&self, [a, b]: [(&Kernel, &OutOfStep); 2]) -> bool {
        let bytes = |id: InstructionId| self.bytes[id];
        let largest = a.0.operands.iter().chain(&a.0.roots).map(|&id| bytes(id)).max().unwrap_or(0);
        let is_small = |id: InstructionId| bytes(id) <= self.options.slack.of(largest);
        let is_fine = |(reader, read): (&Kernel, &OutOfStep), (writer, _): (&Kernel, &OutOfStep)| {
            let is_written = |root: &&InstructionId| self.updated(**root).is_none();
            let sizes: SmallVec<[u64; 4]> =
                writer.roots.iter().filter(is_written).map(|&root| bytes(root)).collect();
            let mut updated = reader.roots.iter().filter_map(|&root| self.updated(root));
            let is_own = updated.all(|id| !writer.operands.contains(&id) && !writer.roots.contains(&id));
            let is_loaded_once =
                |id| read.iter().any(|(member, of)| *of == id && writer.usages.contains_key(member));
            is_own
                && read.iter().all(|&(_, id)| {
                    let loads_twice =
                        writer.operands.contains(&id) && !self.is_product(reader) && !is_loaded_once(id);
                    let is_kept = !loads_twice && !sizes.contains(&bytes(id));
                    !writer.roots.contains(&id) && (is_small(id) || is_kept)
                })
        };
        is_fine(a, b) && is_fine(b, a)
    }

    /// The operands that a kernel reads out of step. An array that it updates in place is not read.
    pub(super) fn read_out_of_step(&self, kernel: &Kernel) -> OutOfStep {
        let is_in_step = |&member: &InstructionId| match &self.module.instructions[member].op {
            Op::Reduce { .. } => true,
            _ => {
                let keeps_index = cost::is_pointwise(self.module, member) || self.only_adds_ones(member);
                keeps_index && self.is_at_index_of_root(member, kernel)
            }
        };
        let members = kernel.members.iter().filter(|member| !is_in_step(member));
        let read = members.flat_map(|&member| {
            let updated = self.updated(member).filter(|_| kernel.roots.contains(&member));
            let read = match (updated, &self.module.instructions[member].op) {
                // The slice that is written is in step.
                (Some(_), Op::DynamicUpdateSlice) => &self.module.instructions[member].operands[2..],
                _ => &self.module.instructions[member].operands[..],
            };
            read.iter().map(move |&operand| (member, operand))
        });
        read.filter(|(_, operand)| kernel.operands.contains(operand)).collect()
    }

    /// Whether each element of a kernel uses a member at its own index.
    fn is_at_index_of_root(&self, member: InstructionId, kernel: &Kernel) -> bool {
        kernel.usages[&member].indexers.iter().all(|&indexer| {
            let is_product = self.module.instructions[indexer].op.is_contraction();
            match kernel.roots.contains(&indexer) {
                true => !is_product,
                // A value on chip, or a root before kernels were merged, is its own indexer: it is read in any way.
                false => {
                    indexer != member
                        && self.only_adds_ones(indexer)
                        && self.is_at_index_of_root(indexer, kernel)
                }
            }
        })
    }

    /// Whether an instruction only adds or drops dimensions of one element.
    fn only_adds_ones(&self, id: InstructionId) -> bool {
        matches!(self.module.instructions[id].op, Op::Reshape { .. })
            && operands_read(self.module, id)[0].as_ref().is_some_and(IndexMap::is_identity_but_for_ones)
    }

    /// The array that an instruction writes a slice of, in place.
    pub(super) fn updated(&self, id: InstructionId) -> Option<InstructionId> {
        let instruction = &self.module.instructions[id];
        (instruction.op == Op::DynamicUpdateSlice).then(|| instruction.operands[0])
    }
}
