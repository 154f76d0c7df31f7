//! What an instruction is certainly computed from: an answer in constant time that may be "not known".
//!
//! Every instruction hangs below one of its users, the one from which it is furthest to the end of the computation, so that
//! the tree follows the longest chain: a training step's through all layers and back, with each weight's update beside it.
//! What is below an instruction in this tree is needed for it.

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Users};

/// The tree of one computation after another, as intervals of a walk through it.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// For each instruction, when the walk enters it and when it leaves it.
    intervals: SecondaryMap<InstructionId, (u32, u32)>,
    nodes: SecondaryMap<InstructionId, Node>,
}

/// An instruction of the tree while it is built.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    parent: Option<InstructionId>,
    /// How far it is to the end.
    distance: u32,
    /// How many hang below it, itself included.
    size: u32,
    /// When the walk enters the next one below it.
    next: u32,
}

impl Needs {
    /// Looks at a computation, whose instructions stand after their operands. Linear in these, not in the module.
    pub(super) fn look_at(&mut self, instructions: &[InstructionId], users: &Users) {
        let nodes = &mut self.nodes;
        for &id in instructions.iter().rev() {
            let parent = users.of(id).iter().rev().copied().max_by_key(|&user| nodes[user].distance);
            let distance = parent.map_or(0, |parent| nodes[parent].distance + 1);
            nodes[id] = Node { parent, distance, size: 1, next: 0 };
        }
        for &id in instructions {
            let Node { parent, size, .. } = nodes[id];
            if let Some(parent) = parent {
                nodes[parent].size += size;
            }
        }
        // Users come before their operands, so the place below a user is known when an operand needs one.
        let mut next_at_top = 0;
        for &id in instructions.iter().rev() {
            let Node { parent, size, .. } = nodes[id];
            let next = parent.map_or(&mut next_at_top, |parent| &mut nodes[parent].next);
            let enter = *next;
            *next += size;
            nodes[id].next = enter + 1;
            self.intervals[id] = (enter, enter + size);
        }
    }

    /// Whether an instruction certainly needs another one, or is it.
    pub(super) fn certainly(&self, id: InstructionId, needed: InstructionId) -> bool {
        let (enter, leave) = self.intervals[id];
        (enter..leave).contains(&self.intervals[needed].0)
    }
}
