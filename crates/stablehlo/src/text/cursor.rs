//! A place in the text of a program.

use std::ops::Range;

use crate::Error;

/// What may go wrong while reading. Boxed, since it is rare.
pub(super) type Parsed<T> = Result<T, Box<Error>>;

/// A place in a text.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'s> {
    pub(super) source: &'s str,
    pub(super) at: usize,
}

impl<'s> Cursor<'s> {
    pub(super) fn new(source: &'s str) -> Cursor<'s> {
        Cursor { source, at: 0 }
    }

    /// Skips white space and comments.
    pub(super) fn space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    /// The text that follows.
    pub(super) fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// The next character, after white space.
    pub(super) fn peek(&mut self) -> Option<char> {
        self.space();
        self.rest().chars().next()
    }

    /// Whether a text follows, after white space.
    pub(super) fn is_at(&mut self, text: &str) -> bool {
        self.space();
        self.rest().starts_with(text)
    }

    /// Skips a text, if it follows.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let is_there = self.is_at(text);
        if is_there {
            self.at += text.len();
        }
        is_there
    }

    /// Skips a whole word, if it follows.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let ends = |rest: &str| !rest[word.len()..].starts_with(is_word);
        let is_there = self.is_at(word) && ends(self.rest());
        if is_there {
            self.at += word.len();
        }
        is_there
    }

    pub(super) fn expect(&mut self, text: &str) -> Parsed<()> {
        match self.eat(text) {
            true => Ok(()),
            false => Err(self.unexpected(&format!("`{text}`"))),
        }
    }

    /// The longest text of characters of a kind.
    pub(super) fn take(&mut self, is_part: impl Fn(char) -> bool) -> &'s str {
        let rest = self.rest();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// A word: letters, digits, `_`, `.`, `$` and `-` within it.
    pub(super) fn word(&mut self) -> Parsed<&'s str> {
        self.space();
        let rest = self.rest();
        let begins = rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins {
            return Err(self.unexpected("a name"));
        }
        Ok(self.take(is_word))
    }

    /// An integer in decimal.
    pub(super) fn integer(&mut self) -> Parsed<i64> {
        self.space();
        let start = self.at;
        self.eat("-");
        self.take(|c| c.is_ascii_digit());
        let text = &self.source[start..self.at];
        text.parse().map_err(|_| {
            self.at = start;
            self.unexpected("an integer")
        })
    }

    /// A string in quotes.
    pub(super) fn string(&mut self) -> Parsed<String> {
        self.space();
        let start = self.at;
        self.expect("\"")?;
        let mut bytes = Vec::new();
        let text = self.source.as_bytes();
        loop {
            match text.get(self.at) {
                None => return Err(self.error(start..start + 1, "this string does not end")),
                Some(b'"') => break,
                Some(b'\\') => {
                    let pair = [1, 2].map(|i| text.get(self.at + i).map(|&c| char::from(c)));
                    let hex = pair.map(|c| c.and_then(|c| c.to_digit(16)));
                    match (pair, hex) {
                        (_, [Some(high), Some(low)]) => {
                            bytes.push((high * 16 + low) as u8);
                            self.at += 3;
                            continue;
                        }
                        ([Some('n'), _], _) => bytes.push(b'\n'),
                        ([Some('t'), _], _) => bytes.push(b'\t'),
                        ([Some(c @ ('"' | '\\')), _], _) => bytes.push(c as u8),
                        _ => {
                            return Err(self.error(start..start + 1, "malformed escape sequence in a string"));
                        }
                    }
                    self.at += 2;
                }
                Some(&byte) => {
                    bytes.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        // Serialized programs of kernels are in strings; those are kept as far as they are text.
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| latin(error.as_bytes())))
    }

    /// The text up to the bracket that closes one that was just opened. The bracket is skipped.
    pub(super) fn balanced(&mut self, close: char) -> Parsed<&'s str> {
        let (start, mut depth) = (self.at, 1u32);
        let open = match close {
            '>' => '<',
            ']' => '[',
            '}' => '{',
            _ => '(',
        };
        let text = self.source.as_bytes();
        while let Some(&byte) = text.get(self.at) {
            match byte {
                b'"' => {
                    self.at += 1;
                    while let Some(&byte) = text.get(self.at).filter(|&&byte| byte != b'"') {
                        self.at += 1 + usize::from(byte == b'\\');
                    }
                }
                b'-' if text.get(self.at + 1) == Some(&b'>') => self.at += 1,
                _ if byte == open as u8 => depth += 1,
                _ if byte == close as u8 => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(&self.source[start..self.at - 1]);
            }
        }
        Err(self.error(start.saturating_sub(1)..start, format!("no `{close}` closes this")))
    }

    pub(super) fn error(&self, span: Range<usize>, message: impl Into<String>) -> Box<Error> {
        // Errors about one character of several bytes are about all of it.
        let begin =
            (0..=span.start.min(self.source.len())).rev().find(|&at| self.source.is_char_boundary(at));
        let end = (span.end.min(self.source.len())..=self.source.len())
            .find(|&at| self.source.is_char_boundary(at));
        Box::new(Error::at(begin.unwrap_or(0)..end.unwrap_or(self.source.len()), message))
    }

    pub(super) fn unexpected(&mut self, expected: &str) -> Box<Error> {
        self.space();
        let rest = self.rest();
        let found = match rest.chars().next() {
            None => "the end".to_owned(),
            Some(_) => {
                let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                let length = word.max(rest.chars().next().map_or(0, char::len_utf8));
                format!("`{}`", &rest[..length])
            }
        };
        // At the end, the last character is shown.
        let span = match found.len() {
            _ if rest.is_empty() => self.at.saturating_sub(1)..self.at,
            length => self.at..self.at + length - 2,
        };
        self.error(span, format!("expected {expected}, found {found}"))
    }
}

/// Whether a character may be in a name.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')
}

/// Bytes as characters, one each.
fn latin(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}
