//! Results that are the bytes of their operands.

use memplan_ir::ArrayShape;

use crate::Error;
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
    fn scratch_bytes(&self) -> usize {
        3 * (self.operand.count() + self.result.count()) * 16
    }

    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let (from, to) = (self.operand.shape.element_type, self.result.shape.element_type);
        let bytes = self.operand.read_bytes(memory, operands);
        let bits = |bytes: &[u8], width: u32| -> Vec<bool> {
            let per_element = width.div_ceil(8) as usize;
            bytes
                .chunks(per_element)
                .flat_map(|e| (0..width).map(|b| e[b as usize / 8] >> (b % 8) & 1 == 1))
                .collect()
        };
        let bytes: Vec<u8> = if from.bits() % 8 == 0 && to.bits() % 8 == 0 {
            bytes
        } else {
            let pack = |bits: &[bool]| {
                bits.chunks(8)
                    .map(|b| b.iter().rev().fold(0u8, |x, &bit| x << 1 | bit as u8))
                    .collect::<Vec<_>>()
            };
            bits(&bytes, from.bits()).chunks(to.bits() as usize).flat_map(pack).collect()
        };
        self.result.write_bytes(memory, results, &bytes);
        Ok(())
    }
}
