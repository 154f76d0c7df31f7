//! Sorts and top-k: stable merges, many in parallel.
//!
//! The comparator is any computation, so it runs for many pairs at once: all merges of one pass advance together, one
//! comparison each. An inconsistent comparator is harmless, because a merge never repeats a comparison.

use memplan_ir::{ArrayShape, ElementType};

use crate::Error;
use crate::element::{At, Class, LANES, Lanes, load};
use crate::kernels::dense::{Dense, Work, numbers_mut};
use crate::kernels::{Kernel, Operand};
use crate::lambda::Lambda;
use crate::memory::{Memory, Place};
use crate::program::Machine;

/// Merges that advance in step: a few registers of them.
const MERGES: usize = 4 * LANES;

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
    /// The operands, for results may take their place, and two permutations.
    fn scratch_bytes(&self) -> usize {
        let permutation = self.operands[0].count().saturating_mul(size_of::<u64>());
        let keys = self.operands.iter().map(Dense::byte_count);
        let comparator = self.comparator.scratch_bytes();
        Work::bytes(keys.chain([permutation, permutation, comparator]))
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let extents = &self.operands[0].shape.dimensions;
        let n = extents[self.dimension] as usize;
        let inner = extents[self.dimension + 1..].iter().product::<i64>() as usize;
        let count = self.operands[0].count();
        if count == 0 {
            return Ok(());
        }
        let mut work = Work::new(memory, scratch);
        let keys: Vec<Place> = self.operands.iter().map(|o| work.take::<u8>(o.byte_count())).collect();
        let orders = [work.take::<u64>(count), work.take::<u64>(count)];
        for (operand, &key) in self.operands.iter().zip(&keys) {
            operand.read(memory, operands, operand.shape.element_type, key);
        }
        // Lines one after the other: entry `i` of line `l` is element `(l / inner * n + i) * inner + l % inner`.
        let numbers = numbers_mut::<u64>(memory, orders[0]);
        for (at, number) in numbers.iter_mut().enumerate() {
            let (line, i) = (at / n, at % n);
            *number = ((line / inner * n + i) * inner + line % inner) as u64;
        }
        let mut comparison = Comparison {
            kernel: self,
            machine: self.comparator.machine()?,
            keys: &keys,
            scratch: work.rest(),
        };
        let order = merge_sort(memory, orders, n, &mut comparison)?;
        for (result, &key) in self.results.iter().zip(&keys) {
            let t = result.shape.element_type;
            result.fill(memory, results, t, |memory, base, m, lanes| {
                let from = (base..base + m).map(|element| {
                    let line = element / (inner * n) * inner + element % inner;
                    entry(memory, order, line * n + element / inner % n) as i64 * t.byte_width() as i64
                });
                let from: Vec<i64> = from.collect();
                load(t, memory.bytes(key), At::Offsets(&from), m, lanes);
            });
        }
        Ok(())
    }
}

/// An entry of a permutation.
fn entry(memory: &Memory, order: Place, at: usize) -> u64 {
    let bytes = memory.bytes(order)[8 * at..].first_chunk().expect("a permutation is whole");
    u64::from_ne_bytes(*bytes)
}

/// The comparator of a running sort.
struct Comparison<'k> {
    kernel: &'k SortKernel,
    machine: Machine,
    /// The operands' elements.
    keys: &'k [Place],
    scratch: Place,
}

impl Comparison<'_> {
    /// Whether the first element of each pair precedes the second.
    fn compare(
        &mut self,
        memory: &mut Memory,
        pairs: &[[u64; 2]],
        takes: &mut Vec<bool>,
    ) -> Result<(), Error> {
        let comparator = &self.kernel.comparator;
        takes.clear();
        for pairs in pairs.chunks(LANES) {
            for (k, &keys) in self.keys.iter().enumerate() {
                let t = comparator.types[2 * k];
                for side in 0..2 {
                    let offset = |pair: &[u64; 2]| pair[side] as i64 * t.byte_width() as i64;
                    let offsets: Vec<i64> = pairs.iter().map(offset).collect();
                    let register = &mut self.machine.registers[comparator.parameters[2 * k + side] as usize];
                    load(t, memory.bytes(keys), At::Offsets(&offsets), pairs.len(), register);
                }
            }
            comparator.run(&mut self.machine, pairs.len(), memory, self.scratch)?;
            let holds = comparator.result(&self.machine, 0).int()[..pairs.len()].iter();
            takes.extend(holds.map(|&p| p != 0));
        }
        Ok(())
    }
}

/// Sorts each run of `n` entries of the first permutation, stably, from the bottom up, and gives the one of the two that
/// is sorted.
fn merge_sort(
    memory: &mut Memory,
    orders: [Place; 2],
    n: usize,
    comparison: &mut Comparison<'_>,
) -> Result<Place, Error> {
    let [mut order, mut merged] = orders;
    let count = order.size / size_of::<u64>();
    let (mut active, mut pairs, mut takes) = (Vec::new(), Vec::new(), Vec::new());
    let mut width = 1;
    while width < n {
        let mut starts = (0..count)
            .step_by(n)
            .flat_map(|line| (line..line + n).step_by(2 * width).map(move |at| (at, line + n)))
            .peekable();
        while starts.peek().is_some() {
            let merge = |(at, end): (usize, usize)| Merge {
                left: at,
                middle: (at + width).min(end),
                right: (at + width).min(end),
                end: (at + 2 * width).min(end),
                out: at,
            };
            let mut merges: Vec<Merge> = starts.by_ref().take(MERGES).map(merge).collect();
            active.clear();
            active.extend(0..merges.len());
            loop {
                // Those that are finished drop out.
                active.retain(|&m: &usize| {
                    merges[m].left < merges[m].middle && merges[m].right < merges[m].end
                });
                if active.is_empty() {
                    break;
                }
                // The right one goes first only if it must: this makes the sort stable.
                pairs.clear();
                pairs.extend(
                    active
                        .iter()
                        .map(|&m| [merges[m].right, merges[m].left].map(|at| entry(memory, order, at))),
                );
                comparison.compare(memory, &pairs, &mut takes)?;
                let out = numbers_mut::<u64>(memory, merged);
                for ((&m, &takes_right), [right, left]) in active.iter().zip(&takes).zip(&pairs) {
                    let merge = &mut merges[m];
                    out[merge.out] = if takes_right { *right } else { *left };
                    *(if takes_right { &mut merge.right } else { &mut merge.left }) += 1;
                    merge.out += 1;
                }
            }
            for m in &merges {
                // One of the two runs is at its end, and the other is as it should be.
                let (from, to) = if m.left < m.middle { (m.left, m.middle) } else { (m.right, m.end) };
                memory.copy(order.part(8 * from, 8 * (to - from)), merged.part(8 * m.out, 8 * (to - from)));
            }
        }
        std::mem::swap(&mut order, &mut merged);
        width *= 2;
    }
    Ok(order)
}

/// Two neighboring runs and how far they are merged.
struct Merge {
    left: usize,
    middle: usize,
    right: usize,
    end: usize,
    out: usize,
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
    /// The operand, and the order of each of its lines.
    fn scratch_bytes(&self) -> usize {
        let order = self.operand.count().saturating_mul(size_of::<u64>());
        Work::bytes([self.operand.byte_count(), order, order])
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let t = self.operand.shape.element_type;
        let n = self.operand.shape.dimensions.last().map_or(0, |&n| n as usize);
        let k = self.values.shape.dimensions.last().map_or(0, |&k| k as usize);
        let count = self.operand.count();
        let mut work = Work::new(memory, scratch);
        let elements = work.take::<u8>(self.operand.byte_count());
        let ranked = work.take::<[u64; 2]>(count);
        self.operand.read(memory, operands, t, elements);
        let mut lanes = Lanes::new(Class::of(t), LANES);
        for base in (0..count).step_by(LANES) {
            let m = LANES.min(count - base);
            let begin = At::Consecutive(base * t.byte_width() as usize);
            load(t, memory.bytes(elements), begin, m, &mut lanes);
            let pairs = &mut numbers_mut::<[u64; 2]>(memory, ranked)[base..base + m];
            for (i, pair) in pairs.iter_mut().enumerate() {
                let rank = rank(t, &lanes, i);
                *pair = [if self.is_largest { !rank } else { rank }, (base + i) as u64];
            }
        }
        // Of equal values the first comes first.
        let lines = numbers_mut::<[u64; 2]>(memory, ranked).chunks_mut(n.max(1));
        lines.for_each(|line| line.sort_unstable());
        let source = |memory: &Memory, at: usize| entry(memory, ranked, 2 * (at / k * n + at % k) + 1);
        self.values.fill(memory, results, t, |memory, base, m, lanes| {
            let offset = |at| source(memory, at) as i64 * t.byte_width() as i64;
            let offsets: Vec<i64> = (base..base + m).map(offset).collect();
            load(t, memory.bytes(elements), At::Offsets(&offsets), m, lanes);
        });
        self.indices.fill(memory, results, ElementType::S64, |memory, base, m, lanes| {
            let lanes = lanes.int_mut()[..m].iter_mut();
            lanes.zip(base..).for_each(|(lane, at)| *lane = source(memory, at) as i64 % n as i64);
        });
        Ok(())
    }
}

/// A number whose order is the total order of an element's type.
fn rank(t: ElementType, lanes: &Lanes, i: usize) -> u64 {
    const SIGN: u64 = 1 << 63;
    // Negative floats are ordered against their bits.
    let of_float = |bits: u64| if bits & SIGN != 0 { !bits } else { bits | SIGN };
    match lanes {
        Lanes::Int(v) if t == ElementType::U64 => v[i] as u64,
        Lanes::Int(v) => v[i] as u64 ^ SIGN,
        Lanes::F32(v) => of_float(u64::from(v[i].to_bits()) << 32),
        Lanes::F64(v) => of_float(v[i].to_bits()),
        Lanes::C64(_) | Lanes::C128(_) => 0,
    }
}
