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
//! leaves through its root. Kernels become one, with several roots, where they hold rows of an expensive result on chip
//! that all of them read ([`by_rows`]), and at the end where one pass over the arrays that they read serves several
//! ([`siblings`]); there it is looked at ([`unite`]).

mod by_rows;
mod bytes;
mod rows;
mod siblings;
mod unite;

use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap, entity_impl};
use memplan_analysis::CallGraph;
use memplan_ir::{
    ArrayShape, ComputationId, Instruction, InstructionId, Module, Op, Opcode, ShapeIndex, Users,
};
use memplan_memory::{ContractionRules, Target};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::report::Verdict;
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
    /// Whether one element may serve several elements of the root.
    reused: bool,
    /// Whether it is only there to feed a dot or convolution.
    feeds: Option<Hero>,
}

impl Need {
    /// Where a kernel needs a member for two reasons.
    fn add(&mut self, other: &Need) {
        self.indexers.extend(other.indexers.iter().copied());
        self.indexers.sort_unstable();
        self.indexers.dedup();
        self.evaluations = self.evaluations.max(other.evaluations);
        self.bijective &= other.bijective;
        self.reused |= other.reused;
        self.feeds = self.feeds.or(other.feeds);
    }
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

/// When an instruction runs, counted backwards: the number of instructions in memory from it to the end of the
/// computation, so that 0 is the end, and more is earlier.
type Rank = u32;

/// Never read as far as is known.
const UNREAD: Rank = Rank::MAX;

/// How often the instructions of a computation may be duplicated, on average. Training steps need about 3.
const MAX_GROWTH: usize = 16;

/// What to do with kernels side by side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Siblings {
    /// Join them where no more bytes can be alive: fewer are moved.
    Join,
    /// Join them also where that depends on the order in which others read what they replace.
    JoinUpdates,
    /// Leave them, since no other bytes are alive.
    Leave,
}

/// Groups the instructions of every computation that has buffers. Close to linear in the number of instructions that
/// come out.
pub(crate) fn group(
    module: &Module,
    graph: &CallGraph,
    target: &Target,
    siblings: Siblings,
) -> Vec<(ComputationId, Grouping)> {
    let users = Users::new(module);
    let mut grouper = Grouper::new(module, target, &users);
    let mut group = |computation| {
        grouper.group(computation);
        if siblings != Siblings::Leave {
            grouper.join_siblings(siblings);
        }
        std::mem::take(&mut grouper.grouping)
    };
    graph.sequential().iter().map(|&computation| (computation, group(computation))).collect()
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
    /// Where kernels with several results stand.
    spans: unite::Spans,
    /// Instructions that others must run after.
    is_awaited: EntitySet<InstructionId>,
    /// Entry parameters, and parts of them, of which the caller gives something up.
    has_given_up: FxHashSet<(u32, ShapeIndex)>,
    /// The result of the computation at hand.
    root: InstructionId,
    /// Instructions of the computation at hand that are in memory so far.
    standing: Rank,
    /// How many instructions of the computation at hand may still be duplicated.
    growth: usize,
}

impl<'a> Grouper<'a> {
    fn new(module: &'a Module, target: &'a Target, users: &'a Users) -> Grouper<'a> {
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
            spans: unite::Spans::default(),
            is_awaited: EntitySet::new(),
            has_given_up: module
                .config
                .given_up()
                .flat_map(|(of, at)| at.prefixes().map(move |at| (of, at)))
                .collect(),
            root: module.computations[module.entry].root,
            standing: 0,
            growth: 0,
        }
    }

    fn group(&mut self, computation: ComputationId) {
        let body = &self.module.computations[computation];
        self.root = body.root;
        self.standing = 0;
        self.spans = unite::Spans::default();
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
    }

    /// Settles one instruction whose users are settled.
    fn decide(&mut self, id: InstructionId) {
        let kernels = self.kernels_that_need(id);
        let needs = self.needs(id, &kernels);
        let verdict = self.verdict(id, &kernels, &needs);
        if matches!(verdict, Verdict::Expensive { .. } | Verdict::Epilogue(_))
            && self.can_walk_rows(id, &kernels).is_some()
        {
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
        let mut kernels: SmallVec<[KernelId; 2]> =
            users.flat_map(|&user| self.kernels_of[user].iter().copied()).collect();
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
            reused: false,
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

    /// At which indices each kernel would need an instruction. One walk over its users, however many kernels they are in.
    fn needs(&self, id: InstructionId, kernels: &[KernelId]) -> Vec<Need> {
        let none =
            Need { indexers: SmallVec::new(), evaluations: 0, bijective: true, reused: false, feeds: None };
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
                need.reused |= of_user.reused || cost::reuses_elements(self.module, user);
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
            if updated_operands(instruction).contains(&id) {
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
                if kernel.hero.is_some()
                    || !need.bijective
                    || need.evaluations > 1
                    || !self.has_epilogue(hero, id)
                    || !self.stores_no_more(id, hero, kernel)
                {
                    return Err(Verdict::Epilogue(opcode));
                }
            }
            _ => {
                let is_twice = count > 1 || need.evaluations > 1 || need.reused;
                let is_for_reduction = kernel.hero.is_some_and(|(hero, kind)| {
                    kind == Hero::Reduction && self.module.instructions[hero].operands.len() == 2
                });
                let is_kept_out = count > 1 && is_for_reduction && !rules.reduce_shares;
                if is_kept_out || is_twice && self.is_expensive(id) {
                    return Err(Verdict::Expensive { opcode, kernels: count });
                }
                if let Some(hero) = need.feeds
                    && !(self.contraction(hero).prologue
                        && fits_prologue(self.module, id)
                        && self.loads_no_more(id, self.contraction(hero))
                        && (!self.contraction(hero).unary_prologue || self.is_unary(id)))
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
        id == top
            || users.clone().all(|user| kernel.needs[user].indexers[..] == [hero])
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

    /// Whether the target's kernels compute an elementwise operation once and for all.
    fn is_expensive(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let opcode = instruction.opcode();
        let width = |id| {
            self.module
                .shape(id)
                .as_array()
                .map(|array| (array.element_type.is_floating(), array.element_type.bits()))
        };
        let rounds = || match (width(id), instruction.operands.first().and_then(|&operand| width(operand))) {
            (Some((true, to)), Some((true, from))) => to < from,
            _ => false,
        };
        self.target.fusion.expensive.contains(&opcode) && (opcode != Opcode::Convert || rounds())
    }

    /// Whether loading what an instruction reads, in place of what it makes, takes about as many bytes.
    fn loads_no_more(&self, id: InstructionId, rules: &ContractionRules) -> bool {
        let bytes = |id| cost::result_bytes(self.module, self.target, id);
        let read = self.operands(id).into_iter().map(bytes).fold(0, u64::saturating_add);
        rules.tolerance.is_none_or(|tolerance| read <= bytes(id).saturating_add(tolerance.0))
    }

    /// Whether an instruction makes its elements of those of a single array, beside smaller ones that are broadcast.
    fn is_unary(&self, id: InstructionId) -> bool {
        let count = |id| self.module.shape(id).as_array().and_then(ArrayShape::element_count).unwrap_or(0);
        let is_large = |operand: &InstructionId| count(*operand) > count(id) / LARGE;
        let looks_up = matches!(self.module.instructions[id].op, Op::Gather(_));
        !looks_up && self.operands(id).iter().filter(|operand| is_large(operand)).count() <= 1
    }

    /// Whether a kernel writes about as many bytes as the product that it is built around has.
    fn stores_no_more(&self, id: InstructionId, hero: Hero, kernel: &Kernel) -> bool {
        let bytes = |id| cost::result_bytes(self.module, self.target, id);
        let is_product = matches!(hero, Hero::Dot | Hero::Convolution);
        let tolerance = self.contraction(hero).tolerance.filter(|_| is_product);
        let stored = kernel.roots.iter().map(|&root| bytes(root)).fold(0, u64::saturating_add);
        tolerance.is_none_or(|tolerance| stored <= bytes(id).saturating_add(tolerance.0))
    }

    /// The operands of an instruction, each once.
    fn operands(&self, id: InstructionId) -> SmallVec<[InstructionId; 4]> {
        let mut operands: SmallVec<[InstructionId; 4]> = self.arrays_read(id).collect();
        operands.sort_unstable();
        operands.dedup();
        operands
    }
}

/// The part of a result that an operand has to exceed to count beside others.
const LARGE: u64 = 8;

/// The operands that an instruction writes over.
fn updated_operands(instruction: &Instruction) -> &[InstructionId] {
    match &instruction.op {
        Op::DynamicUpdateSlice => &instruction.operands[..1],
        Op::Scatter(_) => &instruction.operands[..instruction.operands.len() / 2],
        _ => &[],
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
                sizes.all(|(d, (size, extent))| {
                    size == extent || numbers.collapsed_slice_dims.contains(&(d as i64))
                })
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
