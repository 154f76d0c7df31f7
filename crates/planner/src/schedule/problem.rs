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

mod calls;
mod storages;
mod take_overs;
mod values;

use cranelift_entity::SecondaryMap;
use memplan_analysis::{BufferId, Buffers, CallGraph, Dataflow, InPlace, ValueId, buffers, dataflow};
use memplan_ir::{ComputationId, InstructionId, Module, Op, Role};
use memplan_memory::Target;
use rustc_hash::FxHashSet;

use self::calls::Call;
use self::storages::{LocalValue, Neighbors};
use self::values::value_bytes;
use super::ScheduleOptions;
use super::graph::{Graph, Node, Parts, StorageIndex};

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
        let op = &instruction.op;
        // Devices that run the same schedule meet in the same collectives, whatever the order.
        let acts = op.has_side_effect() && op.collective().is_none();
        let runs_pinned =
            || op.runs_callees() && instruction.called.iter().any(|&callee| self.is_pinned[callee]);
        acts || op.is_asynchronous() || runs_pinned()
    }

    /// The leaf values of an instruction's result that take bytes, or may in another computation.
    fn values_of(&self, id: InstructionId) -> impl Iterator<Item = ValueId> + '_ {
        let tree = self.flow.positions.tree(id);
        let leaves = self.flow.positions.of(id).enumerate();
        leaves.filter(|&(i, _)| tree.children(i).is_empty()).filter_map(|(_, p)| self.flow.value_at(p))
    }
}

/// Which node must have run before what an instruction shows is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    Node(Node),
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
    matches!(op.traits().role, Role::Provides | Role::PassesOn | Role::Regroups | Role::Orders)
}
