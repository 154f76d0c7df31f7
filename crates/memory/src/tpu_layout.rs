//! A TPU's default layout of an array, and the positions of its elements.
//!
//! A vector register holds `sublanes` x `lanes` words of 32 bits. An array is divided into tiles that are a register,
//! or the upper part of one if the array has few rows; the minor-most dimension is along the lanes, the next one along
//! the sublanes. Elements smaller than a word are packed: `p = 32 / bits` rows share the words of one sublane, which is
//! the second tile, `(p,1)`:
//!
//! ```text
//! f32[3,5]{1,0:T(4,128)}                bf16[8,128]{1,0:T(8,128)(2,1)}
//!           lanes 0 1 2 3 4 5 .. 127              lanes      0           1      ..
//! sublane 0       x x x x x . ..   .    sublane 0      [0,0] [1,0] [0,1] [1,1] ..
//!         1       x x x x x . ..   .            1      [2,0] [3,0] [2,1] [3,1] ..
//!         2       x x x x x . ..   .            2      [4,0] [5,0] [4,1] [5,1] ..
//!         3       . . . . . . ..   .            3      [6,0] [7,0] [6,1] [7,1] ..
//! ```
//!
//! The rule was measured on libtpu, not published; `tests/tpu_layout.rs` compares it with 2,000 compiled programs.

use memplan_ir::{ElementType, Layout, Tile};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use smallvec::SmallVec;

/// Bits of the words that registers consist of.
const WORD_BITS: u64 = 32;

/// How a generation of TPUs tiles arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TileRule {
    /// Words in a row of a vector register; a power of two.
    #[serde(deserialize_with = "power_of_two")]
    pub lanes: u64,
    /// Rows of a vector register; a power of two.
    #[serde(deserialize_with = "power_of_two")]
    pub sublanes: u64,
    /// Sublanes that the smallest tile of elements narrower than a word fills; word-sized elements fill as many rows.
    #[serde(deserialize_with = "power_of_two")]
    pub minimum_sublanes: u64,
    /// Bits of the narrowest element that is stored packed; narrower ones are stored as wide as this.
    #[serde(deserialize_with = "power_of_two")]
    pub minimum_element_bits: u64,
    /// Whether elements of less than 16 bits fill whole registers where the rows divide into them.
    pub whole_registers: bool,
}

/// There is no rule for elements of a type: nothing measured, or nothing a TPU stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no tiled layout is known for elements of type {0}")]
pub struct NoTiledLayout(pub ElementType);

impl TileRule {
    /// The layout that an array has as an input or output of a program: the one of fewest padded bytes, and among those
    /// row-major or else the one with the fewest pairs of dimensions out of order.
    ///
    /// Takes time quadratic in the rank, which fixes at most the pair of dimensions that is tiled; the others, which
    /// cost nothing, stay in order. An unbounded dimension counts as empty.
    ///
    /// # Errors
    /// For elements of 6 or 128 bits. Those of 64 bits are stored as two planes of words.
    pub fn layout(&self, element_type: ElementType, dimensions: &[i64]) -> Result<Layout, NoTiledLayout> {
        let rank = dimensions.len();
        let mut order: SmallVec<[i64; 6]> = (0..rank as i64).rev().collect();
        if rank >= 2 {
            let packed = WORD_BITS / self.stored_bits(element_type)?;
            let (minor, second) = self.tiled_pair(packed, rank, |d| extent(dimensions, d));
            let others = (0..rank).rev().filter(|&d| d != minor && d != second);
            order = [minor, second].into_iter().chain(others).map(|d| d as i64).collect();
        }
        self.layout_with_order(element_type, dimensions, &order)
    }

    /// The layout of an array with a given order of dimensions, fastest first.
    ///
    /// # Errors
    /// As for [`TileRule::layout`].
    pub fn layout_with_order(
        &self,
        element_type: ElementType,
        dimensions: &[i64],
        minor_to_major: &[i64],
    ) -> Result<Layout, NoTiledLayout> {
        let bits = self.stored_bits(element_type)?;
        let packed = WORD_BITS / bits;
        let mut tiles: SmallVec<[Tile; 2]> = SmallVec::new();
        match minor_to_major {
            [] => tiles.push(tile(&[self.lanes * self.minimum_rows(packed)])),
            [only] => {
                tiles.push(tile(&[self.vector_tile(packed, extent(dimensions, *only as usize))]));
                if packed > 1 {
                    tiles.push(tile(&[self.lanes]));
                }
            }
            [_, second, ..] => {
                tiles.push(tile(&[self.rows(packed, extent(dimensions, *second as usize)), self.lanes]));
            }
        }
        if packed > 1 && !minor_to_major.is_empty() {
            tiles.push(tile(&[packed, 1]));
        }
        let element_size_in_bits = if bits < 8 { bits as i64 } else { 0 };
        let minor_to_major = minor_to_major.iter().copied().collect();
        Ok(Layout { minor_to_major, tiles, element_size_in_bits, ..Layout::default() })
    }

    /// The two tiled dimensions with the least padding, minor one first; ties as in [`TileRule::layout`], and finally
    /// those that are more minor in row-major order. Arrays that are empty or larger than any memory are row-major.
    fn tiled_pair(&self, packed: u64, rank: usize, extent: impl Fn(usize) -> u64) -> (usize, usize) {
        let mut best = (rank - 1, rank - 2);
        let elements = (0..rank).try_fold(1u64, |product, d| product.checked_mul(extent(d)));
        let Some(elements) = elements.filter(|&elements| elements > 0) else { return best };
        let padded_elements = |(minor, second): (usize, usize)| {
            let (lanes, rows) = (extent(minor), extent(second));
            let others = u128::from(elements / (lanes * rows));
            others
                * u128::from(lanes.next_multiple_of(self.lanes))
                * u128::from(rows.next_multiple_of(self.rows(packed, rows)))
        };
        // In front, a dimension has passed every more minor one; the second one did not pass the first.
        let inversions = |(minor, second): (usize, usize)| {
            (rank - 1 - minor) + (rank - 1 - second) - usize::from(second < minor)
        };
        let cost = |pair| (padded_elements(pair), inversions(pair));
        let candidates = two_of_each_extent(rank, &extent);
        for &minor in &candidates {
            for &second in candidates.iter().filter(|&&second| second != minor) {
                if cost((minor, second)) < cost(best) {
                    best = (minor, second);
                }
            }
        }
        best
    }

    /// Bits that one element takes, of one plane for elements of 64 bits.
    fn stored_bits(&self, element_type: ElementType) -> Result<u64, NoTiledLayout> {
        let bits = match element_type {
            ElementType::Pred => 8,
            // Two planes of 32 bits each, as libtpu stores them.
            ElementType::C64 | ElementType::F64 | ElementType::S64 | ElementType::U64 => WORD_BITS,
            other => u64::from(other.bits()).max(self.minimum_element_bits),
        };
        if bits > WORD_BITS || !bits.is_power_of_two() { Err(NoTiledLayout(element_type)) } else { Ok(bits) }
    }

    /// Rows of the smallest tile: at least the ones that share a word.
    fn minimum_rows(&self, packed: u64) -> u64 {
        packed * self.minimum_sublanes
    }

    /// Rows of the tiles of an array of rank 2 and more.
    fn rows(&self, packed: u64, extent: u64) -> u64 {
        let whole = self.sublanes * packed;
        if self.whole_registers && WORD_BITS / packed < 16 && extent.is_multiple_of(whole) {
            return whole;
        }
        power_of_two_up_to(self.sublanes, extent).max(self.minimum_rows(packed))
    }

    /// Elements of a tile of an array of rank 1.
    fn vector_tile(&self, packed: u64, extent: u64) -> u64 {
        power_of_two_up_to(self.lanes * self.sublanes, extent).max(self.lanes * self.minimum_rows(packed))
    }
}

/// The two most minor dimensions of each extent, the most minor one first: padding depends on extents only, and less
/// minor ones have more inversions. They are few, since extents beyond one multiply to the number of elements.
fn two_of_each_extent(rank: usize, extent: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut seen: Vec<(u64, u32)> = Vec::new();
    let is_among_two = |d: &usize| {
        let extent = extent(*d);
        match seen.iter_mut().find(|(known, _)| *known == extent) {
            None => seen.push((extent, 1)),
            Some((_, count)) if *count == 1 => *count = 2,
            Some(_) => return false,
        }
        true
    };
    (0..rank).rev().filter(is_among_two).collect()
}

/// The extent of a dimension; none for one without bound.
fn extent(dimensions: &[i64], d: usize) -> u64 {
    u64::try_from(dimensions[d]).unwrap_or(0)
}

fn tile(extents: &[u64]) -> Tile {
    Tile { dimensions: extents.iter().map(|&extent| extent as i64).collect::<SmallVec<[i64; 2]>>() }
}

/// The least power of two that is no less than `extent`, at most `limit`.
fn power_of_two_up_to(limit: u64, extent: u64) -> u64 {
    extent.min(limit).next_power_of_two()
}

fn power_of_two<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let extent = u64::deserialize(deserializer)?;
    if extent.is_power_of_two() && extent <= 1 << 16 {
        return Ok(extent);
    }
    Err(D::Error::custom(format!("a tile is a power of two, at most 65536, not {extent}")))
}
