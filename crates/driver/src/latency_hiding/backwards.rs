//! The scheduler: picks instructions one by one, from results to operands.

use std::cmp::Ordering;

use memplan_ir::{ComputationId, InstructionId, Module, Op};
use memplan_memory::LatencyHiding;
use rustc_hash::{FxHashMap, FxHashSet};

use super::times::{self, LIBRARY_CALL, STEP, UNKNOWN, transfer_seconds};
use super::{is_collective, slices};

/// What has a place in the order.
pub(super) enum Place {
    /// An instruction, or a collective beside which nothing else runs.
    Whole(InstructionId),
    /// The start of a collective.
    Start(InstructionId),
    /// Its end.
    End(InstructionId),
}

/// Number of a node.
type NodeId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It takes no time, and has its place as soon as its users have.
    Nothing,
    /// The same, and nothing waits for it: an input. XLA computes other scalars in loops than memplan does, so other elements
    /// of the state are read by one kernel alone.
    Input,
    Work,
    /// What XLA writes before or after a kernel, and memplan in it: an array that a product reads in another shape, or the
    /// result of a library's convolution, which also returns the memory that it worked in. Like nothing.
    View,
    /// A barrier, of which a tuple is left at this stage. It takes no time, but it waits for a place like any other.
    Barrier,
    /// A loop with transfers of its own, beside which no other runs.
    Transfers,
    Start,
    End,
    /// The end of a read or write of a slice, which runs beside everything else. Its start is work.
    EndOfSlice,
}

/// An instruction, or the start or end of a collective.
struct Node {
    id: InstructionId,
    kind: Kind,
    /// Whether the instruction has its place here: of two nodes, one of them does.
    is_its_place: bool,
    seconds: f64,
    operands: Vec<NodeId>,
    users: Vec<NodeId>,
    /// Users without a place.
    waiting: usize,
    /// Once it has no such users, when it can run; once it has a place, when it runs. Backwards.
    time: f64,
    /// The longest time of transfers before it, one after another.
    transfers_before: f64,
    /// Whether it reads the end of a transfer itself.
    reads_end: bool,
}

pub(super) struct Backwards {
    nodes: Vec<Node>,
    ready: Vec<NodeId>,
    nothing: Vec<NodeId>,
    now: f64,
    /// When nodes run that had to wait as they became ready.
    later: Vec<f64>,
    runs: bool,
    /// Ready ends of transfers.
    ends: usize,
    order: Vec<NodeId>,
}

impl Backwards {
    pub(super) fn new(
        module: &Module,
        computation: ComputationId,
        rules: &LatencyHiding,
        slices: &FxHashSet<InstructionId>,
        seconds: &dyn Fn(InstructionId) -> f64,
    ) -> Backwards {
        let mut nodes: Vec<Node> = Vec::new();
        let mut made_by: FxHashMap<InstructionId, NodeId> = FxHashMap::default();
        let node = |id, kind, seconds, operands: Vec<NodeId>| Node {
            id,
            kind,
            is_its_place: true,
            seconds,
            operands,
            users: Vec::new(),
            waiting: 0,
            time: 0.0,
            transfers_before: 0.0,
            reads_end: false,
        };
        let elsewhere = |node: Node| Node { is_its_place: false, ..node };
        for &id in &module.computations[computation].instructions {
            let instruction = &module.instructions[id];
            let read = instruction.operands.iter().chain(&instruction.control_predecessors);
            let mut operands: Vec<NodeId> =
                read.filter_map(|operand| made_by.get(operand).copied()).collect();
            for number in times::reshaped_operands(module, id) {
                if let Some(&read) = made_by.get(&instruction.operands[number]) {
                    operands.retain(|operand| *operand != read);
                    nodes.push(elsewhere(node(id, Kind::View, 0.0, vec![read])));
                    operands.push(nodes.len() - 1);
                }
            }
            operands.sort_unstable();
            operands.dedup();
            let made = if is_collective(module, id) {
                nodes.push(node(id, Kind::Start, STEP, operands));
                let mut end = node(id, Kind::End, STEP, vec![nodes.len() - 1]);
                // The time of the transfer is known to its end.
                end.transfers_before = transfer_seconds(module, id, rules);
                end
            } else if slices.contains(&id) {
                // What is read is there from the start on, and what is written is needed up to the end.
                let writes = slices::writes(module, id);
                nodes.push(node(id, Kind::Work, UNKNOWN, operands));
                nodes.last_mut().expect("one was just added").is_its_place = !writes;
                let mut end = node(id, Kind::EndOfSlice, UNKNOWN, vec![nodes.len() - 1]);
                end.transfers_before = rules.slice.unwrap_or(UNKNOWN);
                end.is_its_place = writes;
                end
            } else if instruction.op == Op::Tuple && id != module.computations[computation].root {
                nodes.push(node(id, Kind::Work, UNKNOWN, operands));
                elsewhere(node(id, Kind::Barrier, 0.0, vec![nodes.len() - 1]))
            } else if times::is_convolution(module, id) {
                nodes.push(node(id, Kind::Work, LIBRARY_CALL, operands));
                elsewhere(node(id, Kind::View, 0.0, vec![nodes.len() - 1]))
            } else {
                let (kind, own) = work(module, id, rules, seconds);
                let mut made = node(id, kind, own, operands);
                made.reads_end = made.operands.iter().any(|&operand| nodes[operand].kind == Kind::End);
                made
            };
            made_by.insert(id, nodes.len());
            nodes.push(made);
        }
        for place in 0..nodes.len() {
            let mut before: f64 = 0.0;
            for operand in nodes[place].operands.clone() {
                nodes[operand].users.push(place);
                nodes[operand].waiting += 1;
                before = before.max(nodes[operand].transfers_before);
            }
            nodes[place].transfers_before += before;
        }
        let mut all = Backwards {
            nodes,
            ready: Vec::new(),
            nothing: Vec::new(),
            now: 0.0,
            later: Vec::new(),
            runs: false,
            ends: 0,
            order: Vec::new(),
        };
        for place in 0..all.nodes.len() {
            if all.nodes[place].waiting == 0 {
                all.release(place);
            }
        }
        all
    }

    /// The time between a node and what it reads, backwards: between the end of a transfer and its start, that of the transfer.
    fn latency(&self, user: NodeId) -> f64 {
        let node = &self.nodes[user];
        match node.kind {
            Kind::End | Kind::EndOfSlice => {
                node.transfers_before - self.nodes[node.operands[0]].transfers_before
            }
            _ => STEP,
        }
    }

    /// When a node can run, backwards: not before now, and its latency after each of its users began.
    fn earliest(&self, place: NodeId) -> f64 {
        let after = |&user: &NodeId| self.nodes[user].time + self.latency(user);
        self.nodes[place].users.iter().map(after).fold(self.now, f64::max)
    }

    /// The instructions, first to last.
    pub(super) fn order(mut self) -> Vec<Place> {
        while let Some(next) = self.pick() {
            self.place(next);
        }
        let mut order: Vec<Place> = Vec::new();
        let mut started: Option<InstructionId> = None;
        for &place in self.order.iter().rev() {
            let Node { id, kind, is_its_place, .. } = self.nodes[place];
            match kind {
                _ if !is_its_place => {}
                // XLA makes one instruction of a start and an end with nothing in between.
                Kind::Start => started = Some(id),
                Kind::End if started.take() == Some(id) => order.push(Place::Whole(id)),
                Kind::End => order.push(Place::End(id)),
                _ => {
                    if !matches!(kind, Kind::Nothing | Kind::Input) {
                        order.extend(started.take().map(Place::Start));
                    }
                    order.push(Place::Whole(id));
                }
            }
        }
        order
    }

    fn pick(&mut self) -> Option<NodeId> {
        if let Some(next) = self.nothing.pop() {
            return Some(next);
        }
        let mut best: Option<usize> = None;
        for (i, &candidate) in self.ready.iter().enumerate() {
            if self.runs && matches!(self.nodes[candidate].kind, Kind::End | Kind::Transfers) {
                continue;
            }
            if best.is_none_or(|best| self.is_better(candidate, self.ready[best])) {
                best = Some(i);
            }
        }
        Some(self.ready.swap_remove(best?))
    }

    /// Whether one of two ready nodes comes first, backwards.
    fn is_better(&self, a: NodeId, b: NodeId) -> bool {
        let (a_node, b_node) = (&self.nodes[a], &self.nodes[b]);
        let is_end = |node: &Node| matches!(node.kind, Kind::End | Kind::EndOfSlice);
        let less = |a: f64, b: f64| b.total_cmp(&a);
        let wait = |node: &Node| (node.time - self.now).max(0.0);
        let leads = |node: &Node| {
            let is_first = node.kind == Kind::Start && node.transfers_before == 0.0;
            !is_first || self.is_held_up()
        };
        let is_waited_for = |node: &Node| node.kind == Kind::Start && self.is_held_up();
        let remaining = self.later.iter().copied().min_by(f64::total_cmp);
        let fits = || {
            let Some(until) = remaining else { return Ordering::Equal };
            let difference = |node: &Node| (until - self.now - node.seconds).abs();
            let (of_a, of_b) = (difference(a_node), difference(b_node));
            let a_fits = a_node.kind != Kind::Start && of_a < of_b;
            let b_fits = b_node.kind != Kind::Start && of_b < of_a;
            a_fits.cmp(&b_fits)
        };
        let unlocks = |node: &Node| node.operands.iter().filter(|&&o| self.nodes[o].waiting == 1).count();
        is_end(a_node)
            .cmp(&is_end(b_node))
            .then_with(|| less(wait(a_node), wait(b_node)))
            .then_with(|| leads(a_node).cmp(&leads(b_node)))
            .then_with(|| is_waited_for(a_node).cmp(&is_waited_for(b_node)))
            .then_with(|| a_node.transfers_before.total_cmp(&b_node.transfers_before))
            .then_with(fits)
            .then_with(|| a_node.reads_end.cmp(&b_node.reads_end))
            .then_with(|| unlocks(a_node).cmp(&unlocks(b_node)))
            .then(a.cmp(&b))
            .is_gt()
    }

    /// Whether a transfer runs and another one has to wait for it.
    fn is_held_up(&self) -> bool {
        self.runs && self.ends > 0
    }

    fn place(&mut self, place: NodeId) {
        self.order.push(place);
        match self.nodes[place].kind {
            Kind::Start => self.runs = false,
            Kind::End => (self.runs, self.ends) = (true, self.ends - 1),
            _ => {}
        }
        let time = self.earliest(place);
        self.nodes[place].time = time;
        if self.nodes[place].kind != Kind::Input {
            self.now = time + self.nodes[place].seconds;
        }
        let now = self.now;
        self.later.retain(|&time| time >= now);
        for operand in self.nodes[place].operands.clone() {
            self.nodes[operand].waiting -= 1;
            if self.nodes[operand].waiting == 0 {
                self.release(operand);
            }
        }
    }

    /// All users of a node have their places.
    fn release(&mut self, place: NodeId) {
        let time = self.earliest(place);
        self.nodes[place].time = time;
        match self.nodes[place].kind {
            Kind::Nothing | Kind::View | Kind::Input => return self.nothing.push(place),
            Kind::End => self.ends += 1,
            _ => {}
        }
        self.ready.push(place);
        if time > self.now {
            self.later.push(time);
        }
    }
}

/// What an instruction that is no transfer does, and the seconds that the scheduler counts for it.
fn work(
    module: &Module,
    id: InstructionId,
    rules: &LatencyHiding,
    seconds: &dyn Fn(InstructionId) -> f64,
) -> (Kind, f64) {
    let instruction = &module.instructions[id];
    let op = &instruction.op;
    if op.is_free() {
        let is_parameter = |id: InstructionId| matches!(module.instructions[id].op, Op::Parameter { .. });
        let is_input = is_parameter(id) || instruction.operands.iter().any(|&operand| is_parameter(operand));
        return (if is_input { Kind::Input } else { Kind::Nothing }, 0.0);
    }
    if matches!(op, Op::While | Op::Conditional) {
        let has_transfers = instruction.called.iter().any(|&called| {
            module.computations[called].instructions.iter().any(|&id| is_collective(module, id))
        });
        return (if has_transfers { Kind::Transfers } else { Kind::Work }, UNKNOWN);
    }
    (Kind::Work, times::work_seconds(module, id, rules, seconds))
}
