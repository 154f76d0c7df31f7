//! Moves through the tokens of a source: peeks, takes a token, or reports the expected one.

use std::{ops::Range, str::FromStr};

use logos::Logos;
use memplan_ir::Dimensions;
use smallvec::SmallVec;

use crate::{
    error::{ParseError, ParseErrorKind, Related},
    lexer::{Token, json_end, unescape},
};

/// The result of parsing. The error is boxed to keep the common case small.
pub(crate) type Parsed<T> = Result<T, Box<ParseError>>;

/// How deep operands, computations, tuples, layouts and literals may nest.
///
/// XLA stops at 8192, on a stack made for it. This many levels of the largest frame fit the 2 MiB stack of a thread
/// in an unoptimized build, and programs nest at most a dozen levels.
pub(crate) const MAX_DEPTH: u32 = 256;

/// A position in the source: its token, and the state to continue from there.
pub(crate) struct Cursor<'s> {
    pub(crate) source: &'s str,
    lexer: logos::Lexer<'s, Token>,
    /// The current token.
    pub(crate) token: Token,
    /// Its position.
    pub(crate) span: Range<usize>,
    /// The end of the token before.
    pub(crate) previous_end: usize,
    depth: u32,
    /// Bytes of zeros that constants imply by omitting elements.
    pub(crate) n_implied_zeros: usize,
}

impl<'s> Cursor<'s> {
    pub(crate) fn new(source: &'s str) -> Cursor<'s> {
        let mut cursor = Cursor {
            source,
            lexer: Token::lexer(source),
            token: Token::End,
            span: 0..0,
            previous_end: 0,
            depth: 0,
            n_implied_zeros: 0,
        };
        cursor.advance();
        cursor
    }

    /// The text of the current token.
    pub(crate) fn text(&self) -> &'s str {
        &self.source[self.span.clone()]
    }

    /// Goes to the next token.
    pub(crate) fn advance(&mut self) {
        self.previous_end = self.span.end;
        self.token = match self.lexer.next() {
            Some(Ok(token)) => token,
            Some(Err(())) => Token::Invalid,
            None => Token::End,
        };
        self.span = self.lexer.span();
    }

    /// Moves to the first token at or after `end`, which comes after the current one.
    pub(crate) fn jump(&mut self, end: usize) {
        self.lexer.bump(end - self.span.end);
        self.span = end..end;
        self.advance();
    }

    /// The first byte behind the current token; 0 at the end.
    pub(crate) fn next_byte(&self) -> u8 {
        self.source.as_bytes().get(self.span.end).copied().unwrap_or(0)
    }

    /// Whether the text behind the current token, white space aside, begins with `character`.
    pub(crate) fn is_followed_by(&self, character: char) -> bool {
        self.source[self.span.end..].trim_ascii_start().starts_with(character)
    }

    pub(crate) fn at(&self, token: Token) -> bool {
        self.token == token
    }

    /// Whether the current token is this word.
    pub(crate) fn at_word(&self, word: &str) -> bool {
        self.token == Token::Identifier && self.text() == word
    }

    /// Takes the current token if it is this one.
    pub(crate) fn eat(&mut self, token: Token) -> bool {
        let found = self.token == token;
        if found {
            self.advance();
        }
        found
    }

    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.advance();
        }
        found
    }

    /// Takes the current token if it is `word=`.
    pub(crate) fn eat_attribute(&mut self, word: &str) -> bool {
        let found = self.token == Token::Attribute && self.text().strip_suffix('=') == Some(word);
        if found {
            self.advance();
        }
        found
    }

    pub(crate) fn expect(&mut self, token: Token, expected: &str) -> Parsed<()> {
        if self.eat(token) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    pub(crate) fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    pub(crate) fn expect_attribute(&mut self, word: &str) -> Parsed<()> {
        if self.eat_attribute(word) { Ok(()) } else { Err(self.unexpected(&format!("`{word}=`"))) }
    }

    /// The items between `open` and `close`, commas between them; a trailing comma is an error.
    pub(crate) fn list(
        &mut self,
        open: (Token, &str),
        close: (Token, &str),
        mut item: impl FnMut(&mut Cursor<'s>) -> Parsed<()>,
    ) -> Parsed<()> {
        self.expect(open.0, open.1)?;
        if self.eat(close.0) {
            return Ok(());
        }
        loop {
            item(self)?;
            if !self.eat(Token::Comma) {
                return self.expect(close.0, close.1);
            }
        }
    }

    /// `{item, item}`
    pub(crate) fn braces(&mut self, item: impl FnMut(&mut Cursor<'s>) -> Parsed<()>) -> Parsed<()> {
        self.list((Token::LeftBrace, "`{`"), (Token::RightBrace, "`,` or `}`"), item)
    }

    /// `[item, item]`
    pub(crate) fn brackets(&mut self, item: impl FnMut(&mut Cursor<'s>) -> Parsed<()>) -> Parsed<()> {
        self.list((Token::LeftBracket, "`[`"), (Token::RightBracket, "`,` or `]`"), item)
    }

    /// `(item, item)`
    pub(crate) fn parens(&mut self, item: impl FnMut(&mut Cursor<'s>) -> Parsed<()>) -> Parsed<()> {
        self.list((Token::LeftParen, "`(`"), (Token::RightParen, "`,` or `)`"), item)
    }

    /// A number that fits `T`.
    pub(crate) fn number<T: FromStr>(&mut self, what: &'static str) -> Parsed<T> {
        if self.token != Token::Integer {
            return Err(self.unexpected(what));
        }
        let text = self.text();
        let number = text
            .parse()
            .map_err(|_| self.error(ParseErrorKind::NumberOutOfRange { text: text.to_owned(), what }))?;
        self.advance();
        Ok(number)
    }

    pub(crate) fn integer(&mut self) -> Parsed<i64> {
        self.number("an integer")
    }

    /// A decimal number or an integer.
    pub(crate) fn float(&mut self) -> Parsed<f64> {
        let value = match self.token {
            Token::Integer | Token::Decimal => self.text().parse::<f64>().ok(),
            Token::SpecialFloat | Token::Identifier => match self.text() {
                "inf" => Some(f64::INFINITY),
                "-inf" => Some(f64::NEG_INFINITY),
                "nan" | "-nan" => Some(f64::NAN),
                _ => None,
            },
            _ => None,
        };
        let value = value.ok_or_else(|| self.unexpected("a number"))?;
        self.advance();
        Ok(value)
    }

    pub(crate) fn boolean(&mut self) -> Parsed<bool> {
        let value = match self.token {
            Token::Identifier if self.text() == "true" => true,
            Token::Identifier if self.text() == "false" => false,
            Token::Integer if self.text() == "1" => true,
            Token::Integer if self.text() == "0" => false,
            _ => return Err(self.unexpected("`true` or `false`")),
        };
        self.advance();
        Ok(value)
    }

    /// A word out of a fixed set, in upper or lower case.
    pub(crate) fn word_in_any_case<T: FromStr>(&mut self, expected: &str) -> Parsed<T> {
        let found = match self.token {
            Token::Identifier => self.text().to_ascii_lowercase().parse().ok(),
            _ => None,
        };
        let value = found.ok_or_else(|| self.unexpected(expected))?;
        self.advance();
        Ok(value)
    }

    /// A word out of a fixed set.
    pub(crate) fn word<T: FromStr>(&mut self, expected: &str) -> Parsed<T> {
        let found = match self.token {
            Token::Identifier => self.text().parse().ok(),
            _ => None,
        };
        let value = found.ok_or_else(|| self.unexpected(expected))?;
        self.advance();
        Ok(value)
    }

    /// The bytes of a string, escapes undone.
    pub(crate) fn bytes(&mut self) -> Parsed<Box<[u8]>> {
        if self.token != Token::String {
            return Err(self.unexpected("a string"));
        }
        let text = self.text();
        let inner = &text[1..text.len() - 1];
        let bytes = if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
            inner.as_bytes().into()
        } else {
            unescape(inner).ok_or_else(|| self.error(ParseErrorKind::InvalidEscape))?.into()
        };
        self.advance();
        Ok(bytes)
    }

    /// A string, escapes undone.
    pub(crate) fn string(&mut self) -> Parsed<Box<str>> {
        if self.token == Token::String {
            let text = self.text();
            let inner = &text[1..text.len() - 1];
            if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
                self.advance();
                return Ok(inner.into());
            }
        }
        let span = self.span.clone();
        let bytes = self.bytes()?;
        match String::from_utf8(bytes.into_vec()) {
            Ok(string) => Ok(string.into()),
            Err(_) => Err(self.error_at(span, ParseErrorKind::StringNotUtf8)),
        }
    }

    /// The raw text from the current `{` to the matching `}`, both included.
    pub(crate) fn json(&mut self) -> Parsed<&'s str> {
        let start = self.span.start;
        let end = json_end(self.source, start)
            .ok_or_else(|| self.error_at(start..start + 1, ParseErrorKind::UnterminatedJson))?;
        self.jump(end);
        Ok(&self.source[start..end])
    }

    /// A name: of an instruction, a computation, a parameter. A `:` that touches it is taken too.
    pub(crate) fn name(&mut self, expected: &str) -> Parsed<&'s str> {
        let text = self.text();
        let name = match self.token {
            Token::Identifier => text,
            Token::Name => &text[1..],
            Token::Label => &text[..text.len() - 1],
            _ => return Err(self.unexpected(expected)),
        };
        self.advance();
        Ok(name)
    }

    /// `{1,0}`
    pub(crate) fn integers<A: smallvec::Array<Item = i64>>(&mut self) -> Parsed<SmallVec<A>> {
        let mut values = SmallVec::new();
        self.braces(|c| {
            values.push(c.integer()?);
            Ok(())
        })?;
        Ok(values)
    }

    /// `[2,4]`
    pub(crate) fn bracketed_integers(&mut self) -> Parsed<Dimensions> {
        let mut values = Dimensions::new();
        self.brackets(|c| {
            values.push(c.integer()?);
            Ok(())
        })?;
        Ok(values)
    }

    /// `(1,0)`
    pub(crate) fn parenthesized_integers(&mut self) -> Parsed<Dimensions> {
        let mut values = Dimensions::new();
        self.parens(|c| {
            values.push(c.integer()?);
            Ok(())
        })?;
        Ok(values)
    }

    /// Goes one level deeper for as long as `inside` takes.
    pub(crate) fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(ParseErrorKind::TooDeep { limit: MAX_DEPTH }));
        }
        Ok(())
    }

    /// Undoes one [`Cursor::deeper`].
    pub(crate) fn shallower(&mut self) {
        self.depth -= 1;
    }

    /// The end of the source must be here.
    pub(crate) fn finish(&self, what: &'static str) -> Parsed<()> {
        match self.token {
            Token::End => Ok(()),
            Token::Invalid => Err(self.unexpected("")),
            _ => Err(self.error(ParseErrorKind::ExtraContent { what })),
        }
    }

    /// An error at the current token.
    pub(crate) fn error(&self, kind: ParseErrorKind) -> Box<ParseError> {
        self.error_at(self.span.clone(), kind)
    }

    pub(crate) fn error_at(&self, span: Range<usize>, kind: ParseErrorKind) -> Box<ParseError> {
        Box::new(ParseError { kind, span, related: None })
    }

    /// An error at `span` that also points at `related`.
    pub(crate) fn error_with(
        &self,
        span: Range<usize>,
        kind: ParseErrorKind,
        related: Range<usize>,
        message: &str,
    ) -> Box<ParseError> {
        let related = Some(Box::new(Related { span: related, message: message.to_owned() }));
        Box::new(ParseError { kind, span, related })
    }

    /// The error that the current token is not the expected one.
    pub(crate) fn unexpected(&self, expected: &str) -> Box<ParseError> {
        let found = match self.token {
            Token::Invalid => return self.invalid(),
            Token::End => {
                // The file ends behind the last token: the reader looks there, not at trailing blank lines.
                let at = self.previous_end;
                let (expected, found) = (expected.to_owned(), "the end of the text".to_owned());
                return self.error_at(at..at, ParseErrorKind::Unexpected { expected, found });
            }
            _ => {
                let text = self.text();
                let cut = text.char_indices().nth(40).map_or(text.len(), |(at, _)| at);
                format!("`{}`{}", &text[..cut], if cut < text.len() { "..." } else { "" })
            }
        };
        self.error(ParseErrorKind::Unexpected { expected: expected.to_owned(), found })
    }

    /// Why there is no token here.
    fn invalid(&self) -> Box<ParseError> {
        let start = self.span.start;
        let rest = &self.source[start..];
        let character = rest.chars().next().unwrap_or('\0');
        let kind = match character {
            '"' | '\'' => ParseErrorKind::UnterminatedString,
            '/' if rest.starts_with("/*") => ParseErrorKind::UnterminatedComment,
            _ => ParseErrorKind::InvalidCharacter { character },
        };
        let width = if rest.starts_with("/*") { 2 } else { character.len_utf8() };
        self.error_at(start..(start + width).min(self.source.len()), kind)
    }
}
