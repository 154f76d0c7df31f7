//! How text spells the value of an attribute.

use std::fmt::{self, Write};

use memplan_ir::*;
use smallvec::SmallVec;

use super::{Attribute, ComparisonOrder};
use crate::error::ParseErrorKind;
use crate::printer::{
    Layouts, dimension_labels, integers, number, quoted, replica_groups, separated, shape, shaped_literal,
    sharding, sparsity, window,
};

/// The value behind the name of an attribute.
#[derive(Debug)]
pub(crate) enum Value<'s> {
    Accuracy(Option<ResultAccuracy>),
    Aliases(Vec<OutputOperandAlias>),
    Boolean(bool),
    Bytes(Box<[u8]>),
    Computation(ComputationId),
    Computations(SmallVec<[ComputationId; 4]>),
    Domain(Box<Domain>),
    Float(f64),
    Groups(Box<ReplicaGroups>),
    Integer(i64),
    Integers(Dimensions),
    Labels(Box<ConvolutionDimensions>),
    Lists(Vec<Dimensions>),
    Literal(Box<Literal>),
    Padding(SmallVec<[PaddingDimension; 2]>),
    Pairs(Vec<(i64, i64)>),
    Precisions(SmallVec<[Precision; 3]>),
    Shape(Box<Shape>),
    Shapes(Vec<Shape>),
    Slice(SmallVec<[SliceDimension; 2]>),
    Sparsity(Box<[Option<TensorSparsity>; 2]>),
    Text(Box<str>),
    Window(Box<Window>),
    Word(&'s str),
}

/// An error in a value, and how many bytes of the text show it.
pub(crate) struct Unfit {
    pub(crate) length: usize,
    pub(crate) kind: ParseErrorKind,
}

impl Unfit {
    /// In a box: values are read far more often than refused.
    fn new(length: usize, kind: ParseErrorKind) -> Box<Unfit> {
        Box::new(Unfit { length, kind })
    }
}

/// The type of a field whose value text spells.
pub(crate) trait Text: Sized {
    /// Parses the value behind the name.
    ///
    /// # Panics
    /// The name of the attribute implies another kind of value.
    fn read(value: Value<'_>) -> Result<Self, Box<Unfit>>;

    /// Writes the value behind the name.
    fn write<W: Write>(&self, name: Attribute, out: &mut W) -> fmt::Result;
}

/// Implements [`Text`] for types of which the text has the whole value.
macro_rules! texts {
    ($($type:ty: $variant:ident($value:ident) => $read:expr, $out:ident => $write:expr;)*) => {
        $(impl Text for $type {
            fn read(value: Value<'_>) -> Result<$type, Box<Unfit>> {
                match value {
                    Value::$variant($value) => Ok($read),
                    other => unreachable!("the name decides what {other:?} is"),
                }
            }

            fn write<W: Write>(&self, _: Attribute, $out: &mut W) -> fmt::Result {
                let $value = self;
                $write
            }
        })*
    };
}

texts! {
    bool: Boolean(it) => it, out => write!(out, "{it}");
    f32: Float(it) => it as f32, out => number(out, f64::from(*it), 9);
    Box<str>: Text(it) => it, out => quoted(out, it.as_bytes());
    Box<[u8]>: Bytes(it) => it, out => quoted(out, it);
    Domain: Domain(it) => *it, out => {
        out.write_str("{kind=\"sharding\", entry=")?;
        sharding(&it.entry, out)?;
        out.write_str(", exit=")?;
        sharding(&it.exit, out)?;
        out.write_char('}')
    };
    ReplicaGroups: Groups(it) => *it, out => replica_groups(it, out);
    ConvolutionDimensions: Labels(it) => *it, out => dimension_labels(it, out);
    Literal: Literal(it) => *it, out => shaped_literal(it, out);
    Shape: Shape(it) => *it, out => shape(it, Layouts::Print, out);
    [Option<TensorSparsity>; 2]: Sparsity(it) => *it, out => sparsity(it, out);
    Window: Window(it) => *it, out => window(it, out);
    SmallVec<[PaddingDimension; 2]>: Padding(it) => it, out => {
        // Interior padding is written for all dimensions or for none.
        let has_interior = it.iter().any(|d| d.interior != 0);
        separated(out, "x", it, |out, d| {
            write!(out, "{}_{}", d.low, d.high)?;
            if has_interior { write!(out, "_{}", d.interior) } else { Ok(()) }
        })
    };
    SmallVec<[SliceDimension; 2]>: Slice(it) => it, out => {
        // Strides are written for all dimensions or for none.
        let has_strides = it.iter().any(|d| d.stride != 1);
        list(out, ", ", it, |out, d| match has_strides {
            true => write!(out, "[{}:{}:{}]", d.start, d.limit, d.stride),
            false => write!(out, "[{}:{}]", d.start, d.limit),
        })
    };
    SmallVec<[Precision; 3]>: Precisions(it) => it, out => list(out, ",", it, |out, p| write!(out, "{p}"));
    Vec<(i64, i64)>: Pairs(it) => it, out => {
        list(out, ",", it, |out, (source, target)| write!(out, "{{{source},{target}}}"))
    };
    Vec<OutputOperandAlias>: Aliases(it) => it, out => list(out, ", ", it, |out, alias| {
        write!(out, "{}: ({}, {})", alias.output_index, alias.operand, alias.operand_index)
    });
    Vec<Shape>: Shapes(it) => it, out => list(out, ", ", it, |out, s| shape(s, Layouts::Print, out));
}

/// Implements [`Text`] for types that a word names.
macro_rules! words {
    ($($type:ty: $expected:literal,)*) => {
        $(impl Text for $type {
            fn read(value: Value<'_>) -> Result<$type, Box<Unfit>> {
                let Value::Word(word) = value else { unreachable!("the name decides what {value:?} is") };
                word.parse().map_err(|_| {
                    let (expected, found) = ($expected.to_owned(), format!("`{word}`"));
                    Unfit::new(word.len(), ParseErrorKind::Unexpected { expected, found })
                })
            }

            fn write<W: Write>(&self, _: Attribute, out: &mut W) -> fmt::Result {
                out.write_str((*self).into())
            }
        })*
    };
}

words! {
    CollectiveGroupMode: "a collective group mode like cross_replica",
    ComparisonDirection: "EQ, NE, GE, GT, LE or LT",
    ComparisonOrder: "TOTAL or PARTIAL",
    ComparisonType: "FLOAT, TOTALORDER, SIGNED or UNSIGNED",
    ConvolutionKind: "fprop, dgrad or wgrad",
    CustomCallApiVersion: "an API version like API_VERSION_TYPED_FFI",
    CustomCallSchedule: "SCHEDULE_NONE, SCHEDULE_LATEST or SCHEDULE_EARLIEST",
    FftKind: "FFT, IFFT, RFFT or IRFFT",
    FusionKind: "kLoop, kInput, kOutput or kCustom",
    PaddingType: "PADDING_VALID or PADDING_SAME",
    PrecisionAlgorithm: "an algorithm like dot_f32_f32_f32",
    RngAlgorithm: "rng_default, rng_three_fry or rng_philox",
    RngDistribution: "rng_uniform or rng_normal",
    TriangularTranspose: "NO_TRANSPOSE, TRANSPOSE or ADJOINT",
}

impl<T: Text> Text for Box<T> {
    fn read(value: Value<'_>) -> Result<Box<T>, Box<Unfit>> {
        T::read(value).map(Box::new)
    }

    fn write<W: Write>(&self, name: Attribute, out: &mut W) -> fmt::Result {
        T::write(self, name, out)
    }
}

/// A number, or the only one of a list.
impl Text for i64 {
    fn read(value: Value<'_>) -> Result<i64, Box<Unfit>> {
        match value {
            Value::Integer(number) => Ok(number),
            Value::Integers(list) => match list.as_slice() {
                &[number] => Ok(number),
                several => Err(Unfit::new(1, ParseErrorKind::Count { expected: 1, found: several.len() })),
            },
            other => unreachable!("the name decides what {other:?} is"),
        }
    }

    fn write<W: Write>(&self, name: Attribute, out: &mut W) -> fmt::Result {
        match name {
            Attribute::Dimensions => write!(out, "{{{self}}}"),
            _ => write!(out, "{self}"),
        }
    }
}

/// Implements [`Text`] for numbers of a smaller range.
macro_rules! numbers {
    ($($type:ty: $what:literal,)*) => {
        $(impl Text for $type {
            fn read(value: Value<'_>) -> Result<$type, Box<Unfit>> {
                let number = i64::read(value)?;
                <$type>::try_from(number).map_err(|_| {
                    let text = number.to_string();
                    Unfit::new(text.len(), ParseErrorKind::NumberOutOfRange { text, what: $what })
                })
            }

            fn write<W: Write>(&self, _: Attribute, out: &mut W) -> fmt::Result {
                write!(out, "{self}")
            }
        })*
    };
}

numbers! {
    i32: "32 bits",
    u32: "a tuple index",
}

impl Text for Dimensions {
    fn read(value: Value<'_>) -> Result<Dimensions, Box<Unfit>> {
        match value {
            Value::Integers(list) => Ok(list),
            Value::Lists(_) => {
                let (expected, found) = ("a list of numbers".to_owned(), "a list of lists".to_owned());
                Err(Unfit::new(1, ParseErrorKind::Unexpected { expected, found }))
            }
            other => unreachable!("the name decides what {other:?} is"),
        }
    }

    fn write<W: Write>(&self, _: Attribute, out: &mut W) -> fmt::Result {
        list(out, ",", self, |out, number| write!(out, "{number}"))
    }
}

/// Lists of numbers; `{}` has none.
impl Text for Vec<Dimensions> {
    fn read(value: Value<'_>) -> Result<Vec<Dimensions>, Box<Unfit>> {
        match value {
            Value::Lists(lists) => Ok(lists),
            _ => Ok(Vec::new()),
        }
    }

    fn write<W: Write>(&self, _: Attribute, out: &mut W) -> fmt::Result {
        list(out, ",", self, |out, numbers| {
            out.write_char('{')?;
            integers(out, numbers)?;
            out.write_char('}')
        })
    }
}

/// A number of groups, which is one where nothing says it.
pub(crate) trait Count {
    /// The count that is written; none where it is not known.
    fn count(&self) -> Option<i64>;

    /// From the count that is written.
    fn of(count: Option<i64>) -> Self;
}

impl Count for i64 {
    fn count(&self) -> Option<i64> {
        Some(*self)
    }

    fn of(count: Option<i64>) -> i64 {
        count.unwrap_or(1)
    }
}

impl Count for Option<i64> {
    fn count(&self) -> Option<i64> {
        *self
    }

    fn of(count: Option<i64>) -> Option<i64> {
        count
    }
}

/// Writes items in braces.
fn list<W: Write, T>(
    out: &mut W,
    separator: &str,
    items: impl IntoIterator<Item = T>,
    item: impl FnMut(&mut W, T) -> fmt::Result,
) -> fmt::Result {
    out.write_char('{')?;
    separated(out, separator, items, item)?;
    out.write_char('}')
}
