//! Operations: data that their message fields need besides the operation's fields.

use memplan_ir::*;

use super::{Exporter, pb};
use crate::attributes::Count;
use crate::proto::{convert::*, operations::export};

impl Exporter<'_> {
    pub(super) fn set_op(&self, p: &mut pb::HloInstructionProto, instruction: &Instruction, shape: &Shape) {
        match &instruction.op {
            Op::Constant(literal) => p.literal = literal_proto(literal, shape_proto(shape)).map(Box::new),
            // Readers take thread and computation from the start.
            Op::AsyncUpdate(_) | Op::AsyncDone(_) => p.called_computation_ids.clear(),
            op => export(op, &mut Export { message: p, module: self.module, instruction }),
        }
    }
}

/// The message of an instruction. The table of attributes names its methods.
pub(in crate::proto) struct Export<'a> {
    pub(in crate::proto) message: &'a mut pb::HloInstructionProto,
    module: &'a Module,
    instruction: &'a Instruction,
}

impl Export<'_> {
    /// The shape of the first operand.
    fn operand(&self) -> Option<&Shape> {
        self.instruction.operands.first().map(|&id| self.module.shape(id))
    }

    /// XLA always writes the type, which its text leaves out where it is the natural one.
    pub(in crate::proto) fn comparison_type(&mut self, value: &Option<ComparisonType>) {
        let operand = self.operand().and_then(Shape::as_array);
        let natural = || operand.map(|array| ComparisonType::default_for(array.element_type));
        self.message.comparison_type = value.or_else(natural).map_or_else(String::new, |it| it.set());
    }

    pub(in crate::proto) fn inferred_dimension(&mut self, value: &Option<i64>) {
        self.message.dimensions = value.set();
    }

    /// XLA expects a precision for each array that is multiplied.
    pub(in crate::proto) fn precision(&mut self, value: &PrecisionConfig) {
        let operands = match self.instruction.op {
            Op::RaggedDot(_) | Op::Convolution(_) => 2,
            _ => self.instruction.operands.len(),
        };
        self.message.precision_config = Some(precision_config_proto(value, operands));
    }

    pub(in crate::proto) fn feature_group_count(&mut self, value: &impl Count) {
        self.message.feature_group_count = value.count().unwrap_or(1);
    }

    pub(in crate::proto) fn batch_group_count(&mut self, value: &impl Count) {
        self.message.batch_group_count = value.count().unwrap_or(1);
    }

    pub(in crate::proto) fn operand_layout_constraints(&mut self, value: &Option<Vec<Shape>>) {
        self.message.constrain_layout = value.is_some();
        self.message.operand_shapes_with_layout = value.iter().flatten().map(shape_proto).collect();
    }

    pub(in crate::proto) fn domain(&mut self, domain: &Domain) {
        // The message means by entry the operand's side, the text the user's.
        self.message.domain_entry_sharding = Some(Box::new(sharding_proto(&domain.exit)));
        self.message.domain_exit_sharding = Some(Box::new(sharding_proto(&domain.entry)));
    }

    pub(in crate::proto) fn outfeed_shape(&mut self, value: &Option<Shape>) {
        let shape = value.as_ref().or(self.operand());
        self.message.outfeed_shape = shape.map(|shape| Box::new(shape_proto(shape)));
    }

    pub(in crate::proto) fn replica_groups(&mut self, value: &ReplicaGroups) {
        set_replica_groups(self.message, value);
    }

    pub(in crate::proto) fn slice_sizes(&mut self, value: &[Dimensions]) {
        self.message.dynamic_slice_sizes = value.iter().flatten().copied().collect();
    }

    pub(in crate::proto) fn execution_thread(&mut self, value: &str) {
        self.message.async_execution_thread = value.to_string();
    }
}
