//! Tokens of HLO text.
//!
//! The language is sensitive to white space in one place: `name=` without a space begins an attribute, `name =`
//! an instruction. An identifier therefore swallows a `=` or `:` that touches it, and the three are different tokens.

use logos::{Lexer, Logos};

/// A token; its content is the text of its span.
#[derive(Logos, Clone, Copy, Debug, PartialEq, Eq)]
#[logos(skip r"[ \t\r\n]+")]
#[logos(skip(r"//[^\n]*", allow_greedy = true))]
#[logos(skip r"/\*[^*]*\*+([^/*][^*]*\*+)*/")]
pub(crate) enum Token {
    #[token("=")]
    Equals,
    #[token(",")]
    Comma,
    #[token(":")]
    Colon,
    #[token("*")]
    Star,
    #[token("#")]
    Hash,
    #[token("+")]
    Plus,
    #[token("~")]
    Tilde,
    #[token("?")]
    Question,
    #[token("(")]
    LeftParen,
    #[token(")")]
    RightParen,
    #[token("[")]
    LeftBracket,
    #[token("]")]
    RightBracket,
    #[token("{")]
    LeftBrace,
    #[token("}")]
    RightBrace,
    #[token("<=")]
    LessEqual,
    #[token("->")]
    Arrow,
    #[token("...")]
    Dots,
    /// `-inf`, `-nan`, `nan(0x1)`, `-nan(0x1)`; the bare words are identifiers.
    #[token("-inf")]
    #[regex(r"-nan(\(0x[0-9a-fA-F]+\))?")]
    #[regex(r"nan\(0x[0-9a-fA-F]+\)")]
    SpecialFloat,
    /// `name`
    #[regex(r"[A-Za-z_][A-Za-z0-9_.\-]*")]
    Identifier,
    /// `name:`
    #[regex(r"[A-Za-z_][A-Za-z0-9_.\-]*:")]
    Label,
    /// `name=`
    #[regex(r"[A-Za-z_][A-Za-z0-9_.\-]*=")]
    Attribute,
    /// `%name`
    #[regex(r"%[A-Za-z_][A-Za-z0-9_.\-]*")]
    Name,
    #[regex(r"-?[0-9]+")]
    Integer,
    #[regex(r"-?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")]
    #[regex(r"-?[0-9]+[eE][+-]?[0-9]+")]
    Decimal,
    /// `3x3`
    #[regex(r"[0-9]+(x[0-9]+)+")]
    Extents,
    /// `0_1x0_1`, `0_1_2`
    #[regex(r"-?[0-9]+_-?[0-9]+(_[0-9]+)?(x-?[0-9]+_-?[0-9]+(_[0-9]+)?)*")]
    Padding,
    /// `b01f_01io->b01f`
    #[regex(r"[0-9bf?][0-9bf?]+_[0-9io?][0-9io?]+->[0-9bf?][0-9bf?]+")]
    DimensionLabels,
    /// `"..."` or `'...'`, with C escapes.
    #[token("\"", string::<b'"'>)]
    #[token("'", string::<b'\''>)]
    String,
    /// Nothing that a token can begin with.
    Invalid,
    End,
}

/// Skips to the closing quote; `None` when there is none.
fn string<'s, const QUOTE: u8>(lexer: &mut Lexer<'s, Token>) -> Option<()> {
    let rest = lexer.remainder().as_bytes();
    let mut at = 0;
    loop {
        at += memchr::memchr2(QUOTE, b'\\', &rest[at..])?;
        if rest[at] == QUOTE {
            lexer.bump(at + 1);
            return Some(());
        }
        // The escaped byte may begin a longer character; its other bytes are neither quote nor backslash.
        at += 2;
        if at > rest.len() {
            return None;
        }
    }
}

/// The end of the text that begins with `{` at `start` and runs to the matching `}`, braces inside double-quoted
/// strings not counted; `None` when it does not end.
pub(crate) fn json_end(source: &str, start: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut depth) = (start, 0usize);
    loop {
        at += memchr::memchr3(b'{', b'}', b'"', &bytes[at..])?;
        match bytes[at] {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {
                at += 1;
                loop {
                    at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
                    if bytes[at] == b'"' {
                        break;
                    }
                    at += 2;
                }
            }
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Undoes C escapes. `None` when an escape is malformed.
pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next()? {
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            byte @ (b'\\' | b'?' | b'\'' | b'"') => byte,
            byte @ b'0'..=b'7' => {
                let mut value = u32::from(byte - b'0');
                for _ in 0..2 {
                    match bytes.peek() {
                        Some(&digit @ b'0'..=b'7') => value = value * 8 + u32::from(digit - b'0'),
                        _ => break,
                    }
                    bytes.next();
                }
                u8::try_from(value).ok()?
            }
            b'x' | b'X' => {
                let mut value = None;
                while let Some(digit) = bytes.peek().and_then(|&b| char::from(b).to_digit(16)) {
                    value = Some(value.unwrap_or(0u32).checked_mul(16)? + digit);
                    bytes.next();
                }
                u8::try_from(value?).ok()?
            }
            b'u' => {
                let digits: Vec<u8> = bytes.by_ref().take(4).collect();
                let value = u32::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?;
                if digits.len() != 4 {
                    return None;
                }
                out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => return None,
        });
    }
    Some(out)
}
