//! Tuples, calls, loops and branches: values that pass through computations as a whole.

use std::borrow::Cow;

use crate::{CustomCall, ElementType, OutputOperandAlias, Shape};

use super::dimension::{Agreement, compatible};
use super::{
    InferError, Inference, MAX_TUPLE_DEPTH, MAX_TUPLE_PARTS, Result, Signature, attribute_error, brief,
    check_length,
};

impl<'a> Inference<'a> {
    /// With a shape given, that shape when it fits, so that checking a large tuple copies nothing.
    pub(super) fn tuple(&self) -> Result<Cow<'a, Shape>> {
        if let Some(given) = self.given {
            let fits = given.as_tuple().is_some_and(|elements| {
                elements.len() == self.operands.len()
                    && elements.iter().zip(self.operands).all(|(a, b)| compatible(a, b, Agreement::Exact))
            });
            if fits {
                return Ok(Cow::Borrowed(given));
            }
        }
        let mut parts = 1;
        for operand in self.operands {
            count_parts(operand, 1, &mut parts)?;
        }
        Ok(Cow::Owned(Shape::Tuple(self.operands.iter().map(|&shape| shape.clone()).collect())))
    }

    pub(super) fn get_tuple_element(&self, index: u32) -> Result<&'a Shape> {
        match self.operands[0] {
            Shape::Tuple(elements) => elements
                .get(index as usize)
                .ok_or_else(|| attribute_error("index", format!("less than {}", elements.len()), index)),
            _ => Err(self.operand_error(0, "a tuple")),
        }
    }

    /// Element `i` of operand 0, which a start operation made.
    pub(super) fn element_of_operand(&self, i: usize) -> Result<&'a Shape> {
        match self.operands[0].as_tuple().and_then(|elements| elements.get(i)) {
            Some(element) => Ok(element),
            None => Err(self.operand_error(0, format!("a tuple of {} or more", i + 1))),
        }
    }

    /// A call or fusion yields what its computation does.
    pub(super) fn call(&self) -> Result<&'a Shape> {
        let callee = self.signature(0)?;
        callee.check_count(self.operands.len())?;
        for (i, operand) in self.operands.iter().enumerate() {
            callee.check_parameter(i, operand, Agreement::Exact)?;
        }
        if let crate::Op::Fusion(fusion) = self.op {
            self.check_aliasing(&fusion.output_operand_aliasing, callee.result, compatible_exactly)?;
        }
        Ok(self.given_if_compatible(callee.result))
    }

    pub(super) fn while_loop(&self) -> Result<&'a Shape> {
        let (body, condition) = (self.signature(0)?, self.signature(1)?);
        for callee in [&body, &condition] {
            callee.check_count(1)?;
            callee.check_parameter(0, self.operands[0], Agreement::Exact)?;
        }
        condition.check_result(&Shape::scalar(ElementType::Pred), Agreement::Exact)?;
        body.check_result(self.operands[0], Agreement::Exact)?;
        Ok(self.given_if_compatible(self.operands[0]))
    }

    pub(super) fn conditional(&self) -> Result<&'a Shape> {
        let selector = self.scalar(0)?;
        match (selector.element_type, self.called.len()) {
            (ElementType::Pred, 2) | (ElementType::S32, _) => (),
            (ElementType::Pred, n) => {
                return Err(InferError::CalledCount { expected: crate::Arity::exactly(2), found: n });
            }
            _ => return Err(self.operand_error(0, "a pred or s32 scalar")),
        }
        if self.operands.len() != self.called.len() + 1 {
            let expected = crate::Arity::exactly(self.called.len() + 1);
            return Err(InferError::OperandCount { expected, found: self.operands.len() });
        }
        let mut result: Option<&'a Shape> = None;
        for i in 0..self.called.len() {
            let branch = self.signature(i)?;
            branch.check_count(1)?;
            branch.check_parameter(0, self.operands[i + 1], Agreement::Exact)?;
            branch.check_result(result.unwrap_or(branch.result), Agreement::Exact)?;
            result.get_or_insert(branch.result);
        }
        Ok(self.given_if_compatible(result.expect("a conditional has a branch")))
    }

    /// Only the program knows the shape of a custom call; its claims about its operands must hold.
    pub(super) fn custom_call(&self, call: &CustomCall) -> Result<&'a Shape> {
        let given = self.given_shape()?;
        if let Some(constraints) = &call.operand_layout_constraints {
            check_length("operand_layout_constraints", constraints.len(), self.operands.len())?;
            for (i, constraint) in constraints.iter().enumerate() {
                if !compatible(constraint, self.operands[i], Agreement::Exact) {
                    let expected = format!("as operand_layout_constraints says, {}", brief(constraint));
                    return Err(self.operand_error(i, expected));
                }
            }
        }
        if &*call.target == "GetRngSeed" {
            check_length("operands", self.operands.len(), 0)?;
            if given.as_array().is_none_or(|array| array.element_type != ElementType::U64) {
                return Err(InferError::Given { expected: "of type u64".into(), found: brief(given) });
            }
        }
        // These two turn a value into a buffer and a buffer into a value.
        let alike = match &*call.target {
            "Pin" | "Unpin" => compatible_contents,
            _ => compatible_exactly,
        };
        self.check_aliasing(&call.output_operand_aliasing, given, alike)?;
        Ok(given)
    }

    /// Every declared in-place operand must exist and be shaped like its output.
    pub(super) fn check_aliasing(
        &self,
        aliases: &[OutputOperandAlias],
        result: &Shape,
        alike: impl Fn(&Shape, &Shape) -> bool,
    ) -> Result<()> {
        const ATTRIBUTE: &str = "output_to_operand_aliasing";
        for alias in aliases {
            let output = result
                .subshape(&alias.output_index)
                .ok_or_else(|| attribute_error(ATTRIBUTE, "an index into the result", &alias.output_index))?;
            let operand = self
                .operands
                .get(alias.operand as usize)
                .and_then(|operand| operand.subshape(&alias.operand_index))
                .ok_or_else(|| {
                    let found = format!("({}, {})", alias.operand, alias.operand_index);
                    attribute_error(ATTRIBUTE, "an operand and an index into it", found)
                })?;
            if !alike(output, operand) {
                return Err(attribute_error(
                    ATTRIBUTE,
                    format!("of one shape, {} as output {}", brief(output), alias.output_index),
                    brief(operand),
                ));
            }
        }
        Ok(())
    }

    fn given_if_compatible(&self, shape: &'a Shape) -> &'a Shape {
        self.given.filter(|given| compatible(given, shape, Agreement::Exact)).unwrap_or(shape)
    }

    /// The shapes a computation takes, as a tuple.
    pub(super) fn parameters_as_tuple(signature: &Signature<'_>) -> Shape {
        Shape::Tuple(signature.parameters.iter().map(|&p| p.clone()).collect())
    }
}

fn compatible_exactly(a: &Shape, b: &Shape) -> bool {
    compatible(a, b, Agreement::Exact)
}

/// Whether two shapes agree, be they arrays or buffers that hold such arrays.
pub(super) fn compatible_contents(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Array(a) | Shape::Buffer(a), Shape::Array(b) | Shape::Buffer(b)) => {
            compatible_exactly(&Shape::Array(a.clone()), &Shape::Array(b.clone()))
        }
        (Shape::Tuple(a), Shape::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| compatible_contents(a, b))
        }
        _ => a == b,
    }
}

fn count_parts(shape: &Shape, depth: usize, parts: &mut usize) -> Result<()> {
    *parts += 1;
    if *parts > MAX_TUPLE_PARTS || depth > MAX_TUPLE_DEPTH {
        return Err(InferError::TupleTooLarge);
    }
    shape.as_tuple().unwrap_or_default().iter().try_for_each(|element| count_parts(element, depth + 1, parts))
}
