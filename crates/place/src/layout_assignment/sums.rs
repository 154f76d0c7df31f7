//! Sums of rows, such as gradients of tables, and what is computed from them: in the layout in which rows are added up.
//!
//! ```text
//!   g = f32[1000,64]{1,0} scatter(broadcast(0), at, rows)      a row in lanes, whatever padding
//!   u = f32[1000,64]{1,0} subtract(table, g)                   so is what is made of it
//!   r = f32[1000,64]{0,1} copy(u)                              the caller wants 1000 in lanes
//! ```

use memplan_ir::{ArrayShape, InstructionId, Op, Shape};
use memplan_rewriter::rows::sums_equal_rows;
use memplan_rewriter::views::{self, Summed};
use rustc_hash::FxHashSet;

use super::{Choice, sequential_instructions};

/// How many times their bytes sums of rows may take with rows in lanes for what is computed from them to lie so, too: libtpu
/// updates a table of 18 features (5.3 times) in lanes, and one of 16 (8 times) as it lies.
const MOST_PADDING_OF_SUMS: u64 = 8;

impl Choice<'_> {
    /// Sums of rows that begin equal lie with rows in lanes, unless that takes many times as many bytes. What is computed from
    /// them element by element lies as they do, results of the program included, and so does what is computed from them after
    /// a reshape.
    pub(super) fn fix_sums(&mut self) {
        if !self.target.fusion.dot.windows_outside_tiles {
            return;
        }
        for id in sequential_instructions(self.module, self.graph) {
            let instruction = &self.module.instructions[id];
            let (Op::Scatter(numbers), &[_, _, updates]) = (&instruction.op, &instruction.operands[..])
            else {
                continue;
            };
            if !sums_equal_rows(self.module, id) {
                continue;
            }
            let computed = self.computed_by_element(id, &mut FxHashSet::default());
            let reshapes: Vec<InstructionId> = computed
                .iter()
                .flat_map(|&id| self.users.of(id))
                .copied()
                .filter(|&id| self.is_moving_reshape(id))
                .collect();
            for &reshape in &reshapes {
                let operand = self.module.instructions[reshape].operands[0];
                let ways = self.usual(operand).zip(self.usual(reshape));
                let way = ways.and_then(|(from, to)| views::reshaped_by_rows(&from, &to, self.target));
                if let Some([_, way]) = way {
                    let computed = self.computed_by_element(reshape, &mut FxHashSet::default());
                    self.fix_in_order_of(&computed, &way);
                }
            }
            let Some((usual, updates)) =
                self.usual(id).zip(self.usual(updates)).filter(|_| reshapes.is_empty())
            else {
                continue;
            };
            if let Summed::InLanes(way) = views::summed_in_lanes(&usual, &updates, numbers, self.target)
                && self.target.size_of(&way).0
                    < MOST_PADDING_OF_SUMS.saturating_mul(self.target.size_of(&Shape::Array(usual)).0)
            {
                self.fix_in_order_of(&computed, &way);
            }
        }
    }

    /// An array in the machine's own layout.
    pub(super) fn usual(&self, id: InstructionId) -> Option<ArrayShape> {
        let array = self.module.shape(id).as_array()?;
        Some(ArrayShape { layout: Some(self.target.default_layout(array)), ..array.clone() })
    }

    /// Whether a reshape moves elements if arrays have the machine's own layouts.
    fn is_moving_reshape(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let Op::Reshape { .. } = instruction.op else { return false };
        let arrays = self.usual(instruction.operands[0]).zip(self.usual(id));
        arrays.is_some_and(|(from, to)| {
            views::order_of_result(&instruction.op, &from, &to)
                .is_none_or(|order| order != to.minor_to_major())
        })
    }
}
