//! Whether two arrays have equal layouts, so that one can reuse the bytes of the other.

use memplan_ir::{ArrayShape, RareLayout, Shape, Tile};

/// Same extents, element width, order and tiling: element `i` is at the same byte of both.
pub(super) fn same_storage(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.dimensions == b.dimensions && a.minor_to_major() == b.minor_to_major() && same_bytes(a, b)
}

/// As many bytes in the same memory, cut into elements alike: same number of elements of the same width, tiles, and
/// metadata.
pub(super) fn same_bytes(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.is_dynamic() == b.is_dynamic()
        && a.element_count() == b.element_count()
        && storage_bits(a) == storage_bits(b)
        && a.memory_space() == b.memory_space()
        && rare(a) == rare(b)
        && tiles(a) == tiles(b)
        && (tiles(a).is_empty() || a.dimensions == b.dimensions)
}

/// Whether two shapes agree on the order of their elements in memory, apart from widths: index `i` of one is at the
/// position of index `i` of the other. Narrower elements in between may have other tiles.
pub(super) fn same_order(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        // A module has each shape once.
        _ if std::ptr::eq(a, b) => true,
        (Shape::Tuple(a), Shape::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same_order(a, b))
        }
        _ => match (a.as_array(), b.as_array()) {
            (Some(a), Some(b)) => {
                a.dimensions == b.dimensions
                    && a.minor_to_major() == b.minor_to_major()
                    && (a.element_type.bits() != b.element_type.bits() || tiles(a) == tiles(b))
            }
            _ => a == b,
        },
    }
}

/// Bits that an element takes in memory.
pub(super) fn storage_bits(shape: &ArrayShape) -> i64 {
    match shape.layout.as_ref().map_or(0, |layout| layout.element_size_in_bits) {
        0 => i64::from(shape.element_type.byte_width()) * 8,
        packed => packed,
    }
}

pub(super) fn tiles(shape: &ArrayShape) -> &[Tile] {
    shape.layout.as_ref().map_or(&[], |layout| layout.tiles.as_slice())
}

fn rare(shape: &ArrayShape) -> Option<&RareLayout> {
    shape.layout.as_ref()?.rare.as_deref()
}
