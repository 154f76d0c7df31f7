//! The order of XLA's latency-hiding scheduler: transfers between devices run beside other work.
//!
//! The scheduler goes through a computation backwards, from results to operands, and at every step picks one of the
//! instructions whose users all have their place. A collective begins (seen backwards) where its result is needed; it
//! ends, and its operands are needed, when what was picked in the meantime takes as long as the transfer.
//!
//! ```text
//!   backwards:   done ─── product ── product ─── start     one collective at a time
//!                  └──── time of the transfer ────┘
//! ```
//!
//! Until then it picks products that no transfer waits for, which for training steps are gradients of weights: they are
//! deferred, and what they read stays alive. That is why a program that is written out may need three times the bytes of
//! the same layers in a loop. Seen on XLA's GPU compiler of jaxlib 0.12 (schedules of fully sharded perceptrons over 2, 4
//! and 8 devices, with and without the scheduler): between the end of a transfer and the chain that leads to the next
//! one, it picks four more such products, for a reason that was not found; [`LatencyHiding::fill`] is that number.
//! Reduce-scatters behind which no other collective comes run as long as they can.

use std::collections::BTreeSet;

use memplan_ir::{ComputationId, InstructionId, Module, Op};
use memplan_memory::LatencyHiding;
use rustc_hash::FxHashMap;

/// Orders the computations that have collectives, of a scheduled module. `seconds` is the time of an instruction. Returns
/// whether anything changed. Close to linear in the module.
pub(crate) fn hide_latency(
    module: &mut Module,
    rules: &LatencyHiding,
    seconds: &dyn Fn(InstructionId) -> f64,
) -> bool {
    let with_collectives: Vec<ComputationId> = module
        .computations
        .iter()
        .filter(|(_, computation)| computation.instructions.iter().any(|&id| is_collective(module, id)))
        .map(|(id, _)| id)
        .collect();
    let mut changed = false;
    for computation in with_collectives {
        let before = module.computations[computation].instructions.clone();
        let order = Backwards::new(module, computation, rules, seconds).order();
        // Parameters come first, and what takes no time before its first user.
        let inputs = before.iter().copied().filter(|&id| module.instructions[id].op.is_input());
        let list = inputs.chain(order).chain(before.iter().copied()).collect();
        module.computations[computation].instructions = list;
        module.put_operands_first(computation);
        changed |= module.computations[computation].instructions != before;
    }
    changed
}

fn is_collective(module: &Module, id: InstructionId) -> bool {
    matches!(
        module.instructions[id].op,
        Op::AllGather(_)
            | Op::AllReduce(_)
            | Op::ReduceScatter(_)
            | Op::AllToAll(_)
            | Op::CollectivePermute(_)
            | Op::CollectiveBroadcast(_)
            | Op::RaggedAllToAll(_)
    )
}

/// Bytes that a collective brings or takes, whichever is more.
fn bytes_moved(module: &Module, id: InstructionId) -> f64 {
    let bytes = |id: InstructionId| {
        let leaves = module.shape(id).leaves();
        leaves.iter().filter_map(|(_, leaf)| leaf.as_array()?.dense_bytes()).sum::<u64>() as f64
    };
    let instruction = &module.instructions[id];
    let given = instruction.operands.iter().map(|&operand| bytes(operand)).sum::<f64>();
    let twice = if matches!(instruction.op, Op::AllReduce(_)) { 2.0 } else { 1.0 };
    given.max(bytes(id)) * twice
}

/// An instruction that takes time.
struct Node {
    id: InstructionId,
    seconds: f64,
    is_collective: bool,
    is_scatter: bool,
    /// Whether it multiplies matrices.
    is_product: bool,
    /// Nodes that it reads, through what takes no time.
    operands: Vec<usize>,
    /// Nodes that read it and have no place yet.
    users: usize,
    /// Whether a collective is computed from it.
    leads_to_collective: bool,
}

struct Backwards<'a> {
    rules: &'a LatencyHiding,
    nodes: Vec<Node>,
    ready: BTreeSet<usize>,
    time: f64,
    /// The collective that runs, and when its transfer is over.
    in_flight: Option<(usize, f64)>,
    /// Products picked since the last transfer was over.
    filled: usize,
    order: Vec<usize>,
}

impl<'a> Backwards<'a> {
    fn new(
        module: &Module,
        computation: ComputationId,
        rules: &'a LatencyHiding,
        seconds: &dyn Fn(InstructionId) -> f64,
    ) -> Backwards<'a> {
        let mut nodes: Vec<Node> = Vec::new();
        // For each instruction, the nodes that its value is made by.
        let mut makers: FxHashMap<InstructionId, Vec<usize>> = FxHashMap::default();
        for &id in &module.computations[computation].instructions {
            let instruction = &module.instructions[id];
            let mut operands: Vec<usize> = Vec::new();
            for operand in instruction.operands.iter().chain(&instruction.control_predecessors) {
                operands.extend(makers.get(operand).into_iter().flatten());
            }
            operands.sort_unstable();
            operands.dedup();
            let op = &instruction.op;
            if op.is_input() || op.only_passes_on() || matches!(op, Op::Constant(_) | Op::Bitcast) {
                makers.insert(id, operands);
                continue;
            }
            let is_collective = is_collective(module, id);
            let seconds = if is_collective { bytes_moved(module, id) / rules.bandwidth } else { seconds(id) };
            makers.insert(id, vec![nodes.len()]);
            for &operand in &operands {
                nodes[operand].users += 1;
            }
            nodes.push(Node {
                id,
                seconds,
                is_collective,
                is_scatter: matches!(op, Op::ReduceScatter(_)),
                is_product: multiplies(module, id),
                operands,
                users: 0,
                leads_to_collective: false,
            });
        }
        for place in (0..nodes.len()).rev() {
            if nodes[place].is_collective || nodes[place].leads_to_collective {
                for operand in nodes[place].operands.clone() {
                    nodes[operand].leads_to_collective = true;
                }
            }
        }
        let ready = (0..nodes.len()).filter(|&place| nodes[place].users == 0).collect();
        Backwards { rules, nodes, ready, time: 0.0, in_flight: None, filled: 0, order: Vec::new() }
    }

    /// The instructions that take time, first to last.
    fn order(mut self) -> Vec<InstructionId> {
        while self.order.len() < self.nodes.len() {
            let waiting = self.ready.iter().rev().copied().find(|&place| self.nodes[place].is_collective);
            match (self.in_flight, waiting) {
                (None, Some(next)) => {
                    self.ready.remove(&next);
                    self.in_flight = Some((next, self.time + self.nodes[next].seconds));
                    continue;
                }
                (Some((running, end)), waiting) => {
                    let is_needed = waiting.is_some() || !self.runs_on(running);
                    let other = self.pick();
                    if other.is_none() || (self.time >= end && is_needed) {
                        self.time = self.time.max(end);
                        self.in_flight = None;
                        self.filled = 0;
                        self.place(running);
                        continue;
                    }
                }
                (None, None) => {}
            }
            let Some(next) = self.pick() else { break };
            self.ready.remove(&next);
            if !self.hides() && self.is_deferred(next) {
                self.filled += 1;
            }
            self.time += self.nodes[next].seconds;
            self.place(next);
        }
        self.order.iter().rev().map(|&place| self.nodes[place].id).collect()
    }

    /// What comes next, seen backwards: what leads to a collective at once, if one runs; products that lead to none; all
    /// else, the later in the order of before the sooner.
    fn pick(&self) -> Option<usize> {
        let all = || self.ready.iter().rev().copied().filter(|&place| !self.nodes[place].is_collective);
        let deferred = || all().find(|&place| self.is_deferred(place));
        let cheap = || all().find(|&place| !self.unlocks(place) && !self.nodes[place].is_product);
        let first = || all().next();
        match self.hides() {
            true => all().find(|&place| self.unlocks_collective(place)).or_else(deferred).or_else(first),
            false if self.in_flight.is_some() => first(),
            false if self.filled < self.rules.fill => cheap().or_else(deferred).or_else(first),
            false => all().find(|&place| self.unlocks(place)).or_else(first),
        }
    }

    /// Whether a transfer runs that is not hidden yet, and that another one waits for.
    fn hides(&self) -> bool {
        self.in_flight.is_some_and(|(running, end)| self.time < end && !self.runs_on(running))
    }

    /// Whether a collective runs as long as it keeps no other one waiting: sums that are scattered, and that no other
    /// collective is computed from.
    fn runs_on(&self, place: usize) -> bool {
        let Node { is_scatter, leads_to_collective, .. } = self.nodes[place];
        is_scatter && !leads_to_collective
    }

    /// Whether it is a product that a collective waits for, and nothing waits for its own place.
    fn is_deferred(&self, place: usize) -> bool {
        let Node { is_product, leads_to_collective, .. } = self.nodes[place];
        is_product && leads_to_collective && !self.unlocks(place)
    }

    /// Whether some instruction can be placed once this one is.
    fn unlocks(&self, place: usize) -> bool {
        self.nodes[place].operands.iter().any(|&operand| self.nodes[operand].users == 1)
    }

    fn unlocks_collective(&self, place: usize) -> bool {
        let is_next = |&operand: &usize| self.nodes[operand].users == 1 && self.nodes[operand].is_collective;
        self.nodes[place].operands.iter().any(is_next)
    }

    fn place(&mut self, place: usize) {
        self.order.push(place);
        for operand in self.nodes[place].operands.clone() {
            self.nodes[operand].users -= 1;
            if self.nodes[operand].users == 0 {
                self.ready.insert(operand);
            }
        }
    }
}

/// Whether an instruction multiplies matrices, itself or in the kernel that it describes.
/// Whether an instruction is a product, or a kernel with one.
pub(crate) fn multiplies(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_product =
        |op: &Op| matches!(op, Op::Dot(_) | Op::Convolution(_) | Op::ScaledDot(_) | Op::RaggedDot(_));
    is_product(&instruction.op)
        || matches!(instruction.op, Op::Fusion(_))
            && instruction.called.iter().any(|&called| {
                module.computations[called]
                    .instructions
                    .iter()
                    .any(|&id| is_product(&module.instructions[id].op))
            })
        || matches!(&instruction.op, Op::CustomCall(call) if call.target.contains("gemm"))
}
