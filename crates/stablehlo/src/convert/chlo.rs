//! Functions of CHLO, which JAX leaves in programs.
//!
//! HLO has some of them; the others become the formulas that XLA computes them by (`formulas`).

use memplan_ir::*;

use super::attributes::Fields;
use super::{Body, Converter, formulas};
use crate::Error;
use crate::mlir::{Attribute, Attributes, Operation};

/// Functions that HLO has. Those that have a formula, too, are operations where a custom call says `mhlo`.
const PLAIN: &[(&str, Op)] = &[
    ("acos", Op::Unary(UnaryOp::Acos)),
    ("asin", Op::Unary(UnaryOp::Asin)),
    ("asinh", Op::Unary(UnaryOp::Asinh)),
    ("atanh", Op::Unary(UnaryOp::Atanh)),
    ("cosh", Op::Unary(UnaryOp::Cosh)),
    ("erf", Op::Unary(UnaryOp::Erf)),
    ("mulhi", Op::Binary(BinaryOp::Mulhi)),
    ("tan", Op::Unary(UnaryOp::Tan)),
];

impl<'p> Converter<'p> {
    pub(super) fn chlo(
        &mut self,
        operation: &'p Operation,
        name: &str,
        body: &mut Body,
    ) -> Result<(), Error> {
        let operands = self.values(operation, body)?;
        let shape = self.result_shape(operation)?;
        let id = match name {
            "top_k" => {
                let k = operation.integer("k")?.ok_or_else(|| operation.missing("k"))?;
                let op = Op::TopK { k, largest: true, is_stable: None };
                self.emit(body, operation, op, &operands, &[], shape)
            }
            "ragged_dot" => {
                let op = Op::RaggedDot(Box::new(self.ragged_dot(operation)?));
                self.emit(body, operation, op, &operands, &[], shape)
            }
            _ => match self.formula(operation, name, &operands, &shape, body) {
                Some(id) => id,
                None if name == "square" => {
                    let &[x] = &operands[..] else { return Err(operation.unsupported()) };
                    self.emit(body, operation, Op::Binary(BinaryOp::Multiply), &[x, x], &[], shape)
                }
                None => {
                    let plain = PLAIN.iter().find(|(plain, _)| *plain == name);
                    let (_, op) = plain.ok_or_else(|| self.without_formula(operation, &operands))?;
                    self.emit(body, operation, op.clone(), &operands, &[], shape)
                }
            },
        };
        self.note_all(id, operation)?;
        self.give(operation, id, body);
        Ok(())
    }

    /// Adds the formula of a function that HLO does not have, and returns its result; `None` where there is no formula.
    pub(super) fn formula(
        &mut self,
        operation: &'p Operation,
        name: &str,
        operands: &[InstructionId],
        shape: &Shape,
        body: &Body,
    ) -> Option<InstructionId> {
        let array = shape.as_array()?;
        let (formula, wide) = formulas::find(name, array.element_type)?;
        let is_same = |&id: &InstructionId| {
            self.module.shape(id).as_array().is_some_and(|it| it.same_ignoring_layout(array))
        };
        if !operands.iter().all(is_same) {
            return None;
        }
        let first = self.module.instructions.len();
        let metadata = self.sources.metadata(operation.location);
        let cursor = Cursor::end(&mut self.module, &mut self.names, body.computation).with_metadata(metadata);
        let made = formula.write(wide, operands, cursor);
        // Constants are nobody's.
        for index in first..self.module.instructions.len() {
            let instruction = &mut self.module.instructions[InstructionId::new(index)];
            if matches!(instruction.op, Op::Constant(_)) {
                instruction.metadata = None;
            }
        }
        made
    }

    fn without_formula(&self, operation: &Operation, operands: &[InstructionId]) -> Error {
        let element = operands.first().and_then(|&x| self.module.shape(x).as_array());
        let element = element.map_or("", |array| array.element_type.into());
        operation.error(format!("operation `{}` of {element} is not supported", operation.name))
    }

    fn ragged_dot(&self, operation: &'p Operation) -> Result<RaggedDot, Error> {
        let Some(Attribute::Dialect(_, text)) = operation.attribute("ragged_dot_dimension_numbers") else {
            return Err(operation.missing("ragged_dot_dimension_numbers"));
        };
        let fields =
            crate::text::fields(text).ok_or_else(|| operation.missing("ragged_dot_dimension_numbers"))?;
        let list = |name: &str| -> Dimensions {
            let found = crate::mlir::find(&fields, name).and_then(super::attributes::list);
            found.unwrap_or_default().into_iter().collect()
        };
        Ok(RaggedDot {
            dimensions: DotDimensions {
                lhs_contracting: list("lhs_contracting_dimensions"),
                rhs_contracting: list("rhs_contracting_dimensions"),
                lhs_batch: list("lhs_batching_dimensions"),
                rhs_batch: list("rhs_batching_dimensions"),
            },
            lhs_ragged_dims: list("lhs_ragged_dimensions"),
            rhs_group_dims: list("rhs_group_dimensions"),
            precision: super::operations::precision(operation)?,
        })
    }

    /// An operation of CHLO that `jax.export` writes as a composite. `false` where HLO has none, so that the function
    /// behind it is called.
    pub(super) fn recomposed(
        &mut self,
        operation: &'p Operation,
        name: &str,
        body: &mut Body,
    ) -> Result<bool, Error> {
        let plain = name.strip_prefix("chlo.").unwrap_or(name);
        let operands = self.values(operation, body)?;
        let element =
            operands.first().and_then(|&x| self.module.shape(x).as_array()).map(|it| it.element_type);
        if plain == "square" || element.is_some_and(|element| formulas::find(plain, element).is_some()) {
            self.chlo(operation, plain, body)?;
            return Ok(true);
        }
        let none = Attributes::new();
        let said = match operation.attribute("composite_attributes") {
            Some(Attribute::Dictionary(said)) => said,
            _ => &none,
        };
        self.recompose(operation, plain, said, &operands, body)
    }

    /// The same of a custom call, with attributes in `mhlo.attributes`.
    pub(super) fn recomposed_call(
        &mut self,
        operation: &'p Operation,
        name: &str,
        operands: &[InstructionId],
        body: &mut Body,
    ) -> Result<bool, Error> {
        let none = Attributes::new();
        let said = match operation.attribute("mhlo.attributes") {
            Some(Attribute::Dictionary(said)) => said,
            _ => &none,
        };
        self.recompose(operation, name, said, operands, body)
    }

    fn recompose(
        &mut self,
        operation: &'p Operation,
        name: &str,
        said: &Attributes,
        operands: &[InstructionId],
        body: &mut Body,
    ) -> Result<bool, Error> {
        let op = match name {
            "topk" | "top_k" => {
                let Some(Attribute::Integer(k, _)) = crate::mlir::find(said, "k") else {
                    return Err(operation.missing("k"));
                };
                let largest = match crate::mlir::find(said, "largest") {
                    Some(Attribute::Bool(largest)) => *largest,
                    _ => true,
                };
                Op::TopK { k: *k, largest, is_stable: None }
            }
            _ => match PLAIN.iter().find(|(plain, _)| *plain == name) {
                Some((_, op)) => op.clone(),
                None => return Ok(false),
            },
        };
        if !op.opcode().traits().operands.allows(operands.len()) {
            return Err(operation.error(format!("`{name}` has {} operands", operands.len())));
        }
        let shape = self.result_shape(operation)?;
        let id = self.emit(body, operation, op, operands, &[], shape);
        self.give(operation, id, body);
        Ok(true)
    }
}
