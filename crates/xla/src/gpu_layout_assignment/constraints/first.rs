//! What callers and libraries ask for before anything is propagated.

use memplan_ir::{DotOperand, ElementType, InstructionId, Op};
use smallvec::smallvec;

use super::super::orders::{Order, is_unusual, row_major};
use super::{Assignment, Place, Strength};

impl Assignment<'_> {
    /// What callers and libraries ask for: `AddMandatoryConstraints` and `AddBackendConstraints`.
    pub(super) fn ask_first(&mut self) {
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
