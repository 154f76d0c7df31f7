//! Decides which instructions share a kernel.
//!
//! A computation is visited from its last instruction to its first. By then, the users of an instruction are assigned
//! to kernels. Either all of these kernels compute the instruction, so that its array need not exist, or it is
//! *materialized*: a kernel with this instruction as its root writes it to memory. A producer is never fused with only
//! some users, since its array would exist anyway.
//!
//! ```text
//!   d = dot(a, b)        epilogue of k1, whose root is t
//!   m = multiply(d, s)   in k1
//!   t = tanh(m)          materialized: the root of k1, read by k2 and by the result
//!   e = exponential(t)   in k2 and k3: cheap, computed twice
//!   r = reduce(e)        materialized: the root of k2
//!   u = divide(e, ..)    materialized: the root of k3
//! ```
//!
//! At the end, the narrowest value between two kernels becomes the one that is stored ([`epilogues`]).
//!
//! Since a producer joins the kernels of all its users or none, no kernel waits for itself: every path out of a kernel
//! leaves through its root. Merged kernels have several roots. Kernels are merged if one kernel can keep rows of an
//! expensive result on chip that all of them read ([`row_tiles`]), and at the end if one pass over common operands
//! serves several ([`siblings`]); only these merges need a search for cycles ([`merge`]).

mod bytes;
mod chains;
mod copies;
mod ended;
mod epilogues;
mod in_step;
mod kernel;
mod limits;
mod merge;
mod multi_output;
mod needs;
mod priority;
mod reductions;
mod row_dimensions;
mod row_tiles;
mod siblings;
mod stored_scores;
mod strides;

use cranelift_entity::{EntitySet, SecondaryMap};
use memplan_ir::{ComputationId, InstructionId, Module, Opcode, ShapeIndex, Users};
use memplan_memory::{FusionGoal, Target};
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::FusionOptions;
use super::report::{FusionEdge, Verdict};
use chains::Chains;
use kernel::Usage;
pub use kernel::{Grouping, Kernel, KernelId};

/// When an instruction runs, counted from the end of its computation in materialized instructions: 0 is the end, and a
/// larger rank is earlier.
type Rank = u32;

/// The rank of the last read of values without known reads.
const UNREAD: Rank = Rank::MAX;

/// Whether kernels that read the same arrays are merged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Siblings {
    /// If no schedule can have more live bytes: move fewer bytes.
    Join,
    /// Also where that depends on when others read the arrays that the kernels replace.
    JoinUpdates,
    /// Never. The peak is the same without, so that estimates of it need not look.
    Leave,
}

/// The kernels of computations, in their order, without changing the module. `explain` keeps the decision about each edge.
///
/// Requires inlined calls, and computations that have buffers: not those of fusions and reductions. Close to linear in the
/// number of instructions that come out.
pub fn group(
    module: &Module,
    computations: &[ComputationId],
    target: &Target,
    siblings: Siblings,
    explain: bool,
    options: &FusionOptions,
) -> Vec<(ComputationId, Grouping)> {
    let users = Users::new(module);
    let mut grouper = Grouper::new(module, target, &users, explain, options);
    let mut group = |computation| {
        grouper.group(computation);
        match (siblings, &target.fusion.multi_output) {
            (Siblings::Leave, _) => {}
            (Siblings::JoinUpdates, Some(rules)) => grouper.make_several_results(computation, rules),
            _ => grouper.join_siblings(computation, siblings),
        }
        std::mem::take(&mut grouper.grouping)
    };
    computations.iter().map(|&computation| (computation, group(computation))).collect()
}

struct Grouper<'a> {
    module: &'a Module,
    target: &'a Target,
    users: &'a Users,
    /// Whether to keep every decision.
    explain: bool,
    options: &'a FusionOptions,
    grouping: Grouping,
    /// The kernels that compute an instruction.
    kernels_of: SecondaryMap<InstructionId, SmallVec<[KernelId; 2]>>,
    /// When a materialized instruction runs; for others, the last time that something is read through them.
    ranks: SecondaryMap<InstructionId, Rank>,
    /// The last time that an instruction is read, as far as is decided.
    last_read: SecondaryMap<InstructionId, Rank>,
    /// The bytes that stay alive to keep an instruction available: its own, or fewer where it can be recomputed from less.
    keep_bytes: SecondaryMap<InstructionId, u64>,
    /// How the instructions of the computation at hand relate to kernels.
    classes: SecondaryMap<InstructionId, CostClass>,
    /// The bytes of their results.
    bytes: SecondaryMap<InstructionId, u64>,
    /// The place of each instruction in the text of its computation.
    positions: SecondaryMap<InstructionId, u32>,
    /// The parts of the text that kernels with several results span.
    spans: merge::Spans,
    /// The dependencies of the current computation.
    needs: needs::Needs,
    /// Results of gathers that no other kernel computes: their readers load them from memory.
    kept_from_readers: EntitySet<InstructionId>,
    /// Values whose kernel would read an array across its rows.
    reads_across: EntitySet<InstructionId>,
    /// Values that kernels of products find in memory, since computing them would pad an array.
    pads: EntitySet<InstructionId>,
    /// Values that are stored because that takes less time.
    stored_for_time: EntitySet<InstructionId>,
    /// Values that are stored because that moves fewer bytes, and why.
    stored_for_traffic: FxHashMap<InstructionId, Verdict>,
    /// Instructions that others must run after.
    is_control_predecessor: EntitySet<InstructionId>,
    /// Entry parameters, and parts of them, of which the caller gives something up.
    has_given_up: FxHashSet<(u32, ShapeIndex)>,
    /// The result of the computation at hand.
    root: InstructionId,
    /// Instructions of the computation at hand that have been materialized so far.
    n_materialized: Rank,
    /// How many instructions of the computation at hand may still be duplicated.
    duplication_budget: usize,
}

impl<'a> Grouper<'a> {
    fn new(
        module: &'a Module,
        target: &'a Target,
        users: &'a Users,
        explain: bool,
        options: &'a FusionOptions,
    ) -> Grouper<'a> {
        let mut grouper = Grouper {
            module,
            target,
            users,
            explain,
            options,
            grouping: Grouping::default(),
            kernels_of: SecondaryMap::new(),
            ranks: SecondaryMap::with_default(UNREAD),
            last_read: SecondaryMap::with_default(UNREAD),
            keep_bytes: SecondaryMap::new(),
            classes: SecondaryMap::with_default(CostClass::Opaque),
            bytes: SecondaryMap::new(),
            positions: SecondaryMap::new(),
            spans: merge::Spans::default(),
            needs: needs::Needs::default(),
            kept_from_readers: EntitySet::new(),
            reads_across: EntitySet::new(),
            pads: EntitySet::new(),
            stored_for_time: EntitySet::new(),
            stored_for_traffic: FxHashMap::default(),
            is_control_predecessor: EntitySet::new(),
            has_given_up: module
                .config
                .given_up()
                .flat_map(|(of, at)| at.prefixes().map(move |at| (of, at)))
                .collect(),
            root: module.computations[module.entry].root,
            n_materialized: 0,
            duplication_budget: 0,
        };
        let n = module.instructions.len();
        grouper.kernels_of.resize(n);
        grouper.ranks.resize(n);
        grouper.last_read.resize(n);
        grouper.keep_bytes.resize(n);
        grouper.classes.resize(n);
        grouper.bytes.resize(n);
        grouper.positions.resize(n);
        grouper
    }

    fn group(&mut self, computation: ComputationId) {
        let body = &self.module.computations[computation];
        self.root = body.root;
        self.n_materialized = 0;
        self.spans = merge::Spans::default();
        self.duplication_budget = self.options.max_duplication.saturating_mul(body.instructions.len());
        self.grouping.inside.reserve(body.instructions.len());
        for (position, &id) in body.instructions.iter().enumerate() {
            self.positions[id] = position as u32;
            self.classes[id] = self.class_of(id);
            self.bytes[id] = cost::result_bytes(self.module, self.target, id);
            self.keep_bytes[id] = self.bytes_to_keep(id);
            if self.does_read_across(id) {
                self.reads_across.insert(id);
            }
            if !self.target.fusion.pad_prologue && self.does_pad(id) {
                self.pads.insert(id);
            }
            let predecessors = &self.module.instructions[id].control_predecessors;
            predecessors.iter().for_each(|&before| _ = self.is_control_predecessor.insert(before));
        }
        if let Some(rules) = &self.target.fusion.time
            && self.goal() == FusionGoal::Kernels
        {
            self.stored_for_time = self.stored_for_time(&body.instructions, rules);
        }
        if self.target.fusion.chains_first && self.goal() == FusionGoal::Kernels {
            self.stored_for_traffic = Chains::new(self, &body.instructions).stored();
        }
        for &id in body.instructions.iter().rev() {
            self.decide(id);
        }
        let rules = &self.target.fusion;
        if self.goal() == FusionGoal::Memory || rules.dot.nested || rules.reduction_threads > 0 {
            self.store_narrow();
        }
    }

    fn goal(&self) -> FusionGoal {
        self.options.goal.unwrap_or(self.target.fusion.goal)
    }

    /// Decides about one instruction, whose users have been decided.
    fn decide(&mut self, id: InstructionId) {
        let kernels = self.kernels_of_users(id);
        let usages = self.usages(id, &kernels);
        let verdict = self.verdict(id, &kernels, &usages);
        if matches!(verdict, Verdict::Expensive { .. } | Verdict::Epilogue(_))
            && self.can_tile_rows(id, &kernels)
        {
            self.merge_over_rows(id, &kernels);
            self.note(id, Verdict::Fused { kernels: 1 });
            self.record_reads(id, self.last_read[id]);
            return;
        }
        self.note(id, verdict);
        if matches!(verdict, Verdict::Producer(Opcode::Gather)) {
            self.kept_from_readers.insert(id);
        }
        let rank = match verdict {
            Verdict::Fused { .. } => {
                kernels.iter().zip(usages).for_each(|(&kernel, usage)| self.join(id, kernel, usage));
                self.duplication_budget -= kernels.len() - 1;
                self.kernels_of[id] = kernels;
                self.grouping.inside.insert(id);
                self.last_read[id]
            }
            Verdict::View => {
                self.grouping.views.insert(id);
                self.last_read[id]
            }
            _ => {
                let rank = self.materialize(id);
                self.load_in_products(id, &kernels, usages);
                rank
            }
        };
        self.record_reads(id, rank);
    }

    /// Lets kernels of products compute their operands although these are stored for others: XLA forms those of Triton first.
    fn load_in_products(&mut self, id: InstructionId, kernels: &[KernelId], usages: SmallVec<[Usage; 2]>) {
        let is_asked = self.target.fusion.dot.by_strides
            && !self.kernels_of[id].is_empty()
            && cost::is_pointwise(self.module, id)
            && usages.iter().any(|usage| usage.feeds == Some(Hero::Dot));
        if !is_asked || self.follows_product(id) {
            return;
        }
        for (&kernel, usage) in kernels.iter().zip(usages) {
            let is_loaded = usage.feeds == Some(Hero::Dot)
                && self
                    .check_kernel(id, CostClass::Cheap, &[kernel], std::slice::from_ref(&usage), 0)
                    .is_ok();
            if is_loaded {
                self.join(id, kernel, usage);
                self.kernels_of[id].push(kernel);
            }
        }
    }

    /// Keeps the decision about an instruction and each of its users.
    fn note(&mut self, id: InstructionId, verdict: Verdict) {
        // Parameters and the like are in memory without anybody deciding so.
        if self.explain && self.classes[id] != CostClass::Free {
            let users = self.users.of(id).iter();
            self.grouping.decisions.extend(users.map(|&user| FusionEdge {
                producer: id,
                consumer: user,
                verdict,
            }));
        }
    }

    /// Records when an instruction runs, and with that when its operands are read.
    fn record_reads(&mut self, id: InstructionId, rank: Rank) {
        self.ranks[id] = rank;
        for &operand in &self.module.instructions[id].operands {
            self.last_read[operand] = self.last_read[operand].min(rank);
        }
    }

    /// The kernels of all users, in order.
    fn kernels_of_users(&self, id: InstructionId) -> SmallVec<[KernelId; 2]> {
        let users = self.users.of(id).iter();
        let mut kernels: SmallVec<[KernelId; 2]> =
            users.flat_map(|&user| self.kernels_of[user].iter().copied()).collect();
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }

    /// Keeps an instruction out of the kernels of its users. Returns when it runs.
    fn materialize(&mut self, id: InstructionId) -> Rank {
        let class = self.classes[id];
        // An instruction that moves no bytes runs whenever its users do; the result of the computation is needed at its
        // end.
        if class == CostClass::Free {
            return if id == self.root { 0 } else { self.last_read[id] };
        }
        self.n_materialized += 1;
        if self.has_control_dependencies(id) {
            return self.n_materialized;
        }
        let hero = match class {
            CostClass::Hero(hero) => Some((id, hero)),
            CostClass::Cheap => None,
            CostClass::Free | CostClass::Opaque => return self.n_materialized,
        };
        let kernel = self.grouping.kernels.push(Kernel {
            roots: SmallVec::from_iter([id]),
            members: vec![id],
            held: SmallVec::new(),
            hero,
            operands: self.arrays_read(id).collect(),
            usages: FxHashMap::from_iter([(id, Usage::of_root(id))]),
        });
        self.kernels_of[id] = SmallVec::from_iter([kernel]);
        self.grouping.rooted.insert(id, kernel);
        self.n_materialized
    }

    /// Adds an instruction to a kernel of one of its users.
    fn join(&mut self, id: InstructionId, kernel: KernelId, usage: Usage) {
        let reads: SmallVec<[InstructionId; 4]> = self.arrays_read(id).collect();
        let kernel = &mut self.grouping.kernels[kernel];
        kernel.operands.remove(&id);
        kernel.operands.extend(reads);
        kernel.members.push(id);
        kernel.usages.insert(id, usage);
        if let CostClass::Hero(hero) = self.classes[id] {
            // A product that another one computes for itself is not what the kernel is built around.
            let is_nested = matches!(kernel.hero, Some((_, Hero::Dot | Hero::Convolution)));
            kernel.hero = kernel.hero.filter(|_| is_nested).or(Some((id, hero)));
        }
    }

    /// The operands of an instruction that a kernel would read from memory.
    fn arrays_read(&self, id: InstructionId) -> impl Iterator<Item = InstructionId> + 'a {
        let (module, target) = (self.module, self.target);
        let operands = module.instructions[id].operands.iter().copied();
        operands.filter(move |&operand| !cost::is_embedded(module, target, operand))
    }

    /// The operands of an instruction that a kernel would read from memory, each once.
    fn distinct_arrays_read(&self, id: InstructionId) -> SmallVec<[InstructionId; 4]> {
        let mut operands: SmallVec<[InstructionId; 4]> = self.arrays_read(id).collect();
        operands.sort_unstable();
        operands.dedup();
        operands
    }

    /// How each kernel would use an instruction. One pass over its users, however many kernels they are in.
    fn usages(&self, id: InstructionId, kernels: &[KernelId]) -> SmallVec<[Usage; 2]> {
        let mut usages: SmallVec<[Usage; 2]> = SmallVec::from_elem(Usage::none(), kernels.len());
        for &user in self.users.of(id) {
            for kernel in &self.kernels_of[user] {
                let at = kernels.binary_search(kernel).expect("these are the kernels of all users");
                self.add_use(&mut usages[at], user, &self.grouping.kernels[*kernel]);
            }
        }
        for (usage, &kernel) in usages.iter_mut().zip(kernels) {
            usage.count(&self.grouping.kernels[kernel]);
        }
        usages
    }

    /// How one kernel uses an instruction.
    fn usage_in(&self, id: InstructionId, kernel: &Kernel) -> Usage {
        let mut usage = Usage::none();
        for &user in self.users.of(id).iter().filter(|user| kernel.usages.contains_key(user)) {
            self.add_use(&mut usage, user, kernel);
        }
        usage.count(kernel);
        usage
    }

    /// Adds what one member of a kernel does with its operands.
    fn add_use(&self, usage: &mut Usage, user: InstructionId, kernel: &Kernel) {
        let of_user = &kernel.usages[&user];
        let feeds = match self.classes[user] {
            CostClass::Hero(hero @ (Hero::Dot | Hero::Convolution)) => Some(hero),
            _ => None,
        };
        match cost::is_pointwise(self.module, user) {
            true => usage.indexers.extend(of_user.indexers.iter().copied()),
            false => usage.indexers.push(user),
        }
        usage.bijective &= of_user.bijective && cost::is_bijective(self.module, user);
        usage.reused |= of_user.reused || cost::reuses_elements(self.module, user);
        usage.feeds = usage.feeds.or(of_user.feeds).or(feeds);
    }
}
