//! Where new instructions are made.

use memplan_ir::{
    ComputationId, Dimensions, ElementType, Instruction, InstructionId, Module, Names, Op, Shape, ShapeId,
};
use memplan_rewriter::Scalar;
use memplan_rewriter::loops::scalar;

/// New instructions beside one whose metadata they take.
pub(super) struct Site<'a> {
    pub(super) module: &'a mut Module,
    names: &'a mut Names,
    beside: InstructionId,
    /// The computation they belong to.
    pub(super) parent: ComputationId,
    new: Vec<InstructionId>,
}

impl<'a> Site<'a> {
    pub(super) fn new(module: &'a mut Module, names: &'a mut Names, beside: InstructionId) -> Site<'a> {
        let parent = module.instructions[beside].parent;
        Site { module, names, beside, parent, new: Vec::new() }
    }

    pub(super) fn index(&mut self, value: i64) -> InstructionId {
        let shape = self.module.intern(Shape::scalar(ElementType::S32));
        self.emit(Op::Constant(Scalar::integer(ElementType::S32, value).literal()), &[], shape)
    }

    /// An array of a shape whose elements are those of a constant that are all the same.
    pub(super) fn splat(&mut self, constant: InstructionId, shape: ShapeId) -> InstructionId {
        let mut constant = constant;
        while let Op::Broadcast { .. } = self.module.instructions[constant].op {
            constant = self.module.instructions[constant].operands[0];
        }
        let value = scalar(self.module, constant).expect("a constant of equal elements");
        let scalar_shape = self.module.intern(Shape::scalar(value.element_type));
        let value = self.emit(Op::Constant(value.literal()), &[], scalar_shape);
        match self.module.shape_of(shape).as_array().is_some_and(|array| array.dimensions.is_empty()) {
            true => value,
            false => self.emit(Op::Broadcast { dimensions: Dimensions::new() }, &[value], shape),
        }
    }

    pub(super) fn emit(&mut self, op: Op, operands: &[InstructionId], shape: ShapeId) -> InstructionId {
        let metadata = self.module.instructions[self.beside].metadata.clone();
        let name = self.names.fresh(op.opcode().into());
        let mut instruction = Instruction::new(name, shape, op, operands.iter().copied(), self.parent);
        instruction.metadata = metadata;
        let id = self.module.instructions.push(instruction);
        self.new.push(id);
        id
    }

    /// Lists them before an instruction.
    pub(super) fn finish(self, before: InstructionId) {
        let list = &mut self.module.computations[self.module.instructions[before].parent].instructions;
        let at = list.iter().position(|&id| id == before).expect("an instruction stands in its computation");
        list.splice(at..at, self.new);
    }
}
