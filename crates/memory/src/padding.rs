//! Remedies against padding: similar arrays that lose fewer bytes.
//!
//! A layout with tiles stores whole tiles. Extents of tiled dimensions are rounded up to multiples of the tile's:
//!
//! ```text
//!   f32[1000,3]{1,0:T(8,128)}    3 columns take the room of 128: 512,000 bytes for 12,000
//!     order      f32[1000,3]{0,1:T(4,128)}    16,384 bytes
//!     flatten    f32[3000]{0:T(1024)}         12,288 bytes
//!     round up   f32[1000,128]{1,0:T(8,128)}  the same bytes hold that much
//! ```

use memplan_ir::{ArrayShape, Dimensions, Layout, Shape};
use serde::{Deserialize, Serialize};

use crate::{Bytes, Target};

/// Another shape or layout for the data of an array.
#[derive(Clone, Debug, PartialEq)]
pub struct LessPadding {
    /// The kind of change.
    pub kind: RemedyKind,
    /// The array that it would be.
    pub array: ArrayShape,
    /// Its padded size.
    pub size: Bytes,
    /// Padding in it.
    pub lost: Bytes,
}

/// The kind of a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RemedyKind {
    /// The order of the dimensions in memory.
    Order,
    /// The dimensions are merged into one.
    Flatten,
    /// Extents are lowered to multiples of the tile: a little less data.
    RoundDown,
    /// Extents are raised to the padded ones: more data in the same bytes.
    RoundUp,
}

/// Rounding down may drop one element in this many at most: beyond it, the program would be another one.
const MAX_DROPPED: u64 = 8;

/// Arrays that lose fewer bytes than an array with a layout, the smallest first; empty for dynamic extents. Takes
/// constant time.
pub fn remedies(target: &Target, array: &ArrayShape) -> Vec<LessPadding> {
    let (Some(layout), false) = (&array.layout, array.is_dynamic()) else { return Vec::new() };
    let remedy = |kind, array: ArrayShape| {
        let shape = Shape::Array(array.clone());
        let size = target.size_of(&shape);
        LessPadding { kind, array, size, lost: size.saturating_sub(target.unpadded_size_of(&shape)) }
    };
    let lost = remedy(RemedyKind::Order, array.clone()).lost;
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
    let mut remedies: Vec<LessPadding> = [
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

/// The extents, with those of the outermost tile's dimensions rounded to multiples of the tile; down only if at least
/// one tile is left.
fn rounded(dimensions: &[i64], layout: &Layout, up: bool) -> Dimensions {
    let mut rounded: Dimensions = dimensions.iter().copied().collect();
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
