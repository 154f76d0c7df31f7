//! Operations that the evaluator does not support, or implements in its own way.

use memplan_ir::Opcode;

/// Notes about the evaluation of an operation; `None` if it is the same as XLA's.
pub fn limits(opcode: Opcode) -> Option<&'static str> {
    use Opcode::*;
    Some(match opcode {
        Infeed | Outfeed | Send | SendDone | Recv | RecvDone => "not supported: there is no host to talk to",
        CustomCall => {
            "built in: TopK, shardings, PadToStatic and SliceToDynamic, and LAPACK's getrf, geqrf, orgqr, ormqr, potrf, \
             syevd, gesdd and trsm as JAX calls them; others from a registry"
        }
        Rng => "HLO leaves the numbers open: Philox, from a seed",
        RngGetAndUpdateState => "each instruction has a state of its own, as in XLA",
        Dot | Convolution => {
            "sums of bf16 and f16 products are kept in f32; algorithms and precisions are not looked at"
        }
        Reduce | ReduceWindow => "sums of floats are kept in f64",
        ScaledDot => "elements, scales and their products are rounded to bf16, as in JAX's decomposition",
        RaggedDot => "groups may differ along batch dimensions, not along a second contracted one",
        BatchNormGrad | BatchNormInference | BatchNormTraining | Cholesky | Fft | TriangularSolve => {
            "computed in f64"
        }
        ReduceScatter | AllReduce | AllReduceStart => {
            "reduced in the order of the group, the same on all devices"
        }
        CollectivePermute | CollectivePermuteStart => "whole arrays; slices in place are not supported",
        SetDimensionSize => "within fusions not supported",
        DynamicReshape => "within fusions not supported",
        _ => return None,
    })
}
