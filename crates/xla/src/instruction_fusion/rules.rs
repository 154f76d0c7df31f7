//! Whether one instruction may be computed in the kernel of another.

use memplan_ir::{ElementType, InstructionId, Module, Op, Opcode};
use memplan_rewriter::cost::{self, CostClass, Hero};

use super::{Fuser, Kernel};

impl Fuser<'_> {
    /// Whether an instruction can take others in.
    pub(super) fn may_consume(&self, id: InstructionId) -> bool {
        self.is_loop(id) || is_matrix_vector(self.module, id)
    }

    /// Whether an instruction can be computed elsewhere.
    pub(super) fn may_produce(&self, id: InstructionId) -> bool {
        self.is_loop(id)
            && id != self.root
            && self.module.instructions[id].control_predecessors.is_empty()
            && !self.is_awaited.contains(id)
    }

    /// Whether one loop over a result can compute it.
    fn is_loop(&self, id: InstructionId) -> bool {
        match cost::class_of(self.module, id) {
            CostClass::Cheap => true,
            CostClass::Hero(Hero::Reduction) => {
                matches!(self.module.instructions[id].op, Op::Reduce { .. })
            }
            CostClass::Hero(Hero::Update) => {
                matches!(self.module.instructions[id].op, Op::DynamicUpdateSlice)
            }
            CostClass::Free => matches!(self.module.instructions[id].op, Op::Bitcast),
            _ => false,
        }
    }

    /// Whether a kernel that reads an instruction may compute it.
    pub(super) fn may_fuse(&self, id: InstructionId, kernel: &Kernel) -> bool {
        let is_alone = kernel.members.len() == 1;
        let is_shared = self.n_users[id] > 1;
        let is_line = |id: InstructionId| self.is_view_of_line(id);
        self.may_produce(id)
            && !(is_alone && is_line(kernel.root) && is_line(id))
            && !(is_alone && self.is_slow_concatenation(kernel.root))
            && !self.is_slow_concatenation(id)
            && !(self.is_expensive(id) && (is_shared || kernel.reused.contains(&id)))
            && (!is_shared || self.growth > 0)
            && !(self.is_reduction(id) && kernel.n_reductions > self.rules.max_reductions)
            && (is_alone || self.is_little_code(id, kernel))
            && self.is_small_vector_product(id, kernel)
            && self.is_safe_in_place(id, kernel)
    }

    /// Whether an instruction is a view of an array that only has one dimension of more than one element. XLA makes a reshape
    /// of any transpose of those, and of two in a row one view; other arrays are copied where dimensions of one element move
    /// (seen on jaxlib 0.12.0.1).
    fn is_view_of_line(&self, id: InstructionId) -> bool {
        let n_long = |extents: &[i64]| extents.iter().filter(|&&extent| extent > 1).count();
        let array = self.module.shape(id).as_array();
        matches!(self.module.instructions[id].op, Op::Bitcast)
            && array.is_some_and(|array| n_long(&array.dimensions) <= 1)
    }

    /// Whether the kernel's code stays small.
    fn is_little_code(&self, id: InstructionId, kernel: &Kernel) -> bool {
        let op = &self.module.instructions[id].op;
        // As an array in memory it would be worse.
        if matches!(op, Op::Broadcast { .. }) {
            return true;
        }
        // Code that branches or loops is not reused at the same index.
        let is_once_only = matches!(
            op,
            Op::Concatenate { .. } | Op::DynamicUpdateSlice | Op::Pad { .. } | Op::Reduce { .. }
        );
        let n_times = kernel.indexing.n_times(id);
        n_times <= self.target.fusion.max_evaluations
            && !(is_once_only && (n_times > 1 || self.n_readers[id] > 1))
    }

    /// A product of a matrix and a vector takes in a transpose of the matrix, if the vector is small: XLA makes products of two
    /// matrices of the others (seen on jaxlib 0.12.0.1).
    fn is_small_vector_product(&self, id: InstructionId, kernel: &Kernel) -> bool {
        let root = &self.module.instructions[kernel.root];
        if kernel.members.len() > 1 || !matches!(root.op, Op::Dot(_)) {
            return true;
        }
        let other = match root.operands[..] {
            [lhs, rhs] if rhs == id && lhs != id => lhs,
            [lhs, rhs] if lhs == id && rhs != id => rhs,
            _ => return false,
        };
        if !matches!(self.module.instructions[id].op, Op::Transpose { .. }) {
            return false;
        }
        let is_vector = self.module.shape(other).as_array().is_some_and(|array| array.dimensions.len() == 1);
        is_vector && self.target.unpadded_size_of(self.module.shape(other)).0 < self.rules.max_vector_bytes
    }

    /// No other member of the kernel may read an array that is updated in place, except at the position that is
    /// written.
    fn is_safe_in_place(&self, id: InstructionId, kernel: &Kernel) -> bool {
        let update = &self.module.instructions[kernel.root];
        if !matches!(update.op, Op::DynamicUpdateSlice) {
            return true;
        }
        let updated = update.operands[0];
        if kernel.members.contains(&updated) {
            return true;
        }
        let instruction = &self.module.instructions[id];
        let is_elementwise = instruction.op.is_elementwise() || matches!(instruction.op, Op::Bitcast);
        if update.operands[1..].contains(&updated) {
            return false;
        }
        if id != updated && !instruction.operands.contains(&updated) {
            return true;
        }
        if is_elementwise {
            let is_other = |&&member: &&InstructionId| {
                let op = &self.module.instructions[member].op;
                member != kernel.root && !op.is_elementwise() && !matches!(op, Op::Bitcast)
            };
            return kernel.members.iter().find(is_other).is_none();
        }
        self.is_same_slice(id, kernel.root)
    }

    /// Whether a slice is what an update replaces.
    fn is_same_slice(&self, id: InstructionId, update: InstructionId) -> bool {
        let slice = &self.module.instructions[id];
        let update = &self.module.instructions[update];
        slice.opcode() == Opcode::DynamicSlice
            && slice.operands[1..] == update.operands[2..]
            && self.module.shape(id).same_ignoring_layout(self.module.shape(update.operands[1]))
    }

    fn is_slow_concatenation(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let (Op::Concatenate { dimension }, Some(array)) =
            (&instruction.op, self.module.shape(id).as_array())
        else {
            return false;
        };
        let is_minor = array.dimensions.len() > 1
            && array.minor_to_major().first() == Some(dimension)
            && array.dimensions[*dimension as usize] >= self.rules.max_minor_extent;
        instruction.operands.len() > self.rules.max_concatenated || is_minor
    }

    /// Whether an instruction is never computed twice.
    fn is_expensive(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let element_type = |id| self.module.shape(id).as_array().map(|array| array.element_type);
        match instruction.opcode() {
            Opcode::Gather | Opcode::Reduce | Opcode::Dot => true,
            Opcode::Convert => {
                element_type(id) == Some(ElementType::Bf16)
                    && element_type(instruction.operands[0]) == Some(ElementType::F32)
            }
            opcode => self.target.fusion.expensive.contains(&opcode),
        }
    }
}

/// Whether an instruction reads elements of an operand several times.
pub(super) fn reuses(module: &Module, id: InstructionId, operand: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let at = |i: usize| instruction.operands[i] == operand;
    let any_from = |first: usize| instruction.operands[first..].contains(&operand);
    match &instruction.op {
        Op::Bitcast
        | Op::Concatenate { .. }
        | Op::Reshape { .. }
        | Op::Reverse { .. }
        | Op::Slice { .. }
        | Op::Transpose { .. }
        | Op::Gather(_) => false,
        Op::Pad { .. } => any_from(1),
        Op::Reduce { .. } => any_from(instruction.operands.len() / 2),
        Op::DynamicUpdateSlice => any_from(2),
        Op::Dot(_) if is_matrix_vector(module, id) => {
            let rank = |i: usize| {
                module.shape(instruction.operands[i]).as_array().map_or(0, |array| array.dimensions.len())
            };
            at(0) && rank(1) > 1 || at(1) && rank(0) > 1
        }
        _ => !cost::is_pointwise(module, id),
    }
}

/// Whether an instruction is a product of a matrix and a vector, or of two vectors.
fn is_matrix_vector(module: &Module, id: InstructionId) -> bool {
    let is_flat = module.shape(id).as_array().is_some_and(|array| array.dimensions.len() <= 1);
    match &module.instructions[id].op {
        Op::Dot(dot) => is_flat && dot.dimensions.lhs_batch.is_empty(),
        _ => false,
    }
}
