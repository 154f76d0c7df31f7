//! The first line of a module, and the tables before its first computation.

use memplan_ir::{
    AliasKind, BufferDonor, DebugAttributes, FileLocation, InputOutputAlias, OriginRecovery, ProgramShape,
    StackFrame,
};
use rustc_hash::FxHashSet;

use super::{Cursor, Parsed, Parser};
use crate::{error::ParseErrorKind, lexer::Token};

impl Parser<'_> {
    pub(super) fn module_attribute(&mut self) -> Parsed<()> {
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
                let mut recovered = FxHashSet::default();
                while !c.eat(Token::RightBrace) {
                    let old = c.original_array()?;
                    c.expect(Token::Colon, "`:`")?;
                    let new = c.original_array()?;
                    let recovery_module = if c.eat(Token::Comma) { c.string()? } else { "".into() };
                    // The first way to recover an array counts.
                    if recovered.insert(old.clone()) {
                        config.origin_recovery_table.push(OriginRecovery { old, new, recovery_module });
                    }
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
    pub(super) fn stack_frames(&mut self) -> Parsed<()> {
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
