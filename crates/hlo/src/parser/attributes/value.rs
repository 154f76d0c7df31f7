//! Values of attributes: their names decide how they are read.

use memplan_ir::{Dimensions, Domain, OutputOperandAlias, SliceDimension};

use crate::attributes::Value;
use crate::parser::cursor::{Cursor, Parsed};
use crate::parser::module::Parser;
use crate::{error::ParseErrorKind, lexer::Token};

/// Functions that read what follows the name of an attribute.
macro_rules! readers {
    ($($name:ident: $parser:ident => $value:expr;)*) => {
        $(pub(crate) fn $name<'s>($parser: &mut Parser<'s>) -> Parsed<Value<'s>> {
            Ok($value)
        })*
    };
}

readers! {
    accuracy: p => Value::Accuracy(p.cursor.result_accuracy()?);
    aliases: p => Value::Aliases(p.cursor.output_operand_aliases()?);
    boolean: p => Value::Boolean(p.cursor.boolean()?);
    bytes: p => Value::Bytes(p.cursor.bytes()?);
    computation: p => Value::Computation(p.computation_reference()?);
    computations: p => Value::Computations(p.computation_references()?);
    domain: p => Value::Domain(Box::new(p.cursor.domain()?));
    float: p => Value::Float(p.cursor.float()?);
    groups: p => Value::Groups(Box::new(p.cursor.replica_groups()?));
    integer: p => Value::Integer(p.cursor.integer()?);
    integers: p => Value::Integers(p.cursor.integers()?);
    labels: p => Value::Labels(Box::new(p.cursor.dimension_labels()?));
    literal: p => Value::Literal(Box::new(p.cursor.shaped_literal()?));
    padding: p => Value::Padding(p.cursor.padding()?);
    pairs: p => Value::Pairs(p.cursor.pairs()?);
    precisions: p => Value::Precisions(p.cursor.items(|c| c.word_in_any_case("a precision"))?);
    shape: p => Value::Shape(Box::new(p.cursor.shape()?));
    shapes: p => Value::Shapes(p.cursor.items(Cursor::shape)?);
    slice: p => Value::Slice(p.cursor.items(Cursor::slice_dimension)?);
    sparsity: p => Value::Sparsity(Box::new(p.cursor.sparsity()?));
    text: p => Value::Text(p.cursor.string()?);
    window: p => Value::Window(Box::new(p.cursor.window()?));
}

/// `{1,2}`, or `{{1,2},{3,4}}`
pub(crate) fn integers_or_lists<'s>(parser: &mut Parser<'s>) -> Parsed<Value<'s>> {
    let cursor = &mut parser.cursor;
    match cursor.source[cursor.span.end..].trim_ascii_start().starts_with('{') {
        true => Ok(Value::Lists(cursor.items(Cursor::integers)?)),
        false => integers(parser),
    }
}

pub(crate) fn word<'s>(parser: &mut Parser<'s>) -> Parsed<Value<'s>> {
    let cursor = &mut parser.cursor;
    if cursor.token != Token::Identifier {
        return Err(cursor.unexpected("a word"));
    }
    let word = cursor.text();
    cursor.advance();
    Ok(Value::Word(word))
}

impl<'s> Cursor<'s> {
    /// `{kind="sharding", entry={..}, exit={..}}`
    fn domain(&mut self) -> Parsed<Domain> {
        self.expect(Token::LeftBrace, "`{`")?;
        self.expect_attribute("kind")?;
        let span = self.span.clone();
        if &*self.string()? != "sharding" {
            let expected = "\"sharding\"".to_owned();
            let found = self.source[span.clone()].to_owned();
            return Err(self.error_at(span, ParseErrorKind::Unexpected { expected, found }));
        }
        self.expect(Token::Comma, "`,`")?;
        self.expect_attribute("entry")?;
        let entry = self.sharding()?;
        self.expect(Token::Comma, "`,`")?;
        self.expect_attribute("exit")?;
        let exit = self.sharding()?;
        self.expect(Token::RightBrace, "`}`")?;
        Ok(Domain { entry, exit })
    }

    /// `{ {0}: (1, {}), {1}: (0, {0}) }`
    fn output_operand_aliases(&mut self) -> Parsed<Vec<OutputOperandAlias>> {
        self.items(|c| {
            let output_index = c.shape_index()?;
            c.expect(Token::Colon, "`:`")?;
            c.expect(Token::LeftParen, "`(`")?;
            let operand = c.number("an operand number")?;
            c.expect(Token::Comma, "`,`")?;
            let operand_index = c.shape_index()?;
            c.expect(Token::RightParen, "`)`")?;
            Ok(OutputOperandAlias { output_index, operand, operand_index })
        })
    }

    /// `{{0,1},{1,0}}`
    fn pairs(&mut self) -> Parsed<Vec<(i64, i64)>> {
        self.items(|c| {
            let start = c.span.start;
            let pair: Dimensions = c.integers()?;
            let &[source, target] = pair.as_slice() else {
                let kind = ParseErrorKind::Count { expected: 2, found: pair.len() };
                return Err(c.error_at(start..c.previous_end, kind));
            };
            Ok((source, target))
        })
    }

    /// `[0:4]`, `[0:8:2]`
    fn slice_dimension(&mut self) -> Parsed<SliceDimension> {
        self.expect(Token::LeftBracket, "`[`")?;
        let start = self.integer()?;
        self.expect(Token::Colon, "`:`")?;
        let limit = self.integer()?;
        let stride = if self.eat(Token::Colon) { self.integer()? } else { 1 };
        self.expect(Token::RightBracket, "`]`")?;
        Ok(SliceDimension { start, limit, stride })
    }

    /// Items in braces.
    fn items<T, L: Default + Extend<T>>(
        &mut self,
        mut item: impl FnMut(&mut Cursor<'s>) -> Parsed<T>,
    ) -> Parsed<L> {
        let mut items = L::default();
        self.braces(|c| {
            items.extend([item(c)?]);
            Ok(())
        })?;
        Ok(items)
    }
}
