//! Runs a module on several devices that exchange arrays.
//!
//! Each device is a thread with its own executor. At a collective it gives its operands to the [`Exchange`] and waits
//! for the other devices of its group; then it computes its results from all of them, in the order of the group. So
//! results do not depend on the scheduling of threads.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use memplan_ir::{
    Collective, CollectiveGroupMode, EntityRef, InstructionId, Literal, Module, Op, ReplicaGroups, Schedule,
};
use memplan_memory::MemoryPlan;
use rustc_hash::FxHashMap;

use crate::arena::Arena;
use crate::collective::{self, Operands};
use crate::execute::{Executor, Storage};
use crate::memory::Memory;
use crate::{Error, Options, with_meaningful_layouts};

/// Threads that a run may start.
const MAX_DEVICES: usize = 256;

/// How many devices a module runs on. Device `r * partitions + p` is partition `p` of replica `r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    /// Copies of the program.
    pub replicas: usize,
    /// Parts of each copy.
    pub partitions: usize,
}

impl Devices {
    /// As many as the module says; one where it says nothing.
    pub fn of(module: &Module) -> Devices {
        let count = |n: Option<i64>| n.and_then(|n| usize::try_from(n).ok()).map_or(1, |n| n.max(1));
        Devices {
            replicas: count(module.config.replica_count),
            partitions: count(module.config.num_partitions),
        }
    }

    /// Replicas times partitions.
    pub fn count(self) -> usize {
        self.replicas.saturating_mul(self.partitions)
    }
}

/// The result of the entry computation on each device, from the inputs of each device, in order. Every value has a
/// buffer of its own, as in [`evaluate`](crate::evaluate); the memory limit holds for all devices together.
///
/// # Errors
/// As [`evaluate`](crate::evaluate), of the first device that fails; when inputs are not given for every device, when
/// there are more than 256, and when devices wait for each other for ever.
pub fn evaluate_on(
    module: &Module,
    devices: Devices,
    inputs: &[Vec<Literal>],
    options: &Options,
) -> Result<Vec<Literal>, Error> {
    let module = &*with_meaningful_layouts(module);
    let storage = |_: &mut Memory| Ok(Storage::Separate);
    run_on(module, &Schedule::default(), devices, inputs, options, &storage)
}

/// As [`evaluate_on`], each device inside a memory of its own, which is that of the plan.
///
/// # Errors
/// As [`evaluate_on`], and when the plan is wrong.
pub fn run_in_arena_on(
    module: &Module,
    schedule: &Schedule,
    plan: &MemoryPlan,
    devices: Devices,
    inputs: &[Vec<Literal>],
    options: &Options,
) -> Result<Vec<Literal>, Error> {
    let storage = |memory: &mut Memory| Arena::new(plan, memory).map(Storage::Arena);
    run_on(module, schedule, devices, inputs, options, &storage)
}

fn run_on<'m>(
    module: &'m Module,
    schedule: &'m Schedule,
    devices: Devices,
    inputs: &[Vec<Literal>],
    options: &Options,
    storage: &(dyn Fn(&mut Memory) -> Result<Storage<'m>, Error> + Sync),
) -> Result<Vec<Literal>, Error> {
    let expected = devices.count();
    if inputs.len() != expected || expected > MAX_DEVICES || expected == 0 {
        return Err(Error::Devices { given: inputs.len(), expected, limit: MAX_DEVICES });
    }
    let exchange = &Exchange::new(expected);
    // Alone, a device has no one to exchange with, and collectives are kernels.
    let others = (expected > 1).then_some(exchange);
    let limit = options.memory_limit / expected;
    let run = |number: usize| {
        let mut memory = Memory::new(limit, options.seed);
        let result = storage(&mut memory).and_then(|storage| {
            let mut executor = Executor::new(module, schedule, storage, memory);
            executor.custom_calls = options.custom_calls.clone();
            executor.device = Device { devices, number, exchange: others, rounds: FxHashMap::default() };
            crate::run(&mut executor, &inputs[number])
        });
        exchange.leave();
        result
    };
    let results: Vec<Result<Literal, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..expected).map(|number| scope.spawn(move || run(number))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    // That others wait in vain for a device that failed is not the cause.
    let (mut stuck, mut failed, mut found) = (None, None, Vec::new());
    for result in results {
        match result {
            Ok(literal) => found.push(literal),
            Err(error @ Error::Deadlock(_)) => _ = stuck.get_or_insert(error),
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    failed.or(stuck).map_or(Ok(found), Err)
}

/// Which device an executor is.
pub(crate) struct Device<'m> {
    devices: Devices,
    number: usize,
    /// `None` when there is only this one.
    exchange: Option<&'m Exchange>,
    /// How often each collective has run.
    rounds: FxHashMap<InstructionId, u64>,
}

impl Device<'_> {
    /// The only device.
    pub(crate) fn alone() -> Self {
        let devices = Devices { replicas: 1, partitions: 1 };
        Device { devices, number: 0, exchange: None, rounds: FxHashMap::default() }
    }

    pub(crate) fn replica(&self) -> usize {
        self.number / self.devices.partitions
    }

    pub(crate) fn partition(&self) -> usize {
        self.number % self.devices.partitions
    }

    /// Whether an operation depends on which device this is, or on others. Alone, most collectives are kernels.
    pub(crate) fn runs(&self, op: &Op) -> bool {
        match op {
            Op::RaggedAllToAll(_) => true,
            Op::ReplicaId | Op::PartitionId => self.exchange.is_some(),
            op => self.exchange.is_some() && op.collective().is_some(),
        }
    }

    /// The results of a collective on this device, after all others have reached it.
    pub(crate) fn exchange(
        &mut self,
        module: &Module,
        id: InstructionId,
        operands: Operands,
    ) -> Result<Vec<Literal>, Error> {
        let op = &module.instructions[id].op;
        let number =
            |n: usize| Literal::array(memplan_ir::ElementType::U32, [], (n as u32).to_le_bytes().to_vec());
        let collective = match (op, op.collective()) {
            (Op::ReplicaId, _) => return Ok(vec![number(self.replica())]),
            (Op::PartitionId, _) => return Ok(vec![number(self.partition())]),
            (_, Some(collective)) => collective,
            _ => return Err(Error::unsupported(module, id, "it does not exchange arrays")),
        };
        let Some(exchange) = self.exchange else { return collective::results(module, id, &[operands], 0) };
        let group = self.group(module, id, collective)?;
        let Some(own) = group.iter().position(|&d| d == self.number) else {
            return match op {
                Op::CollectiveBroadcast(_) => Ok(collective::zeros(&operands)),
                _ => Err(Error::unsupported(module, id, "this device is in none of its groups")),
            };
        };
        let round = self.rounds.entry(id).or_default();
        *round += 1;
        let meeting = MeetingKey { instruction: id.index(), round: *round, first: group[0] };
        let name = &module.instructions[id].name;
        let mut given = exchange.meet(meeting, group.len(), own, operands).ok_or_else(|| {
            Error::Deadlock(format!("device {} waits at {name} for others that never come", self.number))
        })?;
        if !matches!(op, Op::CollectivePermute(_) | Op::CollectivePermuteStart(_)) {
            return collective::results(module, id, &given, own);
        }
        if !collective.slice_sizes.is_empty() {
            return Err(Error::unsupported(module, id, "it permutes slices in place"));
        }
        let source = collective.source_target_pairs.iter().find(|pair| pair.1 == own as i64);
        Ok(match source.and_then(|pair| usize::try_from(pair.0).ok()).filter(|&s| s < given.len()) {
            Some(source) => given.swap_remove(source),
            None => collective::zeros(&given[own]),
        })
    }

    /// The devices that this one exchanges with, in the order of the group; none where no group has it.
    fn group(&self, module: &Module, id: InstructionId, c: &Collective) -> Result<Vec<usize>, Error> {
        use CollectiveGroupMode::*;
        let Devices { replicas, partitions } = self.devices;
        let mode = c.group_mode(module.instructions[id].op.opcode());
        let (own, n) = match mode {
            CrossReplica | CrossReplicaAndPartition => (self.replica(), replicas),
            CrossPartition => (self.partition(), partitions),
            FlattenedId => (self.number, self.devices.count()),
        };
        let group = listed_group(&c.replica_groups, own as i64)
            .ok_or_else(|| Error::unsupported(module, id, "its groups are not understood"))?;
        let group = match group {
            Group::Everyone => (0..n as i64).collect(),
            Group::Listed(members) => members,
            Group::Nobody => Vec::new(),
        };
        let mut members = Vec::new();
        for member in group {
            let member = usize::try_from(member).ok().filter(|&m| m < n);
            let member =
                member.ok_or_else(|| Error::unsupported(module, id, "a group has a device too many"))?;
            match mode {
                CrossReplica => members.push(member * partitions + self.partition()),
                CrossPartition => members.push(self.replica() * partitions + member),
                FlattenedId => members.push(member),
                CrossReplicaAndPartition => members.extend((0..partitions).map(|p| member * partitions + p)),
            }
        }
        Ok(members)
    }
}

/// Whom a device meets at a collective.
pub(crate) enum Group {
    /// All devices: no groups are listed.
    Everyone,
    /// The members of its group, in order.
    Listed(Vec<i64>),
    /// It is in no group.
    Nobody,
}

/// The group that has an id; `None` where the groups cannot be read.
pub(crate) fn listed_group(groups: &ReplicaGroups, own: i64) -> Option<Group> {
    let among = |ids: &[i64], members: i64| -> Option<Group> {
        let mut groups = ids.chunks(usize::try_from(members).ok()?.max(1));
        Some(groups.find(|group| group.contains(&own)).map_or(Group::Nobody, |it| Group::Listed(it.to_vec())))
    };
    match groups {
        ReplicaGroups::List(groups) if groups.is_empty() => Some(Group::Everyone),
        ReplicaGroups::List(groups) => {
            let group = groups.iter().find(|group| group.contains(&own));
            Some(group.map_or(Group::Nobody, |group| Group::Listed(group.clone())))
        }
        ReplicaGroups::Iota { dimensions: [_, members], reshape, transpose } => {
            let order: Vec<usize> = match transpose.is_empty() {
                true => (0..reshape.len()).collect(),
                false => transpose.iter().map(|&d| d as usize).collect(),
            };
            among(&transposed_iota(reshape, &order), *members)
        }
        ReplicaGroups::Mesh { mesh, axes } => {
            if mesh.devices.is_some() || axes.iter().any(|a| a.sub_axis.is_some()) {
                return None;
            }
            let extents: Vec<i64> = mesh.axes.iter().map(|a| a.1).collect();
            let within: Vec<usize> = axes.iter().map(|a| a.axis as usize).collect();
            let across = (0..extents.len()).filter(|d| !within.contains(d));
            let order: Vec<usize> = across.chain(within.iter().copied()).collect();
            among(&transposed_iota(&extents, &order), within.iter().map(|&d| extents[d]).product())
        }
    }
}

/// The numbers from 0 on in an array of these extents, read with its dimensions in another order.
fn transposed_iota(extents: &[i64], order: &[usize]) -> Vec<i64> {
    let mut strides = vec![1i64; extents.len()];
    for d in (1..extents.len()).rev() {
        strides[d - 1] = strides[d] * extents[d];
    }
    let mut ids = vec![0];
    for &d in order {
        let (extent, stride) = (extents[d], strides[d]);
        ids = ids.iter().flat_map(|id| (0..extent).map(move |i| id + i * stride)).collect();
    }
    ids
}

/// One execution of a collective by one group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MeetingKey {
    instruction: usize,
    round: u64,
    first: usize,
}

/// The meeting place where devices exchange arrays.
struct Exchange {
    meetings: Mutex<Meetings>,
    changed: Condvar,
}

#[derive(Default)]
struct Meetings {
    open: BTreeMap<MeetingKey, Meeting>,
    /// Devices that still run: neither waiting nor done.
    running: usize,
    /// Whether all wait, so that none will ever come.
    is_stuck: bool,
}

struct Meeting {
    given: Vec<Option<Operands>>,
    missing: usize,
    /// Members that have not yet taken the results.
    present: usize,
}

impl Exchange {
    fn new(devices: usize) -> Exchange {
        let meetings = Meetings { running: devices, ..Meetings::default() };
        Exchange { meetings: Mutex::new(meetings), changed: Condvar::new() }
    }

    /// Gives operands and waits for those of all `n` members; `None` if some never come.
    fn meet(&self, key: MeetingKey, n: usize, own: usize, operands: Operands) -> Option<Vec<Operands>> {
        let mut meetings = self.meetings.lock().unwrap_or_else(PoisonError::into_inner);
        let meeting = meetings.open.entry(key).or_insert_with(|| Meeting {
            given: vec![None; n],
            missing: n,
            present: n,
        });
        // Groups that overlap would be an invalid module; a member that comes twice waits in vain.
        if meeting.given.len() == n && meeting.given[own].replace(operands).is_none() {
            meeting.missing -= 1;
        }
        if meeting.missing == 0 {
            // The others run again from now on, not from when they wake.
            meetings.running += n - 1;
            self.changed.notify_all();
        } else {
            meetings.pause(&self.changed);
            while meetings.open[&key].missing > 0 && !meetings.is_stuck {
                meetings = self.changed.wait(meetings).unwrap_or_else(PoisonError::into_inner);
            }
        }
        let meeting = meetings.open.get_mut(&key).filter(|m| m.missing == 0)?;
        let given = meeting.given.iter().flatten().cloned().collect();
        meeting.present -= 1;
        if meeting.present == 0 {
            meetings.open.remove(&key);
        }
        Some(given)
    }

    /// A device is done.
    fn leave(&self) {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner).pause(&self.changed);
    }
}

impl Meetings {
    fn pause(&mut self, changed: &Condvar) {
        self.running = self.running.saturating_sub(1);
        if self.running == 0 {
            self.is_stuck = true;
            changed.notify_all();
        }
    }
}
