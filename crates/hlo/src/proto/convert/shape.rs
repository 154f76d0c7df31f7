//! Shapes and layouts.

use memplan_ir::{ArrayShape, ElementType, Layout, ProgramShape, RareLayout, Shape, SplitConfig, Tile};

use super::FieldError;
use crate::proto::messages::{LayoutProto, ProgramShapeProto, ShapeProto, SplitConfigProto, TileProto};

const TUPLE: i32 = 13;
const OPAQUE: i32 = 14;
const TOKEN: i32 = 17;
const BUFFER: i32 = 34;

/// `PrimitiveType` numbers of element types.
const TYPES: [(i32, ElementType); 32] = {
    use ElementType::*;
    [
        (1, Pred),
        (30, S1),
        (26, S2),
        (21, S4),
        (2, S8),
        (3, S16),
        (4, S32),
        (5, S64),
        (31, U1),
        (27, U2),
        (22, U4),
        (6, U8),
        (7, U16),
        (8, U32),
        (9, U64),
        (10, F16),
        (11, F32),
        (16, Bf16),
        (12, F64),
        (19, F8e5m2),
        (28, F8e4m3),
        (20, F8e4m3fn),
        (23, F8e4m3b11fnuz),
        (29, F8e3m4),
        (24, F8e5m2fnuz),
        (25, F8e4m3fnuz),
        (32, F4e2m1fn),
        (33, F8e8m0fnu),
        (35, F6e3m2fn),
        (36, F6e2m3fn),
        (15, C64),
        (18, C128),
    ]
};

fn element_type(number: i32) -> Result<ElementType, FieldError> {
    let found = TYPES.iter().find(|(n, _)| *n == number);
    found.map(|&(_, t)| t).ok_or_else(|| FieldError::value("element_type", number))
}

fn type_number(element_type: ElementType) -> i32 {
    TYPES.iter().find(|(_, t)| *t == element_type).expect("the table has every element type").0
}

pub(in crate::proto) fn shape(proto: &ShapeProto) -> Result<Shape, FieldError> {
    Ok(match proto.element_type {
        TUPLE => Shape::Tuple(proto.tuple_shapes.iter().map(shape).collect::<Result<_, _>>()?),
        OPAQUE => Shape::Opaque,
        TOKEN => Shape::Token,
        BUFFER => match proto.tuple_shapes.first() {
            Some(inner) => Shape::Buffer(array(inner)?),
            None => return Err(FieldError::Missing("buffer shape")),
        },
        _ => Shape::Array(array(proto)?),
    })
}

fn array(proto: &ShapeProto) -> Result<ArrayShape, FieldError> {
    let dynamic = &proto.is_dynamic_dimension;
    if !dynamic.is_empty() && dynamic.len() != proto.dimensions.len() {
        return Err(FieldError::value("is_dynamic_dimension", format!("{} long", dynamic.len())));
    }
    let is_dynamic = dynamic.iter().any(|&d| d);
    Ok(ArrayShape {
        element_type: element_type(proto.element_type)?,
        dimensions: proto.dimensions.as_slice().into(),
        dynamic: if is_dynamic { dynamic.as_slice().into() } else { Default::default() },
        layout: proto.layout.as_deref().map(layout).transpose()?,
    })
}

fn layout(proto: &LayoutProto) -> Result<Layout, FieldError> {
    let optional_type = |number| if number == 0 { Ok(None) } else { element_type(number).map(Some) };
    let split = |split: &SplitConfigProto| SplitConfig {
        dimension: split.dimension,
        split_indices: split.split_indices.as_slice().into(),
    };
    let rare = RareLayout {
        tail_padding_alignment_in_elements: proto.tail_padding_alignment_in_elements.max(1),
        index_primitive_type: optional_type(proto.index_primitive_type)?,
        pointer_primitive_type: optional_type(proto.pointer_primitive_type)?,
        split_configs: proto.split_configs.iter().map(split).collect(),
        physical_shape: proto.physical_shape.as_deref().map(shape).transpose()?,
        dynamic_shape_metadata_prefix_bytes: proto.dynamic_shape_metadata_prefix_bytes,
    };
    Ok(Layout {
        minor_to_major: proto.minor_to_major.as_slice().into(),
        tiles: proto.tiles.iter().map(|t| Tile { dimensions: t.dimensions.as_slice().into() }).collect(),
        memory_space: proto.memory_space,
        element_size_in_bits: proto.element_size_in_bits,
        rare: (rare != RareLayout::default()).then(|| Box::new(rare)),
    })
}

pub(in crate::proto) fn shape_proto(shape: &Shape) -> ShapeProto {
    match shape {
        Shape::Array(array) => array_proto(array),
        Shape::Buffer(array) => ShapeProto {
            element_type: BUFFER,
            tuple_shapes: vec![array_proto(array)],
            ..ShapeProto::default()
        },
        Shape::Tuple(elements) => ShapeProto {
            element_type: TUPLE,
            tuple_shapes: elements.iter().map(shape_proto).collect(),
            ..ShapeProto::default()
        },
        Shape::Token => ShapeProto { element_type: TOKEN, ..ShapeProto::default() },
        Shape::Opaque => ShapeProto { element_type: OPAQUE, ..ShapeProto::default() },
    }
}

fn array_proto(array: &ArrayShape) -> ShapeProto {
    ShapeProto {
        element_type: type_number(array.element_type),
        dimensions: array.dimensions.to_vec(),
        tuple_shapes: Vec::new(),
        layout: array.layout.as_ref().map(|layout| Box::new(layout_proto(layout))),
        is_dynamic_dimension: (0..array.rank()).map(|d| array.is_dynamic_dimension(d)).collect(),
    }
}

fn layout_proto(layout: &Layout) -> LayoutProto {
    let rare = layout.rare.as_deref().cloned().unwrap_or_default();
    let split = |split: &SplitConfig| SplitConfigProto {
        dimension: split.dimension,
        split_indices: split.split_indices.to_vec(),
    };
    LayoutProto {
        minor_to_major: layout.minor_to_major.to_vec(),
        tiles: layout.tiles.iter().map(|t| TileProto { dimensions: t.dimensions.to_vec() }).collect(),
        element_size_in_bits: layout.element_size_in_bits,
        memory_space: layout.memory_space,
        physical_shape: rare.physical_shape.as_ref().map(|shape| Box::new(shape_proto(shape))),
        index_primitive_type: rare.index_primitive_type.map_or(0, type_number),
        pointer_primitive_type: rare.pointer_primitive_type.map_or(0, type_number),
        dynamic_shape_metadata_prefix_bytes: rare.dynamic_shape_metadata_prefix_bytes,
        tail_padding_alignment_in_elements: rare.tail_padding_alignment_in_elements,
        split_configs: rare.split_configs.iter().map(split).collect(),
    }
}

pub(in crate::proto) fn program_shape(proto: &ProgramShapeProto) -> Result<ProgramShape, FieldError> {
    let result = proto.result.as_deref().ok_or(FieldError::Missing("program shape result"))?;
    let parameters = proto.parameters.iter().map(shape).collect::<Result<_, _>>()?;
    Ok(ProgramShape { parameters, result: shape(result)? })
}
