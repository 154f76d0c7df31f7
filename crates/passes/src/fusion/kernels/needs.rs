//! What an instruction is certainly computed from: an answer in constant time that may be "not known".
//!
//! Every instruction hangs below one of its users, the one from which it is furthest to the end of the computation, so that
//! the tree follows the longest chain: a training step's through all layers and back, with each weight's update beside it.
//! What is below an instruction in this tree is needed for it.

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Users};

/// The tree, as intervals of a walk through it.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// For each instruction, when the walk enters it and when it leaves it.
    intervals: SecondaryMap<InstructionId, (u32, u32)>,
}

impl Needs {
    /// The tree of one computation, whose instructions stand after their operands. Linear.
    pub(super) fn new(instructions: &[InstructionId], users: &Users) -> Needs {
        // How far it is from an instruction to the end, and how many hang below it.
        let mut distance: SecondaryMap<InstructionId, u32> = SecondaryMap::new();
        let mut parent: SecondaryMap<InstructionId, Option<InstructionId>> = SecondaryMap::new();
        for &id in instructions.iter().rev() {
            let furthest = users.of(id).iter().rev().max_by_key(|user| distance[**user]);
            parent[id] = furthest.copied();
            distance[id] = furthest.map_or(0, |&user| distance[user] + 1);
        }
        let mut size: SecondaryMap<InstructionId, u32> = SecondaryMap::with_default(1);
        for &id in instructions {
            if let Some(parent) = parent[id] {
                size[parent] += size[id];
            }
        }
        // Users come before their operands, so the place below a user is known when an operand needs one.
        let mut intervals: SecondaryMap<InstructionId, (u32, u32)> = SecondaryMap::new();
        let mut free: SecondaryMap<InstructionId, u32> = SecondaryMap::new();
        let mut free_at_top = 0;
        for &id in instructions.iter().rev() {
            let next = parent[id].map_or(&mut free_at_top, |parent| &mut free[parent]);
            let enter = *next;
            *next += size[id];
            free[id] = enter + 1;
            intervals[id] = (enter, enter + size[id]);
        }
        Needs { intervals }
    }

    /// Whether an instruction certainly needs another one, or is it.
    pub(super) fn certainly(&self, id: InstructionId, needed: InstructionId) -> bool {
        let (enter, leave) = self.intervals[id];
        (enter..leave).contains(&self.intervals[needed].0)
    }
}
