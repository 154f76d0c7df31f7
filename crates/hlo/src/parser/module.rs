//! Modules and computations: who is defined where.

use std::ops::Range;

use memplan_ir::{
    AliasKind, BufferDonor, Computation, ComputationId, DebugAttributes, EntityRef, FileLocation,
    InputOutputAlias, InstructionId, Module, OriginRecovery, ProgramShape, Shape, ShapeId, StackFrame,
};
use rustc_hash::FxHashMap;

use super::{
    cursor::{Cursor, Parsed},
    shape::shape_end,
};
use crate::{error::ParseErrorKind, lexer::Token, printer};

/// A module being read.
pub(crate) struct Parser<'s> {
    pub(super) cursor: Cursor<'s>,
    pub(super) module: Module,
    /// Where each instruction was named.
    pub(super) instruction_spans: Vec<Range<usize>>,
    computations: FxHashMap<&'s str, ComputationId>,
    /// Where each computation was named.
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

/// A shape that was read before.
struct KnownShape {
    shape: Shape,
    /// Its id, once an instruction has it.
    id: Option<ShapeId>,
}

/// A computation being read.
pub(super) struct Scope<'s> {
    /// The id the computation will have, unless it has inline callees.
    pub(super) id: ComputationId,
    pub(super) names: FxHashMap<&'s str, InstructionId>,
    pub(super) instructions: Vec<InstructionId>,
    root: Option<InstructionId>,
    pub(super) parameters: Vec<(u32, InstructionId)>,
    /// Instructions without a name in the text, which get theirs when all others are known.
    pub(super) nameless: Vec<InstructionId>,
    /// Whether this is the computation around a text that is one instruction.
    pub(super) is_single: bool,
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
        Ok(self.module)
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

    fn module_attribute(&mut self) -> Parsed<()> {
        let span = self.cursor.span.clone();
        if self.cursor.token != Token::Attribute {
            return Err(self.cursor.unexpected("an attribute of the module"));
        }
        let name = self.cursor.text();
        self.cursor.advance();
        let (c, config) = (&mut self.cursor, &mut self.module.config);
        match &name[..name.len() - 1] {
            "is_scheduled" => self.module.is_scheduled = c.boolean()?,
            "replica_count" => config.replica_count = Some(c.integer()?),
            "num_partitions" => config.num_partitions = Some(c.integer()?),
            "input_output_alias" => c.braces(|c| {
                config.input_output_alias.push(c.input_output_alias()?);
                Ok(())
            })?,
            "buffer_donor" => c.braces(|c| {
                c.expect(Token::LeftParen, "`(`")?;
                let parameter = c.number("a parameter number")?;
                c.expect(Token::Comma, "`,`")?;
                let index = c.shape_index()?;
                c.expect(Token::RightParen, "`)`")?;
                config.buffer_donors.push(BufferDonor { parameter, index });
                Ok(())
            })?,
            "alias_passthrough_params" => config.alias_passthrough_params = c.boolean()?,
            "entry_computation_layout" => {
                c.expect(Token::LeftBrace, "`{`")?;
                let mut parameters = Vec::new();
                c.parens(|c| {
                    parameters.push(c.shape()?);
                    Ok(())
                })?;
                c.expect(Token::Arrow, "`->`")?;
                let result = c.shape()?;
                c.expect(Token::RightBrace, "`}`")?;
                config.entry_computation_layout = Some(ProgramShape { parameters, result });
            }
            "frontend_attributes" => config.frontend_attributes = c.frontend_attributes()?,
            "allow_spmd_sharding_propagation_to_parameters" => {
                config.allow_spmd_sharding_propagation_to_parameters = c.boolean_or_booleans()?;
            }
            "allow_spmd_sharding_propagation_to_output" => {
                config.allow_spmd_sharding_propagation_to_output = c.boolean_or_booleans()?;
            }
            "origin_recovery_table" => {
                c.expect(Token::LeftBrace, "`{`")?;
                while !c.eat(Token::RightBrace) {
                    let old = c.original_array()?;
                    c.expect(Token::Colon, "`:`")?;
                    let new = c.original_array()?;
                    let recovery_module = if c.eat(Token::Comma) { c.string()? } else { "".into() };
                    config.origin_recovery_table.push(OriginRecovery { old, new, recovery_module });
                }
            }
            "debug_attributes" => {
                c.expect(Token::LeftBrace, "`{`")?;
                while !c.eat(Token::RightBrace) {
                    config.debug_attributes.push(c.debug_attributes()?);
                    c.eat(Token::Comma);
                }
            }
            other => {
                let kind = ParseErrorKind::UnknownModuleAttribute { name: other.to_owned() };
                return Err(self.cursor.error_at(span, kind));
            }
        }
        Ok(())
    }

    /// The tables between the first line and the first computation.
    fn stack_frames(&mut self) -> Parsed<()> {
        let (c, frames) = (&mut self.cursor, &mut self.module.config.stack_frames);
        if c.eat_word("FileNames") {
            c.table(|c| {
                frames.file_names.push(c.string()?);
                Ok(())
            })?;
        }
        if c.eat_word("FunctionNames") {
            c.table(|c| {
                frames.function_names.push(c.string()?);
                Ok(())
            })?;
        }
        if c.eat_word("FileLocations") {
            c.table(|c| {
                let [file_name_id, function_name_id, line, end_line, column, end_column] = c.record([
                    "file_name_id",
                    "function_name_id",
                    "line",
                    "end_line",
                    "column",
                    "end_column",
                ])?;
                frames.file_locations.push(FileLocation {
                    file_name_id,
                    function_name_id,
                    line,
                    end_line,
                    column,
                    end_column,
                });
                Ok(())
            })?;
        }
        if c.eat_word("StackFrames") {
            c.table(|c| {
                let [file_location_id, parent] = c.record(["file_location_id", "parent_frame_id"])?;
                // The text counts parents from one more than the ids that it gives to frames.
                frames.frames.push(StackFrame { file_location_id, parent_frame_id: parent - 1 });
                Ok(())
            })?;
        }
        Ok(())
    }

    /// `[ENTRY] name [(parameters) -> result] { instructions } [, execution_thread="..."]`
    fn computation(&mut self) -> Parsed<()> {
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

    /// `(p: f32[], q: f32[]) -> f32[]`; gives the result, by its place in the known shapes, and where it stands.
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
    fn computation_body(
        &mut self,
        name: &'s str,
        name_span: Range<usize>,
        declared: Option<(usize, Range<usize>)>,
    ) -> Parsed<ComputationId> {
        self.cursor.deeper()?;
        let mut scope = self.new_scope();
        self.cursor.expect(Token::LeftBrace, "`{`")?;
        while !self.cursor.eat(Token::RightBrace) {
            self.scoped_instruction(&mut scope)?;
        }
        self.cursor.shallower();
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

    /// Checks what can only be checked at the end of a computation, and adds it to the module.
    pub(super) fn finish_computation(
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
    pub(super) fn computation_reference(&mut self) -> Parsed<ComputationId> {
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
        self.cursor.deeper()?;
        let mut scope = self.new_scope();
        self.cursor.expect(Token::LeftBrace, "`{`")?;
        while !self.cursor.eat(Token::RightBrace) {
            self.scoped_instruction(&mut scope)?;
        }
        self.cursor.shallower();
        self.finish_nameless("_", span, scope)
    }

    /// As [`Parser::finish_computation`], for a computation that has no name in the text.
    pub(super) fn finish_nameless(
        &mut self,
        base: &str,
        span: Range<usize>,
        scope: Scope<'s>,
    ) -> Parsed<ComputationId> {
        let id = self.finish_computation(base.into(), span, None, scope)?;
        self.nameless.push(id);
        Ok(id)
    }

    /// Gives names to computations that have none in the text: those that XLA's parser gives them.
    fn name_computations(&mut self) {
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
    pub(super) fn computation_references(&mut self) -> Parsed<smallvec::SmallVec<[ComputationId; 4]>> {
        let mut references = smallvec::SmallVec::new();
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

    pub(super) fn new_scope(&mut self) -> Scope<'s> {
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

    /// A shape, by its place in the list of known shapes.
    pub(super) fn known_shape(&mut self) -> Parsed<usize> {
        let start = self.cursor.span.start;
        if let Some(end) = shape_end(self.cursor.source, start)
            && let Some(&known) = self.shape_texts.get(&self.cursor.source[start..end])
        {
            self.cursor.jump(end);
            return Ok(known);
        }
        let shape = self.cursor.shape()?;
        let text = &self.cursor.source[start..self.cursor.previous_end];
        let known = *self.shape_texts.entry(text).or_insert_with(|| {
            self.shapes.push(KnownShape { shape, id: None });
            self.shapes.len() - 1
        });
        Ok(known)
    }

    /// The known shape at a place.
    pub(super) fn shape_at(&self, known: usize) -> &Shape {
        &self.shapes[known].shape
    }

    /// The known shape at a place, and the cursor to read on with.
    pub(super) fn shape_and_cursor(&mut self, known: usize) -> (&Shape, &mut Cursor<'s>) {
        (&self.shapes[known].shape, &mut self.cursor)
    }

    /// Whether a known shape is known to have this id.
    pub(super) fn is_shape(&self, known: usize, id: ShapeId) -> bool {
        self.shapes[known].id == Some(id)
    }

    /// The id of a known shape.
    pub(super) fn shape_id(&mut self, known: usize) -> ShapeId {
        let entry = &mut self.shapes[known];
        let module = &mut self.module;
        *entry.id.get_or_insert_with(|| module.intern(entry.shape.clone()))
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

impl<'s> Scope<'s> {
    /// The instruction of that name.
    pub(super) fn find(&self, cursor: &Cursor<'s>, name: &str, span: Range<usize>) -> Parsed<InstructionId> {
        match self.names.get(name) {
            Some(&id) => Ok(id),
            None => Err(cursor.error_at(span, ParseErrorKind::UnknownInstruction { name: name.to_owned() })),
        }
    }

    pub(super) fn set_root(&mut self, root: InstructionId) {
        self.root = Some(root);
    }
}

impl Cursor<'_> {
    /// `{0}: (1, {}, may-alias)`
    fn input_output_alias(&mut self) -> Parsed<InputOutputAlias> {
        let output_index = self.shape_index()?;
        self.expect(Token::Colon, "`:`")?;
        self.expect(Token::LeftParen, "`(`")?;
        let parameter = self.number("a parameter number")?;
        self.expect(Token::Comma, "`,`")?;
        let parameter_index = self.shape_index()?;
        let kind = match self.eat(Token::Comma) {
            true => self.word("`may-alias` or `must-alias`")?,
            false => AliasKind::MayAlias,
        };
        self.expect(Token::RightParen, "`)`")?;
        Ok(InputOutputAlias { output_index, parameter, parameter_index, kind })
    }

    fn boolean_or_booleans(&mut self) -> Parsed<Vec<bool>> {
        match self.at(Token::LeftBrace) {
            true => self.booleans(),
            false => Ok(vec![self.boolean()?]),
        }
    }

    /// `{"a"}:{log_mode=default}` or `{"a"}:({...},{...})`
    fn debug_attributes(&mut self) -> Parsed<DebugAttributes> {
        let array = self.original_array()?;
        self.expect(Token::Colon, "`:`")?;
        let mut attributes = Vec::new();
        let is_list = self.at(Token::LeftParen);
        let inner = |text: &str| text[1..text.len() - 1].into();
        if is_list {
            self.parens(|c| {
                attributes.push(inner(c.raw_braces()?));
                Ok(())
            })?;
        } else {
            attributes.push(inner(self.raw_braces()?));
        }
        Ok(DebugAttributes { array, attributes, is_list })
    }

    fn raw_braces(&mut self) -> Parsed<&str> {
        match self.at(Token::LeftBrace) {
            true => self.json(),
            false => Err(self.unexpected("`{`")),
        }
    }

    /// Numbered rows: `1 row 2 row ...`; the numbers count from 1.
    fn table(&mut self, mut row: impl FnMut(&mut Self) -> Parsed<()>) -> Parsed<()> {
        let mut expected = 1u64;
        while self.token == Token::Integer {
            let span = self.span.clone();
            let number: u64 = self.number("a row number")?;
            if number != expected {
                let found = format!("`{number}`");
                let expected = format!("row number {expected}");
                return Err(self.error_at(span, ParseErrorKind::Unexpected { expected, found }));
            }
            expected += 1;
            row(self)?;
        }
        Ok(())
    }

    /// `{a=1 b=2}`: all of the names, in any order.
    fn record<const N: usize>(&mut self, names: [&'static str; N]) -> Parsed<[i32; N]> {
        let mut values = [None; N];
        self.expect(Token::LeftBrace, "`{`")?;
        while !self.at(Token::RightBrace) {
            let at = names.iter().position(|name| {
                self.token == Token::Attribute && self.text().strip_suffix('=') == Some(name)
            });
            let Some(at) = at else { return Err(self.unexpected(&format!("one of {}", names.join(", ")))) };
            self.advance();
            values[at] = Some(self.number("a number")?);
            self.eat(Token::Comma);
        }
        if let Some(missing) = values.iter().position(Option::is_none) {
            return Err(self.error(ParseErrorKind::MissingAttribute { name: names[missing] }));
        }
        self.advance();
        Ok(values.map(|value| value.expect("all values were just checked")))
    }
}

/// Whether two shapes have the same structure, element types and extents: layouts and dynamic dimensions aside.
pub(super) fn compatible(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Array(a), Shape::Array(b)) | (Shape::Buffer(a), Shape::Buffer(b)) => {
            a.element_type == b.element_type && a.dimensions == b.dimensions
        }
        (Shape::Tuple(a), Shape::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| compatible(a, b))
        }
        _ => a == b,
    }
}
