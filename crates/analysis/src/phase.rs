//! The phases of a training step: forward (the loss), backward (gradients), and update.
//!
//! JAX's names mark phases: `jvp(` is the forward half, `transpose(` the backward half. Without such names, the
//! dependencies decide: an argument that is returned changed element by element is trained; the values that change it
//! and that no other result needs are its gradients.
//!
//! ```text
//!   w ──┬─► forward ─► loss             forward: what the loss depends on
//!       │      │ activations
//!       │      ▼
//!       │   backward ─► gradient of w    backward: what gradients depend on besides
//!       │                  ▼
//!       └──────────────► update ─► w'    update: what depends on gradients
//! ```

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayShape, ComputationId, InstructionId, Module, Op, Shape};

use crate::{CallGraph, operation};

/// A part of a training step, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Computes the loss; also everything in programs that train nothing.
    #[default]
    Forward,
    /// Computes gradients.
    Backward,
    /// Does something with gradients: updates parameters and the state of the optimizer.
    Update,
}

/// The phase of every instruction.
#[derive(Clone, Debug)]
pub struct Phases {
    of: SecondaryMap<InstructionId, Phase>,
    trains: bool,
}

impl Phases {
    /// Finds the phase of every instruction that runs by itself, in time close to linear in the module. Interiors of
    /// kernels have the phase [`Phase::Forward`]: ask for that of the kernel.
    pub fn new(module: &Module, graph: &CallGraph) -> Phases {
        let mut phases = Phases { of: SecondaryMap::new(), trains: false };
        let mut has_marks: SecondaryMap<ComputationId, bool> = SecondaryMap::new();
        for &computation in graph.sequential() {
            has_marks[computation] =
                module.instructions_of(computation).any(|(id, _)| computes_gradients(module, id));
            phases.trains |= has_marks[computation];
        }
        let found = match phases.trains {
            true => None,
            false => by_structure(module),
        };
        phases.trains |= found.is_some();
        // Callers first: what says nothing by itself is what its caller is.
        for &computation in graph.sequential().iter().rev() {
            let inherited = graph.caller(computation).map(|caller| phases.of[caller]).unwrap_or_default();
            let is_entry = computation == module.entry;
            let has_halves = found.is_none() && phases.trains && (is_entry || has_marks[computation]);
            let leads_to_halves = match has_halves {
                true => ancestors(module, &marked(module, computation)),
                false => SecondaryMap::new(),
            };
            for &id in &module.computations[computation].instructions {
                phases.of[id] = match (&found, mark(module, id)) {
                    (Some(found), _) if is_entry => found[id],
                    (Some(_), _) => inherited,
                    (None, Some(phase)) => phase,
                    (None, None) if has_halves => phases.follows(module, id, leads_to_halves[id]),
                    (None, None) => inherited,
                };
            }
        }
        phases
    }

    /// The phase of an instruction.
    pub fn of(&self, instruction: InstructionId) -> Phase {
        self.of[instruction]
    }

    /// Whether gradients are computed.
    pub fn has_backward(&self) -> bool {
        self.trains
    }

    /// An operation with a name that marks no half belongs to the update if it reads gradients or if no half needs it.
    /// An instruction without a name was inserted by a compiler, and belongs to its operands.
    fn follows(&self, module: &Module, id: InstructionId, leads_to_halves: bool) -> Phase {
        let operands = module.instructions[id].operands.iter();
        let latest = operands.map(|&operand| self.of[operand]).max().unwrap_or_default();
        match latest {
            latest if operation(module, id).is_empty() => latest,
            Phase::Forward if leads_to_halves => Phase::Forward,
            _ => Phase::Update,
        }
    }
}

/// The instructions of a computation whose names say in which half they are.
fn marked(module: &Module, computation: ComputationId) -> Vec<InstructionId> {
    let instructions = module.computations[computation].instructions.iter().copied();
    instructions.filter(|&id| mark(module, id).is_some()).collect()
}

/// Whether an instruction, or a part of the kernel that it is, has a name of the backward half.
fn computes_gradients(module: &Module, id: InstructionId) -> bool {
    let is_backward = |id: InstructionId| mark(module, id) == Some(Phase::Backward);
    let instruction = &module.instructions[id];
    let interior = match instruction.op {
        Op::Fusion(_) => &module.computations[instruction.called[0]].instructions[..],
        _ => &[],
    };
    is_backward(id) || interior.iter().any(|&id| is_backward(id))
}

/// The phase in an operation's name.
fn mark(module: &Module, id: InstructionId) -> Option<Phase> {
    let name = operation(module, id);
    if name.contains("transpose(") {
        Some(Phase::Backward)
    } else {
        name.contains("jvp(").then_some(Phase::Forward)
    }
}

/// The phases of the entry computation by what depends on what; nothing where no gradients are found.
fn by_structure(module: &Module) -> Option<SecondaryMap<InstructionId, Phase>> {
    let entry = module.entry_computation();
    let results: &[InstructionId] = match &module.instructions[entry.root] {
        root if root.op == Op::Tuple => &root.operands,
        _ => std::slice::from_ref(&entry.root),
    };
    let mut walk = Walk::new(module);
    let (mut gradients, mut others) = (Vec::new(), Vec::new());
    for &result in results {
        match walk.changed_argument(result) {
            Some(leaves) => gradients.extend(leaves),
            None => others.push(result),
        }
    }
    // The loss is a small number; values computed for it, and for other results, are the forward half.
    let is_loss = |&id: &InstructionId| {
        module.shape(id).as_array().is_some_and(|array| array.rank() == 0 && array.element_type.is_floating())
    };
    let losses: Vec<InstructionId> = match others.iter().any(&is_loss) {
        true => others.into_iter().filter(&is_loss).collect(),
        false => others,
    };
    let forward = ancestors(module, &losses);
    gradients.retain(|&id| !forward[id]);
    if gradients.is_empty() || losses.is_empty() {
        return None;
    }
    let backward = ancestors(module, &gradients);
    let mut phases: SecondaryMap<InstructionId, Phase> = SecondaryMap::new();
    for &id in &entry.instructions {
        phases[id] = match (forward[id], backward[id]) {
            (true, _) => Phase::Forward,
            (_, true) => Phase::Backward,
            _ => Phase::Update,
        };
    }
    Some(phases)
}

/// Walks from results back through what works element by element.
struct Walk<'m> {
    module: &'m Module,
    seen: SecondaryMap<InstructionId, u32>,
    round: u32,
    /// Steps that are left, so that many results of one long chain do not take quadratic time.
    budget: usize,
}

impl<'m> Walk<'m> {
    fn new(module: &'m Module) -> Walk<'m> {
        Walk {
            module,
            seen: SecondaryMap::new(),
            round: 0,
            budget: module.instructions.len().saturating_mul(8),
        }
    }

    /// If a result is an argument changed element by element: the values that change it, as arrays of equal extents
    /// that are not computed element by element.
    fn changed_argument(&mut self, result: InstructionId) -> Option<Vec<InstructionId>> {
        let shape = self.module.shape(result).as_array()?;
        if shape.rank() == 0 || !shape.element_type.is_floating() {
            return None;
        }
        self.round += 1;
        let (mut work, mut leaves, mut argument) = (vec![result], Vec::new(), false);
        while let Some(id) = work.pop() {
            if std::mem::replace(&mut self.seen[id], self.round) == self.round {
                continue;
            }
            self.budget = self.budget.checked_sub(1)?;
            let instruction = &self.module.instructions[id];
            let n = work.len();
            match instruction.op {
                Op::Parameter { .. } => {
                    argument |= self.module.shape(id).as_array().is_some_and(|of| same(of, shape));
                    continue;
                }
                Op::Broadcast { .. } => continue,
                _ if instruction.operands.is_empty() => continue,
                Op::GetTupleElement { .. } => work.push(instruction.operands[0]),
                ref op
                    if op.is_elementwise()
                        || op.only_passes_on()
                        || is_loop_fusion(op)
                        || *op == Op::Copy =>
                {
                    let operands = instruction.operands.iter().copied();
                    let is_like = |id| matches!(self.module.shape(id), Shape::Array(of) if of.dimensions == shape.dimensions);
                    work.extend(operands.filter(|&operand| is_like(operand)));
                }
                _ => {}
            }
            if work.len() == n {
                leaves.push(id);
            }
        }
        argument.then_some(leaves)
    }
}

/// Kernels that may work element by element: their use of operands of equal extents is not analyzed.
fn is_loop_fusion(op: &Op) -> bool {
    matches!(op, Op::Fusion(_))
}

fn same(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.element_type == b.element_type && a.dimensions == b.dimensions
}

/// Everything in a computation that these depend on, themselves included.
fn ancestors(module: &Module, of: &[InstructionId]) -> SecondaryMap<InstructionId, bool> {
    let mut is_ancestor: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
    let mut work = of.to_vec();
    while let Some(id) = work.pop() {
        if !std::mem::replace(&mut is_ancestor[id], true) {
            work.extend(module.instructions[id].operands.iter().copied());
        }
    }
    is_ancestor
}
