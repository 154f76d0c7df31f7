//! From an opcode with its attributes to an [`Op`].

mod asynchronous;

use memplan_ir::{
    ComparisonType, ComputationId, Dimensions, DotDimensions, Op, Opcode, Operands, PrecisionConfig, Shape,
};
use smallvec::{SmallVec, smallvec};

use super::{attributes::Attributes, cursor::Parsed, instruction::Head, module::Parser};
use crate::attributes::{self, Attribute, ComparisonOrder, Count, Text, Unfit, Value};
use crate::error::{ParseError, ParseErrorKind};

/// The computations that an instruction calls.
type Called = SmallVec<[ComputationId; 1]>;

impl<'s> Parser<'s> {
    /// The operation of an instruction, and the computations that it calls.
    pub(super) fn op(
        &mut self,
        head: &Head,
        operands: &Operands,
        attributes: &mut Attributes<'s>,
    ) -> Parsed<(Op, Called)> {
        match head.wrapped {
            Some(wrapped) if head.opcode == Opcode::AsyncStart => {
                self.wrap(head, wrapped, operands, attributes)
            }
            Some(_) => self.async_continuation(head, operands, attributes),
            None => Operation { parser: self, head, operands, attributes }.op(),
        }
    }
}

/// One operation under construction. The table in [`crate::attributes`] names its methods that take attribute names.
pub(crate) struct Operation<'p, 's> {
    parser: &'p mut Parser<'s>,
    head: &'p Head,
    operands: &'p Operands,
    attributes: &'p mut Attributes<'s>,
}

impl Operation<'_, '_> {
    pub(crate) fn opcode(&self) -> Opcode {
        self.head.opcode
    }

    fn op(mut self) -> Parsed<(Op, Called)> {
        self.check_operand_count()?;
        let opcode = self.opcode();
        match opcode {
            Opcode::AsyncUpdate | Opcode::AsyncDone => {
                return self.parser.async_continuation(self.head, self.operands, self.attributes);
            }
            // Async spellings come here: neither runs asynchronously.
            Opcode::Parameter | Opcode::Constant => {
                return Err(self.error(ParseErrorKind::UnknownOpcode { name: format!("{opcode}-start") }));
            }
            _ => {}
        }
        let uses_to_apply = self.attributes.has(Attribute::ToApply);
        let called = self.called()?;
        let mut op = match attributes::read(&mut self)? {
            Some(op) => op,
            None => opcode.without_attributes().expect("all others are in the table of attributes"),
        };
        if let Op::CustomCall(call) = &mut op {
            call.uses_to_apply = uses_to_apply;
        }
        Ok((op, called))
    }

    /// XLA checks the number of operands while it parses, for it picks a constructor by it.
    fn check_operand_count(&self) -> Parsed<()> {
        let (opcode, found) = (self.opcode(), self.operands.len());
        let expected = opcode.traits().operands;
        match expected.allows(found) {
            true => Ok(()),
            false => Err(self.error(ParseErrorKind::OperandCount { opcode, expected, found })),
        }
    }

    /// The computations that are called.
    fn called(&mut self) -> Parsed<Called> {
        match self.opcode() {
            Opcode::Conditional => self.branches(),
            Opcode::CustomCall => {
                let mut called = Called::new();
                called.extend(self.take_computation(Attribute::ToApply));
                called.extend(self.take_computations(Attribute::CalledComputations).into_iter().flatten());
                Ok(called)
            }
            opcode => {
                let mut called = Called::new();
                for &name in attributes::called(opcode) {
                    called.push(self.computation(name)?);
                }
                Ok(called)
            }
        }
    }

    fn branches(&mut self) -> Parsed<Called> {
        let branches: Called = match self.take_computations(Attribute::BranchComputations) {
            Some(branches) => branches.into_iter().collect(),
            None => smallvec![
                self.computation(Attribute::TrueComputation)?,
                self.computation(Attribute::FalseComputation)?
            ],
        };
        if self.operands.len() != branches.len() + 1 {
            let (branches, found) = (branches.len(), self.operands.len().saturating_sub(1));
            return Err(self.error(ParseErrorKind::BranchCount { branches, found }));
        }
        Ok(branches)
    }

    fn computation(&mut self, name: Attribute) -> Parsed<ComputationId> {
        self.take_computation(name).ok_or_else(|| self.missing(name))
    }

    fn take_computation(&mut self, name: Attribute) -> Option<ComputationId> {
        match self.attributes.take(name)? {
            (_, Value::Computation(computation)) => Some(computation),
            (_, other) => unreachable!("the name decides what {other:?} is"),
        }
    }

    fn take_computations(&mut self, name: Attribute) -> Option<SmallVec<[ComputationId; 4]>> {
        match self.attributes.take(name)? {
            (_, Value::Computations(computations)) => Some(computations),
            (_, other) => unreachable!("the name decides what {other:?} is"),
        }
    }

    fn error(&self, kind: ParseErrorKind) -> Box<ParseError> {
        self.parser.cursor.error_at(self.head.span.clone(), kind)
    }

    fn missing(&self, name: Attribute) -> Box<ParseError> {
        self.error(ParseErrorKind::MissingAttribute { name: name.into() })
    }
}

/// How fields are read: see [`crate::attributes`].
impl Operation<'_, '_> {
    pub(crate) fn some<T: Text>(&mut self, [name]: [Attribute; 1]) -> Parsed<Option<T>> {
        let Some((at, value)) = self.attributes.take(name) else { return Ok(None) };
        let unfit = |it: Box<Unfit>| self.parser.cursor.error_at(at..at + it.length, it.kind);
        T::read(value).map(Some).map_err(unfit)
    }

    pub(crate) fn required<T: Text>(&mut self, [name]: [Attribute; 1]) -> Parsed<T> {
        self.some([name])?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn optional<T: Text + Default>(&mut self, name: [Attribute; 1]) -> Parsed<T> {
        Ok(self.some(name)?.unwrap_or_default())
    }

    pub(crate) fn stated<T: Text + Default>(&mut self, name: [Attribute; 1]) -> Parsed<T> {
        self.optional(name)
    }

    pub(crate) fn silent<T: Default>(&mut self, []: [Attribute; 0]) -> Parsed<T> {
        Ok(T::default())
    }

    pub(crate) fn count<T: Count>(&mut self, name: [Attribute; 1]) -> Parsed<T> {
        Ok(T::of(self.some(name)?))
    }

    /// Scalars are broadcast along no dimensions, which may be omitted.
    pub(crate) fn broadcast(&mut self, [name]: [Attribute; 1]) -> Parsed<Dimensions> {
        let operand = self.parser.module.shape(self.operands[0]);
        match operand.as_array().is_some_and(|array| array.rank() == 0) {
            true => self.optional([name]),
            false => self.required([name]),
        }
    }

    /// Versions of XLA say it by a type or by an order, none by both.
    pub(crate) fn comparison_type(&mut self, names: [Attribute; 2]) -> Parsed<Option<ComparisonType>> {
        let [by_type, by_order] = names;
        let Some((at, value)) = self.attributes.take(by_order) else { return self.some([by_type]) };
        if self.attributes.take(by_type).is_some() {
            let (expected, found) = ("either `type` or `order`".to_owned(), "both".to_owned());
            return Err(self.parser.cursor.error_at(at..at, ParseErrorKind::Unexpected { expected, found }));
        }
        let unfit = |it: Box<Unfit>| self.parser.cursor.error_at(at..at + it.length, it.kind);
        let order = ComparisonOrder::read(value).map_err(unfit)?;
        let operand = self.operands.first().and_then(|&id| self.parser.module.shape(id).as_array());
        Ok(operand.and_then(|array| order.comparison_type(array.element_type)))
    }

    /// XLA's parser takes no word for no.
    pub(crate) fn associative(&mut self, name: [Attribute; 1]) -> Parsed<Option<bool>> {
        self.optional(name).map(Some)
    }

    pub(crate) fn largest(&mut self, name: [Attribute; 1]) -> Parsed<bool> {
        Ok(self.some(name)?.unwrap_or(true))
    }

    pub(crate) fn dot_dimensions(&mut self, names: [Attribute; 4]) -> Parsed<DotDimensions> {
        let [lhs_batch, lhs_contracting, rhs_batch, rhs_contracting] = names;
        Ok(DotDimensions {
            lhs_contracting: self.optional([lhs_contracting])?,
            rhs_contracting: self.optional([rhs_contracting])?,
            lhs_batch: self.optional([lhs_batch])?,
            rhs_batch: self.optional([rhs_batch])?,
        })
    }

    pub(crate) fn precision(&mut self, names: [Attribute; 2]) -> Parsed<PrecisionConfig> {
        let [operand_precision, algorithm] = names.map(|name| [name]);
        Ok(PrecisionConfig {
            operand_precision: self.optional(operand_precision)?,
            algorithm: self.optional(algorithm)?,
        })
    }

    /// Gathers and scatters have a dimension, others may have one.
    pub(crate) fn gathered(&mut self, name: [Attribute; 1]) -> Parsed<Option<i64>> {
        match self.opcode() {
            Opcode::AllGather | Opcode::AllGatherStart | Opcode::ReduceScatter => {
                self.required(name).map(Some)
            }
            _ => self.some(name),
        }
    }

    /// The shape of the operand, by default.
    pub(crate) fn outfeed_shape(&mut self, name: [Attribute; 1]) -> Parsed<Option<Shape>> {
        let shape = self.some(name)?;
        Ok(shape.or_else(|| Some(self.parser.module.shape(self.operands[0]).clone())))
    }
}
