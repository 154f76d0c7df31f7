//! Computes the address of an element from its index.
//!
//! In every layout except those with combined tile dimensions, the position of an element is a sum of one function per
//! dimension: with plain strides `index * stride`, with tiles a sum of digits of the index, each times a stride.
//! Kernels use only that, so they treat strided, tiled and packed arrays alike.

use memplan_ir::{ArrayShape, Layout, Tile};
use smallvec::SmallVec;

/// A digit of an index: `index / divisor % modulus`, worth `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digit {
    /// The divisor of the index.
    pub divisor: i64,
    /// How many values the digit takes; 0 keeps everything above.
    pub modulus: i64,
    /// The stride of the digit, in bytes, or in elements of a packed array.
    pub stride: i64,
}

/// The positions of an array's elements in memory.
///
/// Elements of 64 bits are contiguous here; a TPU stores them as two planes of words, which takes the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// For each dimension its digits. Strides are bytes, or elements of a packed array.
    pub dimensions: SmallVec<[SmallVec<[Digit; 1]>; 6]>,
    /// Bits an element takes, when several share a byte.
    pub packed_bits: Option<u32>,
    /// Whether elements are in row-major order without gaps, a byte or more each.
    pub is_row_major: bool,
    /// Bytes of the whole array, padding included.
    pub size: usize,
}

/// Whether each element of two equally large arrays, counted in row-major order, is at the same position in both: then
/// a reshape of one into the other moves nothing.
///
/// `false` also for layouts that have no [`Addressing`], and for a few that are equal only because an extent that no
/// tile divides meets another such. Close to linear in the ranks.
pub fn is_view(from: &ArrayShape, to: &ArrayShape) -> bool {
    let rare = |shape: &ArrayShape| shape.layout.as_ref().and_then(|layout| layout.rare.clone());
    let same_elements = from.element_type.byte_width() == to.element_type.byte_width()
        && from.element_count() == to.element_count()
        && from.memory_space() == to.memory_space()
        && rare(from) == rare(to);
    if !same_elements {
        return false;
    }
    // Both are in row-major order without gaps, as nearly all are.
    let is_plain = |shape: &ArrayShape| shape.layout.as_ref().is_none_or(Layout::is_plain);
    if is_plain(from)
        && is_plain(to)
        && from.dense_bytes().is_some_and(|bytes| 0 < bytes && bytes <= i64::MAX as u64)
    {
        return true;
    }
    let (Some(a), Some(b)) = (Addressing::new(from), Addressing::new(to)) else { return false };
    a.size == b.size && a.packed_bits == b.packed_bits && numbered_digits(from, &a) == numbered_digits(to, &b)
}

impl Addressing {
    /// The addressing of a shape; `None` when a tile combines dimensions, when an extent has no bound, or when the size
    /// is beyond what can be addressed.
    pub fn new(shape: &ArrayShape) -> Option<Addressing> {
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

    /// The position of the element at an index.
    pub fn offset(&self, index: impl IntoIterator<Item = i64>) -> i64 {
        self.dimensions.iter().zip(index).map(|(digits, i)| along(digits, i)).sum()
    }

    /// The contribution of an index along one dimension to the offset.
    pub fn along(&self, dimension: usize, index: i64) -> i64 {
        along(&self.dimensions[dimension], index)
    }
}

/// A digit of an element's row-major number, `number / unit % extent / divisor % modulus`, times `stride`. If the
/// divisor is one and the modulus the extent, it is a plain digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumberDigit {
    unit: i64,
    extent: i64,
    divisor: i64,
    modulus: i64,
    stride: i64,
}

/// The digits of row-major numbers that make up the place, from the greatest stride to the least. Digits that are
/// always zero are left out, and neighbors that are digits of one greater digit are joined, so that equal functions
/// look equal.
fn numbered_digits(shape: &ArrayShape, addressing: &Addressing) -> Vec<NumberDigit> {
    let mut digits: Vec<NumberDigit> = Vec::new();
    let mut unit = 1i64;
    for (&extent, of_dimension) in shape.dimensions.iter().zip(&addressing.dimensions).rev() {
        for &Digit { divisor, modulus, stride } in of_dimension {
            let values = (extent as u64).div_ceil(divisor as u64) as i64;
            let modulus = if modulus == 0 { values } else { values.min(modulus) };
            if modulus <= 1 {
                continue;
            }
            let is_plain = extent % divisor == 0 && values % modulus == 0;
            digits.push(match is_plain {
                true => NumberDigit { unit: unit * divisor, extent: modulus, divisor: 1, modulus, stride },
                false => NumberDigit { unit, extent, divisor, modulus, stride },
            });
        }
        unit = unit.saturating_mul(extent);
    }
    digits.sort_by_key(|digit| std::cmp::Reverse(digit.stride));
    digits.dedup_by(|minor, major| {
        let is_plain = |digit: &NumberDigit| digit.divisor == 1 && digit.modulus == digit.extent;
        let joins = is_plain(minor)
            && is_plain(major)
            && minor.unit.checked_mul(minor.extent) == Some(major.unit)
            && minor.stride.checked_mul(minor.extent) == Some(major.stride);
        if joins {
            let extent = major.extent * minor.extent;
            *major = NumberDigit { extent, modulus: extent, ..*minor };
        }
        joins
    });
    digits
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
