//! Results that have the same bytes as their operands.

use memplan_ir::ArrayShape;

use crate::Error;
use crate::element::{At, LANES, load};
use crate::kernels::dense::Dense;
use crate::kernels::{Kernel, Operand};
use crate::memory::{Memory, Place};

/// A copy of each operand, byte by byte: bitcasts within fusions, collectives among one device.
pub(crate) struct CopyKernel {
    /// Numbers of an operand and the result that becomes equal to it.
    pub(crate) pairs: Vec<(usize, usize)>,
}

impl Kernel for CopyKernel {
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        for &(operand, result) in &self.pairs {
            if operands[operand] != results[result] {
                memory.copy(operands[operand], results[result]);
            }
        }
        Ok(())
    }
}

/// Zeros.
pub(crate) struct ZeroKernel;

impl Kernel for ZeroKernel {
    fn run(&self, memory: &mut Memory, _: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        results.iter().for_each(|&place| memory.bytes_mut(place).fill(0));
        Ok(())
    }
}

/// Storage without contents. A reader should notice: all bits are set, which is NaN in types that have it, and -1 in
/// integers.
pub(crate) struct UnwrittenKernel;

impl Kernel for UnwrittenKernel {
    fn run(&self, memory: &mut Memory, _: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        results.iter().for_each(|&place| memory.bytes_mut(place).fill(0xff));
        Ok(())
    }
}

/// A bitcast between types of different width: elements of the narrow one are parts of the wide one, lowest bits
/// first.
pub(crate) struct BitcastConvertKernel {
    operand: Dense,
    result: Dense,
}

impl BitcastConvertKernel {
    pub(crate) fn new(operand: &Operand, result: &ArrayShape) -> Result<BitcastConvertKernel, Error> {
        Ok(BitcastConvertKernel { operand: Dense::operand(operand)?, result: Dense::new(0, result)? })
    }
}

impl Kernel for BitcastConvertKernel {
    /// The operand's elements in row-major order, none sharing a byte.
    fn scratch_bytes(&self) -> usize {
        self.operand.byte_count()
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let (from, to) = (self.operand.shape.element_type, self.result.shape.element_type);
        self.operand.read(memory, operands, from, scratch);
        let per_operand = from.byte_width() as usize;
        let width = to.byte_width() as usize;
        let mut bytes = vec![0u8; LANES * width];
        self.result.fill(memory, results, to, |memory, base, n, lanes| {
            let given = memory.bytes(scratch);
            bytes.fill(0);
            for (k, element) in bytes.chunks_mut(width).take(n).enumerate() {
                // Bit `b` of this element is a bit of the operand element that it falls into.
                let first = (base + k) * to.bits() as usize;
                let step = if from.bits() % 8 == 0 && to.bits() % 8 == 0 { 8 } else { 1 };
                for b in (0..to.bits() as usize).step_by(step) {
                    let (of, within) =
                        ((first + b) / from.bits() as usize, (first + b) % from.bits() as usize);
                    let byte = given[of * per_operand + within / 8] >> (within % 8);
                    element[b / 8] |= if step == 8 { byte } else { (byte & 1) << (b % 8) };
                }
            }
            load(to, &bytes, At::Consecutive(0), n, lanes);
        });
        Ok(())
    }
}
