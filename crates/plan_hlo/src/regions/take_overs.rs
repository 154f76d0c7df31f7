//! Results that may take over the bytes of an operand.

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Op, Shape};
use memplan_memory::Bytes;
use memplan_program::{Buffer, BufferId, NodeId, Reuse};

use super::Build;
use crate::program::may_ever_take_over;

impl Build<'_, '_> {
    /// Which results may take over which operands.
    pub(super) fn find_take_overs(&mut self) {
        let mut defined_by: SecondaryMap<BufferId, Option<NodeId>> = SecondaryMap::new();
        defined_by.resize(self.region.buffers.len());
        self.region.definitions.iter().for_each(|&(node, buffer)| defined_by[buffer] = Some(node));
        let lives = self.textual_lives();
        for (node, &id) in &self.instructions {
            if !may_ever_take_over(&self.source.module.instructions[id].op) {
                continue;
            }
            let operands = self.operand_buffers(id);
            let mut groups: Vec<(&Shape, Reuse)> = Vec::new();
            for position in self.source.flow.positions.of(id) {
                let source = &self.source;
                let Some(value) = source.flow.value_at(position) else { continue };
                let local = source.local[value];
                if local.stamp != source.stamp {
                    continue;
                }
                let result = self.values[local.index as usize].buffer;
                let bytes = self.region.buffers[result].bytes;
                if bytes == Bytes::ZERO || defined_by[result] != Some(node) {
                    continue;
                }
                let index = source.flow.positions.shape_index(position);
                let shape = source.module.shape(id).subshape(index).expect("positions are parts");
                // All results of one shape may take over the same operands, except for a sort's.
                let is_sort = matches!(source.module.instructions[id].op, Op::Sort { .. });
                if let Some((_, group)) = groups.iter_mut().find(|g| g.0 == shape && !is_sort) {
                    group.n_results += 1;
                    continue;
                }
                let fits = operands.iter().filter(|&&(number, operand)| {
                    self.region.buffers[operand].bytes == bytes
                        && source.in_place.may_take_over(source.module, id, number, index)
                        && self.may_join(&lives, operand, result)
                });
                let operands: Vec<BufferId> = fits.map(|&(_, operand)| operand).collect();
                groups.push((shape, Reuse { node, result, n_results: 1, operands }));
            }
            let take_overs = groups.into_iter().map(|(_, group)| group);
            self.region.reuses.extend(take_overs.filter(|group| !group.operands.is_empty()));
        }
    }

    /// Counted buffers of array operands, each once, with the number of the operand.
    fn operand_buffers(&self, id: InstructionId) -> Vec<(usize, BufferId)> {
        let mut operands: Vec<(usize, BufferId)> = Vec::new();
        for (number, &operand) in self.source.module.instructions[id].operands.iter().enumerate() {
            if self.source.module.shape(operand).is_tuple() {
                continue;
            }
            for local in self.locals_of(operand) {
                let buffer = self.values[local as usize].buffer;
                if self.region.buffers[buffer].bytes > Bytes::ZERO {
                    operands.push((number, buffer));
                }
            }
        }
        operands.sort_by_key(|&(number, buffer)| (buffer, number));
        operands.dedup_by_key(|&mut (_, buffer)| buffer);
        operands.sort_unstable();
        operands
    }

    /// First and last place that touches each buffer, in textual order.
    fn textual_lives(&self) -> SecondaryMap<BufferId, (u32, u32)> {
        let last = self.instructions.len() as u32 + 1;
        let outer = |b: &Buffer| (if b.live_in { 0 } else { last }, if b.live_out { last } else { 0 });
        let mut lives = SecondaryMap::new();
        lives.resize(self.region.buffers.len());
        self.region.buffers.iter().for_each(|(id, buffer)| lives[id] = outer(buffer));
        for &(node, buffer) in &self.region.touches {
            let (life, place): (&mut (u32, u32), u32) = (&mut lives[buffer], node.as_u32() + 1);
            *life = (life.0.min(place), life.1.max(place));
        }
        lives
    }

    /// Whether a result may take over an operand's bytes as far as the other values of their must-alias buffers are
    /// concerned. Judged by the textual order, since it must be decided before there is a schedule.
    fn may_join(
        &self,
        lives: &SecondaryMap<BufferId, (u32, u32)>,
        operand: BufferId,
        result: BufferId,
    ) -> bool {
        let next = self.neighbors[operand].next;
        let previous = self.neighbors[result].previous;
        next.is_none_or(|next| lives[result].1 <= lives[next].0)
            && previous.is_none_or(|previous| lives[previous].1 <= lives[operand].0)
    }
}
