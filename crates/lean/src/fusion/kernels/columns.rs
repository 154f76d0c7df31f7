//! Column reductions: which operands their kernels do not compute.
//!
//! A block of threads sums some columns of a row-major array. With few columns there are few blocks, which read more
//! slowly than the machine could. If a producer reads more bytes than its result has, a separate kernel for the
//! producer is faster. XLA's GPU compiler compares both ways by a model of time; [`ColumnRules`] is the part of that
//! model that decides here, with numbers of its own. It agrees with XLA on 540 of 546 synthetic reductions of `f32` for
//! an H100, and on 134 of 160 of `bf16`.

use memplan_ir::{ElementType, InstructionId, Op};
use memplan_memory::ColumnRules;

use super::super::report::Verdict;
use super::{Grouper, KernelId};

/// The instructions to compute in a reduction's kernel.
#[derive(Default)]
struct Chain {
    /// Its reads, in bytes. Broadcasts count if several operations read broadcasts alone.
    read: f64,
    /// Seconds that the reduction's blocks take to read that, and numbers repeated to the shape of the elements, once for
    /// each use: as operands of the kernel those count as if they were in memory.
    seconds_by_blocks: f64,
    /// Cycles of all its operations.
    cycles: f64,
}

/// Most instructions that are looked at; longer chains are fused.
const MOST_INSTRUCTIONS: usize = 64;

impl Grouper<'_> {
    /// Whether a reduction over rows computes its operand no slower than a kernel before it would.
    pub(super) fn check_columns(
        &self,
        id: InstructionId,
        kernels: &[KernelId],
        rules: &ColumnRules,
    ) -> Result<(), Verdict> {
        let (Some(reduction), &[_]) = (self.only_reduction_of(id), kernels) else { return Ok(()) };
        let Some(blocks) = self.blocks_of_columns(reduction, rules) else { return Ok(()) };
        let Some(chain) = self.chain(id, blocks, rules) else { return Ok(()) };
        let cycles_by_blocks = blocks.min(rules.multiprocessors) * rules.multiprocessor_cycles;
        let fused = chain.seconds_by_blocks.max(chain.cycles / cycles_by_blocks);
        let written = self.bytes[id] as f64;
        let before = ((chain.read + written) / rules.bandwidth).max(rules.seconds(chain.cycles));
        match fused > rules.launch + before + self.seconds_by_blocks(id, blocks, rules) {
            true => Err(Verdict::FewColumns),
            false => Ok(()),
        }
    }

    /// The reduction that is the only reader of a value, directly or in a wider type. Widening for it happens in its
    /// kernel.
    fn only_reduction_of(&self, id: InstructionId) -> Option<InstructionId> {
        let is_conversion = |id: InstructionId| matches!(self.module.instructions[id].op, Op::Convert);
        if is_conversion(id) && self.bytes[self.module.instructions[id].operands[0]] < self.bytes[id] {
            return None;
        }
        let &[mut user] = self.users.of(id) else { return None };
        while is_conversion(user) {
            let &[next] = self.users.of(user) else { return None };
            user = next;
        }
        Some(user)
    }

    /// Seconds that the blocks of a reduction take to read an array.
    fn seconds_by_blocks(&self, id: InstructionId, blocks: f64, rules: &ColumnRules) -> f64 {
        let bytes = self.bytes[id] as f64;
        let Some(array) = self.module.shape(id).as_array() else { return bytes / rules.bandwidth };
        let elements = array.element_count().unwrap_or(0) as f64;
        let rate = match array.element_type.bits() {
            ..=8 => rules.block_bytes,
            _ => rules.block_elements,
        };
        (bytes / rules.bandwidth).max(elements / (blocks * rate))
    }

    /// How many blocks run a reduction of a single array that leaves columns; `None` if this is something else, or so many
    /// rows are reduced that they are split among blocks, too.
    fn blocks_of_columns(&self, reduction: InstructionId, rules: &ColumnRules) -> Option<f64> {
        let instruction = &self.module.instructions[reduction];
        let Op::Reduce { dimensions } = &instruction.op else { return None };
        let array = self.module.shape(instruction.operands[0]).as_array()?;
        let last = *dimensions.iter().max()? as usize;
        let is_kept = |d: usize| !dimensions.contains(&(d as i64));
        let product = |extents: &mut dyn Iterator<Item = usize>| -> f64 {
            extents.map(|d| array.dimensions[d] as f64).product()
        };
        let columns = product(&mut (last + 1..array.rank()));
        let others = product(&mut (0..last).filter(|&d| is_kept(d)));
        let rows = product(&mut (0..=last).filter(|&d| !is_kept(d)));
        let leaves_columns =
            columns > 1.0 && rows < rules.split_rows as f64 && instruction.operands.len() == 2;
        leaves_columns.then(|| (columns / rules.columns_per_block as f64).ceil() * others)
    }

    /// The cost of computing a value elementwise from arrays in memory; `None` if it is not elementwise, or too long.
    fn chain(&self, id: InstructionId, blocks: f64, rules: &ColumnRules) -> Option<Chain> {
        if !self.module.instructions[id].op.is_elementwise() {
            return None;
        }
        let mut chain = Chain::default();
        let mut repeated = 0.0;
        let mut members = vec![id];
        let mut read: Vec<InstructionId> = Vec::new();
        let mut next = 0;
        while let Some(&at) = members.get(next) {
            next += 1;
            let instruction = &self.module.instructions[at];
            let array = self.module.shape(at).as_array()?;
            chain.cycles +=
                array.element_count()? as f64 * cycles(rules, &instruction.op, array.element_type);
            for &operand in &instruction.operands {
                let op = &self.module.instructions[operand].op;
                let is_ours = self.users.of(operand).iter().all(|user| members.contains(user));
                if matches!(op, Op::Broadcast { .. }) {
                    chain.seconds_by_blocks += self.seconds_by_blocks(operand, blocks, rules);
                    repeated += self.bytes[operand] as f64;
                } else if op.is_elementwise() && is_ours {
                    if !members.contains(&operand) {
                        members.push(operand);
                    }
                } else if !read.contains(&operand) {
                    read.push(operand);
                    chain.read += self.bytes[operand] as f64;
                    chain.seconds_by_blocks += self.seconds_by_blocks(operand, blocks, rules);
                }
            }
            if members.len() > MOST_INSTRUCTIONS {
                return None;
            }
        }
        // XLA fuses operations that read broadcasts alone with each other first, and with the broadcasts last.
        if members.len() > 1 && read.iter().all(|&id| self.is_of_broadcasts(id)) {
            chain.read += repeated;
        }
        Some(chain)
    }

    /// Whether a value is computed from broadcasts alone, element by element, in a few operations.
    fn is_of_broadcasts(&self, id: InstructionId) -> bool {
        let mut members = vec![id];
        let mut next = 0;
        while let Some(&at) = members.get(next) {
            next += 1;
            let instruction = &self.module.instructions[at];
            match &instruction.op {
                Op::Broadcast { .. } => {}
                op if op.is_elementwise() && members.len() <= MOST_INSTRUCTIONS => {
                    for &operand in &instruction.operands {
                        if !members.contains(&operand) {
                            members.push(operand);
                        }
                    }
                }
                _ => return false,
            }
        }
        true
    }
}

/// Cycles that an operation takes for an element.
pub(super) fn cycles(rules: &ColumnRules, op: &Op, element_type: ElementType) -> f64 {
    let is_measured = matches!(element_type, ElementType::F16 | ElementType::F32);
    let slow = rules.slow.get(&op.opcode()).filter(|_| is_measured);
    slow.copied().unwrap_or(rules.cycles)
}
