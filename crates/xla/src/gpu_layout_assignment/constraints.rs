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

use std::collections::{BTreeSet, VecDeque};

use cranelift_entity::SecondaryMap;
use memplan_ir::{
    ArrayShape, ComputationId, Dimensions, DotOperand, ElementType, InstructionId, Layout, Module, Op, Shape,
    Users,
};
use memplan_rewriter::views::{inverse, order_of_result};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

/// The dimensions of an array, major first.
pub(super) type Order = Dimensions;
/// The orders of the leaves of a value.
pub(super) type Leaves = SmallVec<[Order; 1]>;

/// Reductions of fewer elements leave the order of their operand to others.
const FEWEST_REDUCED: i64 = 32;
/// Steps for each instruction after which propagation gives up; it takes a few.
const MOST_STEPS: usize = 1000;

/// What was found.
pub(super) struct Orders {
    pub(super) of: SecondaryMap<InstructionId, Leaves>,
    pub(super) operands: FxHashMap<(InstructionId, usize), Leaves>,
    /// Results of bodies and branches.
    pub(super) results: FxHashMap<ComputationId, Leaves>,
}

impl Orders {
    /// Whether every array stays as it is.
    pub(super) fn are_row_major(&self) -> bool {
        let leaves = self.of.values().chain(self.operands.values()).chain(self.results.values());
        leaves.flatten().all(|order| order.iter().is_sorted())
    }
}

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

/// Leaves that have to be in one order.
struct Boundary {
    buffers: Vec<usize>,
    order: Order,
    is_loop: bool,
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
    open: [BTreeSet<usize>; 2],
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

    /// Notes which buffers are at which boundaries; each may have something to ask for.
    fn open_boundaries(&mut self) {
        self.callers_at = vec![SmallVec::new(); self.buffers.len()];
        for (number, &caller) in self.callers.iter().enumerate() {
            for value in self.same_values(caller).into_iter().flatten() {
                self.leaves[value].iter().for_each(|&buffer| self.callers_at[buffer].push(number));
            }
            self.open.iter_mut().for_each(|open| _ = open.insert(number));
        }
    }

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

    /// What callers and libraries ask for: `AddMandatoryConstraints` and `AddBackendConstraints`.
    fn ask_first(&mut self) {
        for (computation, listed) in self.computations.clone().into_iter().zip(self.listed.clone()) {
            let is_row_major = self.row_major.contains(&computation);
            for &id in &listed {
                let is_parameter = matches!(self.module.instructions[id].op, Op::Parameter { .. });
                if is_row_major && is_parameter || self.is_fixed(id) {
                    self.ask_instruction(id, &self.row_major_leaves(id));
                }
                if self.is_fixed(id) {
                    (0..self.module.instructions[id].operands.len())
                        .for_each(|number| self.ask_row_major(id, number));
                }
            }
            if is_row_major {
                let strength = Strength { is_mandatory: true, is_depth_first: true, priority: 0 };
                self.added.push((Place::Result(computation), strength));
            }
            listed.iter().rev().for_each(|&id| self.ask_for_kernel(id));
        }
    }

    /// Propagates within computations, then across boundaries, until nothing changes.
    fn propagate_everywhere(&mut self) -> Option<()> {
        self.propagate()?;
        while let Some(boundary) = self.next_boundary(false).or_else(|| self.next_boundary(true)) {
            boundary.into_iter().for_each(|leaf| self.ask_across(leaf));
            self.propagate()?;
        }
        Some(())
    }

    /// The first boundary with something to ask for, by what earlier loops leave or not. One without is looked at again when
    /// something is asked of its buffers.
    fn next_boundary(&mut self, by_loops: bool) -> Option<Vec<Boundary>> {
        while let Some(&number) = self.open[usize::from(by_loops)].first() {
            let boundary = self.boundary(self.callers[number], by_loops);
            if boundary.iter().any(|leaf| self.is_new(leaf)) {
                return Some(boundary);
            }
            self.open[usize::from(by_loops)].remove(&number);
        }
        None
    }

    /// Whether some of it has no order yet, or can be stored again.
    fn is_new(&self, Boundary { buffers, order, is_loop }: &Boundary) -> bool {
        buffers.iter().enumerate().any(|(number, &buffer)| match &self.buffers[buffer].asked {
            Some(asked) => {
                number == 1 && *is_loop && asked.orders[0] != *order && !asked.strength.is_mandatory
            }
            None => self.buffers[buffer].rank > 1,
        })
    }

    fn ask_across(&mut self, Boundary { buffers, order, is_loop }: Boundary) {
        for (number, buffer) in buffers.into_iter().enumerate() {
            match &self.buffers[buffer].asked {
                // What a loop begins with is stored again.
                Some(asked) if asked.orders[0] != order => {
                    if number == 1 && is_loop && !asked.strength.is_mandatory {
                        self.ask_buffer(buffer, &order, true, true, 1);
                    }
                }
                _ => self.ask_buffer(buffer, &order, false, true, 0),
            }
        }
    }

    /// Values that are the same at a loop or conditional.
    fn same_values(&self, id: InstructionId) -> Vec<Vec<InstructionId>> {
        let instruction = &self.module.instructions[id];
        let parameter = |computation: &ComputationId| self.module.computations[*computation].parameters[0];
        let root = |computation: &ComputationId| self.module.computations[*computation].root;
        if instruction.op == Op::While {
            let [body, condition] = [&instruction.called[0], &instruction.called[1]];
            return vec![vec![
                parameter(body),
                instruction.operands[0],
                parameter(condition),
                root(body),
                id,
            ]];
        }
        let branches = instruction.called.iter();
        let given = branches.clone().zip(&instruction.operands[1..]);
        let given = given.map(|(branch, &operand)| vec![parameter(branch), operand]);
        given.chain([branches.map(root).chain([id]).collect()]).collect()
    }

    /// The leaves that are the same at a loop or conditional, with the order of the first that has one.
    fn boundary(&self, id: InstructionId, by_loops: bool) -> Vec<Boundary> {
        let is_loop = self.module.instructions[id].op == Op::While;
        let mut boundaries = Vec::new();
        for values in self.same_values(id) {
            for leaf in 0..self.leaves[values[0]].len() {
                let buffers: Vec<usize> = values.iter().map(|&value| self.leaves[value][leaf]).collect();
                let decides = |&(number, &buffer): &(usize, &usize)| {
                    let is_made_by_loop = || self.module.shape(self.buffers[buffer].instruction).is_tuple();
                    number != 1 || self.is_only_passed_on(buffer) && (by_loops || !is_made_by_loop())
                };
                let deciding = buffers.iter().enumerate().filter(decides);
                let mut known = deciding.filter_map(|(_, &buffer)| self.buffers[buffer].asked.as_ref());
                if let Some(order) = known.next().map(|asked| asked.orders[0].clone()) {
                    boundaries.push(Boundary { buffers, order, is_loop });
                }
            }
        }
        boundaries
    }

    /// Whether nothing but loops reads a value.
    fn is_only_passed_on(&self, buffer: usize) -> bool {
        let users = self.buffers[buffer].names.iter().flat_map(|&name| self.users.of(name));
        users.into_iter().all(|&user| self.module.instructions[user].op == Op::Tuple)
    }

    /// Binds callers to the orders inside; returns those of results.
    fn agree_with_callees(&mut self) -> FxHashMap<ComputationId, Leaves> {
        let mut results = FxHashMap::default();
        for id in self.callers.clone() {
            let instruction = &self.module.instructions[id];
            let parameter = |computation: ComputationId| self.module.computations[computation].parameters[0];
            if instruction.op == Op::While {
                let [body, condition] = [instruction.called[0], instruction.called[1]];
                let state = self.found(parameter(body));
                self.ask_instruction(parameter(condition), &state);
                self.ask_operand(id, 0, &state, true, true, 0);
                self.ask_instruction(id, &state);
                results.insert(body, state);
                continue;
            }
            let result = self.found(id);
            for (number, &branch) in instruction.called.iter().enumerate() {
                let given = self.found(parameter(branch));
                self.ask_operand(id, number + 1, &given, true, true, 0);
                results.insert(branch, result.clone());
            }
        }
        results
    }

    /// Operations that know only row-major arrays.
    fn is_fixed(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let is_unusual = |id: InstructionId| is_unusual(self.module, id);
        let has_orders = match &instruction.op {
            Op::Tuple | Op::GetTupleElement { .. } | Op::While | Op::Conditional | Op::Parameter { .. } => {
                return false;
            }
            Op::ReduceWindow(_) | Op::AllReduce(_) => !self.module.shape(id).is_tuple(),
            Op::BitcastConvert => self.rank(id) == self.rank(instruction.operands[0]),
            Op::AddDependency
            | Op::Broadcast { .. }
            | Op::CollectivePermute(_)
            | Op::Concatenate { .. }
            | Op::Constant(_)
            | Op::Dot(_)
            | Op::DynamicUpdateSlice
            | Op::Gather(_)
            | Op::Iota { .. }
            | Op::Map { .. }
            | Op::OptimizationBarrier
            | Op::Pad { .. }
            | Op::Reduce { .. }
            | Op::Reshape { .. }
            | Op::Reverse { .. }
            | Op::Scatter(_)
            | Op::SelectAndScatter(_)
            | Op::Slice { .. }
            | Op::Transpose { .. } => true,
            // Of an index for each dimension.
            Op::DynamicSlice { .. } => self.rank(id) + 1 == instruction.operands.len(),
            op => op.is_elementwise(),
        };
        let is_in_place = instruction.op.permutes_in_place();
        !has_orders
            || is_in_place
            || is_unusual(id)
            || instruction.operands.iter().any(|&operand| is_unusual(operand))
    }

    fn ask_row_major(&mut self, id: InstructionId, number: usize) {
        let operand = self.module.instructions[id].operands[number];
        self.ask_operand(id, number, &self.row_major_leaves(operand), true, true, 0);
    }

    /// `AddBackendConstraints`.
    fn ask_for_kernel(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Dot(_) => _ = self.ask_for_product(id),
            Op::Transpose { dimensions } => {
                let dot = instruction.operands[0];
                let is_product = matches!(self.module.instructions[dot].op, Op::Dot(_));
                if is_product && self.users.of(dot).len() == 1 && self.writes(dot, dimensions) {
                    self.ask_operand(id, 0, &smallvec![dimensions.clone()], true, true, 0);
                }
            }
            _ => {}
        }
    }

    fn ask_for_product(&mut self, id: InstructionId) -> Option<()> {
        let instruction = &self.module.instructions[id];
        let Op::Dot(dot) = &instruction.op else { return None };
        let type_of = |id: InstructionId| self.module.shape(id).as_array().map(|array| array.element_type);
        let is_integer = type_of(id) == Some(ElementType::S32)
            && instruction.operands.iter().all(|&operand| type_of(operand) == Some(ElementType::S8));
        let is_f8 =
            instruction.operands.iter().all(|&operand| type_of(operand) == Some(ElementType::F8e4m3fn));
        let mut has_several = !dot.dimensions.lhs_batch.is_empty();
        for (number, side) in [DotOperand::Lhs, DotOperand::Rhs].into_iter().enumerate() {
            let rank = self.rank(instruction.operands[number]);
            let (batch, contracted) = (dot.dimensions.batch(side), dot.dimensions.contracting(side));
            let free = dot.dimensions.free(side, rank);
            has_several |= free.len() > 1;
            let order = if is_integer || is_f8 {
                [&batch[..], &free, contracted].concat().into()
            } else if batch.is_empty() && contracted.len() <= 1 && free.len() <= 1 {
                continue;
            } else {
                // The layout that the program has, or else row-major.
                let array = self.module.shape(instruction.operands[number]).as_array()?;
                let given: Order = array.minor_to_major().into_iter().rev().collect();
                let mut tried = [given, row_major(rank)].into_iter();
                let order = tried.find(|order| is_matrix(order, batch, contracted, &free));
                order.unwrap_or_else(|| [&batch[..], contracted, &free].concat().into())
            };
            self.ask_operand(id, number, &smallvec![order], true, true, 0);
        }
        if has_several {
            let asked = self.users.of(id).iter().find_map(|&user| {
                let operands = self.module.instructions[user].operands.iter().enumerate();
                operands.filter(|&(_, &operand)| operand == id).find_map(|(number, _)| {
                    let order = &self.operands.get(&(user, number))?.orders[0];
                    self.writes(id, order).then(|| order.clone())
                })
            });
            let order = asked.unwrap_or_else(|| row_major(self.rank(id)));
            self.ask_instruction(id, &[order]);
        }
        Some(())
    }

    /// Whether a library can write a product in an order.
    fn writes(&self, id: InstructionId, order: &Order) -> bool {
        let instruction = &self.module.instructions[id];
        let Op::Dot(dot) = &instruction.op else { return false };
        let n_batch = dot.dimensions.lhs_batch.len() as i64;
        let n_rows = dot.dimensions.free(DotOperand::Lhs, self.rank(instruction.operands[0])).len() as i64;
        let dimensions = |range: std::ops::Range<i64>| range.collect::<Order>();
        let end = n_batch + n_rows;
        is_matrix(
            order,
            &dimensions(0..n_batch),
            &dimensions(n_batch..end),
            &dimensions(end..order.len() as i64),
        )
    }

    fn propagate(&mut self) -> Option<()> {
        let mut open: VecDeque<Place> = VecDeque::new();
        let mut steps = 0;
        let most = MOST_STEPS * (self.buffers.len() + 1);
        loop {
            for (place, strength) in std::mem::take(&mut self.added) {
                match strength.is_depth_first {
                    true => open.push_front(place),
                    false => open.push_back(place),
                }
            }
            let Some(place) = open.pop_front() else { return Some(()) };
            steps += 1;
            if steps > most {
                self.added.clear();
                return None;
            }
            match place {
                Place::Buffer(buffer) => {
                    let asked = self.buffers[buffer].asked.clone().expect("it was asked about");
                    self.buffer_to_operands(buffer, &asked);
                    self.buffer_to_users(buffer, &asked);
                }
                Place::Operand(id, number) => self.pass_on_operand(id, number),
                Place::Result(computation) => {
                    let root = self.module.computations[computation].root;
                    self.ask_buffers_of(root, &self.row_major_leaves(root), 0);
                }
            }
        }
    }

    fn buffer_to_operands(&mut self, buffer: usize, asked: &Asked) {
        let id = self.buffers[buffer].instruction;
        let order = &asked.orders[0];
        let instruction = &self.module.instructions[id];
        for number in 0..instruction.operands.len() {
            let operand = instruction.operands[number];
            if self.is_at_most_vector(operand) || self.module.shape(operand).is_tuple() {
                continue;
            }
            let operand_rank = self.rank(operand);
            if !can_change_layout(&instruction.op) {
                if operand_rank == order.len() && self.has_order_of_result(id, number) {
                    self.ask_operand(id, number, &asked.orders, true, true, 0);
                }
            } else if let Op::Broadcast { dimensions } = &instruction.op {
                let place = |d: &i64| dimensions.iter().position(|other| other == d).map(|at| at as i64);
                let order: Order = order.iter().filter_map(place).collect();
                self.ask_operand(id, number, &smallvec![order], true, false, 0);
            } else if !self.module.shape(id).is_tuple()
                && let Some(order) = self.order_of_operand(id, order)
            {
                let is_depth_first = self.goes_depth_first(id);
                self.ask_operand(id, number, &smallvec![order], false, is_depth_first, 0);
            }
        }
    }

    fn buffer_to_users(&mut self, buffer: usize, asked: &Asked) {
        for name in self.buffers[buffer].names.clone() {
            for user in self.users.of(name).to_vec() {
                for number in 0..self.module.instructions[user].operands.len() {
                    if self.module.instructions[user].operands[number] == name && !self.forwards(user, number)
                    {
                        self.ask_operand(user, number, &asked.orders, false, true, asked.strength.priority);
                    }
                }
            }
        }
        // The state of a loop begins its next step in the order in which this one leaves it.
        let id = self.buffers[buffer].instruction;
        let parent = self.module.instructions[id].parent;
        let root = self.module.computations[parent].root;
        if self.bodies.contains(&parent)
            && self.module.instructions[root].op == Op::Tuple
            && let Some(index) =
                self.module.instructions[root].operands.iter().position(|&operand| operand == id)
        {
            let parameter = self.module.computations[parent].parameters[0];
            let before = &self.module.instructions[root].operands[..index];
            let first: usize = before.iter().map(|&operand| self.leaves[operand].len()).sum();
            let state = self.leaves[parameter][first + self.buffers[buffer].leaf];
            self.ask_buffer(state, &asked.orders[0], false, true, 0);
        }
    }

    fn pass_on_operand(&mut self, id: InstructionId, number: usize) {
        let instruction = &self.module.instructions[id];
        let operand = instruction.operands[number];
        let Asked { orders, strength } = self.operands[&(id, number)].clone();
        if self.is_at_most_vector(operand) {
            return;
        }
        self.ask_buffers_of(operand, &orders, strength.priority);
        let is_tuple = self.module.shape(id).is_tuple();
        let changes = can_change_layout(&instruction.op);
        let is_reduction = matches!(instruction.op, Op::Reduce { .. });
        if self.module.shape(operand).is_tuple()
            || changes && is_tuple && !is_reduction
            || self.forwards(id, number)
        {
            return;
        }
        let rank = self.rank(operand);
        if !changes || is_reduction {
            if let Op::Concatenate { dimension } = &instruction.op {
                let extent = |id: InstructionId| {
                    self.module.shape(id).as_array().map_or(0, |array| array.dimensions[*dimension as usize])
                };
                if instruction.operands.iter().any(|&sibling| extent(sibling) > extent(operand)) {
                    return;
                }
            }
            if !self.has_order_of_result(id, number) {
                return;
            }
            for sibling in 0..instruction.operands.len() {
                let other = instruction.operands[sibling];
                if other != operand
                    && !self.module.shape(other).is_tuple()
                    && self.rank(other) == rank
                    && self.has_order_of_result(id, sibling)
                {
                    self.ask_operand(id, sibling, &orders, true, true, strength.priority);
                }
            }
            for buffer in self.leaves[id].clone() {
                if self.buffers[buffer].instruction == id && self.buffers[buffer].rank == rank {
                    self.ask_buffer(buffer, &orders[0], true, true, strength.priority);
                }
            }
            return;
        }
        if let Some(order) = self.order_of_result(id, &orders[0]) {
            let is_mandatory = matches!(instruction.op, Op::Transpose { .. });
            let is_depth_first = self.goes_depth_first(id);
            self.ask_buffer(self.leaves[id][0], &order, is_mandatory, is_depth_first, strength.priority);
        }
    }

    /// The order of the result that makes a reshape or transpose another view.
    fn order_of_result(&self, id: InstructionId, order: &Order) -> Option<Order> {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Transpose { dimensions } => {
                let places = inverse(dimensions);
                Some(order.iter().map(|&d| places[d as usize]).collect())
            }
            Op::Reshape { .. } => self.aligned(instruction.operands[0], order, id),
            _ => None,
        }
    }

    /// The order of the operand that makes a reshape or transpose another view, or a reduction one of rows.
    fn order_of_operand(&self, id: InstructionId, order: &Order) -> Option<Order> {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Transpose { dimensions } => Some(order.iter().map(|&d| dimensions[d as usize]).collect()),
            Op::Reshape { .. } => self.aligned(id, order, instruction.operands[0]),
            Op::Reduce { dimensions } => {
                let array = self.module.shape(instruction.operands[0]).as_array()?;
                let n_reduced: i64 = dimensions.iter().map(|&d| array.dimensions[d as usize]).product();
                let kept: Order = (0..array.rank() as i64).filter(|d| !dimensions.contains(d)).collect();
                let order = order.iter().map(|&d| kept[d as usize]).chain(dimensions.iter().copied());
                (n_reduced >= FEWEST_REDUCED).then(|| order.collect())
            }
            _ => None,
        }
    }

    fn aligned(&self, from: InstructionId, order: &Order, to: InstructionId) -> Option<Order> {
        aligned(self.module.shape(from).as_array()?, order, self.module.shape(to).as_array()?)
    }

    fn goes_depth_first(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Gather(_) | Op::Scatter(_) | Op::Transpose { .. } => true,
            Op::Reshape { .. } => {
                let long = |id: InstructionId| -> Dimensions {
                    let array = self.module.shape(id).as_array().expect("arrays are reshaped");
                    array.dimensions.iter().copied().filter(|&extent| extent != 1).collect()
                };
                self.rank(instruction.operands[0]) == 1 || long(id) == long(instruction.operands[0])
            }
            _ => false,
        }
    }

    /// Whether an operand is the result, or an element of it.
    fn forwards(&self, id: InstructionId, number: usize) -> bool {
        match self.module.instructions[id].op {
            Op::Tuple | Op::GetTupleElement { .. } | Op::OptimizationBarrier => true,
            Op::AddDependency => number == 0,
            _ => false,
        }
    }

    /// Whether an operand of the result's rank has its order. `ScatterSimplifier` gives updates a dimension more than the result.
    fn has_order_of_result(&self, id: InstructionId, number: usize) -> bool {
        let instruction = &self.module.instructions[id];
        !matches!(instruction.op, Op::Scatter(_)) || number <= instruction.operands.len() / 2
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

/// Whether a value has a layout that is not ours to choose: in another memory, tiled, or asked for by a library call.
pub(super) fn is_unusual(module: &Module, id: InstructionId) -> bool {
    let mut maker = id;
    while let Op::GetTupleElement { .. } = module.instructions[maker].op {
        maker = module.instructions[maker].operands[0];
    }
    let is_asked_for = matches!(module.instructions[maker].op, Op::Copy | Op::CustomCall(_));
    module.shape(id).any_array(|array| {
        array.is_dynamic()
            || array.layout.as_ref().is_some_and(|layout| {
                let order = layout.minor_to_major.clone();
                *layout != Layout::with_order(order) || is_asked_for && !layout.is_row_major()
            })
    })
}

pub(super) fn row_major(rank: usize) -> Order {
    (0..rank as i64).collect()
}

/// Which leaves of its operand a get-tuple-element is.
pub(super) fn element_leaves(module: &Module, id: InstructionId) -> std::ops::Range<usize> {
    let instruction = &module.instructions[id];
    let Op::GetTupleElement { index } = instruction.op else { return 0..0 };
    let elements = module.shape(instruction.operands[0]).as_tuple().expect("elements are taken of tuples");
    let first = elements[..index as usize].iter().map(Shape::leaf_count).sum();
    first..first + elements[index as usize].leaf_count()
}

/// The order of `to` in which a reshape is another view of `from` in some order. Extents of one stay before the next
/// dimension, or at the end.
pub(super) fn aligned(from: &ArrayShape, order: &Order, to: &ArrayShape) -> Option<Order> {
    let is_long = |array: &ArrayShape, d: i64| array.dimensions[d as usize] != 1;
    let n_long = |array: &ArrayShape| (0..array.rank() as i64).filter(|&d| is_long(array, d)).count();
    if n_long(from) == 1 && n_long(to) == 1 {
        return None;
    }
    let layout = Some(Layout::with_order(order.iter().rev().copied()));
    let from = ArrayShape { layout, ..from.clone() };
    let mut found = order_of_result(&Op::Reshape { inferred_dimension: None }, &from, to)?;
    found.reverse();
    found.retain(|d| is_long(to, *d));
    for d in (0..to.rank() as i64).rev().filter(|&d| !is_long(to, d)) {
        let next = found.iter().position(|&other| other == d + 1);
        found.insert(next.unwrap_or(found.len()), d);
    }
    Some(found)
}

/// Whether an operation may have another layout than its operands (`InstructionCanChangeLayout`).
fn can_change_layout(op: &Op) -> bool {
    match op {
        Op::Copy | Op::Broadcast { .. } | Op::Constant(_) | Op::Iota { .. } | Op::Parameter { .. } => true,
        Op::Concatenate { .. }
        | Op::AddDependency
        | Op::BitcastConvert
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::Map { .. }
        | Op::OptimizationBarrier
        | Op::Pad { .. }
        | Op::ReduceWindow(_)
        | Op::Reverse { .. }
        | Op::Scatter(_)
        | Op::SelectAndScatter(_)
        | Op::Slice { .. }
        | Op::Sort { .. }
        | Op::While
        | Op::SetDimensionSize { .. } => false,
        op if op.collective().is_some() => false,
        op => !op.is_elementwise(),
    }
}

/// Whether a library reads or writes matrices in an order (`MatrixLayout::For`): batches, rows and columns are each in one
/// piece, and batches are not innermost.
fn is_matrix(order: &Order, batch: &[i64], rows: &[i64], columns: &[i64]) -> bool {
    let mut pieces = vec![];
    let mut at = 0;
    while at < order.len() {
        let Some(piece) = [batch, rows, columns]
            .into_iter()
            .position(|piece| !piece.is_empty() && order[at..].starts_with(piece))
        else {
            return false;
        };
        pieces.push(piece);
        at += [batch, rows, columns][piece].len();
    }
    pieces.last() != Some(&0) || rows.is_empty() && columns.is_empty()
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
