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
use smallvec::SmallVec;

use super::Grouper;
use kernel::{Candidate, Operation, Place};

/// Most operations of one kernel's code (`GpuHloCostAnalysis::kMaxIRSize`).
const MOST_CODE: u64 = 10_000;

/// Most readers of a producer that is asked about.
const MOST_READERS: usize = 64;

/// The most steps of a search, which take about a second. A step is an operation of a new kernel, or an operand of a producer
/// whose priority is computed. The rest of this module decides about producers that are left then.
const MOST_STEPS: usize = 50_000_000;

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
        while let Some((priority, producer)) = search.queue.pop_last() {
            if priority < 0 || search.steps > MOST_STEPS {
                break;
            }
            search.fuse(producer);
        }
        let mut stored = EntitySet::new();
        let asked = listed.iter().zip(&search.priorities);
        let saves_nothing = asked.filter(|(_, priority)| priority.is_some_and(|priority| priority < 0));
        saves_nothing.for_each(|(&id, _)| _ = stored.insert(id));
        stored
    }
}

struct Search<'s, 'a> {
    grouper: &'s Grouper<'a>,
    rules: &'s KernelTimeRules,
    /// What is known about each operation, by its place in the text, as in the other tables.
    operations: Vec<Operation>,
    kernels: Vec<Option<Candidate>>,
    /// The kernels that read a kernel's result.
    readers: Vec<SmallVec<[Place; 4]>>,
    /// What is asked about, with its priority.
    priorities: Vec<Option<i64>>,
    queue: BTreeSet<(i64, Place)>,
    /// The steps so far.
    steps: usize,
}

impl<'s, 'a> Search<'s, 'a> {
    fn new(grouper: &'s Grouper<'a>, listed: &[InstructionId], rules: &'s KernelTimeRules) -> Search<'s, 'a> {
        let n = listed.len();
        let mut search = Search {
            grouper,
            rules,
            operations: Vec::new(),
            kernels: Vec::with_capacity(n),
            readers: vec![SmallVec::new(); n],
            priorities: vec![None; n],
            queue: BTreeSet::new(),
            steps: 0,
        };
        search.operations = listed.iter().map(|&id| search.operation(id)).collect();
        for (place, &id) in (0..).zip(listed) {
            let kernel = search.is_kernel(id).then(|| search.kernel_of(id));
            let reads = kernel.iter().flat_map(|kernel| kernel.reads.keys());
            reads.for_each(|&read| search.readers[read as usize].push(place));
            search.kernels.push(kernel);
        }
        (0..n as Place).for_each(|place| search.ask(place));
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

    /// Whether all readers of a value could compute it.
    fn may_be_fused(&self, producer: InstructionId) -> bool {
        let grouper = self.grouper;
        let can_compute = |&user: &InstructionId| {
            (self.is_kernel(user) || is_product(grouper, user))
                && !grouper.updated_operands(user).contains(&producer)
        };
        grouper.classes[producer] == CostClass::Cheap
            && producer != grouper.root
            && !grouper.has_control_dependencies(producer)
            && grouper.users.of(producer).iter().all(can_compute)
            && (cost::moves_no_bytes(grouper.module, producer)
                || grouper.may_be_loaded(producer)
                || !is_read_by_product(grouper, producer))
    }

    fn operation_at(&self, place: Place) -> &Operation {
        &self.operations[place as usize]
    }

    fn kernel_at(&self, place: Place) -> &Candidate {
        self.kernels[place as usize].as_ref().expect("what is read or asked about is a kernel")
    }

    /// The kernels that would compute a producer, if all its readers can.
    fn consumers(&self, producer: Place) -> Option<SmallVec<[Place; 4]>> {
        if !self.operation_at(producer).may_be_fused {
            return None;
        }
        // Views that no kernel computes do not compute anything themselves: the value is stored for them as well.
        let readers = self.readers[producer as usize].iter().copied();
        let consumers: SmallVec<[Place; 4]> =
            readers.filter(|&reader| !self.operation_at(reader).is_view).collect();
        (!consumers.is_empty() && consumers.len() <= MOST_READERS).then_some(consumers)
    }

    /// Computes the priority of a producer again.
    fn ask(&mut self, producer: Place) {
        if let Some(before) = self.priorities[producer as usize].take() {
            self.queue.remove(&(before, producer));
        }
        if self.kernels[producer as usize].is_none() {
            return;
        }
        let Some(consumers) = self.consumers(producer) else { return };
        let priority = match self.operation_at(producer).is_view {
            _ if consumers.iter().any(|&consumer| !self.can_be_one(producer, consumer)) => NEVER,
            true => i64::MAX,
            false => (self.saved_seconds(producer, &consumers) * STEPS_PER_SECOND).round() as i64,
        };
        self.priorities[producer as usize] = Some(priority);
        self.queue.insert((priority, producer));
        self.steps += self.kernel_at(producer).reads.len() * consumers.len();
    }

    /// Whether XLA makes one kernel of a producer and a reader: not of two reductions, and not if that is too much code.
    fn can_be_one(&self, producer: Place, consumer: Place) -> bool {
        let [producer, consumer] = [producer, consumer].map(|place| self.kernel_at(place));
        let copies = match consumer.members.len() {
            1 => 1,
            _ => consumer.read_of(producer.root()).map_or(1, |read| read.uses.copies()),
        };
        let code = copies.saturating_mul(producer.code).saturating_add(consumer.code);
        code <= MOST_CODE && !(producer.reduces && consumer.reduces)
    }

    fn saved_seconds(&self, producer: Place, consumers: &[Place]) -> f64 {
        let kernel = self.kernel_at(producer);
        let saved = |&consumer: &Place| {
            let consumer = self.kernel_at(consumer);
            let Some(read) = consumer.read_of(producer) else { return 0.0 };
            let saved = read.saved.get();
            let saved =
                saved.unwrap_or_else(|| consumer.seconds - self.seconds_fused(kernel, consumer, read));
            read.saved.set(Some(saved));
            saved
        };
        kernel.seconds + self.rules.launch + consumers.iter().map(saved).sum::<f64>()
    }

    /// Lets all readers of a producer compute it, and asks again about all that this changes.
    fn fuse(&mut self, producer: Place) {
        self.priorities[producer as usize] = None;
        let Some(consumers) = self.consumers(producer) else { return };
        let kernel = self.kernels[producer as usize].take().expect("only kernels are asked about");
        let mut changed: Vec<Place> = Vec::new();
        for &consumer in &consumers {
            let mut new = self.kernels[consumer as usize].take().expect("readers are kernels");
            self.absorb(&mut new, &kernel);
            self.steps += new.members.len();
            for &read in kernel.reads.keys() {
                let readers = &mut self.readers[read as usize];
                if !readers.contains(&consumer) {
                    readers.push(consumer);
                }
            }
            changed.extend(new.reads.keys().copied().chain([consumer]));
            self.kernels[consumer as usize] = Some(new);
            for &reader in &self.readers[consumer as usize] {
                // A producer that is being fused is out of the table.
                let read = self.kernels[reader as usize].as_ref().and_then(|of| of.read_of(consumer));
                read.into_iter().for_each(|read| read.saved.set(None));
            }
        }
        self.forget_reads(producer, kernel, &consumers);
        changed.sort_unstable();
        changed.dedup();
        changed.into_iter().for_each(|place| self.ask(place));
    }

    /// Removes a producer that these readers compute; it stays where there are others.
    fn forget_reads(&mut self, producer: Place, kernel: Candidate, consumers: &[Place]) {
        let readers = &mut self.readers[producer as usize];
        readers.retain(|reader| !consumers.contains(reader));
        if !readers.is_empty() {
            self.kernels[producer as usize] = Some(kernel);
            return;
        }
        for &read in kernel.reads.keys() {
            self.readers[read as usize].retain(|reader| *reader != producer);
        }
    }
}

fn is_product(grouper: &Grouper<'_>, id: InstructionId) -> bool {
    matches!(grouper.module.instructions[id].op, Op::Dot(_))
}

/// Whether a product reads a value, perhaps in another shape: its kernel takes in the reshape.
fn is_read_by_product(grouper: &Grouper<'_>, id: InstructionId) -> bool {
    grouper.users.of(id).iter().any(|&user| {
        is_product(grouper, user)
            || cost::moves_no_bytes(grouper.module, user) && is_read_by_product(grouper, user)
    })
}
