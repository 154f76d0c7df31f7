//! How often a kernel's code contains each instruction.
//!
//! Code is generated from the root to the operands. An instruction needed at the index of its user is generated with
//! it; an instruction needed at another index (under a reshape or a slice) is generated again for every such user,
//! together with everything below it.

use memplan_ir::{InstructionId, Module, Op};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The members of a kernel whose index each instruction is needed at, and how often each is generated.
pub(super) struct Indexing {
    indexers: FxHashMap<InstructionId, SmallVec<[InstructionId; 2]>>,
    n_times: FxHashMap<InstructionId, usize>,
}

impl Indexing {
    pub(super) fn new(module: &Module, root: InstructionId, operands: &[InstructionId]) -> Indexing {
        let mut indexing = Indexing { indexers: FxHashMap::default(), n_times: FxHashMap::default() };
        indexing.n_times.insert(root, 1);
        indexing.indexers.insert(root, SmallVec::from_iter([root]));
        indexing.add_needs(module, root, operands);
        indexing
    }

    /// How often an operand of the kernel would be generated.
    pub(super) fn n_times(&self, id: InstructionId) -> usize {
        let indexers = self.indexers.get(&id).into_iter().flatten();
        indexers.map(|indexer| self.n_times[indexer]).fold(0, usize::saturating_add)
    }

    /// Makes an operand of the kernel a member.
    pub(super) fn add(&mut self, module: &Module, id: InstructionId, operands: &[InstructionId]) {
        self.n_times.insert(id, self.n_times(id));
        self.add_needs(module, id, operands);
    }

    fn add_needs(&mut self, module: &Module, id: InstructionId, operands: &[InstructionId]) {
        for &operand in operands {
            let is_same_index = matches!(module.instructions[id].op, Op::Transpose { .. })
                || same_places(module, id, operand);
            let indexers = match is_same_index {
                true => self.indexers[&id].clone(),
                false => SmallVec::from_iter([id]),
            };
            let all = self.indexers.entry(operand).or_default();
            all.extend(indexers);
            all.sort_unstable();
            all.dedup();
        }
    }
}

/// Whether two arrays have the same dimensions and layout.
fn same_places(module: &Module, a: InstructionId, b: InstructionId) -> bool {
    let array = |id| module.shape(id).as_array();
    array(a)
        .zip(array(b))
        .is_some_and(|(a, b)| a.dimensions == b.dimensions && a.minor_to_major() == b.minor_to_major())
}
