//! Computations: definitions of names.

use std::ops::Range;

use memplan_ir::{Computation, ComputationId, EntityRef, InstructionId, Shape};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Cursor, Parsed, Parser};
use crate::{error::ParseErrorKind, lexer::Token, printer};

/// A computation being read.
pub(in crate::parser) struct Scope<'s> {
    /// The id the computation will have, unless it has inline callees.
    pub(in crate::parser) id: ComputationId,
    pub(in crate::parser) names: FxHashMap<&'s str, InstructionId>,
    pub(in crate::parser) instructions: Vec<InstructionId>,
    root: Option<InstructionId>,
    pub(in crate::parser) parameters: Vec<(u32, InstructionId)>,
    /// Instructions without a name in the text, which get theirs when all others are known.
    pub(in crate::parser) nameless: Vec<InstructionId>,
    /// Whether this is the computation around a text that is one instruction.
    pub(in crate::parser) is_single: bool,
}

impl<'s> Parser<'s> {
    /// `[ENTRY] name [(parameters) -> result] { instructions } [, execution_thread="..."]`
    pub(super) fn computation(&mut self) -> Parsed<()> {
        let entry_span = self.cursor.span.clone();
        let is_entry = self.cursor.eat_word("ENTRY");
        let name_span = self.cursor.span.clone();
        let name = self.cursor.name("a computation")?;
        let declared = if self.cursor.at(Token::LeftParen) { Some(self.signature()?) } else { None };
        let id = self.computation_body(name, name_span, declared)?;
        if self.cursor.eat(Token::Comma) {
            self.cursor.expect_attribute("execution_thread")?;
            self.module.computations[id].execution_thread = self.cursor.string()?;
        }
        if is_entry && self.entry.replace(id).is_some() {
            return Err(self.cursor.error_at(entry_span, ParseErrorKind::SeveralEntries));
        }
        Ok(())
    }

    /// `(p: f32[], q: f32[]) -> f32[]`; returns the result, by its index in the known shapes, and its position.
    fn signature(&mut self) -> Parsed<(usize, Range<usize>)> {
        self.cursor.expect(Token::LeftParen, "`(`")?;
        while !self.cursor.eat(Token::RightParen) {
            self.cursor.name("a parameter name")?;
            self.cursor.eat(Token::Colon);
            self.known_shape()?;
            if !self.cursor.eat(Token::Comma) {
                self.cursor.expect(Token::RightParen, "`,` or `)`")?;
                break;
            }
        }
        self.cursor.expect(Token::Arrow, "`->`")?;
        let start = self.cursor.span.start;
        let result = self.known_shape()?;
        Ok((result, start..self.cursor.previous_end))
    }

    /// `{ instructions }`
    fn instructions_in_braces(&mut self) -> Parsed<Scope<'s>> {
        self.cursor.deeper()?;
        let mut scope = self.new_scope();
        self.cursor.expect(Token::LeftBrace, "`{`")?;
        while !self.cursor.eat(Token::RightBrace) {
            self.scoped_instruction(&mut scope)?;
        }
        self.cursor.shallower();
        Ok(scope)
    }

    /// The body in braces, under a name.
    fn computation_body(
        &mut self,
        name: &'s str,
        name_span: Range<usize>,
        declared: Option<(usize, Range<usize>)>,
    ) -> Parsed<ComputationId> {
        let scope = self.instructions_in_braces()?;
        let id = self.finish_computation(name.into(), name_span.clone(), declared, scope)?;
        if let Some(previous) = self.computations.insert(name, id) {
            let span = self.computation_spans[previous.index()].clone();
            let kind = ParseErrorKind::DuplicateComputation { name: name.to_owned() };
            return Err(self.cursor.error_with(name_span, kind, span, "previously defined here"));
        }
        Ok(id)
    }

    fn scoped_instruction(&mut self, scope: &mut Scope<'s>) -> Parsed<()> {
        let span = self.cursor.span.clone();
        let is_root = self.cursor.eat_word("ROOT");
        let id = self.instruction(scope)?;
        if is_root && scope.root.replace(id).is_some() {
            return Err(self.cursor.error_at(span, ParseErrorKind::SeveralRoots));
        }
        Ok(())
    }

    /// Checks properties of a whole computation at its end, and adds it to the module.
    pub(in crate::parser) fn finish_computation(
        &mut self,
        name: Box<str>,
        name_span: Range<usize>,
        declared: Option<(usize, Range<usize>)>,
        mut scope: Scope<'s>,
    ) -> Parsed<ComputationId> {
        let Some(&last) = scope.instructions.last() else {
            return Err(self
                .cursor
                .error_at(name_span, ParseErrorKind::EmptyComputation { name: name.into() }));
        };
        // Without ROOT the last instruction is the root.
        let root = scope.root.unwrap_or(last);
        if let Some((shape, span)) = declared {
            let (declared, actual) = (&self.shapes[shape], &self.module.instructions[root]);
            let actual_shape = self.module.shape_of(actual.shape);
            if declared.id != Some(actual.shape) && !compatible(&declared.shape, actual_shape) {
                let (shape, root_shape) =
                    (printer::shape_text(&declared.shape), printer::shape_text(actual_shape));
                let kind = ParseErrorKind::RootShape { name: name.into(), shape, root: root_shape };
                let related = self.instruction_spans[root.index()].clone();
                return Err(self.cursor.error_with(span, kind, related, "the root is defined here"));
            }
        }
        for &id in &scope.nameless {
            let name = generated_name(
                &mut self.generated_names,
                |name| scope.names.contains_key(name),
                &self.module.instructions[id].name,
            );
            self.module.instructions[id].name = name;
        }
        scope.parameters.sort_unstable();
        for (expected, &(number, id)) in scope.parameters.iter().enumerate() {
            if number as usize == expected {
                continue;
            }
            let span = self.instruction_spans[id.index()].clone();
            return Err(if expected > 0 && scope.parameters[expected - 1].0 == number {
                let kind = ParseErrorKind::DuplicateParameter { number };
                let previous = self.instruction_spans[scope.parameters[expected - 1].1.index()].clone();
                self.cursor.error_with(span, kind, previous, "previously defined here")
            } else {
                let kind = ParseErrorKind::MissingParameter { name: name.into(), number: expected };
                self.cursor.error_at(span, kind)
            });
        }
        let id = self.module.computations.next_key();
        if id != scope.id {
            for &instruction in &scope.instructions {
                self.module.instructions[instruction].parent = id;
            }
        }
        self.module.computations.push(Computation {
            name,
            instructions: scope.instructions,
            root,
            parameters: scope.parameters.iter().map(|&(_, id)| id).collect(),
            execution_thread: "".into(),
            unknown_fields: Box::default(),
        });
        self.computation_spans.push(name_span);
        // Clearing costs as much as the table is large: a table that a large computation left would make every small
        // one after it pay.
        if scope.names.capacity() <= 1024 {
            scope.names.clear();
            self.spare_names.push(scope.names);
        }
        Ok(id)
    }

    /// `%name`, or a computation written in place.
    pub(in crate::parser) fn computation_reference(&mut self) -> Parsed<ComputationId> {
        if self.cursor.at(Token::LeftBrace) {
            let span = self.cursor.span.clone();
            return self.inline_computation(span);
        }
        let span = self.cursor.span.clone();
        let name = self.cursor.name("a computation name or `{`")?;
        match self.computations.get(name) {
            Some(&id) => Ok(id),
            None => {
                Err(self.cursor.error_at(span, ParseErrorKind::UnknownComputation { name: name.to_owned() }))
            }
        }
    }

    fn inline_computation(&mut self, span: Range<usize>) -> Parsed<ComputationId> {
        let scope = self.instructions_in_braces()?;
        self.finish_nameless("_", span, scope)
    }

    /// As [`Parser::finish_computation`], for a computation that has no name in the text.
    pub(in crate::parser) fn finish_nameless(
        &mut self,
        base: &str,
        span: Range<usize>,
        scope: Scope<'s>,
    ) -> Parsed<ComputationId> {
        let id = self.finish_computation(base.into(), span, None, scope)?;
        self.nameless.push(id);
        Ok(id)
    }

    /// Names computations that have no name in the text, as XLA's parser does.
    pub(super) fn name_computations(&mut self) {
        // The computation around a single instruction begins before those inside.
        let entry = self.module.entry;
        self.nameless.sort_by_key(|&id| id != entry);
        let mut counts = FxHashMap::default();
        for &id in &self.nameless {
            let name = generated_name(
                &mut counts,
                |name| self.computations.contains_key(name),
                &self.module.computations[id].name,
            );
            self.module.computations[id].name = name;
        }
    }

    /// `{%a, %b}`
    pub(in crate::parser) fn computation_references(&mut self) -> Parsed<SmallVec<[ComputationId; 4]>> {
        let mut references = SmallVec::new();
        self.cursor.expect(Token::LeftBrace, "`{`")?;
        while !self.cursor.eat(Token::RightBrace) {
            references.push(self.computation_reference()?);
            if !self.cursor.eat(Token::Comma) {
                self.cursor.expect(Token::RightBrace, "`,` or `}`")?;
                break;
            }
        }
        Ok(references)
    }

    pub(in crate::parser) fn new_scope(&mut self) -> Scope<'s> {
        Scope {
            id: self.module.computations.next_key(),
            names: self.spare_names.pop().unwrap_or_default(),
            instructions: Vec::new(),
            root: None,
            parameters: Vec::new(),
            nameless: Vec::new(),
            is_single: false,
        }
    }
}

impl<'s> Scope<'s> {
    /// The instruction of that name.
    pub(in crate::parser) fn find(
        &self,
        cursor: &Cursor<'s>,
        name: &str,
        span: Range<usize>,
    ) -> Parsed<InstructionId> {
        match self.names.get(name) {
            Some(&id) => Ok(id),
            None => Err(cursor.error_at(span, ParseErrorKind::UnknownInstruction { name: name.to_owned() })),
        }
    }

    pub(in crate::parser) fn set_root(&mut self, root: InstructionId) {
        self.root = Some(root);
    }
}

/// The next name like `base`, `base.1`, `base.2` that is not taken.
fn generated_name(
    counts: &mut FxHashMap<String, u32>,
    is_taken: impl Fn(&str) -> bool,
    base: &str,
) -> Box<str> {
    let count = counts.entry(base.to_owned()).or_insert(0);
    loop {
        let name = if *count == 0 { base.to_owned() } else { format!("{base}.{count}") };
        *count += 1;
        if !is_taken(&name) {
            return name.into();
        }
    }
}

/// Whether two shapes have the same structure, element types and extents: layouts and dynamic dimensions aside.
pub(in crate::parser) fn compatible(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Array(a), Shape::Array(b)) | (Shape::Buffer(a), Shape::Buffer(b)) => {
            a.element_type == b.element_type && a.dimensions == b.dimensions
        }
        (Shape::Tuple(a), Shape::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| compatible(a, b))
        }
        _ => a == b,
    }
}
