//! The tables of attributes and types: those of MLIR itself, of VHLO, and of dialects that are kept as text.

use std::cell::{Cell, RefCell};

use memplan_ir::{ElementType, Shape};
use rustc_hash::FxHashMap;

use super::MAX_DEPTH;
use super::reader::{Bytes, truncated};
use crate::Error;
use crate::elements;
use crate::mlir::{Attribute, Location, LocationId, Type};
use crate::text;

/// An entry of a table that is not decoded yet.
#[derive(Clone, Copy, Debug)]
struct Entry<'b> {
    dialect: Dialect,
    /// Whether the dialect encodes it; otherwise it is text.
    is_encoded: bool,
    contents: &'b [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Builtin,
    Vhlo,
    Sdy,
    Other,
}

/// Attributes and types by number.
pub(super) struct Tables<'b> {
    strings: Vec<&'b str>,
    attributes: Vec<Entry<'b>>,
    types: Vec<Entry<'b>>,
    /// Types that were decoded.
    known: RefCell<FxHashMap<u64, Type>>,
    depth: Cell<u32>,
}

impl<'b> Tables<'b> {
    pub(super) fn new(
        sizes: &'b [u8],
        contents: &'b [u8],
        dialects: &[&'b str],
        strings: &[&'b str],
    ) -> Result<Tables<'b>, Error> {
        let mut sizes = Bytes::new(sizes);
        let mut contents = Bytes::new(contents);
        let (n_attributes, n_types) = (sizes.count()?, sizes.count()?);
        let mut group = |count: usize| {
            let mut entries = Vec::new();
            while entries.len() < count {
                let dialect = match *dialects.get(sizes.number()? as usize).ok_or_else(truncated)? {
                    "builtin" => Dialect::Builtin,
                    "vhlo" => Dialect::Vhlo,
                    "sdy" => Dialect::Sdy,
                    _ => Dialect::Other,
                };
                let in_group = sizes.count()?;
                if in_group == 0 {
                    return Err(truncated());
                }
                for _ in 0..in_group {
                    let (size, is_encoded) = sizes.flagged()?;
                    let contents = contents.take(contents.check_count(size)?)?;
                    entries.push(Entry { dialect, is_encoded, contents });
                }
            }
            Ok(entries)
        };
        let (attributes, types) = (group(n_attributes)?, group(n_types)?);
        let known = RefCell::default();
        Ok(Tables { strings: strings.to_vec(), attributes, types, known, depth: Cell::new(0) })
    }

    pub(super) fn type_at(&self, number: u64) -> Result<Type, Error> {
        if let Some(known) = self.known.borrow().get(&number) {
            return Ok(known.clone());
        }
        let entry = *self.types.get(number as usize).ok_or_else(truncated)?;
        let found = self.deeper(|| match (entry.is_encoded, entry.dialect) {
            (true, Dialect::Builtin) => self.builtin_type(Bytes::new(entry.contents)),
            (true, Dialect::Vhlo) => self.vhlo_type(Bytes::new(entry.contents)),
            (true, _) => Ok(Type::Other("a type of another dialect".into())),
            (false, _) => {
                let text = text_of(entry.contents)?;
                Ok(text::parse_type(text).unwrap_or_else(|| Type::Other(text.into())))
            }
        })?;
        if leaves(&found) > MOST_LEAVES {
            return Err(Error::new("a tuple has too many elements"));
        }
        self.known.borrow_mut().insert(number, found.clone());
        Ok(found)
    }

    /// Reads an attribute; tables share what a file repeats, so a budget says how much may be made of it.
    pub(super) fn attribute_at(&self, number: u64, budget: &Cell<u64>) -> Result<Attribute, Error> {
        let entry = *self.attributes.get(number as usize).ok_or_else(truncated)?;
        let cost = 1 + entry.contents.len() as u64;
        let left = budget.get().checked_sub(cost);
        budget.set(left.ok_or_else(|| Error::new("the bytecode unfolds to far more than its size"))?);
        self.deeper(|| match (entry.is_encoded, entry.dialect) {
            (true, Dialect::Builtin) => self.builtin_attribute(Bytes::new(entry.contents), budget),
            (true, Dialect::Vhlo) => self.vhlo_attribute(Bytes::new(entry.contents), budget),
            (true, Dialect::Sdy) => self.sdy_attribute(Bytes::new(entry.contents), budget),
            (true, Dialect::Other) => Err(Error::new("an attribute of another dialect is not supported")),
            (false, _) => {
                let text = text_of(entry.contents)?;
                let unknown = || Error::new(format!("the attribute `{}` is not supported", shortened(text)));
                text::parse_attribute(text).ok_or_else(unknown)
            }
        })
    }

    /// Reads a location, each once.
    pub(super) fn location_at(
        &self,
        number: u64,
        locations: &mut Vec<Location>,
        known: &mut FxHashMap<u64, LocationId>,
        depth: u32,
    ) -> Result<LocationId, Error> {
        if let Some(&found) = known.get(&number) {
            return Ok(found);
        }
        let entry = *self.attributes.get(number as usize).ok_or_else(truncated)?;
        if depth == MAX_DEPTH * 4 {
            return Err(Error::new("locations are too deep within each other"));
        }
        // A location within itself is one that is not known yet.
        known.insert(number, LocationId::default());
        let mut bytes = Bytes::new(entry.contents);
        let mut inner = |bytes: &mut Bytes<'_>, locations: &mut Vec<Location>| {
            let number = bytes.number()?;
            self.location_at(number, locations, known, depth + 1)
        };
        let line = |number: u64| u32::try_from(number).unwrap_or(0);
        let location = match entry.is_encoded && entry.dialect == Dialect::Builtin {
            false => Location::Unknown,
            true => match bytes.number()? {
                code::CALL_SITE => Location::Call {
                    callee: inner(&mut bytes, locations)?,
                    caller: inner(&mut bytes, locations)?,
                },
                code::FILE_LINE_COLUMN => {
                    let file = self.string_attribute(bytes.number()?)?;
                    let start = (line(bytes.number()?), line(bytes.number()?));
                    Location::File { file, start, end: start }
                }
                code::FILE_RANGE => {
                    let file = self.string_attribute(bytes.number()?)?;
                    let numbers = (0..bytes.count()?).map(|_| bytes.number().map(line));
                    let (start, end) = match numbers.collect::<Result<Vec<_>, _>>()?[..] {
                        [a] => ((a, 0), (a, 0)),
                        [a, b] => ((a, b), (a, b)),
                        [a, b, d] => ((a, b), (a, d)),
                        [a, b, c, d] => ((a, b), (c, d)),
                        _ => Default::default(),
                    };
                    Location::File { file, start, end }
                }
                code::FUSED | code::FUSED_WITH_METADATA => {
                    let parts = (0..bytes.count()?).map(|_| inner(&mut bytes, locations));
                    Location::Fused(parts.collect::<Result<_, _>>()?)
                }
                code::NAME => {
                    let name = self.string_attribute(bytes.number()?)?;
                    Location::Name(name, inner(&mut bytes, locations)?)
                }
                _ => Location::Unknown,
            },
        };
        locations.push(location);
        let id = LocationId((locations.len() - 1) as u32);
        known.insert(number, id);
        Ok(id)
    }

    fn string_attribute(&self, number: u64) -> Result<Box<str>, Error> {
        match self.attribute_at(number, &Cell::new(1 << 20))? {
            Attribute::String(text) => Ok(text),
            _ => Err(truncated()),
        }
    }

    fn string(&self, bytes: &mut Bytes<'b>) -> Result<Box<str>, Error> {
        let number = bytes.number()?;
        self.strings.get(number as usize).map(|&text| text.into()).ok_or_else(truncated)
    }

    fn types(&self, bytes: &mut Bytes<'b>) -> Result<Vec<Type>, Error> {
        (0..bytes.count()?).map(|_| self.type_at(bytes.number()?)).collect()
    }

    fn list(&self, bytes: &mut Bytes<'b>, budget: &Cell<u64>) -> Result<Vec<Attribute>, Error> {
        (0..bytes.count()?).map(|_| self.attribute_at(bytes.number()?, budget)).collect()
    }

    fn dictionary(&self, bytes: &mut Bytes<'b>, budget: &Cell<u64>) -> Result<Attribute, Error> {
        let mut entries = Vec::new();
        for _ in 0..bytes.count()? {
            let name = self.string_attribute(bytes.number()?)?;
            entries.push((name, self.attribute_at(bytes.number()?, budget)?));
        }
        Ok(Attribute::Dictionary(entries))
    }

    fn builtin_attribute(&self, mut bytes: Bytes<'b>, budget: &Cell<u64>) -> Result<Attribute, Error> {
        let bytes = &mut bytes;
        Ok(match bytes.number()? {
            code::ARRAY => Attribute::Array(self.list(bytes, budget)?),
            code::DICTIONARY => self.dictionary(bytes, budget)?,
            code::STRING | code::STRING_WITH_TYPE => Attribute::String(self.string(bytes)?),
            code::SYMBOL => Attribute::Symbol(self.string_attribute(bytes.number()?)?),
            code::TYPE => Attribute::Type(self.type_at(bytes.number()?)?),
            code::UNIT => Attribute::Unit,
            code::INTEGER => {
                let kind = self.type_at(bytes.number()?)?;
                self.integer(&kind, bytes)?
            }
            code::FLOAT => {
                let kind = self.type_at(bytes.number()?)?;
                self.float(&kind, bytes)?
            }
            code::DENSE_ARRAY => {
                let kind = self.type_at(bytes.number()?)?;
                let element = element_of(&kind)?;
                bytes.number()?;
                let blob = bytes.blob()?;
                let width = element.byte_width() as usize;
                let number = |chunk: &[u8]| {
                    let mut word = [if chunk.last().is_some_and(|&b| b & 0x80 != 0) { 0xff } else { 0 }; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    i64::from_le_bytes(word)
                };
                Attribute::Integers(blob.chunks_exact(width).map(number).collect(), kind_name(element).into())
            }
            code::DENSE_ELEMENTS => {
                let kind = self.type_at(bytes.number()?)?;
                self.elements(&kind, bytes.blob()?)?
            }
            other => return Err(Error::new(format!("attributes of kind {other} of MLIR are not supported"))),
        })
    }

    fn integer(&self, kind: &Type, bytes: &mut Bytes<'b>) -> Result<Attribute, Error> {
        let element = element_of(kind)?;
        let bits = bytes.bits(element.bits())?;
        if element == ElementType::Pred {
            return Ok(Attribute::Bool(bits & 1 == 1));
        }
        let unused = 64 - element.bits().min(64);
        let value = match element.is_signed() {
            true => (bits << unused).cast_signed() >> unused,
            false => (bits << unused >> unused).cast_signed(),
        };
        Ok(Attribute::Integer(value, kind_name(element).into()))
    }

    fn float(&self, kind: &Type, bytes: &mut Bytes<'b>) -> Result<Attribute, Error> {
        let element = element_of(kind)?;
        if !element.is_floating() {
            return Err(truncated());
        }
        let bits = bytes.bits(element.bits())?;
        let unused = 64 - element.bits();
        Ok(Attribute::Float(element.decode_float(bits << unused >> unused), kind_name(element).into()))
    }

    fn elements(&self, kind: &Type, blob: &[u8]) -> Result<Attribute, Error> {
        let Type::Shape(Shape::Array(shape)) = kind else {
            return Err(Error::new("constants of this type are not supported"));
        };
        let found = (!shape.is_dynamic()).then(|| elements::from_raw(shape.clone(), blob)).flatten();
        found
            .map(Attribute::Elements)
            .ok_or_else(|| Error::new("the bytes of a constant do not fit its type"))
    }

    fn builtin_type(&self, mut bytes: Bytes<'b>) -> Result<Type, Error> {
        use ElementType::*;
        let bytes = &mut bytes;
        let scalar = |element| Ok(Type::Shape(Shape::scalar(element)));
        match bytes.number()? {
            0 => {
                let number = bytes.number()?;
                let element = match (number >> 2, number & 3) {
                    (1, 0) => Pred,
                    (width, 2) => [U2, U4, U8, U16, U32, U64]
                        .into_iter()
                        .find(|element| u64::from(element.bits()) == width)
                        .ok_or_else(truncated)?,
                    (width, _) => [S2, S4, S8, S16, S32, S64]
                        .into_iter()
                        .find(|element| u64::from(element.bits()) == width)
                        .ok_or_else(truncated)?,
                };
                scalar(element)
            }
            1 => scalar(S64),
            2 => Ok(Type::Function(self.types(bytes)?.into(), self.types(bytes)?.into())),
            3 => scalar(Bf16),
            4 => scalar(F16),
            5 => scalar(F32),
            6 => scalar(F64),
            9 => complex_of(&self.type_at(bytes.number()?)?),
            13 => {
                let extents = bytes.signed_list()?;
                array_of(&self.type_at(bytes.number()?)?, extents, None)
            }
            15 => tuple_of(self.types(bytes)?),
            other => Ok(Type::Other(format!("type {other} of MLIR").into())),
        }
    }

    fn vhlo_type(&self, mut bytes: Bytes<'b>) -> Result<Type, Error> {
        use ElementType::*;
        let bytes = &mut bytes;
        let number = bytes.number()?;
        let element = match number {
            0 => Pred,
            2 => Bf16,
            3 => F16,
            4 => F32,
            5 => F64,
            6 => F8e4m3fn,
            7 => F8e5m2,
            9 => S64,
            10 => S4,
            11 => S8,
            12 => S16,
            13 => S32,
            14 => S64,
            15 => U4,
            16 => U8,
            17 => U16,
            18 => U32,
            19 => U64,
            27 => F8e4m3fnuz,
            28 => F8e5m2fnuz,
            29 => F8e4m3b11fnuz,
            31 => S2,
            32 => U2,
            35 => F8e4m3,
            36 => F8e3m4,
            37 => F4e2m1fn,
            38 => F6e2m3fn,
            39 => F6e3m2fn,
            40 => F8e8m0fnu,
            1 => return complex_of(&self.type_at(bytes.number()?)?),
            8 => return Ok(Type::Function(self.types(bytes)?.into(), self.types(bytes)?.into())),
            20 | 21 => {
                let bounds = match number {
                    21 => match self.attribute_at(bytes.number()?, &Cell::new(1 << 20))? {
                        Attribute::Integers(bounds, _) => Some(bounds),
                        _ => None,
                    },
                    _ => None,
                };
                let extents = bytes.signed_list()?;
                return array_of(&self.type_at(bytes.number()?)?, extents, bounds);
            }
            22 => return Ok(Type::Shape(Shape::Token)),
            23 => return tuple_of(self.types(bytes)?),
            24 | 30 => return Ok(Type::Other("a quantized type".into())),
            33 => return Ok(Type::Other("none".into())),
            other => return Ok(Type::Other(format!("type {other} of VHLO").into())),
        };
        Ok(Type::Shape(Shape::scalar(element)))
    }

    fn vhlo_attribute(&self, mut bytes: Bytes<'b>, budget: &Cell<u64>) -> Result<Attribute, Error> {
        let bytes = &mut bytes;
        let number = bytes.number()?;
        if let Some((_, cases)) = ENUMERATIONS.iter().find(|(listed, _)| *listed == number) {
            let case = bytes.number()?;
            let word = usize::try_from(case).ok().and_then(|case| cases.get(case)).ok_or_else(truncated)?;
            return Ok(Attribute::Word((*word).into()));
        }
        Ok(match number {
            1 => Attribute::Array(self.list(bytes, budget)?),
            2 => Attribute::Bool(bytes.number()? == 1),
            6 => self.dictionary(bytes, budget)?,
            8 => {
                let kind = self.type_at(bytes.number()?)?;
                self.float(&kind, bytes)?
            }
            9 => {
                let kind = self.type_at(bytes.number()?)?;
                self.integer(&kind, bytes)?
            }
            10 => {
                let (output, operand, within) = (bytes.signed_list()?, bytes.signed()?, bytes.signed_list()?);
                let integers = |list| Attribute::Integers(list, "i64".into());
                Attribute::Dictionary(vec![
                    ("output_tuple_indices".into(), integers(output)),
                    ("operand_index".into(), Attribute::Integer(operand, "i64".into())),
                    ("operand_tuple_indices".into(), integers(within)),
                ])
            }
            14 => Attribute::String(self.string(bytes)?),
            15 => {
                let kind = self.type_at(bytes.number()?)?;
                self.elements(&kind, bytes.blob()?)?
            }
            17 => Attribute::Type(self.type_at(bytes.number()?)?),
            18 => Attribute::Integers(bytes.signed_list()?, "i64".into()),
            20 => {
                let [atol, rtol] = [bytes.bits(64)?, bytes.bits(64)?].map(f64::from_bits);
                let ulps = bytes.signed()?;
                let mode = self.attribute_at(bytes.number()?, budget)?;
                let float = |value| Attribute::Float(value, "f64".into());
                Attribute::Dictionary(vec![
                    ("atol".into(), float(atol)),
                    ("rtol".into(), float(rtol)),
                    ("ulps".into(), Attribute::Integer(ulps, "i64".into())),
                    ("mode".into(), mode),
                ])
            }
            21 => {
                let (before, size) = (bytes.signed()?, bytes.signed()?);
                let integer = |value| Attribute::Integer(value, "i64".into());
                Attribute::Dictionary(vec![
                    ("pre_size".into(), integer(before)),
                    ("size".into(), integer(size)),
                ])
            }
            22 => {
                let mut entries = vec![("name".into(), self.attribute_at(bytes.number()?, budget)?)];
                let (number, is_there) = bytes.flagged()?;
                if is_there {
                    entries.push(("sub_axis_info".into(), self.attribute_at(number, budget)?));
                }
                Attribute::Dictionary(entries)
            }
            23 => {
                let mesh = self.attribute_at(bytes.number()?, budget)?;
                let axes = self.attribute_at(bytes.number()?, budget)?;
                Attribute::Dictionary(vec![("mesh".into(), mesh), ("axes".into(), axes)])
            }
            24 => {
                let name = self.attribute_at(bytes.number()?, budget)?;
                let size = Attribute::Integer(bytes.signed()?, "i64".into());
                Attribute::Dictionary(vec![("name".into(), name), ("size".into(), size)])
            }
            25 => Attribute::Dictionary(vec![("axes".into(), self.attribute_at(bytes.number()?, budget)?)]),
            other => return Err(Error::new(format!("attributes of kind {other} of VHLO are not supported"))),
        })
    }

    /// An attribute of Shardy, as it is written in text.
    fn sdy_attribute(&self, mut bytes: Bytes<'b>, budget: &Cell<u64>) -> Result<Attribute, Error> {
        let bytes = &mut bytes;
        let unknown = || Error::new("an attribute of Shardy is not supported");
        let body_of = |number: u64| match self.attribute_at(number, budget)? {
            Attribute::Dialect(_, body) => Ok(body),
            Attribute::String(text) => Ok(format!("\"{text}\"").into()),
            Attribute::Symbol(name) => Ok(format!("@{name}").into()),
            _ => Err(unknown()),
        };
        let list = |bytes: &mut Bytes<'b>, open: &str, close: &str| {
            let bodies =
                (0..bytes.count()?).map(|_| Ok(format!("{open}{}{close}", body_of(bytes.number()?)?)));
            Ok(bodies.collect::<Result<Vec<String>, Error>>()?.join(", "))
        };
        let (name, body) = match bytes.number()? {
            0 => ("sdy", format!("manual_axes{{{}}}", list(bytes, "", "")?)),
            1 => ("sdy.mesh_axis", format!("\"{}\"={}", self.string(bytes)?, bytes.signed()?)),
            2 => {
                let axes = list(bytes, "", "")?;
                let devices: Vec<String> = bytes.signed_list()?.iter().map(i64::to_string).collect();
                let devices = match devices.is_empty() {
                    true => String::new(),
                    false => format!(", device_ids=[{}]", devices.join(", ")),
                };
                ("sdy.mesh", format!("[{axes}]{devices}"))
            }
            3 => ("sdy.sub_axis_info", format!("({}){}", bytes.signed()?, bytes.signed()?)),
            4 => {
                let name = self.string(bytes)?;
                let (part, is_there) = bytes.flagged()?;
                let part = if is_there { format!(":{}", body_of(part)?) } else { String::new() };
                ("sdy.axis_ref", format!("\"{name}\"{part}"))
            }
            5 => {
                let axes = list(bytes, "", "")?;
                let is_closed = bytes.byte()? != 0;
                let open = match (is_closed, axes.is_empty()) {
                    (true, _) => "",
                    (false, true) => "?",
                    (false, false) => ", ?",
                };
                let (priority, is_there) = bytes.flagged()?;
                let priority = if is_there { format!("p{priority}") } else { String::new() };
                ("sdy.dimension_sharding", format!("{{{axes}{open}}}{priority}"))
            }
            kind @ (6 | 15) => {
                let mesh = body_of(bytes.number()?)?;
                let dimensions = list(bytes, "", "")?;
                let mut body = format!("{mesh}, [{dimensions}]");
                let names: &[&str] = if kind == 6 { &["replicated"] } else { &["replicated", "unreduced"] };
                for name in names {
                    let axes = list(bytes, "", "")?;
                    if !axes.is_empty() {
                        body += &format!(", {name}={{{axes}}}");
                    }
                }
                ("sdy.sharding", body)
            }
            8 => {
                let factors = bytes.signed_list()?;
                let names: Vec<String> = factors.iter().map(|&factor| factor_name(factor)).collect();
                ("sdy.dim_mapping", names.concat())
            }
            9 => ("sdy.tensor_mapping", format!("[{}]", list(bytes, "", "")?)),
            10 => {
                let sizes = bytes.signed_list()?;
                let (operands, results) = (list(bytes, "", "")?, list(bytes, "", "")?);
                let sizes: Vec<String> = sizes
                    .iter()
                    .zip(0..)
                    .map(|(size, factor)| format!("{}={size}", factor_name(factor)))
                    .collect();
                let mut body = format!("({operands})->({results}) {{{}}}", sizes.join(", "));
                for name in ["reduction", "need_replication", "permutation", "blocked_propagation"] {
                    let factors = bytes.signed_list()?;
                    if !factors.is_empty() {
                        let names: Vec<String> = factors.iter().map(|&factor| factor_name(factor)).collect();
                        body += &format!(" {name}={{{}}}", names.join(", "));
                    }
                }
                if bytes.byte()? != 0 {
                    body += ", custom";
                }
                ("sdy.op_sharding_rule", body)
            }
            7 | 16 => ("sdy.sharding_per_value", format!("[{}]", list(bytes, "<", ">")?)),
            _ => return Err(unknown()),
        };
        Ok(Attribute::Dialect(name.into(), body.into()))
    }

    fn deeper<T>(&self, read: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if self.depth.get() == MAX_DEPTH {
            return Err(Error::new(format!("attributes are more than {MAX_DEPTH} levels within each other")));
        }
        self.depth.set(self.depth.get() + 1);
        let result = read();
        self.depth.set(self.depth.get() - 1);
        result
    }
}

/// The name of a factor of a sharding rule: `i` to `z`, then `z_1`.
fn factor_name(factor: i64) -> String {
    match u8::try_from(factor) {
        Ok(factor @ 0..18) => char::from(b'i' + factor).to_string(),
        _ => format!("z_{}", factor.saturating_sub(17)),
    }
}

/// The kinds of attributes of MLIR itself.
mod code {
    pub(super) const ARRAY: u64 = 0;
    pub(super) const DICTIONARY: u64 = 1;
    pub(super) const STRING: u64 = 2;
    pub(super) const STRING_WITH_TYPE: u64 = 3;
    pub(super) const SYMBOL: u64 = 4;
    pub(super) const TYPE: u64 = 6;
    pub(super) const UNIT: u64 = 7;
    pub(super) const INTEGER: u64 = 8;
    pub(super) const FLOAT: u64 = 9;
    pub(super) const CALL_SITE: u64 = 10;
    pub(super) const FILE_LINE_COLUMN: u64 = 11;
    pub(super) const FUSED: u64 = 12;
    pub(super) const FUSED_WITH_METADATA: u64 = 13;
    pub(super) const NAME: u64 = 14;
    pub(super) const DENSE_ARRAY: u64 = 17;
    pub(super) const DENSE_ELEMENTS: u64 = 18;
    pub(super) const FILE_RANGE: u64 = 22;
}

/// The cases of VHLO's enumerations, by the number of the attribute.
const ENUMERATIONS: &[(u64, &[&str])] = &[
    (3, &["EQ", "NE", "GE", "GT", "LE", "LT"]),
    (4, &["NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"]),
    (
        5,
        &[
            "API_VERSION_UNSPECIFIED",
            "API_VERSION_ORIGINAL",
            "API_VERSION_STATUS_RETURNING",
            "API_VERSION_STATUS_RETURNING_UNIFIED",
            "API_VERSION_TYPED_FFI",
        ],
    ),
    (7, &["FFT", "IFFT", "RFFT", "IRFFT"]),
    (11, &["DEFAULT", "HIGH", "HIGHEST"]),
    (12, &["DEFAULT", "THREE_FRY", "PHILOX"]),
    (13, &["", "UNIFORM", "NORMAL"]),
    (16, &["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]),
    (19, &["DEFAULT", "HIGHEST", "TOLERANCE"]),
];

/// Tuples of a program have far fewer elements.
const MOST_LEAVES: u64 = 1 << 16;

fn leaves(r#type: &Type) -> u64 {
    fn of_shape(shape: &Shape) -> u64 {
        match shape {
            Shape::Tuple(elements) => elements.iter().fold(1, |sum: u64, element| match sum > MOST_LEAVES {
                true => sum,
                false => sum + of_shape(element),
            }),
            _ => 1,
        }
    }
    match r#type {
        Type::Shape(shape) => of_shape(shape),
        _ => 1,
    }
}

fn element_of(kind: &Type) -> Result<ElementType, Error> {
    match kind {
        Type::Shape(Shape::Array(array)) if array.dimensions.is_empty() => Ok(array.element_type),
        _ => Err(truncated()),
    }
}

fn complex_of(kind: &Type) -> Result<Type, Error> {
    match element_of(kind)? {
        ElementType::F32 => Ok(Type::Shape(Shape::scalar(ElementType::C64))),
        ElementType::F64 => Ok(Type::Shape(Shape::scalar(ElementType::C128))),
        other => Ok(Type::Other(format!("complex<{other}>").into())),
    }
}

fn array_of(kind: &Type, extents: Vec<i64>, bounds: Option<Vec<i64>>) -> Result<Type, Error> {
    let Type::Shape(_) = kind else {
        return Ok(kind.clone());
    };
    let valid = extents.iter().all(|&extent| extent >= 0 || extent == i64::MIN);
    if !valid {
        return Err(truncated());
    }
    let bounds: Option<Vec<Option<i64>>> =
        bounds.map(|list| list.into_iter().map(|bound| (bound >= 0).then_some(bound)).collect());
    Ok(Type::Shape(Shape::Array(text::with_bounds(element_of(kind)?, extents, bounds.as_deref()))))
}

fn tuple_of(types: Vec<Type>) -> Result<Type, Error> {
    let shapes = types.into_iter().map(|element| match element {
        Type::Shape(shape) => Ok(shape),
        _ => Err(Error::new("tuples of this type are not supported")),
    });
    Ok(Type::Shape(Shape::tuple(shapes.collect::<Result<Vec<_>, _>>()?)))
}

fn text_of(contents: &[u8]) -> Result<&str, Error> {
    let end = contents.iter().position(|&byte| byte == 0).unwrap_or(contents.len());
    std::str::from_utf8(&contents[..end]).map_err(|_| truncated())
}

/// The name of a type of integers or floats in text.
fn kind_name(element: ElementType) -> &'static str {
    use ElementType::*;
    match element {
        Pred => "i1",
        S4 => "i4",
        S8 => "i8",
        S16 => "i16",
        S32 => "i32",
        S64 => "i64",
        U4 => "ui4",
        U8 => "ui8",
        U16 => "ui16",
        U32 => "ui32",
        U64 => "ui64",
        F16 => "f16",
        Bf16 => "bf16",
        F32 => "f32",
        F64 => "f64",
        _ => "",
    }
}

/// The beginning of a text.
fn shortened(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}
