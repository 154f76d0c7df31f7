//! Results that may take over the storage of an operand.

use memplan_ir::{InstructionId, Op, Shape};

use super::Build;
use crate::schedule::graph::{Node, Storage, StorageIndex, TakeOver};
use crate::storage::may_ever_take_over;

impl Build<'_, '_> {
    /// Which results may take over which operands.
    pub(super) fn find_take_overs(&mut self) {
        let mut defined_by = vec![None; self.parts.storages.len()];
        self.parts.definitions.iter().for_each(|&(node, storage)| defined_by[storage as usize] = Some(node));
        let lives = self.textual_lives();
        for node in 0..self.instructions.len() as Node {
            let id = self.instructions[node as usize];
            if !may_ever_take_over(&self.source.module.instructions[id].op) {
                continue;
            }
            let operands = self.operand_storages(id);
            let mut groups: Vec<(&Shape, TakeOver)> = Vec::new();
            for position in self.source.flow.positions.of(id) {
                let source = &self.source;
                let Some(value) = source.flow.value_at(position) else { continue };
                let local = source.local[value];
                if local.stamp != source.stamp {
                    continue;
                }
                let result = self.values[local.index as usize].storage;
                let bytes = self.parts.storages[result as usize].bytes;
                if bytes == 0 || defined_by[result as usize] != Some(node) {
                    continue;
                }
                let index = source.flow.positions.shape_index(position);
                let shape = source.module.shape(id).subshape(index).expect("positions are parts");
                // All results of one shape may take over the same operands, but for those of a sort.
                let is_sort = matches!(source.module.instructions[id].op, Op::Sort { .. });
                if let Some((_, group)) = groups.iter_mut().find(|g| g.0 == shape && !is_sort) {
                    group.n_results += 1;
                    continue;
                }
                let fits = operands.iter().filter(|&&(number, operand)| {
                    self.parts.storages[operand as usize].bytes == bytes
                        && source.in_place.may_take_over(source.module, id, number, index)
                        && self.may_join(&lives, operand, result)
                });
                let operands: Vec<StorageIndex> = fits.map(|&(_, operand)| operand).collect();
                groups.push((shape, TakeOver { node, result, n_results: 1, operands }));
            }
            let take_overs = groups.into_iter().map(|(_, group)| group);
            self.parts.take_overs.extend(take_overs.filter(|group| !group.operands.is_empty()));
        }
    }

    /// Counted storages of array operands, each once, with the number of the operand.
    fn operand_storages(&self, id: InstructionId) -> Vec<(usize, StorageIndex)> {
        let mut operands: Vec<(usize, StorageIndex)> = Vec::new();
        for (number, &operand) in self.source.module.instructions[id].operands.iter().enumerate() {
            if self.source.module.shape(operand).is_tuple() {
                continue;
            }
            for local in self.locals_of(operand) {
                let storage = self.values[local as usize].storage;
                if self.parts.storages[storage as usize].bytes > 0 {
                    operands.push((number, storage));
                }
            }
        }
        operands.sort_by_key(|&(number, storage)| (storage, number));
        operands.dedup_by_key(|&mut (_, storage)| storage);
        operands.sort_unstable();
        operands
    }

    /// First and last node that touches each storage, in textual order.
    fn textual_lives(&self) -> Vec<(u32, u32)> {
        let last = self.instructions.len() as u32 + 1;
        let outer = |s: &Storage| (if s.live_in { 0 } else { last }, if s.live_out { last } else { 0 });
        let mut lives: Vec<(u32, u32)> = self.parts.storages.iter().map(outer).collect();
        for &(node, storage) in &self.parts.touches {
            let life = &mut lives[storage as usize];
            *life = (life.0.min(node + 1), life.1.max(node + 1));
        }
        lives
    }

    /// Whether a result and the operand whose bytes it would take get along with the other versions in their
    /// buffers, judged by the textual order: this must be settled before there is a schedule.
    fn may_join(&self, lives: &[(u32, u32)], operand: StorageIndex, result: StorageIndex) -> bool {
        let life = |storage: StorageIndex| lives[storage as usize];
        let next = self.neighbors[operand as usize].next;
        let previous = self.neighbors[result as usize].previous;
        next.is_none_or(|next| life(result).1 <= life(next).0)
            && previous.is_none_or(|previous| life(previous).1 <= life(operand).0)
    }
}
