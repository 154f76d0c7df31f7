//! Kernels: one instruction each, on places in memory.
//!
//! A kernel is made once per instruction and may run many times. It reads its operands and writes its results through
//! [`Memory`], and has no other memory than the scratch bytes that it requested.

mod batch_norm;
pub(crate) mod bytes;
pub(crate) mod convolution;
mod dense;
pub(crate) mod dot;
mod fft;
pub(crate) mod gemm;
mod lapack;
mod linalg;
pub(crate) mod loops;
mod matrix;
mod ragged_dot;
pub(crate) mod reduce;
mod rng;
mod scan;
pub(crate) mod scatter;
mod sort;

use memplan_ir::{ArrayShape, ElementType, EntityRef, InstructionId, Module, Op};

use crate::Error;
use crate::devices::{Group, listed_group};
use crate::lambda::Lambda;
use crate::memory::{Memory, Place};

/// The executable form of an instruction.
pub(crate) trait Kernel {
    /// Bytes of working memory that a run needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Computes the results. Operands and results are the leaves of the instruction's operands and shape, in order; a
    /// result may be the very place of an operand where HLO allows it, otherwise they are apart.
    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error>;
}

/// An array operand of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    /// Which of the places that [`Kernel::run`] is given.
    pub(crate) number: usize,
    /// Its shape, layout included.
    pub(crate) shape: ArrayShape,
}

/// Calls that describe arrays on devices, in memory spaces or in layouts, or convert between arrays and references. In a program
/// that is not partitioned, with one memory, they return their operands.
pub(crate) const MARKERS: [&str; 12] = [
    "LayoutConstraint",
    "annotate_device_placement",
    "MoveToHost",
    "MoveToDevice",
    "Sharding",
    "xla.sdy.FuncResultSharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
    "Pin",
    "Unpin",
];

/// The kernel of an operation that reads its operands in memory layout; `None` for loops.
pub(crate) fn whole_array_kernel(
    module: &Module,
    id: InstructionId,
    operands: &[Operand],
    results: &[(usize, &ArrayShape)],
) -> Result<Option<Box<dyn Kernel>>, Error> {
    let result = |k: usize| results[k].1;
    Ok(Some(match &module.instructions[id].op {
        Op::Dot(dot) => Box::new(dot::DotKernel::new(&dot.dimensions, operands, result(0))?),
        Op::ScaledDot(dot) => {
            Box::new(dot::ScaledDotKernel::new(module, id, &dot.dimensions, operands, result(0))?)
        }
        Op::RaggedDot(dot) => {
            Box::new(ragged_dot::RaggedDotKernel::new(module, id, dot, operands, result(0))?)
        }
        Op::Convolution(c) => Box::new(convolution::ConvolutionKernel::new(
            &c.window,
            &c.dimensions,
            c.feature_group_count,
            c.batch_group_count,
            operands,
            result(0),
        )?),
        Op::Sort { dimension, .. } => {
            let comparator = Lambda::new(module, module.instructions[id].called[0])?;
            Box::new(sort::SortKernel::new(operands, results, *dimension, comparator)?)
        }
        Op::TopK { largest, .. } => Box::new(sort::TopKKernel::new(&operands[0], results, *largest)?),
        Op::Map { .. } => {
            let function = module.instructions[id].called[0];
            Box::new(scan::MapKernel::new(module, function, operands, result(0))?)
        }
        Op::Scan(s) => Box::new(scan::ScanKernel::new(module, id, (**s).clone(), operands, results)?),
        Op::Fft { kind, lengths } => Box::new(fft::FftKernel::new(&operands[0], result(0), *kind, lengths)?),
        Op::Cholesky { lower } => Box::new(linalg::CholeskyKernel::new(&operands[0], result(0), *lower)?),
        Op::TriangularSolve(options) => {
            Box::new(linalg::TriangularSolveKernel::new(operands, result(0), *options)?)
        }
        op @ (Op::BatchNormTraining { .. } | Op::BatchNormInference { .. } | Op::BatchNormGrad { .. }) => {
            Box::new(batch_norm::BatchNormKernel::new(op, operands, results)?)
        }
        Op::BitcastConvert if operands[0].shape.element_type.bits() != result(0).element_type.bits() => {
            Box::new(bytes::BitcastConvertKernel::new(&operands[0], result(0))?)
        }
        Op::Bitcast => Box::new(bytes::CopyKernel { pairs: vec![(operands[0].number, 0)] }),
        // A device in no group receives from no one.
        Op::CollectiveBroadcast(c) if matches!(listed_group(&c.replica_groups, 0), Some(Group::Nobody)) => {
            Box::new(bytes::ZeroKernel)
        }
        // One device: the gathered, reduced or exchanged data is its own.
        Op::AllReduce(_)
        | Op::AllReduceStart(_)
        | Op::AllGather(_)
        | Op::AllGatherStart(_)
        | Op::ReduceScatter(_)
        | Op::AllToAll(_)
        | Op::CollectiveBroadcast(_) => Box::new(bytes::CopyKernel {
            pairs: results.iter().enumerate().map(|(k, r)| (operands[k].number, r.0)).collect(),
        }),
        Op::CollectivePermute(c) | Op::CollectivePermuteStart(c) => {
            match c.source_target_pairs.contains(&(0, 0)) {
                true => Box::new(bytes::CopyKernel { pairs: vec![(operands[0].number, 0)] }),
                // A device that receives from no one gets zeros.
                false => Box::new(bytes::ZeroKernel),
            }
        }
        Op::RngBitGenerator { algorithm } => {
            Box::new(rng::BitsKernel::new(&operands[0], results, *algorithm)?)
        }
        Op::Rng { distribution } => {
            Box::new(rng::RngKernel::new(operands, result(0), *distribution, id.index() as u64)?)
        }
        Op::RngGetAndUpdateState { delta } => Box::new(rng::StateKernel::new(result(0), *delta)?),
        Op::ReplicaId | Op::PartitionId => Box::new(bytes::ZeroKernel),
        op if op.is_allocation() => Box::new(bytes::UnwrittenKernel),
        Op::CustomCall(call) => match &*call.target {
            "TopK" | "topk" => match is_top_k(operands, results) {
                true => Box::new(sort::TopKKernel::new(&operands[0], results, true)?),
                false => return Err(Error::invalid(module, id, "its arrays do not fit together")),
            },
            target if MARKERS.contains(&target) => Box::new(partition_marker(module, id, operands, results)?),
            target => {
                if let Some(kernel) = lapack::LapackKernel::new(module, id, target, operands, results)? {
                    return Ok(Some(Box::new(kernel)));
                }
                let instruction = module.instructions[id].name.to_string();
                return Err(Error::UnknownCustomCall { instruction, target: target.to_string() });
            }
        },
        _ => return Ok(None),
    }))
}

/// Whether a custom call has the arrays of a `topk`: one, and for each of its lines the largest elements and where they
/// were.
fn is_top_k(operands: &[Operand], results: &[(usize, &ArrayShape)]) -> bool {
    let ([operand], [(_, values), (_, indices)]) = (operands, results) else { return false };
    let Some((line, lines)) = operand.shape.dimensions.split_last() else { return false };
    let has_lines =
        |of: &ArrayShape| of.dimensions.split_last().is_some_and(|(k, rest)| rest == lines && k <= line);
    has_lines(values)
        && values.dimensions == indices.dimensions
        && values.element_type == operand.shape.element_type
        && indices.element_type == ElementType::S32
}

/// A copy, as long as every array stays whole and keeps its layout.
fn partition_marker(
    module: &Module,
    id: InstructionId,
    operands: &[Operand],
    results: &[(usize, &ArrayShape)],
) -> Result<bytes::CopyKernel, Error> {
    let is_same = |(operand, (_, result)): (&Operand, &(usize, &ArrayShape))| operand.shape == **result;
    match operands.len() == results.len() && operands.iter().zip(results).all(is_same) {
        true => Ok(bytes::CopyKernel {
            pairs: operands.iter().zip(results).map(|(operand, result)| (operand.number, result.0)).collect(),
        }),
        false => Err(Error::unsupported(
            module,
            id,
            "it is between whole arrays and their parts on each device, so the program has yet to be partitioned",
        )),
    }
}
