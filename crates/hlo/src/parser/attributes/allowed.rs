//! Which opcode takes which attributes.

use memplan_ir::{Arithmetic, Opcode};

use super::{Attribute, Head};

/// Whether an instruction takes an attribute. An async spelling like `slice-start` takes those of both, but for the
/// computation of the start, which is made around the slice.
pub(super) fn is_allowed(head: &Head, attribute: Attribute) -> bool {
    let own = allowed(head.opcode).contains(&attribute);
    match head.wrapped.filter(|_| head.opcode == Opcode::AsyncStart) {
        Some(wrapped) => allowed(wrapped).contains(&attribute) || own && attribute != Attribute::Calls,
        None => own,
    }
}

/// The attributes that an opcode takes beside those every instruction may have.
pub(super) fn allowed(opcode: Opcode) -> &'static [Attribute] {
    use Attribute::*;
    match opcode {
        Opcode::AllGather | Opcode::AllGatherStart => {
            &[Dimensions, ReplicaGroups, ChannelId, ConstrainLayout, UseGlobalDeviceIds, Mode]
        }
        Opcode::AllReduce | Opcode::AllReduceStart => {
            &[ToApply, ReplicaGroups, ChannelId, ConstrainLayout, UseGlobalDeviceIds, Mode]
        }
        Opcode::ReduceScatter => {
            &[ToApply, Dimensions, ReplicaGroups, ChannelId, ConstrainLayout, UseGlobalDeviceIds, Mode]
        }
        Opcode::AllToAll => &[Dimensions, ReplicaGroups, ChannelId, ConstrainLayout, Mode],
        Opcode::RaggedAllToAll => &[Dimensions, ReplicaGroups, ChannelId, Mode],
        Opcode::CollectiveBroadcast => &[ReplicaGroups, ChannelId, HasDynamicRoot, Mode],
        Opcode::CollectivePermute | Opcode::CollectivePermuteStart => {
            &[SourceTargetPairs, ChannelId, SliceSizes, Mode]
        }
        Opcode::AsyncStart => &[Calls, AsyncExecutionThread, OutputToOperandAliasing],
        Opcode::AsyncUpdate | Opcode::AsyncDone => &[Calls, AsyncExecutionThread],
        Opcode::BatchNormGrad | Opcode::BatchNormInference | Opcode::BatchNormTraining => {
            &[Epsilon, FeatureIndex]
        }
        Opcode::Broadcast
        | Opcode::Concatenate
        | Opcode::GetDimensionSize
        | Opcode::Reverse
        | Opcode::SetDimensionSize
        | Opcode::Transpose => &[Dimensions],
        Opcode::Call => &[ToApply, IsComposite],
        Opcode::Cholesky => &[Lower],
        Opcode::Compare => &[Direction, Type],
        Opcode::Conditional => &[TrueComputation, FalseComputation, BranchComputations],
        Opcode::Convolution => &[
            Window,
            DimLabels,
            FeatureGroupCount,
            BatchGroupCount,
            ConvolutionKind,
            OperandPrecision,
            Algorithm,
            SparsityConfig,
        ],
        Opcode::CopyStart => &[CrossProgramPrefetchIndex],
        Opcode::CustomCall => &[
            CustomCallTarget,
            Window,
            DimLabels,
            FeatureGroupCount,
            BatchGroupCount,
            OperandLayoutConstraints,
            CustomCallHasSideEffect,
            ToApply,
            CalledComputations,
            OutputToOperandAliasing,
            PaddingType,
            Literal,
            OperandPrecision,
            Algorithm,
            Schedule,
            ApiVersion,
        ],
        Opcode::Domain => &[Domain],
        Opcode::Dot | Opcode::ScaledDot => {
            &[LhsContractingDims, RhsContractingDims, LhsBatchDims, RhsBatchDims, OperandPrecision, Algorithm]
        }
        Opcode::RaggedDot => &[
            LhsContractingDims,
            RhsContractingDims,
            LhsBatchDims,
            RhsBatchDims,
            LhsRaggedDims,
            RhsGroupDims,
            OperandPrecision,
        ],
        Opcode::DynamicSlice => &[DynamicSliceSizes],
        Opcode::Fft => &[FftType, FftLength],
        Opcode::Fusion => &[Kind, Calls, OutputToOperandAliasing],
        Opcode::Gather => &[
            OffsetDims,
            CollapsedSliceDims,
            StartIndexMap,
            IndexVectorDim,
            SliceSizes,
            IndicesAreSorted,
            OperandBatchingDims,
            StartIndicesBatchingDims,
        ],
        Opcode::GetTupleElement => &[Index],
        Opcode::Infeed => &[InfeedConfig],
        Opcode::Iota => &[IotaDimension],
        Opcode::Map => &[ToApply, Dimensions],
        Opcode::Outfeed => &[OutfeedConfig, OutfeedShape],
        Opcode::Pad => &[Padding],
        Opcode::Recv | Opcode::RecvDone | Opcode::Send | Opcode::SendDone => &[ChannelId, IsHostTransfer],
        Opcode::Reduce => &[Dimensions, ToApply],
        Opcode::ReducePrecision => &[ExponentBits, MantissaBits],
        Opcode::ReduceWindow => &[Window, ToApply],
        Opcode::Reshape => &[InferredDimension],
        Opcode::Rng => &[Distribution],
        Opcode::RngBitGenerator => &[Algorithm],
        Opcode::RngGetAndUpdateState => &[Delta],
        Opcode::Scan => &[ToApply, Dimensions, NumCarries, IsReverse, IsAssociative],
        Opcode::Scatter => &[
            UpdateWindowDims,
            InsertedWindowDims,
            ScatterDimsToOperandDims,
            IndexVectorDim,
            ToApply,
            IndicesAreSorted,
            UniqueIndices,
            InputBatchingDims,
            ScatterIndicesBatchingDims,
        ],
        Opcode::SelectAndScatter => &[Window, Select, Scatter],
        Opcode::Slice => &[Slice],
        Opcode::Sort => &[Dimensions, IsStable, ToApply],
        Opcode::TopK => &[K, Largest, IsStable],
        Opcode::TriangularSolve => &[LeftSide, Lower, UnitDiagonal, TransposeA],
        Opcode::While => &[Condition, Body],
        // Functions that may be computed more or less accurately.
        unary if unary.traits().arithmetic != Arithmetic::Simple && unary.traits().operands.max == 1 => {
            &[ResultAccuracy]
        }
        _ => &[],
    }
}
