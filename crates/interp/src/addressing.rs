//! From the index of an element to where it lies.
//!
//! In every layout but those with combined tile dimensions, the position of an element is a sum of one function per
//! dimension: with plain strides `index * stride`, with tiles a sum of digits of the index, each times a stride. Kernels
//! use only that, so strided, tiled and packed arrays are all the same to them.

use memplan_ir::{ArrayShape, Tile};
use smallvec::SmallVec;

/// A digit of an index: `index / divisor % modulus`, worth `stride`. A modulus of 0 keeps everything above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digit {
    pub(crate) divisor: i64,
    pub(crate) modulus: i64,
    pub(crate) stride: i64,
}

/// How an array lies in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addressing {
    /// For each dimension its digits. Strides are bytes, or elements of a packed array.
    pub(crate) dimensions: SmallVec<[SmallVec<[Digit; 1]>; 6]>,
    /// Bits an element takes, when several share a byte.
    pub(crate) packed_bits: Option<u32>,
    /// Whether elements lie in row-major order without gaps, a byte or more each.
    pub(crate) is_row_major: bool,
    /// Bytes of the whole array, padding included.
    pub(crate) size: usize,
}

impl Addressing {
    /// The addressing of a shape; `None` when a tile combines dimensions, when an extent has no bound, or when the size
    /// is beyond what can be addressed.
    pub(crate) fn new(shape: &ArrayShape) -> Option<Addressing> {
        let width = shape.element_type.byte_width() as i64;
        let layout = shape.layout.as_ref();
        let packed_bits = layout
            .map(|l| l.element_size_in_bits)
            .filter(|&bits| bits > 0 && bits < 8 && bits == i64::from(shape.element_type.bits()))
            .map(|bits| bits as u32);
        let unit = if packed_bits.is_some() { 1 } else { width };
        let tiles = layout.map_or(&[][..], |l| &l.tiles);
        let order: SmallVec<[i64; 6]> = shape.minor_to_major().iter().rev().copied().collect();
        if shape.dimensions.iter().any(|&d| d < 0) || order.len() != shape.rank() {
            return None;
        }
        // Physical dimensions, major to minor. Each is a digit of the dimension it came from.
        let mut physical: Vec<(usize, i64, i64, i64)> =
            order.iter().map(|&d| (d as usize, 1, 0, shape.dimensions[d as usize])).collect();
        for tile in tiles {
            physical = apply_tile(&physical, tile)?;
        }
        let mut dimensions: SmallVec<[SmallVec<[Digit; 1]>; 6]> =
            shape.dimensions.iter().map(|_| SmallVec::new()).collect();
        let mut stride = unit;
        for &(dimension, divisor, modulus, extent) in physical.iter().rev() {
            if dimension != PADDING {
                dimensions[dimension].push(Digit { divisor, modulus, stride });
            }
            stride = stride.checked_mul(extent)?;
        }
        let alignment = layout.map_or(1, |l| l.tail_padding_alignment_in_elements()).max(1);
        let elements = (stride / unit).checked_add(alignment - 1)? / alignment * alignment;
        let size = match packed_bits {
            Some(bits) => elements.checked_mul(i64::from(bits))?.checked_add(7)? / 8,
            None => elements.checked_mul(width)?,
        };
        let is_row_major = tiles.is_empty() && packed_bits.is_none() && order.iter().is_sorted();
        Some(Addressing { dimensions, packed_bits, is_row_major, size: usize::try_from(size).ok()? })
    }

    /// Where the element at an index lies.
    pub(crate) fn offset(&self, index: impl IntoIterator<Item = i64>) -> i64 {
        self.dimensions.iter().zip(index).map(|(digits, i)| along(digits, i)).sum()
    }

    /// What an index along one dimension contributes to the offset.
    pub(crate) fn along(&self, dimension: usize, index: i64) -> i64 {
        along(&self.dimensions[dimension], index)
    }
}

fn along(digits: &[Digit], index: i64) -> i64 {
    digits
        .iter()
        .map(|d| {
            let digit = index / d.divisor;
            d.stride * if d.modulus == 0 { digit } else { digit % d.modulus }
        })
        .sum()
}

/// Marks a physical dimension that belongs to no logical one, because a tile has more dimensions than the array.
const PADDING: usize = usize::MAX;

/// Cuts the minor-most physical dimensions into tiles: `n` becomes `ceil(n / t)`, then, after all of those, `t`.
fn apply_tile(physical: &[(usize, i64, i64, i64)], tile: &Tile) -> Option<Vec<(usize, i64, i64, i64)>> {
    let tile = &tile.dimensions;
    if tile.iter().any(|&t| t <= 0) {
        return None;
    }
    let missing = tile.len().saturating_sub(physical.len());
    let mut padded = vec![(PADDING, 1, 0, 1); missing];
    padded.extend_from_slice(physical);
    let (major, minor) = padded.split_at(padded.len() - tile.len());
    let mut tiled = major.to_vec();
    for (&(dimension, divisor, modulus, extent), &t) in minor.iter().zip(tile) {
        // A digit of a digit: the upper part counts whole tiles, still within the old modulus.
        let whole = if modulus == 0 { 0 } else { (modulus as u64).div_ceil(t as u64) as i64 };
        tiled.push((dimension, divisor.checked_mul(t)?, whole, (extent as u64).div_ceil(t as u64) as i64));
    }
    for (&(dimension, divisor, modulus, _), &t) in minor.iter().zip(tile) {
        let within = if modulus == 0 { t } else { t.min(modulus) };
        tiled.push((dimension, divisor, within, t));
    }
    Some(tiled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memplan_ir::{ElementType, Layout};

    #[track_caller]
    fn check(dimensions: &[i64], layout: Layout, index: &[i64], offset: i64, size: usize) {
        let mut shape = ArrayShape::new(ElementType::F32, dimensions.iter().copied());
        shape.layout = Some(layout);
        let addressing = Addressing::new(&shape).unwrap();
        assert_eq!(addressing.offset(index.iter().copied()), offset);
        assert_eq!(addressing.size, size);
    }

    #[test]
    fn strides_follow_the_layout() {
        check(&[3, 5], Layout::row_major(2), &[2, 1], 4 * 11, 60);
        check(&[3, 5], Layout::with_order([0, 1]), &[2, 1], 4 * 5, 60);
    }

    #[test]
    fn tiles_are_stored_one_after_another() {
        let mut layout = Layout::row_major(2);
        layout.tiles.push(Tile { dimensions: SmallVec::from_slice(&[2, 4]) });
        // 3 x 5 is padded to 4 x 8: two rows of two tiles of eight elements.
        check(&[3, 5], layout.clone(), &[2, 1], 4 * (16 + 1), 4 * 32);
        check(&[3, 5], layout.clone(), &[1, 4], 4 * (8 + 4), 4 * 32);
        layout.tiles.push(Tile { dimensions: SmallVec::from_slice(&[2, 1]) });
        // Within a tile, two rows of one column lie side by side.
        check(&[3, 5], layout, &[1, 2], 4 * (4 + 1), 4 * 32);
    }
}
