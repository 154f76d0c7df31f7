//! The cost of fusing a producer: bytes that stay alive longer, and bytes that are moved.

use memplan_ir::{InstructionId, Op, ShapeIndex};
use memplan_memory::{Bytes, FusionGoal};
use memplan_rewriter::cost::CostClass;

use super::super::report::Verdict;
use super::{Grouper, KernelId, Rank};

impl Grouper<'_> {
    /// The bytes that stay alive to keep an instruction available: its own; for a cheap one, those of its operands, if
    /// fewer; zero for a parameter that the caller keeps.
    pub(super) fn bytes_to_keep(&self, id: InstructionId) -> u64 {
        let instruction = &self.module.instructions[id];
        let own = self.bytes[id];
        match (self.classes[id], &instruction.op) {
            (CostClass::Cheap, _) => self
                .distinct_arrays_read(id)
                .iter()
                .map(|&operand| self.keep_bytes[operand])
                .fold(0, u64::saturating_add)
                .min(own),
            (_, Op::GetTupleElement { .. } | Op::Parameter { .. }) if self.is_kept_by_caller(id) => 0,
            (_, Op::GetTupleElement { .. } | Op::Bitcast) => {
                own.min(self.keep_bytes[instruction.operands[0]])
            }
            _ => own,
        }
    }

    /// Whether this is a part of an entry parameter, of which the caller gives up nothing.
    fn is_kept_by_caller(&self, id: InstructionId) -> bool {
        let mut index = Vec::new();
        let mut part = &self.module.instructions[id];
        while let Op::GetTupleElement { index: element } = part.op {
            index.push(element);
            part = &self.module.instructions[part.operands[0]];
        }
        let Op::Parameter { number } = part.op else { return false };
        let index = ShapeIndex::from(index.into_iter().rev());
        part.parent == self.module.entry && !self.has_given_up.contains(&(number, index))
    }

    /// Whether fusing an instruction into kernels keeps fewer bytes alive, and moves not many more.
    pub(super) fn check_cost(&self, id: InstructionId, kernels: &[KernelId]) -> Result<(), Verdict> {
        if self.stored_for_time.contains(id) {
            return Err(Verdict::Slower { kernels: kernels.len() });
        }
        if let Some(&reason) = self.stored_for_traffic.get(&id) {
            return Err(reason);
        }
        let saved = self.bytes[id];
        let first_reader = kernels.iter().map(|&k| self.ranks[self.grouping.kernels[k].roots[0]]).max();
        // Nothing else runs between the instruction and its only reader, so its operands stay alive no longer.
        if kernels.len() == 1 && first_reader == Some(self.n_materialized) {
            return Ok(());
        }
        if kernels.len() > self.duplication_budget {
            return Err(Verdict::CodeSize);
        }
        if self.goal() == FusionGoal::Kernels {
            return match self.target.fusion.time {
                Some(_) => Ok(()),
                None if self.target.fusion.chains_first => Ok(()),
                None => self.check_traffic(id, kernels, self.target.fusion.max_traffic_ratio),
            };
        }
        let until = self.last_read[id];
        let operands = self.distinct_arrays_read(id);
        let depth = self.options.max_source_depth;
        let extension = |&operand: &InstructionId| {
            let bytes = self.extension(operand, until, depth);
            if self.is_part_of(id, operand) { bytes.min(saved) } else { bytes }
        };
        let extended = operands.iter().map(extension).fold(0, u64::saturating_add);
        if extended > saved.saturating_add(self.options.slack.of(saved)) {
            return Err(Verdict::KeepsMore { extended: Bytes(extended), saved: Bytes(saved) });
        }
        // If no bytes are saved, the kernel may not move more bytes either, nor recompute for each reader what a
        // product's kernel computes once.
        if extended < saved {
            return self.check_traffic(id, kernels, self.target.fusion.max_traffic_ratio);
        }
        match operands.iter().find(|&&operand| self.could_end_product(id, operand)) {
            Some(&product) if !self.can_read_rows(id, kernels) => {
                Err(Verdict::EndsProduct(self.module.instructions[product].opcode()))
            }
            _ => self.check_traffic(id, kernels, 1.0),
        }
    }

    /// The bytes that stay alive longer to keep an instruction available until `until`: zero if it is read then anyway;
    /// its own, or those that it is recomputed from.
    fn extension(&self, id: InstructionId, until: Rank, depth: usize) -> u64 {
        if self.last_read[id] <= until {
            return 0;
        }
        if depth == 0 || self.classes[id] != CostClass::Cheap {
            return self.keep_bytes[id];
        }
        let operands = self.distinct_arrays_read(id);
        let below = operands.iter().map(|&operand| self.extension(operand, until, depth - 1));
        below.fold(0, u64::saturating_add).min(self.keep_bytes[id])
    }

    /// Whether an array is cut into parts, of which this is one, and that take as many elements as the whole: to keep the
    /// whole for all of them is to keep them.
    fn is_part_of(&self, id: InstructionId, whole: InstructionId) -> bool {
        let elements = |id: InstructionId| self.module.shape(id).as_array().and_then(|a| a.element_count());
        let is_slice = |id: InstructionId| matches!(self.module.instructions[id].op, Op::Slice { .. });
        let parts = self.users.of(whole);
        let n_parts = self.options.siblings.max_readers;
        is_slice(id) && parts.len() <= n_parts && parts.iter().all(|&part| is_slice(part)) && {
            let together = parts.iter().map(|&part| elements(part).unwrap_or(0)).fold(0, u64::saturating_add);
            Some(together) == elements(whole)
        }
    }

    /// The bytes that a kernel reads to have an operand at this many indices: those elements, or, for a cheap operand,
    /// the elements that it is computed from, such as one number for each column.
    fn bytes_read(&self, operand: InstructionId, elements: u64, depth: usize) -> u64 {
        let array = self.module.shape(operand).as_array();
        let width = array.map_or(0, |array| u64::from(array.element_type.byte_width()));
        // A slice or gather reads no more elements than its result has, however large its operand is.
        let own = elements.saturating_mul(width).min(self.bytes[operand]);
        if depth == 0 || self.classes[operand] != CostClass::Cheap {
            return own;
        }
        let sources = self.distinct_arrays_read(operand);
        let read = sources.iter().map(|&source| self.bytes_read(source, elements, depth - 1));
        read.fold(0, u64::saturating_add).min(own)
    }

    fn check_traffic(&self, id: InstructionId, kernels: &[KernelId], ratio: f64) -> Result<(), Verdict> {
        if kernels.len() == 1 {
            return Ok(());
        }
        let size = self.bytes[id];
        let elements = self.module.shape(id).as_array().and_then(|array| array.element_count()).unwrap_or(0);
        let read = |operand| self.bytes_read(operand, elements, self.options.max_source_depth);
        let operands = self.distinct_arrays_read(id);
        let once = operands.iter().map(|&operand| read(operand)).fold(0, u64::saturating_add);
        let mut moved: u64 = 0;
        for &kernel in kernels {
            let kernel = &self.grouping.kernels[kernel];
            for &operand in operands.iter().filter(|operand| !kernel.operands.contains(operand)) {
                moved = moved.saturating_add(read(operand));
            }
        }
        let through_memory = once.saturating_add(size.saturating_mul(1 + kernels.len() as u64));
        let limit = (through_memory as f64 * ratio) as u64;
        if moved > limit {
            return Err(Verdict::MovesMore { moved: Bytes(moved), limit: Bytes(limit) });
        }
        Ok(())
    }
}
