//! Inverts and composes maps, and applies them to boxes.

use std::ops::Range;

use super::{IndexBox, IndexMap, Source, Sources, Strided};
use crate::{Dimensions, WindowDimension};

impl IndexMap {
    /// The same pairs the other way round: which elements of the result are computed from each element of the operand.
    /// Linear in the number of loops.
    ///
    /// ```
    /// use memplan_ir::indexing::{IndexMap, Source};
    ///
    /// // A row of 8 numbers for each of 4 rows: every row is made of the one there was.
    /// let broadcast = IndexMap {
    ///     rank: 2,
    ///     loops: [4, 8].into_iter().collect(),
    ///     extents: [8].into_iter().collect(),
    ///     sources: [Source::Dim(1)].into_iter().collect(),
    ///     is_exact: true,
    /// };
    /// let back = broadcast.inverse();
    /// // Loop 0 is the operand's dimension, loop 1 the rows.
    /// assert_eq!(back.sources[..], [Source::Dim(1), Source::Dim(0)]);
    /// assert_eq!(back.loops[..], [8, 4]);
    /// ```
    #[must_use]
    pub fn inverse(&self) -> IndexMap {
        let mut loops = self.extents.clone();
        let mut is_exact = self.is_exact;
        let mut sources = Sources::new();
        for d in 0..self.rank {
            let mut mentioned = (0..self.sources.len()).filter(|&e| self.sources[e].mentions(d));
            let source = match (mentioned.next(), mentioned.next()) {
                (None, _) => {
                    loops.push(self.loops[d]);
                    Source::Dim(loops.len() - 1)
                }
                (Some(e), other) => match self.turned_around(d, e) {
                    Some(source) if other.is_none() || matches!(source, Source::Block { .. }) => source,
                    _ => {
                        is_exact = false;
                        Source::Any
                    }
                },
            };
            sources.push(source);
        }
        // An index in several dimensions at once, as on a diagonal, and one that a fixed place asks for, are not seen here.
        is_exact &= self.sources.iter().all(|source| match source {
            Source::Dim(_) => true,
            Source::Strided(strided) => strided.dim < self.rank,
            Source::Block { dims, .. } => dims.end <= self.rank,
            Source::Any => true,
            Source::Window { .. } | Source::Shifted(_) => false,
        });
        IndexMap { rank: self.extents.len(), loops, extents: self.result_extents(), sources, is_exact }
    }

    /// The index of loop `d` by that of dimension `e` of the operand.
    fn turned_around(&self, d: usize, e: usize) -> Option<Source> {
        match &self.sources[e] {
            Source::Dim(_) => Some(Source::Dim(e)),
            Source::Strided(Strided { start, stride, dilation, .. }) => {
                let sign = stride.signum();
                (sign != 0).then(|| {
                    Source::Strided(Strided {
                        dim: e,
                        start: -start * sign,
                        stride: dilation * sign,
                        dilation: stride.abs(),
                    })
                })
            }
            // The digits of one group are the digits of the other.
            Source::Block { dims, .. } => {
                let is_of_group =
                    |e: &usize| matches!(&self.sources[*e], Source::Block { dims: of, .. } if of == dims);
                let group: Vec<usize> = (0..self.sources.len()).filter(is_of_group).collect();
                let (first, last) = (*group.first()?, *group.last()?);
                let others = (first..=last).filter(|e| !group.contains(e));
                let is_whole = product(&self.extents[first..=last]) == product(&self.loops[dims.clone()]);
                let below = product(&self.loops[d + 1..dims.end])?;
                (others.into_iter().all(|e| self.extents[e] == 1) && is_whole).then_some(Source::Block {
                    dims: first..last + 1,
                    below,
                    count: self.loops[d],
                })
            }
            Source::Window { .. } | Source::Shifted(_) | Source::Any => None,
        }
    }

    /// The result's extents.
    pub fn result_extents(&self) -> Dimensions {
        self.loops[..self.rank].iter().copied().collect()
    }

    /// Composes this map with the map `next` of its operand: the elements that the result reads of the operand's
    /// operand. Linear in the number of loops and dimensions.
    ///
    /// # Panics
    /// When `next` is not a map of an array with this operand's extents.
    #[must_use]
    pub fn then(&self, next: &IndexMap) -> IndexMap {
        assert_eq!(self.extents[..], next.loops[..next.rank], "the array between the two maps");
        // Loops of the next map follow the loops of this one.
        let (own, first) = (self.loops.len(), next.rank);
        let moved = |l: usize| l - first + own;
        let mut loops = self.loops.clone();
        loops.extend_from_slice(&next.loops[first..]);
        // Where this map reads nothing, nothing behind it is read either; plain composition does not see that.
        let all: IndexBox = self.loops[..self.rank].iter().map(|&extent| 0..extent).collect();
        let mut is_exact = self.is_exact && next.is_exact && self.stays_within(&all);
        let source = |source: &Source| match self.composed(next, source, &moved) {
            Some(source) => source,
            None => {
                is_exact = false;
                Source::Any
            }
        };
        let sources = next.sources.iter().map(source).collect();
        IndexMap { rank: self.rank, loops, extents: next.extents.clone(), sources, is_exact }
    }

    /// A source of the next map over the loops of this one.
    fn composed(&self, next: &IndexMap, source: &Source, moved: &impl Fn(usize) -> usize) -> Option<Source> {
        let is_own = |l: usize| l >= next.rank;
        match *source {
            Source::Dim(l) if is_own(l) => Some(Source::Dim(moved(l))),
            Source::Dim(l) => Some(self.sources[l].clone()),
            Source::Strided(strided) if is_own(strided.dim) => {
                Some(Source::Strided(Strided { dim: moved(strided.dim), ..strided }))
            }
            Source::Strided(outer) => match self.sources[outer.dim] {
                Source::Dim(dim) => Some(Source::Strided(Strided { dim, ..outer })),
                Source::Strided(inner) => outer.after(inner),
                _ => None,
            },
            Source::Window { dim, within, window } => match self.sources.get(dim) {
                Some(&Source::Dim(dim)) if is_own(within) => {
                    Some(Source::Window { dim, within: moved(within), window })
                }
                _ => None,
            },
            Source::Block { ref dims, below, count } => self.block_of_blocks(dims, below, count),
            Source::Shifted(l) => match self.sources.get(l) {
                Some(&Source::Dim(dim)) => Some(Source::Shifted(dim)),
                _ => None,
            },
            Source::Any => Some(Source::Any),
        }
    }

    /// A digit of several dimensions, each of which is a loop, next to each other, or a digit of the same loops.
    fn block_of_blocks(&self, dims: &Range<usize>, below: i64, count: i64) -> Option<Source> {
        let mut long = dims.clone().filter(|&e| self.extents[e] != 1);
        let Some(first) = long.next() else { return Some(Source::Block { dims: 0..0, below: 1, count: 1 }) };
        let last = dims.clone().rfind(|&e| self.extents[e] != 1)?;
        match &self.sources[first] {
            &Source::Dim(dim) => {
                let mut expected = dim;
                let follows = |e: usize| {
                    let is_next =
                        self.sources[e] == Source::Dim(expected) && self.extents[e] == self.loops[expected];
                    expected += 1;
                    is_next
                };
                (first..last + 1).all(follows).then(|| Source::Block {
                    dims: dim..dim + last + 1 - first,
                    below,
                    count,
                })
            }
            Source::Block { dims: of, .. } => {
                let Source::Block { below: last_below, .. } = self.sources[last] else { return None };
                // From the last to the first, each digit begins where the one behind it ends.
                let mut expected = last_below;
                let follows = |e: usize| {
                    let is_next = match &self.sources[e] {
                        _ if self.extents[e] == 1 => return true,
                        Source::Block { dims, below, count } => {
                            dims == of && *below == expected && *count == self.extents[e]
                        }
                        _ => false,
                    };
                    expected = expected.saturating_mul(self.extents[e]);
                    is_next
                };
                let is_group = (first..last + 1).rev().all(follows);
                let below = below.checked_mul(last_below)?;
                is_group.then_some(Source::Block { dims: of.clone(), below, count })
            }
            _ => None,
        }
    }

    /// The smallest box that is known to have all that a box of the result is computed from. Linear in the number of
    /// dimensions.
    ///
    /// ```
    /// # use memplan_ir::{ElementType::F32, Insert, ModuleBuilder, Shape, SliceDimension, indexing::operands_read};
    /// # fn main() -> Result<(), memplan_ir::BuildError> {
    /// let mut module = ModuleBuilder::new("m");
    /// let mut main = module.computation("main");
    /// let x = main.parameter("x", Shape::array(F32, [6, 4, 10]));
    /// let y = main.reshape(x, [24, 10])?;
    /// let main = main.finish(y)?;
    /// let module = module.finish(main)?;
    /// let map = operands_read(&module, y)[0].clone().expect("a reshape reads elements");
    /// // Rows 5 to 10 of 24 are in rows 1 and 2 of 6.
    /// assert_eq!(map.box_read(&[5..11, 0..10])[..], [1..3, 0..4, 0..10]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn box_read(&self, of_result: &[Range<i64>]) -> IndexBox {
        let within =
            |range: Range<i64>, extent: i64| range.start.clamp(0, extent)..range.end.clamp(0, extent);
        let unclipped = self.sources.iter().zip(&self.extents);
        unclipped.map(|(source, &extent)| within(self.range_of(source, of_result, extent), extent)).collect()
    }

    /// Whether nothing that a box of the result names is beyond the operand's extents.
    fn stays_within(&self, of_result: &[Range<i64>]) -> bool {
        (self.sources.iter().zip(&self.extents)).all(|(source, &extent)| {
            let is_dense = !matches!(source, Source::Strided(strided) if strided.dilation != 1);
            let is_plain = !matches!(source, Source::Window { window, .. } if window.base_dilation != 1);
            let range = self.range_of(source, of_result, extent);
            is_dense && is_plain && (range.is_empty() || range.start >= 0 && range.end <= extent)
        })
    }

    /// The indices that a source gives for a box of the result, including those beyond the operand.
    fn range_of(&self, source: &Source, of_result: &[Range<i64>], extent: i64) -> Range<i64> {
        let range = |l: usize| of_result.get(l).cloned().unwrap_or(0..self.loops[l]);
        match *source {
            Source::Dim(l) => range(l),
            Source::Strided(Strided { dim, start, stride, dilation }) => {
                let Some((first, last)) = ends(&range(dim)) else { return 0..0 };
                let [a, b] = [first, last].map(|at| start.saturating_add(stride.saturating_mul(at)));
                div_ceil(a.min(b), dilation)..a.max(b).div_euclid(dilation) + 1
            }
            Source::Window { dim, within, window } => {
                let (Some((first, last)), Some((_, size))) = (ends(&range(dim)), ends(&range(within))) else {
                    return 0..0;
                };
                let WindowDimension { stride, padding_low, window_dilation, base_dilation, .. } = window;
                let place = |at: i64, of_window: i64| {
                    at.saturating_mul(stride)
                        .saturating_add(of_window.saturating_mul(window_dilation))
                        .saturating_sub(padding_low)
                };
                div_ceil(place(first, 0), base_dilation)..place(last, size).div_euclid(base_dilation) + 1
            }
            Source::Block { ref dims, below, count } => {
                let number = |end: fn(&Range<i64>) -> i64| {
                    dims.clone()
                        .fold(0i64, |sum, l| sum.saturating_mul(self.loops[l]).saturating_add(end(&range(l))))
                };
                if dims.clone().any(|l| range(l).is_empty()) {
                    return 0..0;
                }
                let (first, last) =
                    (number(|range| range.start) / below, number(|range| range.end - 1) / below);
                match first / count == last / count {
                    true => first % count..last % count + 1,
                    false => 0..count,
                }
            }
            Source::Shifted(_) | Source::Any => 0..extent,
        }
    }
}

impl Strided {
    /// This one of the index that another one gives; `None` where the two are not one.
    fn after(self, inner: Strided) -> Option<Source> {
        // The divisor of `inner` must also divide the whole.
        if inner.dilation != 1 && self.stride.abs() != 1 {
            return None;
        }
        Some(Source::Strided(Strided {
            dim: inner.dim,
            start: self
                .start
                .checked_mul(inner.dilation)?
                .checked_add(self.stride.checked_mul(inner.start)?)?,
            stride: self.stride.checked_mul(inner.stride)?,
            dilation: self.dilation.checked_mul(inner.dilation)?,
        }))
    }
}

fn ends(range: &Range<i64>) -> Option<(i64, i64)> {
    (!range.is_empty()).then(|| (range.start, range.end - 1))
}

fn div_ceil(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

fn product(extents: &[i64]) -> Option<i64> {
    extents.iter().try_fold(1i64, |a, &b| a.checked_mul(b))
}
