//! Random bits exactly as XLA makes them, and random numbers.
//!
//! ThreeFry-2x32 and Philox-4x32 are counter based (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011):
//! each counter gives two or four words. How words fill an array is XLA's choice, and part of the result.

use std::cell::Cell;

use memplan_ir::{ArrayShape, ElementType, RngAlgorithm, RngDistribution};
use num_complex::Complex64;

use crate::Error;
use crate::element::{Class, Lanes, round};
use crate::kernels::dense::Dense;
use crate::kernels::{Kernel, Operand};
use crate::memory::{Memory, Place};

/// `rng-bit-generator`: the new state and the bits.
pub(crate) struct BitsKernel {
    state: Dense,
    new_state: Dense,
    bits: Dense,
    algorithm: RngAlgorithm,
}

impl BitsKernel {
    pub(crate) fn new(
        operand: &Operand,
        results: &[(usize, &ArrayShape)],
        algorithm: RngAlgorithm,
    ) -> Result<BitsKernel, Error> {
        Ok(BitsKernel {
            state: Dense::operand(operand)?,
            new_state: Dense::new(results[0].0, results[0].1)?,
            bits: Dense::new(results[1].0, results[1].1)?,
            algorithm,
        })
    }
}

impl Kernel for BitsKernel {
    /// The words as they are made and as they are stored.
    fn scratch_bytes(&self) -> usize {
        (2 * self.bits.count() + self.state.count() + 4) * size_of::<i64>()
    }

    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let Lanes::Int(mut state) = self.state.read_lanes(memory, operands) else {
            unreachable!("states are integers")
        };
        let t = self.bits.shape.element_type;
        let (count, is_wide) = (self.bits.count(), t.bits() == 64);
        let words: Vec<i64> = match self.algorithm {
            RngAlgorithm::RngThreeFry => {
                let (key, counter) = (state[0] as u64, state[1] as u64);
                let draw = |i: usize| threefry(split(counter.wrapping_add(i as u64)), split(key));
                let (values, n_counters) = if is_wide {
                    ((0..count).map(|i| join(draw(i)) as i64).collect(), count)
                } else {
                    interleaved(&self.bits.shape.dimensions, draw)
                };
                state[1] = state[1].wrapping_add(n_counters as i64);
                values
            }
            RngAlgorithm::RngPhilox | RngAlgorithm::RngDefault => {
                // A state of two words uses its key as the upper half of the counter.
                let high = if state.len() > 2 { state[2] } else { state[0] } as u64;
                let counter = state[1] as u64 as u128 | (high as u128) << 64;
                let n_counters = if is_wide { count.div_ceil(2) } else { count.div_ceil(4) };
                let words = (0..n_counters)
                    .flat_map(|i| philox(counter.wrapping_add(i as u128), split(state[0] as u64)));
                let words: Vec<u32> = words.collect();
                let end = counter.wrapping_add(n_counters as u128);
                state[1] = end as u64 as i64;
                if let Some(high) = state.get_mut(2) {
                    *high = (end >> 64) as u64 as i64;
                }
                match is_wide {
                    true => words.chunks(2).take(count).map(|w| join([w[0], w[1]]) as i64).collect(),
                    false => words.iter().take(count).map(|&w| w as i64).collect(),
                }
            }
        };
        let mut lanes = Lanes::Int(words);
        round(t, &mut lanes, count);
        self.new_state.write_lanes(memory, results, &Lanes::Int(state));
        self.bits.write_lanes(memory, results, &lanes);
        Ok(())
    }
}

/// `rng`: HLO leaves the numbers open, so these are Philox with the instruction as key and the runs counted.
pub(crate) struct RngKernel {
    parameters: [Dense; 2],
    result: Dense,
    distribution: RngDistribution,
    key: u64,
    runs: Cell<u64>,
}

impl RngKernel {
    pub(crate) fn new(
        operands: &[Operand],
        result: &ArrayShape,
        distribution: RngDistribution,
        key: u64,
    ) -> Result<RngKernel, Error> {
        Ok(RngKernel {
            parameters: [Dense::operand(&operands[0])?, Dense::operand(&operands[1])?],
            result: Dense::new(0, result)?,
            distribution,
            key,
            runs: Cell::new(0),
        })
    }
}

impl Kernel for RngKernel {
    fn scratch_bytes(&self) -> usize {
        (self.result.count() + 2) * size_of::<Complex64>()
    }

    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let [a, b] = [0, 1].map(|k: usize| self.parameters[k].read(memory, operands)[0].re);
        let run = self.runs.replace(self.runs.get() + 1);
        let uniform = |word: u32| (word as f64 + 0.5) / 4294967296.0;
        let draw = |i: usize| {
            let words = philox(i as u128 | (run as u128) << 64, split(self.key));
            match self.distribution {
                RngDistribution::RngUniform if self.result.shape.element_type.is_integral() => {
                    (a + uniform(words[0]) * (b - a)).floor()
                }
                RngDistribution::RngUniform => a + uniform(words[0]) * (b - a),
                // Box and Muller's transform.
                RngDistribution::RngNormal => {
                    let radius = (-2.0 * uniform(words[0]).ln()).sqrt();
                    a + b * radius * (std::f64::consts::TAU * uniform(words[1])).cos()
                }
            }
        };
        let values: Vec<Complex64> = (0..self.result.count()).map(|i| Complex64::from(draw(i))).collect();
        self.result.write(memory, results, &values);
        Ok(())
    }
}

/// `rng-get-and-update-state`: a state that lives as long as the run.
pub(crate) struct StateKernel {
    result: Dense,
    delta: u128,
    state: Cell<u128>,
}

impl StateKernel {
    pub(crate) fn new(result: &ArrayShape, delta: i64) -> Result<StateKernel, Error> {
        // The first state is XLA's.
        Ok(StateKernel { result: Dense::new(0, result)?, delta: delta as u128, state: Cell::new(0x7012395) })
    }
}

impl Kernel for StateKernel {
    fn run(&self, memory: &mut Memory, _: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let state = self.state.replace(self.state.get().wrapping_add(self.delta));
        let mut lanes = Lanes::new(Class::of(ElementType::U64), self.result.count());
        let words = [state as u64 as i64, (state >> 64) as u64 as i64];
        lanes.int_mut().iter_mut().zip(words).for_each(|(lane, word)| *lane = word);
        self.result.write_lanes(memory, results, &lanes);
        Ok(())
    }
}

/// Words of two per counter, the first and second of each pair next to each other along one dimension: the first of
/// even extent, else the longest, which is padded. Also the number of counters.
fn interleaved(extents: &[i64], draw: impl Fn(usize) -> [u32; 2]) -> (Vec<i64>, usize) {
    let even = extents.iter().position(|e| e % 2 == 0);
    let longest = (0..extents.len()).max_by_key(|&d| (extents[d], std::cmp::Reverse(d)));
    let Some(d) = even.or(longest) else { return (vec![draw(0)[0] as i64], 1) };
    let extent = extents[d] as usize;
    let half = extent.div_ceil(2);
    let inner = extents[d + 1..].iter().product::<i64>() as usize;
    let outer = extents[..d].iter().product::<i64>() as usize;
    let mut words = Vec::with_capacity(outer * extent * inner);
    for at in 0..outer * extent * inner {
        let (i, along, before) = (at % inner, at / inner % extent, at / inner / extent);
        words.push(draw((before * half + along / 2) * inner + i)[along % 2] as i64);
    }
    (words, outer * half * inner)
}

fn threefry(counter: [u32; 2], key: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    let mut x = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for round in 0..5 {
        for rotation in ROTATIONS[round % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(rotation) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(round + 1) % 3]);
        x[1] = x[1].wrapping_add(keys[(round + 2) % 3]).wrapping_add(round as u32 + 1);
    }
    x
}

fn philox(counter: u128, mut key: [u32; 2]) -> [u32; 4] {
    let mut x: [u32; 4] = std::array::from_fn(|i| (counter >> (32 * i)) as u32);
    for _ in 0..10 {
        let products = [0xD251_1F53u64 * x[0] as u64, 0xCD9E_8D57u64 * x[2] as u64].map(split);
        x = [products[1][1] ^ x[1] ^ key[0], products[1][0], products[0][1] ^ x[3] ^ key[1], products[0][0]];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    x
}

/// Lower and upper half.
fn split(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

fn join([low, high]: [u32; 2]) -> u64 {
    low as u64 | (high as u64) << 32
}
