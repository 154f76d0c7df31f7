//! Which matrix products and convolutions may be computed again.

use memplan_ir::{ComputationId, InstructionId, Module};
use memplan_memory::Target;
use rustc_hash::{FxHashMap, FxHashSet};

use super::is_recomputable;
use crate::cost::{self, CostClass, Hero};

/// Matrix products and convolutions that may be computed again, each choice at a higher price than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// None.
    Kept,
    /// Those that take no longer than moving their result out of the cores and in again, such as attention scores.
    Cheap,
    /// These, and of each chain of expensive ones all but every n-th. With nothing kept, what is recomputed for the last
    /// layer would be recomputed from the first one, and all of it would be there again at once; keeping every n-th
    /// makes segments of the chain (Chen et al. 2016).
    AllButEvery(u32),
}

impl Products {
    /// What to try where this choice brings nothing, since too much is recomputed at once.
    pub(super) fn fewer(self) -> Option<Products> {
        match self {
            Products::AllButEvery(_) => Some(Products::Cheap),
            Products::Cheap => Some(Products::Kept),
            Products::Kept => None,
        }
    }

    /// Which instructions of a computation may be computed again. Takes time linear in the computation.
    pub(crate) fn recomputable<'a>(
        self,
        module: &'a Module,
        target: &'a Target,
        computation: ComputationId,
    ) -> Recomputable<'a> {
        let released = match self {
            Products::AllButEvery(n) => between_every(module, target, computation, n),
            Products::Kept | Products::Cheap => FxHashSet::default(),
        };
        Recomputable { module, target, products: self, released }
    }
}

/// What may be computed again.
pub(crate) struct Recomputable<'a> {
    module: &'a Module,
    target: &'a Target,
    products: Products,
    /// Expensive products that may be.
    released: FxHashSet<InstructionId>,
}

impl Recomputable<'_> {
    pub(crate) fn contains(&self, id: InstructionId) -> bool {
        let is_free = self.module.instructions[id].control_predecessors.is_empty();
        match cost::class_of(self.module, id) {
            CostClass::Hero(Hero::Dot) if self.products == Products::Kept => false,
            CostClass::Hero(Hero::Dot | Hero::Convolution) if self.released.contains(&id) => is_free,
            _ => is_recomputable(self.module, self.target, id),
        }
    }
}

/// Expensive products that are not the n-th, 2n-th ... of a chain of them within a computation.
fn between_every(
    module: &Module,
    target: &Target,
    computation: ComputationId,
    n: u32,
) -> FxHashSet<InstructionId> {
    let mut depths: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let mut between = FxHashSet::default();
    for (id, instruction) in module.instructions_of(computation) {
        let is_product = matches!(cost::class_of(module, id), CostClass::Hero(Hero::Dot | Hero::Convolution));
        let is_expensive = is_product && !is_recomputable(module, target, id);
        let above = instruction.operands.iter().filter_map(|operand| depths.get(operand)).max();
        let depth = above.copied().unwrap_or(0) + u32::from(is_expensive);
        depths.insert(id, depth);
        if is_expensive && depth % n.max(1) != 0 {
            between.insert(id);
        }
    }
    between
}
