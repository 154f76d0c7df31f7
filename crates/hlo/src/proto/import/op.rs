//! Operations: data that their fields need besides the message's fields.

use memplan_ir::*;

use super::{FieldError, Importer, pb};
use crate::attributes::{ComparisonOrder, Count};
use crate::proto::{
    convert::{self, *},
    operations::import,
};
use crate::tables;

impl Importer {
    /// The operation of an instruction. Takes used data out of `p`.
    pub(super) fn op(
        &self,
        p: &mut pb::HloInstructionProto,
        shape: &Shape,
        operands: &[InstructionId],
    ) -> Result<Op, FieldError> {
        let opcode = tables::opcode(&p.opcode).ok_or_else(|| FieldError::Opcode(p.opcode.clone()))?;
        let mut message = Import { message: p, module: &self.module, operands };
        match opcode {
            Opcode::Constant => Ok(Op::Constant(match p.literal.take() {
                Some(literal) => convert::literal(&literal)?,
                None => elided(shape)?,
            })),
            Opcode::AsyncUpdate => Ok(Op::AsyncUpdate(message.continued()?)),
            Opcode::AsyncDone => Ok(Op::AsyncDone(message.continued()?)),
            _ => Ok(match import(opcode, &mut message)? {
                Some(op) => op,
                None => opcode.without_attributes().expect("all others are in the table of attributes"),
            }),
        }
    }
}

/// An instruction's message, and the instructions before it in the file. The table of attributes names its methods.
pub(in crate::proto) struct Import<'a> {
    pub(in crate::proto) message: &'a mut pb::HloInstructionProto,
    module: &'a Module,
    operands: &'a [InstructionId],
}

impl Import<'_> {
    /// The first operand, if it came before.
    fn operand(&self) -> Option<&Instruction> {
        self.operands.first().and_then(|&id| self.module.instructions.get(id))
    }

    /// An update or done goes on with what its first operand started; the message says neither thread nor computation.
    fn continued(&mut self) -> Result<Box<Async>, FieldError> {
        let mut execution_thread = self.execution_thread()?;
        if let Some(Op::AsyncStart(before) | Op::AsyncUpdate(before)) =
            self.operand().map(|before| &before.op)
            && execution_thread.is_empty()
        {
            execution_thread = before.execution_thread.clone();
        }
        let output_operand_aliasing = aliasing(&self.message.output_operand_aliasing)?;
        Ok(Box::new(Async { execution_thread, output_operand_aliasing }))
    }

    /// The message has the type, or since jaxlib 0.12 the order; a module has the type where it is not the default of the
    /// operands.
    pub(in crate::proto) fn comparison_type(&mut self) -> Result<Option<ComparisonType>, FieldError> {
        let array = self.operand().and_then(|operand| self.module.shape_of(operand.shape).as_array());
        if !self.message.comparison_order.is_empty() {
            let order = ComparisonOrder::get(&mut self.message.comparison_order, "comparison_order")?;
            return Ok(array.and_then(|array| order.comparison_type(array.element_type)));
        }
        let natural = array.map(|array| ComparisonType::default_for(array.element_type));
        let text = &mut self.message.comparison_type;
        let written = (!text.is_empty()).then(|| ComparisonType::get(text, "comparison_type")).transpose()?;
        Ok(written.filter(|t| Some(*t) != natural))
    }

    pub(in crate::proto) fn inferred_dimension(&mut self) -> Result<Option<i64>, FieldError> {
        Ok(self.message.dimensions.first().copied().filter(|&d| d != -1))
    }

    pub(in crate::proto) fn precision(&mut self) -> Result<PrecisionConfig, FieldError> {
        precision_config(self.message.precision_config.as_ref())
    }

    pub(in crate::proto) fn feature_group_count<T: Count>(&mut self) -> Result<T, FieldError> {
        Ok(count(self.message.feature_group_count))
    }

    pub(in crate::proto) fn batch_group_count<T: Count>(&mut self) -> Result<T, FieldError> {
        Ok(count(self.message.batch_group_count))
    }

    pub(in crate::proto) fn operand_layout_constraints(&mut self) -> Result<Option<Vec<Shape>>, FieldError> {
        let shapes = || self.message.operand_shapes_with_layout.iter().map(shape).collect();
        self.message.constrain_layout.then(shapes).transpose()
    }

    pub(in crate::proto) fn domain(&mut self) -> Result<Box<Domain>, FieldError> {
        let side = |side: Option<Box<pb::OpSharding>>| {
            sharding(*side.ok_or(FieldError::Missing("domain sharding"))?)
        };
        // The message means by entry the operand's side, the text the user's.
        let exit = side(self.message.domain_entry_sharding.take())?;
        Ok(Box::new(Domain { entry: side(self.message.domain_exit_sharding.take())?, exit }))
    }

    pub(in crate::proto) fn outfeed_shape(&mut self) -> Result<Option<Shape>, FieldError> {
        self.message.outfeed_shape.as_deref().map(shape).transpose()
    }

    pub(in crate::proto) fn replica_groups(&mut self) -> Result<ReplicaGroups, FieldError> {
        replica_groups(self.message)
    }

    /// The message has the sizes of all slices one after the other; each has as many as its source has dimensions.
    pub(in crate::proto) fn slice_sizes(&mut self) -> Result<Vec<Dimensions>, FieldError> {
        let source = self.operand();
        let rank = |shape: &Shape| shape.as_array().map_or(0, ArrayShape::rank);
        let ranks = source.map_or_else(Vec::new, |source| match self.module.shape_of(source.shape) {
            Shape::Tuple(elements) => elements.iter().map(rank).collect(),
            single => vec![rank(single)],
        });
        let mut rest = self.message.dynamic_slice_sizes.as_slice();
        let mut slices = Vec::new();
        for rank in ranks.into_iter().filter(|&rank| rank > 0).cycle() {
            match rest.split_at_checked(rank) {
                Some((slice, after)) => {
                    slices.push(slice.into());
                    rest = after;
                }
                None => break,
            }
        }
        if !rest.is_empty() {
            slices.push(rest.into());
        }
        Ok(slices)
    }

    /// The main thread has no name here, and one in XLA.
    pub(in crate::proto) fn execution_thread(&mut self) -> Result<Box<str>, FieldError> {
        let thread = &*self.message.async_execution_thread;
        Ok(if thread == "main" { "" } else { thread }.into())
    }
}

/// XLA writes 1 if the text omits it, which is the default.
fn count<T: Count>(count: i64) -> T {
    T::of(Some(count).filter(|&n| n > 1))
}

/// A constant whose message has no literal.
fn elided(shape: &Shape) -> Result<Literal, FieldError> {
    Ok(match shape {
        Shape::Array(array) => Literal::Array(ArrayLiteral {
            element_type: array.element_type,
            dimensions: array.dimensions.clone(),
            data: LiteralData::Elided,
        }),
        Shape::Tuple(elements) => Literal::Tuple(elements.iter().map(elided).collect::<Result<_, _>>()?),
        Shape::Token => Literal::Token,
        Shape::Buffer(_) | Shape::Opaque => return Err(FieldError::Missing("literal")),
    })
}
