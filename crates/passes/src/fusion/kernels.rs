//! Deciding which instructions share a kernel.
//!
//! A computation is walked from its last instruction to its first. When an instruction's turn comes, its users are
//! settled, so the kernels that would have to compute it are known. Either all of them do, and the array need not
//! exist, or it *stands*: it is in memory, the root of a kernel of its own. There is no edge on which only some users
//! fuse, since the array would be in memory all the same.
//!
//! ```text
//!   d = dot(a, b)        epilogue of k1, whose root is t
//!   m = multiply(d, s)   in k1
//!   t = tanh(m)          stands: the root of k1, read by k2 and by the result
//!   e = exponential(t)   in k2 and k3: cheap, recomputed
//!   r = reduce(e)        stands: the root of k2
//!   u = divide(e, ..)    stands: the root of k3
//! ```
//!
//! Since a producer joins all its consumers or none, no kernel ever waits for itself: every path out of a kernel
//! leaves through its root.

use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap, entity_impl};
use memplan_analysis::CallGraph;
use memplan_ir::{ArrayShape, ComputationId, InstructionId, Module, Op, Opcode, Users};
use memplan_memory::{Bytes, ContractionRules, Target};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::report::Verdict;
use super::rows;
use crate::cost::{self, CostClass, Hero};

/// A kernel of one computation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KernelId(u32);
entity_impl!(KernelId, "kernel");

/// Instructions that are computed together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    /// The instructions whose results are written to memory, last in the text first.
    pub(super) roots: SmallVec<[InstructionId; 1]>,
    /// All instructions, users before operands.
    pub(crate) members: Vec<InstructionId>,
    /// Expensive results that are held on chip, row by row.
    held: SmallVec<[InstructionId; 2]>,
    /// The expensive operation, if there is one.
    pub(super) hero: Option<(InstructionId, Hero)>,
    /// What the members read that is not among them.
    operands: FxHashSet<InstructionId>,
    /// At which indices each member is needed.
    needs: FxHashMap<InstructionId, Need>,
}

/// At which indices a kernel needs a member.
#[derive(Clone, Debug)]
struct Need {
    /// The members whose access makes the indices: the root, and whatever is not pointwise on the way here.
    indexers: SmallVec<[InstructionId; 2]>,
    /// How many different indices there are for one element of the root.
    evaluations: usize,
    /// Whether each element of the root needs one element, and each a different one.
    bijective: bool,
    /// Whether it is only there to feed a dot or convolution.
    feeds: Option<Hero>,
}

/// The kernels of one computation, and why.
#[derive(Debug, Default)]
pub(crate) struct Grouping {
    /// By the order in which they were begun: last in the text first.
    pub(crate) kernels: PrimaryMap<KernelId, Kernel>,
    /// Reshapes and transposes outside kernels that are only views of their operands.
    pub(crate) views: FxHashSet<InstructionId>,
    /// What was decided about each edge.
    pub(super) decisions: Vec<(InstructionId, InstructionId, Verdict)>,
    /// The kernel of each root.
    rooted: FxHashMap<InstructionId, KernelId>,
    /// Instructions inside kernels, roots excluded.
    inside: FxHashSet<InstructionId>,
}

impl Grouping {
    /// The kernel that writes an instruction's result.
    pub(crate) fn kernel_rooted_at(&self, id: InstructionId) -> Option<&Kernel> {
        self.rooted.get(&id).map(|&kernel| &self.kernels[kernel])
    }

    /// Whether an instruction is a view.
    pub(crate) fn is_view(&self, id: InstructionId) -> bool {
        self.views.contains(&id)
    }

    /// Whether an instruction's result is in memory, as bytes of its own or another's.
    pub(crate) fn stands(&self, id: InstructionId) -> bool {
        !self.inside.contains(&id) && !self.is_view(id)
    }
}

/// How far the instructions that stand may have moved from their operands: the number of instructions in memory that
/// were counted when they were decided, so 0 is the end of the computation.
type Rank = u32;

/// Never read as far as is known.
const UNREAD: Rank = Rank::MAX;

/// How often the instructions of a computation may be duplicated, on average. Training steps need about 3.
const MAX_GROWTH: usize = 16;

/// How far below an instruction its sources are looked for anew. Broadcast, reshape and convert come in threes.
const MAX_DEPTH: usize = 3;

/// Most kernels that become one because they read the same rows. Attention has three: maximum, sum and product.
const MAX_MERGED: usize = 6;

/// Most dots in one kernel: fused attention has two, and so have fused perceptrons.
const MAX_DOTS: usize = 2;

/// Most edges that are followed to see whether kernels wait for each other.
const MAX_STEPS: usize = 4096;

/// Groups the instructions of every computation that has buffers. Close to linear in the number of instructions that
/// come out.
pub(crate) fn group(module: &Module, graph: &CallGraph, target: &Target) -> Vec<(ComputationId, Grouping)> {
    let users = Users::new(module);
    let mut grouper = Grouper::new(module, target, &users);
    graph.sequential().iter().map(|&computation| (computation, grouper.group(computation))).collect()
}

struct Grouper<'a> {
    module: &'a Module,
    target: &'a Target,
    users: &'a Users,
    grouping: Grouping,
    /// The kernels that compute an instruction.
    kernels_of: SecondaryMap<InstructionId, SmallVec<[KernelId; 2]>>,
    /// When a standing instruction runs; for others, the last time that something is read through them.
    ranks: SecondaryMap<InstructionId, Rank>,
    /// The last time that an instruction is read, as far as is decided.
    last_read: SecondaryMap<InstructionId, Rank>,
    /// What keeping an instruction available takes: its own bytes, or less where it can be recomputed from less.
    sources: SecondaryMap<InstructionId, u64>,
    /// Where each instruction stands in its computation.
    positions: SecondaryMap<InstructionId, u32>,
    /// Instructions that others must run after.
    is_awaited: EntitySet<InstructionId>,
    /// Entry parameters that the caller lets the program overwrite.
    is_given_up: FxHashSet<u32>,
    /// The result of the computation at hand.
    root: InstructionId,
    /// Instructions of the computation at hand that are in memory so far.
    standing: Rank,
    /// How many instructions of the computation at hand may still be duplicated.
    growth: usize,
}

impl<'a> Grouper<'a> {
    fn new(module: &'a Module, target: &'a Target, users: &'a Users) -> Grouper<'a> {
        let config = &module.config;
        let aliased = config.input_output_alias.iter().map(|alias| alias.parameter);
        Grouper {
            module,
            target,
            users,
            grouping: Grouping::default(),
            kernels_of: SecondaryMap::new(),
            ranks: SecondaryMap::with_default(UNREAD),
            last_read: SecondaryMap::with_default(UNREAD),
            sources: SecondaryMap::new(),
            positions: SecondaryMap::new(),
            is_awaited: EntitySet::new(),
            is_given_up: aliased.chain(config.buffer_donors.iter().map(|donor| donor.parameter)).collect(),
            root: module.computations[module.entry].root,
            standing: 0,
            growth: 0,
        }
    }

    fn group(&mut self, computation: ComputationId) -> Grouping {
        let body = &self.module.computations[computation];
        self.root = body.root;
        self.standing = 0;
        self.growth = MAX_GROWTH.saturating_mul(body.instructions.len());
        for (position, &id) in body.instructions.iter().enumerate() {
            self.positions[id] = position as u32;
            self.sources[id] = self.source_bytes(id);
            let awaited = &self.module.instructions[id].control_predecessors;
            awaited.iter().for_each(|&before| _ = self.is_awaited.insert(before));
        }
        for &id in body.instructions.iter().rev() {
            self.decide(id);
        }
        std::mem::take(&mut self.grouping)
    }

    /// What it takes to keep an instruction available: its own bytes; for what is cheap, the bytes of what it can be
    /// recomputed from, where that is less; nothing for parameters that the caller keeps anyway.
    fn source_bytes(&self, id: InstructionId) -> u64 {
        let instruction = &self.module.instructions[id];
        let own = cost::result_bytes(self.module, self.target, id);
        match (cost::class_of(self.module, id), &instruction.op) {
            (CostClass::Cheap, _) => {
                self.operands(id).iter().map(|&operand| self.sources[operand]).fold(0, u64::saturating_add).min(own)
            }
            (_, Op::GetTupleElement { .. } | Op::Bitcast) => own.min(self.sources[instruction.operands[0]]),
            (_, Op::Parameter { number })
                if instruction.parent == self.module.entry && !self.is_given_up.contains(number) =>
            {
                0
            }
            _ => own,
        }
    }

    /// Settles one instruction whose users are settled.
    fn decide(&mut self, id: InstructionId) {
        let kernels = self.kernels_that_need(id);
        let needs = self.needs(id, &kernels);
        let verdict = self.verdict(id, &kernels, &needs);
        if matches!(verdict, Verdict::Expensive { .. } | Verdict::Epilogue(_)) && self.check_rows(id, &kernels).is_some() {
            self.join_by_rows(id, &kernels);
            self.note(id, Verdict::Fused { kernels: 1 });
            self.settle(id, self.last_read[id]);
            return;
        }
        self.note(id, verdict);
        let rank = match verdict {
            Verdict::Fused { .. } => {
                kernels.iter().zip(needs).for_each(|(&kernel, need)| self.join(id, kernel, need));
                self.growth -= kernels.len() - 1;
                self.kernels_of[id] = kernels;
                self.grouping.inside.insert(id);
                self.last_read[id]
            }
            Verdict::View => {
                self.grouping.views.insert(id);
                self.last_read[id]
            }
            _ => self.stand(id),
        };
        self.settle(id, rank);
    }

    /// Notes what was decided about an instruction and each of its users.
    fn note(&mut self, id: InstructionId, verdict: Verdict) {
        // That parameters and the like are in memory is nobody's decision.
        if cost::class_of(self.module, id) != CostClass::Free {
            let users = self.users.of(id).iter();
            self.grouping.decisions.extend(users.map(|&user| (id, user, verdict)));
        }
    }

    /// Says when an instruction runs, and so reads its operands.
    fn settle(&mut self, id: InstructionId, rank: Rank) {
        self.ranks[id] = rank;
        for &operand in &self.module.instructions[id].operands {
            self.last_read[operand] = self.last_read[operand].min(rank);
        }
    }

    /// The kernels of all users, in order.
    fn kernels_that_need(&self, id: InstructionId) -> SmallVec<[KernelId; 2]> {
        let users = self.users.of(id).iter();
        let mut kernels: SmallVec<[KernelId; 2]> = users.flat_map(|&user| self.kernels_of[user].iter().copied()).collect();
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }

    /// Leaves an instruction where it is. Says when it runs.
    fn stand(&mut self, id: InstructionId) -> Rank {
        let class = cost::class_of(self.module, id);
        // What moves no bytes runs whenever its users do; the result of the computation is needed at its end.
        if class == CostClass::Free {
            return if id == self.root { 0 } else { self.last_read[id] };
        }
        self.standing += 1;
        if self.has_control(id) {
            return self.standing;
        }
        let hero = match class {
            CostClass::Hero(hero) => Some((id, hero)),
            CostClass::Cheap => None,
            CostClass::Free | CostClass::Opaque => return self.standing,
        };
        let need = Need {
            indexers: SmallVec::from_iter([id]),
            evaluations: 1,
            bijective: true,
            feeds: None,
        };
        let kernel = self.grouping.kernels.push(Kernel {
            roots: SmallVec::from_iter([id]),
            members: vec![id],
            held: SmallVec::new(),
            hero,
            operands: self.arrays_read(id).collect(),
            needs: FxHashMap::from_iter([(id, need)]),
        });
        self.kernels_of[id] = SmallVec::from_iter([kernel]);
        self.grouping.rooted.insert(id, kernel);
        self.standing
    }

    /// Adds an instruction to a kernel that needs it.
    fn join(&mut self, id: InstructionId, kernel: KernelId, need: Need) {
        let reads: SmallVec<[InstructionId; 4]> = self.arrays_read(id).collect();
        let kernel = &mut self.grouping.kernels[kernel];
        kernel.operands.remove(&id);
        kernel.operands.extend(reads);
        kernel.members.push(id);
        kernel.needs.insert(id, need);
        if let CostClass::Hero(hero) = cost::class_of(self.module, id) {
            kernel.hero = Some((id, hero));
        }
    }

    /// The operands of an instruction that a kernel would have to get from memory.
    fn arrays_read(&self, id: InstructionId) -> impl Iterator<Item = InstructionId> + 'a {
        let (module, target) = (self.module, self.target);
        let operands = module.instructions[id].operands.iter().copied();
        operands.filter(move |&operand| !cost::is_embedded(module, target, operand))
    }

    /// Whether the kernels that need an expensive result can be one that walks over blocks of its rows, holding each
    /// block on chip. Fusing them must save more than their own results take, or it is not worth the constraint.
    fn check_rows(&self, id: InstructionId, kernels: &[KernelId]) -> Option<()> {
        let rules = &self.target.fusion;
        let is_walked = match &self.module.instructions[id].op {
            Op::Dot(_) => rules.dot.prologue && rules.dot.epilogue,
            Op::Reduce { .. } => true,
            _ => false,
        };
        if !is_walked || kernels.len() > MAX_MERGED || self.check_consumers(id).is_err() || self.check_producer(id).is_err() {
            return None;
        }
        let group: SmallVec<[&Kernel; 4]> = kernels.iter().map(|&kernel| &self.grouping.kernels[kernel]).collect();
        if group.iter().any(|kernel| matches!(kernel.hero, Some((_, Hero::Update | Hero::Convolution)))) {
            return None;
        }
        let merged = self.merged(kernels);
        let n_members = merged.members.len() + 1;
        if n_members > rules.max_instructions || merged.operands.len() > rules.max_operands || merged.roots.len() > rules.max_outputs {
            return None;
        }
        let bytes = |id: &InstructionId| cost::result_bytes(self.module, self.target, *id);
        let dependents: Vec<InstructionId> = merged.members.iter().rev().copied().collect();
        let is_dot = |member: &&InstructionId| matches!(self.module.instructions[**member].op, Op::Dot(_));
        let n_dots = dependents.iter().chain([&id]).filter(is_dot).count();
        // One walk serves everything that is expensive or written, so all of it must be made from the rows below.
        let expensive = dependents.iter().filter(|&&member| matches!(cost::class_of(self.module, member), CostClass::Hero(_)));
        let all_of: Vec<InstructionId> = merged.roots.iter().chain(expensive).copied().collect();
        let rows = rows::rows(self.module, id, &dependents, &all_of)?;
        let held = merged.held.iter().chain([&id]).map(bytes).fold(0, u64::saturating_add);
        let block = if n_dots > 0 { rules.rows_per_block } else { 1 };
        if n_dots > MAX_DOTS || (held / rows).saturating_mul(block) > rules.row_block_bytes.0 {
            return None;
        }
        let results = merged.roots.iter().map(bytes).fold(0, u64::saturating_add);
        (bytes(&id) >= results && !self.wait_for_each_other(kernels)).then_some(())
    }

    /// Makes one kernel of several, and adds the expensive instruction that all of them need.
    fn join_by_rows(&mut self, id: InstructionId, kernels: &[KernelId]) {
        let merged = self.merged(kernels);
        let into = kernels[0];
        for root in kernels.iter().flat_map(|&kernel| self.grouping.kernels[kernel].roots.clone()) {
            self.grouping.rooted.remove(&root);
            if !merged.roots.contains(&root) {
                self.grouping.inside.insert(root);
            }
        }
        for &root in &merged.roots {
            self.grouping.rooted.insert(root, into);
        }
        for &member in &merged.members {
            let of = &mut self.kernels_of[member];
            of.retain(|kernel| !kernels.contains(kernel));
            of.push(into);
            of.sort_unstable();
        }
        for &kernel in kernels {
            self.grouping.kernels[kernel] = Kernel::default();
        }
        self.grouping.kernels[into] = merged;
        // A block of its rows is computed once, however it is read.
        let need = Need { indexers: SmallVec::from_iter([id]), evaluations: 1, bijective: false, feeds: None };
        self.join(id, into, need);
        self.grouping.kernels[into].held.push(id);
        self.kernels_of[id] = SmallVec::from_iter([into]);
        self.grouping.inside.insert(id);
    }

    /// Several kernels as one. What only they read of each other is not written to memory.
    fn merged(&self, kernels: &[KernelId]) -> Kernel {
        let [first, rest @ ..] = kernels else { unreachable!("an instruction with a verdict about kernels has some") };
        let mut merged = self.grouping.kernels[*first].clone();
        for kernel in rest.iter().map(|&kernel| &self.grouping.kernels[kernel]) {
            merged.roots.extend(kernel.roots.iter().copied());
            merged.members.extend(kernel.members.iter().copied().filter(|member| !merged.needs.contains_key(member)));
            merged.needs.extend(kernel.members.iter().map(|member| (*member, kernel.needs[member].clone())));
            merged.operands.extend(kernel.operands.iter().copied());
            merged.held.extend(kernel.held.iter().copied());
            merged.hero = merged.hero.or(kernel.hero);
        }
        merged.members.sort_unstable_by_key(|&member| std::cmp::Reverse(self.positions[member]));
        merged.roots.sort_unstable_by_key(|&root| std::cmp::Reverse(self.positions[root]));
        merged.operands.retain(|operand| !merged.needs.contains_key(operand));
        let is_read_outside = |root: &InstructionId| {
            let users = self.users.of(*root);
            users.is_empty() || *root == self.root
                || users.iter().any(|&user| {
                    let of = &self.kernels_of[user];
                    of.is_empty() || of.iter().any(|kernel| !kernels.contains(kernel))
                })
        };
        merged.roots = merged.roots.iter().copied().filter(is_read_outside).collect();
        merged
    }

    /// Whether a way out of one of these kernels leads, through others, back into one of them. Long ways count as such.
    fn wait_for_each_other(&self, kernels: &[KernelId]) -> bool {
        let roots = |kernel: KernelId| self.grouping.kernels[kernel].roots.iter().copied();
        let mut open: Vec<InstructionId> = kernels.iter().flat_map(|&kernel| roots(kernel)).collect();
        let last = open.iter().map(|&root| self.positions[root]).max().unwrap_or(0);
        let mut seen: FxHashSet<InstructionId> = open.iter().copied().collect();
        let mut is_outside: FxHashSet<InstructionId> = FxHashSet::default();
        let mut steps = 0;
        while let Some(id) = open.pop() {
            for &user in self.users.of(id) {
                steps += 1;
                if steps > MAX_STEPS {
                    return true;
                }
                let of = &self.kernels_of[user];
                let goes_in = of.iter().any(|kernel| kernels.contains(kernel));
                if goes_in && is_outside.contains(&id) {
                    return true;
                }
                // What is read by a kernel comes out at its roots; anything else at itself.
                let exits: SmallVec<[InstructionId; 2]> = match of.is_empty() {
                    true => SmallVec::from_iter([user]),
                    false => of.iter().filter(|kernel| !kernels.contains(kernel)).flat_map(|&kernel| roots(kernel)).collect(),
                };
                for exit in exits {
                    // Later than all of them, except through another kernel with several results, which ends later still.
                    if self.positions[exit] < last || self.has_several_roots(exit) {
                        is_outside.insert(exit);
                        if seen.insert(exit) {
                            open.push(exit);
                        }
                    }
                }
            }
        }
        false
    }

    fn has_several_roots(&self, id: InstructionId) -> bool {
        self.grouping.kernel_rooted_at(id).is_some_and(|kernel| kernel.roots.len() > 1)
    }

    /// At which indices each kernel would need an instruction. One walk over its users, however many kernels they are in.
    fn needs(&self, id: InstructionId, kernels: &[KernelId]) -> Vec<Need> {
        let none = Need { indexers: SmallVec::new(), evaluations: 0, bijective: true, feeds: None };
        let mut needs = vec![none; kernels.len()];
        for &user in self.users.of(id) {
            let is_pointwise = cost::is_pointwise(self.module, user);
            let is_bijective = cost::is_bijective(self.module, user);
            let feeds = match cost::class_of(self.module, user) {
                CostClass::Hero(hero @ (Hero::Dot | Hero::Convolution)) => Some(hero),
                _ => None,
            };
            for kernel in &self.kernels_of[user] {
                let at = kernels.binary_search(kernel).expect("these are the kernels of all users");
                let (need, of_user) = (&mut needs[at], &self.grouping.kernels[*kernel].needs[&user]);
                match is_pointwise {
                    true => need.indexers.extend(of_user.indexers.iter().copied()),
                    false => need.indexers.push(user),
                }
                need.bijective &= of_user.bijective && is_bijective;
                need.feeds = need.feeds.or(of_user.feeds).or(feeds);
            }
        }
        for (need, &kernel) in needs.iter_mut().zip(kernels) {
            need.indexers.sort_unstable();
            need.indexers.dedup();
            let of = &self.grouping.kernels[kernel].needs;
            need.evaluations = need.indexers.iter().map(|indexer| of[indexer].evaluations).sum();
        }
        needs
    }

    /// Whether an instruction goes into the kernels that need it; the first reason why not.
    fn verdict(&self, id: InstructionId, kernels: &[KernelId], needs: &[Need]) -> Verdict {
        let check = || -> Result<(), Verdict> {
            let class = self.check_producer(id)?;
            self.check_consumers(id)?;
            if class == CostClass::Cheap && self.is_better_as_view(id, kernels) {
                return Err(Verdict::View);
            }
            for (&kernel, need) in kernels.iter().zip(needs) {
                self.check_kernel(id, class, kernel, need, kernels.len())?;
            }
            self.check_cost(id, kernels)
        };
        let is_view = || cost::moves_no_bytes(self.module, id) && id != self.root && !self.has_control(id);
        match check() {
            Ok(()) => Verdict::Fused { kernels: kernels.len() },
            Err(_) if is_view() => Verdict::View,
            Err(reason) => reason,
        }
    }

    /// Whether the operation fits into kernels at all.
    fn check_producer(&self, id: InstructionId) -> Result<CostClass, Verdict> {
        let class = cost::class_of(self.module, id);
        if matches!(class, CostClass::Free | CostClass::Opaque) {
            return Err(Verdict::Producer(self.module.instructions[id].opcode()));
        }
        if id == self.root {
            return Err(Verdict::Result);
        }
        if self.has_control(id) {
            return Err(Verdict::Control);
        }
        Ok(class)
    }

    /// Whether every user is in a kernel, and reads the value in a way that kernels can.
    fn check_consumers(&self, id: InstructionId) -> Result<(), Verdict> {
        let users = self.users.of(id);
        if users.is_empty() {
            return Err(Verdict::Result);
        }
        for &user in users {
            let instruction = &self.module.instructions[user];
            let opcode = instruction.opcode();
            if self.kernels_of[user].is_empty() {
                return Err(Verdict::Consumer(opcode));
            }
            let updated = match &instruction.op {
                Op::DynamicUpdateSlice => &instruction.operands[..1],
                Op::Scatter(_) => &instruction.operands[..instruction.operands.len() / 2],
                _ => &[],
            };
            if updated.contains(&id) {
                return Err(Verdict::UpdatedInPlace(opcode));
            }
        }
        Ok(())
    }

    fn has_control(&self, id: InstructionId) -> bool {
        !self.module.instructions[id].control_predecessors.is_empty() || self.is_awaited.contains(id)
    }

    /// Whether a reshape or transpose that moves no bytes is better left out: its operand is in memory anyway.
    fn is_better_as_view(&self, id: InstructionId, kernels: &[KernelId]) -> bool {
        if !cost::moves_no_bytes(self.module, id) {
            return false;
        }
        let operand = self.module.instructions[id].operands[0];
        match cost::class_of(self.module, operand) {
            CostClass::Cheap => false,
            CostClass::Free | CostClass::Opaque => !cost::is_embedded(self.module, self.target, operand),
            // Only a kernel without a hero can take it in, and only all its users together.
            CostClass::Hero(_) => {
                self.users.of(operand).len() > 1
                    || kernels.len() > 1
                    || self.grouping.kernels[kernels[0]].hero.is_some()
            }
        }
    }

    /// Whether one kernel has room for an instruction, and the target a code generator for the result.
    fn check_kernel(
        &self,
        id: InstructionId,
        class: CostClass,
        at: KernelId,
        need: &Need,
        count: usize,
    ) -> Result<(), Verdict> {
        let rules = &self.target.fusion;
        let kernel = &self.grouping.kernels[at];
        let opcode = self.module.instructions[id].opcode();
        match class {
            CostClass::Hero(hero) => {
                if count > 1 {
                    return Err(Verdict::Expensive { opcode, kernels: count });
                }
                if kernel.hero.is_some() || !need.bijective || need.evaluations > 1 || !self.has_epilogue(hero, id) {
                    return Err(Verdict::Epilogue(opcode));
                }
            }
            _ => {
                if let Some(hero) = need.feeds
                    && !(self.contraction(hero).prologue && fits_prologue(self.module, id))
                {
                    let (hero, _) = kernel.hero.expect("what feeds a hero is in its kernel");
                    return Err(Verdict::Prologue(self.module.instructions[hero].opcode()));
                }
            }
        }
        if kernel.members.len() >= rules.max_instructions {
            return Err(Verdict::Instructions { limit: rules.max_instructions });
        }
        if need.evaluations > rules.max_evaluations {
            return Err(Verdict::Evaluations { evaluations: need.evaluations });
        }
        let new = self.arrays_read(id).filter(|operand| !kernel.operands.contains(operand)).count();
        let operands = kernel.operands.len() + new - usize::from(kernel.operands.contains(&id));
        if operands > rules.max_operands {
            return Err(Verdict::Operands { operands });
        }
        self.check_in_place(id, kernel)
    }

    /// What is written in place may be read by nothing else in the kernel, but at the very place that is written.
    fn check_in_place(&self, id: InstructionId, kernel: &Kernel) -> Result<(), Verdict> {
        let Some((hero, Hero::Update)) = kernel.hero else { return Ok(()) };
        let update = &self.module.instructions[hero];
        let n_updated = match update.op {
            Op::Scatter(_) => update.operands.len() / 2,
            _ => 1,
        };
        let instruction = &self.module.instructions[id];
        let reads_updated =
            instruction.operands.iter().any(|operand| update.operands[..n_updated].contains(operand));
        let is_same_slice = || match (&update.op, &instruction.op) {
            (Op::DynamicUpdateSlice, Op::DynamicSlice { .. }) => {
                let written = self.module.shape(update.operands[1]);
                instruction.operands[1..] == update.operands[2..]
                    && self.module.shape(id).same_ignoring_layout(written)
                    && self.need_is_pointwise_to(id, update.operands[1], kernel)
            }
            _ => false,
        };
        if reads_updated && !is_same_slice() { Err(Verdict::InPlaceHazard) } else { Ok(()) }
    }

    /// Whether all users of an instruction in a kernel are pointwise up to `top`, which is one of them or itself.
    fn need_is_pointwise_to(&self, id: InstructionId, top: InstructionId, kernel: &Kernel) -> bool {
        let (hero, _) = kernel.hero.expect("asked about a kernel with an update");
        let users = self.users.of(id).iter().filter(|user| kernel.needs.contains_key(user));
        id == top || users.clone().all(|user| kernel.needs[user].indexers[..] == [hero])
            && users.clone().all(|&user| cost::is_pointwise(self.module, user))
    }

    fn contraction(&self, hero: Hero) -> &ContractionRules {
        match hero {
            Hero::Convolution => &self.target.fusion.convolution,
            _ => &self.target.fusion.dot,
        }
    }

    fn has_epilogue(&self, hero: Hero, id: InstructionId) -> bool {
        match hero {
            Hero::Dot | Hero::Convolution => self.contraction(hero).epilogue,
            Hero::Reduction => {
                let is_reduce = matches!(self.module.instructions[id].op, Op::Reduce { .. });
                self.target.fusion.reduce_epilogue && is_reduce && !self.module.shape(id).is_tuple()
            }
            Hero::Update => false,
        }
    }

    /// Whether fewer bytes live in memory, and not many more are moved.
    fn check_cost(&self, id: InstructionId, kernels: &[KernelId]) -> Result<(), Verdict> {
        let saved = cost::result_bytes(self.module, self.target, id);
        let first_reader = kernels.iter().map(|&k| self.ranks[self.grouping.kernels[k].roots[0]]).max();
        // Nothing else runs between it and its only reader, so its operands stay no longer than they would for itself.
        if kernels.len() == 1 && first_reader == Some(self.standing) {
            return Ok(());
        }
        if kernels.len() > self.growth {
            return Err(Verdict::CodeSize);
        }
        let until = self.last_read[id];
        let operands = self.operands(id);
        let extended = operands.iter().map(|&o| self.extension(o, until, MAX_DEPTH)).fold(0, u64::saturating_add);
        // A little more, such as a value for each row, is worth a kernel less.
        if extended > saved.saturating_add(saved / 16) {
            return Err(Verdict::KeepsMore { extended: Bytes(extended), saved: Bytes(saved) });
        }
        // Where nothing is saved, nothing may be spent either. The operands are in memory then for others, too.
        let ratio = if extended >= saved { 1.0 } else { self.target.fusion.max_traffic_ratio };
        self.check_traffic(id, kernels, ratio)
    }

    /// What it takes to keep an instruction available until `until`: nothing if it is there anyway; its own bytes, or
    /// those of what it is cheaply made from.
    fn extension(&self, id: InstructionId, until: Rank, depth: usize) -> u64 {
        if self.last_read[id] <= until {
            return 0;
        }
        if depth == 0 || cost::class_of(self.module, id) != CostClass::Cheap {
            return self.sources[id];
        }
        let operands = self.operands(id);
        let below = operands.iter().map(|&operand| self.extension(operand, until, depth - 1));
        below.fold(0, u64::saturating_add).min(self.sources[id])
    }

    fn check_traffic(&self, id: InstructionId, kernels: &[KernelId], ratio: f64) -> Result<(), Verdict> {
        if kernels.len() == 1 {
            return Ok(());
        }
        let size = cost::result_bytes(self.module, self.target, id);
        let elements = self.module.shape(id).as_array().and_then(|array| array.element_count()).unwrap_or(0);
        // A slice or gather reads no more elements than it makes, however large its operand is.
        let read = |operand: InstructionId| {
            let array = self.module.shape(operand).as_array();
            let width = array.map_or(0, |array| u64::from(array.element_type.byte_width()));
            elements.saturating_mul(width).min(cost::result_bytes(self.module, self.target, operand))
        };
        let operands = self.operands(id);
        let once = operands.iter().map(|&operand| read(operand)).fold(0, u64::saturating_add);
        let mut moved: u64 = 0;
        for &kernel in kernels {
            let kernel = &self.grouping.kernels[kernel];
            for &operand in operands.iter().filter(|operand| !kernel.operands.contains(operand)) {
                moved = moved.saturating_add(read(operand));
            }
        }
        let through_memory = once.saturating_add(size.saturating_mul(1 + kernels.len() as u64));
        let limit = (through_memory as f64 * ratio) as u64;
        if moved > limit {
            return Err(Verdict::MovesMore { moved: Bytes(moved), limit: Bytes(limit) });
        }
        Ok(())
    }

    /// The operands of an instruction, each once.
    fn operands(&self, id: InstructionId) -> SmallVec<[InstructionId; 4]> {
        let mut operands: SmallVec<[InstructionId; 4]> = self.arrays_read(id).collect();
        operands.sort_unstable();
        operands.dedup();
        operands
    }
}

/// Whether the loader of a dot or convolution can apply an operation. It walks its operand tile by tile, so it can
/// look up which row to load (as kernels for mixtures of experts and sparse convolutions do), but not every element.
fn fits_prologue(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::Reverse { .. } => false,
        Op::Gather(numbers) => {
            let operand = module.shape(instruction.operands[0]).as_array();
            let is_whole = |operand: &ArrayShape| {
                let mut sizes = numbers.slice_sizes.iter().zip(&operand.dimensions).enumerate();
                sizes.all(|(d, (size, extent))| size == extent || numbers.collapsed_slice_dims.contains(&(d as i64)))
            };
            numbers.start_index_map.len() == 1 && operand.is_some_and(is_whole)
        }
        _ => true,
    }
}

/// For tests and reports: the opcode of what a kernel is built around.
impl Kernel {
    /// The opcode that names the kernel: its hero's, or its root's.
    pub(super) fn opcode(&self, module: &Module) -> Opcode {
        let named = self.hero.map_or(self.roots[0], |(hero, _)| hero);
        module.instructions[named].opcode()
    }
}
