//! Sorts and top-k: stable merges, many side by side.
//!
//! The comparator is any computation, so it is run for many pairs at once: all merges of one pass advance in step, one
//! comparison each. A comparator that is no order cannot do harm, because a merge asks it nothing twice.

use memplan_ir::ArrayShape;

use crate::Error;
use crate::element::{Class, LANES, Lanes};
use crate::kernels::dense::Dense;
use crate::kernels::{Kernel, Operand};
use crate::lambda::Lambda;
use crate::memory::{Memory, Place};

pub(crate) struct SortKernel {
    operands: Vec<Dense>,
    results: Vec<Dense>,
    dimension: usize,
    comparator: Lambda,
}

impl SortKernel {
    pub(crate) fn new(
        operands: &[Operand],
        results: &[(usize, &ArrayShape)],
        dimension: i64,
        comparator: Lambda,
    ) -> Result<SortKernel, Error> {
        Ok(SortKernel {
            operands: operands.iter().map(Dense::operand).collect::<Result<_, _>>()?,
            results: results
                .iter()
                .map(|&(number, shape)| Dense::new(number, shape))
                .collect::<Result<_, _>>()?,
            dimension: dimension as usize,
            comparator,
        })
    }
}

impl Kernel for SortKernel {
    /// The operands and the sorted result, as numbers, and two permutations.
    fn scratch_bytes(&self) -> usize {
        let widths: usize = self.operands.iter().map(|o| 2 * width(Class::of(o.shape.element_type))).sum();
        self.operands[0].count() * (widths + 2 * size_of::<usize>())
    }

    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let extents = &self.operands[0].shape.dimensions;
        let n = extents[self.dimension] as usize;
        let inner = extents[self.dimension + 1..].iter().product::<i64>() as usize;
        let count = self.operands[0].count();
        if count == 0 {
            return Ok(());
        }
        let keys: Vec<Lanes> = self.operands.iter().map(|o| o.read_lanes(memory, operands)).collect();
        // Lines one after the other: entry `i` of line `l` is element `(l / inner * n + i) * inner + l % inner`.
        let mut order: Vec<usize> = (0..count / n)
            .flat_map(|line| (0..n).map(move |i| (line / inner * n + i) * inner + line % inner))
            .collect();
        let places = order.clone();
        merge_sort(&mut order, n, &mut |pairs, takes| self.compare(&keys, pairs, takes))?;
        for (result, keys) in self.results.iter().zip(&keys) {
            let mut sorted = keys.clone();
            for (&place, &from) in places.iter().zip(&order) {
                sorted.copy_from(place, keys, from, 1);
            }
            result.write_lanes(memory, results, &sorted);
        }
        Ok(())
    }
}

impl SortKernel {
    /// Whether the first element of each pair stands before the second.
    fn compare(&self, keys: &[Lanes], pairs: &[[usize; 2]], takes: &mut Vec<bool>) -> Result<(), Error> {
        let mut machine = self.comparator.machine()?;
        takes.clear();
        for pairs in pairs.chunks(LANES) {
            for (k, keys) in keys.iter().enumerate() {
                for side in 0..2 {
                    let lanes: Vec<usize> = pairs.iter().map(|pair| pair[side]).collect();
                    let parameter = self.comparator.parameters[2 * k + side];
                    machine.registers[parameter as usize].pick(keys, &lanes);
                }
            }
            self.comparator.run(&mut machine, pairs.len())?;
            takes.extend(self.comparator.result(&machine, 0).int()[..pairs.len()].iter().map(|&p| p != 0));
        }
        Ok(())
    }
}

/// Values with their indices, the largest (or smallest) of the last dimension first.
pub(crate) struct TopKKernel {
    operand: Dense,
    values: Dense,
    indices: Dense,
    is_largest: bool,
}

impl TopKKernel {
    pub(crate) fn new(
        operand: &Operand,
        results: &[(usize, &ArrayShape)],
        is_largest: bool,
    ) -> Result<TopKKernel, Error> {
        Ok(TopKKernel {
            operand: Dense::operand(operand)?,
            values: Dense::new(results[0].0, results[0].1)?,
            indices: Dense::new(results[1].0, results[1].1)?,
            is_largest,
        })
    }
}

impl Kernel for TopKKernel {
    /// The operand, the results and the order of one line.
    fn scratch_bytes(&self) -> usize {
        let line = self.operand.shape.dimensions.last().map_or(0, |&n| n as usize);
        let width = width(Class::of(self.operand.shape.element_type));
        self.operand.count() * width
            + self.values.count() * (width + size_of::<i64>())
            + line * size_of::<usize>()
    }

    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let n = self.operand.shape.dimensions.last().map_or(0, |&n| n as usize);
        let k = self.values.shape.dimensions.last().map_or(0, |&k| k as usize);
        let keys = self.operand.read_lanes(memory, operands);
        let is_u64 = self.operand.shape.element_type == memplan_ir::ElementType::U64;
        let compare = |a: usize, b: usize| match &keys {
            Lanes::Int(v) if is_u64 => (v[a] as u64).cmp(&(v[b] as u64)),
            Lanes::Int(v) => v[a].cmp(&v[b]),
            Lanes::F32(v) => v[a].total_cmp(&v[b]),
            Lanes::F64(v) => v[a].total_cmp(&v[b]),
            Lanes::C64(_) | Lanes::C128(_) => std::cmp::Ordering::Equal,
        };
        let mut values = Lanes::new(Class::of(self.values.shape.element_type), self.values.count());
        let mut indices = Lanes::new(Class::Int, self.indices.count());
        for line in 0..self.operand.count().checked_div(n).unwrap_or(0) {
            let mut order: Vec<usize> = (line * n..(line + 1) * n).collect();
            // Stable, so that of equal values the first comes first.
            order.sort_by(|&a, &b| if self.is_largest { compare(b, a) } else { compare(a, b) });
            for (i, &from) in order[..k].iter().enumerate() {
                values.copy_from(line * k + i, &keys, from, 1);
                indices.int_mut()[line * k + i] = (from - line * n) as i64;
            }
        }
        self.values.write_lanes(memory, results, &values);
        self.indices.write_lanes(memory, results, &indices);
        Ok(())
    }
}

/// Asks for each pair of elements whether the first stands before the second.
type Compare<'a> = dyn FnMut(&[[usize; 2]], &mut Vec<bool>) -> Result<(), Error> + 'a;

/// Sorts each run of `n` entries, stably, from the bottom up.
fn merge_sort(order: &mut Vec<usize>, n: usize, compare: &mut Compare<'_>) -> Result<(), Error> {
    let mut merged = order.clone();
    let mut width = 1;
    while width < n {
        let mut merges: Vec<Merge> = (0..order.len())
            .step_by(n)
            .flat_map(|line| (line..line + n).step_by(2 * width).map(move |at| (at, line + n)))
            .map(|(at, end)| Merge {
                left: at,
                middle: (at + width).min(end),
                right: (at + width).min(end),
                end: (at + 2 * width).min(end),
                out: at,
            })
            .collect();
        let mut takes = Vec::new();
        // A few registers of merges at a time: those that are finished drop out.
        for merges in merges.chunks_mut(4 * LANES) {
            let mut active: Vec<usize> = (0..merges.len()).collect();
            loop {
                active.retain(|&m| merges[m].left < merges[m].middle && merges[m].right < merges[m].end);
                if active.is_empty() {
                    break;
                }
                // The right one goes first only if it must: that is what makes it stable.
                let pairs: Vec<[usize; 2]> =
                    active.iter().map(|&m| [order[merges[m].right], order[merges[m].left]]).collect();
                compare(&pairs, &mut takes)?;
                for (&m, &takes_right) in active.iter().zip(&takes) {
                    let merge = &mut merges[m];
                    let from = if takes_right { &mut merge.right } else { &mut merge.left };
                    merged[merge.out] = order[*from];
                    *from += 1;
                    merge.out += 1;
                }
            }
            for m in merges.iter() {
                let left = m.middle - m.left;
                merged[m.out..m.out + left].copy_from_slice(&order[m.left..m.middle]);
                merged[m.out + left..m.out + left + (m.end - m.right)]
                    .copy_from_slice(&order[m.right..m.end]);
            }
        }
        std::mem::swap(order, &mut merged);
        width *= 2;
    }
    Ok(())
}

/// Two neighboring runs and how far they are merged.
struct Merge {
    left: usize,
    middle: usize,
    right: usize,
    end: usize,
    out: usize,
}

/// Bytes of a number of a class.
fn width(class: Class) -> usize {
    match class {
        Class::F32 => 4,
        Class::Int | Class::F64 | Class::C64 => 8,
        Class::C128 => 16,
    }
}
