//! Operations spelled as one that are two: `slice-start` is an async-start around a slice.

use memplan_ir::{Async, Instruction, Op, Opcode, Operands, Shape};
use smallvec::smallvec;

use super::{Attribute, Attributes, Called, Head, Operation, Parsed, Parser};
use crate::attributes::is_allowed;
use crate::{async_notes::AsyncNotes, error::ParseErrorKind};

impl<'s> Parser<'s> {
    /// `slice-start(x), slice={...}`: an async-start of a computation that holds one slice.
    pub(super) fn wrap(
        &mut self,
        head: &Head,
        wrapped: Opcode,
        operands: &Operands,
        attributes: &mut Attributes<'s>,
    ) -> Parsed<(Op, Called)> {
        let Some(known) = head.shape else {
            let kind = ParseErrorKind::ShapeRequired { opcode: head.opcode };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        };
        let parts = match self.shape_at(known) {
            Shape::Tuple(parts) => match &parts[..] {
                [Shape::Tuple(inputs), output, ..] => Some((inputs.clone(), output.clone())),
                _ => None,
            },
            _ => None,
        };
        let Some((inputs, output)) = parts else { return Err(self.bad_shape(head, known)) };
        if inputs.len() != operands.len() {
            let kind = ParseErrorKind::Count { expected: inputs.len(), found: operands.len() };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        }
        let mut scope = self.new_scope();
        let span = head.span.clone();
        let mut inner_operands = Operands::new();
        for (number, shape) in inputs.iter().enumerate() {
            let shape = self.module.intern(shape.clone());
            let name = if number == 0 { "async_param".to_owned() } else { format!("async_param.{number}") };
            let op = Op::Parameter { number: number as u32 };
            let parameter = Instruction::new(name, shape, op, [], scope.id);
            inner_operands.push(self.add(&mut scope, parameter, span.clone()));
        }
        let inner_head = Head { shape: None, opcode: wrapped, wrapped: None, span: span.clone() };
        let mut start = Operation { parser: self, head, operands, attributes };
        let execution_thread = start.optional([Attribute::AsyncExecutionThread])?;
        // A wrapped operation with its own pairs declares those of the text.
        let output_operand_aliasing = match is_allowed(wrapped, Attribute::OutputToOperandAliasing) {
            true => Vec::new(),
            false => start.optional([Attribute::OutputToOperandAliasing])?,
        };
        let (op, called) = self.op(&inner_head, &inner_operands, attributes)?;
        let shape = self.module.intern(output);
        // Named as XLA names it.
        let name: &'static str = wrapped.into();
        let mut inner = Instruction::new(name, shape, op, inner_operands, scope.id);
        inner.called = called;
        self.add(&mut scope, inner, span.clone());
        let computation = self.finish_nameless("async_wrapped", span, scope)?;
        let op = Op::AsyncStart(Box::new(Async { execution_thread, output_operand_aliasing }));
        Ok((op, smallvec![computation]))
    }

    /// `slice-update(start)`, `slice-done(start)`: calls the same computation as the start.
    pub(super) fn async_continuation(
        &mut self,
        head: &Head,
        operands: &Operands,
        attributes: &mut Attributes<'s>,
    ) -> Parsed<(Op, Called)> {
        let mut operation = Operation { parser: self, head, operands, attributes };
        let given = operation.some([Attribute::AsyncExecutionThread])?;
        let called = operation.take_computation(Attribute::Calls);
        let start = operands.first().map(|&id| &self.module.instructions[id]);
        let start = start.filter(|start| matches!(start.op, Op::AsyncStart(_) | Op::AsyncUpdate(_)));
        let Some(start) = start else {
            let kind = ParseErrorKind::NotAsync { opcode: head.opcode };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        };
        let wraps = start.called.first().map(|&wrapped| &self.module.computations[wrapped]);
        let found = wraps.map(|wrapped| self.module.instructions[wrapped.root].opcode());
        if let (Some(expected), Some(found)) = (head.wrapped, found)
            && expected != found
        {
            let kind = ParseErrorKind::WrappedOpcode { expected, found };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        }
        let execution_thread = match (&start.op, given) {
            (_, Some(thread)) => thread,
            (Op::AsyncStart(start) | Op::AsyncUpdate(start), None) => start.execution_thread.clone(),
            _ => unreachable!("just filtered"),
        };
        let called = called.map_or_else(|| start.called.clone(), |called| smallvec![called]);
        let attributes = Box::new(Async { execution_thread, output_operand_aliasing: Vec::new() });
        let op = match head.opcode {
            Opcode::AsyncUpdate => Op::AsyncUpdate(attributes),
            _ => Op::AsyncDone(attributes),
        };
        Ok((op, called))
    }

    /// The notes of an asynchronous operation also apply to the wrapped instruction; the last operation wins, as in
    /// XLA.
    pub(in crate::parser) fn note_wrapped(&mut self, instruction: &Instruction) {
        let is_async = matches!(instruction.op, Op::AsyncStart(_) | Op::AsyncUpdate(_) | Op::AsyncDone(_));
        let Some(&wrapped) = instruction.called.first().filter(|_| is_async) else { return };
        let root = self.module.computations[wrapped].root;
        AsyncNotes::of(instruction).note(&mut self.module.instructions[root]);
    }

    fn bad_shape(&self, head: &Head, known: usize) -> Box<crate::ParseError> {
        let shape = crate::printer::shape_text(self.shape_at(known));
        let expected = "((operands), result, contexts...)";
        let kind = ParseErrorKind::ResultShape { opcode: head.opcode, shape, expected };
        self.cursor.error_at(head.span.clone(), kind)
    }
}
