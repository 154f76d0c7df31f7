//! Dependencies between instructions: answers in constant time, which may be "unknown" for distant instructions.
//!
//! Dependencies on the [`WINDOW`] preceding instructions in the text are known exactly: a bit for each.
//!
//! Others are known in part. Each instruction is a child of the user from which the path to the end of the computation
//! is longest. So this tree follows the longest chain: in a training step, it goes through all layers and back, with the
//! updates of weights as branches. An instruction depends on all instructions below it in this tree.

use memplan_ir::{InstructionId, Module, Users};

/// How far back everything is known. An instruction takes 128 bytes for it, while its computation is looked at.
const WINDOW: usize = 1024;

/// The instructions of one computation after another, by their places in its text.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    nodes: Vec<Node>,
    near: Vec<Near>,
}

/// An instruction in the tree.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    parent: Option<u32>,
    /// How far it is to the end.
    distance: u32,
    /// How many hang below it, itself included.
    size: u32,
    /// When a walk through the tree enters it.
    enter: u32,
    /// When the walk enters the next one below it.
    next: u32,
}

/// The dependencies among the preceding instructions: the bit of a position is its remainder by [`WINDOW`].
#[derive(Clone, Copy, Debug)]
struct Near([u64; WINDOW / 64]);

impl Needs {
    /// Analyzes a computation, whose instructions come after their operands. `places` has their positions. Linear in
    /// these instructions, not in those of the module.
    pub(super) fn look_at(
        &mut self,
        module: &Module,
        instructions: &[InstructionId],
        users: &Users,
        places: impl Fn(InstructionId) -> u32,
    ) {
        self.nodes.clear();
        self.nodes.resize(instructions.len(), Node::default());
        let nodes = &mut self.nodes;
        for (at, &id) in instructions.iter().enumerate().rev() {
            let users = users.of(id).iter().rev().map(|&user| places(user));
            let parent = users.max_by_key(|&user| nodes[user as usize].distance);
            let distance = parent.map_or(0, |parent| nodes[parent as usize].distance + 1);
            nodes[at] = Node { parent, distance, size: 1, ..Node::default() };
        }
        for at in 0..nodes.len() {
            let Node { parent, size, .. } = nodes[at];
            if let Some(parent) = parent {
                nodes[parent as usize].size += size;
            }
        }
        // Users come before their operands, so the place below a user is known when an operand needs one.
        let mut next_at_top = 0;
        for at in (0..nodes.len()).rev() {
            let Node { parent, size, .. } = nodes[at];
            let next = parent.map_or(&mut next_at_top, |parent| &mut nodes[parent as usize].next);
            let enter = *next;
            *next += size;
            (nodes[at].enter, nodes[at].next) = (enter, enter + 1);
        }
        self.near.clear();
        for (at, &id) in instructions.iter().enumerate() {
            let mut near = Near([0; WINDOW / 64]);
            for &operand in &module.instructions[id].operands {
                let operand = places(operand) as usize;
                if at - operand < WINDOW {
                    near.add(operand, &self.near[operand], at);
                }
            }
            self.near.push(near);
        }
    }

    /// Whether the instruction at a place needs the one at another place, or is it; `None` where that is not known.
    pub(super) fn whether(&self, at: u32, needed: u32) -> Option<bool> {
        let Node { enter, size, .. } = self.nodes[at as usize];
        match at.checked_sub(needed) {
            None => Some(false),
            Some(0) => Some(true),
            Some(distance) if (distance as usize) < WINDOW => {
                Some(self.near[at as usize].has(needed as usize))
            }
            Some(_) => {
                let enters = self.nodes[needed as usize].enter;
                (enter..enter + size).contains(&enters).then_some(true)
            }
        }
    }
}

impl Near {
    /// Adds an operand of the instruction at a place, and what that operand is computed from.
    fn add(&mut self, operand: usize, of_operand: &Near, at: usize) {
        // The bits of positions between the two represent positions that are too far away for the user.
        let is_passed = |word: usize| {
            let (first, end) = (operand % WINDOW, operand % WINDOW + (at - operand));
            bits(first, end.min(WINDOW), word) | bits(0, end.saturating_sub(WINDOW), word)
        };
        for (word, (bits, more)) in self.0.iter_mut().zip(of_operand.0).enumerate() {
            *bits |= more & !is_passed(word);
        }
        self.0[operand % WINDOW / 64] |= 1 << (operand % 64);
    }

    fn has(&self, place: usize) -> bool {
        self.0[place % WINDOW / 64] >> (place % 64) & 1 == 1
    }
}

/// The bits from `first` to before `end` that are in a word.
fn bits(first: usize, end: usize, word: usize) -> u64 {
    let below = |bit: usize| match bit.saturating_sub(64 * word) {
        n @ 0..64 => (1 << n) - 1,
        _ => u64::MAX,
    };
    below(end) & !below(first)
}

#[cfg(test)]
mod tests {
    use memplan_testkit::Random;

    use super::*;

    /// The places that each instruction of a random graph reads, far and near.
    fn graph(n: usize, random: &mut Random) -> Vec<Vec<usize>> {
        let read = |at: usize, random: &mut Random| {
            let reach = if random.below(8) == 0 { at } else { at.min(1 + at / 4).min(600) };
            (0..random.below(3)).filter(|_| at > 0).map(|_| at - 1 - random.below(reach.max(1))).collect()
        };
        (0..n).map(|at| read(at, random)).collect()
    }

    #[test]
    fn what_is_near_is_known_exactly() {
        let mut random = Random::new(1);
        let reads = graph(3 * WINDOW, &mut random);
        let mut near: Vec<Near> = Vec::new();
        for (at, operands) in reads.iter().enumerate() {
            let mut own = Near([0; WINDOW / 64]);
            operands.iter().filter(|&&o| at - o < WINDOW).for_each(|&o| own.add(o, &near[o], at));
            near.push(own);
        }
        for at in (0..reads.len()).step_by(97) {
            // Only ways on which every step is in the window of the instruction at hand count, and all are: a way goes down.
            let mut needs = vec![false; at + 1];
            needs[at] = true;
            for place in (0..=at).rev().filter(|&place| at - place < WINDOW) {
                if needs[place] {
                    reads[place].iter().for_each(|&operand| needs[operand] = true);
                }
                assert_eq!(place == at || near[at].has(place), needs[place], "{at} needs {place}");
            }
        }
    }
}
