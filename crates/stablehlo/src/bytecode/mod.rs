//! MLIR bytecode of portable StableHLO: sections, the tables of strings, types and attributes, and operations.
//!
//! The format is that of versions 0 to 6. Operations and attributes of VHLO, the versioned form of StableHLO, get
//! StableHLO's names.

mod attributes;
mod properties;
mod reader;

use std::cell::Cell;

use rustc_hash::FxHashMap;

use crate::Error;
use crate::mlir::{Argument, Attribute, Attributes, LocationId, Operation, Program, Region, Type, ValueId};
use attributes::Tables;
use reader::{Bytes, truncated};

/// The first bytes of bytecode.
pub(crate) const MAGIC: &[u8] = b"ML\xefR";

/// The newest version of the format.
const NEWEST: u64 = 6;

/// How deep regions and attributes may be within each other.
const MAX_DEPTH: u32 = 64;

/// Versions of the format from which on something is there.
mod since {
    pub(super) const VERSIONED_DIALECTS: u64 = 1;
    pub(super) const REGIONS_IN_SECTIONS: u64 = 2;
    pub(super) const ORDERS_OF_USES: u64 = 3;
    pub(super) const OPTIONAL_LOCATIONS: u64 = 4;
    pub(super) const PROPERTIES: u64 = 5;
}

/// The sections of a file that are read, by number.
mod section {
    pub(super) const STRINGS: usize = 0;
    pub(super) const DIALECTS: usize = 1;
    pub(super) const ATTRIBUTES: usize = 2;
    pub(super) const ATTRIBUTE_SIZES: usize = 3;
    pub(super) const OPERATIONS: usize = 4;
    pub(super) const PROPERTIES: usize = 8;
    pub(super) const COUNT: usize = 9;
}

/// Reads a program.
pub(crate) fn read(bytes: &[u8]) -> Result<Program, Error> {
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| Error::new("this is not MLIR bytecode"))?;
    let mut bytes = Bytes::new(rest);
    let version = bytes.number()?;
    if version > NEWEST {
        return Err(Error::new(format!(
            "version {version} of MLIR bytecode is newer than {NEWEST}, the last one known"
        )));
    }
    let end = bytes.rest.iter().position(|&byte| byte == 0).ok_or_else(truncated)?;
    bytes.take(end + 1)?;
    let mut sections: [&[u8]; section::COUNT] = Default::default();
    while !bytes.rest.is_empty() {
        let (number, contents) = read_section(&mut bytes)?;
        *sections.get_mut(number).ok_or_else(truncated)? = contents;
    }
    let strings = strings(sections[section::STRINGS])?;
    let (dialects, operations) = dialects(sections[section::DIALECTS], version, &strings)?;
    let tables =
        Tables::new(sections[section::ATTRIBUTE_SIZES], sections[section::ATTRIBUTES], &dialects, &strings)?;
    let properties = property_blobs(sections[section::PROPERTIES])?;
    let budget = 1_000_000 + 64 * rest.len() as u64;
    let mut reader = Reader {
        version,
        operations,
        properties,
        tables,
        program: Program { locations: vec![Default::default()], ..Program::default() },
        locations: FxHashMap::default(),
        budget: Cell::new(budget),
        depth: 0,
    };
    let mut contents = Bytes::new(sections[section::OPERATIONS]);
    // Around everything is a scope without values.
    let mut scope = Scope::default();
    let mut top = reader.block(&mut contents, &mut scope)?;
    if let [module] = &mut top.operations[..]
        && &*module.name == "builtin.module"
    {
        let module = std::mem::take(module);
        for (name, value) in module.attributes {
            match (&*name, value) {
                ("sym_name", Attribute::String(found)) => reader.program.name = found,
                (_, value) => reader.program.attributes.push((name, value)),
            }
        }
        let operations = module.regions.into_iter().flat_map(|region| region.operations);
        reader.program.operations = operations.collect();
        return Ok(reader.program);
    }
    Err(Error::new("the bytecode is not that of a module"))
}

/// The number of a section, and its contents.
fn read_section<'b>(bytes: &mut Bytes<'b>) -> Result<(usize, &'b [u8]), Error> {
    let first = bytes.byte()?;
    let length = bytes.count()?;
    if first & 0x80 != 0 {
        // Bytes of padding bring the contents to a multiple of the alignment, from the beginning of the file.
        bytes.number()?;
        let padding = bytes.rest.iter().take_while(|&&byte| byte == 0xcb).count();
        bytes.take(padding)?;
    }
    Ok((usize::from(first & 0x7f), bytes.take(length)?))
}

/// The table of strings, whose lengths are in reverse.
fn strings(contents: &[u8]) -> Result<Vec<&str>, Error> {
    let mut bytes = Bytes::new(contents);
    let count = bytes.count()?;
    let mut lengths = (0..count).map(|_| bytes.count()).collect::<Result<Vec<_>, _>>()?;
    lengths.reverse();
    let read = |length: usize| {
        let text = bytes.take(length)?;
        let text = text.strip_suffix(b"\0").ok_or_else(truncated)?;
        Ok(std::str::from_utf8(text).unwrap_or_default())
    };
    lengths.into_iter().map(read).collect()
}

/// The names of dialects, and the full names of operations.
fn dialects<'b>(
    contents: &'b [u8],
    version: u64,
    strings: &[&'b str],
) -> Result<(Vec<&'b str>, Vec<String>), Error> {
    let mut bytes = Bytes::new(contents);
    let string = |number: u64| strings.get(number as usize).copied().ok_or_else(truncated);
    let mut dialects = Vec::new();
    for _ in 0..bytes.count()? {
        if version < since::VERSIONED_DIALECTS {
            dialects.push(string(bytes.number()?)?);
            continue;
        }
        let (name, has_version) = bytes.flagged()?;
        dialects.push(string(name)?);
        if has_version {
            read_section(&mut bytes)?;
        }
    }
    let mut operations = Vec::new();
    if version >= since::OPTIONAL_LOCATIONS {
        bytes.number()?;
    }
    while !bytes.rest.is_empty() {
        let dialect = bytes.number()?;
        let dialect = dialects.get(dialect as usize).ok_or_else(truncated)?;
        for _ in 0..bytes.count()? {
            let name = match version >= since::PROPERTIES {
                true => bytes.flagged()?.0,
                false => bytes.number()?,
            };
            operations.push(match string(name)? {
                "" => (*dialect).to_owned(),
                name => format!("{dialect}.{name}"),
            });
        }
    }
    Ok((dialects, operations))
}

/// The bytes of the properties of operations.
fn property_blobs(contents: &[u8]) -> Result<Vec<&[u8]>, Error> {
    if contents.is_empty() {
        return Ok(Vec::new());
    }
    let mut bytes = Bytes::new(contents);
    (0..bytes.count()?).map(|_| bytes.blob()).collect()
}

/// The values that operations of a scope may use, by the numbers that the file gives them.
#[derive(Default)]
struct Scope {
    values: Vec<Option<ValueId>>,
    /// The numbers of the next values of the regions around the place.
    next: Vec<usize>,
}

struct Reader<'b> {
    version: u64,
    operations: Vec<String>,
    properties: Vec<&'b [u8]>,
    tables: Tables<'b>,
    program: Program,
    locations: FxHashMap<u64, LocationId>,
    /// How much more may be made of a file. Tables share what a program repeats.
    budget: Cell<u64>,
    depth: u32,
}

/// The parts that an operation may have.
mod has {
    pub(super) const ATTRIBUTES: u8 = 1;
    pub(super) const RESULTS: u8 = 2;
    pub(super) const OPERANDS: u8 = 4;
    pub(super) const SUCCESSORS: u8 = 8;
    pub(super) const REGIONS: u8 = 16;
    pub(super) const ORDERS_OF_USES: u8 = 32;
    pub(super) const PROPERTIES: u8 = 64;
}

impl<'b> Reader<'b> {
    fn block(&mut self, bytes: &mut Bytes<'b>, scope: &mut Scope) -> Result<Region, Error> {
        let (count, has_arguments) = bytes.flagged()?;
        let count = bytes.check_count(count)?;
        let mut region = Region::default();
        if has_arguments {
            for _ in 0..bytes.count()? {
                let (kind, has_location) = match self.version >= since::OPTIONAL_LOCATIONS {
                    true => bytes.flagged()?,
                    false => (bytes.number()?, true),
                };
                let kind = self.tables.type_at(kind)?;
                let location = match has_location {
                    true => bytes.number()?,
                    false => u64::MAX,
                };
                let location = self.location(location)?;
                let value = self.define(kind, scope)?;
                region.arguments.push(Argument { value, location });
            }
            if self.version >= since::ORDERS_OF_USES && bytes.byte()? != 0 {
                skip_orders(bytes, region.arguments.len())?;
            }
        }
        for _ in 0..count {
            let operation = self.operation(bytes, scope)?;
            region.operations.push(operation);
        }
        Ok(region)
    }

    fn operation(&mut self, bytes: &mut Bytes<'b>, scope: &mut Scope) -> Result<Operation, Error> {
        let name = bytes.number()?;
        let full = self.operations.get(name as usize).ok_or_else(truncated)?.clone();
        let parts = bytes.byte()?;
        let location = bytes.number()?;
        let mut operation = Operation { name: stable_name(&full), ..Operation::default() };
        operation.location = self.location(location)?;
        if parts & has::ATTRIBUTES != 0 {
            let number = bytes.number()?;
            operation.attributes = self.dictionary(number)?;
        }
        if parts & has::PROPERTIES != 0 {
            let number = bytes.number()?;
            let contents = *self.properties.get(number as usize).ok_or_else(truncated)?;
            let more = self.read_properties(&full, contents)?;
            operation.attributes.extend(more);
        }
        let types = match parts & has::RESULTS {
            0 => Vec::new(),
            _ => {
                (0..bytes.count()?).map(|_| self.tables.type_at(bytes.number()?)).collect::<Result<_, _>>()?
            }
        };
        if parts & has::OPERANDS != 0 {
            for _ in 0..bytes.count()? {
                let number = bytes.number()?;
                let value = scope.values.get(number as usize).copied().flatten();
                let value = value.ok_or_else(|| {
                    Error::new(format!("an operand of `{}` is used before it is defined", operation.name))
                })?;
                operation.operands.push(value);
            }
        }
        if parts & has::SUCCESSORS != 0 {
            return Err(Error::new(format!(
                "`{}` jumps to other blocks, which is not supported",
                operation.name
            )));
        }
        if parts & has::ORDERS_OF_USES != 0 {
            skip_orders(bytes, types.len())?;
        }
        for r#type in types {
            let value = self.define(r#type, scope)?;
            operation.results.push(value);
        }
        if parts & has::REGIONS != 0 {
            let (count, is_isolated) = bytes.flagged()?;
            let count = bytes.check_count(count)?;
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return Err(Error::new(format!(
                    "regions are more than {MAX_DEPTH} levels within each other"
                )));
            }
            let mut contents = match is_isolated && self.version >= since::REGIONS_IN_SECTIONS {
                true => Bytes::new(read_section(bytes)?.1),
                false => *bytes,
            };
            let mut own = Scope::default();
            for _ in 0..count {
                let region = match is_isolated {
                    true => self.region(&mut contents, &mut own)?,
                    false => self.region(&mut contents, scope)?,
                };
                operation.regions.push(region);
            }
            if !(is_isolated && self.version >= since::REGIONS_IN_SECTIONS) {
                *bytes = contents;
            }
            self.depth -= 1;
        }
        Ok(operation)
    }

    fn region(&mut self, bytes: &mut Bytes<'b>, scope: &mut Scope) -> Result<Region, Error> {
        let n_blocks = bytes.number()?;
        if n_blocks == 0 {
            return Ok(Region::default());
        }
        if n_blocks > 1 {
            return Err(Error::new("regions of several blocks are not supported"));
        }
        let count = bytes.count()?;
        let first = scope.values.len();
        scope.next.push(first);
        scope.values.resize(first + count, None);
        let region = self.block(bytes, scope)?;
        scope.values.truncate(first);
        scope.next.pop();
        Ok(region)
    }

    /// A value of the innermost region.
    fn define(&mut self, r#type: Type, scope: &mut Scope) -> Result<ValueId, Error> {
        let value = self.program.types.len() as ValueId;
        self.program.types.push(r#type);
        // The operations around everything define nothing.
        let next = scope.next.last_mut().ok_or_else(truncated)?;
        *scope.values.get_mut(*next).ok_or_else(truncated)? = Some(value);
        *next += 1;
        Ok(value)
    }

    fn dictionary(&mut self, number: u64) -> Result<Attributes, Error> {
        match self.attribute(number)? {
            Attribute::Dictionary(entries) => Ok(entries),
            _ => Err(truncated()),
        }
    }

    fn attribute(&self, number: u64) -> Result<Attribute, Error> {
        self.tables.attribute_at(number, &self.budget)
    }

    fn read_properties(&mut self, name: &str, contents: &'b [u8]) -> Result<Attributes, Error> {
        let mut bytes = Bytes::new(contents);
        let mut found = Attributes::new();
        if let Some(versioned) = name.strip_prefix("vhlo.") {
            let listed = properties::VHLO.iter().find(|(listed, _)| *listed == versioned);
            for &attribute in listed.map(|(_, names)| *names).unwrap_or_default() {
                found.push((attribute.into(), self.attribute(bytes.number()?)?));
            }
            return Ok(found);
        }
        let Some((_, named)) = properties::OTHERS.iter().find(|(listed, _)| *listed == name) else {
            return Err(Error::new(format!("`{name}` in bytecode that is not portable is not supported")));
        };
        for &(attribute, is_required) in *named {
            let (number, is_there) = match is_required {
                true => (bytes.number()?, true),
                false => bytes.flagged()?,
            };
            if is_there {
                found.push((attribute.into(), self.attribute(number)?));
            }
        }
        Ok(found)
    }

    fn location(&mut self, number: u64) -> Result<LocationId, Error> {
        if number == u64::MAX {
            return Ok(LocationId::default());
        }
        self.tables.location_at(number, &mut self.program.locations, &mut self.locations, 0)
    }
}

/// Skips in which order the uses of some of several values are, which matters to nobody here.
fn skip_orders(bytes: &mut Bytes<'_>, n_values: usize) -> Result<(), Error> {
    let count = if n_values > 1 { bytes.count()? } else { 1 };
    for _ in 0..count {
        if n_values > 1 {
            bytes.number()?;
        }
        let (count, _) = bytes.flagged()?;
        for _ in 0..bytes.check_count(count)? {
            bytes.number()?;
        }
    }
    Ok(())
}

/// The name of an operation of VHLO in StableHLO: without its version.
fn stable_name(name: &str) -> Box<str> {
    let Some(versioned) = name.strip_prefix("vhlo.") else { return name.into() };
    let plain = versioned.rsplit_once("_v").map_or(versioned, |(plain, _)| plain);
    match plain {
        "func" | "call" => format!("func.{plain}").into(),
        _ => format!("stablehlo.{plain}").into(),
    }
}
