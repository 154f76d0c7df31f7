//! Index maps: for each operand, the elements that an element of the result is computed from.
//!
//! ```text
//!   d = f32[8,64] dot(x, w)          d[i,j] of x[i,k] and w[k,j]: k is a loop of its own
//!   r = f32[32,16] reshape(a)        r[i,j] of a[i, j / 4, j % 4], where a is f32[32,4,4]
//!   s = f32[3,16] slice(a)           s[i,j] of a[1 + 2 i, j], where the slice is [1:7:2], [0:16]
//! ```
//!
//! An [`IndexMap`] is one line of that: a [`Source`] for each dimension of the operand, over *loops*: the dimensions of
//! the result, followed by dimensions that are summed or read as a whole. It is XLA's `IndexingMap` and MLIR's
//! `indexing_maps`, with names for the few kinds of expressions that occur.
//!
//! Maps can be inverted ([`IndexMap::inverse`]), composed ([`IndexMap::then`]) and applied to boxes
//! ([`IndexMap::box_read`]). An inexact answer is an upper bound, and the map says so.
//!
//! The table is [`operands_read`]; the evaluator's tests run operations, change an element, and compare the results
//! that change.

mod algebra;
mod table;
use std::ops::Range;

use smallvec::SmallVec;

use crate::{Dimensions, WindowDimension};

pub use table::operands_read;

/// Which elements of an operand each element of a result is computed from.
///
/// The map contains a pair of a result element and an operand element if some values of the loops behind
/// [`IndexMap::rank`] make every source equal to the operand's index. An index beyond the operand's extents reads
/// nothing: padding, for instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexMap {
    /// Number of dimensions of the result, which are the first loops.
    pub rank: usize,
    /// The extent of each loop.
    pub loops: Dimensions,
    /// The operand's extents.
    pub extents: Dimensions,
    /// The source of the index in each dimension of the operand.
    pub sources: Sources,
    /// Whether each pair of the map is one that the operation reads. If not, it reads some of them and no others.
    pub is_exact: bool,
}

/// One for each dimension of an array.
pub type Sources = SmallVec<[Source; 4]>;

/// Ranges of indices, one for each dimension.
pub type IndexBox = SmallVec<[Range<i64>; 4]>;

/// The index in one dimension of an operand. Loops are named by their numbers in [`IndexMap::loops`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The loop's index.
    Dim(usize),
    /// `(start + stride * index) / dilation` where that is whole: slices, reverses, padding, parts of a concatenation.
    Strided(Strided),
    /// The element `within` of a window that is at place `dim`.
    Window {
        /// The loop over places.
        dim: usize,
        /// The loop over the window.
        within: usize,
        /// How the window moves.
        window: WindowDimension,
    },
    /// A digit of the indices of several loops, written as one number in row-major order: that number divided by `below`,
    /// modulo `count`. Of no loops, zero.
    Block {
        /// The loops, the slowest first.
        dims: Range<usize>,
        /// The number of loop elements per step of this index.
        below: i64,
        /// How many different indices there are.
        count: i64,
    },
    /// The loop's index, beginning at a place that data decide.
    Shifted(usize),
    /// Any, or several that the map does not name.
    Any,
}

/// `(start + stride * index) / dilation`, where that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strided {
    /// The loop.
    pub dim: usize,
    /// The first index, times `dilation`; may be negative.
    pub start: i64,
    /// Elements from one index to the next, times `dilation`; negative runs backwards.
    pub stride: i64,
    /// The distance between elements; 1 is dense.
    pub dilation: i64,
}

impl Source {
    /// Whether it depends on a loop. [`Source::Any`] depends on none that it names.
    pub fn mentions(&self, loop_number: usize) -> bool {
        match self {
            Source::Dim(dim) | Source::Shifted(dim) => *dim == loop_number,
            Source::Strided(strided) => strided.dim == loop_number,
            Source::Window { dim, within, .. } => *dim == loop_number || *within == loop_number,
            Source::Block { dims, .. } => dims.contains(&loop_number),
            Source::Any => false,
        }
    }
}

impl IndexMap {
    /// Every element is computed from the one at its own place.
    pub fn identity(extents: Dimensions) -> IndexMap {
        let sources = (0..extents.len()).map(Source::Dim).collect();
        IndexMap { rank: extents.len(), loops: extents.clone(), extents, sources, is_exact: true }
    }

    /// Whether every element of the result is computed from the one at its own place, in an array of the same extents.
    pub fn is_identity(&self) -> bool {
        self.loops[..self.rank] == self.extents[..]
            && self.sources.iter().enumerate().all(|(d, source)| *source == Source::Dim(d))
    }

    /// The same, but that dimensions of one element may come and go.
    pub fn is_identity_but_for_ones(&self) -> bool {
        let long = |extents: &[i64]| {
            (0..extents.len()).filter(|&d| extents[d] != 1).collect::<SmallVec<[usize; 6]>>()
        };
        let (of_result, of_operand) = (long(&self.loops[..self.rank]), long(&self.extents));
        of_result.len() == of_operand.len()
            && (of_result.iter().zip(&of_operand))
                .all(|(&d, &e)| self.loops[d] == self.extents[e] && self.sources[e] == Source::Dim(d))
    }

    /// The dimension of the operand whose index is that of a loop, where the two are equally long.
    pub fn dimension_along(&self, loop_number: usize) -> Option<usize> {
        let along = |e: &usize| {
            self.sources[*e] == Source::Dim(loop_number) && self.extents[*e] == self.loops[loop_number]
        };
        (0..self.sources.len()).find(along)
    }

    /// Whether any dimension of the operand depends on a loop.
    pub fn mentions(&self, loop_number: usize) -> bool {
        self.sources.iter().any(|source| source.mentions(loop_number))
    }

    /// Whether an element of the result may be computed from an element of the operand.
    ///
    /// # Panics
    /// When an index has another number of dimensions than its array.
    pub fn reads(&self, of_result: &[i64], of_operand: &[i64]) -> bool {
        assert_eq!(
            (of_result.len(), of_operand.len()),
            (self.rank, self.extents.len()),
            "dimensions of indices"
        );
        self.sources
            .iter()
            .zip(of_operand)
            .all(|(source, &index)| self.source_reads(source, of_result, index))
    }

    fn source_reads(&self, source: &Source, of_result: &[i64], index: i64) -> bool {
        // `scale * loop == rest`, with the result's index or with any.
        let solves = |dim: usize, scale: i64, rest: i64| match of_result.get(dim) {
            Some(&at) => scale * at == rest,
            None if scale == 0 => rest == 0,
            None => rest % scale == 0 && (0..self.loops[dim]).contains(&(rest / scale)),
        };
        match *source {
            Source::Dim(dim) => solves(dim, 1, index),
            Source::Strided(Strided { dim, start, stride, dilation }) => {
                solves(dim, stride, index * dilation - start)
            }
            Source::Window { dim, within, window } => {
                let base = index * window.base_dilation + window.padding_low;
                match of_result.get(dim) {
                    Some(&at) => solves(within, window.window_dilation, base - at * window.stride),
                    None => true,
                }
            }
            Source::Block { ref dims, below, count } => match of_result.get(dims.clone()) {
                Some(at) => {
                    let number = at.iter().zip(&self.loops[dims.clone()]).fold(0, |sum, (i, n)| sum * n + i);
                    number / below % count == index
                }
                None => true,
            },
            Source::Shifted(_) | Source::Any => true,
        }
    }
}
