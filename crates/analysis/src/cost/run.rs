//! A run of a scheduled program: the bytes moved between main memory and the cores, and the time.
//!
//! An operation takes `overhead + max(compute, latency + Σ bytes(space) / bandwidth(space))`. Transfers between
//! memories start in order and run one after the other, in the time that main memory is free: an operation that takes
//! `t`, of which its own main memory traffic takes `b`, leaves `t - b` to transfers. Waiting for a transfer also
//! finishes all transfers before it.
//!
//! ```text
//!   main memory   | copy 1 .......... | op a | copy 1 | copy 2 ...      op a is bound by memory, op b by compute
//!   cores           op b ............. op a   op c (waits for copy 1)
//! ```
//!
//! The body of a loop is timed once, alone; transfers started before the loop use the time that it leaves.
//!
//! Transfers between a device and its host overlap with all else in their computation, if the compiler starts them early
//! and waits for them late: a computation, with the loops in it, then takes at least as long as the link carries its
//! bytes. Where kernels wait for such transfers (`Transfer::blocks_kernels`), their times add up.

use std::collections::VecDeque;

use cranelift_entity::SecondaryMap;
use memplan_ir::{ComputationId, InstructionId, Module, Op, ShapeIndex};
use memplan_memory::{MemorySpaceId, Target};

use super::{Costs, Machine};
use crate::CallGraph;

/// The traffic and time of one run of a program. Loops count as often as they run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunEstimate {
    /// Bytes that kernels and transfers read from and write to main memory.
    pub main_memory_bytes: f64,
    /// Those of them that transfers move.
    pub transferred_bytes: f64,
    /// Bytes among them of prefetches that the previous call may have done (`cross_program_prefetch_index`).
    pub resident_bytes: f64,
    /// Seconds from begin to end.
    pub seconds: f64,
    /// Seconds of these that matrix products and convolutions take, where nothing else of their kernel takes longer.
    pub matrix_seconds: f64,
    /// Seconds that other arithmetic takes, likewise.
    pub vector_seconds: f64,
    /// Seconds that memory takes, likewise.
    pub memory_seconds: f64,
    /// Seconds that links to other devices take, likewise: nothing else is assumed to run beside a collective.
    pub link_seconds: f64,
    /// Seconds in which kernels are launched, get going, or wait for their first bytes.
    pub overhead: f64,
    /// Seconds that the cores wait for transfers. These six make up the whole.
    pub waiting: f64,
    /// Operations of matrix products and convolutions, of all types.
    pub matrix_operations: f64,
    /// All other arithmetic.
    pub vector_operations: f64,
}

impl RunEstimate {
    /// Follows a run of a scheduled module, in time linear in the module.
    pub fn new(module: &Module, graph: &CallGraph, costs: &Costs, target: &Target) -> RunEstimate {
        let mut runs: SecondaryMap<ComputationId, Run> = SecondaryMap::new();
        let follow = Follow { module, graph, costs, target, machine: Machine::new(target) };
        // Callees first, so that a loop is timed when its body is.
        for &computation in graph.sequential() {
            let run = follow.computation(computation, &runs);
            runs[computation] = run;
        }
        RunEstimate::from(&runs[module.entry])
    }

    /// Main memory traffic in each call but the first, if the runtime keeps resident values in place.
    pub fn steady_bytes(&self) -> f64 {
        self.main_memory_bytes - self.resident_bytes
    }
}

/// The cost of one run of each instruction by itself: without the computations that it calls, and without waiting for
/// transfers, which belongs to no instruction.
#[derive(Clone, Debug)]
pub struct KernelCosts(SecondaryMap<InstructionId, RunEstimate>);

impl KernelCosts {
    /// Finds the cost of every instruction of every sequential computation, in time linear in the module.
    pub fn new(module: &Module, graph: &CallGraph, costs: &Costs, target: &Target) -> KernelCosts {
        let follow = Follow { module, graph, costs, target, machine: Machine::new(target) };
        let mut kernels = SecondaryMap::new();
        let instructions = graph.sequential().iter().flat_map(|&c| &module.computations[c].instructions);
        for &id in instructions.filter(|&&id| !module.instructions[id].op.runs_callees()) {
            kernels[id] = RunEstimate::from(&follow.kernel(id));
        }
        KernelCosts(kernels)
    }

    /// One run of an instruction; zero unless it is in a sequential computation.
    pub fn of(&self, id: InstructionId) -> &RunEstimate {
        &self.0[id]
    }
}

/// How long each instruction takes on its own, transfers aside.
#[derive(Clone, Debug)]
pub struct Durations(SecondaryMap<InstructionId, (f64, f64)>);

impl Durations {
    /// Adds up durations from the innermost loops outward, in time linear in the module.
    pub fn new(module: &Module, graph: &CallGraph, costs: &Costs, target: &Target) -> Durations {
        let follow = Follow { module, graph, costs, target, machine: Machine::new(target) };
        let mut runs: SecondaryMap<ComputationId, Run> = SecondaryMap::new();
        let mut durations = Durations(SecondaryMap::new());
        for &computation in graph.sequential() {
            let mut run = Run::default();
            for &id in &module.computations[computation].instructions {
                let mut inside = match module.instructions[id].op.runs_callees() {
                    true => Run::default(),
                    false => follow.kernel(id),
                };
                follow.callees(id, &runs).for_each(|(callee, times)| inside.add(callee, times));
                durations.0[id] = (inside.seconds, inside.busy);
                run.add(&inside, 1.0);
            }
            runs[computation] = run;
        }
        durations
    }

    /// Seconds from begin to end of an instruction, including the computations that it calls, and the part of them in
    /// which main memory is busy.
    pub fn of(&self, id: InstructionId) -> (f64, f64) {
        self.0[id]
    }
}

/// One run of a computation, including the computations that it calls.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    bytes: f64,
    transferred: f64,
    resident: f64,
    seconds: f64,
    matrix_seconds: f64,
    vector_seconds: f64,
    memory_seconds: f64,
    link_seconds: f64,
    overhead: f64,
    waiting: f64,
    /// Seconds that main memory is busy.
    busy: f64,
    /// Seconds that the link to the host is busy.
    link: f64,
    /// Operations.
    matrix: f64,
    vector: f64,
}

impl From<&Run> for RunEstimate {
    fn from(run: &Run) -> RunEstimate {
        RunEstimate {
            main_memory_bytes: run.bytes,
            transferred_bytes: run.transferred,
            resident_bytes: run.resident,
            seconds: run.seconds,
            matrix_seconds: run.matrix_seconds,
            vector_seconds: run.vector_seconds,
            memory_seconds: run.memory_seconds,
            link_seconds: run.link_seconds,
            overhead: run.overhead,
            waiting: run.waiting,
            matrix_operations: run.matrix,
            vector_operations: run.vector,
        }
    }
}

impl Run {
    /// Adds a transfer over the link to the host.
    fn add_link(&mut self, transfer: &Run) {
        self.link += transfer.link;
        self.seconds += transfer.seconds;
        self.waiting += transfer.waiting;
    }

    fn add(&mut self, other: &Run, times: f64) {
        self.bytes += times * other.bytes;
        self.transferred += times * other.transferred;
        self.resident += times * other.resident;
        self.seconds += times * other.seconds;
        self.matrix_seconds += times * other.matrix_seconds;
        self.vector_seconds += times * other.vector_seconds;
        self.memory_seconds += times * other.memory_seconds;
        self.link_seconds += times * other.link_seconds;
        self.overhead += times * other.overhead;
        self.waiting += times * other.waiting;
        self.busy += times * other.busy;
        self.link += times * other.link;
        self.matrix += times * other.matrix;
        self.vector += times * other.vector;
    }
}

/// A transfer under way.
struct Flying {
    start: InstructionId,
    /// Seconds of main memory's time that it still needs.
    left: f64,
}

struct Follow<'a> {
    module: &'a Module,
    graph: &'a CallGraph,
    costs: &'a Costs,
    target: &'a Target,
    machine: Machine<'a>,
}

impl Follow<'_> {
    fn computation(&self, computation: ComputationId, runs: &SecondaryMap<ComputationId, Run>) -> Run {
        let mut run = Run::default();
        let mut flying: VecDeque<Flying> = VecDeque::new();
        for &id in &self.module.computations[computation].instructions {
            let instruction = &self.module.instructions[id];
            match &instruction.op {
                Op::CopyStart { cross_program_prefetch_index } => {
                    let transfer = self.copy(id);
                    run.bytes += transfer.bytes;
                    run.transferred += transfer.bytes;
                    match cross_program_prefetch_index {
                        None if transfer.link > 0.0 || transfer.waiting > 0.0 => run.add_link(&transfer),
                        None => flying.push_back(Flying { start: id, left: transfer.seconds }),
                        // The previous run left it here already.
                        Some(_) => run.resident += transfer.bytes,
                    }
                }
                Op::AsyncStart(_) => {
                    let mut inside = Run::default();
                    self.callees(id, runs).for_each(|(callee, times)| inside.add(callee, times));
                    run.bytes += inside.bytes;
                    run.transferred += inside.bytes;
                    run.matrix += inside.matrix;
                    run.vector += inside.vector;
                    flying.push_back(Flying { start: id, left: inside.busy.max(inside.seconds) });
                }
                Op::CopyDone | Op::AsyncDone(_) => self.wait(&mut run, &mut flying, id),
                op if op.runs_callees() => {
                    let mut inside = Run::default();
                    self.callees(id, runs).for_each(|(callee, times)| inside.add(callee, times));
                    self.proceed(&mut run, &mut flying, &inside);
                }
                _ => self.proceed(&mut run, &mut flying, &self.kernel(id)),
            }
        }
        let waiting = (run.link - run.seconds).max(0.0);
        run.seconds += waiting;
        run.waiting += waiting;
        run
    }

    /// The computations that an instruction calls, and how often it runs each.
    fn callees<'r>(
        &'r self,
        id: InstructionId,
        runs: &'r SecondaryMap<ComputationId, Run>,
    ) -> impl Iterator<Item = (&'r Run, f64)> + 'r {
        let instruction = &self.module.instructions[id];
        let own = self.costs.frequency(instruction.parent);
        let callees = instruction.called.iter().filter(move |&&c| self.graph.caller(c) == Some(id));
        callees.map(move |&c| (&runs[c], if own > 0.0 { self.costs.frequency(c) / own } else { 0.0 }))
    }

    fn kernel(&self, id: InstructionId) -> Run {
        let work = self.costs.work(id);
        let mut run = Run { matrix: work.matrix_operations(), vector: work.vector, ..Run::default() };
        let is_broadcast = matches!(self.module.instructions[id].op, Op::Broadcast { .. });
        let (mut memory, mut latency, mut link) = (0.0, 0.0f64, Run::default());
        for access in &work.accesses {
            let at = access.operand.map_or(id, |k| self.module.instructions[id].operands[k as usize]);
            let (space, bytes) = (self.space(at, &access.index), access.bytes.0 as f64);
            let seconds = self.machine.memory_seconds(space, bytes);
            memory += seconds;
            // Compilers leave an array of one value on the host without contents, for a loop to write its rows.
            if space == MemorySpaceId::HOST && !is_broadcast {
                link.add_link(&match access.operand {
                    Some(_) => self.link(space, MemorySpaceId::MAIN, bytes),
                    None => self.link(MemorySpaceId::MAIN, space, bytes),
                });
            }
            // All memories are waited for at a time.
            latency = latency.max(self.machine.latency(space));
            if space == MemorySpaceId::MAIN {
                run.bytes += bytes;
                run.busy += seconds;
            }
        }
        memory += latency;
        // The longest part bounds the kernel's time.
        let (matrix, compute) = (self.machine.matrix_seconds(work), self.machine.compute_seconds(work));
        let longest = memory.max(compute).max(work.link_seconds);
        run.overhead = work.overhead;
        if work.link_seconds >= longest && longest > 0.0 {
            run.link_seconds = longest;
        } else if memory >= compute {
            // The first bytes are waited for as for the launch.
            run.memory_seconds = memory - latency;
            run.overhead += latency;
        } else {
            (run.matrix_seconds, run.vector_seconds) = (matrix, compute - matrix);
        }
        run.seconds = longest + work.overhead;
        run.add_link(&link);
        run
    }

    /// The time of bytes on the link to the host, which is beside the kernels' time unless they wait.
    fn link(&self, from: MemorySpaceId, to: MemorySpaceId, bytes: f64) -> Run {
        let seconds = self.machine.transfer_seconds(from, to, bytes);
        match self.machine.transfer_blocks_kernels(from, to) {
            true => Run { seconds, waiting: seconds, ..Run::default() },
            false => Run { link: seconds, ..Run::default() },
        }
    }

    /// Main memory traffic and time of a copy between memories, on its own.
    fn copy(&self, id: InstructionId) -> Run {
        let end = |i: u32| {
            let index = ShapeIndex::from([i]);
            let leaf = self.module.shape(id).subshape(&index);
            (self.space(id, &index), leaf.map_or(0.0, |leaf| self.target.size_of(leaf).0 as f64))
        };
        let [(to, bytes), (from, _)] = [end(0), end(1)];
        let ends = [from, to].iter().filter(|&&space| space == MemorySpaceId::MAIN).count();
        let seconds = self.machine.transfer_seconds(from, to, bytes);
        match from == MemorySpaceId::HOST || to == MemorySpaceId::HOST {
            true => Run { bytes: bytes * ends as f64, ..self.link(from, to, bytes) },
            false => {
                Run { bytes: bytes * ends as f64, seconds: seconds * ends.max(1) as f64, ..Run::default() }
            }
        }
    }

    /// Runs work on the cores, while transfers use the time that it leaves of main memory.
    fn proceed(&self, run: &mut Run, flying: &mut VecDeque<Flying>, next: &Run) {
        run.add(next, 1.0);
        let mut idle = (next.seconds - next.busy).max(0.0);
        for transfer in flying.iter_mut() {
            let used = transfer.left.min(idle);
            transfer.left -= used;
            run.busy += used;
            idle -= used;
        }
        while flying.front().is_some_and(|transfer| transfer.left <= 0.0) {
            flying.pop_front();
        }
    }

    /// Waits until a transfer is done, and those before it.
    fn wait(&self, run: &mut Run, flying: &mut VecDeque<Flying>, done: InstructionId) {
        let start = self.module.start_of(done);
        let Some(at) = flying.iter().position(|transfer| transfer.start == start) else { return };
        let waiting: f64 = flying.drain(..=at).map(|transfer| transfer.left).sum();
        run.seconds += waiting;
        run.waiting += waiting;
        run.busy += waiting;
    }

    fn space(&self, id: InstructionId, index: &ShapeIndex) -> MemorySpaceId {
        self.costs.space(self.module, id, index)
    }
}
