//! Inserts the copies that make aliasing legal, and no more.
//!
//! Values that must share a buffer (loop state, results of branches, operands updated in place, results in a parameter)
//! must not be live at the same time. If an order of execution separates them, control dependencies fix that order;
//! otherwise a copy separates them.
//!
//! ```text
//!   body: i = gte(state), index=0           body: i = gte(state), index=0
//!         j = gte(state), index=1                 j = gte(state), index=1
//!         use = f(i)                        =>    use = f(i)
//!         n = g(i, j)                             n = g(i, j), control-predecessors={use}
//!         ROOT t = tuple(n, i)                    c = copy(i), control-predecessors={..}   (i moves to slot 1)
//!                                                 ROOT t = tuple(n, c)
//! ```
//!
//! Each computation is processed after its callees. In it, *classes* are values that share a buffer; every class has a
//! first writer. The result that a call or a loop writes over an operand is in the operand's class, and so is the result of a
//! conditional of which a branch returns an operand that nothing needs any more. To join an older
//! class with a newer one, every reader of the older must run before the first writer of the newer; that is possible
//! unless such a reader depends on that writer. (XLA inserts all copies that might be needed and then removes them one
//! by one in program order, see its copy insertion; here a copy is inserted only if joining fails.)
//!
//! Requires a flat call graph. Leaves scheduled modules alone: their order is fixed, and so are their copies.
//! Idempotent: joined values join again without a copy. Changed: whether a copy or dependency was added.

mod classes;
mod handed_back;
mod order;
mod receives;
mod report;
mod results;
mod updates;

use cranelift_entity::SecondaryMap;
use memplan_analysis::{
    CallGraph, Dataflow, InPlace, ValueId, ValueKind, dataflow, given_parameters, in_place_values,
};
use memplan_ir::{ComputationId, Instruction, InstructionId, Module, Names, Op, copy_into};
use memplan_memory::Target;
use memplan_rewriter::{Context, Outcome, Pass, PassError, Report, call_graph};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use smallvec::{SmallVec, smallvec};

pub use self::handed_back::HandsBack;
use self::handed_back::{HandedBack, handed_back};
pub(crate) use self::order::sort_topologically;
pub use self::report::{Because, Conflict, CopyReport, InsertedCopy, MustShare};
use crate::spell_out::{declare_references, spell_out_tuples};

/// The pass, described at the top of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyInsertion {
    /// Where control dependencies are added. Elsewhere, a value that an instruction reads is copied unless the instruction
    /// that overwrites it depends on the reader already.
    pub adds_order: AddsOrder,
    /// Which operands of a conditional, returned by a branch, are where the result is. Others are copied.
    pub hands_back: HandsBack,
}

/// What overwrites the values whose readers are made to run before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddsOrder {
    /// Updates in place, and results of computations.
    Always,
    /// Results of computations, such as the next state of a loop.
    ForResults,
    /// Nothing.
    Never,
}

impl AddsOrder {
    fn for_a(self, is_update: bool) -> bool {
        self == AddsOrder::Always || self == AddsOrder::ForResults && !is_update
    }
}

/// The pass as `compile` runs it.
pub const COPY_INSERTION: CopyInsertion =
    CopyInsertion { adds_order: AddsOrder::Always, hands_back: HandsBack::Always };

impl Default for CopyInsertion {
    fn default() -> CopyInsertion {
        COPY_INSERTION
    }
}

/// The name of the pass.
const NAME: &str = "copy-insertion";

impl Pass for CopyInsertion {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "insert the copies that make aliasing legal"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        if module.is_scheduled {
            return Ok(Outcome::default());
        }
        let mut report = CopyReport::default();
        let changed = insert_copies(module, context.target, *self, &mut report)?;
        Ok(Outcome { changed, report: (!report.copies.is_empty()).then(|| Report::new(report)) })
    }
}

fn insert_copies(
    module: &mut Module,
    target: &Target,
    options: CopyInsertion,
    report: &mut CopyReport,
) -> Result<bool, PassError> {
    let graph = call_graph(module, NAME)?;
    graph.require_flat(module).map_err(|source| PassError::CallGraph { pass: NAME, source })?;
    let (mut changed, mut names) = (false, Names::new(module));
    for &computation in graph.sequential() {
        let root = decides_results(module, &graph, computation);
        changed |= spell_out_tuples(module, computation, root, &mut names);
        changed |= declare_references(module, computation);
    }
    let flow = dataflow(module, &graph);
    let in_place = InPlace::new(module);
    let readers = count_readers(module, &graph, &flow);
    let given = given_parameters(module, &flow);
    let rules = (options.hands_back, options.adds_order);
    let (handed_back, adds_order) = handed_back(module, &graph, &flow, &in_place, &given, rules);
    changed |= adds_order;
    let facts = Facts {
        target,
        options,
        graph: &graph,
        flow: &flow,
        in_place: &in_place,
        readers: &readers,
        given: &given,
        handed_back: &handed_back,
    };
    let mut overwritten = FxHashMap::default();
    for &computation in graph.sequential() {
        let mut separate = Separate::new(module, &mut names, facts, computation, &mut overwritten, report);
        separate.updates_in_place()?;
        separate.receives()?;
        separate.results()?;
        changed |= separate.finish();
    }
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// Whether the buffers of a computation's results are decided by who runs it: a loop, a conditional, or the caller of the
/// program. Others hand their results to where they flow.
pub(crate) fn decides_results(module: &Module, graph: &CallGraph, computation: ComputationId) -> bool {
    let caller = graph.caller(computation).map(|caller| &module.instructions[caller].op);
    matches!(caller, None | Some(Op::While | Op::Conditional))
}

/// Counts the instructions and roots that read each value. Passing it to a called computation is a read: the plan keeps
/// it there as long as the call runs, even if nothing uses it.
fn count_readers(module: &Module, graph: &CallGraph, flow: &Dataflow) -> SecondaryMap<ValueId, u32> {
    let mut counts = SecondaryMap::new();
    counts.resize(flow.values.len());
    for &computation in graph.sequential() {
        for (_, instruction) in module.instructions_of(computation) {
            for value in values_read(flow, instruction) {
                counts[value] += 1;
            }
        }
        for position in flow.positions.of(module.computations[computation].root) {
            counts[flow.value_at(position).expect("sequential")] += 1;
        }
    }
    counts
}

/// The values that an instruction reads, each once. Passing a value on is not a read.
fn values_read(flow: &Dataflow, instruction: &Instruction) -> SmallVec<[ValueId; 4]> {
    let mut values = SmallVec::new();
    if instruction.op.only_passes_on() {
        return values;
    }
    for &operand in &instruction.operands {
        // Copies made by this pass have no positions; they are registered as readers when they are made.
        values.extend(flow.positions.of(operand).filter_map(|position| flow.value_at(position)));
    }
    values.sort_unstable();
    values.dedup();
    values
}

/// Index into [`Separate::nodes`].
type Node = usize;

/// Index into [`Separate::classes`].
type Class = usize;

/// An instruction of the computation, copies included.
struct NodeData {
    id: InstructionId,
    /// The nodes that must run after it.
    successors: SmallVec<[Node; 2]>,
    /// No node that must run after it has a lower place. Several may have the same.
    place: usize,
    /// The search that saw it last.
    visited: u32,
    /// Whether it now reads a copy made by this pass instead of the original, so that lists of the original's readers
    /// may be out of date.
    reads_copies: bool,
}

/// Values that share a buffer within the computation.
struct ClassData {
    /// The instruction that writes it first; `None` if it exists from the start.
    first_writer: Option<Node>,
    /// Whether it may not be overwritten: constants, parameters that the caller keeps.
    is_read_only: bool,
    /// Nodes that read or write the last value, and so run after all nodes that touch earlier ones.
    touched_by: SmallVec<[Node; 2]>,
    /// Whether one of its values is returned, and so needed to the end.
    returned: u32,
    /// Values that come from outside the computation.
    outside: Vec<ValueId>,
}

/// The values from outside that a called computation has overwritten, each with the value that it returns in its place.
type Overwritten = FxHashMap<ComputationId, Vec<(ValueId, ValueId)>>;

/// The work on one computation.
struct Separate<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    facts: Facts<'a>,
    /// Values that the start of this computation declares to be overwritten, each with the result that takes its place.
    /// It has copied what others need.
    promised: Vec<(ValueId, ValueId)>,
    /// Values overwritten by the computations processed earlier.
    overwritten: &'a mut Overwritten,
    /// Values from outside that calls and conditionals overwrite. Nobody else reads those.
    overwritten_by_callees: FxHashSet<ValueId>,
    /// How many of the readers of each value are in this computation.
    reads_here: FxHashMap<ValueId, u32>,
    computation: ComputationId,
    nodes: Vec<NodeData>,
    node_of: FxHashMap<InstructionId, Node>,
    classes: Vec<ClassData>,
    class_of: FxHashMap<ValueId, Class>,
    /// The class of each copy made by this pass.
    class_of_copy: FxHashMap<InstructionId, Class>,
    /// Classes that were joined into others.
    joined: Vec<Class>,
    stamp: u32,
    steps: usize,
    changed: bool,
    /// The copies so far.
    report: &'a mut CopyReport,
}

/// Facts about the module as a whole.
#[derive(Clone, Copy)]
struct Facts<'a> {
    target: &'a Target,
    options: CopyInsertion,
    graph: &'a CallGraph,
    flow: &'a Dataflow,
    in_place: &'a InPlace,
    readers: &'a SecondaryMap<ValueId, u32>,
    /// Parts of parameters that may be overwritten.
    given: &'a FxHashSet<ValueId>,
    handed_back: &'a HandedBack,
}

impl<'a> Separate<'a> {
    fn new(
        module: &'a mut Module,
        names: &'a mut Names,
        facts: Facts<'a>,
        computation: ComputationId,
        overwritten: &'a mut Overwritten,
        report: &'a mut CopyReport,
    ) -> Separate<'a> {
        let mut separate = Separate {
            module,
            names,
            facts,
            promised: Vec::new(),
            overwritten,
            overwritten_by_callees: FxHashSet::default(),
            reads_here: FxHashMap::default(),
            computation,
            nodes: Vec::new(),
            node_of: FxHashMap::default(),
            classes: Vec::new(),
            class_of: FxHashMap::default(),
            class_of_copy: FxHashMap::default(),
            joined: Vec::new(),
            stamp: 0,
            steps: 0,
            changed: false,
            report,
        };
        separate.promised = separate.promised_by_start();
        separate.list_nodes();
        separate.list_classes();
        separate
    }

    fn list_nodes(&mut self) {
        for id in self.module.computations[self.computation].instructions.clone() {
            let node = self.add_node(id, self.nodes.len());
            let instruction = &self.module.instructions[id];
            for before in instruction.operands.iter().chain(&instruction.control_predecessors) {
                let before = self.node_of[before];
                if self.nodes[before].successors.last() != Some(&node) {
                    self.nodes[before].successors.push(node);
                }
            }
        }
    }

    fn add_node(&mut self, id: InstructionId, place: usize) -> Node {
        let node = self.nodes.len();
        self.nodes.push(NodeData { id, successors: SmallVec::new(), place, visited: 0, reads_copies: false });
        self.node_of.insert(id, node);
        node
    }

    /// One class for each value that appears in the computation, with who writes and reads it.
    fn list_classes(&mut self) {
        let is_entry = self.computation == self.module.entry;
        for node in 0..self.nodes.len() {
            let id = self.nodes[node].id;
            for position in self.facts.flow.positions.of(id) {
                let value = self
                    .facts
                    .flow
                    .value_at(position)
                    .expect("every position of a sequential computation has a value");
                if self.class_of.contains_key(&value) {
                    continue;
                }
                let kind = self.facts.flow.values[value].kind;
                let is_parameter = matches!(self.module.instructions[id].op, Op::Parameter { .. });
                let definition =
                    self.facts.flow.positions.instruction(self.facts.flow.values[value].definition);
                let is_constant = matches!(self.module.instructions[definition].op, Op::Constant(_));
                // The state of a loop is the loop's own in its body and condition, but not in what those call.
                let is_own_state = kind == ValueKind::LoopPhi && self.is_loop_computation();
                let is_own = is_own_state || self.promised.iter().any(|&(old, _)| old == value);
                let comes_from_caller = is_parameter && !is_entry && !is_own;
                let class = self.classes.len();
                self.classes.push(ClassData {
                    first_writer: (!is_parameter).then_some(node),
                    is_read_only: is_constant
                        || (kind == ValueKind::Parameter && !self.facts.given.contains(&value)),
                    touched_by: (!is_parameter).then_some(node).into_iter().collect(),
                    returned: 0,
                    outside: if comes_from_caller { vec![value] } else { Vec::new() },
                });
                self.joined.push(class);
                self.class_of.insert(value, class);
            }
            for value in values_read(self.facts.flow, &self.module.instructions[id]) {
                let class = self.class_of[&value];
                self.classes[class].touched_by.push(node);
                *self.reads_here.entry(value).or_default() += 1;
            }
        }
        for position in self.facts.flow.positions.of(self.module.computations[self.computation].root) {
            let class = self.class_of[&self.facts.flow.value_at(position).expect("sequential")];
            self.classes[class].returned += 1;
        }
    }

    /// Whether a loop runs this computation.
    fn is_loop_computation(&self) -> bool {
        let caller = self.facts.graph.caller(self.computation);
        caller.is_some_and(|caller| self.module.instructions[caller].op == Op::While)
    }

    /// The aliases that the start of this computation declares, also if the computation is called directly.
    fn promised_by_start(&self) -> Vec<(ValueId, ValueId)> {
        let mut computation = self.computation;
        while let Some(caller) = self.facts.graph.caller(computation) {
            let instruction = &self.module.instructions[caller];
            match instruction.op {
                Op::AsyncStart(_) => {
                    return in_place_values(self.module, self.facts.flow, self.facts.in_place, caller)
                        .collect();
                }
                Op::Call { .. } if self.module.computations[instruction.parent].root == caller => {
                    computation = instruction.parent;
                }
                _ => break,
            }
        }
        Vec::new()
    }

    /// Replaces operand `number` of `user` by a copy of it.
    fn copy_for(
        &mut self,
        source: InstructionId,
        user: InstructionId,
        number: usize,
        because: Because,
    ) -> InstructionId {
        let copy = self.add_copy(source, because);
        self.read_copy(copy, user, number);
        copy
    }

    /// Makes a copy operand `number` of `user`.
    fn read_copy(&mut self, copy: InstructionId, user: InstructionId, number: usize) {
        self.module.instructions[user].operands[number] = copy;
        let (from, to) = (self.node_of[&copy], self.node_of[&user]);
        self.nodes[from].successors.push(to);
        self.nodes[to].reads_copies = true;
    }

    fn add_copy(&mut self, source: InstructionId, because: Because) -> InstructionId {
        self.changed = true;
        let shape = self.module.shape(source).clone();
        let copy = copy_into(self.module, source, shape, "copy", self.names);
        let (module, target, computation) = (&*self.module, self.facts.target, self.computation);
        self.report.push(|| InsertedCopy {
            computation: module.computations[computation].name.clone(),
            copy: module.instructions[copy].name.clone(),
            source: module.instructions[source].name.clone(),
            bytes: target.size_of(module.shape(source)),
            because,
        });
        let from = self.node_of[&source];
        let node = self.add_node(copy, self.nodes[from].place);
        self.nodes[from].successors.push(node);
        let read = self.class_of_leaf(source);
        self.classes[read].touched_by.push(node);
        let class = self.classes.len();
        self.classes.push(ClassData {
            first_writer: Some(node),
            is_read_only: false,
            touched_by: smallvec![node],
            returned: 0,
            outside: Vec::new(),
        });
        self.joined.push(class);
        self.class_of_copy.insert(copy, class);
        copy
    }

    fn name(&self, id: InstructionId) -> Box<str> {
        self.module.instructions[id].name.clone()
    }

    /// Orders the instructions such that all dependencies hold, and reports overwritten values to the caller. Returns
    /// whether anything changed.
    fn finish(self) -> bool {
        let overwritten = self.overwritten_for_caller();
        self.overwritten.insert(self.computation, overwritten);
        if self.changed {
            sort_topologically(self.module, self.computation);
        }
        self.changed
    }
}
