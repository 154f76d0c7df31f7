//! How many operands opcodes take.

use memplan_ir::Opcode;

use super::elementwise::{Elementwise, elementwise_kind};
use super::{Operation, Parsed};
use crate::error::ParseErrorKind;

impl Operation<'_, '_> {
    /// XLA checks the number of operands while it parses, for it picks a constructor by it.
    pub(super) fn check_operand_count(&self) -> Parsed<()> {
        let found = self.operands.len();
        let expected = match operand_count(self.head.opcode) {
            Count::Any => return Ok(()),
            Count::Exactly(n) if n == found => return Ok(()),
            Count::AtLeast(n) if n <= found => return Ok(()),
            Count::Exactly(n) => ["0", "1", "2", "3", "4", "5", "6"][n],
            Count::AtLeast(n) => ["any number of", "at least 1", "at least 2"][n],
        };
        let kind = ParseErrorKind::OperandCount { opcode: self.head.opcode, expected, found };
        Err(self.parser.cursor.error_at(self.head.span.clone(), kind))
    }
}

/// How many operands an opcode takes.
enum Count {
    Any,
    Exactly(usize),
    AtLeast(usize),
}

fn operand_count(opcode: Opcode) -> Count {
    use Opcode::*;
    match opcode {
        Iota | ReplicaId | PartitionId | RngGetAndUpdateState => Count::Exactly(0),
        Broadcast
        | Reshape
        | Transpose
        | Reverse
        | Slice
        | TopK
        | Fft
        | Cholesky
        | ReducePrecision
        | RngBitGenerator
        | GetDimensionSize
        | GetTupleElement
        | While
        | Domain
        | Infeed
        | SendDone
        | RecvDone
        | CopyStart
        | CopyDone
        | AllGatherDone
        | AllReduceDone
        | CollectivePermuteDone
        | Recv
        | Bitcast
        | BitcastConvert
        | Convert
        | Copy
        | OptimizationBarrier
        | AsyncDone => Count::Exactly(1),
        Pad | Gather | Dot | Convolution | TriangularSolve | Compare | SetDimensionSize | AddDependency
        | Outfeed | Send | StochasticConvert => Count::Exactly(2),
        Clamp | Select | SelectAndScatter | BatchNormTraining | RaggedDot => Count::Exactly(3),
        ScaledDot => Count::Exactly(4),
        BatchNormInference | BatchNormGrad => Count::Exactly(5),
        RaggedAllToAll => Count::Exactly(6),
        DynamicReshape
        | DynamicSlice
        | AsyncUpdate
        | Conditional
        | CollectivePermute
        | CollectivePermuteStart => Count::AtLeast(1),
        DynamicUpdateSlice | ReduceWindow => Count::AtLeast(2),
        _ => match elementwise_kind(opcode) {
            Some(Elementwise::Unary(_)) => Count::Exactly(1),
            Some(Elementwise::Binary(_)) => Count::Exactly(2),
            None => Count::Any,
        },
    }
}
