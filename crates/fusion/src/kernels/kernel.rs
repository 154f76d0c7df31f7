//! Kernels under construction: their members, and how each member is used.

use cranelift_entity::{PrimaryMap, entity_impl};
use memplan_ir::{InstructionId, Module, Opcode, Shape};
use memplan_rewriter::cost::Hero;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::super::report::FusionEdge;

/// A kernel of one computation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(u32);
entity_impl!(KernelId, "kernel");

/// Instructions that are computed together.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// The instructions whose results are written to memory, last in the text first.
    pub(crate) roots: SmallVec<[InstructionId; 1]>,
    /// All instructions, users before operands.
    pub members: Vec<InstructionId>,
    /// Expensive members whose results are held on chip, row by row.
    pub(super) held: SmallVec<[InstructionId; 2]>,
    /// The expensive member that the kernel is built around, if there is one.
    pub(crate) hero: Option<(InstructionId, Hero)>,
    /// The members' operands in memory.
    pub(super) operands: FxHashSet<InstructionId>,
    /// How each member is used.
    pub(super) usages: FxHashMap<InstructionId, Usage>,
}

/// How a kernel uses one of its members: at which indices, how often, and for what.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    /// The members that map the index of the root to the indices at which this one is used: the root, and all members
    /// in between that are not pointwise. A value on chip, or a root before kernels were merged, is its own indexer.
    pub(super) indexers: SmallVec<[InstructionId; 2]>,
    /// How many different indices there are for one element of the root.
    pub(super) evaluations: usize,
    /// Whether each element of the root uses one element, and each a different one.
    pub(super) bijective: bool,
    /// Whether one element may serve several elements of the root.
    pub(super) reused: bool,
    /// The dot or convolution that this member is an operand of, directly or through others.
    pub(super) feeds: Option<Hero>,
}

impl Usage {
    /// The usage of a root: each of its elements once.
    pub(super) fn of_root(id: InstructionId) -> Usage {
        let indexers = SmallVec::from_iter([id]);
        Usage { indexers, evaluations: 1, bijective: true, reused: false, feeds: None }
    }

    /// The usage of a result that is held on chip: each element is computed once, but read in any way.
    pub(super) fn of_held(id: InstructionId) -> Usage {
        Usage { bijective: false, ..Usage::of_root(id) }
    }

    /// The usage of a member that nothing uses yet.
    pub(super) fn none() -> Usage {
        let indexers = SmallVec::new();
        Usage { indexers, evaluations: 0, bijective: true, reused: false, feeds: None }
    }

    /// Counts the indices at which the users of a member are used, once all are known.
    pub(super) fn count(&mut self, kernel: &Kernel) {
        self.indexers.sort_unstable();
        self.indexers.dedup();
        self.evaluations = self.indexers.iter().map(|indexer| kernel.usages[indexer].evaluations).sum();
    }

    /// Adds another usage of the same member.
    pub(super) fn add(&mut self, other: &Usage) {
        self.indexers.extend(other.indexers.iter().copied());
        self.indexers.sort_unstable();
        self.indexers.dedup();
        self.evaluations = self.evaluations.max(other.evaluations);
        self.bijective &= other.bijective;
        self.reused |= other.reused;
        self.feeds = self.feeds.or(other.feeds);
    }
}

/// The elements of an array, or of each of several that one operation makes.
pub(super) fn elements(module: &Module, id: InstructionId) -> f64 {
    let shape = match module.shape(id) {
        Shape::Tuple(parts) => parts.first(),
        shape => Some(shape),
    };
    let count = shape.and_then(|shape| shape.as_array()?.element_count());
    count.unwrap_or(0) as f64
}

impl Kernel {
    /// The opcode that names the kernel: that of its hero, or of its root.
    pub(crate) fn opcode(&self, module: &Module) -> Opcode {
        let named = self.hero.map_or(self.roots[0], |(hero, _)| hero);
        module.instructions[named].opcode()
    }
}

/// The kernels of one computation, and why.
#[derive(Debug, Default)]
pub struct Grouping {
    /// In the order in which they were begun: last in the text first.
    pub kernels: PrimaryMap<KernelId, Kernel>,
    /// Reshapes and transposes outside kernels that are only views of their operands.
    pub views: FxHashSet<InstructionId>,
    /// The decision about each edge, where they are kept.
    pub(crate) decisions: Vec<FusionEdge>,
    /// The kernel of each root.
    pub(super) rooted: FxHashMap<InstructionId, KernelId>,
    /// Instructions inside kernels, roots excluded.
    pub(super) inside: FxHashSet<InstructionId>,
}

impl Grouping {
    /// The kernel that writes an instruction's result.
    pub fn kernel_rooted_at(&self, id: InstructionId) -> Option<&Kernel> {
        self.rooted.get(&id).map(|&kernel| &self.kernels[kernel])
    }

    /// Whether an instruction is a view.
    pub fn is_view(&self, id: InstructionId) -> bool {
        self.views.contains(&id)
    }

    /// Whether an instruction's result has bytes of its own in memory.
    pub fn is_materialized(&self, id: InstructionId) -> bool {
        !self.inside.contains(&id) && !self.is_view(id)
    }
}
