//! The order of XLA's latency-hiding scheduler: transfers between devices overlap with other work.
//!
//! The scheduler goes through a computation backwards, from results to operands. At every step it picks one of the
//! instructions whose users are all scheduled. Each collective has a start and an end, with the time of its transfer
//! between them; one transfer runs at a time.
//!
//! ```text
//!   backwards:   end ─── product ── product ─── start     one collective at a time
//!                 └──── time of the transfer ────┘
//! ```
//!
//! It prefers, in this order, by its source and its log (jaxlib 0.12):
//!
//! 1. the end of a transfer, if no transfer runs;
//! 2. an instruction that waits less: a start waits for the time of its transfer;
//! 3. any instruction but a start with no other transfer before it;
//! 4. a start, if the end of another transfer waits for it;
//! 5. the instruction with more time of transfers before it;
//! 6. the instruction whose time is nearest to the remaining time of the running transfer;
//! 7. an instruction that reads the result of a transfer;
//! 8. the instruction that makes more of its operands ready;
//! 9. the instruction that is later in the text.
//!
//! So the scheduler defers gradients of weights until it needs work that overlaps with transfers, and their operands stay
//! live: an unrolled program may need three times the bytes of the same layers in a loop.

use std::cmp::Ordering;

use memplan_ir::{
    ArrayShape, Async, ComputationId, Cursor, ElementType, Insert, InstructionId, Module, Names, Op,
    OutputOperandAlias, ReplicaGroups, Shape, ShapeIndex, Users,
};
use memplan_memory::LatencyHiding;
use rustc_hash::FxHashMap;

/// Whether there is anything to hide.
pub(crate) fn has_collectives(module: &Module) -> bool {
    let mut computations = module.computations.values();
    computations.any(|computation| computation.instructions.iter().any(|&id| is_collective(module, id)))
}

/// Orders the computations that have collectives, of a scheduled module. `seconds` is the time of an instruction. Returns
/// whether anything changed. Takes time with the instructions and with how many of them are ready at once.
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
    if with_collectives.is_empty() {
        return false;
    }
    let mut changed = false;
    let mut names = Names::new(module);
    let users = Users::new(module);
    for computation in with_collectives {
        let before = module.computations[computation].instructions.clone();
        let order = Backwards::new(module, computation, rules, seconds).order();
        // Parameters come first.
        let mut list: Vec<InstructionId> =
            before.iter().copied().filter(|&id| module.instructions[id].op.is_input()).collect();
        for place in order {
            list.push(match place {
                Place::Whole(id) | Place::End(id) => id,
                Place::Start(id) => start(module, &mut names, &users, id),
            });
        }
        module.computations[computation].instructions = list;
        module.put_operands_first(computation);
        changed |= module.computations[computation].instructions != before;
    }
    if changed {
        // The computations of starts come before those that call them.
        module.compact();
    }
    changed
}

/// What has a place in the order.
enum Place {
    /// An instruction, or a collective beside which nothing else runs.
    Whole(InstructionId),
    /// The start of a collective.
    Start(InstructionId),
    /// Its end.
    End(InstructionId),
}

/// Makes a start of a collective, of which the instruction itself is the end: in between, its operands and its result are in
/// memory, and a sum is where its operand was.
fn start(module: &mut Module, names: &mut Names, users: &Users, id: InstructionId) -> InstructionId {
    let instruction = module.instructions[id].clone();
    let operands = instruction.operands.clone();
    let shape = module.shape(id).clone();
    let given: Vec<Shape> = operands.iter().map(|&operand| module.shape(operand).clone()).collect();
    let is_sum = matches!(instruction.op, Op::AllReduce(_));
    let is_free = |operand: InstructionId| {
        is_sum && users.of(operand).len() == 1 && !module.instructions[operand].op.is_input()
    };
    let pairs = (0..).zip(&operands).filter(|&(_, &operand)| is_free(operand)).map(|(number, _)| {
        let whole = ShapeIndex::from([1]);
        let output_index = if shape.is_tuple() { whole.join(&[number].into()) } else { whole };
        OutputOperandAlias { output_index, operand: number, operand_index: ShapeIndex::root() }
    });
    let pairs: Vec<OutputOperandAlias> = pairs.collect();
    let mut at = Cursor::unlisted(module, names, instruction.parent);
    let wrapped = at.new_computation("async_wrapped", |inside| {
        let parameters: Vec<InstructionId> =
            given.iter().map(|shape| inside.parameter(shape.clone())).collect();
        inside.insert_instruction(
            instruction.op.clone(),
            parameters,
            instruction.called.clone(),
            Some(shape.clone()),
        )
    });
    let attributes = Async { output_operand_aliasing: pairs, ..Async::default() };
    let parts = Shape::tuple([Shape::tuple(given.clone()), shape.clone()]);
    let mut at = Cursor::unlisted(module, names, instruction.parent).with_metadata_of(id);
    let started =
        at.insert_instruction(Op::AsyncStart(Box::new(attributes)), operands, [wrapped], Some(parts));
    let end = &mut module.instructions[id];
    end.op = Op::AsyncDone(Box::default());
    end.operands = [started].into_iter().collect();
    end.called = [wrapped].into_iter().collect();
    started
}

fn is_collective(module: &Module, id: InstructionId) -> bool {
    module.instructions[id].op.is_whole_collective()
}

/// Bytes that a collective brings or takes, whichever is more.
fn bytes_moved(module: &Module, id: InstructionId) -> f64 {
    let bytes = |id: InstructionId| module.shape(id).dense_bytes() as f64;
    let instruction = &module.instructions[id];
    let given = instruction.operands.iter().map(|&operand| bytes(operand)).sum::<f64>();
    let twice = if matches!(instruction.op, Op::AllReduce(_)) { 2.0 } else { 1.0 };
    given.max(bytes(id)) * twice
}

/// The time of a transfer by the scheduler's table, which begins with transfers of a KiB.
fn transfer_seconds(module: &Module, id: InstructionId, rules: &LatencyHiding) -> f64 {
    let bytes = bytes_moved(module, id);
    let least = rules.transfer + rules.transfer_per_device * devices(module, id);
    let (times, bandwidth) = match module.instructions[id].op {
        Op::AllReduce(_) => (rules.all_reduce, rules.bandwidth),
        Op::ReduceScatter(_) => (1.0, rules.scatter_bandwidth),
        _ => (1.0, rules.bandwidth),
    };
    let least = least * times;
    least * (bytes / 1024.0).min(1.0) + bytes / bandwidth
}

/// How many devices take part in a collective.
fn devices(module: &Module, id: InstructionId) -> f64 {
    let all = module.config.num_partitions.unwrap_or(1) as f64;
    let groups = module.instructions[id].op.collective().map(|collective| &collective.replica_groups);
    match groups {
        Some(ReplicaGroups::List(groups)) => groups.first().map_or(all, |group| group.len() as f64),
        Some(ReplicaGroups::Iota { dimensions, .. }) => dimensions[1] as f64,
        Some(ReplicaGroups::Mesh { .. }) | None => all,
    }
}

/// What the scheduler waits between any two instructions, and what starts and ends of transfers take themselves.
const STEP: f64 = 1e-6;
/// What instructions take that it knows nothing of.
const UNKNOWN: f64 = 1e-8;

/// Number of a node.
type NodeId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It takes no time, and has its place as soon as its users have.
    Nothing,
    Work,
    /// A barrier, of which a tuple is left at this stage. It takes no time, but it waits for a place like any other.
    Barrier,
    /// A loop with transfers of its own, beside which no other runs.
    Transfers,
    Start,
    End,
}

/// An instruction, or the start or end of a collective.
struct Node {
    id: InstructionId,
    kind: Kind,
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

struct Backwards {
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
    fn new(
        module: &Module,
        computation: ComputationId,
        rules: &LatencyHiding,
        seconds: &dyn Fn(InstructionId) -> f64,
    ) -> Backwards {
        let mut nodes: Vec<Node> = Vec::new();
        let mut made_by: FxHashMap<InstructionId, NodeId> = FxHashMap::default();
        let node = |id, kind, seconds, operands: Vec<NodeId>| Node {
            id,
            kind,
            seconds,
            operands,
            users: Vec::new(),
            waiting: 0,
            time: 0.0,
            transfers_before: 0.0,
            reads_end: false,
        };
        for &id in &module.computations[computation].instructions {
            let instruction = &module.instructions[id];
            let read = instruction.operands.iter().chain(&instruction.control_predecessors);
            let mut operands: Vec<NodeId> =
                read.filter_map(|operand| made_by.get(operand).copied()).collect();
            operands.sort_unstable();
            operands.dedup();
            let made = if is_collective(module, id) {
                nodes.push(node(id, Kind::Start, STEP, operands));
                let mut end = node(id, Kind::End, STEP, vec![nodes.len() - 1]);
                // The time of the transfer is known to its end.
                end.transfers_before = transfer_seconds(module, id, rules);
                end
            } else if instruction.op == Op::Tuple && id != module.computations[computation].root {
                nodes.push(node(id, Kind::Work, UNKNOWN, operands));
                node(id, Kind::Barrier, 0.0, vec![nodes.len() - 1])
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

    /// How long after a node what it reads can run, backwards: the time of a transfer, between its end and its start.
    fn latency(&self, user: NodeId) -> f64 {
        let node = &self.nodes[user];
        match node.kind {
            Kind::End => node.transfers_before - self.nodes[node.operands[0]].transfers_before,
            _ => STEP,
        }
    }

    /// The instructions, first to last.
    fn order(mut self) -> Vec<Place> {
        while let Some(next) = self.pick() {
            self.place(next);
        }
        let mut order: Vec<Place> = Vec::new();
        let mut started: Option<InstructionId> = None;
        for &place in self.order.iter().rev() {
            let Node { id, kind, .. } = self.nodes[place];
            match kind {
                // XLA makes one instruction of a start and an end with nothing in between.
                Kind::Start => started = Some(id),
                Kind::End if started.take() == Some(id) => order.push(Place::Whole(id)),
                Kind::End => order.push(Place::End(id)),
                Kind::Barrier => {}
                _ => {
                    if kind != Kind::Nothing {
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
        let is = |kind: Kind| (a_node.kind == kind).cmp(&(b_node.kind == kind));
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
        is(Kind::End)
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
        let after = |&user: &NodeId| self.nodes[user].time + self.latency(user);
        let time = self.nodes[place].users.iter().map(after).fold(self.now, f64::max);
        self.nodes[place].time = time;
        self.now = time + self.nodes[place].seconds;
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
        let after = |&user: &NodeId| self.nodes[user].time + self.latency(user);
        let time = self.nodes[place].users.iter().map(after).fold(self.now, f64::max);
        self.nodes[place].time = time;
        match self.nodes[place].kind {
            Kind::Nothing => return self.nothing.push(place),
            Kind::End => self.ends += 1,
            _ => {}
        }
        self.ready.push(place);
        if time > self.now {
            self.later.push(time);
        }
    }
}

/// What an instruction that is no collective does, and the seconds that the scheduler counts for it.
fn work(
    module: &Module,
    id: InstructionId,
    rules: &LatencyHiding,
    seconds: &dyn Fn(InstructionId) -> f64,
) -> (Kind, f64) {
    let instruction = &module.instructions[id];
    let op = &instruction.op;
    if op.is_free() {
        return (Kind::Nothing, 0.0);
    }
    if matches!(op, Op::While | Op::Conditional) {
        let has_transfers = instruction.called.iter().any(|&called| {
            module.computations[called].instructions.iter().any(|&id| is_collective(module, id))
        });
        return (if has_transfers { Kind::Transfers } else { Kind::Work }, UNKNOWN);
    }
    let products: f64 = products_of(module, id).map(|product| product_seconds(module, product, rules)).sum();
    if products > 0.0 {
        return (Kind::Work, products);
    }
    match op {
        Op::Fusion(_) => (Kind::Work, seconds(id)),
        _ => (Kind::Work, UNKNOWN),
    }
}

/// The products of an instruction: itself, or those in the kernel that it describes.
fn products_of(module: &Module, id: InstructionId) -> impl Iterator<Item = InstructionId> {
    let instruction = &module.instructions[id];
    let inside: &[ComputationId] =
        if matches!(instruction.op, Op::Fusion(_)) { &instruction.called } else { &[] };
    let inside = inside.iter().flat_map(|&called| module.computations[called].instructions.iter().copied());
    inside.chain([id]).filter(|&id| matches!(module.instructions[id].op, Op::Dot(_)))
}

/// The time of a product by the scheduler's table: those with a wide result are priced as products of wide numbers.
fn product_seconds(module: &Module, id: InstructionId, rules: &LatencyHiding) -> f64 {
    let instruction = &module.instructions[id];
    let (Some(result), Some(dimensions)) = (module.shape(id).as_array(), instruction.op.dot_dimensions())
    else {
        return 0.0;
    };
    let Some(lhs) = module.shape(instruction.operands[0]).as_array() else { return 0.0 };
    let extents = |of: &[i64], array: &ArrayShape| -> f64 {
        of.iter().map(|&d| array.dimensions[d as usize] as f64).product()
    };
    let summed = extents(&dimensions.lhs_contracting, lhs);
    let batch = extents(&dimensions.lhs_batch, lhs);
    let elements = result.element_count().unwrap_or(0) as f64;
    let rows = lhs.element_count().unwrap_or(0) as f64 / (summed * batch).max(1.0);
    let columns = elements / (rows * batch).max(1.0);
    let is_narrow = result.element_type.bits() <= ElementType::Bf16.bits();
    let rate = if is_narrow { rules.narrow_rate } else { rules.wide_rate };
    let seconds = rules.product + 2.0 * summed * elements / rate + elements * rules.element;
    if columns > rows { seconds * rules.more_columns } else { seconds }
}

/// Whether an instruction is a product, or a kernel with one.
pub(crate) fn multiplies(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    instruction.op.is_contraction()
        || matches!(instruction.op, Op::Fusion(_))
            && instruction
                .called
                .iter()
                .any(|&called| module.instructions_of(called).any(|(_, inside)| inside.op.is_contraction()))
        || matches!(&instruction.op, Op::CustomCall(call) if call.target.contains("gemm"))
}
