//! The scheduling problem of each computation, read off the module.
//!
//! A node is an instruction that computes something. What only passes values on (tuple, get-tuple-element, bitcast,
//! ...) takes no part in the search: it is put right before its first user afterwards. Where such an instruction
//! gathers several nodes it becomes a node that touches nothing, so that the number of edges stays linear.
//!
//! A storage is what values of one must-alias buffer occupy while they follow one another without a gap: an operand
//! and the result written into it, the initial state of a loop and the state after it. Values of one buffer with a
//! gap between them, such as the old and the new state within a loop's body, are storages of their own. Either way
//! the readers of one value must run before the next value of the buffer is written: these edges are what keeps
//! every order legal for the buffers as they are.
//!
//! Each byte is counted by one computation: loop state that changes by the body, arguments of a call that nothing
//! else reads by the callee, other arguments by the caller. Parameters that the caller of the program keeps, and
//! constants, are there under every order and count nowhere.

use cranelift_entity::{EntityRef, SecondaryMap};
use memplan_analysis::{
    BufferId, Buffers, CallGraph, Dataflow, InPlace, ValueId, ValueKind, buffers, calls_sequentially,
    dataflow, only_passes_on,
};
use memplan_ir::{ComputationId, InstructionId, Module, Op, Shape, ShapeIndex};
use memplan_memory::Target;
use rustc_hash::FxHashSet;

use super::graph::{Graph, Node, Parts, Storage, StorageIndex, Table, TakeOver};
use super::{Role, ScheduleOptions};
use crate::storage::may_ever_take_over;

/// What the problems of all computations are built from.
pub(crate) struct Source<'a> {
    module: &'a Module,
    pub(crate) graph: &'a CallGraph,
    flow: Dataflow,
    in_place: InPlace,
    buffers: Buffers,
    /// Bytes of each value; zero for tables, tokens, constants, and parameters that the caller keeps.
    bytes: SecondaryMap<ValueId, u64>,
    /// Values that a callee counts, by callee.
    handed_over: SecondaryMap<ComputationId, FxHashSet<ValueId>>,
    /// Whether a computation has an instruction whose place among the others must not change.
    is_pinned: SecondaryMap<ComputationId, bool>,
    /// Place of each value among those of the computation at hand.
    local: SecondaryMap<ValueId, Local>,
    /// What must have run before an instruction's result is there; for computations already built.
    after: SecondaryMap<InstructionId, Option<After>>,
    /// Where the bytes of an asynchronous computation are counted, by the instructions of its chain.
    scratch_of: SecondaryMap<InstructionId, Option<StorageIndex>>,
    /// Tells the computation at hand from earlier ones.
    stamp: u32,
    /// For each buffer, the local value that a node reads, and the ticket of the node.
    read: SecondaryMap<BufferId, (u32, u32)>,
    ticket: u32,
}

/// What a caller has to know about a computation that has been scheduled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inner {
    /// The most bytes live at once.
    pub(crate) peak: u64,
    /// Bytes of everything written, called computations included.
    pub(crate) written: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Local {
    stamp: u32,
    index: u32,
}

/// The problem of one computation.
pub(crate) struct Problem {
    pub(crate) computation: ComputationId,
    /// The instruction of each node.
    pub(crate) instructions: Vec<InstructionId>,
    pub(crate) parts: Parts,
    calls: Vec<Call>,
    /// Bytes of all storages that begin in this computation.
    own_bytes: u64,
}

/// A node that runs other computations.
struct Call {
    node: Node,
    /// The callees, each with the bytes that are live beside it but counted neither by it nor by the caller.
    callees: Vec<(ComputationId, u64)>,
    /// Bytes of the operands that the callees count.
    handed_over: u64,
    /// For an asynchronous call: where what is live until it is done is counted, and how much of it is results.
    scratch: Option<(StorageIndex, u64)>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        module: &'a Module,
        graph: &'a CallGraph,
        target: &Target,
        options: &ScheduleOptions,
    ) -> Source<'a> {
        let flow = dataflow(module, graph);
        let in_place = InPlace::new(module);
        let buffers = buffers(module, graph, &flow, &in_place);
        let bytes = value_bytes(module, target, options, &flow);
        let mut source = Source {
            module,
            graph,
            flow,
            in_place,
            buffers,
            bytes,
            handed_over: SecondaryMap::new(),
            is_pinned: SecondaryMap::new(),
            local: SecondaryMap::new(),
            after: SecondaryMap::new(),
            scratch_of: SecondaryMap::new(),
            read: SecondaryMap::new(),
            stamp: 0,
            ticket: 0,
        };
        for &computation in graph.sequential() {
            source.is_pinned[computation] =
                module.instructions_of(computation).any(|(id, _)| source.is_pinned(id));
        }
        source
    }

    /// The problems of all sequential computations, callers before callees.
    pub(crate) fn problems(&mut self) -> Vec<Problem> {
        // A caller decides what its callees count.
        let computations = self.graph.sequential().iter().rev();
        computations.map(|&computation| Build::new(self, computation).build()).collect()
    }

    /// Whether an instruction keeps its place among others of its kind: side effects, and the two ends of
    /// asynchronous operations, whose distance is what they are for.
    fn is_pinned(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Infeed(_)
            | Op::Outfeed(_)
            | Op::Send(_)
            | Op::SendDone(_)
            | Op::Recv(_)
            | Op::RecvDone(_)
            | Op::RngGetAndUpdateState { .. }
            | Op::CopyStart { .. }
            | Op::CopyDone
            | Op::AllGatherStart(_)
            | Op::AllGatherDone(_)
            | Op::AllReduceStart(_)
            | Op::AllReduceDone(_)
            | Op::CollectivePermuteStart(_)
            | Op::CollectivePermuteDone(_)
            | Op::AsyncStart(_)
            | Op::AsyncUpdate(_)
            | Op::AsyncDone(_) => true,
            Op::CustomCall(call) => call.has_side_effect,
            op => calls_sequentially(op) && instruction.called.iter().any(|&callee| self.is_pinned[callee]),
        }
    }

    /// The leaf values of an instruction's result that take bytes, or may in another computation.
    fn values_of(&self, id: InstructionId) -> impl Iterator<Item = ValueId> + '_ {
        let tree = self.flow.positions.tree(id);
        let leaves = self.flow.positions.of(id).enumerate();
        leaves.filter(|&(i, _)| tree.children(i).is_empty()).filter_map(|(_, p)| self.flow.value_at(p))
    }
}

/// The most bytes that a value asks for at any position; constants and parameters that the caller keeps none.
fn value_bytes(
    module: &Module,
    target: &Target,
    options: &ScheduleOptions,
    flow: &Dataflow,
) -> SecondaryMap<ValueId, u64> {
    // Clipped so that the sum over all values stays within 64 bits.
    let limit = (u64::MAX >> 2) / (flow.values.len() as u64 + 1);
    let mut part_sizes = Vec::with_capacity(module.shapes.len());
    for shape in &module.shapes {
        let mut sizes = Vec::new();
        shape.for_each_subshape(|_, part| {
            sizes.push(if part.is_tuple() { 0 } else { target.size_of(part).0.min(limit) });
        });
        part_sizes.push(sizes);
    }
    let given = given_parameters(module, flow);
    let entry = module.entry_computation();
    let results: FxHashSet<ValueId> =
        flow.positions.of(entry.root).filter_map(|position| flow.value_at(position)).collect();
    let mut bytes = SecondaryMap::new();
    bytes.resize(flow.values.len());
    for (id, value) in flow.values.iter() {
        let instruction = flow.positions.instruction(value.definition);
        let is_constant = matches!(module.instructions[instruction].op, Op::Constant(_));
        if is_constant || value.kind == ValueKind::Parameter && !given.contains(&id) {
            continue;
        }
        let role = match value.kind {
            ValueKind::Parameter => Role::Argument,
            _ if results.contains(&id) => Role::Output,
            _ => Role::Temp,
        };
        let sizes = flow.positions_of(id).iter().map(|&position| {
            let shape = module.instructions[flow.positions.instruction(position)].shape;
            part_sizes[shape.index()][flow.positions.preorder(position)]
        });
        let size = memplan_memory::Bytes(sizes.max().unwrap_or_default());
        bytes[id] = (options.weigh)(role, size).0.min(limit);
    }
    bytes
}

/// Parameters whose memory the caller gives up.
fn given_parameters(module: &Module, flow: &Dataflow) -> FxHashSet<ValueId> {
    let config = &module.config;
    let parameters = &module.entry_computation().parameters;
    let find = |number: u32, index: &ShapeIndex| flow.find(*parameters.get(number as usize)?, index);
    let aliased = config.input_output_alias.iter().filter_map(|a| find(a.parameter, &a.parameter_index));
    aliased.chain(config.buffer_donors.iter().filter_map(|d| find(d.parameter, &d.index))).collect()
}

/// Which node must have run before what an instruction shows is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    Node(Node),
}

/// A value within one computation.
struct LocalValue {
    value: ValueId,
    /// The node that defines it; `None` for what comes in through a parameter.
    node: Option<Node>,
    readers: Vec<Node>,
    returned: bool,
    storage: StorageIndex,
}

/// The storages that come before and after one in its buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbors {
    previous: Option<StorageIndex>,
    next: Option<StorageIndex>,
}

struct Build<'s, 'a> {
    source: &'s mut Source<'a>,
    computation: ComputationId,
    instructions: Vec<InstructionId>,
    values: Vec<LocalValue>,
    parts: Parts,
    calls: Vec<Call>,
    /// By storage.
    neighbors: Vec<Neighbors>,
}

impl<'s, 'a> Build<'s, 'a> {
    fn new(source: &'s mut Source<'a>, computation: ComputationId) -> Build<'s, 'a> {
        source.stamp += 1;
        Build {
            source,
            computation,
            instructions: Vec::new(),
            values: Vec::new(),
            parts: Parts::default(),
            calls: Vec::new(),
            neighbors: Vec::new(),
        }
    }

    fn build(mut self) -> Problem {
        self.number_nodes();
        self.add_dependencies();
        self.find_values();
        self.find_readers();
        self.form_storages();
        self.order_versions();
        self.find_calls();
        self.find_take_overs();
        let own = self.parts.storages.iter().filter(|s| !s.live_in);
        let own_bytes = own.map(|s| s.bytes).sum();
        Problem {
            computation: self.computation,
            instructions: self.instructions,
            parts: self.parts,
            calls: self.calls,
            own_bytes,
        }
    }

    fn body(&self) -> &'a [InstructionId] {
        &self.source.module.computations[self.computation].instructions
    }

    fn node(&self, id: InstructionId) -> Option<Node> {
        match self.source.after[id] {
            Some(After::Node(node)) if self.instructions[node as usize] == id => Some(node),
            _ => None,
        }
    }

    /// Makes nodes of instructions that compute, and of those that gather several nodes for a user.
    fn number_nodes(&mut self) {
        let module = self.source.module;
        let mut is_used: FxHashSet<InstructionId> = FxHashSet::default();
        for &id in self.body() {
            is_used.extend(&module.instructions[id].operands);
            is_used.extend(&module.instructions[id].control_predecessors);
        }
        for &id in self.body() {
            let instruction = &module.instructions[id];
            let mut after = After::Nothing;
            let mut is_node = !passes_on(&instruction.op) || !instruction.control_predecessors.is_empty();
            for operand in &instruction.operands {
                match (after, self.source.after[*operand].unwrap_or(After::Nothing)) {
                    (After::Nothing, operand) => after = operand,
                    (a, b) if a != b && b != After::Nothing => is_node |= is_used.contains(&id),
                    _ => {}
                }
            }
            if is_node {
                after = After::Node(self.instructions.len() as Node);
                self.instructions.push(id);
            }
            self.source.after[id] = Some(after);
        }
        self.parts.n_nodes = self.instructions.len();
    }

    /// Edges for operands, control predecessors, and the order of side effects.
    fn add_dependencies(&mut self) {
        let module = self.source.module;
        let mut last_pinned = None;
        for (node, &id) in self.instructions.iter().enumerate() {
            let node = node as Node;
            let instruction = &module.instructions[id];
            for before in instruction.operands.iter().chain(&instruction.control_predecessors) {
                if let Some(After::Node(before)) = self.source.after[*before] {
                    self.parts.edges.push((before, node));
                }
            }
            if self.source.is_pinned(id) {
                self.parts.edges.extend(last_pinned.replace(node).map(|last| (last, node)));
            }
        }
    }

    /// Lists the values that appear here, each at its first appearance.
    fn find_values(&mut self) {
        for &id in self.body() {
            // What neither a parameter nor a node shows first is a constant.
            let is_parameter = matches!(self.source.module.instructions[id].op, Op::Parameter { .. });
            let node = if is_parameter { None } else { self.node(id) };
            let values: Vec<ValueId> = self.source.values_of(id).collect();
            for value in values {
                let local = &mut self.source.local[value];
                if local.stamp != self.source.stamp {
                    *local = Local { stamp: self.source.stamp, index: self.values.len() as u32 };
                    self.values.push(LocalValue {
                        value,
                        node,
                        readers: vec![],
                        returned: false,
                        storage: 0,
                    });
                }
            }
        }
    }

    /// The local values that an instruction shows.
    fn locals_of(&self, id: InstructionId) -> Vec<u32> {
        let source = &self.source;
        let locals = source.values_of(id).map(|value| source.local[value]);
        locals.filter(|local| local.stamp == source.stamp).map(|local| local.index).collect()
    }

    /// Every node reads all parts of its operands, unless it only passes them on.
    fn find_readers(&mut self) {
        let module = self.source.module;
        for (node, &id) in self.instructions.iter().enumerate() {
            let instruction = &module.instructions[id];
            if passes_on(&instruction.op) {
                continue;
            }
            for &operand in &instruction.operands {
                for value in self.locals_of(operand) {
                    let readers = &mut self.values[value as usize].readers;
                    if readers.last() != Some(&(node as Node)) {
                        readers.push(node as Node);
                    }
                }
            }
        }
        for value in self.locals_of(module.computations[self.computation].root) {
            self.values[value as usize].returned = true;
        }
    }

    /// Gives each value a storage: that of the value it is written over, or a new one.
    fn form_storages(&mut self) {
        let reads = self.values.iter().zip(0..);
        let reads: Vec<(Node, u32)> =
            reads.flat_map(|(v, i)| v.readers.iter().map(move |&node| (node, i))).collect();
        let reads = Table::new(self.instructions.len(), reads.iter().copied());
        let mut last_node = None;
        for i in 0..self.values.len() {
            let LocalValue { value, node, .. } = self.values[i];
            if let Some(node) = node.filter(|_| node != last_node) {
                self.source.ticket += 1;
                for &read in reads.row(node) {
                    let buffer = self.source.buffers.of(self.values[read as usize].value);
                    self.source.read[buffer] = (self.source.ticket, read);
                }
            }
            last_node = node;
            let (ticket, overwritten) = self.source.read[self.source.buffers.of(value)];
            self.values[i].storage = if node.is_some() && ticket == self.source.ticket {
                self.values[overwritten as usize].storage
            } else {
                self.add_storage(value, node)
            };
        }
        for value in &self.values {
            let storage = &mut self.parts.storages[value.storage as usize];
            storage.live_out |= value.returned;
            if storage.bytes > 0 {
                let nodes = value.node.iter().chain(&value.readers);
                self.parts.touches.extend(nodes.map(|&node| (node, value.storage)));
            }
        }
        self.forget_unused();
    }

    fn add_storage(&mut self, value: ValueId, node: Option<Node>) -> StorageIndex {
        let index = self.parts.storages.len() as StorageIndex;
        let live_in = node.is_none();
        let bytes = if live_in && !self.counts(value) { 0 } else { self.source.bytes[value] };
        self.parts.storages.push(Storage { bytes, live_in, live_out: false });
        self.parts.definitions.extend(node.map(|node| (node, index)));
        index
    }

    /// What comes in and is neither touched nor returned is dead from the start.
    fn forget_unused(&mut self) {
        let mut is_touched = vec![false; self.parts.storages.len()];
        self.parts.touches.iter().for_each(|&(_, storage)| is_touched[storage as usize] = true);
        for (storage, is_touched) in self.parts.storages.iter_mut().zip(is_touched) {
            if !is_touched && !storage.live_out {
                storage.bytes = 0;
            }
        }
    }

    /// Whether a value that comes in through a parameter is counted here.
    fn counts(&self, value: ValueId) -> bool {
        let source = &self.source;
        let definition = &source.flow.values[value];
        let instruction = source.flow.positions.instruction(definition.definition);
        let is_own_state = definition.kind == ValueKind::LoopPhi
            && source.module.instructions[instruction].parent == self.computation;
        self.computation == source.module.entry
            || is_own_state
            || source.handed_over[self.computation].contains(&value)
    }

    /// Readers of each value before the writer of the next value in its buffer.
    fn order_versions(&mut self) {
        self.neighbors = vec![Neighbors::default(); self.parts.storages.len()];
        let key = |&i: &usize| {
            let value = &self.values[i];
            let place = if value.node.is_none() { 0 } else { 1 + u32::from(value.returned) };
            (self.source.buffers.of(value.value), place, i)
        };
        let mut order: Vec<usize> = (0..self.values.len()).collect();
        order.sort_unstable_by_key(key);
        for pair in order.windows(2) {
            let (old, new) = (&self.values[pair[0]], &self.values[pair[1]]);
            let buffer_of = |value: &LocalValue| self.source.buffers.of(value.value);
            let Some(writer) = new.node.filter(|_| buffer_of(old) == buffer_of(new)) else { continue };
            let earlier = old.node.iter().chain(&old.readers);
            self.parts.edges.extend(earlier.map(|&node| (node, writer)));
            if old.storage != new.storage {
                self.neighbors[old.storage as usize].next = Some(new.storage);
                self.neighbors[new.storage as usize].previous = Some(old.storage);
            }
        }
    }

    /// What runs within nodes, and which operands are counted there.
    fn find_calls(&mut self) {
        for node in 0..self.instructions.len() as Node {
            let id = self.instructions[node as usize];
            let instruction = &self.source.module.instructions[id];
            let callees = instruction.called.iter().copied();
            let callees: Vec<ComputationId> =
                callees.filter(|&callee| self.source.graph.caller(callee) == Some(id)).collect();
            let call = match &instruction.op {
                Op::AsyncUpdate(_) | Op::AsyncDone(_) => {
                    let scratch = self.source.scratch_of[instruction.operands[0]];
                    self.source.scratch_of[id] = scratch;
                    self.parts.touches.extend(scratch.map(|scratch| (node, scratch)));
                    continue;
                }
                _ if callees.is_empty() => continue,
                Op::While => self.loop_call(node, &callees),
                Op::AsyncStart(_) => self.async_call(node, callees[0]),
                _ => self.plain_call(node, &callees),
            };
            self.calls.push(call);
        }
    }

    /// State that changes is counted by the body. The condition runs while all of it is live.
    fn loop_call(&self, node: Node, callees: &[ComputationId]) -> Call {
        let body = callees[0];
        let state = self.source.module.computations[body].parameters[0];
        let source = &self.source;
        let mut seen = FxHashSet::default();
        let changing = source.flow.positions.of(state).filter_map(|position| {
            let value = source.flow.value_at(position)?;
            let is_phi = source.flow.values[value].definition == position;
            (is_phi && source.flow.values[value].kind == ValueKind::LoopPhi && seen.insert(value))
                .then(|| source.bytes[value])
        });
        let changing: u64 = changing.sum();
        let callees = callees.iter().map(|&c| (c, if c == body { 0 } else { changing })).collect();
        Call { node, callees, handed_over: changing, scratch: None }
    }

    /// An operand that nothing else reads is counted by the last callee that gets it: it may die there.
    fn plain_call(&mut self, node: Node, callees: &[ComputationId]) -> Call {
        let id = self.instructions[node as usize];
        let instruction = &self.source.module.instructions[id];
        let is_conditional = instruction.op == Op::Conditional;
        let mut seen = FxHashSet::default();
        let mut call = Call { node, callees: Vec::new(), handed_over: 0, scratch: None };
        for (i, &callee) in callees.iter().enumerate().rev() {
            call.callees.push((callee, call.handed_over));
            let operands = match is_conditional {
                true => &instruction.operands[i + 1..i + 2],
                false => &instruction.operands[..],
            };
            let locals: Vec<u32> = operands.iter().flat_map(|&operand| self.locals_of(operand)).collect();
            for local in locals {
                let value = &self.values[local as usize];
                let bytes = self.parts.storages[value.storage as usize].bytes;
                if bytes > 0 && value.readers == [node] && !value.returned && seen.insert(local) {
                    self.source.handed_over[callee].insert(value.value);
                    call.handed_over += bytes;
                }
            }
        }
        call
    }

    /// Whatever an asynchronous computation writes is there until the operation is done.
    fn async_call(&mut self, node: Node, callee: ComputationId) -> Call {
        let scratch = self.parts.storages.len() as StorageIndex;
        self.parts.storages.push(Storage::default());
        self.neighbors.push(Neighbors::default());
        let results = self.parts.definitions.iter().filter(|d| d.0 == node);
        let results = results.map(|d| self.parts.storages[d.1 as usize].bytes).sum();
        self.parts.definitions.push((node, scratch));
        self.parts.touches.push((node, scratch));
        self.source.scratch_of[self.instructions[node as usize]] = Some(scratch);
        Call { node, callees: vec![(callee, 0)], handed_over: 0, scratch: Some((scratch, results)) }
    }

    /// Which results may take over which operands.
    fn find_take_overs(&mut self) {
        let mut defined_by = vec![None; self.parts.storages.len()];
        self.parts.definitions.iter().for_each(|&(node, storage)| defined_by[storage as usize] = Some(node));
        let lives = self.textual_lives();
        for node in 0..self.instructions.len() as Node {
            let id = self.instructions[node as usize];
            if !may_ever_take_over(&self.source.module.instructions[id].op) {
                continue;
            }
            let operands = self.operand_storages(id);
            let mut groups: Vec<(&Shape, TakeOver)> = Vec::new();
            for position in self.source.flow.positions.of(id) {
                let source = &self.source;
                let Some(value) = source.flow.value_at(position) else { continue };
                let local = source.local[value];
                if local.stamp != source.stamp {
                    continue;
                }
                let result = self.values[local.index as usize].storage;
                let bytes = self.parts.storages[result as usize].bytes;
                if bytes == 0 || defined_by[result as usize] != Some(node) {
                    continue;
                }
                let index = source.flow.positions.shape_index(position);
                let shape = source.module.shape(id).subshape(index).expect("positions are parts");
                // All results of one shape may take over the same operands, but for those of a sort.
                let is_sort = matches!(source.module.instructions[id].op, Op::Sort { .. });
                if let Some((_, group)) = groups.iter_mut().find(|g| g.0 == shape && !is_sort) {
                    group.n_results += 1;
                    continue;
                }
                let fits = operands.iter().filter(|&&(number, operand)| {
                    self.parts.storages[operand as usize].bytes == bytes
                        && source.in_place.may_take_over(source.module, id, number, index)
                        && self.may_join(&lives, operand, result)
                });
                let operands: Vec<StorageIndex> = fits.map(|&(_, operand)| operand).collect();
                groups.push((shape, TakeOver { node, result, n_results: 1, operands }));
            }
            let take_overs = groups.into_iter().map(|(_, group)| group);
            self.parts.take_overs.extend(take_overs.filter(|group| !group.operands.is_empty()));
        }
    }

    /// Counted storages of array operands, each once, with the number of the operand.
    fn operand_storages(&self, id: InstructionId) -> Vec<(usize, StorageIndex)> {
        let mut operands: Vec<(usize, StorageIndex)> = Vec::new();
        for (number, &operand) in self.source.module.instructions[id].operands.iter().enumerate() {
            if self.source.module.shape(operand).is_tuple() {
                continue;
            }
            for local in self.locals_of(operand) {
                let storage = self.values[local as usize].storage;
                if self.parts.storages[storage as usize].bytes > 0 {
                    operands.push((number, storage));
                }
            }
        }
        operands.sort_by_key(|&(number, storage)| (storage, number));
        operands.dedup_by_key(|&mut (_, storage)| storage);
        operands.sort_unstable();
        operands
    }

    /// First and last node that touches each storage, in textual order.
    fn textual_lives(&self) -> Vec<(u32, u32)> {
        let last = self.instructions.len() as u32 + 1;
        let outer = |s: &Storage| (if s.live_in { 0 } else { last }, if s.live_out { last } else { 0 });
        let mut lives: Vec<(u32, u32)> = self.parts.storages.iter().map(outer).collect();
        for &(node, storage) in &self.parts.touches {
            let life = &mut lives[storage as usize];
            *life = (life.0.min(node + 1), life.1.max(node + 1));
        }
        lives
    }

    /// Whether a result and the operand whose bytes it would take get along with the other versions in their
    /// buffers, judged by the textual order: this must be settled before there is a schedule.
    fn may_join(&self, lives: &[(u32, u32)], operand: StorageIndex, result: StorageIndex) -> bool {
        let life = |storage: StorageIndex| lives[storage as usize];
        let next = self.neighbors[operand as usize].next;
        let previous = self.neighbors[result as usize].previous;
        next.is_none_or(|next| life(result).1 <= life(next).0)
            && previous.is_none_or(|previous| life(previous).1 <= life(operand).0)
    }
}

impl Problem {
    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.instructions.len()
    }

    /// The graph, once the callees are settled: `inner` gives their peak, and the sum of all they write.
    pub(crate) fn graph(&mut self, inner: &SecondaryMap<ComputationId, Inner>) -> Graph {
        for call in &self.calls {
            match call.scratch {
                Some((storage, results)) => {
                    let written = inner[call.callees[0].0].written;
                    self.parts.storages[storage as usize].bytes = written.saturating_sub(results);
                }
                None => {
                    let peaks = call.callees.iter().map(|&(callee, beside)| inner[callee].peak + beside);
                    let peak = peaks.max().unwrap_or_default();
                    self.parts.calls.push((call.node, peak.saturating_sub(call.handed_over)));
                }
            }
        }
        Graph::new(std::mem::take(&mut self.parts))
    }

    /// What a caller has to know, given the peak of the order found.
    pub(crate) fn inner(&self, inner: &SecondaryMap<ComputationId, Inner>, peak: u64) -> Inner {
        let callees = self.calls.iter().flat_map(|call| &call.callees);
        Inner { peak, written: self.own_bytes + callees.map(|&(c, _)| inner[c].written).sum::<u64>() }
    }

    /// All instructions, in the order of nodes, each of the others right before its first user.
    /// `is_placed` is false for all of them; it may serve several computations.
    pub(crate) fn sequence(
        &self,
        module: &Module,
        order: &[Node],
        is_placed: &mut SecondaryMap<InstructionId, bool>,
    ) -> Vec<InstructionId> {
        let body = &module.computations[self.computation].instructions;
        let mut sequence = Vec::with_capacity(body.len());
        let mut open: Vec<InstructionId> = Vec::new();
        let parameters = module.computations[self.computation].parameters.iter().copied();
        let nodes = order.iter().map(|&node| self.instructions[node as usize]);
        for id in parameters.chain(nodes).chain(body.iter().copied()) {
            open.push(id);
            while let Some(&id) = open.last() {
                let instruction = &module.instructions[id];
                let before = instruction.operands.iter().chain(&instruction.control_predecessors);
                let n_open = open.len();
                open.extend(before.filter(|&&before| !is_placed[before]));
                open[n_open..].reverse();
                if open.len() == n_open {
                    open.pop();
                    if !std::mem::replace(&mut is_placed[id], true) {
                        sequence.push(id);
                    }
                }
            }
        }
        sequence
    }

    /// The name of a node's instruction.
    pub(crate) fn name(&self, module: &Module, node: Node) -> Box<str> {
        module.instructions[self.instructions[node as usize]].name.clone()
    }
}

/// Instructions that move no bytes and read none.
fn passes_on(op: &Op) -> bool {
    only_passes_on(op) || matches!(op, Op::Parameter { .. } | Op::Constant(_) | Op::AfterAll)
}
