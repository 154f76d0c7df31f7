//! Literals: text to bytes.
//!
//! A literal is written in row-major order, one pair of braces per dimension. Elements are appended as they come, so
//! no memory is taken that the text does not account for.

use memplan_ir::{ArrayLiteral, ArrayShape, ElementType, Literal, LiteralData, Shape};

use super::cursor::{Cursor, Parsed};
use crate::{error::ParseErrorKind, lexer::Token, printer};

/// Bytes of zeros that all constants of a text may omit together, beyond those in proportion to the text.
const MAX_IMPLIED_ZEROS: usize = 1 << 26;

impl Cursor<'_> {
    /// `s32[2] {1,2}` or `(s32[] 1, f32[] 2)`: a literal with its own shape.
    pub(crate) fn shaped_literal(&mut self) -> Parsed<Literal> {
        if self.at(Token::LeftParen) {
            self.deeper()?;
            let mut elements = Vec::new();
            self.parens(|c| {
                elements.push(c.shaped_literal()?);
                Ok(())
            })?;
            self.shallower();
            return Ok(Literal::Tuple(elements));
        }
        let shape = self.shape()?;
        self.literal(&shape)
    }

    /// A literal of the given shape.
    pub(crate) fn literal(&mut self, shape: &Shape) -> Parsed<Literal> {
        match shape {
            Shape::Array(array) => Ok(Literal::Array(self.array_literal(array)?)),
            Shape::Tuple(shapes) => {
                self.deeper()?;
                let start = self.span.start;
                let mut elements = Vec::new();
                self.parens(|c| {
                    let Some(shape) = shapes.get(elements.len()) else {
                        let kind =
                            ParseErrorKind::Count { expected: shapes.len(), found: elements.len() + 1 };
                        return Err(c.error(kind));
                    };
                    elements.push(c.literal(shape)?);
                    Ok(())
                })?;
                self.shallower();
                if elements.len() != shapes.len() {
                    let kind = ParseErrorKind::Count { expected: shapes.len(), found: elements.len() };
                    return Err(self.error_at(start..self.previous_end, kind));
                }
                Ok(Literal::Tuple(elements))
            }
            // XLA reads and prints `token[]` constants with nothing, or with their type, between the parentheses.
            Shape::Token => {
                self.eat_word("token");
                Ok(Literal::Token)
            }
            Shape::Buffer(_) | Shape::Opaque => {
                let shape = printer::shape_text(shape);
                Err(self.error(ParseErrorKind::LiteralShape { shape }))
            }
        }
    }

    fn array_literal(&mut self, shape: &ArrayShape) -> Parsed<ArrayLiteral> {
        let element_type = shape.element_type;
        let dimensions = shape.dimensions.clone();
        if !dimensions.is_empty() && self.at(Token::LeftBrace) && self.at_elision() {
            for _ in 0..2 {
                self.advance();
            }
            self.expect(Token::RightBrace, "`}`")?;
            let data = match dimensions.contains(&0) {
                true => LiteralData::Bytes(Vec::new().into()),
                false => LiteralData::Elided,
            };
            return Ok(ArrayLiteral { element_type, dimensions, data });
        }
        let mut bytes = Vec::new();
        if dimensions.is_empty() {
            self.element(element_type, &mut bytes)?;
        } else if !self.at(Token::LeftBrace) && !element_type.is_complex() {
            return self.first_element(shape);
        } else {
            self.elements(element_type, &dimensions, &mut bytes)?;
        }
        Ok(ArrayLiteral { element_type, dimensions, data: LiteralData::Bytes(bytes.into()) })
    }

    /// `f32[2,2] constant(5)`: XLA takes the number for the first element, and zero for all others.
    fn first_element(&mut self, shape: &ArrayShape) -> Parsed<ArrayLiteral> {
        let (element_type, dimensions) = (shape.element_type, shape.dimensions.clone());
        let span = self.span.clone();
        let mut bytes = Vec::new();
        self.element(element_type, &mut bytes)?;
        let n_elements = shape.element_count().and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        if n_elements == 0 {
            let (expected, found) = (0, "1".to_owned());
            return Err(self.error_at(span, ParseErrorKind::LiteralCount { expected, dimension: 0, found }));
        }
        let n_bytes = n_elements.saturating_mul(bytes.len());
        self.n_implied_zeros = self.n_implied_zeros.saturating_add(n_bytes);
        if self.n_implied_zeros > 8 * self.source.len() + MAX_IMPLIED_ZEROS {
            return Err(self.error_at(span, ParseErrorKind::TooMuchInferred));
        }
        bytes.resize(n_bytes, 0);
        Ok(ArrayLiteral { element_type, dimensions, data: LiteralData::Bytes(bytes.into()) })
    }

    /// Whether `{...}` begins here.
    fn at_elision(&self) -> bool {
        self.source[self.span.end..].trim_ascii_start().starts_with("...")
    }

    /// The elements of an array of rank one or more. Braces are counted with a loop, not recursion: rank is bounded
    /// by the text only.
    fn elements(&mut self, element_type: ElementType, extents: &[i64], out: &mut Vec<u8>) -> Parsed<()> {
        let rank = extents.len();
        // Elements seen so far at each level that is open.
        let mut counts: Vec<i64> = Vec::new();
        loop {
            match self.token {
                Token::LeftBrace => {
                    if counts.len() == rank {
                        return Err(self.error(ParseErrorKind::LiteralTooDeep { rank }));
                    }
                    self.count_element(extents, &mut counts)?;
                    counts.push(0);
                    self.advance();
                }
                Token::RightBrace => {
                    let Some(count) = counts.pop() else { return Err(self.unexpected("`{`")) };
                    let dimension = counts.len();
                    let is_empty = extents[dimension..].contains(&0) && count == 0;
                    if count != extents[dimension] && !is_empty {
                        let (expected, found) = (extents[dimension], count.to_string());
                        return Err(self.error(ParseErrorKind::LiteralCount { expected, dimension, found }));
                    }
                    self.advance();
                    if counts.is_empty() {
                        return Ok(());
                    }
                }
                Token::Comma if !counts.is_empty() => self.advance(),
                Token::LeftParen if element_type.is_complex() && counts.len() == rank => {
                    self.count_element(extents, &mut counts)?;
                    self.element(element_type, out)?;
                }
                Token::Integer | Token::Decimal | Token::SpecialFloat | Token::Identifier => {
                    if counts.len() != rank {
                        let found = counts.len();
                        return Err(self.error(ParseErrorKind::LiteralRank { rank, found }));
                    }
                    self.count_element(extents, &mut counts)?;
                    self.element(element_type, out)?;
                }
                _ => return Err(self.unexpected("an element, `{` or `}`")),
            }
        }
    }

    /// One more element at the innermost open level.
    fn count_element(&self, extents: &[i64], counts: &mut [i64]) -> Parsed<()> {
        let Some(dimension) = counts.len().checked_sub(1) else { return Ok(()) };
        counts[dimension] += 1;
        if counts[dimension] > extents[dimension] {
            let (expected, found) = (extents[dimension], "more".to_owned());
            return Err(self.error(ParseErrorKind::LiteralCount { expected, dimension, found }));
        }
        Ok(())
    }

    /// One element; `(re, im)` for a complex type.
    fn element(&mut self, element_type: ElementType, out: &mut Vec<u8>) -> Parsed<()> {
        if element_type.is_complex() {
            let part = element_type.component();
            self.expect(Token::LeftParen, "a complex number like `(1, 2)`")?;
            self.real_element(part, out)?;
            self.expect(Token::Comma, "`,`")?;
            self.real_element(part, out)?;
            return self.expect(Token::RightParen, "`)`");
        }
        self.real_element(element_type, out)
    }

    fn real_element(&mut self, element_type: ElementType, out: &mut Vec<u8>) -> Parsed<()> {
        let text = self.text();
        let bits = match self.token {
            Token::Integer | Token::Decimal | Token::SpecialFloat | Token::Identifier => {
                if element_type.is_floating() {
                    self.float_bits(element_type, text)?
                } else {
                    self.integer_bits(element_type, text)?
                }
            }
            _ => return Err(self.unexpected("a number")),
        };
        self.advance();
        out.extend_from_slice(&bits.to_le_bytes()[..element_type.byte_width() as usize]);
        Ok(())
    }

    fn integer_bits(&self, element_type: ElementType, text: &str) -> Parsed<u64> {
        let type_name = element_type.into();
        let bad = || ParseErrorKind::LiteralType { element_type: type_name, found: format!("`{text}`") };
        match text {
            "true" | "false" if element_type == ElementType::Pred => return Ok(u64::from(text == "true")),
            _ if self.token != Token::Integer => return Err(self.error(bad())),
            _ => {}
        }
        let out_of_range =
            || self.error(ParseErrorKind::LiteralRange { value: text.to_owned(), element_type: type_name });
        let value: i128 = text.parse().map_err(|_| out_of_range())?;
        let bits = element_type.bits();
        let (low, high) = match element_type.is_signed() {
            true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
            false => (0, (1i128 << bits) - 1),
        };
        if element_type == ElementType::Pred {
            // Any integer is a truth value.
            return Ok(u64::from(value != 0));
        }
        // XLA reads integers as `s64` and lets those through that a `u64` has the bits for.
        let wraps = element_type == ElementType::U64 && value >= i128::from(i64::MIN);
        if (value < low && !wraps) || value > high {
            return Err(out_of_range());
        }
        Ok(value as u64)
    }

    fn float_bits(&self, element_type: ElementType, text: &str) -> Parsed<u64> {
        let type_name = element_type.into();
        if let Some((word, payload)) = text.split_once("(0x") {
            let payload = u64::from_str_radix(payload.trim_end_matches(')'), 16).unwrap_or(u64::MAX);
            let mask = (1u64 << element_type.mantissa_bits()) - 1;
            if !element_type.has_nan_payload() || payload == 0 || payload > mask {
                let found = format!("`{text}`");
                return Err(self.error(ParseErrorKind::LiteralType { element_type: type_name, found }));
            }
            let quiet = element_type.encode_float(if word == "-nan" { -f64::NAN } else { f64::NAN });
            return Ok(quiet & !mask | payload);
        }
        let value = match text {
            // An integer to XLA's parser, and so positive zero, although XLA prints negative zero like this.
            _ if self.token == Token::Integer && text.trim_start_matches(['-', '0']).is_empty() => 0.0,
            "nan" => f64::NAN,
            "-nan" => -f64::NAN,
            "inf" => f64::INFINITY,
            "-inf" => f64::NEG_INFINITY,
            "true" => 1.0,
            "false" => 0.0,
            _ => text.parse().map_err(|_| {
                let found = format!("`{text}`");
                self.error(ParseErrorKind::LiteralType { element_type: type_name, found })
            })?,
        };
        // XLA rounds to these types by way of `f32`, which can differ in the last bit.
        let value = match element_type {
            ElementType::F16 | ElementType::Bf16 => f64::from(value as f32),
            _ => value,
        };
        let bits = element_type.encode_float(value);
        let overflows = value.is_finite() && !element_type.decode_float(bits).is_finite();
        let is_literally_infinite =
            value.is_infinite() && self.token != Token::Decimal && self.token != Token::Integer;
        if overflows || (value.is_infinite() && !is_literally_infinite) {
            let value = text.to_owned();
            return Err(self.error(ParseErrorKind::LiteralRange { value, element_type: type_name }));
        }
        Ok(bits)
    }
}
