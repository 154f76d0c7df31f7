//! The regions for scheduling, one for each computation of the module.
//!
//! A node is an instruction that computes something. Instructions that only pass values on (tuple, get-tuple-element,
//! bitcast, ...) are not searched: afterwards they are placed right before their first user. If such an instruction has
//! several nodes as operands, it becomes a node that touches nothing, so that the number of edges stays linear.
//!
//! A buffer of a region is the memory of consecutive values of one must-alias buffer: an operand and the result written
//! into it, the initial state of a loop and the state after it. Values with a gap in between, such as the old and the
//! new state in a loop's body, are separate buffers. In both cases, the readers of one value must run before the next
//! value of the must-alias buffer is written: these edges keep every order legal for the must-alias buffers as they
//! are.
//!
//! Each byte is counted in one computation: changing loop state in the body, arguments of a call without other readers
//! in the callee, other arguments in the caller. Parameters that the program's caller keeps, and constants, exist in
//! every order and are not counted.

mod buffers;
mod calls;
mod take_overs;
mod values;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use memplan_analysis::{Aliasing, Buffers, CallGraph, Dataflow, InPlace};
use memplan_ir::{ComputationId, InstructionId, Module, Op, Role, Shape};
use memplan_memory::{Bytes, Target};
use memplan_program::{BufferId, NodeId, Region, RegionId, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

use self::buffers::{LocalValue, Neighbors};
use self::values::value_bytes;

/// Whether results count while they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// As any other value.
    Count,
    /// They do not: their allocations are there all the time, and are scratch until the results are written.
    AreFree,
}

/// The region of a computation, and the instructions of its nodes.
pub(crate) struct Nodes {
    pub(crate) computation: ComputationId,
    /// The instruction of each node.
    pub(crate) instructions: PrimaryMap<NodeId, InstructionId>,
}

/// The regions of all sequential computations, callees before callers, with the instructions of their nodes.
pub(crate) fn regions(
    module: &Module,
    aliasing: &Aliasing,
    target: &Target,
    results: Results,
) -> (PrimaryMap<RegionId, Region>, PrimaryMap<RegionId, Nodes>) {
    let mut source = Source::new(module, aliasing, target, results);
    // A caller decides what its callees count.
    let callers_first = aliasing.graph.sequential().iter().rev();
    let mut built: Vec<(Region, Nodes)> =
        callers_first.map(|&computation| Build::new(&mut source, computation).build()).collect();
    built.reverse();
    let (mut regions, mut nodes) = (PrimaryMap::new(), PrimaryMap::new());
    for (region, of_region) in built {
        regions.push(region);
        nodes.push(of_region);
    }
    (regions, nodes)
}

/// The data that regions are built from.
struct Source<'a> {
    module: &'a Module,
    graph: &'a CallGraph,
    flow: &'a Dataflow,
    in_place: &'a InPlace,
    buffers: &'a Buffers,
    /// Bytes of each value; zero for what counts nowhere.
    bytes: SecondaryMap<ValueId, Bytes>,
    region_of: SecondaryMap<ComputationId, RegionId>,
    /// Values that a callee counts, by callee.
    handed_over: SecondaryMap<ComputationId, FxHashSet<ValueId>>,
    /// Whether a computation has an instruction whose place among the others must not change.
    is_pinned: SecondaryMap<ComputationId, bool>,
    /// The index of each value in the current computation.
    local: SecondaryMap<ValueId, Local>,
    /// The nodes that must run before an instruction's result exists, for computations already built.
    after: SecondaryMap<InstructionId, Option<After>>,
    /// Values that an asynchronous computation keeps live, by the instructions of its chain.
    in_flight: SecondaryMap<InstructionId, Option<BufferId>>,
    /// Tells the computation at hand from earlier ones.
    stamp: u32,
    /// For each must-alias buffer, the local value that a node reads, and the ticket of the node.
    read: SecondaryMap<memplan_analysis::BufferId, (u32, u32)>,
    ticket: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Local {
    stamp: u32,
    index: u32,
}

impl<'a> Source<'a> {
    fn new(module: &'a Module, aliasing: &'a Aliasing, target: &Target, results: Results) -> Source<'a> {
        let Aliasing { graph, flow, in_place, buffers } = aliasing;
        let bytes = value_bytes(module, target, results, flow);
        let mut region_of = SecondaryMap::with_default(RegionId::from_u32(0));
        for (number, &computation) in graph.sequential().iter().enumerate() {
            region_of[computation] = RegionId::new(number);
        }
        let mut source = Source {
            module,
            graph,
            flow,
            in_place,
            buffers,
            bytes,
            region_of,
            handed_over: SecondaryMap::new(),
            is_pinned: SecondaryMap::new(),
            local: SecondaryMap::new(),
            after: SecondaryMap::new(),
            in_flight: SecondaryMap::new(),
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

    /// Whether an instruction keeps its position among others of its kind: side effects, and the two ends of
    /// asynchronous operations, whose distance is their purpose.
    fn is_pinned(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let op = &instruction.op;
        // Devices that run the same schedule meet in the same collectives, in any order.
        let acts = op.has_side_effect() && op.collective().is_none();
        let runs_pinned =
            || op.runs_callees() && instruction.called.iter().any(|&callee| self.is_pinned[callee]);
        acts || op.is_asynchronous() || runs_pinned()
    }

    fn is_token(&self, value: ValueId) -> bool {
        let definition = self.flow.values[value].definition;
        *self.flow.positions.part(self.module, definition) == Shape::Token
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
    Node(NodeId),
}

struct Build<'s, 'a> {
    source: &'s mut Source<'a>,
    computation: ComputationId,
    instructions: PrimaryMap<NodeId, InstructionId>,
    values: Vec<LocalValue>,
    region: Region,
    neighbors: SecondaryMap<BufferId, Neighbors>,
}

impl<'s, 'a> Build<'s, 'a> {
    fn new(source: &'s mut Source<'a>, computation: ComputationId) -> Build<'s, 'a> {
        source.stamp += 1;
        Build {
            source,
            computation,
            instructions: PrimaryMap::new(),
            values: Vec::new(),
            region: Region::default(),
            neighbors: SecondaryMap::new(),
        }
    }

    fn build(mut self) -> (Region, Nodes) {
        self.number_nodes();
        self.add_dependencies();
        self.find_values();
        self.find_readers();
        self.form_buffers();
        self.order_versions();
        self.find_calls();
        self.find_take_overs();
        (self.region, Nodes { computation: self.computation, instructions: self.instructions })
    }

    fn body(&self) -> &'a [InstructionId] {
        &self.source.module.computations[self.computation].instructions
    }

    fn node(&self, id: InstructionId) -> Option<NodeId> {
        match self.source.after[id] {
            Some(After::Node(node)) if self.instructions[node] == id => Some(node),
            _ => None,
        }
    }

    /// Makes nodes of instructions that compute, and of instructions that pass several nodes to a user.
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
                after = After::Node(self.instructions.push(id));
            }
            self.source.after[id] = Some(after);
        }
        self.region.n_nodes = self.instructions.len();
    }

    /// Edges for operands, control predecessors, and the order of side effects.
    fn add_dependencies(&mut self) {
        let module = self.source.module;
        let mut last_pinned = None;
        for (node, &id) in &self.instructions {
            let instruction = &module.instructions[id];
            for before in instruction.operands.iter().chain(&instruction.control_predecessors) {
                if let Some(After::Node(before)) = self.source.after[*before] {
                    self.region.dependencies.push((before, node));
                }
            }
            if self.source.is_pinned(id) {
                self.region.dependencies.extend(last_pinned.replace(node).map(|last| (last, node)));
            }
        }
    }
}

impl Nodes {
    /// All instructions, in the order of nodes, each of the others right before its first user.
    /// `is_placed` is false for all of them; it may serve several computations.
    pub(crate) fn sequence(
        &self,
        module: &Module,
        order: &[NodeId],
        is_placed: &mut SecondaryMap<InstructionId, bool>,
    ) -> Vec<InstructionId> {
        let body = &module.computations[self.computation].instructions;
        let mut sequence = Vec::with_capacity(body.len());
        let mut open: Vec<InstructionId> = Vec::new();
        let parameters = module.computations[self.computation].parameters.iter().copied();
        let nodes = order.iter().map(|&node| self.instructions[node]);
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

    /// The nodes among some instructions, in their order, for several lists of instructions.
    pub(crate) fn among(&self, lists: &[Vec<InstructionId>]) -> Vec<Vec<NodeId>> {
        let nodes: FxHashMap<InstructionId, NodeId> =
            self.instructions.iter().map(|(node, &id)| (id, node)).collect();
        let among = |list: &Vec<InstructionId>| list.iter().filter_map(|id| nodes.get(id).copied()).collect();
        lists.iter().map(among).collect()
    }

    /// The name of a node's instruction.
    pub(crate) fn name(&self, module: &Module, node: NodeId) -> Box<str> {
        module.instructions[self.instructions[node]].name.clone()
    }
}

/// Instructions that move no bytes and read none.
fn passes_on(op: &Op) -> bool {
    op.is_free() || op.traits().role == Role::Orders
}
