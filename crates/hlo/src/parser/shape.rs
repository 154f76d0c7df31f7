//! Shapes and layouts.

use memplan_ir::{ArrayShape, Dimensions, ElementType, Layout, RareLayout, Shape, SplitConfig, Tile};
use smallvec::SmallVec;

use super::cursor::{Cursor, Parsed};
use crate::{error::ParseErrorKind, lexer::Token, tables};

impl Cursor<'_> {
    /// Whether an array, token, opaque or buffer shape begins here. A tuple begins with `(`, which only the caller
    /// can tell from other uses of it.
    pub(crate) fn at_simple_shape(&self) -> bool {
        self.token == Token::Identifier
            && (self.next_byte() == b'['
                || (self.text() == "b" && self.next_byte() == b'(')
                || is_type_name(self.text()))
    }

    /// A shape. Arrays without a layout get the row-major one.
    pub(crate) fn shape(&mut self) -> Parsed<Shape> {
        self.deeper()?;
        let shape = match self.token {
            Token::LeftParen => self.tuple_shape(),
            Token::Identifier => self.simple_shape(),
            _ => Err(self.unexpected("a shape")),
        };
        self.shallower();
        shape
    }

    fn tuple_shape(&mut self) -> Parsed<Shape> {
        let mut elements = Vec::new();
        self.parens(|c| {
            elements.push(c.shape()?);
            Ok(())
        })?;
        Ok(Shape::tuple(elements))
    }

    fn simple_shape(&mut self) -> Parsed<Shape> {
        let name = self.text();
        if name == "b" && self.next_byte() == b'(' {
            self.advance();
            self.expect(Token::LeftParen, "`(`")?;
            let span = self.span.clone();
            let Shape::Array(array) = self.shape()? else {
                return Err(self.error_at(span, unexpected("an array shape", "another shape")));
            };
            self.expect(Token::RightParen, "`)`")?;
            return Ok(Shape::Buffer(array));
        }
        let element_type = match name {
            "token" | "opaque" => None,
            _ => Some(tables::element_type(name).ok_or_else(|| match self.next_byte() {
                b'[' => self.error(ParseErrorKind::UnknownElementType { name: name.to_owned() }),
                _ => self.unexpected("a shape"),
            })?),
        };
        self.advance();
        let mut dimensions = Dimensions::new();
        let mut dynamic: SmallVec<[bool; 8]> = SmallVec::new();
        self.brackets(|c| {
            let is_dynamic = match c.token {
                Token::Question => {
                    c.advance();
                    dimensions.push(ArrayShape::UNBOUNDED);
                    true
                }
                _ => {
                    let is_dynamic = c.eat(Token::LessEqual);
                    dimensions.push(c.number::<u64>("a dimension").and_then(|d| {
                        i64::try_from(d).map_err(|_| {
                            let (text, what) = (d.to_string(), "a dimension");
                            c.error(ParseErrorKind::NumberOutOfRange { text, what })
                        })
                    })?);
                    is_dynamic
                }
            };
            dynamic.push(is_dynamic);
            Ok(())
        })?;
        if !dynamic.contains(&true) {
            dynamic.clear();
        }
        let rank = dimensions.len();
        let layout = match self.at_layout() {
            true => self.layout(Some(rank))?,
            false => Layout::row_major(rank),
        };
        Ok(match (element_type, name) {
            (Some(element_type), _) => {
                Shape::Array(ArrayShape { element_type, dimensions, dynamic, layout: Some(layout) })
            }
            (None, "token") => Shape::Token,
            (None, _) => Shape::Opaque,
        })
    }

    /// `{1,0:T(8,128)}` rather than a body that follows a shape.
    fn at_layout(&self) -> bool {
        self.token == Token::LeftBrace && {
            let rest = self.source[self.span.end..].trim_ascii_start();
            rest.starts_with(|c: char| c.is_ascii_digit() || c == ':' || c == '-')
        }
    }

    /// A layout for an array of the given rank, if that is known.
    pub(crate) fn layout(&mut self, rank: Option<usize>) -> Parsed<Layout> {
        let start = self.span.start;
        self.expect(Token::LeftBrace, "`{`")?;
        let mut layout = Layout::default();
        while self.token == Token::Integer {
            layout.minor_to_major.push(self.integer()?);
            if !self.eat(Token::Comma) {
                break;
            }
        }
        if self.eat(Token::Colon) {
            self.layout_parts(&mut layout)?;
        }
        self.expect(Token::RightBrace, "`}`")?;
        let order = layout.minor_to_major.len();
        if let Some(rank) = rank
            && order != rank
        {
            return Err(self.error_at(start..self.previous_end, ParseErrorKind::LayoutRank { rank, order }));
        }
        if !is_permutation(&layout.minor_to_major) {
            return Err(self.error_at(start..self.previous_end, ParseErrorKind::LayoutOrder));
        }
        Ok(layout)
    }

    /// The text behind the colon of a layout; each part is optional, their order fixed.
    fn layout_parts(&mut self, layout: &mut Layout) -> Parsed<()> {
        if self.eat_word("D") {
            // Dimension-level types of sparse arrays: XLA reads and forgets them.
            self.parens(|c| {
                c.name("a dimension level type")?;
                while c.eat(Token::Plus) || c.eat(Token::Tilde) {}
                Ok(())
            })?;
        }
        if self.eat_word("T") {
            while self.at(Token::LeftParen) {
                layout.tiles.push(self.tile()?);
            }
        }
        let mut rare = RareLayout::default();
        if self.eat_word("L") {
            rare.tail_padding_alignment_in_elements = self.parenthesized()?;
        }
        if self.eat(Token::Hash) {
            rare.index_primitive_type = Some(self.parenthesized_type()?);
        }
        if self.eat(Token::Star) {
            rare.pointer_primitive_type = Some(self.parenthesized_type()?);
        }
        if self.eat_word("E") {
            layout.element_size_in_bits = self.parenthesized()?;
        }
        if self.eat_word("S") {
            layout.memory_space = self.parenthesized()?;
        }
        if self.eat_word("SC") {
            while self.at(Token::LeftParen) {
                rare.split_configs.push(self.split_config()?);
            }
        }
        if self.eat_word("P") {
            self.expect(Token::LeftParen, "`(`")?;
            rare.physical_shape = Some(self.shape()?);
            self.expect(Token::RightParen, "`)`")?;
        }
        if self.eat_word("M") {
            rare.dynamic_shape_metadata_prefix_bytes = self.parenthesized()?;
        }
        if rare != RareLayout::default() {
            layout.rare = Some(Box::new(rare));
        }
        Ok(())
    }

    fn tile(&mut self) -> Parsed<Tile> {
        let mut dimensions = SmallVec::new();
        self.parens(|c| {
            dimensions.push(if c.eat(Token::Star) { Tile::COMBINE } else { c.integer()? });
            Ok(())
        })?;
        Ok(Tile { dimensions })
    }

    fn split_config(&mut self) -> Parsed<SplitConfig> {
        self.expect(Token::LeftParen, "`(`")?;
        let dimension = self.integer()?;
        self.expect(Token::Colon, "`:`")?;
        let mut split_indices = SmallVec::new();
        loop {
            split_indices.push(self.integer()?);
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::RightParen, "`)`")?;
        Ok(SplitConfig { dimension, split_indices })
    }

    fn parenthesized(&mut self) -> Parsed<i64> {
        self.expect(Token::LeftParen, "`(`")?;
        let value = self.integer()?;
        self.expect(Token::RightParen, "`)`")?;
        Ok(value)
    }

    fn parenthesized_type(&mut self) -> Parsed<ElementType> {
        self.expect(Token::LeftParen, "`(`")?;
        let element_type = match self.token {
            Token::Identifier => tables::element_type(self.text()),
            _ => None,
        };
        let element_type = element_type.ok_or_else(|| self.unexpected("an element type"))?;
        self.advance();
        self.expect(Token::RightParen, "`)`")?;
        Ok(element_type)
    }
}

/// The end of the shape that begins at `start`, found by looking only at brackets; `None` if it must be parsed. If the
/// text up to that end was parsed as a shape before, it is the same shape here.
pub(crate) fn shape_end(source: &str, start: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    if bytes.get(start) == Some(&b'(') {
        return closing(bytes, start);
    }
    let open = start + bytes[start..].iter().position(|&b| !b.is_ascii_alphanumeric())?;
    if bytes[open] != b'[' {
        return None;
    }
    let end = open + bytes[open..].iter().position(|&b| b == b']')? + 1;
    match bytes.get(end) {
        Some(b'{') => match bytes.get(end + 1)? {
            b'0'..=b'9' | b':' => closing(bytes, end),
            b' ' | b'\t' | b'\r' | b'\n' | b'/' => None,
            _ => Some(end),
        },
        // A layout may follow after white space or a comment.
        Some(b' ')
            if bytes.get(end + 1).is_some_and(|&b| !b.is_ascii_whitespace() && b != b'{' && b != b'/') =>
        {
            Some(end)
        }
        Some(b' ' | b'\t' | b'\r' | b'\n' | b'/') => None,
        _ => Some(end),
    }
}

/// The end of the bracketed text that begins at `start`.
fn closing(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0usize);
    loop {
        match *bytes.get(at)? {
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            // Only the comments that printers write; others get the closer look.
            b'/' => match bytes.get(at..at + 8)? {
                b"/*index=" => at += 7,
                _ => return None,
            },
            b'"' | b'\'' | b'=' => return None,
            _ => {}
        }
        at += 1;
    }
}

fn is_type_name(name: &str) -> bool {
    matches!(name, "token" | "opaque") || tables::element_type(name).is_some()
}

pub(crate) fn is_permutation(order: &[i64]) -> bool {
    let mut seen: SmallVec<[bool; 16]> = SmallVec::from_elem(false, order.len());
    order
        .iter()
        .all(|&d| usize::try_from(d).is_ok_and(|d| d < order.len() && !std::mem::replace(&mut seen[d], true)))
}

fn unexpected(expected: &str, found: &str) -> ParseErrorKind {
    ParseErrorKind::Unexpected { expected: expected.to_owned(), found: found.to_owned() }
}
