//! What XLA's GPU compiler computes in the kernel of a reduction after it.
//!
//! Where there are too few elements for the threads that reduce together, each thread computes a result alone. That is a
//! loop like any other: it goes on with the result as its readers do, and several readers each compute it. Threads that
//! work together go on with it only through operations that read nothing else, not even a constant.
//!
//! ```text
//!   r = f32[4000,4000] reduce(f32[4000,4000,8]), dimensions={2}       by threads that work together
//!   n = negate(r)                                                     in the same kernel
//!   c = compare(r, broadcast(0.5))                                    in another one
//!   l = f32[4000,4000] reduce(f32[4000,4000,3]), dimensions={2}       a loop
//!   d = compare(l, broadcast(0.5))                                    in the same kernel
//! ```

use memplan_ir::{InstructionId, Module, Op};
use memplan_rewriter::cost::{self, CostClass, Hero};
use smallvec::SmallVec;

use super::kernel::elements;
use super::{Grouper, Kernel};

impl Grouper<'_> {
    /// The class of an operation in kernels: a reduction that is a loop is as cheap as any other.
    pub(super) fn class_of(&self, id: InstructionId) -> CostClass {
        let threads = self.target.fusion.reduction_threads;
        match cost::class_of(self.module, id) {
            CostClass::Hero(Hero::Reduction) if threads > 0 && is_loop(self.module, id, threads) => {
                CostClass::Cheap
            }
            CostClass::Hero(Hero::Update) if self.is_computed_update(id) => CostClass::Cheap,
            class => class,
        }
    }

    /// Whether an instruction updates an array that loops compute: XLA's GPU compiler computes both in one kernel, and in the
    /// kernels that read the result.
    fn is_computed_update(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        if self.target.fusion.time.is_none() || instruction.op != Op::DynamicUpdateSlice {
            return false;
        }
        let updated = instruction.operands[0];
        let is_update = self.module.instructions[updated].op == Op::DynamicUpdateSlice;
        cost::is_pointwise(self.module, updated) || is_update && self.classes[updated] == CostClass::Cheap
    }

    /// Whether a kernel computes a value for itself if it is a reduction: loops do, kernels that write slices, and others
    /// where it reduces a few elements.
    pub(super) fn takes_in_sums(&self, id: InstructionId, kernel: &Kernel) -> bool {
        let is_update = |hero: InstructionId| self.module.instructions[hero].op == Op::DynamicUpdateSlice;
        !self.reduces_many(id) || kernel.hero.is_none_or(|(hero, _)| is_update(hero))
    }

    /// Whether an operation reduces so many elements to one that no kernel does so twice, one after the other.
    pub(super) fn reduces_many(&self, id: InstructionId) -> bool {
        /// As in `PriorityFusion`.
        const MANY: f64 = 16.0;
        let instruction = &self.module.instructions[id];
        matches!(instruction.op, Op::Reduce { .. })
            && elements(self.module, instruction.operands[0]) >= MANY * elements(self.module, id)
    }

    /// Whether a kernel can go on with the result of a reduction by threads that work together: nothing else is read.
    pub(super) fn goes_on_with(&self, kernel: &Kernel) -> bool {
        let reads_nothing_else = |&member: &InstructionId| {
            let stays = cost::is_pointwise(self.module, member) || cost::moves_no_bytes(self.module, member);
            stays && self.module.instructions[member].operands.len() == 1
        };
        self.target.fusion.reduction_threads == 0 || kernel.members.iter().all(reads_nothing_else)
    }
}

/// Whether so many threads are too many to reduce together.
fn is_loop(module: &Module, id: InstructionId, threads: u64) -> bool {
    let instruction = &module.instructions[id];
    let (Op::Reduce { dimensions }, Some(array)) =
        (&instruction.op, module.shape(instruction.operands[0]).as_array())
    else {
        return false;
    };
    // Stretches of dimensions that are reduced or kept, in the order of memory.
    let mut stretches: SmallVec<[(bool, u64); 4]> = SmallVec::new();
    for &d in array.minor_to_major().iter().rev() {
        let extent = array.dimensions[d as usize] as u64;
        let is_reduced = dimensions.contains(&d);
        match stretches.last_mut() {
            _ if extent == 1 => {}
            Some((of, elements)) if *of == is_reduced => *elements = elements.saturating_mul(extent),
            _ => stretches.push((is_reduced, extent)),
        }
    }
    let is_row_loop = |row: u64| row < threads && !threads.is_multiple_of(row);
    let is_column_loop = |rows: u64, columns: u64| {
        rows < threads
            || rows < 2 * threads && columns < threads
            || rows < 4 * threads && columns < 8
            || rows < 8 * threads && columns < 3
    };
    match stretches[..] {
        [.., (true, row)] if stretches.len() <= 3 => is_row_loop(row),
        // Stretches are reduced one after the other.
        _ => (0..stretches.len()).filter(|&place| stretches[place].0).all(|place| {
            let ((_, rows), after) = (stretches[place], &stretches[place + 1..]);
            let columns = after.iter().fold(1, |product: u64, (_, extent)| product.saturating_mul(*extent));
            if after.is_empty() { is_row_loop(rows) } else { is_column_loop(rows, columns) }
        }),
    }
}
