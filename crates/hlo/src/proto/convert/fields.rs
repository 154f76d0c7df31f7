//! Conversions between fields of messages and values of attributes.

use memplan_ir::*;
use prost::bytes::Bytes;
use smallvec::SmallVec;

use super::*;
use crate::attributes::ComparisonOrder;
use crate::proto::messages as pb;

/// A value that a field of type `F` represents.
pub(in crate::proto) trait Field<F>: Sized {
    /// Takes the value out of a field with a name.
    fn get(field: &mut F, name: &'static str) -> Result<Self, FieldError>;

    /// The field for the value.
    fn set(&self) -> F;
}

/// Implements [`Field`] where reading cannot fail, or can with the name of the field.
macro_rules! fields {
    ($($type:ty, $field:ty: $it:ident => $get:expr, $value:ident => $set:expr;)*) => {
        $(impl Field<$field> for $type {
            fn get($it: &mut $field, _: &'static str) -> Result<$type, FieldError> {
                Ok($get)
            }

            fn set(&self) -> $field {
                let $value = self;
                $set
            }
        })*
    };
}

fields! {
    bool, bool: it => *it, value => *value;
    i32, i32: it => *it, value => *value;
    i64, i64: it => *it, value => *value;
    f32, f32: it => *it, value => *value;
    Option<i32>, Option<i32>: it => *it, value => *value;
    // Absent is false.
    Option<bool>, bool: it => it.then_some(true), value => value.unwrap_or(false);
    // Channels count from 1.
    Option<i64>, i64: it => Some(*it).filter(|&n| n > 0), value => value.unwrap_or_default();
    Option<i64>, Vec<i64>: it => it.first().copied(), value => value.iter().copied().collect();
    Dimensions, Vec<i64>: it => it.as_slice().into(), value => value.to_vec();
    Box<str>, String: it => it.as_str().into(), value => value.to_string();
    Box<[u8]>, Bytes: it => it.as_ref().into(), value => value.to_vec().into();
    Box<Window>, Option<Box<pb::WindowProto>>:
        it => Box::new(it.as_deref().map(window).unwrap_or_default()), value => Some(window_proto(value));
    Window, Option<Box<pb::WindowProto>>:
        it => it.as_deref().map(window).unwrap_or_default(), value => Some(window_proto(value));
    Option<Window>, Option<Box<pb::WindowProto>>:
        it => it.as_deref().map(window), value => value.as_ref().map(window_proto);
    Option<ConvolutionDimensions>, Option<Box<pb::ConvolutionDimensionNumbers>>:
        it => it.as_deref().map(convolution_dimensions), value => value.as_ref().map(convolution_dimensions_proto);
    DotDimensions, Option<Box<pb::DotDimensionNumbers>>:
        it => it.as_deref().map(dot_dimensions).unwrap_or_default(), value => Some(dot_dimensions_proto(value));
    [Option<TensorSparsity>; 2], Option<Box<pb::SparsityConfig>>:
        it => sparsity(it.as_deref()), value => sparsity_proto(value);
    SmallVec<[SliceDimension; 2]>, Vec<pb::SliceDimensions>: it => slices(it), value => slices_proto(value);
    Vec<(i64, i64)>, Vec<pb::SourceTarget>:
        it => it.iter().map(|pair| (pair.source, pair.target)).collect(),
        value => value.iter().map(|&(source, target)| pb::SourceTarget { source, target }).collect();
}

impl Field<i64> for u32 {
    fn get(field: &mut i64, name: &'static str) -> Result<u32, FieldError> {
        number(name, *field)
    }

    fn set(&self) -> i64 {
        i64::from(*self)
    }
}

/// The only dimension.
impl Field<Vec<i64>> for i64 {
    fn get(field: &mut Vec<i64>, name: &'static str) -> Result<i64, FieldError> {
        match field[..] {
            [dimension] => Ok(dimension),
            _ => Err(FieldError::value(name, format!("{} long", field.len()))),
        }
    }

    fn set(&self) -> Vec<i64> {
        vec![*self]
    }
}

/// Yes, no, or not said.
impl Field<i32> for Option<bool> {
    fn get(field: &mut i32, name: &'static str) -> Result<Option<bool>, FieldError> {
        match field {
            0 => Ok(None),
            1 => Ok(Some(true)),
            2 => Ok(Some(false)),
            other => Err(FieldError::value(name, other)),
        }
    }

    fn set(&self) -> i32 {
        self.map_or(0, |it| if it { 1 } else { 2 })
    }
}

impl Field<Option<Box<pb::ConvolutionDimensionNumbers>>> for ConvolutionDimensions {
    fn get(
        field: &mut Option<Box<pb::ConvolutionDimensionNumbers>>,
        name: &'static str,
    ) -> Result<ConvolutionDimensions, FieldError> {
        field.as_deref().map(convolution_dimensions).ok_or(FieldError::Missing(name))
    }

    fn set(&self) -> Option<Box<pb::ConvolutionDimensionNumbers>> {
        Some(convolution_dimensions_proto(self))
    }
}

impl Field<Option<pb::PaddingConfig>> for SmallVec<[PaddingDimension; 2]> {
    fn get(field: &mut Option<pb::PaddingConfig>, name: &'static str) -> Result<Self, FieldError> {
        field.as_ref().map(padding).ok_or(FieldError::Missing(name))
    }

    fn set(&self) -> Option<pb::PaddingConfig> {
        Some(padding_proto(self))
    }
}

impl Field<Vec<pb::OutputOperandAliasing>> for Vec<OutputOperandAlias> {
    fn get(field: &mut Vec<pb::OutputOperandAliasing>, _: &'static str) -> Result<Self, FieldError> {
        aliasing(field)
    }

    fn set(&self) -> Vec<pb::OutputOperandAliasing> {
        aliasing_proto(self)
    }
}

impl Field<Option<Box<pb::LiteralProto>>> for Option<Literal> {
    fn get(field: &mut Option<Box<pb::LiteralProto>>, _: &'static str) -> Result<Self, FieldError> {
        field.take().map(|it| literal(&it)).transpose()
    }

    fn set(&self) -> Option<Box<pb::LiteralProto>> {
        let literal = self.as_ref()?;
        literal_proto(literal, shape_proto(&literal_shape(literal))).map(Box::new)
    }
}

fn literal_shape(literal: &Literal) -> Shape {
    match literal {
        Literal::Array(array) => Shape::array(array.element_type, array.dimensions.iter().copied()),
        Literal::Tuple(elements) => Shape::Tuple(elements.iter().map(literal_shape).collect()),
        Literal::Token => Shape::Token,
    }
}

/// Invalid is also what an absent field reads as.
impl Field<i32> for Option<PaddingType> {
    fn get(field: &mut i32, name: &'static str) -> Result<Option<PaddingType>, FieldError> {
        Ok(Some(PaddingType::get(field, name)?).filter(|&t| t != PaddingType::PaddingInvalid))
    }

    fn set(&self) -> i32 {
        self.unwrap_or(PaddingType::PaddingInvalid).set()
    }
}

/// Implements [`Field`] for enumerations that are words.
macro_rules! words {
    ($($type:ty,)*) => {
        $(impl Field<String> for $type {
            fn get(field: &mut String, name: &'static str) -> Result<$type, FieldError> {
                field.parse().map_err(|_| FieldError::value(name, format!("{field:?}")))
            }

            fn set(&self) -> String {
                self.to_string()
            }
        })*
    };
}

words! {
    ComparisonDirection,
    ComparisonOrder,
    ComparisonType,
    FusionKind,
}

/// Implements [`Field`] for enumerations that are numbers. Of several numbers for one value, the first is written.
macro_rules! enumerations {
    ($($type:ty { $($number:literal => $value:ident,)* })*) => {
        $(impl Field<i32> for $type {
            fn get(field: &mut i32, name: &'static str) -> Result<$type, FieldError> {
                match field {
                    $($number => Ok(<$type>::$value),)*
                    other => Err(FieldError::value(name, other)),
                }
            }

            fn set(&self) -> i32 {
                $(if *self == <$type>::$value {
                    return $number;
                })*
                unreachable!("the table has every value")
            }
        })*
    };
}

enumerations! {
    Precision {
        0 => Default,
        1 => High,
        2 => Highest,
    }
    PrecisionAlgorithm {
        0 => Unset,
        1 => AnyF8AnyF8F32,
        2 => AnyF8AnyF8F32FastAccum,
        3 => F16F16F16,
        4 => F16F16F32,
        5 => Bf16Bf16Bf16,
        6 => Bf16Bf16F32,
        7 => Bf16Bf16F32X3,
        8 => Bf16Bf16F32X6,
        9 => Tf32Tf32F32,
        10 => Tf32Tf32F32X3,
        11 => F32F32F32,
        12 => F64F64F64,
        13 => Bf16Bf16F32X9,
    }
    ConvolutionKind {
        0 => Unset,
        1 => Fprop,
        2 => Dgrad,
        3 => Wgrad,
    }
    FftKind {
        0 => Fft,
        1 => Ifft,
        2 => Rfft,
        3 => Irfft,
    }
    TriangularTranspose {
        1 => NoTranspose,
        2 => Transpose,
        3 => Adjoint,
        // XLA's text leaves the transpose out, and then writes zero.
        0 => NoTranspose,
    }
    RngDistribution {
        1 => RngUniform,
        2 => RngNormal,
    }
    RngAlgorithm {
        0 => RngDefault,
        1 => RngThreeFry,
        2 => RngPhilox,
    }
    CustomCallSchedule {
        0 => ScheduleNone,
        1 => ScheduleLatest,
        2 => ScheduleEarliest,
    }
    CustomCallApiVersion {
        0 => ApiVersionUnspecified,
        1 => ApiVersionOriginal,
        2 => ApiVersionStatusReturning,
        3 => ApiVersionStatusReturningUnified,
        4 => ApiVersionTypedFfi,
    }
    PaddingType {
        0 => PaddingInvalid,
        1 => PaddingValid,
        2 => PaddingSame,
    }
    SubgroupKind {
        0 => Replicated,
        1 => Maximal,
        4 => Manual,
        6 => Unreduced,
    }
    MeshReduction {
        0 => Sum,
        1 => Max,
        2 => Min,
    }
}
