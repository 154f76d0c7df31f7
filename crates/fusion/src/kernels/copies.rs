//! Operations that only move elements to another layout, and which kernels compute anything beside them.

use memplan_ir::{ArrayShape, InstructionId, Op};
use memplan_rewriter::cost;
use memplan_rewriter::views::{LANES, common_runs};

use super::Grouper;
use super::epilogues::DEPTH;

impl Grouper<'_> {
    /// Whether a kernel does nothing but copy an array into another layout, unless products load it so: libtpu has 3,533 copies
    /// of 1 MiB or more in the programs of docs/estimate.md, and computes nothing in the kernels of any.
    pub(super) fn is_copied_alone(&self, id: InstructionId) -> bool {
        self.module.instructions[id].op == Op::Copy
            && self.target.fusion.dot.windows_outside_tiles
            && !cost::moves_no_bytes(self.module, id)
            && !self.reads_smaller(id, DEPTH)
    }

    /// Whether a reshape moves elements between tiles, since it merges or splits dimensions of which the innermost one does not
    /// fill lanes: libtpu has kernels for these.
    pub(super) fn moves_parts_of_lanes(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let extents = |id: InstructionId| self.module.shape(id).as_array().map(|array| &array.dimensions[..]);
        matches!(instruction.op, Op::Reshape { .. })
            && self.target.fusion.dot.windows_outside_tiles
            && !cost::moves_no_bytes(self.module, id)
            && extents(instruction.operands[0]).zip(extents(id)).is_some_and(|(of, to)| {
                let runs = common_runs(of, to).unwrap_or_default();
                runs.iter().any(|(from, into)| {
                    let innermost = |run: &[i64], all: &[i64]| run.last().map_or(1, |&d| all[d as usize]);
                    from.len() != into.len() && innermost(from, of).min(innermost(into, to)) % LANES != 0
                })
            })
    }

    /// Whether an instruction copies an array into a layout that takes more bytes. The reader that requires that layout
    /// reads those bytes.
    pub(super) fn is_padding_copy(&self, id: InstructionId) -> bool {
        self.bytes_copied(id).is_some_and(|copied| copied < self.bytes[id])
    }

    /// Whether an instruction reads nothing but values that operations on elements, this many deep at most, make of arrays that
    /// are much smaller: these are made in any layout.
    pub(super) fn reads_smaller(&self, id: InstructionId, depth: usize) -> bool {
        self.large_arrays_read(id).all(|operand| {
            depth > 0 && cost::is_pointwise(self.module, operand) && self.reads_smaller(operand, depth - 1)
        })
    }

    /// Whether an instruction copies an array out of a layout that takes more bytes. The maker that requires that layout
    /// writes those bytes.
    pub(super) fn is_compacting_copy(&self, id: InstructionId) -> bool {
        self.bytes_copied(id).is_some_and(|copied| copied > self.bytes[id])
    }

    /// Whether an instruction moves elements between tiles that are sums, or computed from sums element by element.
    pub(super) fn moves_sums(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        matches!(instruction.op, Op::Reshape { .. } | Op::Transpose { .. })
            && self.target.fusion.dot.windows_outside_tiles
            && !cost::moves_no_bytes(self.module, id)
            && self.is_computed_from_sums(instruction.operands[0])
    }

    /// Whether an instruction puts another dimension into lanes for running sums.
    pub(super) fn turns_summands(&self, id: InstructionId) -> bool {
        let in_lanes = |id: InstructionId| {
            let array = self.module.shape(id).as_array()?;
            Some(array.dimensions[*array.minor_to_major().first()? as usize])
        };
        let instruction = &self.module.instructions[id];
        matches!(instruction.op, Op::Reshape { .. } | Op::Transpose { .. })
            && self.target.fusion.dot.windows_outside_tiles
            && in_lanes(id) != in_lanes(instruction.operands[0])
            && self.users.of(id).iter().any(|&user| self.is_running_sum(user))
    }

    /// The bytes that an instruction reads, if it copies. What rounds a parameter on the way into another layout does, too.
    pub(super) fn bytes_copied(&self, id: InstructionId) -> Option<u64> {
        let instruction = &self.module.instructions[id];
        let order = |id: InstructionId| self.module.shape(id).as_array().map(ArrayShape::minor_to_major);
        let is_input = |id: InstructionId| matches!(self.module.instructions[id].op, Op::Parameter { .. });
        let copies = match (&instruction.op, instruction.operands.first()) {
            (Op::Copy, _) => true,
            (Op::Convert, Some(&of)) => is_input(of) && order(id) != order(of),
            _ => false,
        };
        copies.then(|| cost::result_bytes(self.module, self.target, instruction.operands[0]))
    }
}
