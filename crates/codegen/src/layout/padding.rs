//! What padding costs: the shapes that lose most, and what would make them lose less.
//!
//! A layout with tiles stores whole tiles. Extents of the dimensions that a tile cuts are rounded up to its own:
//!
//! ```text
//!   f32[1000,3]{1,0:T(8,128)}    3 columns take the room of 128: 512,000 bytes for 12,000
//!     order      f32[1000,3]{0,1:T(4,128)}    16,384 bytes
//!     flatten    f32[3000]{0:T(1024)}         12,288 bytes
//!     round up   f32[1000,128]{1,0:T(8,128)}  the same bytes hold that much
//! ```

use indexmap::IndexMap;
use memplan_ir::{ArrayShape, Layout, Shape};
use memplan_memory::Bytes;

use super::program::{Program, shape_text};
use super::{Buffer, Padding, Remedy, RemedyKind};

/// Most shapes to report.
const MAX_SHAPES: usize = 16;

/// Rounding down may drop one element in this many at most: beyond it, the program would be another one.
const MAX_DROPPED: u64 = 8;

/// The shapes that lose most bytes to padding in one buffer, worst first.
pub(super) fn worst(program: &Program<'_>, buffers: &[Buffer]) -> Vec<Padding> {
    let mut shapes: IndexMap<ArrayShape, Padding, rustc_hash::FxBuildHasher> = IndexMap::default();
    for buffer in buffers {
        let lost = buffer.address.size.saturating_sub(buffer.unpadded);
        let Some(array) = program.definition(buffer).as_array().filter(|_| lost > Bytes::ZERO) else {
            continue;
        };
        let array = in_main_memory(array);
        let entry = shapes.entry(array).or_insert_with_key(|array| Padding {
            shape: shape_text(&Shape::Array(array.clone())),
            buffers: Vec::new(),
            size: buffer.address.size,
            lost,
            remedies: Vec::new(),
        });
        entry.buffers.push(buffer.index);
    }
    shapes.sort_by(|_, a, _, b| (b.lost, b.buffers.len()).cmp(&(a.lost, a.buffers.len())));
    shapes.truncate(MAX_SHAPES);
    let with_remedies = |(array, padding): (ArrayShape, Padding)| Padding {
        remedies: remedies(program, &array, padding.lost),
        ..padding
    };
    shapes.into_iter().map(with_remedies).collect()
}

/// The same array in main memory: padding is the same everywhere.
fn in_main_memory(array: &ArrayShape) -> ArrayShape {
    let layout = array.layout.clone().map(|layout| Layout { memory_space: 0, ..layout });
    ArrayShape { layout, ..array.clone() }
}

/// What would lose less, the least size first.
fn remedies(program: &Program<'_>, array: &ArrayShape, lost: Bytes) -> Vec<Remedy> {
    let (Some(layout), false) = (&array.layout, array.is_dynamic()) else { return Vec::new() };
    let target = program.target;
    let remedy = |kind, array: ArrayShape| {
        let shape = Shape::Array(array);
        let size = target.size_of(&shape);
        let lost = size.saturating_sub(target.unpadded_size_of(&shape));
        Remedy { kind, shape: shape_text(&shape), size, lost }
    };
    // The layout that the target would choose for some extents.
    let chosen = |dimensions: &[i64]| {
        let layout = target.layout.as_ref()?.layout(array.element_type, dimensions).ok()?;
        Some(ArrayShape {
            dimensions: dimensions.iter().copied().collect(),
            layout: Some(layout),
            ..array.clone()
        })
    };
    let elements = array.element_count().and_then(|count| i64::try_from(count).ok());
    let flat = elements.filter(|_| array.rank() > 1).and_then(|count| chosen(&[count]));
    let round = |up: bool| ArrayShape { dimensions: rounded(&array.dimensions, layout, up), ..array.clone() };
    let keeps_most = |rounded: &ArrayShape| {
        let (before, after) =
            (array.element_count().unwrap_or(0), rounded.element_count().unwrap_or(u64::MAX));
        after > 0 && after < before && before - after <= before / MAX_DROPPED
    };
    let mut remedies: Vec<Remedy> = [
        chosen(&array.dimensions).map(|array| remedy(RemedyKind::Order, array)),
        flat.map(|array| remedy(RemedyKind::Flatten, array)),
        Some(round(false)).filter(keeps_most).map(|array| remedy(RemedyKind::RoundDown, array)),
        Some(round(true)).map(|array| remedy(RemedyKind::RoundUp, array)),
    ]
    .into_iter()
    .flatten()
    .filter(|remedy| remedy.lost < lost)
    .collect();
    remedies.sort_by_key(|remedy| (remedy.size, remedy.kind));
    remedies
}

/// The extents with those that the outermost tile cuts rounded to multiples of the tile; down only where one is left.
fn rounded(dimensions: &[i64], layout: &Layout, up: bool) -> memplan_ir::Dimensions {
    let mut rounded: memplan_ir::Dimensions = dimensions.iter().copied().collect();
    let tile = layout.tiles.first().map(|tile| tile.dimensions.as_slice()).unwrap_or_default();
    for (&d, &tile) in layout.minor_to_major.iter().zip(tile.iter().rev()) {
        let Some(extent) = usize::try_from(d).ok().and_then(|d| rounded.get_mut(d)) else { continue };
        if tile > 0 && *extent > 0 {
            let over = *extent % tile;
            *extent = match up {
                true if over > 0 => extent.saturating_add(tile - over),
                false if *extent > tile => *extent - over,
                _ => *extent,
            };
        }
    }
    rounded
}
