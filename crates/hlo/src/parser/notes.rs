//! Notes on instructions and modules that change nothing about what is computed.

use memplan_ir::{
    FrontendAttributes, Metadata, OriginalArray, OriginalTree, OriginalValue, Precision, ResultAccuracy,
    ShapeIndex, Statistics,
};

use super::cursor::{Cursor, Parsed};
use crate::{error::ParseErrorKind, lexer::Token};

impl Cursor<'_> {
    /// `{op_name="..." source_line=1}`
    pub(crate) fn metadata(&mut self) -> Parsed<Metadata> {
        let mut metadata = Metadata::default();
        self.expect(Token::LeftBrace, "`{`")?;
        while !self.eat(Token::RightBrace) {
            if self.token != Token::Attribute {
                return Err(self.unexpected("an attribute of the metadata or `}`"));
            }
            let (name, span) = (self.text(), self.span.clone());
            self.advance();
            match &name[..name.len() - 1] {
                "op_type" => metadata.op_type = self.string()?,
                "op_name" => metadata.op_name = self.string()?,
                "source_file" => metadata.source_file = self.string()?,
                "source_line" => metadata.source_line = self.number("a line")?,
                "source_end_line" => metadata.source_end_line = self.number("a line")?,
                "source_column" => metadata.source_column = self.number("a column")?,
                "source_end_column" => metadata.source_end_column = self.number("a column")?,
                "stack_frame_id" => metadata.stack_frame_id = self.number("a stack frame id")?,
                "profile_type" => self.braces(|c| {
                    metadata.profile_types.push(c.number("a profile type")?);
                    Ok(())
                })?,
                "deduplicated_name" => metadata.deduplicated_name = self.string()?,
                "scheduling_name" => metadata.scheduling_name = self.string()?,
                "metadata_payload" => metadata.payload = self.bytes()?,
                other => {
                    let expected = "an attribute of the metadata".to_owned();
                    let found = format!("`{other}`");
                    return Err(self.error_at(span, ParseErrorKind::Unexpected { expected, found }));
                }
            }
            self.eat(Token::Comma);
        }
        Ok(metadata)
    }

    /// `{key="value",other={"json":1}}`
    pub(crate) fn frontend_attributes(&mut self) -> Parsed<FrontendAttributes> {
        let mut attributes = FrontendAttributes::default();
        self.braces(|c| {
            if c.token != Token::Attribute {
                return Err(c.unexpected("a key with `=`"));
            }
            let key = &c.text()[..c.text().len() - 1];
            let span = c.span.clone();
            c.advance();
            let value = match c.token {
                Token::LeftBrace => c.json()?.into(),
                _ => c.string()?,
            };
            if attributes.insert(key.into(), value).is_some() {
                return Err(c.error_at(span, ParseErrorKind::DuplicateAttribute { name: key.to_owned() }));
            }
            Ok(())
        })?;
        Ok(attributes)
    }

    /// `{visualizing_index=0,name=0.5}`
    pub(crate) fn statistics(&mut self) -> Parsed<Statistics> {
        let mut statistics = Statistics::default();
        self.braces(|c| {
            if c.token != Token::Attribute {
                return Err(c.unexpected("a name with `=`"));
            }
            let name = &c.text()[..c.text().len() - 1];
            c.advance();
            match name {
                "visualizing_index" => statistics.visualizing_index = c.integer()?,
                _ => statistics.values.push((name.into(), c.float()?)),
            }
            Ok(())
        })?;
        Ok(statistics)
    }

    /// `{true,false}`, or nested as the shape is.
    pub(crate) fn booleans(&mut self) -> Parsed<Vec<bool>> {
        let mut values = Vec::new();
        self.braces(|c| {
            values.push(c.boolean()?);
            Ok(())
        })?;
        Ok(values)
    }

    /// `{mode=highest}` or `{tolerance={rtol=1,atol=0,ulps=0}}`; `None` for the default.
    pub(crate) fn result_accuracy(&mut self) -> Parsed<Option<ResultAccuracy>> {
        self.expect(Token::LeftBrace, "`{`")?;
        let accuracy = if self.eat_attribute("mode") {
            match self.word_in_any_case("`default` or `highest`")? {
                Precision::Default => None,
                Precision::Highest => Some(ResultAccuracy::Highest),
                Precision::High => return Err(self.unexpected("`default` or `highest`")),
            }
        } else {
            self.expect_attribute("tolerance")?;
            let (mut rtol, mut atol, mut ulps) = (0.0, 0.0, 0);
            self.braces(|c| {
                if c.eat_attribute("rtol") {
                    rtol = c.float()?;
                } else if c.eat_attribute("atol") {
                    atol = c.float()?;
                } else {
                    c.expect_attribute("ulps")?;
                    ulps = c.integer()?;
                }
                Ok(())
            })?;
            Some(ResultAccuracy::Tolerance { rtol, atol, ulps })
        };
        self.expect(Token::RightBrace, "`}`")?;
        Ok(accuracy)
    }

    /// `{1,0}`
    pub(crate) fn shape_index(&mut self) -> Parsed<ShapeIndex> {
        let mut index = ShapeIndex::default();
        self.braces(|c| {
            index.0.push(c.number("an index")?);
            Ok(())
        })?;
        Ok(index)
    }

    /// `{{"a"}, {"b" {1}}}` in braces, or `{[synthetic_call]}`.
    pub(crate) fn original_value(&mut self) -> Parsed<OriginalValue> {
        self.expect(Token::LeftBrace, "`{`")?;
        let value = if self.eat(Token::LeftBracket) {
            self.expect_word("synthetic_call")?;
            self.expect(Token::RightBracket, "`]`")?;
            OriginalValue::SyntheticCall
        } else {
            OriginalValue::Tree(self.original_tree()?)
        };
        self.expect(Token::RightBrace, "`}`")?;
        Ok(value)
    }

    fn original_tree(&mut self) -> Parsed<OriginalTree> {
        self.deeper()?;
        let tree = if self.at(Token::LeftParen) {
            let mut elements = Vec::new();
            self.parens(|c| {
                elements.push(c.original_tree()?);
                Ok(())
            })?;
            OriginalTree::Tuple(elements)
        } else {
            self.expect(Token::LeftBrace, "`{` or `(`")?;
            if self.eat(Token::RightBrace) {
                OriginalTree::Leaf(None)
            } else {
                let array = self.original_array_inside()?;
                self.expect(Token::RightBrace, "`}`")?;
                OriginalTree::Leaf(Some(array))
            }
        };
        self.shallower();
        Ok(tree)
    }

    /// `{"instruction" {0,1}}`
    pub(crate) fn original_array(&mut self) -> Parsed<OriginalArray> {
        self.expect(Token::LeftBrace, "`{`")?;
        let array = self.original_array_inside()?;
        self.expect(Token::RightBrace, "`}`")?;
        Ok(array)
    }

    fn original_array_inside(&mut self) -> Parsed<OriginalArray> {
        let instruction = self.string()?;
        let index = match self.at(Token::LeftBrace) {
            true => self.shape_index()?,
            false => ShapeIndex::default(),
        };
        Ok(OriginalArray { instruction, index })
    }
}
