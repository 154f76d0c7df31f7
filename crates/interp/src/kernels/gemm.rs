//! Matrix products of any operands: the common core of dots and convolutions.
//!
//! The product is divided into blocks that fit the second-level cache. Both sides of a block are gathered into dense
//! buffers of the accumulation type, so that strides, tiles, narrow types and the windows of a convolution need no
//! special code, and multiplied by `matrixmultiply`. The buffers have a fixed size for all operands, like registers, so
//! a product needs no scratch. (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.)

#![expect(unsafe_code, reason = "`matrixmultiply` takes pointers")]

use std::marker::PhantomData;
use std::ops::Range;

use memplan_ir::{ArrayShape, ElementType};
use num_complex::{Complex32, Complex64};

use crate::element::{At, Class, LANES, Lanes, load, store};
use crate::math;
use crate::memory::{Memory, Place};
use memplan_memory::Addressing;

/// Rows, columns and inner extent of a block. Rows of a packed block are read through one register.
const M_BLOCK: usize = 128;
const N_BLOCK: usize = LANES;
const K_BLOCK: usize = LANES;

/// A number that products are accumulated in.
pub(crate) trait Number: Copy + Default + 'static {
    const CLASS: Class;
    fn lanes(lanes: &Lanes) -> &[Self];
    fn lanes_mut(lanes: &mut Lanes) -> &mut [Self];
    /// `c += a * b` for row-major `m` x `k`, `k` x `n` and `m` x `n` matrices.
    fn multiply(m: usize, k: usize, n: usize, a: &[Self], b: &[Self], c: &mut [Self]);
}

macro_rules! number {
    ($type:ty, $class:ident, |$m:ident, $k:ident, $n:ident, $a:ident, $b:ident, $c:ident| $multiply:expr) => {
        impl Number for $type {
            const CLASS: Class = Class::$class;
            fn lanes(lanes: &Lanes) -> &[$type] {
                match lanes {
                    Lanes::$class(v) => v,
                    _ => unreachable!("a product is accumulated in one class"),
                }
            }
            fn lanes_mut(lanes: &mut Lanes) -> &mut [$type] {
                match lanes {
                    Lanes::$class(v) => v,
                    _ => unreachable!("a product is accumulated in one class"),
                }
            }
            fn multiply($m: usize, $k: usize, $n: usize, $a: &[$type], $b: &[$type], $c: &mut [$type]) {
                assert!(
                    $a.len() >= $m * $k && $b.len() >= $k * $n && $c.len() >= $m * $n,
                    "blocks are whole"
                );
                $multiply
            }
        }
    };
}

number!(f32, F32, |m, k, n, a, b, c| {
    let (k1, n1) = (k as isize, n as isize);
    // SAFETY: the three slices cover the matrices, as asserted above.
    unsafe {
        matrixmultiply::sgemm(m, k, n, 1.0, a.as_ptr(), k1, 1, b.as_ptr(), n1, 1, 1.0, c.as_mut_ptr(), n1, 1);
    }
});
number!(f64, F64, |m, k, n, a, b, c| {
    let (k1, n1) = (k as isize, n as isize);
    // SAFETY: the three slices cover the matrices, as asserted above.
    unsafe {
        matrixmultiply::dgemm(m, k, n, 1.0, a.as_ptr(), k1, 1, b.as_ptr(), n1, 1, 1.0, c.as_mut_ptr(), n1, 1);
    }
});
number!(i64, Int, |m, k, n, a, b, c| plain(m, k, n, a, b, c, |c, a, b| c.wrapping_add(a.wrapping_mul(b))));
number!(Complex32, C64, |m, k, n, a, b, c| plain(m, k, n, a, b, c, |c, a, b| c + a * b));
number!(Complex64, C128, |m, k, n, a, b, c| plain(m, k, n, a, b, c, |c, a, b| c + a * b));

/// A product without blocking, for types that are rare.
fn plain<T: Copy>(m: usize, k: usize, n: usize, a: &[T], b: &[T], c: &mut [T], fma: impl Fn(T, T, T) -> T) {
    for i in 0..m {
        for l in 0..k {
            let x = a[i * k + l];
            for (c, &b) in c[i * n..(i + 1) * n].iter_mut().zip(&b[l * n..(l + 1) * n]) {
                *c = fma(*c, x, b);
            }
        }
    }
}

/// One side of a product: fills row-major blocks with its elements.
pub(crate) trait Side<T: Number> {
    /// The elements `rows` x `columns`, converted to the accumulation type, into `block`.
    fn pack(&mut self, memory: &Memory, rows: Range<usize>, columns: Range<usize>, block: &mut [T]);
}

/// Computes `a * b`, `m` x `k` times `k` x `n`, and passes each finished row of a block to `out` with its row number,
/// its first column and its elements.
pub(crate) fn product<T: Number>(
    (m, k, n): (usize, usize, usize),
    a: &mut impl Side<T>,
    b: &mut impl Side<T>,
    memory: &mut Memory,
    mut out: impl FnMut(&mut Memory, usize, usize, &[T]),
) {
    let mut a_block = vec![T::default(); M_BLOCK.min(m) * K_BLOCK.min(k)];
    let mut b_block = vec![T::default(); K_BLOCK.min(k) * N_BLOCK.min(n)];
    let mut c_block = vec![T::default(); M_BLOCK.min(m) * N_BLOCK.min(n)];
    for j in (0..n).step_by(N_BLOCK) {
        let columns = j..n.min(j + N_BLOCK);
        for i in (0..m).step_by(M_BLOCK) {
            let rows = i..m.min(i + M_BLOCK);
            let c = &mut c_block[..rows.len() * columns.len()];
            c.fill(T::default());
            for l in (0..k).step_by(K_BLOCK) {
                let inner = l..k.min(l + K_BLOCK);
                a.pack(memory, rows.clone(), inner.clone(), &mut a_block);
                // One block of the inner extent is one block for all rows.
                if k > K_BLOCK || i == 0 {
                    b.pack(memory, inner.clone(), columns.clone(), &mut b_block);
                }
                T::multiply(rows.len(), inner.len(), columns.len(), &a_block, &b_block, c);
            }
            for (row, elements) in rows.zip(c.chunks(columns.len())) {
                out(memory, row, columns.start, elements);
            }
        }
    }
}

/// Reads elements of an operand at offsets, as numbers to accumulate.
pub(crate) struct Reader<T> {
    place: Place,
    element_type: ElementType,
    packed_bits: Option<u32>,
    raw: Lanes,
    converted: Lanes,
    number: PhantomData<T>,
}

impl<T: Number> Reader<T> {
    pub(crate) fn new(place: Place, shape: &ArrayShape, addressing: &Addressing) -> Reader<T> {
        Reader {
            place,
            element_type: shape.element_type,
            packed_bits: addressing.packed_bits,
            raw: Lanes::new(Class::of(shape.element_type), LANES),
            converted: Lanes::new(T::CLASS, LANES),
            number: PhantomData,
        }
    }

    /// Fills `out` with the elements at as many offsets, at most [`LANES`].
    pub(crate) fn read(&mut self, memory: &Memory, offsets: &[i64], out: &mut [T]) {
        let n = offsets.len();
        let at = at(self.element_type, self.packed_bits, offsets);
        load(self.element_type, memory.bytes(self.place), at, n, &mut self.raw);
        if Class::of(self.element_type) == T::CLASS {
            out.copy_from_slice(&T::lanes(&self.raw)[..n]);
        } else {
            math::convert(self.element_type, representative(T::CLASS), &self.raw, &mut self.converted, n);
            out.copy_from_slice(&T::lanes(&self.converted)[..n]);
        }
    }
}

/// Writes sums to a result, rounded to its element type.
pub(crate) struct Writer<T> {
    place: Place,
    element_type: ElementType,
    packed_bits: Option<u32>,
    sums: Lanes,
    rounded: Lanes,
    number: PhantomData<T>,
}

impl<T: Number> Writer<T> {
    pub(crate) fn new(place: Place, shape: &ArrayShape, addressing: &Addressing) -> Writer<T> {
        Writer {
            place,
            element_type: shape.element_type,
            packed_bits: addressing.packed_bits,
            sums: Lanes::new(T::CLASS, LANES),
            rounded: Lanes::new(Class::of(shape.element_type), LANES),
            number: PhantomData,
        }
    }

    /// Writes sums at as many offsets, at most [`LANES`].
    pub(crate) fn write(&mut self, memory: &mut Memory, sums: &[T], offsets: &[i64]) {
        let n = sums.len();
        T::lanes_mut(&mut self.sums)[..n].copy_from_slice(sums);
        math::convert(representative(T::CLASS), self.element_type, &self.sums, &mut self.rounded, n);
        let at = at(self.element_type, self.packed_bits, offsets);
        store(self.element_type, &self.rounded, n, at, memory.bytes_mut(self.place));
    }
}

fn at(element_type: ElementType, packed_bits: Option<u32>, offsets: &[i64]) -> At<'_> {
    let width = element_type.byte_width() as i64;
    match packed_bits {
        Some(bits) => At::Packed(offsets, bits),
        None if offsets.windows(2).all(|w| w[1] == w[0] + width) && !offsets.is_empty() => {
            At::Consecutive(offsets[0] as usize)
        }
        None => At::Offsets(offsets),
    }
}

/// A range of the indices of a dimension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dim {
    pub(crate) dimension: usize,
    /// The first index.
    pub(crate) begin: i64,
    pub(crate) extent: i64,
    /// Adjacent indices that share an element: a block with one scale. [`ALL`] of them do if a scalar represents an
    /// array.
    pub(crate) block: i64,
}

pub(crate) type Dims = Vec<Dim>;

/// The size of a block that has all indices.
pub(crate) const ALL: i64 = i64::MAX;

impl Dim {
    /// All indices of a dimension of a shape.
    pub(crate) fn of(shape: &ArrayShape, dimension: i64) -> Dim {
        Dim::whole(dimension as usize, shape.dimensions[dimension as usize])
    }

    pub(crate) fn whole(dimension: usize, extent: i64) -> Dim {
        Dim { dimension, begin: 0, extent, block: 1 }
    }
}

/// The contribution to offsets of a range of positions in the row-major product of some dimensions.
pub(crate) fn offsets(dimensions: &[Dim], addressing: &Addressing, range: Range<usize>) -> Vec<i64> {
    let mut index = unravel(dimensions, range.start);
    let mut offsets = Vec::with_capacity(range.len());
    let along = |(d, &i): (&Dim, &i64)| match d.block {
        ALL => 0,
        block => addressing.along(d.dimension, (d.begin + i) / block),
    };
    for _ in range {
        offsets.push(dimensions.iter().zip(&index).map(along).sum());
        increment(dimensions, &mut index);
    }
    offsets
}

/// The index at a position in the row-major product of some dimensions, from the first one on.
pub(crate) fn unravel(dimensions: &[Dim], position: usize) -> Vec<i64> {
    let mut rest = position as i64;
    let mut index = vec![0i64; dimensions.len()];
    for (i, d) in index.iter_mut().zip(dimensions).rev() {
        (*i, rest) = (rest % d.extent, rest / d.extent);
    }
    index
}

/// The next index in row-major order.
pub(crate) fn increment(dimensions: &[Dim], index: &mut [i64]) {
    for (i, d) in index.iter_mut().zip(dimensions).rev() {
        *i += 1;
        if *i < d.extent {
            return;
        }
        *i = 0;
    }
}

/// The number of positions in the product of some dimensions.
pub(crate) fn extent(dimensions: &[Dim]) -> usize {
    dimensions.iter().map(|d| d.extent).product::<i64>() as usize
}

/// The element type that a class holds without rounding.
pub(crate) fn representative(class: Class) -> ElementType {
    match class {
        Class::Int => ElementType::S64,
        Class::F32 => ElementType::F32,
        Class::F64 => ElementType::F64,
        Class::C64 => ElementType::C64,
        Class::C128 => ElementType::C128,
    }
}

/// The class that a product of two types with a result of a third is accumulated in.
pub(crate) fn accumulator(a: ElementType, b: ElementType, result: ElementType) -> Class {
    let wider = |x: Class, y: Class| match (x, y) {
        (x, y) if x == y => x,
        (Class::C128, _) | (_, Class::C128) => Class::C128,
        (Class::C64, Class::F64) | (Class::F64, Class::C64) => Class::C128,
        (Class::C64, _) | (_, Class::C64) => Class::C64,
        (Class::F64, _) | (_, Class::F64) => Class::F64,
        _ => Class::F32,
    };
    wider(wider(Class::of(a), Class::of(b)), Class::of(result))
}

/// Runs an expression with `T` as the number type of a class.
macro_rules! with_number {
    ($class:expr, $T:ident => $body:expr) => {
        match $class {
            Class::Int => {
                type $T = i64;
                $body
            }
            Class::F32 => {
                type $T = f32;
                $body
            }
            Class::F64 => {
                type $T = f64;
                $body
            }
            Class::C64 => {
                type $T = num_complex::Complex32;
                $body
            }
            Class::C128 => {
                type $T = num_complex::Complex64;
                $body
            }
        }
    };
}
pub(crate) use with_number;
