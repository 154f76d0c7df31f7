//! Which matrix products and convolutions may be recomputed.

use memplan_ir::{ComputationId, InstructionId, Module};
use memplan_memory::Target;
use rustc_hash::{FxHashMap, FxHashSet};

use super::is_recomputable;
use crate::cost::{self, CostClass, Hero};

/// The matrix products and convolutions that may be recomputed. Each choice costs more time than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// None.
    Kept,
    /// Those that take no longer than writing their result to memory and reading it back, such as attention scores.
    Cheap,
    /// These, and of each chain of expensive ones all but every n-th. If none were kept, the last layer would be recomputed
    /// from the first, and all layers would be in memory again at once; keeping every n-th cuts the chain into segments
    /// (Chen et al. 2016).
    AllButEvery(u32),
}

impl Products {
    /// The next choice to try where this one does not lower the peak, because too much is recomputed at once.
    pub(super) fn fewer(self) -> Option<Products> {
        match self {
            Products::AllButEvery(_) => Some(Products::Cheap),
            Products::Cheap => Some(Products::Kept),
            Products::Kept => None,
        }
    }

    /// The instructions of a computation that may be recomputed. Takes time linear in the computation.
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

/// The instructions that may be recomputed.
pub(crate) struct Recomputable<'a> {
    module: &'a Module,
    target: &'a Target,
    products: Products,
    /// Expensive products among them.
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
