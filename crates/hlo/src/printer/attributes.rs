//! Attributes, in the order in which XLA writes them.

use std::fmt::{self, Write};

use memplan_ir::{
    ComparisonType, ComputationId, DotDimensions, ElementType, Instruction, Module, Op, PrecisionConfig,
    Shape,
};

use super::{notes, separated, sharding, sugar::Sugar};
use crate::attributes::{self, Attribute, Count, Text};

/// Writes `, name=value` for each attribute.
pub(super) fn attributes<W: Write>(
    module: &Module,
    sugar: &Sugar,
    instruction: &Instruction,
    out: &mut W,
) -> fmt::Result {
    let p = &mut Printer { module, sugar, out };
    p.operation(instruction)?;
    if let Some(extras) = &instruction.extras {
        if let Some(accuracy) = &extras.result_accuracy {
            p.name("result_accuracy")?;
            notes::result_accuracy(accuracy, p.out)?;
        }
        if let Some(value) = &extras.sharding {
            p.name("sharding")?;
            sharding(value, p.out)?;
        }
        if !extras.frontend_attributes.is_empty() {
            p.name("frontend_attributes")?;
            notes::frontend_attributes(&extras.frontend_attributes, p.out)?;
        }
    }
    if !instruction.control_predecessors.is_empty() {
        p.name("control-predecessors")?;
        p.out.write_char('{')?;
        separated(p.out, ", ", &instruction.control_predecessors, |out, &id| {
            write!(out, "%{}", module.instructions[id].name)
        })?;
        p.out.write_char('}')?;
    }
    if let Some(statistics) = instruction.extras.as_ref().and_then(|extras| extras.statistics.as_ref()) {
        p.name("statistics")?;
        notes::statistics(statistics, p.out)?;
    }
    Ok(())
}

/// Writes attributes. The table in [`crate::attributes`] names its methods that take attribute names.
pub(crate) struct Printer<'a, W> {
    module: &'a Module,
    sugar: &'a Sugar,
    out: &'a mut W,
}

impl<W: Write> Printer<'_, W> {
    fn name(&mut self, name: &str) -> fmt::Result {
        self.out.write_str(", ")?;
        self.out.write_str(name)?;
        self.out.write_char('=')
    }

    /// The attributes of the operation itself, and the computations that it calls.
    fn operation(&mut self, instruction: &Instruction) -> fmt::Result {
        match &instruction.op {
            op @ Op::Call { .. } => {
                self.called(instruction)?;
                attributes::write(op, self)
            }
            op => {
                attributes::write(op, self)?;
                self.beside(instruction)?;
                self.called(instruction)
            }
        }
    }

    /// Attributes that are not fields of the operation: the replicas with a parameter, and the wrapped operation of an
    /// asynchronous one.
    fn beside(&mut self, instruction: &Instruction) -> fmt::Result {
        match (&instruction.op, &instruction.extras) {
            (Op::Parameter { .. }, Some(extras)) if !extras.parameter_replication.is_empty() => {
                self.name("parameter_replication")?;
                self.out.write_char('{')?;
                separated(self.out, ",", &extras.parameter_replication, |out, value| write!(out, "{value}"))?;
                self.out.write_char('}')
            }
            (Op::AsyncStart(_), _) => {
                match instruction.called.first().and_then(|&called| self.sugar.wrapped(called)) {
                    Some(wrapped) => self.operation(&self.module.instructions[wrapped]),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The computations that are called.
    fn called(&mut self, instruction: &Instruction) -> fmt::Result {
        let called = instruction.called.as_slice();
        match (&instruction.op, called) {
            (_, []) | (Op::AsyncUpdate(_) | Op::AsyncDone(_), _) => Ok(()),
            (Op::AsyncStart(_), &[computation]) if self.sugar.wrapped(computation).is_some() => Ok(()),
            (Op::While, &[body, condition]) => {
                self.computation("condition", condition)?;
                self.computation("body", body)
            }
            (Op::Conditional, branches) => {
                let index = self.module.shape(instruction.operands[0]).as_array();
                match branches {
                    &[on_true, on_false] if index.is_some_and(|a| a.element_type == ElementType::Pred) => {
                        self.computation("true_computation", on_true)?;
                        self.computation("false_computation", on_false)
                    }
                    _ => self.computations("branch_computations", branches),
                }
            }
            (Op::CustomCall(call), &[computation]) if call.uses_to_apply => {
                self.computation("to_apply", computation)
            }
            (Op::CustomCall(_), _) => self.computations("called_computations", called),
            (op, _) => {
                let names = attributes::called(op.opcode()).iter().zip(called);
                names.into_iter().try_for_each(|(&name, &id)| self.computation(name.into(), id))
            }
        }
    }

    fn computation(&mut self, name: &str, id: ComputationId) -> fmt::Result {
        self.name(name)?;
        self.out.write_char('%')?;
        self.out.write_str(&self.module.computations[id].name)
    }

    fn computations(&mut self, name: &str, ids: &[ComputationId]) -> fmt::Result {
        self.name(name)?;
        self.out.write_char('{')?;
        let module = self.module;
        separated(self.out, ", ", ids, |out, &id| write!(out, "%{}", module.computations[id].name))?;
        self.out.write_char('}')
    }
}

/// How fields are written: see [`crate::attributes`].
impl<W: Write> Printer<'_, W> {
    pub(crate) fn required<T: Text>(&mut self, [name]: [Attribute; 1], value: &T) -> fmt::Result {
        self.name(name.into())?;
        value.write(name, self.out)
    }

    pub(crate) fn stated<T: Text>(&mut self, name: [Attribute; 1], value: &T) -> fmt::Result {
        self.required(name, value)
    }

    pub(crate) fn some<T: Text>(&mut self, name: [Attribute; 1], value: &Option<T>) -> fmt::Result {
        value.as_ref().map_or(Ok(()), |value| self.required(name, value))
    }

    pub(crate) fn optional<T: Text + Default + PartialEq>(
        &mut self,
        name: [Attribute; 1],
        value: &T,
    ) -> fmt::Result {
        if *value == T::default() { Ok(()) } else { self.required(name, value) }
    }

    pub(crate) fn silent<T>(&mut self, []: [Attribute; 0], _: &T) -> fmt::Result {
        Ok(())
    }

    pub(crate) fn count(&mut self, name: [Attribute; 1], value: &impl Count) -> fmt::Result {
        self.some(name, &value.count().filter(|&count| count != 1))
    }

    pub(crate) fn broadcast(&mut self, name: [Attribute; 1], value: &impl Text) -> fmt::Result {
        self.required(name, value)
    }

    /// Every version of XLA reads the type.
    pub(crate) fn comparison_type(
        &mut self,
        [by_type, _]: [Attribute; 2],
        value: &Option<ComparisonType>,
    ) -> fmt::Result {
        self.some([by_type], value)
    }

    pub(crate) fn associative(&mut self, name: [Attribute; 1], value: &Option<bool>) -> fmt::Result {
        self.some(name, value)
    }

    pub(crate) fn largest(&mut self, name: [Attribute; 1], value: &bool) -> fmt::Result {
        self.required(name, value)
    }

    pub(crate) fn dot_dimensions(&mut self, names: [Attribute; 4], value: &DotDimensions) -> fmt::Result {
        let [lhs_batch, lhs_contracting, rhs_batch, rhs_contracting] = names;
        self.optional([lhs_batch], &value.lhs_batch)?;
        self.required([lhs_contracting], &value.lhs_contracting)?;
        self.optional([rhs_batch], &value.rhs_batch)?;
        self.required([rhs_contracting], &value.rhs_contracting)
    }

    pub(crate) fn precision(&mut self, names: [Attribute; 2], value: &PrecisionConfig) -> fmt::Result {
        let [operand_precision, algorithm] = names.map(|name| [name]);
        if value.operand_precision.iter().any(|&precision| precision != Default::default()) {
            self.required(operand_precision, &value.operand_precision)?;
        }
        self.optional(algorithm, &value.algorithm)
    }

    pub(crate) fn gathered(&mut self, name: [Attribute; 1], value: &Option<i64>) -> fmt::Result {
        self.some(name, value)
    }

    pub(crate) fn outfeed_shape(&mut self, name: [Attribute; 1], value: &Option<Shape>) -> fmt::Result {
        self.some(name, value)
    }
}
