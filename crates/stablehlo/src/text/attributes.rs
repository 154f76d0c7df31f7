//! Types and attributes in text.

use std::sync::Arc;

use memplan_ir::{ArrayShape, ElementType, Shape};

use super::cursor::{Parsed, is_word};
use super::{MAX_DEPTH, Parser};
use crate::elements;
use crate::mlir::{Attribute, Attributes, Elements, Type};

/// The element type of this name; `None` for those that HLO does not have.
pub(crate) fn element_type(name: &str) -> Option<ElementType> {
    use ElementType::*;
    Some(match name {
        "i1" => Pred,
        "si2" | "i2" => S2,
        "si4" | "i4" => S4,
        "si8" | "i8" => S8,
        "si16" | "i16" => S16,
        "si32" | "i32" => S32,
        "si64" | "i64" | "index" => S64,
        "ui2" => U2,
        "ui4" => U4,
        "ui8" => U8,
        "ui16" => U16,
        "ui32" => U32,
        "ui64" => U64,
        "f16" => F16,
        "bf16" => Bf16,
        "f32" => F32,
        "f64" => F64,
        "f4E2M1FN" => F4e2m1fn,
        "f6E2M3FN" => F6e2m3fn,
        "f6E3M2FN" => F6e3m2fn,
        "f8E3M4" => F8e3m4,
        "f8E4M3" => F8e4m3,
        "f8E4M3FN" => F8e4m3fn,
        "f8E4M3FNUZ" => F8e4m3fnuz,
        "f8E4M3B11FNUZ" => F8e4m3b11fnuz,
        "f8E5M2" => F8e5m2,
        "f8E5M2FNUZ" => F8e5m2fnuz,
        "f8E8M0FNU" => F8e8m0fnu,
        _ => return None,
    })
}

impl<'s> Parser<'s> {
    /// A type.
    pub(super) fn r#type(&mut self) -> Parsed<Type> {
        self.nested(|parser| parser.type_within())
    }

    fn type_within(&mut self) -> Parsed<Type> {
        let cursor = &mut self.cursor;
        cursor.space();
        let start = cursor.at;
        if cursor.eat("(") {
            let inputs = self.types_until(")")?;
            self.cursor.expect("->")?;
            let outputs = match self.cursor.eat("(") {
                true => self.types_until(")")?,
                false => vec![self.r#type()?],
            };
            return Ok(Type::Function(inputs.into(), outputs.into()));
        }
        if cursor.eat("!") {
            let name = cursor.word()?;
            if name == "stablehlo.token" {
                return Ok(Type::Shape(Shape::Token));
            }
            if cursor.eat("<") {
                cursor.balanced('>')?;
            }
            return Ok(Type::Other(cursor.source[start..cursor.at].into()));
        }
        let name = cursor.word()?;
        match name {
            "tensor" | "memref" => {
                cursor.expect("<")?;
                let body = cursor.balanced('>')?;
                let shape = array(body).filter(|_| name == "tensor");
                Ok(match shape {
                    Some(shape) => Type::Shape(Shape::Array(shape)),
                    None => Type::Other(self.cursor.source[start..self.cursor.at].into()),
                })
            }
            "tuple" => {
                cursor.expect("<")?;
                let elements = self.types_until(">")?;
                let shapes = elements.into_iter().map(|element| match element {
                    Type::Shape(shape) => Some(shape),
                    _ => None,
                });
                Ok(match shapes.collect::<Option<Vec<Shape>>>() {
                    Some(shapes) => Type::Shape(Shape::tuple(shapes)),
                    None => Type::Other(self.cursor.source[start..self.cursor.at].into()),
                })
            }
            "complex" => {
                cursor.expect("<")?;
                Ok(match cursor.balanced('>')? {
                    "f32" => Type::Shape(Shape::scalar(ElementType::C64)),
                    "f64" => Type::Shape(Shape::scalar(ElementType::C128)),
                    _ => Type::Other(cursor.source[start..cursor.at].into()),
                })
            }
            _ => Ok(match element_type(name) {
                Some(element) => Type::Shape(Shape::scalar(element)),
                None => Type::Other(name.into()),
            }),
        }
    }

    /// Types with commas between them, up to a closing bracket.
    pub(super) fn types_until(&mut self, close: &str) -> Parsed<Vec<Type>> {
        let mut types = Vec::new();
        while !self.cursor.eat(close) {
            if !types.is_empty() {
                self.cursor.expect(",")?;
            }
            types.push(self.r#type()?);
        }
        Ok(types)
    }

    /// `{name = attribute, ...}`, after the opening brace.
    pub(super) fn dictionary(&mut self) -> Parsed<Attributes> {
        let mut found = Attributes::new();
        while !self.cursor.eat("}") {
            if !found.is_empty() {
                self.cursor.expect(",")?;
            }
            found.push(self.named_attribute()?);
        }
        Ok(found)
    }

    /// `name = attribute`, or a name alone.
    fn named_attribute(&mut self) -> Parsed<(Box<str>, Attribute)> {
        let name: Box<str> = match self.cursor.is_at("\"") {
            true => self.cursor.string()?.into(),
            false => self.cursor.word()?.into(),
        };
        let value = match self.cursor.eat("=") {
            true => self.attribute()?,
            false => Attribute::Unit,
        };
        Ok((name, value))
    }

    /// An attribute.
    pub(super) fn attribute(&mut self) -> Parsed<Attribute> {
        self.nested(|parser| parser.attribute_within())
    }

    fn attribute_within(&mut self) -> Parsed<Attribute> {
        let Some(first) = self.cursor.peek() else { return Err(self.cursor.unexpected("an attribute")) };
        match first {
            '"' => {
                let text = self.cursor.string()?;
                // Strings may have a type, which HLO does not see.
                if self.cursor.is_at(": ") && !self.is_operation_type() {
                    self.cursor.expect(":")?;
                    self.r#type()?;
                }
                Ok(Attribute::String(text.into()))
            }
            '@' => Ok(Attribute::Symbol(self.symbol()?)),
            '[' => {
                self.cursor.expect("[")?;
                let mut elements = Vec::new();
                while !self.cursor.eat("]") {
                    if !elements.is_empty() {
                        self.cursor.expect(",")?;
                    }
                    elements.push(self.attribute()?);
                }
                Ok(Attribute::Array(elements))
            }
            '{' => {
                self.cursor.expect("{")?;
                Ok(Attribute::Dictionary(self.dictionary()?))
            }
            '#' => self.dialect_attribute(),
            '<' => {
                self.cursor.expect("<")?;
                Ok(Attribute::Dialect("".into(), self.cursor.balanced('>')?.into()))
            }
            '-' | '0'..='9' => self.number(),
            '(' | '!' => Ok(Attribute::Type(self.r#type()?)),
            _ => self.word_attribute(),
        }
    }

    /// Whether a colon belongs to the operation rather than to the attribute: a type in parentheses follows, or a tensor.
    fn is_operation_type(&mut self) -> bool {
        let mut after = self.cursor.clone();
        after.expect(":").is_ok() && (after.is_at("(") || after.is_at("tensor"))
    }

    fn word_attribute(&mut self) -> Parsed<Attribute> {
        let start = self.cursor.at;
        let word = self.cursor.word()?;
        match word {
            "true" => Ok(Attribute::Bool(true)),
            "false" => Ok(Attribute::Bool(false)),
            "unit" => Ok(Attribute::Unit),
            "dense" if self.cursor.rest().starts_with('<') => self.dense(),
            "dense_resource" => {
                self.cursor.expect("<")?;
                let name = self.cursor.balanced('>')?;
                let shape = self.elements_type()?;
                Ok(Attribute::Resource(name.into(), shape))
            }
            "array" => {
                self.cursor.expect("<")?;
                let kind = self.cursor.word()?;
                let mut found = Vec::new();
                self.cursor.eat(":");
                while !self.cursor.eat(">") {
                    if !found.is_empty() {
                        self.cursor.expect(",")?;
                    }
                    found.push(match self.cursor.peek() {
                        Some('t' | 'f') => i64::from(self.cursor.word()? == "true"),
                        _ => self.cursor.integer()?,
                    });
                }
                Ok(Attribute::Integers(found, kind.into()))
            }
            "tensor" | "tuple" | "complex" | "memref" => {
                self.cursor.at = start;
                self.cursor.space();
                Ok(Attribute::Type(self.r#type()?))
            }
            "loc" => {
                self.cursor.expect("(")?;
                self.cursor.balanced(')')?;
                Ok(Attribute::Unit)
            }
            _ => Ok(match element_type(word) {
                Some(element) => Attribute::Type(Type::Shape(Shape::scalar(element))),
                None => Attribute::Word(word.into()),
            }),
        }
    }

    /// An integer or a float, with its type where it is written.
    fn number(&mut self) -> Parsed<Attribute> {
        self.cursor.space();
        let start = self.cursor.at;
        self.cursor.eat("-");
        self.cursor.take(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-'));
        let text = &self.cursor.source[start..self.cursor.at];
        let written = {
            let mut after = self.cursor.clone();
            (after.eat(":") && !after.is_at("(")).then(|| after.word().ok()).flatten().and_then(element_type)
        };
        let mut kind = "";
        if written.is_some() {
            self.cursor.expect(":")?;
            kind = self.cursor.word()?;
        }
        let wrong =
            |parser: &Self| parser.cursor.error(start..start + text.len().max(1), "this is no number");
        let floating = written.filter(|element| element.is_floating());
        let is_hex = text.contains("0x");
        if let Some(element) = floating {
            let bits = elements::parse_scalar(element, text).ok_or_else(|| wrong(self))?;
            return Ok(Attribute::Float(element.decode_float(bits), kind.into()));
        }
        if !is_hex && text.contains(['.', 'e', 'E']) {
            return Ok(Attribute::Float(text.parse().map_err(|_| wrong(self))?, "f64".into()));
        }
        let value = elements::parse_scalar(written.unwrap_or(ElementType::S64), text);
        Ok(Attribute::Integer(value.ok_or_else(|| wrong(self))?.cast_signed(), kind.into()))
    }

    /// `@name`, or `@"name"`. Of nested symbols, the last name.
    pub(super) fn symbol(&mut self) -> Parsed<Box<str>> {
        self.cursor.expect("@")?;
        let name: Box<str> = match self.cursor.rest().starts_with('"') {
            true => self.cursor.string()?.into(),
            false => self.cursor.take(|c| is_word(c) || c == '-').into(),
        };
        match self.cursor.rest().starts_with("::@") {
            true => {
                self.cursor.expect("::")?;
                self.symbol()
            }
            false => Ok(name),
        }
    }

    /// `#name<body>` of a dialect, or an alias of an attribute.
    fn dialect_attribute(&mut self) -> Parsed<Attribute> {
        self.cursor.expect("#")?;
        let start = self.cursor.at;
        let name = self.cursor.take(is_word);
        if !self.cursor.rest().starts_with('<') {
            if let Some(found) = self.aliases.get(name) {
                return Ok(found.clone());
            }
            // Enumerations of one word are also written without brackets.
            return Err(self
                .cursor
                .error(start.saturating_sub(1)..self.cursor.at, format!("there is no `#{name}`")));
        }
        self.cursor.expect("<")?;
        let body = self.cursor.balanced('>')?;
        // `#stablehlo<comparison_direction LT>` is the older form of `#stablehlo.comparison_direction<LT>`.
        let (name, body) = match (name, body.split_once(|c: char| !is_word(c))) {
            ("stablehlo" | "mhlo" | "chlo", Some((kind, rest))) => (format!("{name}.{kind}"), rest.trim()),
            _ => (name.to_owned(), body),
        };
        let body = body.strip_prefix('<').and_then(|inner| inner.strip_suffix('>')).unwrap_or(body);
        // Cases of enumerations are one word.
        let is_enumeration = name.starts_with("stablehlo.") || name.starts_with("chlo.");
        if is_enumeration && !body.is_empty() && body.chars().all(is_word) {
            return Ok(Attribute::Word(body.into()));
        }
        Ok(Attribute::Dialect(name.into(), body.into()))
    }

    /// `dense<...> : type`, after the first word.
    fn dense(&mut self) -> Parsed<Attribute> {
        self.cursor.expect("<")?;
        let start = self.cursor.at;
        let body = self.cursor.balanced('>')?;
        let shape = self.elements_type()?;
        let found = elements::parse(body, shape)
            .map_err(|(at, message)| self.cursor.error(start + at..start + at + 1, message))?;
        Ok(Attribute::Elements(found))
    }

    fn elements_type(&mut self) -> Parsed<ArrayShape> {
        self.cursor.expect(":")?;
        self.cursor.space();
        let start = self.cursor.at;
        match self.r#type()? {
            Type::Shape(Shape::Array(shape)) if !shape.is_dynamic() => Ok(shape),
            _ => {
                let text = &self.cursor.source[start..self.cursor.at];
                Err(self
                    .cursor
                    .error(start..self.cursor.at, format!("constants of type `{text}` are not supported")))
            }
        }
    }

    /// Calls a function that may call itself, up to a depth.
    pub(super) fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            let at = self.cursor.at;
            return Err(self
                .cursor
                .error(at..at + 1, format!("more than {MAX_DEPTH} levels within each other")));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

/// The shape in `tensor<4x?xf32, encoding>`. `None` where HLO has none.
fn array(body: &str) -> Option<ArrayShape> {
    let (body, encoding) = match body.split_once(',') {
        Some((body, encoding)) if !body.contains('<') => (body.trim(), Some(encoding.trim())),
        _ => (body.trim(), None),
    };
    let mut dimensions = Vec::new();
    let mut rest = body;
    loop {
        let (extent, tail) = match rest.strip_prefix('?') {
            Some(tail) => (ArrayShape::UNBOUNDED, tail),
            None => {
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                if end == 0 {
                    break;
                }
                (rest[..end].parse().ok()?, &rest[end..])
            }
        };
        rest = tail.strip_prefix('x')?;
        dimensions.push(extent);
    }
    let element = match rest {
        "complex<f32>" => ElementType::C64,
        "complex<f64>" => ElementType::C128,
        _ => element_type(rest)?,
    };
    let bounds = match encoding {
        None => None,
        Some(encoding) => {
            let list = encoding.split_once("bounds")?.1.trim_start().strip_prefix('=')?.trim();
            let list = list.strip_prefix('<').unwrap_or(list).trim_start_matches('[');
            let list = &list[..list.find(']')?];
            Some(list.split(',').map(|bound| bound.trim().parse().ok()).collect::<Vec<Option<i64>>>())
        }
    };
    Some(with_bounds(element, dimensions, bounds.as_deref()))
}

/// An array whose unbounded dimensions may have bounds.
pub(crate) fn with_bounds(
    element: ElementType,
    mut dimensions: Vec<i64>,
    bounds: Option<&[Option<i64>]>,
) -> ArrayShape {
    let dynamic: Vec<bool> = dimensions.iter().map(|&extent| extent == ArrayShape::UNBOUNDED).collect();
    for (extent, bound) in dimensions.iter_mut().zip(bounds.unwrap_or_default()) {
        if let (ArrayShape::UNBOUNDED, Some(bound)) = (*extent, bound) {
            *extent = *bound;
        }
    }
    let mut shape = ArrayShape::new(element, dimensions);
    if dynamic.contains(&true) {
        shape.dynamic = dynamic.into_iter().collect();
    }
    shape
}

/// Reads an attribute from a text of its own, such as bytecode keeps of dialects that it does not encode.
pub(crate) fn parse_attribute(text: &str) -> Option<Attribute> {
    let mut parser = Parser::new(text);
    let found = parser.attribute().ok()?;
    parser.cursor.peek().is_none().then_some(found)
}

/// Reads a type from a text of its own.
pub(crate) fn parse_type(text: &str) -> Option<Type> {
    let mut parser = Parser::new(text);
    let found = parser.r#type().ok()?;
    parser.cursor.peek().is_none().then_some(found)
}

/// The fields of `name = value, ...`.
pub(crate) fn fields(body: &str) -> Option<Attributes> {
    let mut parser = Parser::new(body);
    let mut found = Attributes::new();
    while parser.cursor.peek().is_some() {
        if !found.is_empty() {
            parser.cursor.expect(",").ok()?;
        }
        found.push(parser.named_attribute().ok()?);
    }
    Some(found)
}

/// Elements that a splat repeats or that are listed.
pub(crate) fn integers_of(elements: &Elements) -> Option<Vec<i64>> {
    let element = elements.shape.element_type;
    let width = element.byte_width() as usize;
    if !element.is_integral() && element != ElementType::Pred {
        return None;
    }
    let one = |bytes: &[u8]| {
        let negative = element.is_signed() && bytes.last().is_some_and(|&byte| byte & 0x80 != 0);
        let mut all = [if negative { 0xff } else { 0 }; 8];
        all[..width].copy_from_slice(bytes);
        i64::from_le_bytes(all)
    };
    let found: Vec<i64> = elements.bytes.chunks_exact(width).map(one).collect();
    let count = elements.shape.element_count()?;
    match elements.is_splat {
        // Only lists of dimensions are read as integers, and those are short.
        true => (count <= 1 << 16).then(|| vec![found[0]; count as usize]),
        false => Some(found),
    }
}

/// The bytes of a resource in text: alignment, then the elements.
pub(super) fn resource(text: &str) -> Option<Arc<[u8]>> {
    let bytes = elements::hex(text.strip_prefix("0x")?)?;
    Some(bytes.get(4..)?.into())
}
