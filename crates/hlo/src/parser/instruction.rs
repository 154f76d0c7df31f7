//! Instructions and their operands.

use std::ops::Range;

use memplan_ir::{
    EntityRef, InferError, Instruction, InstructionId, Op, Opcode, Operands, Shape, ShapeId, infer_shape,
    infer_shape_given,
};

use super::{
    attributes::Attributes,
    cursor::Parsed,
    module::{Parser, Scope, compatible},
};
use crate::{error::ParseErrorKind, lexer::Token, printer, tables};

/// The part of an instruction before its operands.
pub(super) struct Head {
    /// The declared shape, as a known shape.
    pub(super) shape: Option<usize>,
    pub(super) opcode: Opcode,
    /// For `slice-start` and the like: what runs asynchronously.
    pub(super) wrapped: Option<Opcode>,
    /// The position of shape and opcode.
    pub(super) span: Range<usize>,
}

impl<'s> Parser<'s> {
    /// `name = shape opcode(operands), attributes`
    pub(super) fn instruction(&mut self, scope: &mut Scope<'s>) -> Parsed<InstructionId> {
        let name_span = self.cursor.span.clone();
        let name = self.cursor.name("an instruction")?;
        self.cursor.expect(Token::Equals, "`=` in an instruction")?;
        let head = self.head()?;
        let id = self.right_hand_side(scope, head, Some(name), name_span.clone())?;
        if let Some(previous) = scope.names.insert(name, id) {
            let kind = ParseErrorKind::DuplicateInstruction { name: name.to_owned() };
            let related = self.instruction_spans[previous.index()].clone();
            return Err(self.cursor.error_with(name_span, kind, related, "previously defined here"));
        }
        Ok(id)
    }

    /// `(operands), attributes`. A nested instruction has no name in the text, and no attributes.
    pub(super) fn right_hand_side(
        &mut self,
        scope: &mut Scope<'s>,
        mut head: Head,
        name: Option<&str>,
        name_span: Range<usize>,
    ) -> Parsed<InstructionId> {
        let (op, operands) = match head.opcode {
            Opcode::Parameter => (Some(self.parameter()?), Operands::new()),
            Opcode::Constant => (Some(self.constant(&head)?), Operands::new()),
            _ => (None, self.operands(scope)?),
        };
        if let Some((opcode, wrapped)) = self.wrapped_collective(&head, &operands) {
            (head.opcode, head.wrapped) = (opcode, Some(wrapped));
        }
        let mut attributes = match name {
            Some(_) => self.attributes(scope, &head)?,
            None => Attributes::default(),
        };
        let is_nameless = name.is_none();
        let name = name.map_or_else(|| format!("{}.anon", head.opcode), str::to_owned);
        let (op, called) = match op {
            Some(op) => (op, Default::default()),
            None => self.op(&head, &operands, &mut attributes)?,
        };
        let mut instruction = Instruction::new(name, ShapeId::new(0), op, [], scope.id);
        instruction.operands = operands;
        instruction.called = called;
        attributes.finish(&mut instruction);
        self.note_wrapped(&instruction);
        instruction.shape = match head.shape {
            Some(known) => self.declared_shape(known, &instruction),
            None => self.inferred_shape(&head, &instruction)?,
        };
        let id = self.add(scope, instruction, name_span);
        if is_nameless {
            scope.nameless.push(id);
        }
        Ok(id)
    }

    /// Since 0.12, XLA also writes an async-start around a collective as `all-reduce-start`, which is an opcode. Only the
    /// shape tells: its operands are a tuple, even if there is one. (Several gathered arrays are written alike in both
    /// ways, and take the same memory.)
    fn wrapped_collective(&self, head: &Head, operands: &Operands) -> Option<(Opcode, Opcode)> {
        let (wrapped, is_start) = match head.opcode {
            Opcode::AllReduceStart => (Opcode::AllReduce, true),
            Opcode::AllGatherStart => (Opcode::AllGather, true),
            Opcode::CollectivePermuteStart => (Opcode::CollectivePermute, true),
            Opcode::AllReduceDone => (Opcode::AllReduce, false),
            Opcode::AllGatherDone => (Opcode::AllGather, false),
            Opcode::CollectivePermuteDone => (Opcode::CollectivePermute, false),
            _ => return None,
        };
        if !is_start {
            let start = &self.module.instructions[*operands.first()?].op;
            return matches!(start, Op::AsyncStart(_)).then_some((Opcode::AsyncDone, wrapped));
        }
        let parts = self.shape_at(head.shape?).as_tuple()?;
        let inputs = parts.first()?.as_tuple()?;
        let is_wrapped = wrapped == Opcode::AllReduce || inputs.len() == 1;
        is_wrapped.then_some((Opcode::AsyncStart, wrapped))
    }

    /// Appends an instruction to the computation being read.
    pub(super) fn add(
        &mut self,
        scope: &mut Scope<'s>,
        instruction: Instruction,
        span: Range<usize>,
    ) -> InstructionId {
        let number = match instruction.op {
            Op::Parameter { number } => Some(number),
            _ => None,
        };
        let id = self.module.instructions.push(instruction);
        self.instruction_spans.push(span);
        scope.instructions.push(id);
        if let Some(number) = number {
            scope.parameters.push((number, id));
        }
        id
    }

    /// `[shape] opcode`
    pub(super) fn head(&mut self) -> Parsed<Head> {
        let start = self.cursor.span.start;
        let shape = self.optional_shape()?;
        self.head_behind(shape, start)
    }

    /// `opcode`, with the text read before it since `start`.
    fn head_behind(&mut self, shape: Option<usize>, start: usize) -> Parsed<Head> {
        let span = self.cursor.span.clone();
        if self.cursor.token != Token::Identifier {
            return Err(self.cursor.unexpected(match shape {
                Some(_) => "an opcode",
                None => "a shape or an opcode",
            }));
        }
        let name = self.cursor.text();
        let (opcode, wrapped) = opcode(name).ok_or_else(|| {
            self.cursor.error_at(span.clone(), ParseErrorKind::UnknownOpcode { name: name.to_owned() })
        })?;
        self.cursor.advance();
        Ok(Head { shape, opcode, wrapped, span: start..span.end })
    }

    fn optional_shape(&mut self) -> Parsed<Option<usize>> {
        match self.cursor.at(Token::LeftParen) || self.cursor.at_simple_shape() {
            true => Ok(Some(self.known_shape()?)),
            false => Ok(None),
        }
    }

    /// `(0)`
    fn parameter(&mut self) -> Parsed<Op> {
        self.cursor.expect(Token::LeftParen, "`(`")?;
        let number = self.cursor.number("a parameter number")?;
        self.cursor.expect(Token::RightParen, "`)`")?;
        Ok(Op::Parameter { number })
    }

    /// `({1, 2})`
    fn constant(&mut self, head: &Head) -> Parsed<Op> {
        self.cursor.expect(Token::LeftParen, "`(`")?;
        let Some(known) = head.shape else {
            let kind = ParseErrorKind::ShapeRequired { opcode: head.opcode };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        };
        let (shape, cursor) = self.shape_and_cursor(known);
        let literal = cursor.literal(shape)?;
        self.cursor.expect(Token::RightParen, "`)` after the literal")?;
        Ok(Op::Constant(literal))
    }

    /// `(operand, operand)`
    fn operands(&mut self, scope: &mut Scope<'s>) -> Parsed<Operands> {
        let mut operands = Operands::new();
        self.cursor.expect(Token::LeftParen, "`(` before the operands")?;
        if self.cursor.eat(Token::RightParen) {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand(scope)?);
            if !self.cursor.eat(Token::Comma) {
                self.cursor.expect(Token::RightParen, "`,` or `)` after an operand")?;
                return Ok(operands);
            }
        }
    }

    /// `[shape] name`, `[shape] name#0#1`, or a nested instruction.
    fn operand(&mut self, scope: &mut Scope<'s>) -> Parsed<InstructionId> {
        let start = self.cursor.span.start;
        let declared = self.optional_shape()?;
        if self.cursor.token == Token::Identifier && self.cursor.is_followed_by('(') {
            self.cursor.deeper()?;
            let head = self.head_behind(declared, start)?;
            let span = head.span.clone();
            let id = self.right_hand_side(scope, head, None, span)?;
            self.cursor.shallower();
            return Ok(id);
        }
        if scope.is_single
            && let Some(known) = declared
            && matches!(self.cursor.token, Token::Comma | Token::RightParen)
        {
            return Ok(self.implied_parameter(scope, None, known));
        }
        let name_start = self.cursor.span.start;
        let name = self.cursor.name("an operand")?;
        let span = name_start..self.cursor.previous_end;
        let id = match (scope.names.get(name), declared) {
            (Some(&id), _) => id,
            (None, Some(known)) if scope.is_single => {
                return Ok(self.implied_parameter(scope, Some(name), known));
            }
            (None, None) if scope.is_single => {
                return Err(self.cursor.error_at(span, ParseErrorKind::OperandNeedsShape));
            }
            (None, _) => return scope.find(&self.cursor, name, span),
        };
        let id = self.tuple_elements(scope, id)?;
        if let Some(known) = declared {
            self.check_operand_shape(known, id, name, start)?;
        }
        Ok(id)
    }

    /// `#0#1` behind an operand: elements of the tuple, each a get-tuple-element of its own.
    fn tuple_elements(&mut self, scope: &mut Scope<'s>, mut id: InstructionId) -> Parsed<InstructionId> {
        while self.cursor.eat(Token::Hash) {
            let span = self.cursor.span.clone();
            let index: u32 = self.cursor.number("a tuple index")?;
            let tuple = self.module.shape(id);
            let Some(element) = tuple.as_tuple().and_then(|elements| elements.get(index as usize)) else {
                let (index, shape) = (u64::from(index), printer::shape_text(tuple));
                return Err(self.cursor.error_at(span, ParseErrorKind::NoTupleElement { index, shape }));
            };
            let element = element.clone();
            let shape = self.inferred(element, span.clone())?;
            let (name, op) = ("get-tuple-element.anon", Op::GetTupleElement { index });
            id = self.add(scope, Instruction::new(name, shape, op, [id], scope.id), span);
            scope.nameless.push(id);
        }
        Ok(id)
    }

    fn check_operand_shape(&self, known: usize, id: InstructionId, name: &str, start: usize) -> Parsed<()> {
        if self.is_shape(known, self.module.instructions[id].shape) {
            return Ok(());
        }
        let (declared, actual) = (self.shape_at(known), self.module.shape(id));
        if compatible(declared, actual) {
            return Ok(());
        }
        let (declared, actual) = (printer::shape_text(declared), printer::shape_text(actual));
        let kind = ParseErrorKind::OperandShape { name: name.to_owned(), declared, actual };
        let related = self.instruction_spans[id.index()].clone();
        Err(self.cursor.error_with(start..self.cursor.previous_end, kind, related, "defined here"))
    }

    /// The shape that the text declares, unless the operands of a transfer decide it: XLA ignores the text there. Its
    /// layout is taken from the text, or a planned module would not read back.
    fn declared_shape(&mut self, known: usize, instruction: &Instruction) -> ShapeId {
        let declared = self.shape_id(known);
        if !matches!(
            instruction.op,
            Op::Send(_) | Op::SendDone(_) | Op::Recv(_) | Op::RecvDone(_) | Op::Outfeed(_) | Op::AfterAll
        ) {
            return declared;
        }
        let operands: Vec<&Shape> = instruction.operands.iter().map(|&id| self.module.shape(id)).collect();
        let given = self.module.shape_of(declared);
        match infer_shape_given(&self.module, &instruction.op, &operands, &instruction.called, given) {
            Ok(shape) if !shape.same_ignoring_layout(given) => self.module.intern(shape),
            // If nothing can be inferred, the verifier reports why.
            Ok(_) | Err(_) => declared,
        }
    }

    /// The shape that the operands of an instruction imply.
    fn inferred_shape(&mut self, head: &Head, instruction: &Instruction) -> Parsed<ShapeId> {
        let operands: Vec<&Shape> = instruction.operands.iter().map(|&id| self.module.shape(id)).collect();
        let needs_shape = matches!(
            head.opcode,
            Opcode::AsyncDone
                | Opcode::AsyncStart
                | Opcode::AsyncUpdate
                | Opcode::CopyDone
                | Opcode::CopyStart
        );
        let inferred = match needs_shape {
            true => Err(InferError::Undetermined(head.opcode)),
            false => infer_shape(&self.module, &instruction.op, &operands, &instruction.called),
        };
        match inferred {
            Ok(shape) => self.inferred(shape, head.span.clone()),
            Err(InferError::Undetermined(opcode)) => {
                let kind = ParseErrorKind::ShapeRequired { opcode };
                Err(self.cursor.error_at(head.span.clone(), kind))
            }
            Err(error) => {
                let kind = ParseErrorKind::Inference { reason: error.to_string() };
                Err(self.cursor.error_at(head.span.clone(), kind))
            }
        }
    }

    /// Adds a shape that the text omits. A few characters can imply a large tuple repeatedly: the sum of implied shapes
    /// is kept in proportion to the text.
    fn inferred(&mut self, shape: Shape, span: Range<usize>) -> Parsed<ShapeId> {
        shape.for_each_subshape(|_, _| self.n_inferred_parts += 1);
        if self.n_inferred_parts > 8 * self.cursor.source.len() + (1 << 18) {
            return Err(self.cursor.error_at(span, ParseErrorKind::TooMuchInferred));
        }
        Ok(self.module.intern(shape))
    }

    /// Reads a text that is one instruction. Operands that are only shapes, or names that nothing defines, become
    /// the parameters of the computation that is made around it.
    pub(super) fn single_instruction_module(&mut self) -> Parsed<()> {
        let mut scope = self.new_scope();
        scope.is_single = true;
        let start = self.cursor.span.clone();
        let has_name =
            matches!(self.cursor.token, Token::Identifier | Token::Name) && self.cursor.is_followed_by('=');
        let name = if has_name || self.cursor.at(Token::Name) || !self.at_head() {
            let name = self.cursor.name("an instruction or `HloModule`")?;
            self.cursor.expect(Token::Equals, "`=` in an instruction")?;
            Some(name)
        } else {
            None
        };
        let head = self.head()?;
        let root = self.right_hand_side(&mut scope, head, Some(name.unwrap_or("_")), start.clone())?;
        match name {
            Some(name) => {
                if scope.names.insert(name, root).is_some() {
                    let kind = ParseErrorKind::DuplicateInstruction { name: name.to_owned() };
                    return Err(self.cursor.error_at(start, kind));
                }
            }
            None => scope.nameless.push(root),
        }
        scope.set_root(root);
        // Parameters come first, in order of appearance.
        scope
            .instructions
            .sort_by_key(|id| !matches!(self.module.instructions[*id].op, Op::Parameter { .. }));
        let entry = self.finish_nameless("_", start, scope)?;
        self.module.name = "_".into();
        self.module.entry = entry;
        self.module.is_scheduled = true;
        Ok(())
    }

    /// Whether `shape opcode` or `opcode(` can begin here.
    fn at_head(&self) -> bool {
        self.cursor.at(Token::LeftParen)
            || self.cursor.at_simple_shape()
            || (self.cursor.at(Token::Identifier) && self.cursor.is_followed_by('('))
    }

    /// A parameter that an operand of a single-instruction module implies.
    fn implied_parameter(
        &mut self,
        scope: &mut Scope<'s>,
        name: Option<&'s str>,
        known: usize,
    ) -> InstructionId {
        let number = scope.parameters.len() as u32;
        let shape = self.shape_id(known);
        let text = name.map_or_else(|| format!("_{number}"), str::to_owned);
        let span = self.cursor.previous_end..self.cursor.previous_end;
        let instruction = Instruction::new(text, shape, Op::Parameter { number }, [], scope.id);
        let id = self.add(scope, instruction, span);
        match name {
            Some(name) => drop(scope.names.insert(name, id)),
            None => scope.nameless.push(id),
        }
        id
    }
}

/// The opcode of a name; for an async spelling like `slice-start`, also the opcode of the wrapped operation.
fn opcode(name: &str) -> Option<(Opcode, Option<Opcode>)> {
    if let Some(opcode) = tables::opcode(name) {
        return Some((opcode, None));
    }
    let (wrapped, opcode) = if let Some(wrapped) = name.strip_suffix("-start") {
        (wrapped, Opcode::AsyncStart)
    } else if let Some(wrapped) = name.strip_suffix("-update") {
        (wrapped, Opcode::AsyncUpdate)
    } else {
        (name.strip_suffix("-done")?, Opcode::AsyncDone)
    };
    Some((opcode, Some(tables::opcode(wrapped)?)))
}
