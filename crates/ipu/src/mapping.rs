//! Spreads a tensor over the tiles of an IPU.
//!
//! A tensor is divided into grains, runs of elements that vertices process at once, and some consecutive tiles get
//! nearly equal numbers of grains: as few tiles as keep the largest share minimal, and none with so few that its vertex
//! and exchange code cost more than the data. The rule is PopLibs' `mapTensorLinearly`.

use std::ops::Range;
use std::sync::Arc;

use crate::TileSet;

/// The bytes below which a share is not cut further.
const MINIMUM_BYTES: u64 = 128;

/// How finely a tensor may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// The elements of consecutive tiles, from tile 0; empty tiles at the end are omitted.
///
/// # Panics
/// When there are no tiles, or a grain has no elements.
pub fn linear_mapping(elements: u64, grain: Grain, tiles: u32) -> Vec<Range<u64>> {
    assert!(tiles > 0 && grain.elements > 0, "tensors are cut into grains of elements for tiles");
    let shares = Shares::new(elements, grain, tiles);
    (0..shares.parts).map(|part| shares.boundary(part)..shares.boundary(part + 1)).collect()
}

/// The number of elements of the fullest tile above an even spread.
///
/// # Panics
/// When there are no tiles.
pub fn imbalance(mapping: &[Range<u64>], grain: Grain, tiles: u32) -> u64 {
    let sizes = || mapping.iter().map(|part| part.end - part.start);
    let total: u64 = sizes().sum();
    let even = total.div_ceil(tiles.into()).max(grain.minimum).max(grain.elements);
    sizes().max().unwrap_or(0).saturating_sub(even)
}

/// Some consecutive elements of a tensor on one tile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The tile.
    pub tile: u32,
    /// Which elements, in the order in which the layout puts them.
    pub elements: Range<u64>,
}

/// Which tile has which elements of a tensor: each element is on exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// Even shares on consecutive tiles.
    Linear(LinearMapping),
    /// Whatever the user wrote, ascending by elements.
    Explicit(Arc<[Piece]>),
}

/// Even shares on consecutive tiles of a window, which is left at its end and entered again at its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearMapping {
    elements: u64,
    grain: Grain,
    window: Range<u32>,
    start: u32,
}

impl LinearMapping {
    /// Spreads a tensor over the tiles of a window, the first share on the tile `start` places after its first.
    ///
    /// # Panics
    /// When the window is empty, or a grain has no elements.
    pub fn new(elements: u64, grain: Grain, window: Range<u32>, start: u32) -> LinearMapping {
        assert!(
            !window.is_empty() && grain.elements > 0,
            "tensors are cut into grains of elements for tiles"
        );
        let start = start % (window.end - window.start);
        LinearMapping { elements, grain, window, start }
    }

    /// The same shares from another tile on.
    #[must_use]
    pub fn starting_at(&self, start: u32) -> LinearMapping {
        LinearMapping::new(self.elements, self.grain, self.window.clone(), start)
    }

    /// How finely the tensor is cut.
    pub fn grain(&self) -> Grain {
        self.grain
    }

    /// The tiles to choose from.
    pub fn window(&self) -> Range<u32> {
        self.window.clone()
    }

    /// The place in the window of the tile with the first share.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// How many tiles get a share.
    pub fn parts(&self) -> u32 {
        Shares::new(self.elements, self.grain, self.tiles()).parts as u32
    }

    fn tiles(&self) -> u32 {
        self.window.end - self.window.start
    }

    fn pieces(&self) -> impl Iterator<Item = Piece> {
        let shares = linear_mapping(self.elements, self.grain, self.tiles());
        let tile = |part: u32| self.window.start + (self.start + part) % self.tiles();
        shares.into_iter().zip(0..).map(move |(elements, part)| Piece { tile: tile(part), elements })
    }

    fn tile_set(&self) -> TileSet {
        TileSet::wrapped(self.window.start + self.start, self.parts(), self.window.clone())
    }
}

impl Mapping {
    /// The pieces, ascending by elements. Linear in the number of tiles.
    pub fn pieces(&self) -> Vec<Piece> {
        match self {
            Mapping::Linear(linear) => linear.pieces().collect(),
            Mapping::Explicit(pieces) => pieces.to_vec(),
        }
    }

    /// The tiles that have a piece.
    pub fn tile_set(&self) -> TileSet {
        match self {
            Mapping::Linear(linear) => linear.tile_set(),
            Mapping::Explicit(pieces) => TileSet::new(pieces.iter().map(|piece| piece.tile..piece.tile + 1)),
        }
    }

    /// The most elements that one tile has. Constant for a linear mapping.
    pub fn largest_share(&self) -> u64 {
        match self {
            Mapping::Linear(linear) => Shares::new(linear.elements, linear.grain, linear.tiles()).largest(),
            Mapping::Explicit(pieces) => {
                let mut by_tile: Vec<(u32, u64)> = pieces
                    .iter()
                    .map(|piece| (piece.tile, piece.elements.end - piece.elements.start))
                    .collect();
                by_tile.sort_unstable();
                let shares =
                    by_tile.chunk_by(|a, b| a.0 == b.0).map(|pieces| pieces.iter().map(|p| p.1).sum());
                shares.max().unwrap_or(0)
            }
        }
    }
}

/// The first tile of a small tensor: a hash of its shape, so that small tensors are not all on tile 0, and tensors of
/// one shape, which are often used together, are on the same tiles. Boost's `hash_combine` with the seed that PopLibs
/// uses.
///
/// # Panics
/// When there are no tiles.
pub fn start_tile(dimensions: &[i64], tiles: u32) -> u32 {
    const SEED: u64 = 0x9e37_79b9;
    let combine = |hash: u64, &extent: &i64| {
        let mixed = (extent as u64).wrapping_add(SEED).wrapping_add(hash << 6).wrapping_add(hash >> 2);
        hash ^ mixed
    };
    (dimensions.iter().fold(SEED, combine) % u64::from(tiles)) as u32
}

/// How a number of elements is cut.
struct Shares {
    elements: u64,
    grain: u64,
    grains: u64,
    parts: u64,
}

impl Shares {
    fn new(elements: u64, grain: Grain, tiles: u32) -> Shares {
        if elements == 0 {
            return Shares { elements, grain: grain.elements, grains: 0, parts: 0 };
        }
        let grains = elements.div_ceil(grain.elements);
        let minimum_grains = grain.minimum.div_ceil(grain.elements).max(1);
        let most_parts = (grains / minimum_grains).max(1);
        let share = grains.div_ceil(tiles.into()).max(grains.div_ceil(most_parts));
        Shares { elements, grain: grain.elements, grains, parts: grains.div_ceil(share) }
    }

    /// The beginning of a part.
    fn boundary(&self, part: u64) -> u64 {
        let grains = u128::from(part) * u128::from(self.grains) / u128::from(self.parts);
        // The last grain may be cut short by the end of the tensor.
        let elements = grains.saturating_mul(u128::from(self.grain)).min(u128::from(self.elements));
        elements as u64
    }

    fn largest(&self) -> u64 {
        match self.parts {
            0 => 0,
            parts => self.grains.div_ceil(parts).saturating_mul(self.grain).min(self.elements),
        }
    }
}
