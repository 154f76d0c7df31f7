//! Shapes and layouts.

use std::fmt;

use memplan_ir::{ArrayShape, Layout, Shape, Tile};

use super::{integers, separated};

/// Whether layouts are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layouts {
    Print,
    Omit,
}

pub(crate) fn shape<W: fmt::Write>(shape_: &Shape, layouts: Layouts, out: &mut W) -> fmt::Result {
    match shape_ {
        Shape::Array(array) => array_shape(array, layouts, out),
        Shape::Buffer(array) => {
            out.write_str("b(")?;
            array_shape(array, layouts, out)?;
            out.write_str(")")
        }
        Shape::Tuple(elements) => {
            out.write_str("(")?;
            for (i, element) in elements.iter().enumerate() {
                index_comment(out, i)?;
                shape(element, layouts, out)?;
            }
            out.write_str(")")
        }
        Shape::Token => out.write_str("token[]"),
        Shape::Opaque => out.write_str("opaque[]"),
    }
}

/// The text before item `i` of a long list: a comma, and every fifth time the index.
pub(super) fn index_comment<W: fmt::Write>(out: &mut W, i: usize) -> fmt::Result {
    match i {
        0 => Ok(()),
        _ if i.is_multiple_of(5) => write!(out, ", /*index={i}*/"),
        _ => out.write_str(", "),
    }
}

fn array_shape<W: fmt::Write>(array: &ArrayShape, layouts: Layouts, out: &mut W) -> fmt::Result {
    out.write_str(array.element_type.into())?;
    out.write_char('[')?;
    separated(out, ",", array.dimensions.iter().enumerate(), |out, (d, &extent)| {
        match (extent, array.is_dynamic_dimension(d)) {
            (ArrayShape::UNBOUNDED, _) => out.write_char('?'),
            (_, true) => write!(out, "<={extent}"),
            (_, false) => write!(out, "{extent}"),
        }
    })?;
    out.write_char(']')?;
    match &array.layout {
        Some(l) if layouts == Layouts::Print && !(array.rank() == 0 && l.is_default()) => layout(l, out),
        _ => Ok(()),
    }
}

pub(super) fn layout<W: fmt::Write>(layout: &Layout, out: &mut W) -> fmt::Result {
    out.write_char('{')?;
    integers(out, &layout.minor_to_major)?;
    let has_parts = !layout.tiles.is_empty()
        || layout.memory_space != 0
        || layout.element_size_in_bits != 0
        || layout.rare.is_some();
    if has_parts {
        layout_parts(layout, out)?;
    }
    out.write_char('}')
}

fn layout_parts<W: fmt::Write>(layout: &Layout, out: &mut W) -> fmt::Result {
    out.write_char(':')?;
    if !layout.tiles.is_empty() {
        out.write_char('T')?;
    }
    for tile in &layout.tiles {
        out.write_char('(')?;
        separated(out, ",", &tile.dimensions, |out, &extent| match extent {
            Tile::COMBINE => out.write_char('*'),
            _ => write!(out, "{extent}"),
        })?;
        out.write_char(')')?;
    }
    let rare = layout.rare.as_deref();
    if let Some(rare) = rare {
        if rare.tail_padding_alignment_in_elements != 1 {
            write!(out, "L({})", rare.tail_padding_alignment_in_elements)?;
        }
        if let Some(element_type) = rare.index_primitive_type {
            write!(out, "#({element_type})")?;
        }
        if let Some(element_type) = rare.pointer_primitive_type {
            write!(out, "*({element_type})")?;
        }
    }
    if layout.element_size_in_bits != 0 {
        write!(out, "E({})", layout.element_size_in_bits)?;
    }
    if layout.memory_space != 0 {
        write!(out, "S({})", layout.memory_space)?;
    }
    let Some(rare) = rare else { return Ok(()) };
    if !rare.split_configs.is_empty() {
        out.write_str("SC")?;
    }
    for split in &rare.split_configs {
        write!(out, "({}:", split.dimension)?;
        integers(out, &split.split_indices)?;
        out.write_char(')')?;
    }
    if let Some(physical) = &rare.physical_shape {
        out.write_str("P(")?;
        shape(physical, Layouts::Print, out)?;
        out.write_char(')')?;
    }
    if rare.dynamic_shape_metadata_prefix_bytes != 0 {
        write!(out, "M({})", rare.dynamic_shape_metadata_prefix_bytes)?;
    }
    Ok(())
}
