//! Placement: chooses the mapping of each tensor.
//!
//! Elementwise operands want equal mappings, so that nothing is exchanged. A tensor therefore takes the mapping of a
//! *partner*, a tensor of equal extents that some instruction reads or writes in step with it, if one has been placed.
//! Others are spread linearly: large ones over all tiles, small ones from a start tile, which is a hash of the shape or
//! the window of tiles with the most free memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use cranelift_entity::SecondaryMap;
use memplan_analysis::{Facts, Time};
use memplan_ir::{InstructionId, Module, Shape};

use crate::alignment::{Alignments, Reads, same_order};
use crate::mapping::{Grain, LinearMapping, Mapping, start_tile};
use crate::tensors::{Tensor, TensorId, Tensors};

/// How small tensors get their first tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// By a hash of their shape, as PopLibs does it.
    Hashed,
    /// At the tiles with the most free memory at the time, near their partners if that makes no tile fuller.
    #[default]
    Balanced,
}

/// The mapping of every tensor.
pub type Mappings = SecondaryMap<TensorId, Option<Mapping>>;

/// Places every tensor that `fixed` has no mapping for. A balanced placement takes time proportional to tensors times
/// tiles.
pub(crate) fn place(
    module: &Module,
    facts: &Facts,
    tensors: &Tensors,
    tiles: u32,
    policy: Policy,
    fixed: &BTreeMap<TensorId, Mapping>,
) -> Mappings {
    let mut mappings = Mappings::new();
    mappings.resize(tensors.all.len());
    let mut placer = Placer {
        tensors,
        partners: partners(module, facts, tensors),
        tiles,
        policy,
        mappings,
        load: vec![0; tiles as usize],
        ends: BinaryHeap::new(),
    };
    for (&tensor, mapping) in fixed.iter().filter(|&(&tensor, _)| tensors.all[tensor].is_here()) {
        placer.mappings[tensor] = Some(mapping.clone());
    }
    // Whatever has its bytes for the whole run comes first, the largest before others, then the rest as time goes on.
    let mut order: Vec<TensorId> = tensors.all.keys().collect();
    order.sort_by_key(|&id| {
        let tensor = &tensors.all[id];
        let start = tensor.busy.first().map_or(0, |range| range.start);
        match tensor.is_always_live() {
            true => (false, 0, Reverse(tensor.bytes()), id),
            false => (true, start, Reverse(tensor.bytes()), id),
        }
    });
    for id in order.into_iter().filter(|&id| tensors.all[id].is_here()) {
        placer.place(id);
    }
    placer.mappings
}

/// For each tensor, the tensors of equal extents and order that an instruction reads or writes in step with it.
fn partners(module: &Module, facts: &Facts, tensors: &Tensors) -> SecondaryMap<TensorId, Vec<TensorId>> {
    let mut partners: SecondaryMap<TensorId, Vec<TensorId>> = SecondaryMap::new();
    let mut alignments = Alignments::new(module);
    for &id in &facts.line.instructions {
        let alignment = alignments.of(id);
        let mut together = results(module, facts, tensors, id);
        let operands = module.instructions[id].operands.iter().zip(&alignment.reads);
        for (&operand, _) in operands.filter(|(_, reads)| **reads == Reads::InStep) {
            if let (Some(tensor), Shape::Array(array)) =
                (facts.flow.value_of(operand).and_then(|value| tensors.of(value)), module.shape(operand))
            {
                together.push((tensor, array));
            }
        }
        // Each is tied to the largest, which is what the work is spread by.
        let Some(&(first, work)) =
            together.iter().max_by_key(|(id, array)| (array.element_count(), Reverse(*id)))
        else {
            continue;
        };
        for &(other, array) in &together {
            let alike = other != first && same_order(array, work);
            if alike && tensors.all[other].elements == tensors.all[first].elements {
                partners[first].push(other);
                partners[other].push(first);
            }
        }
    }
    partners
}

/// The arrays that an instruction defines.
fn results<'m>(
    module: &'m Module,
    facts: &Facts,
    tensors: &Tensors,
    id: InstructionId,
) -> Vec<(TensorId, &'m memplan_ir::ArrayShape)> {
    let positions = facts.flow.positions.of(id);
    let defined = positions.filter_map(|position| {
        let value = facts.flow.value_at(position)?;
        let array = module.shape(id).subshape(facts.flow.positions.shape_index(position))?.as_array()?;
        (facts.flow.values[value].definition == position).then_some((tensors.of(value)?, array))
    });
    defined.collect()
}

struct Placer<'a> {
    tensors: &'a Tensors,
    partners: SecondaryMap<TensorId, Vec<TensorId>>,
    tiles: u32,
    policy: Policy,
    mappings: Mappings,
    /// Bytes on each tile now.
    load: Vec<u64>,
    /// When tensors die that are not always live.
    ends: BinaryHeap<Reverse<(Time, TensorId)>>,
}

impl Placer<'_> {
    fn place(&mut self, id: TensorId) {
        let tensor = &self.tensors.all[id];
        self.release(tensor.busy.first().map_or(0, |range| range.start));
        if self.mappings[id].is_none() {
            self.mappings[id] = Some(self.choose(id, tensor));
        }
        if self.policy == Policy::Balanced {
            self.occupy(id, true);
            if !tensor.is_always_live() {
                self.ends.push(Reverse((tensor.busy.last().map_or(0, |range| range.end), id)));
            }
        }
    }

    fn choose(&self, id: TensorId, tensor: &Tensor) -> Mapping {
        let grain = Grain::of(tensor.element_bytes);
        let linear = LinearMapping::new(tensor.elements, grain, 0..self.tiles, 0);
        let is_small = linear.parts() < self.tiles / 2;
        let partner = self.partners[id].iter().find_map(|&partner| self.mappings[partner].as_ref());
        match (partner, self.policy) {
            (Some(partner), Policy::Hashed) => partner.clone(),
            (Some(partner), Policy::Balanced) if !is_small || self.has_room(partner, tensor) => {
                partner.clone()
            }
            (_, _) if !is_small => Mapping::Linear(linear),
            (_, Policy::Hashed) => {
                Mapping::Linear(linear.starting_at(start_tile(&tensor.dimensions, self.tiles)))
            }
            (near, Policy::Balanced) => {
                let near = near.and_then(|near| near.tile_set().ranges().first().map(|range| range.start));
                let near = near.unwrap_or_else(|| start_tile(&tensor.dimensions, self.tiles));
                Mapping::Linear(linear.starting_at(emptiest_window(&self.load, linear.parts(), near)))
            }
        }
    }

    /// Whether a tensor can have its partner's mapping without making the fullest tile fuller.
    fn has_room(&self, partner: &Mapping, tensor: &Tensor) -> bool {
        let share = partner.largest_share().saturating_mul(tensor.element_bytes);
        let fullest = self.load.iter().copied().max().unwrap_or(0);
        let there = partner.tile_set().iter().map(|tile| self.load[tile as usize]).max().unwrap_or(0);
        there.saturating_add(share) <= fullest
    }

    fn release(&mut self, now: Time) {
        while let Some(&Reverse((end, id))) = self.ends.peek() {
            if end > now {
                break;
            }
            self.ends.pop();
            self.occupy(id, false);
        }
    }

    fn occupy(&mut self, id: TensorId, takes: bool) {
        let mapping = self.mappings[id].as_ref().expect("a tensor is placed before it takes memory");
        let tensor = &self.tensors.all[id];
        let share =
            mapping.largest_share().saturating_mul(tensor.element_bytes).saturating_mul(tensor.copies);
        for tile in mapping.tile_set().iter() {
            let load = &mut self.load[tile as usize];
            *load = if takes { load.saturating_add(share) } else { load.saturating_sub(share) };
        }
    }
}

/// The start of the run of `length` tiles, past the last tile on at the first, whose fullest tile is least full; of
/// equals the one that is nearest to `near`, going up. Linear in the number of tiles.
fn emptiest_window(load: &[u64], length: u32, near: u32) -> u32 {
    let n = load.len();
    let length = (length as usize).clamp(1, n);
    // Positions in the window whose load no later one exceeds: loads descend.
    let mut highest: VecDeque<usize> = VecDeque::new();
    let mut best = (u64::MAX, usize::MAX);
    for i in 0..n + length - 1 {
        let at = |i: usize| load[(near as usize + i) % n];
        while highest.back().is_some_and(|&last| at(last) <= at(i)) {
            highest.pop_back();
        }
        highest.push_back(i);
        if let Some(start) = (i + 1).checked_sub(length) {
            while highest.front().is_some_and(|&first| first < start) {
                highest.pop_front();
            }
            let fullest = highest.front().map_or(0, |&first| at(first));
            best = best.min((fullest, start));
        }
    }
    ((near as usize + best.1) % n) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_wrap_around() {
        assert_eq!(emptiest_window(&[0, 5, 5, 0, 0], 2, 0), 3);
        assert_eq!(emptiest_window(&[0, 5, 5, 5, 0], 2, 0), 4);
        assert_eq!(emptiest_window(&[0, 0, 0, 0, 0], 2, 3), 3, "of equals the nearest");
        assert_eq!(emptiest_window(&[3, 1, 2], 9, 1), 1, "as many as there are");
        assert_eq!(emptiest_window(&[3, 1, 2], 1, 2), 1);
    }
}
