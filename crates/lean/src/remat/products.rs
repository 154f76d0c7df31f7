//! The matrix products, convolutions and reductions that may be recomputed, and their prices.

use memplan_ir::{ComputationId, InstructionId, Module};
use memplan_memory::Target;
use memplan_min_cut::UNCUTTABLE;
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::{FxHashMap, FxHashSet};

use super::is_recomputable;

/// The matrix products and convolutions that may be recomputed. Each choice costs more time than the one before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Products {
    /// None.
    Kept,
    /// Those that take no longer than writing their result to memory and reading it back, such as attention scores.
    Cheap,
    /// These, and of each chain of expensive ones all but every n-th. If none were kept, the last layer would be recomputed
    /// from the first, and all layers would be in memory again at once; keeping every n-th cuts the chain into segments
    /// (Chen et al. 2016).
    AllButEvery(u32),
    /// All, and reductions, as `jax.checkpoint` does without a policy.
    All,
    /// Any that is worth its time, including reductions. Chooses the cheapest combination if a byte kept through the
    /// peak costs this many seconds of a run of the program. If so much is recomputed that the peak only moves, every
    /// 16th of each chain is kept, then every 4th, then every second.
    ForSecondsPerByte(f64),
    /// Like this, and every n-th of each chain is kept.
    ForSecondsPerByteButEvery(f64, u32),
}

impl Products {
    /// The next choice to try where this one does not lower the peak, because too much is recomputed at once.
    pub(super) fn fewer(self) -> Option<Products> {
        match self {
            Products::ForSecondsPerByte(price) => Some(Products::ForSecondsPerByteButEvery(price, 16)),
            Products::ForSecondsPerByteButEvery(price, n) if n > 3 => {
                Some(Products::ForSecondsPerByteButEvery(price, if n > 4 { 4 } else { 2 }))
            }
            Products::All => Some(Products::AllButEvery(16)),
            Products::AllButEvery(_) | Products::ForSecondsPerByteButEvery(..) => Some(Products::Cheap),
            Products::Cheap => Some(Products::Kept),
            Products::Kept => None,
        }
    }

    /// Lowering the peak of a computation that is not at the program's peak is worth no time.
    pub(super) fn off_the_peak(self) -> Products {
        match self {
            Products::ForSecondsPerByte(_) | Products::ForSecondsPerByteButEvery(..) => Products::Kept,
            same => same,
        }
    }

    /// The instructions of a computation that may be recomputed, which runs so many times. Takes time linear in the
    /// computation.
    pub(crate) fn recomputable<'a>(
        self,
        module: &'a Module,
        target: &'a Target,
        computation: ComputationId,
        runs: f64,
    ) -> Recomputable<'a> {
        let released = match self {
            Products::AllButEvery(n) | Products::ForSecondsPerByteButEvery(_, n) => {
                between_every(module, target, computation, n)
            }
            Products::All | Products::ForSecondsPerByte(_) => {
                between_every(module, target, computation, u32::MAX)
            }
            Products::Kept | Products::Cheap => FxHashSet::default(),
        };
        let bytes_per_second = match self {
            Products::ForSecondsPerByte(price) | Products::ForSecondsPerByteButEvery(price, _) => {
                Some(runs / price)
            }
            _ => None,
        };
        let beyond = FxHashSet::default();
        Recomputable {
            module,
            target,
            products: self,
            released,
            bytes_per_second,
            beyond,
            are_kernels: false,
        }
    }
}

/// The instructions that may be recomputed.
pub(crate) struct Recomputable<'a> {
    module: &'a Module,
    target: &'a Target,
    products: Products,
    /// Expensive products among them.
    released: FxHashSet<InstructionId>,
    /// The bytes that have to be saved for each second; `None`: time does not count.
    bytes_per_second: Option<f64>,
    /// Values that may be recomputed only at no cost.
    beyond: FxHashSet<InstructionId>,
    /// Whether there is a cost to all values.
    are_kernels: bool,
}

impl Recomputable<'_> {
    /// Only in the first part of some instructions, `reach` of them, may anything be recomputed that costs time: all does
    /// where values are recomputed in kernels of their own.
    pub(crate) fn within(self, instructions: &[InstructionId], reach: f64, are_kernels: bool) -> Self {
        let first_beyond = ((instructions.len() as f64 * reach) as usize).min(instructions.len());
        let beyond = instructions[first_beyond..].iter().copied().collect();
        Recomputable { beyond, are_kernels, ..self }
    }

    /// The bytes that recomputing a value must save at least; [`UNCUTTABLE`] for one that may only be kept.
    pub(crate) fn price(&self, id: InstructionId) -> u64 {
        let (module, target) = (self.module, self.target);
        let is_free = module.instructions[id].control_predecessors.is_empty();
        let at_price = || match self.bytes_per_second {
            None => 0,
            Some(rate) => ((rate * cost::seconds(module, target, id)) as u64).min(UNCUTTABLE - 1),
        };
        let price = match cost::class_of(module, id) {
            _ if !is_free => UNCUTTABLE,
            CostClass::Hero(Hero::Dot) if self.products == Products::Kept => UNCUTTABLE,
            CostClass::Hero(Hero::Dot | Hero::Convolution) if self.released.contains(&id) => at_price(),
            CostClass::Hero(Hero::Reduction)
                if self.products == Products::All || self.bytes_per_second.is_some() =>
            {
                at_price()
            }
            _ if is_recomputable(module, target, id) => 0,
            _ => UNCUTTABLE,
        };
        if (price > 0 || self.are_kernels) && self.beyond.contains(&id) { UNCUTTABLE } else { price }
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
