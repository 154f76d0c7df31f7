//! Modules: a header, and computations.

mod computation;
mod header;
mod known_shapes;

use std::ops::Range;

use memplan_ir::{ComputationId, EntityRef, EntitySet, InstructionId, Module, Op};
use rustc_hash::FxHashMap;

pub(super) use self::computation::{Scope, compatible};
use self::known_shapes::KnownShape;
use super::cursor::{Cursor, Parsed};
use crate::{error::ParseErrorKind, lexer::Token};

/// A module being read.
pub(crate) struct Parser<'s> {
    pub(super) cursor: Cursor<'s>,
    pub(super) module: Module,
    /// The position of each instruction's name.
    pub(super) instruction_spans: Vec<Range<usize>>,
    computations: FxHashMap<&'s str, ComputationId>,
    /// The position of each computation's name.
    computation_spans: Vec<Range<usize>>,
    /// Shapes by their text: programs repeat few shapes often.
    shape_texts: FxHashMap<&'s str, usize>,
    shapes: Vec<KnownShape>,
    entry: Option<ComputationId>,
    /// Tables of names that are free for the next computation.
    spare_names: Vec<FxHashMap<&'s str, InstructionId>>,
    generated_names: FxHashMap<String, u32>,
    /// Computations without a name in the text, which get theirs when all others are known.
    nameless: Vec<ComputationId>,
    /// Parts of all shapes that were inferred, tuples and leaves together.
    pub(super) n_inferred_parts: usize,
}

impl<'s> Parser<'s> {
    pub(crate) fn new(source: &'s str) -> Parser<'s> {
        Parser {
            cursor: Cursor::new(source),
            module: Module::new(""),
            instruction_spans: Vec::new(),
            computations: FxHashMap::default(),
            computation_spans: Vec::new(),
            shape_texts: FxHashMap::default(),
            shapes: Vec::new(),
            entry: None,
            spare_names: Vec::new(),
            generated_names: FxHashMap::default(),
            nameless: Vec::new(),
            n_inferred_parts: 0,
        }
    }

    /// Reads the whole source: a module, or a single instruction.
    pub(crate) fn parse(mut self) -> Parsed<Module> {
        if self.at_module() {
            self.module_text()?;
        } else {
            self.single_instruction_module()?;
        }
        self.cursor.finish("the module")?;
        self.name_computations();
        self.move_to_threads();
        Ok(self.module)
    }

    /// The computation of an async-start runs on the thread that the start names, whatever the text of the computation
    /// says, and so does everything called from there. If several starts share a computation, the last one decides.
    fn move_to_threads(&mut self) {
        let computations = &mut self.module.computations;
        let mut is_moved = EntitySet::with_capacity(computations.len());
        for instruction in self.module.instructions.values().rev() {
            let Op::AsyncStart(start) = &instruction.op else { continue };
            let mut waiting = instruction.called.clone();
            while let Some(callee) = waiting.pop() {
                if is_moved.insert(callee) {
                    computations[callee].execution_thread = start.execution_thread.clone();
                    let instructions = computations[callee].instructions.iter();
                    waiting
                        .extend(instructions.flat_map(|&id| &self.module.instructions[id].called).copied());
                }
            }
        }
    }

    /// Whether the text is a module rather than one instruction.
    fn at_module(&self) -> bool {
        if self.cursor.at_word("HloModule") || self.cursor.at_word("ENTRY") {
            return true;
        }
        // `name {` begins a computation, and so does `name (p: f32[]) -> f32[] {`: no instruction looks like these.
        let rest = self.cursor.source[self.cursor.span.end..].trim_ascii_start();
        matches!(self.cursor.token, Token::Identifier | Token::Name | Token::End | Token::Invalid)
            && (rest.is_empty()
                || rest.starts_with('{')
                || (rest.starts_with('(') && self.cursor.token == Token::Name))
    }

    fn module_text(&mut self) -> Parsed<()> {
        let has_header = self.cursor.eat_word("HloModule");
        if has_header {
            self.module.name = self.cursor.name("the name of the module")?.into();
            while self.cursor.eat(Token::Comma) {
                self.module_attribute()?;
            }
            self.stack_frames()?;
        }
        while !self.cursor.at(Token::End) {
            self.computation()?;
        }
        if self.module.computations.is_empty() {
            return Err(self.cursor.error(ParseErrorKind::NoComputation));
        }
        // Without ENTRY the last computation is the entry.
        self.module.entry =
            self.entry.unwrap_or_else(|| ComputationId::new(self.module.computations.len() - 1));
        if !has_header {
            self.module.name = format!("module_{}", self.module.entry_computation().name).into();
        }
        Ok(())
    }
}
