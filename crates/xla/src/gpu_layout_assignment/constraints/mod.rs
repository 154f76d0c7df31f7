//! The order of dimensions of each array, chosen as XLA's `LayoutAssignment` chooses layouts.
//!
//! A *constraint* asks for an order of a *buffer* (a leaf of the instruction that makes it) or of an operand. Libraries
//! and callers ask first. Each constraint is then propagated depth first: from a buffer to the operands of its instruction
//! and to its users, from an operand to the buffers behind it, to other operands and to the result. What nothing asks
//! about is row-major. A mandatory constraint replaces others, so a buffer and an operand that it is read as may
//! differ in the end; then the operand is a copy.
//!
//! When nothing is left to propagate, constraints cross the boundaries of loops and conditionals: the state of a loop
//! gets one order, inside the loop and around it. If the loop before wants another one, the state is copied.

mod boundaries;
mod first;
mod propagation;

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayShape, ComputationId, InstructionId, Module, Op, Users};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::orders::{Leaves, Order, Orders, element_leaves, row_major};
use boundaries::Decided;

/// Chooses orders; `None` if constraints do not settle.
pub(super) fn orders(module: &Module) -> Option<Orders> {
    let mut assignment = Assignment::new(module);
    assignment.ask_first();
    assignment.propagate_everywhere()?;
    while let Some(&buffer) = assignment.free.first() {
        assignment.ask_buffer(buffer, &row_major(assignment.buffers[buffer].rank), false, true, 0);
        assignment.propagate_everywhere()?;
    }
    let results = assignment.agree_with_callees();
    assignment.propagate()?;
    let mut of = SecondaryMap::new();
    for id in assignment.listed.iter().flatten() {
        of[*id] = assignment.found(*id);
    }
    let operands = assignment.operands.iter().map(|(&key, asked)| (key, asked.orders.clone())).collect();
    Some(Orders { of, operands, results })
}

/// A leaf of the instruction that makes it; tuples and their elements only name it.
struct Buffer {
    instruction: InstructionId,
    leaf: usize,
    rank: usize,
    /// The arrays that are this buffer.
    names: Vec<InstructionId>,
    asked: Option<Asked>,
}

/// A constraint.
#[derive(Clone)]
struct Asked {
    orders: Leaves,
    strength: Strength,
}

#[derive(Clone, Copy)]
struct Strength {
    is_mandatory: bool,
    is_depth_first: bool,
    priority: i64,
}

/// Where a constraint is.
#[derive(Clone, Copy)]
enum Place {
    Buffer(usize),
    Operand(InstructionId, usize),
    Result(ComputationId),
}

struct Assignment<'m> {
    module: &'m Module,
    users: Users,
    /// Callees first, without functions of scalars.
    computations: Vec<ComputationId>,
    bodies: FxHashSet<ComputationId>,
    /// Loops and conditionals.
    callers: Vec<InstructionId>,
    /// Computations whose caller passes row-major arrays.
    row_major: FxHashSet<ComputationId>,
    /// The instructions of each of these computations, operands first, as XLA lists them.
    listed: Vec<Vec<InstructionId>>,
    leaves: SecondaryMap<InstructionId, SmallVec<[usize; 1]>>,
    buffers: Vec<Buffer>,
    operands: FxHashMap<(InstructionId, usize), Asked>,
    added: Vec<(Place, Strength)>,
    /// Buffers that nothing was asked about yet.
    free: BTreeSet<usize>,
    /// For each buffer, the numbers of the callers at whose boundaries it is.
    callers_at: Vec<SmallVec<[usize; 2]>>,
    /// The numbers of callers whose boundaries may have something to ask for: without what earlier loops leave, and by that.
    open: [BTreeSet<usize>; Decided::ALL.len()],
}

impl<'m> Assignment<'m> {
    fn new(module: &'m Module) -> Assignment<'m> {
        let mut assignment = Assignment {
            module,
            users: Users::new(module),
            computations: Vec::new(),
            bodies: FxHashSet::default(),
            callers: Vec::new(),
            row_major: FxHashSet::from_iter([module.entry]),
            listed: Vec::new(),
            leaves: SecondaryMap::new(),
            buffers: Vec::new(),
            operands: FxHashMap::default(),
            added: Vec::new(),
            free: BTreeSet::new(),
            callers_at: Vec::new(),
            open: Default::default(),
        };
        let mut called: FxHashSet<ComputationId> = FxHashSet::from_iter([module.entry]);
        for instruction in module.instructions.values() {
            match &instruction.op {
                Op::While => _ = assignment.bodies.insert(instruction.called[0]),
                Op::Conditional => {}
                op if op.runs_callees() => assignment.row_major.extend(&instruction.called),
                _ => continue,
            }
            called.extend(&instruction.called);
        }
        for computation in module.computations.keys().filter(|id| called.contains(id)) {
            let listed = operands_first(module, computation);
            for &id in &listed {
                assignment.name_leaves(id);
                if matches!(module.instructions[id].op, Op::While | Op::Conditional) {
                    assignment.callers.push(id);
                }
            }
            assignment.listed.push(listed);
            assignment.computations.push(computation);
        }
        assignment.open_boundaries();
        assignment
    }
}

impl Assignment<'_> {
    fn name_leaves(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        let shape = self.module.shape(id);
        let leaves = match &instruction.op {
            Op::Tuple => {
                instruction.operands.iter().flat_map(|&operand| self.leaves[operand].clone()).collect()
            }
            Op::GetTupleElement { .. } => {
                let operand = instruction.operands[0];
                let range = element_leaves(self.module, id);
                self.leaves[operand][range].iter().copied().collect()
            }
            Op::OptimizationBarrier | Op::AddDependency => self.leaves[instruction.operands[0]].clone(),
            _ => {
                let first = self.buffers.len();
                for (leaf, (_, shape)) in shape.leaves().into_iter().enumerate() {
                    let rank = shape.as_array().map_or(0, ArrayShape::rank);
                    let names = Vec::new();
                    if rank > 1 {
                        self.free.insert(self.buffers.len());
                    }
                    self.buffers.push(Buffer { instruction: id, leaf, rank, names, asked: None });
                }
                (first..self.buffers.len()).collect()
            }
        };
        if shape.as_array().is_some() {
            self.buffers[leaves[0]].names.push(id);
        }
        self.leaves[id] = leaves;
    }

    /// The orders of a value by the constraints of its buffers.
    fn found(&self, id: InstructionId) -> Leaves {
        let of_buffer = |&buffer: &usize| {
            let Buffer { rank, asked, .. } = &self.buffers[buffer];
            asked.as_ref().map_or_else(|| row_major(*rank), |asked| asked.orders[0].clone())
        };
        self.leaves[id].iter().map(of_buffer).collect()
    }

    fn row_major_leaves(&self, id: InstructionId) -> Leaves {
        self.leaves[id].iter().map(|&buffer| row_major(self.buffers[buffer].rank)).collect()
    }

    fn rank(&self, id: InstructionId) -> usize {
        self.module.shape(id).as_array().map_or(0, ArrayShape::rank)
    }

    fn is_at_most_vector(&self, id: InstructionId) -> bool {
        self.leaves[id].iter().all(|&buffer| self.buffers[buffer].rank <= 1)
    }

    fn ask_instruction(&mut self, id: InstructionId, orders: &[Order]) {
        for (leaf, order) in orders.iter().enumerate() {
            self.ask_buffer(self.leaves[id][leaf], order, true, true, 0);
        }
    }

    /// `PropagateUseConstraintToDefs`.
    fn ask_buffers_of(&mut self, id: InstructionId, orders: &Leaves, priority: i64) {
        for (leaf, order) in orders.iter().enumerate() {
            let buffer = self.leaves[id][leaf];
            let made_by = self.buffers[buffer].instruction;
            let is_reduction = matches!(self.module.instructions[made_by].op, Op::Reduce { .. });
            if !(is_reduction && self.module.shape(made_by).is_tuple()) {
                self.ask_buffer(buffer, order, false, true, priority);
            }
        }
    }

    /// `SetBufferLayout`.
    fn ask_buffer(
        &mut self,
        buffer: usize,
        order: &Order,
        is_mandatory: bool,
        is_depth_first: bool,
        priority: i64,
    ) {
        let of = &mut self.buffers[buffer];
        if of.rank <= 1 {
            return;
        }
        self.free.remove(&buffer);
        let strength = Strength { is_mandatory, is_depth_first, priority };
        match &mut of.asked {
            Some(asked) if asked.orders[0] == *order => {
                let known = &mut asked.strength;
                let is_stronger = is_mandatory && !known.is_mandatory
                    || is_depth_first && !known.is_depth_first
                    || priority > known.priority;
                if !is_stronger {
                    return;
                }
                known.is_mandatory |= is_mandatory;
                known.is_depth_first |= is_depth_first;
                known.priority = known.priority.max(priority);
            }
            Some(asked) => {
                let is_array = self.module.shape(of.instruction).as_array().is_some();
                if !is_mandatory && (!is_array || priority <= asked.strength.priority) {
                    return;
                }
                *asked = Asked { orders: smallvec![order.clone()], strength };
            }
            None => of.asked = Some(Asked { orders: smallvec![order.clone()], strength }),
        }
        let strength = of.asked.as_ref().map_or(strength, |asked| asked.strength);
        self.open.iter_mut().for_each(|open| open.extend(&self.callers_at[buffer]));
        self.add(Place::Buffer(buffer), strength);
    }

    /// `SetOperandLayout`.
    fn ask_operand(
        &mut self,
        id: InstructionId,
        number: usize,
        orders: &Leaves,
        is_mandatory: bool,
        mut is_depth_first: bool,
        mut priority: i64,
    ) {
        let instruction = &self.module.instructions[id];
        if self.is_at_most_vector(instruction.operands[number]) {
            return;
        }
        let is_lesser = match instruction.op {
            Op::DynamicUpdateSlice => number > 0,
            Op::Reshape { .. } => {
                matches!(self.module.instructions[instruction.operands[0]].op, Op::DynamicSlice { .. })
            }
            _ => false,
        };
        if is_lesser && !is_mandatory {
            (is_depth_first, priority) = (false, priority - 1);
        }
        if let Some(asked) = self.operands.get(&(id, number))
            && (asked.orders == *orders || !is_mandatory || asked.strength.priority > priority)
        {
            return;
        }
        let strength = Strength { is_mandatory, is_depth_first, priority };
        self.operands.insert((id, number), Asked { orders: orders.clone(), strength });
        self.add(Place::Operand(id, number), strength);
    }

    /// `PushAddedConstraints`.
    fn add(&mut self, place: Place, strength: Strength) {
        let at = match strength.is_depth_first {
            true => self.added.len(),
            false => {
                let is_before = |(_, other): &(Place, Strength)| strength.priority <= other.priority;
                self.added.iter().rposition(is_before).map_or(0, |at| at + 1)
            }
        };
        self.added.insert(at, (place, strength));
    }
}

/// The instructions of a computation, each after its operands, the first operand's first.
fn operands_first(module: &Module, computation: ComputationId) -> Vec<InstructionId> {
    let listed = &module.computations[computation].instructions;
    let mut is_used: FxHashSet<InstructionId> = FxHashSet::default();
    listed.iter().for_each(|&id| is_used.extend(&module.instructions[id].operands));
    let mut done: FxHashSet<InstructionId> = FxHashSet::default();
    let mut order = Vec::with_capacity(listed.len());
    for &end in listed.iter().filter(|id| !is_used.contains(id)) {
        let mut stack = vec![(end, 0)];
        while let Some((id, next)) = stack.pop() {
            let instruction = &module.instructions[id];
            match instruction.operands.iter().chain(&instruction.control_predecessors).nth(next) {
                _ if done.contains(&id) => {}
                Some(&operand) => stack.extend([(id, next + 1), (operand, 0)]),
                None => {
                    done.insert(id);
                    order.push(id);
                }
            }
        }
    }
    order
}
