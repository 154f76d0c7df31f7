//! Random bits equal to XLA's, and random numbers.
//!
//! ThreeFry-2x32 and Philox-4x32 are counter based (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
//! 2011): each counter gives two or four words. XLA chooses how words fill an array, which is part of the result.

use std::cell::Cell;

use memplan_ir::{ArrayShape, ElementType, RngAlgorithm, RngDistribution};

use crate::Error;
use crate::element::{Class, Lanes, round};
use crate::kernels::dense::Dense;
use crate::kernels::{Kernel, Operand};
use crate::math;
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
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let Lanes::Int(mut state) = self.state.first(memory, operands) else {
            unreachable!("states are integers")
        };
        let t = self.bits.shape.element_type;
        let (count, is_wide) = (self.bits.count(), t.bits() == 64);
        let fill = |memory: &mut Memory, word: &mut dyn FnMut(usize) -> u64| {
            self.bits.fill(memory, results, t, |_, base, n, lanes| {
                let lanes_in_use = lanes.int_mut()[..n].iter_mut();
                lanes_in_use.enumerate().for_each(|(k, lane)| *lane = word(base + k) as i64);
                round(t, lanes, n);
            });
        };
        match self.algorithm {
            RngAlgorithm::RngThreeFry => {
                let (key, counter) = (state[0] as u64, state[1] as u64);
                let draw = |i: usize| threefry(split(counter.wrapping_add(i as u64)), split(key));
                let n_counters = if is_wide {
                    fill(memory, &mut |i| join(draw(i)));
                    count
                } else {
                    let pairs = Interleaved::new(&self.bits.shape.dimensions);
                    fill(memory, &mut |i| {
                        let (counter, half) = pairs.counter(i);
                        draw(counter)[half] as u64
                    });
                    pairs.n_counters
                };
                state[1] = state[1].wrapping_add(n_counters as i64);
            }
            RngAlgorithm::RngPhilox | RngAlgorithm::RngDefault => {
                // A state of two words uses its key as the upper half of the counter.
                let high = if state.len() > 2 { state[2] } else { state[0] } as u64;
                let counter = state[1] as u64 as u128 | (high as u128) << 64;
                let per_counter = if is_wide { 2 } else { 4 };
                let (mut known, mut words) = (usize::MAX, [0; 4]);
                fill(memory, &mut |i| {
                    if known != i / per_counter {
                        known = i / per_counter;
                        words = philox(counter.wrapping_add(known as u128), split(state[0] as u64));
                    }
                    let k = i % per_counter;
                    if is_wide { join([words[2 * k], words[2 * k + 1]]) } else { words[k] as u64 }
                });
                let end = counter.wrapping_add(count.div_ceil(per_counter) as u128);
                state[1] = end as u64 as i64;
                if let Some(high) = state.get_mut(2) {
                    *high = (end >> 64) as u64 as i64;
                }
            }
        }
        let state_type = self.new_state.shape.element_type;
        self.new_state.fill(memory, results, state_type, |_, base, n, lanes| {
            lanes.int_mut()[..n].copy_from_slice(&state[base..base + n]);
        });
        Ok(())
    }
}

/// `rng`: HLO leaves the numbers open, so these are Philox, with a key made of the run's seed and the instruction, and
/// the executions counted.
pub(crate) struct RngKernel {
    parameters: [Dense; 2],
    result: Dense,
    distribution: RngDistribution,
    instruction: u64,
    executions: Cell<u64>,
}

impl RngKernel {
    pub(crate) fn new(
        operands: &[Operand],
        result: &ArrayShape,
        distribution: RngDistribution,
        instruction: u64,
    ) -> Result<RngKernel, Error> {
        Ok(RngKernel {
            parameters: [Dense::operand(&operands[0])?, Dense::operand(&operands[1])?],
            result: Dense::new(0, result)?,
            distribution,
            instruction,
            executions: Cell::new(0),
        })
    }
}

impl Kernel for RngKernel {
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let [a, b] = [0, 1].map(|k: usize| {
            let t = self.parameters[k].shape.element_type;
            let mut wide = Lanes::new(Class::F64, 1);
            math::convert(t, ElementType::F64, &self.parameters[k].first(memory, operands), &mut wide, 1);
            let Lanes::F64(wide) = wide else { unreachable!("made as `f64`") };
            wide[0]
        });
        let execution = self.executions.replace(self.executions.get() + 1);
        // The seed and the instruction become one key by a counter of their own, so that no two pairs meet by a sum.
        let key = threefry(split(self.instruction), split(memory.seed));
        let is_integral = self.result.shape.element_type.is_integral();
        let uniform = |word: u32| (word as f64 + 0.5) / 4294967296.0;
        let draw = |i: usize| {
            let words = philox(i as u128 | (execution as u128) << 64, key);
            match self.distribution {
                RngDistribution::RngUniform if is_integral => (a + uniform(words[0]) * (b - a)).floor(),
                RngDistribution::RngUniform => a + uniform(words[0]) * (b - a),
                // Box and Muller's transform.
                RngDistribution::RngNormal => {
                    let radius = (-2.0 * uniform(words[0]).ln()).sqrt();
                    a + b * radius * (std::f64::consts::TAU * uniform(words[1])).cos()
                }
            }
        };
        self.result.fill(memory, results, ElementType::F64, |_, base, n, lanes| {
            let Lanes::F64(lanes) = lanes else { unreachable!("asked for as `f64`") };
            (base..base + n).zip(lanes).for_each(|(i, lane)| *lane = draw(i));
        });
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
        let words = [state as u64 as i64, (state >> 64) as u64 as i64];
        self.result.fill(memory, results, ElementType::U64, |_, _, n, lanes| {
            lanes.int_mut()[..n].iter_mut().zip(words).for_each(|(lane, word)| *lane = word);
        });
        Ok(())
    }
}

/// Words of two per counter, the first and second of each pair next to each other along one dimension: the first of
/// even extent, else the longest, which is padded.
struct Interleaved {
    extent: usize,
    half: usize,
    inner: usize,
    n_counters: usize,
}

impl Interleaved {
    fn new(extents: &[i64]) -> Interleaved {
        let even = extents.iter().position(|e| e % 2 == 0);
        let longest = (0..extents.len()).max_by_key(|&d| (extents[d], std::cmp::Reverse(d)));
        let Some(d) = even.or(longest) else {
            return Interleaved { extent: 1, half: 1, inner: 1, n_counters: 1 };
        };
        let extent = extents[d] as usize;
        let half = extent.div_ceil(2);
        let inner = extents[d + 1..].iter().product::<i64>() as usize;
        let outer = extents[..d].iter().product::<i64>() as usize;
        Interleaved { extent, half, inner, n_counters: outer * half * inner }
    }

    /// The counter of an element, and which of its words.
    fn counter(&self, at: usize) -> (usize, usize) {
        let (i, along) = (at % self.inner, at / self.inner % self.extent);
        let before = at / self.inner / self.extent;
        ((before * self.half + along / 2) * self.inner + i, along % 2)
    }
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
