//! Constraints that pass from buffers to operands and users, and from operands to buffers and results.

use std::collections::VecDeque;

use memplan_ir::{Dimensions, InstructionId, Op};
use memplan_rewriter::views::inverse;
use smallvec::smallvec;

use super::super::orders::{Order, aligned};
use super::boundaries::Decided;
use super::{Asked, Assignment, Place};

/// Reductions of fewer elements leave the order of their operand to others.
const FEWEST_REDUCED: i64 = 32;
/// Steps for each instruction after which propagation gives up; it takes a few.
const MOST_STEPS: usize = 1000;

impl Assignment<'_> {
    /// Propagates within computations, then across boundaries, until nothing changes.
    pub(super) fn propagate_everywhere(&mut self) -> Option<()> {
        self.propagate()?;
        while let Some(boundary) = Decided::ALL.into_iter().find_map(|decided| self.next_boundary(decided)) {
            boundary.into_iter().for_each(|leaf| self.ask_across(leaf));
            self.propagate()?;
        }
        Some(())
    }

    pub(super) fn propagate(&mut self) -> Option<()> {
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
