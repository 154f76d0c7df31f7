//! Spreading a tensor over the tiles of an IPU.
//!
//! A tensor is cut into grains, runs of elements that vertices handle at once, and each of some consecutive tiles gets
//! nearly the same number of them: as few tiles as keep the largest share minimal, none with so little that its vertex
//! and exchange code cost more than the data. The rule is PopLibs' `mapTensorLinearly`.

use std::ops::Range;

use memplan_memory::Bytes;

/// The bytes below which a share is not cut further.
const MINIMUM_BYTES: u64 = 128;

/// How finely a tensor may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grain {
    /// Elements that are never parted.
    pub elements: u64,
    /// The least number of elements that a tile gets.
    pub minimum: u64,
}

impl Grain {
    /// The usual grain: 8 bytes, the width of a load, and at least 128 bytes a tile.
    ///
    /// # Panics
    /// When an element has no bytes.
    pub fn of(element_bytes: u64) -> Grain {
        assert!(element_bytes > 0, "an element takes memory");
        Grain { elements: (8 / element_bytes).max(1), minimum: MINIMUM_BYTES.div_ceil(element_bytes) }
    }
}

/// The elements that consecutive tiles get, those of tile 0 first; tiles that get none are left out at the end.
///
/// # Panics
/// When there are no tiles, or a grain has no elements.
pub fn linear_mapping(elements: u64, grain: Grain, tiles: u32) -> Vec<Range<u64>> {
    assert!(tiles > 0 && grain.elements > 0, "tensors are cut into grains of elements for tiles");
    if elements == 0 {
        return Vec::new();
    }
    let grains = elements.div_ceil(grain.elements);
    let minimum_grains = grain.minimum.div_ceil(grain.elements).max(1);
    let most_parts = (grains / minimum_grains).max(1);
    let share = grains.div_ceil(tiles.into()).max(grains.div_ceil(most_parts));
    let parts = grains.div_ceil(share);
    let boundary = |part: u64| {
        let grains = u128::from(part) * u128::from(grains) / u128::from(parts);
        // The last grain may be cut short by the end of the tensor.
        u64::try_from(grains).map_or(elements, |grains| grains.saturating_mul(grain.elements).min(elements))
    };
    (0..parts).map(|part| boundary(part)..boundary(part + 1)).collect()
}

/// How many elements the fullest tile has above what an even spread would give it.
///
/// # Panics
/// When there are no tiles.
pub fn imbalance(mapping: &[Range<u64>], grain: Grain, tiles: u32) -> u64 {
    let sizes = || mapping.iter().map(|part| part.end - part.start);
    let total: u64 = sizes().sum();
    let even = total.div_ceil(tiles.into()).max(grain.minimum).max(grain.elements);
    sizes().max().unwrap_or(0).saturating_sub(even)
}

/// A tile that needs more memory than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory on tile {tile}: {needed:#} bytes needed, but a tile has {available:#}")]
pub struct TileOverflow {
    /// The fullest tile, the first of them.
    pub tile: usize,
    /// Bytes it needs.
    pub needed: Bytes,
    /// Bytes it has.
    pub available: Bytes,
}

/// Checks that the fullest tile fits.
///
/// # Errors
/// It does not.
pub fn check_tiles(needed: &[Bytes], available: Bytes) -> Result<(), TileOverflow> {
    let fullest = needed.iter().enumerate().max_by_key(|&(tile, &bytes)| (bytes, std::cmp::Reverse(tile)));
    match fullest {
        Some((tile, &needed)) if needed > available => Err(TileOverflow { tile, needed, available }),
        _ => Ok(()),
    }
}
