//! Which values are stored because their readers would take longer if they computed them.
//!
//! XLA's GPU compiler begins with a kernel for each operation. It knows for each producer how many seconds all its readers
//! save if they compute it themselves, and fuses the producer that saves most into all of them, until no other one saves
//! anything (`PriorityFusion`). This is that search, with XLA's model of time ([`time`]). Producers that cannot be fused at
//! all are not asked about: the rest of this module decides about them.
//!
//! ```text
//!   s = f32[n] add(x, y)             1. m saves most: it is fused into r, which reads s then
//!   m = f32[n] multiply(s, s)        2. s saves: one array written and two read, for two arrays read twice
//!   r = f32[] reduce(m)
//!   t = f32[n] tanh(s)               three readers that each read x and y would take longer: s would be stored
//! ```
//!
//! XLA logs each priority with its times: a dump of the pass `priority-fusion` contains `priority_fusion_dump.txt`. The times
//! of this module differ from those by 2 % at most, in the programs that were compared.

mod kernel;
mod time;

use std::collections::BTreeSet;

use cranelift_entity::EntitySet;
use memplan_ir::{InstructionId, Op};
use memplan_memory::KernelTimeRules;
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Grouper;
use super::limits::updated_operands;
use kernel::{Candidate, Operation, merged};

/// Most operations of one kernel's code (`GpuHloCostAnalysis::kMaxIRSize`).
const MOST_CODE: u64 = 10_000;

/// Most readers of a producer that is asked about.
const MOST_READERS: usize = 64;

/// Most steps of a search, a second of work: operations of new kernels, and pairs of operands. What it has not asked about by
/// then, others decide.
const MOST_STEPS: usize = 50_000_000;

/// Pairs of operands that are compared in the time of an operation.
const PAIRS_PER_STEP: usize = 8;

/// Priorities are whole numbers of these per second, as in XLA.
const STEPS_PER_SECOND: f64 = 4e9;

/// The priority of a producer that cannot be fused.
const NEVER: i64 = i64::MIN;

impl Grouper<'_> {
    /// The values of a computation that are stored although all their readers could compute them.
    pub(super) fn stored_for_time(
        &self,
        listed: &[InstructionId],
        rules: &KernelTimeRules,
    ) -> EntitySet<InstructionId> {
        let mut search = Search::new(self, listed, rules);
        while let Some((priority, _, producer)) = search.queue.pop_last() {
            if priority < 0 || search.steps > MOST_STEPS {
                break;
            }
            search.fuse(producer);
        }
        let mut stored = EntitySet::new();
        let saves_nothing = search.priorities.iter().filter(|&(_, &priority)| priority < 0);
        saves_nothing.for_each(|(&id, _)| _ = stored.insert(id));
        stored
    }
}

struct Search<'s, 'a> {
    grouper: &'s Grouper<'a>,
    rules: &'s KernelTimeRules,
    /// What is known about each operation, by its position in the text.
    operations: Vec<Operation>,
    kernels: FxHashMap<InstructionId, Candidate>,
    /// The kernels that read a kernel's result.
    readers: FxHashMap<InstructionId, Vec<InstructionId>>,
    /// What is asked about, with its priority.
    priorities: FxHashMap<InstructionId, i64>,
    /// By priority, then by position in the text.
    queue: BTreeSet<(i64, u32, InstructionId)>,
    /// Operations of new kernels, and pairs of operands, so far.
    steps: usize,
}

impl<'s, 'a> Search<'s, 'a> {
    fn new(grouper: &'s Grouper<'a>, listed: &[InstructionId], rules: &'s KernelTimeRules) -> Search<'s, 'a> {
        let mut search = Search {
            grouper,
            rules,
            operations: Vec::new(),
            kernels: FxHashMap::default(),
            readers: FxHashMap::default(),
            priorities: FxHashMap::default(),
            queue: BTreeSet::new(),
            steps: 0,
        };
        search.operations = listed.iter().map(|&id| search.operation(id)).collect();
        for &id in listed {
            if search.is_kernel(id) {
                let kernel = search.kernel_of(id);
                kernel.reads.iter().for_each(|read| search.readers.entry(read.id).or_default().push(id));
                search.kernels.insert(id, kernel);
            }
        }
        listed.iter().for_each(|&id| search.ask(id));
        search
    }

    /// Whether an operation is a kernel of loops, to begin with.
    fn is_kernel(&self, id: InstructionId) -> bool {
        let is_of_loops = match self.grouper.classes[id] {
            CostClass::Cheap => true,
            CostClass::Hero(hero) => matches!(hero, Hero::Reduction | Hero::Update),
            CostClass::Free | CostClass::Opaque => false,
        };
        is_of_loops && !cost::is_embedded(self.grouper.module, self.grouper.target, id)
    }

    fn is_view(&self, id: InstructionId) -> bool {
        cost::moves_no_bytes(self.grouper.module, id)
    }

    fn op(&self, id: InstructionId) -> &Op {
        &self.grouper.module.instructions[id].op
    }

    /// The kernels that would compute a producer, if all its readers can.
    fn consumers(&self, producer: InstructionId) -> Option<SmallVec<[InstructionId; 4]>> {
        let grouper = self.grouper;
        let is_product = |user: InstructionId| matches!(self.op(user), Op::Dot(_));
        let is_loaded = |user: InstructionId| is_product(user) && grouper.may_be_loaded(producer);
        let can_compute = |&user: &InstructionId| {
            (self.is_kernel(user) || is_loaded(user))
                && !updated_operands(&grouper.module.instructions[user]).contains(&producer)
        };
        if grouper.classes[producer] != CostClass::Cheap
            || producer == grouper.root
            || grouper.has_control_dependencies(producer)
            || !grouper.users.of(producer).iter().all(can_compute)
        {
            return None;
        }
        // Views that no kernel computes do not compute anything themselves: the value is stored for them as well.
        let readers = self.readers.get(&producer)?.iter().copied();
        let consumers: SmallVec<[InstructionId; 4]> =
            readers.filter(|&reader| !self.is_view(reader)).collect();
        (!consumers.is_empty() && consumers.len() <= MOST_READERS).then_some(consumers)
    }

    /// Computes the priority of a producer again.
    fn ask(&mut self, producer: InstructionId) {
        let position = self.grouper.positions[producer];
        if let Some(before) = self.priorities.remove(&producer) {
            self.queue.remove(&(before, position, producer));
        }
        if !self.kernels.contains_key(&producer) {
            return;
        }
        let Some(consumers) = self.consumers(producer) else { return };
        let priority = match self.is_view(producer) {
            _ if consumers.iter().any(|&consumer| !self.can_be_one(producer, consumer)) => NEVER,
            true => i64::MAX,
            false => (self.saved_seconds(producer, &consumers) * STEPS_PER_SECOND).round() as i64,
        };
        self.priorities.insert(producer, priority);
        self.queue.insert((priority, position, producer));
        let n_reads = |kernel: InstructionId| self.kernels[&kernel].reads.len();
        let pairs = n_reads(producer) * consumers.iter().map(|&consumer| n_reads(consumer)).sum::<usize>();
        self.steps += pairs / PAIRS_PER_STEP;
    }

    /// Whether XLA makes one kernel of a producer and a reader: not of two reductions, and not if that is too much code.
    fn can_be_one(&self, producer: InstructionId, consumer: InstructionId) -> bool {
        let [producer, consumer] = [producer, consumer].map(|id| &self.kernels[&id]);
        let copies = match consumer.members.len() {
            1 => 1,
            _ => consumer.read_of(producer.root()).map_or(1, |read| read.copies),
        };
        let code = copies.saturating_mul(producer.code).saturating_add(consumer.code);
        code <= MOST_CODE && !(producer.reduces && consumer.reduces)
    }

    fn saved_seconds(&self, producer: InstructionId, consumers: &[InstructionId]) -> f64 {
        let kernel = &self.kernels[&producer];
        let saved = |consumer: &InstructionId| {
            let consumer = &self.kernels[consumer];
            consumer.seconds - self.seconds_fused(kernel, consumer)
        };
        kernel.seconds + self.rules.launch + consumers.iter().map(saved).sum::<f64>()
    }

    /// Lets all readers of a producer compute it, and asks again about all that this changes.
    fn fuse(&mut self, producer: InstructionId) {
        self.priorities.remove(&producer);
        let Some(consumers) = self.consumers(producer) else { return };
        let kernel = self.kernels.remove(&producer).expect("only kernels are asked about");
        let mut changed: BTreeSet<(u32, InstructionId)> = BTreeSet::new();
        for &consumer in &consumers {
            let old = self.kernels.remove(&consumer).expect("readers are kernels");
            let new = self.analyze(merged(old.members, &kernel));
            self.steps += new.members.len();
            for read in &new.reads {
                let readers = self.readers.entry(read.id).or_default();
                if !readers.contains(&consumer) {
                    readers.push(consumer);
                }
            }
            let touched = new.reads.iter().map(|read| read.id).chain([consumer]);
            changed.extend(touched.map(|id| (self.grouper.positions[id], id)));
            self.kernels.insert(consumer, new);
        }
        self.forget_reads(producer, kernel, &consumers);
        changed.into_iter().for_each(|(_, id)| self.ask(id));
    }

    /// Removes a producer that these readers compute; it stays where there are others.
    fn forget_reads(&mut self, producer: InstructionId, kernel: Candidate, consumers: &[InstructionId]) {
        let readers = self.readers.get_mut(&producer).expect("it has readers");
        readers.retain(|reader| !consumers.contains(reader));
        if !readers.is_empty() {
            self.kernels.insert(producer, kernel);
            return;
        }
        self.readers.remove(&producer);
        for read in &kernel.reads {
            let readers = self.readers.get_mut(&read.id).expect("the producer reads it");
            readers.retain(|reader| *reader != producer);
        }
    }
}
