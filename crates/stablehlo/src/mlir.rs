//! MLIR as data, as far as StableHLO needs it: what the readers of text and bytecode make, and what becomes HLO.
//!
//! Operations and attributes have StableHLO's names, and the attributes that StableHLO groups (dimension numbers of
//! gathers, products and convolutions) are attributes of their own, as portable bytecode has them.

use std::ops::Range;
use std::sync::Arc;

use memplan_ir::{ArrayShape, Shape};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A value of a program: a result of an operation, or an argument of a region.
pub(crate) type ValueId = u32;

/// Attributes by name, in the order written.
pub(crate) type Attributes = Vec<(Box<str>, Attribute)>;

/// Operations of a region, or of the module.
#[derive(Debug, Default)]
pub(crate) struct Region {
    pub(crate) arguments: Vec<Argument>,
    pub(crate) operations: Vec<Operation>,
}

/// An argument of a region.
#[derive(Debug)]
pub(crate) struct Argument {
    pub(crate) value: ValueId,
    pub(crate) location: LocationId,
}

/// One operation.
#[derive(Debug, Default)]
pub(crate) struct Operation {
    /// With its dialect: `stablehlo.add`.
    pub(crate) name: Box<str>,
    pub(crate) operands: SmallVec<[ValueId; 3]>,
    pub(crate) results: SmallVec<[ValueId; 1]>,
    pub(crate) attributes: Attributes,
    pub(crate) regions: Vec<Region>,
    pub(crate) location: LocationId,
    /// The bytes of the text; empty for bytecode.
    pub(crate) span: Range<usize>,
}

impl Operation {
    /// The attribute of this name.
    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        find(&self.attributes, name)
    }
}

/// The attribute of this name.
pub(crate) fn find<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a Attribute> {
    attributes.iter().find(|(found, _)| **found == *name).map(|(_, attribute)| attribute)
}

/// A module with the tables that its parts refer to.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) name: Box<str>,
    pub(crate) attributes: Attributes,
    pub(crate) operations: Vec<Operation>,
    /// Types by [`ValueId`].
    pub(crate) types: Vec<Type>,
    /// Locations by [`LocationId`]; the first is unknown.
    pub(crate) locations: Vec<Location>,
    /// Data that constants refer to by name.
    pub(crate) resources: FxHashMap<Box<str>, Arc<[u8]>>,
}

/// A type.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly all types are shapes")]
pub(crate) enum Type {
    /// The type of a value that HLO has, or of an element.
    Shape(Shape),
    Function(Arc<[Type]>, Arc<[Type]>),
    /// A type that HLO has no shape for, as it is written.
    Other(Box<str>),
}

/// A constant property of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribute {
    Unit,
    Bool(bool),
    /// With the name of its type, as it is written.
    Integer(i64, Box<str>),
    Float(f64, Box<str>),
    String(Box<str>),
    Symbol(Box<str>),
    Array(Vec<Attribute>),
    Dictionary(Attributes),
    Elements(Elements),
    /// Elements that are in a resource.
    Resource(Box<str>, ArrayShape),
    /// `array<i64: 1, 2>`; booleans are 0 and 1.
    Integers(Vec<i64>, Box<str>),
    Type(Type),
    /// A case of an enumeration.
    Word(Box<str>),
    /// `#name<body>` of a dialect, as it is written.
    Dialect(Box<str>, Box<str>),
}

/// The elements of a constant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Elements {
    pub(crate) shape: ArrayShape,
    /// As in `memplan_ir::LiteralData::Bytes`; of a splat one element.
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) is_splat: bool,
}

/// An index into [`Program::locations`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LocationId(pub(crate) u32);

/// Where an operation comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Location {
    #[default]
    Unknown,
    File {
        file: Box<str>,
        /// Line and column at which it begins and ends, from 1; 0 is unknown.
        start: (u32, u32),
        end: (u32, u32),
    },
    Name(Box<str>, LocationId),
    Call {
        callee: LocationId,
        caller: LocationId,
    },
    Fused(Vec<LocationId>),
    /// The location that an alias stands for.
    Same(LocationId),
}

impl Program {
    pub(crate) fn location(&self, mut id: LocationId) -> &Location {
        // Chains of aliases in hostile files may be cycles.
        for _ in 0..8 {
            match self.locations.get(id.0 as usize) {
                Some(Location::Same(other)) => id = *other,
                Some(location) => return location,
                None => break,
            }
        }
        &Location::Unknown
    }
}
