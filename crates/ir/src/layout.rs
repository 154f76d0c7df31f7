//! Layouts: the order of the elements of an array in memory, and its tiles.
//!
//! `{1,0:T(8,128)(2,1)E(4)S(1)}`: dimension 1 varies fastest, the two minor-most physical dimensions are cut into
//! tiles of 8 x 128, each of those into tiles of 2 x 1, an element takes 4 bits, and the array lives in memory
//! space 1.

use smallvec::SmallVec;

use crate::{ElementType, Shape};

/// Numbers of dimensions, most often at most six.
pub type Dimensions = SmallVec<[i64; 6]>;

/// One level of tiling. It covers the minor-most physical dimensions, most major first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Extents; [`Tile::COMBINE`] merges a dimension with the next more minor one.
    pub dimensions: SmallVec<[i64; 2]>,
}

impl Tile {
    /// Written `*`: this dimension is combined with the next one before tiling.
    pub const COMBINE: i64 = i64::MIN;
}

/// A dimension stored in several separate parts, `SC(dim:idx,idx)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitConfig {
    /// The dimension that is split.
    pub dimension: i64,
    /// Indices at which a new part begins, ascending.
    pub split_indices: SmallVec<[i64; 2]>,
}

/// The layout of one array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// A permutation of the dimensions; the first entry varies fastest.
    pub minor_to_major: Dimensions,
    /// Tiling, outermost first. Empty: plain strides.
    pub tiles: SmallVec<[Tile; 2]>,
    /// `S(n)`; 0 is the device's main memory.
    pub memory_space: i64,
    /// `E(n)`: bits an element takes when packed; 0 when not given.
    pub element_size_in_bits: i64,
    /// Data of very few layouts.
    pub rare: Option<Box<RareLayout>>,
}

/// Layout properties that only few programs use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RareLayout {
    /// `L(n)`: the number of elements is padded to a multiple of this; 1 when not given.
    pub tail_padding_alignment_in_elements: i64,
    /// `#(u32)`.
    pub index_primitive_type: Option<ElementType>,
    /// `*(u32)`.
    pub pointer_primitive_type: Option<ElementType>,
    /// `SC(..)`.
    pub split_configs: Vec<SplitConfig>,
    /// `P(shape)`.
    pub physical_shape: Option<Shape>,
    /// `M(n)`: bytes of metadata in front of a dynamic shape.
    pub dynamic_shape_metadata_prefix_bytes: i64,
}

impl Default for RareLayout {
    fn default() -> RareLayout {
        RareLayout {
            tail_padding_alignment_in_elements: 1,
            index_primitive_type: None,
            pointer_primitive_type: None,
            split_configs: Vec::new(),
            physical_shape: None,
            dynamic_shape_metadata_prefix_bytes: 0,
        }
    }
}

impl Layout {
    /// The row-major layout `{n-1,...,0}` of a rank.
    pub fn row_major(rank: usize) -> Layout {
        Layout { minor_to_major: (0..rank as i64).rev().collect(), ..Layout::default() }
    }

    /// A layout with the given order and nothing else.
    pub fn with_order(minor_to_major: impl IntoIterator<Item = i64>) -> Layout {
        Layout { minor_to_major: minor_to_major.into_iter().collect(), ..Layout::default() }
    }

    /// Whether this is `{n-1,...,0}` without tiles, packing or a memory space.
    pub fn is_default(&self) -> bool {
        self.is_plain() && self.memory_space == 0
    }

    /// Whether this is `{n-1,...,0}` without tiles or packing, in whichever memory.
    pub fn is_plain(&self) -> bool {
        self.is_row_major() && self.tiles.is_empty() && self.element_size_in_bits == 0 && self.rare.is_none()
    }

    /// Whether the last dimension varies fastest, and so on. Tiles are not looked at.
    pub fn is_row_major(&self) -> bool {
        let n = self.minor_to_major.len() as i64;
        self.minor_to_major.iter().enumerate().all(|(i, &d)| d == n - 1 - i as i64)
    }

    /// The number of elements is padded to a multiple of this.
    pub fn tail_padding_alignment_in_elements(&self) -> i64 {
        self.rare.as_ref().map_or(1, |r| r.tail_padding_alignment_in_elements)
    }
}
