//! Siblings: kernels that read the same arrays become one kernel with several results, which reads them once.
//!
//! ```text
//!   m' = add(multiply(m, b1), multiply(g, c1))     one kernel reads g, m, v and p once,
//!   v' = add(multiply(v, b2), multiply(g*g, c2))   and writes each result over the array
//!   p' = subtract(p, divide(m', sqrt(v')))         that it replaces
//! ```
//!
//! Two kernels are merged if they iterate over the same elements in the same order, read a large array at the same
//! index, and together stay within the target's limits for one kernel. Two more conditions must hold. The merged kernel
//! must not wait for itself: no path from one kernel to the other leads through a third. And no more bytes may be live:
//! the other kernel depends on everything that the one reads, and the results of the one take no more bytes than the
//! operands of which the two kernels are the last readers. Then it can run with the other one, under every schedule. With
//! [`Siblings::JoinUpdates`], others may read an array that is replaced, as `p` above, if they come earlier in the
//! text.
//!
//! Updates of slices, each in place of an array of its own, iterate over the written part: one kernel writes the rows
//! that a scan keeps for its backward pass, together with other results computed from them.
//!
//! Reductions are merged the same way, over the elements that they reduce: `sum(x)` and `sum(x*x)` of a normalization
//! read `x` once. Elementwise results over the same elements may join them. If the target's kernels of products and
//! convolutions can sum their results, a sum of a convolution's result does not read the result from memory.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayShape, ComputationId, Dimensions, InstructionId, Op, ShapeId};
use memplan_memory::FusionGoal;
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::report::{FusionEdge, Verdict};
use super::in_step::OutOfStep;
use super::{Grouper, Kernel, KernelId, Rank, Siblings};

/// The elements that a kernel iterates over. Dimensions of one element are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IterationSpace {
    /// The number of elements in each dimension.
    extents: Dimensions,
    /// The order of the dimensions in memory.
    minor_to_major: Dimensions,
    /// The dimensions that are reduced, where the kernel reduces.
    reduced: Option<Dimensions>,
}

impl IterationSpace {
    fn new(array: &ArrayShape, reduced: Option<&[i64]>) -> IterationSpace {
        let long: Dimensions =
            (0..array.rank() as i64).filter(|&d| array.dimensions[d as usize] != 1).collect();
        let number = |d: &i64| long.binary_search(d).ok().map(|at| at as i64);
        IterationSpace {
            extents: long.iter().map(|&d| array.dimensions[d as usize]).collect(),
            minor_to_major: array.minor_to_major().iter().filter_map(number).collect(),
            reduced: reduced.map(|reduced| reduced.iter().filter_map(number).collect()),
        }
    }

    /// Whether an array has these extents.
    fn is_of(&self, array: &ArrayShape) -> bool {
        let long = array.dimensions.iter().filter(|&&extent| extent != 1);
        long.eq(self.extents.iter())
    }

    /// Whether one loop over elements serves both.
    pub(super) fn agrees_with(&self, other: &IterationSpace) -> bool {
        let reduces_alike = match (&self.reduced, &other.reduced) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        reduces_alike && self.extents == other.extents && self.minor_to_major == other.minor_to_major
    }
}

/// A kernel that is one loop over elements.
#[derive(Clone, Debug)]
struct Loop {
    space: IterationSpace,
    /// The operands that it reads at other indices than the current element's.
    out_of_step: OutOfStep,
}

/// The loop that each kernel is; `None` for kernels that are more than one.
type Loops = SecondaryMap<KernelId, Option<Loop>>;

impl Grouper<'_> {
    /// Merges siblings, for each array that they read. Every reader is compared with a few of those before it: first the
    /// readers of a product with its kernel, since they then read nothing from memory for it.
    pub(super) fn join_siblings(&mut self, computation: ComputationId, siblings: Siblings) {
        let body = &self.module.computations[computation];
        self.needs.look_at(self.module, &body.instructions, self.users, |id| self.positions[id]);
        self.join_in_each(siblings, |this, [a, b]| this.reads_product(a, b) || this.reads_product(b, a));
        self.join_in_each(siblings, |this, pair| pair.iter().any(|kernel| this.is_product(kernel)));
        self.join_in_each(siblings, |_, _| true);
        if self.target.fusion.slices_share {
            self.join_slices();
        }
        for FusionEdge { producer, consumer, verdict } in &mut self.grouping.decisions {
            let kernel = self.grouping.rooted.get(producer);
            if kernel.is_some_and(|kernel| self.kernels_of[*consumer].contains(kernel)) {
                *verdict = Verdict::Together;
            }
        }
    }

    /// Merges the kernels that only slice one array, each by as much.
    fn join_slices(&mut self) {
        let mut alike: FxHashMap<(InstructionId, ShapeId), Vec<KernelId>> = FxHashMap::default();
        for (id, kernel) in self.grouping.kernels.iter() {
            if let [slice] = kernel.members[..]
                && let Op::Slice { dimensions } = &self.module.instructions[slice].op
                && dimensions.iter().all(|of| of.stride == 1)
            {
                let instruction = &self.module.instructions[slice];
                alike.entry((instruction.operands[0], instruction.shape)).or_default().push(id);
            }
        }
        let mut alike: Vec<Vec<KernelId>> = alike.into_values().filter(|kernels| kernels.len() > 1).collect();
        alike.sort_unstable();
        for kernels in alike {
            let ranks = kernels.iter().map(|&kernel| self.rank(&self.grouping.kernels[kernel]));
            let rank = ranks.min().expect("there are two or more");
            let kernel = self.merge(&kernels);
            for root in self.grouping.kernels[kernel].roots.clone() {
                self.ranks[root] = rank;
            }
        }
    }

    /// One round, of some pairs.
    fn join_in_each(&mut self, siblings: Siblings, is_tried: fn(&Self, [&Kernel; 2]) -> bool) {
        // Pairs that read several arrays alike are looked at once, until something is merged.
        let mut refused: FxHashMap<[KernelId; 2], usize> = FxHashMap::default();
        let mut n_merged = 0;
        let mut loops = SecondaryMap::new();
        self.grouping.kernels.iter().for_each(|(id, kernel)| loops[id] = self.loop_of(kernel));
        for readers in self.readers(&loops) {
            let mut recent: Vec<KernelId> = Vec::new();
            for root in readers {
                let mut kernel = self.kernels_of[root][0];
                recent.retain(|&other| other != kernel);
                let mut rank = |&other: &KernelId| {
                    let pair = [other, kernel];
                    if !is_tried(self, pair.map(|kernel| &self.grouping.kernels[kernel]))
                        || refused.get(&pair) == Some(&n_merged)
                    {
                        return None;
                    }
                    let rank = self.rank_together(other, kernel, &loops, siblings);
                    if rank.is_none() {
                        refused.insert(pair, n_merged);
                    }
                    Some((other, rank?))
                };
                if let Some((other, rank)) = recent.iter().rev().find_map(&mut rank) {
                    recent.retain(|&it| it != other);
                    kernel = self.join_sibling(other, kernel, rank);
                    loops[kernel] = self.loop_of(&self.grouping.kernels[kernel]);
                    n_merged += 1;
                }
                recent.push(kernel);
                if recent.len() > self.options.siblings.max_neighbors {
                    recent.remove(0);
                }
            }
        }
    }

    /// For each array with as many elements as its readers iterate over, and each such slice of a larger one: a result of
    /// the kernel that writes it, and one of each kernel that reads it, in the order of the text.
    fn readers(&self, loops: &Loops) -> Vec<Vec<InstructionId>> {
        let mut number: FxHashMap<InstructionId, usize> = FxHashMap::default();
        let mut readers: Vec<Vec<InstructionId>> = Vec::new();
        for (id, kernel) in self.grouping.kernels.iter().rev() {
            let Some(Loop { space, .. }) = &loops[id] else { continue };
            let is_large =
                |id: &InstructionId| self.module.shape(*id).as_array().is_some_and(|a| space.is_of(a));
            let is_slice =
                |id: &&InstructionId| matches!(self.module.instructions[**id].op, Op::Slice { .. });
            let slices = kernel.members.iter().filter(is_slice);
            let mut arrays: SmallVec<[InstructionId; 8]> =
                kernel.operands.iter().chain(&kernel.roots).chain(slices).copied().filter(is_large).collect();
            arrays.sort_unstable();
            for array in arrays {
                let number = *number.entry(array).or_insert(readers.len());
                if number == readers.len() {
                    readers.push(Vec::new());
                }
                readers[number].push(kernel.roots[0]);
            }
        }
        readers
    }

    fn loop_of(&self, kernel: &Kernel) -> Option<Loop> {
        Some(Loop { space: self.space(kernel)?, out_of_step: self.read_out_of_step(kernel) })
    }

    /// The iteration space of a kernel; `None` for kernels that are more than one loop over elements.
    pub(super) fn space(&self, kernel: &Kernel) -> Option<IterationSpace> {
        let is_one_loop = match kernel.hero {
            None => true,
            // With an epilogue, the kernel iterates over the result a second time.
            Some((hero, Hero::Reduction | Hero::Update)) => kernel.roots.contains(&hero),
            Some((_, hero)) => self.adds_up(hero),
        };
        if !is_one_loop || !kernel.held.is_empty() {
            return None;
        }
        let mut spaces = kernel.roots.iter().map(|&root| self.space_of(root));
        let mut space = spaces.next()??;
        for other in spaces {
            let other = other?;
            if !space.agrees_with(&other) {
                return None;
            }
            space.reduced = space.reduced.or(other.reduced);
        }
        Some(space)
    }

    fn space_of(&self, root: InstructionId) -> Option<IterationSpace> {
        let instruction = &self.module.instructions[root];
        let (iterated, reduced) = match &instruction.op {
            Op::Reduce { dimensions } => (instruction.operands[0], Some(dimensions.as_slice())),
            Op::DynamicUpdateSlice => (instruction.operands[1], None),
            _ => match self.classes[root] {
                CostClass::Hero(hero) if !self.adds_up(hero) => return None,
                _ => (root, None),
            },
        };
        Some(IterationSpace::new(self.module.shape(iterated).as_array()?, reduced))
    }

    /// Whether kernels around an operation can reduce its result before they store it.
    fn adds_up(&self, hero: Hero) -> bool {
        match hero {
            Hero::Dot => self.target.fusion.dot.reductions,
            Hero::Convolution => self.target.fusion.convolution.reductions,
            Hero::Reduction | Hero::Update => false,
        }
    }

    /// Whether one kernel can be built around what each of two is built around.
    fn heroes_agree(&self, a: &Kernel, b: &Kernel) -> bool {
        let is_update = |kernel: &Kernel| kernel.roots.iter().any(|&root| self.updated(root).is_some());
        let updates = is_update(a) || is_update(b);
        match (self.is_product(a), self.is_product(b)) {
            (true, true) => false,
            (false, false) => !updates || self.target.fusion.update_shares,
            // The kernel of a product may also compute with the product, but not only move it.
            (is_first, _) => {
                let other = if is_first { b } else { a };
                let is_computed = |&member: &InstructionId| cost::is_pointwise(self.module, member);
                !updates && (other.hero.is_some() || other.members.iter().any(is_computed))
            }
        }
    }

    /// Whether a kernel reads what the kernel of a product makes.
    fn reads_product(&self, reader: &Kernel, product: &Kernel) -> bool {
        self.is_product(product) && product.roots.iter().any(|root| reader.operands.contains(root))
    }

    pub(super) fn is_product(&self, kernel: &Kernel) -> bool {
        matches!(kernel.hero, Some((_, Hero::Dot | Hero::Convolution)))
    }

    /// When two kernels run if they are merged; `None` where they cannot be, or more bytes could be alive.
    fn rank_together(&self, a: KernelId, b: KernelId, loops: &Loops, siblings: Siblings) -> Option<Rank> {
        let [first, second] = [a, b].map(|kernel| &self.grouping.kernels[kernel]);
        let (Some(loop_a), Some(loop_b)) = (&loops[a], &loops[b]) else { return None };
        let is_kept_apart = |kernel: &Kernel, other: &Kernel| {
            kernel
                .roots
                .iter()
                .any(|&root| self.kept_from_readers.contains(root) && other.operands.contains(&root))
        };
        let can_be_one = loop_a.space.agrees_with(&loop_b.space)
            && !is_kept_apart(first, second)
            && !is_kept_apart(second, first)
            && self.heroes_agree(first, second)
            && self.fit_together([a, b])
            && self.read_alike([(first, &loop_a.out_of_step), (second, &loop_b.out_of_step)]);
        if !can_be_one {
            return None;
        }
        let runs_with = |(kernel, out_of_step, other)| {
            self.can_run_with(kernel, out_of_step, other, siblings).then(|| self.rank(other))
        };
        let ways = [(first, &loop_a.out_of_step, second), (second, &loop_b.out_of_step, first)];
        let rank = ways.into_iter().find_map(runs_with)?;
        (!self.certainly_wait([a, b]) && !self.wait_for_each_other(&[a, b], self.options.siblings.max_steps))
            .then_some(rank)
    }

    /// Whether the target has a kernel as large as two together.
    pub(super) fn fit_together(&self, kernels: [KernelId; 2]) -> bool {
        let [a, b] = kernels.map(|kernel| &self.grouping.kernels[kernel]);
        let rules = &self.target.fusion;
        // Common members are counted only if that matters.
        let fits_apart = a.members.len() + b.members.len() <= rules.max_instructions
            && a.operands.len() + b.operands.len() <= rules.max_operands
            && a.roots.len() + b.roots.len() <= rules.max_outputs;
        if fits_apart {
            return true;
        }
        let members = b.members.iter().filter(|member| !a.usages.contains_key(*member));
        let of_a = a.operands.iter().filter(|operand| !b.usages.contains_key(*operand));
        let is_of_a =
            |operand: &InstructionId| a.usages.contains_key(operand) || a.operands.contains(operand);
        let of_b = b.operands.iter().filter(|operand| !is_of_a(operand));
        let roots = a.roots.iter().chain(&b.roots).filter(|root| self.is_read_outside(**root, &kernels));
        a.members.len() + members.count() <= rules.max_instructions
            && of_a.count() + of_b.count() <= rules.max_operands
            && roots.count() <= rules.max_outputs
    }

    /// Whether one of two kernels is known to wait for the other through a third one, without a search.
    pub(super) fn certainly_wait(&self, kernels: [KernelId; 2]) -> bool {
        let [a, b] = kernels.map(|kernel| &self.grouping.kernels[kernel]);
        let is_third = |user: &InstructionId| self.is_computed_outside(*user, &kernels);
        let place = |id: InstructionId| self.positions[id];
        let waits = |waiting: &Kernel, other: &Kernel| {
            let users = other.roots.iter().flat_map(|&root| self.users.of(root));
            let thirds: SmallVec<[InstructionId; 8]> = users.copied().filter(is_third).collect();
            let needs = |operand| {
                thirds.iter().any(|&third| self.needs.whether(place(operand), place(third)) == Some(true))
            };
            let read = waiting.operands.iter().filter(|operand| !other.usages.contains_key(*operand));
            thirds.len() <= self.options.siblings.max_readers && read.copied().any(needs)
        };
        waits(a, b) || waits(b, a)
    }

    fn join_sibling(&mut self, a: KernelId, b: KernelId, rank: Rank) -> KernelId {
        let ranks = [a, b].map(|kernel| self.rank(&self.grouping.kernels[kernel]));
        let kernel = self.merge(&[a.min(b), a.max(b)]);
        let joined = &self.grouping.kernels[kernel];
        joined.roots.iter().for_each(|&root| self.ranks[root] = rank);
        let last_read = &mut self.last_read;
        joined.operands.iter().for_each(|&operand| {
            if ranks.contains(&last_read[operand]) {
                last_read[operand] = rank;
            }
        });
        kernel
    }

    fn rank(&self, kernel: &Kernel) -> Rank {
        self.ranks[kernel.roots[0]]
    }

    /// Whether a kernel can run when another one does with no more bytes alive. This holds under every schedule, except that
    /// other readers of state that the kernel replaces, where they are allowed, are taken to run in the order of the text.
    fn can_run_with(
        &self,
        kernel: &Kernel,
        out_of_step: &OutOfStep,
        other: &Kernel,
        siblings: Siblings,
    ) -> bool {
        let is_shared = |id: &InstructionId| other.operands.contains(id) || other.roots.contains(id);
        let is_last = |id: InstructionId| self.is_read_last_by(id, [kernel, other], siblings);
        let is_there = |&id: &InstructionId| {
            is_shared(&id)
                || self.is_state(id) && is_last(id)
                || self.is_available_early(id)
                || self.waits_for([other, kernel], id, self.options.siblings.max_wait_steps)
        };
        // A compiler for speed lets the kernel of a product also store results that are computed from that product alone.
        let follows = self.goal() == FusionGoal::Kernels
            && self.is_product(other)
            && kernel.hero.is_none()
            && kernel.operands.iter().all(|operand| other.roots.contains(operand));
        // The search for dependencies comes last: it may take long.
        (follows || self.frees_what_it_writes(kernel, out_of_step, other, is_shared, is_last))
            && kernel.operands.iter().all(is_there)
    }

    /// Whether a kernel that runs when another one does writes no more bytes than the two are the last to read.
    fn frees_what_it_writes(
        &self,
        kernel: &Kernel,
        out_of_step: &OutOfStep,
        other: &Kernel,
        is_shared: impl Fn(&InstructionId) -> bool,
        is_last: impl Fn(InstructionId) -> bool,
    ) -> bool {
        let bytes = |id: InstructionId| self.bytes[id];
        let is_out_of_step = |id| out_of_step.iter().any(|&(_, read)| read == id);
        let is_updated = |id| kernel.roots.iter().any(|&root| self.updated(root) == Some(id));
        // The other kernel's results exist only after it has run; an updated array stays.
        let is_freed = |&id: &InstructionId| {
            !is_updated(id) && !other.roots.contains(&id) && is_last(id) && !is_out_of_step(id)
        };
        let operands = || kernel.operands.iter().copied();
        let freed = operands().filter(is_freed).map(|id| self.kept_bytes(id)).fold(0, u64::saturating_add);
        let shared = operands().filter(is_shared).map(bytes).fold(0, u64::saturating_add);
        let is_in_place = |&&root: &&InstructionId| self.updated(root).is_some_and(&is_last);
        let written = kernel.roots.iter().filter(|root| !is_in_place(root));
        let written = written.map(|&root| bytes(root)).fold(0, u64::saturating_add);
        written <= freed.saturating_add(self.options.slack.of(shared))
    }

    /// Whether one of two kernels would be the last to read an instruction if the first ran when the second does. Others may
    /// read it before only if it is state, and updates are merged.
    fn is_read_last_by(&self, id: InstructionId, [kernel, other]: [&Kernel; 2], siblings: Siblings) -> bool {
        let is_state = siblings == Siblings::JoinUpdates && self.is_state(id);
        let is_fine = |reader: &InstructionId| {
            reader == &kernel.roots[0]
                || reader == &other.roots[0]
                || is_state && self.ranks[*reader] > self.rank(other)
        };
        let users = self.users.of(id);
        id != self.root
            && users.len() <= self.options.siblings.max_readers
            && users.iter().all(|user| match &self.kernels_of[*user][..] {
                [] => is_fine(user),
                kernels => kernels.iter().all(|&kernel| is_fine(&self.grouping.kernels[kernel].roots[0])),
            })
    }

    /// Whether an array is state: a parameter, or an element of one.
    fn is_state(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match instruction.op {
            Op::Parameter { .. } => true,
            Op::GetTupleElement { .. } => self.is_state(instruction.operands[0]),
            _ => false,
        }
    }

    /// Whether an instruction can be computed at the beginning and takes next to no bytes from then on: what the caller
    /// keeps, and numbers computed from that, such as the count of steps.
    fn is_available_early(&self, id: InstructionId) -> bool {
        let limits = &self.options.siblings;
        // Without padding: a number is a number, also where it takes a tile of its own.
        let is_number = |id: InstructionId| {
            let bytes = self.module.shape(id).as_array().and_then(|array| array.dense_bytes());
            bytes.is_some_and(|bytes| bytes <= limits.max_early_bytes)
        };
        let mut open: SmallVec<[InstructionId; 8]> = SmallVec::from_iter([id]);
        let mut steps = 0;
        while let Some(id) = open.pop() {
            steps += 1;
            let instruction = &self.module.instructions[id];
            let is_cheap = match self.classes[id] {
                CostClass::Free if self.is_state(id) => match self.keep_bytes[id] == 0 || is_number(id) {
                    true => continue,
                    false => return false,
                },
                class => matches!(class, CostClass::Free | CostClass::Cheap),
            };
            if !is_cheap || !is_number(id) || steps > limits.max_steps {
                return false;
            }
            open.extend(instruction.operands.iter().copied());
        }
        true
    }

    /// The bytes that are free after the last read of an array.
    fn kept_bytes(&self, id: InstructionId) -> u64 {
        match self.classes[id] {
            CostClass::Free => self.keep_bytes[id],
            _ => self.bytes[id],
        }
    }
}
