//! Programs over registers: the lowered form of elementwise code, fusions and reducers.
//!
//! A program computes up to [`LANES`] elements at once. It knows no arrays: an index is a number, reading an array is a
//! step that turns offsets into elements, and only the kernel around the program stores results. So a fusion of any
//! length needs a fixed number of registers and no memory for its interior.
//!
//! Each step belongs to a level, like a loop nest: steps that are equal for all elements run once, others once per
//! batch of elements, and those below a reduction once per reduced index.

use std::sync::Arc;

use memplan_ir::{BinaryOp, ComparisonDirection, ComparisonType, ElementType, UnaryOp};
use smallvec::SmallVec;

use crate::element::{At, Class, LANES, Lanes, load};
use crate::memory::{Memory, Place};
use crate::{Error, math};

/// A register.
pub(crate) type Reg = u32;

/// How often a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Level {
    /// Once per run.
    Uniform = 0,
    /// Once per batch of elements.
    Batch = 1,
    /// Once per reduced index.
    Inner = 2,
}

/// One operation on registers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepOp {
    /// Every lane is this element, given as its bytes.
    Constant(ElementType, SmallVec<[u8; 16]>),
    /// `x / divisor % modulus`; a modulus of 0 leaves the quotient.
    Digit {
        divisor: i64,
        modulus: i64,
    },
    /// `base + weights[0] * x + ...`
    Weighted {
        weights: SmallVec<[i64; 4]>,
        base: i64,
    },
    /// `x` within `[low, high]`, read as unsigned when `is_unsigned`.
    ClampIndex {
        low: i64,
        high: i64,
        is_unsigned: bool,
    },
    /// Whether `low <= x < high`.
    InRange {
        low: i64,
        high: i64,
    },
    /// Whether `x` is a multiple.
    IsMultiple {
        of: i64,
    },
    /// The elements of a source at offsets.
    Load {
        source: u32,
        element_type: ElementType,
    },
    /// The elements of a row-major source from the batch's position on.
    LoadConsecutive {
        source: u32,
        element_type: ElementType,
    },
    Unary(UnaryOp, ElementType),
    Binary(BinaryOp, ElementType),
    Compare(ComparisonDirection, ComparisonType, ElementType),
    Select,
    Convert {
        from: ElementType,
        to: ElementType,
    },
    /// The same bits as another type of the same width.
    BitcastConvert {
        from: ElementType,
        to: ElementType,
    },
    ReducePrecision {
        element_type: ElementType,
        exponent_bits: i32,
        mantissa_bits: i32,
    },
    StochasticConvert {
        from: ElementType,
        to: ElementType,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) op: StepOp,
    pub(crate) inputs: SmallVec<[Reg; 3]>,
    pub(crate) output: Reg,
}

/// The source of an array that a program reads.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Memory: an operand, or another array that the kernel counts as one.
    Operand { number: usize, packed_bits: Option<u32> },
    /// The data of a constant inside the program.
    Literal(Arc<[u8]>),
}

/// A lowered computation.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelCode {
    /// Steps of each level, in order.
    pub(crate) steps: [Vec<Step>; 3],
    pub(crate) classes: Vec<Class>,
    pub(crate) sources: Vec<Source>,
}

/// Registers that the kernel sets, not a step.
pub(crate) mod fixed {
    use super::Reg;
    /// Row-major position of each lane's element in the array being computed.
    pub(crate) const POSITION: Reg = 0;
    /// Row-major position in the reduced (or window) dimensions.
    pub(crate) const INNER: Reg = 1;
}

/// The registers of one run.
pub(crate) struct Machine {
    pub(crate) registers: Vec<Lanes>,
    /// Lanes in use.
    pub(crate) n: usize,
    /// Distance of neighboring lanes of the fixed registers.
    strides: [i64; 2],
}

impl Machine {
    /// Fresh registers, with those steps run that are the same for all elements.
    pub(crate) fn new(program: &KernelCode, memory: &Memory, operands: &[Place]) -> Result<Machine, Error> {
        let registers = program.classes.iter().map(|&class| Lanes::new(class, LANES)).collect();
        let mut machine = Machine { registers, n: LANES, strides: [0; 2] };
        machine.run(program, Level::Uniform, memory, operands)?;
        Ok(machine)
    }

    /// Sets a fixed register to `start, start + stride, ...`
    pub(crate) fn set(&mut self, register: Reg, start: i64, stride: i64) {
        self.strides[register as usize] = stride;
        let lanes = self.registers[register as usize].int_mut();
        (0..).zip(lanes).for_each(|(i, lane)| *lane = start + i * stride);
    }

    /// Runs the steps of a level.
    pub(crate) fn run(
        &mut self,
        program: &KernelCode,
        level: Level,
        memory: &Memory,
        operands: &[Place],
    ) -> Result<(), Error> {
        for step in &program.steps[level as usize] {
            // A step reads other registers than the one it writes.
            let mut out =
                std::mem::replace(&mut self.registers[step.output as usize], Lanes::Int(Vec::new()));
            let is_defined = self.step(step, &mut out, program, memory, operands);
            self.registers[step.output as usize] = out;
            is_defined.expect("lowering checks that an operation takes the type");
        }
        Ok(())
    }

    fn step(
        &self,
        step: &Step,
        out: &mut Lanes,
        program: &KernelCode,
        memory: &Memory,
        operands: &[Place],
    ) -> Option<()> {
        let n = self.n;
        let x = |i: usize| &self.registers[step.inputs[i] as usize];
        match &step.op {
            StepOp::Constant(t, bytes) => {
                let mut one = Lanes::new(Class::of(*t), 1);
                load(*t, bytes, At::Consecutive(0), 1, &mut one);
                out.splat(&one, 0);
            }
            StepOp::Digit { divisor, modulus } => {
                let stride = self.strides.get(step.inputs[0] as usize).copied();
                digit(&x(0).int()[..n], *divisor, *modulus, stride, &mut out.int_mut()[..n]);
            }
            StepOp::Weighted { weights, base } => {
                let out = &mut out.int_mut()[..n];
                out.fill(*base);
                for (i, &weight) in weights.iter().enumerate() {
                    out.iter_mut()
                        .zip(x(i).int())
                        .for_each(|(out, &x)| *out = out.wrapping_add(x.wrapping_mul(weight)));
                }
            }
            StepOp::ClampIndex { low, high, is_unsigned } => {
                out.int_mut()[..n].iter_mut().zip(x(0).int()).for_each(|(out, &x)| {
                    *out = if *is_unsigned && x < 0 { *high } else { x.clamp(*low, *high) };
                });
            }
            StepOp::InRange { low, high } => {
                out.int_mut()[..n]
                    .iter_mut()
                    .zip(x(0).int())
                    .for_each(|(out, x)| *out = (low <= x && x < high) as i64);
            }
            StepOp::IsMultiple { of } => {
                out.int_mut()[..n]
                    .iter_mut()
                    .zip(x(0).int())
                    .for_each(|(out, x)| *out = (x % of == 0) as i64);
            }
            StepOp::Load { source, element_type } => {
                let offsets = &x(0).int()[..n];
                match &program.sources[*source as usize] {
                    Source::Operand { number, packed_bits: None } => {
                        load(*element_type, memory.bytes(operands[*number]), At::Offsets(offsets), n, out);
                    }
                    Source::Operand { number, packed_bits: Some(bits) } => {
                        load(
                            *element_type,
                            memory.bytes(operands[*number]),
                            At::Packed(offsets, *bits),
                            n,
                            out,
                        );
                    }
                    Source::Literal(bytes) => load(*element_type, bytes, At::Offsets(offsets), n, out),
                }
            }
            StepOp::LoadConsecutive { source, element_type } => {
                let start = x(0).int()[0] as usize * element_type.byte_width() as usize;
                match &program.sources[*source as usize] {
                    Source::Operand { number, .. } => {
                        load(*element_type, memory.bytes(operands[*number]), At::Consecutive(start), n, out);
                    }
                    Source::Literal(bytes) => load(*element_type, bytes, At::Consecutive(start), n, out),
                }
            }
            StepOp::Unary(op, t) => math::unary(*op, *t, x(0), out, n)?,
            StepOp::Binary(op, t) => math::binary(*op, *t, x(0), x(1), out, n)?,
            StepOp::Compare(direction, kind, t) => math::compare(*direction, *kind, *t, x(0), x(1), out, n),
            StepOp::Select => math::select(x(0), x(1), x(2), out, n),
            StepOp::Convert { from, to } => math::convert(*from, *to, x(0), out, n),
            StepOp::BitcastConvert { from, to } => {
                let mut bytes = [0u8; LANES * 16];
                crate::element::store(*from, x(0), n, At::Consecutive(0), &mut bytes);
                load(*to, &bytes, At::Consecutive(0), n, out);
            }
            StepOp::ReducePrecision { element_type, exponent_bits, mantissa_bits } => {
                math::reduce_precision(*element_type, *exponent_bits, *mantissa_bits, x(0), out, n);
            }
            StepOp::StochasticConvert { from, to } => {
                math::stochastic_convert(*from, *to, x(0), x(1), out, n)
            }
        }
        Some(())
    }
}

/// `x / divisor % modulus`, without a division per lane where the lanes are known to be equal or to count up.
fn digit(x: &[i64], divisor: i64, modulus: i64, stride: Option<i64>, out: &mut [i64]) {
    let one = |x: i64| if modulus == 0 { x / divisor } else { x / divisor % modulus };
    let Some(&first) = x.first() else { return };
    match stride {
        Some(0) => out.fill(one(first)),
        Some(1) => {
            let (mut value, mut left) = (one(first), divisor - first % divisor);
            for lane in out {
                if left == 0 {
                    value += 1;
                    if value == modulus {
                        value = 0;
                    }
                    left = divisor;
                }
                *lane = value;
                left -= 1;
            }
        }
        _ => out.iter_mut().zip(x).for_each(|(out, &x)| *out = one(x)),
    }
}
