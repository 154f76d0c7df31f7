//! Kernels: one instruction each, on places in memory.
//!
//! A kernel is made once per instruction and may run many times. It reads its operands and writes its results through
//! [`Memory`], and gets no other memory than the bytes of scratch it asked for.

pub(crate) mod convolution;
pub(crate) mod dot;
pub(crate) mod gemm;
pub(crate) mod loops;
pub(crate) mod reduce;
pub(crate) mod scatter;

use memplan_ir::{ArrayShape, InstructionId, Module, Op};

use crate::Error;
use crate::memory::{Memory, Place};

/// What an instruction does when it runs.
pub(crate) trait Kernel {
    /// Bytes of working memory that a run needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Computes the results. Operands and results are the leaves of the instruction's operands and shape, in order; a
    /// result may be the very place of an operand where HLO allows it, otherwise they are apart.
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], scratch: Place) -> Result<(), Error>;
}

/// An array operand of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    /// Which of the places that [`Kernel::run`] is given.
    pub(crate) number: usize,
    /// Its shape, layout included.
    pub(crate) shape: ArrayShape,
}

/// The kernel of an operation that reads its operands as they lie in memory; `None` for those that are loops.
pub(crate) fn whole_array_kernel(
    module: &Module,
    id: InstructionId,
    operands: &[Operand],
    results: &[(usize, &ArrayShape)],
) -> Result<Option<Box<dyn Kernel>>, Error> {
    let result = |k: usize| results[k].1;
    Ok(Some(match &module.instructions[id].op {
        Op::Dot(dot) => Box::new(dot::DotKernel::new(&dot.dimensions, operands, result(0))?),
        Op::Convolution(c) => Box::new(convolution::ConvolutionKernel::new(
            &c.window,
            &c.dimensions,
            c.feature_group_count,
            c.batch_group_count,
            operands,
            result(0),
        )?),
        _ => return Ok(None),
    }))
}
