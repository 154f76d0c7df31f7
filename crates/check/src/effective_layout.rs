//! The layout in which the elements of an array actually are.
//!
//! A value that nothing moves must be seen alike by everyone who sees it: a call that passes a column-major array for a
//! row-major parameter leaves every byte whole, and yet the callee reads a transposed array.

use memplan_ir::{ArrayShape, Dimensions, RareLayout, Tile};

/// The position of elements in bytes, besides the extents: arrays with equal extents and equal effective layouts have
/// every element at the same byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EffectiveLayout {
    bits: i64,
    order: Dimensions,
    tiles: Vec<Tile>,
    rare: Option<Box<RareLayout>>,
}

impl EffectiveLayout {
    pub(crate) fn of(array: &ArrayShape) -> EffectiveLayout {
        let tiles = tiles(array).to_vec();
        let rare = array.layout.as_ref().and_then(|layout| layout.rare.clone());
        EffectiveLayout { bits: bits(array), order: order(array), tiles, rare }
    }
}

/// Bits that an element takes in memory.
pub(crate) fn bits(array: &ArrayShape) -> i64 {
    match array.layout.as_ref().map_or(0, |l| l.element_size_in_bits) {
        0 => i64::from(array.element_type.byte_width()) * 8,
        packed => packed,
    }
}

/// The dimensions, fastest first. A dimension of extent one may be anywhere, unless a tile pads it.
pub(crate) fn order(array: &ArrayShape) -> Dimensions {
    let mut order = array.minor_to_major();
    if tiles(array).is_empty() {
        order.retain(|&mut d| array.dimensions.get(d as usize) != Some(&1));
    }
    order
}

/// The tiles, outermost first.
pub(crate) fn tiles(array: &ArrayShape) -> &[Tile] {
    array.layout.as_ref().map_or(&[], |layout| &layout.tiles)
}
