//! The time of a kernel: that of its reads and writes, or of its arithmetic, whichever is longer.
//!
//! Each element is read from memory once. What is read again comes from a cache, if the array is small enough for one. A
//! reduction that leaves few columns runs in few blocks of threads, which read more slowly than the machine could, from
//! caches as well. The source is XLA's `GpuPerformanceModelBase`; [`KernelTimeRules`](memplan_memory::KernelTimeRules) has
//! the numbers.

use memplan_ir::{ElementType, InstructionId, Op, UnaryOp, Window};

use super::super::kernel::elements;
use super::Search;
use super::kernel::{Candidate, Place, Read};

impl Search<'_, '_> {
    /// The bytes of an array, those of constants in the code included: kernels read these as well until the end.
    pub(super) fn bytes(&self, id: InstructionId) -> f64 {
        let array = self.grouper.module.shape(id).as_array();
        let width = array.map_or(0.0, |array| f64::from(array.element_type.byte_width()));
        (self.grouper.bytes[id] as f64).max(width)
    }

    /// Cycles of an operation on all elements of its result.
    pub(super) fn cycles(&self, id: InstructionId) -> f64 {
        let module = self.grouper.module;
        let instruction = &module.instructions[id];
        match &instruction.op {
            Op::Reduce { .. } => elements(module, instruction.operands[0]) * self.rules.cycles,
            Op::ReduceWindow(window) => elements(module, id) * elements_under(window) * self.rules.cycles,
            op if op.is_elementwise() || matches!(op, Op::Concatenate { .. }) => {
                elements(module, id) * self.cycles_of_element(id)
            }
            _ => 0.0,
        }
    }

    /// Cycles that an operation takes for an element.
    fn cycles_of_element(&self, id: InstructionId) -> f64 {
        let (module, rules) = (self.grouper.module, self.rules);
        let instruction = &module.instructions[id];
        let Some(array) = module.shape(id).as_array() else { return 0.0 };
        if let Op::Concatenate { dimension } = instruction.op {
            let first = module.shape(instruction.operands[0]).as_array();
            let extent = first.map_or(0, |array| array.dimensions[dimension as usize]);
            let threads = self.grouper.target.fusion.reduction_threads.max(1);
            let is_crossed = dimension > 0 && !(extent as u64).is_multiple_of(threads);
            return if is_crossed { rules.concatenate_across } else { rules.concatenate };
        }
        // Others are computed in `f32`.
        let is_native = matches!(instruction.op, Op::Unary(UnaryOp::Exponential | UnaryOp::Log));
        let is_slow = match array.element_type {
            ElementType::F16 | ElementType::F32 => true,
            ElementType::Bf16 => !is_native,
            _ => false,
        };
        let slow = rules.slow.get(&instruction.op.opcode()).filter(|_| is_slow);
        slow.copied().unwrap_or(rules.cycles)
    }

    /// How many blocks of threads run a reduction of a single array that leaves columns; `None` if this is something else,
    /// or so many rows are reduced that they are split among blocks, too.
    pub(super) fn blocks_of_columns(&self, reduction: InstructionId) -> Option<f64> {
        let (module, rules) = (self.grouper.module, self.rules);
        let instruction = &module.instructions[reduction];
        let Op::Reduce { dimensions } = &instruction.op else { return None };
        let array = module.shape(instruction.operands[0]).as_array()?;
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

    /// Finds how long a kernel takes, after it changed.
    pub(super) fn time(&self, kernel: &mut Candidate) {
        for (&place, read) in &mut kernel.reads {
            read.seconds = self.seconds_to_read(place, read.uses.times(), kernel.blocks);
            read.saved.set(None);
        }
        kernel.read_seconds = kernel.reads.values().map(|read| read.seconds).sum();
        kernel.seconds = self.seconds(kernel.read_seconds, kernel.cycles, kernel);
    }

    /// Seconds of a kernel that also computes one of its operands.
    pub(super) fn seconds_fused(&self, producer: &Candidate, consumer: &Candidate, computed: &Read) -> f64 {
        let times = computed.uses.times();
        let mut seconds = consumer.read_seconds - computed.seconds;
        for (&place, own) in &producer.reads {
            let before = consumer.read_of(place);
            // What both read at the same indices is read once.
            let is_once = own.uses.is_elementwise();
            let common = before.filter(|_| is_once).map_or(0.0, |before| before.uses.common(&computed.uses));
            let in_all = times * own.uses.times() + before.map_or(0.0, |before| before.uses.times()) - common;
            seconds += self.seconds_to_read(place, in_all, consumer.blocks);
            seconds -= before.map_or(0.0, |before| before.seconds);
        }
        self.seconds(seconds, times * producer.cycles + consumer.cycles, consumer)
    }

    /// Seconds to read each element of an array so often.
    fn seconds_to_read(&self, place: Place, times: f64, blocks: Option<f64>) -> f64 {
        let (bytes, rules) = (self.operation_at(place).bytes, self.rules);
        let of_blocks = blocks.map_or(f64::INFINITY, |blocks| blocks * rules.block_bandwidth);
        let (total, once) = (bytes * times, bytes * times.min(1.0));
        let again = rules.bandwidth * rules.speedup_again(once);
        once / rules.bandwidth.min(of_blocks) + (total - once) / again.min(of_blocks)
    }

    fn seconds(&self, read: f64, cycles: f64, kernel: &Candidate) -> f64 {
        let rules = self.rules;
        let used = kernel.blocks.map_or(rules.multiprocessors, |blocks| blocks.min(rules.multiprocessors));
        let moving = read + kernel.written / rules.bandwidth;
        moving.max(cycles / (used * rules.multiprocessor_cycles))
    }
}

/// The elements under a window.
pub(super) fn elements_under(window: &Window) -> f64 {
    window.dimensions.iter().map(|of| of.size as f64).product()
}
