//! The names of attributes. They decide how the values are read.

use strum::{EnumIter, IntoStaticStr};

use super::Value;
use crate::parser::{Parsed, Parser, value};

macro_rules! keys {
    ($($key:ident: $kind:ident,)*) => {
        /// The attributes that only some opcodes take.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
        #[strum(serialize_all = "snake_case")]
        pub(crate) enum Attribute {
            $($key,)*
        }

        impl Attribute {
            /// Reads what follows the name and its `=`.
            pub(crate) fn read<'s>(self, parser: &mut Parser<'s>) -> Parsed<Value<'s>> {
                match self {
                    $(Attribute::$key => value::$kind(parser),)*
                }
            }
        }
    };
}

keys! {
    Algorithm: word,
    ApiVersion: word,
    AsyncExecutionThread: text,
    BatchGroupCount: integer,
    Body: computation,
    BranchComputations: computations,
    CalledComputations: computations,
    Calls: computation,
    ChannelId: integer,
    CollapsedSliceDims: integers,
    Condition: computation,
    ConstrainLayout: boolean,
    ConvolutionKind: word,
    CrossProgramPrefetchIndex: integer,
    CustomCallHasSideEffect: boolean,
    CustomCallTarget: text,
    Delta: integer,
    DimLabels: labels,
    Dimensions: integers,
    Direction: word,
    Distribution: word,
    Domain: domain,
    DynamicSliceSizes: integers,
    Epsilon: float,
    ExponentBits: integer,
    FalseComputation: computation,
    FeatureGroupCount: integer,
    FeatureIndex: integer,
    FftLength: integers,
    FftType: word,
    HasDynamicRoot: boolean,
    Index: integer,
    IndexVectorDim: integer,
    IndicesAreSorted: boolean,
    InfeedConfig: bytes,
    InferredDimension: integer,
    InputBatchingDims: integers,
    InsertedWindowDims: integers,
    IotaDimension: integer,
    IsAssociative: boolean,
    IsComposite: boolean,
    IsHostTransfer: boolean,
    IsReverse: boolean,
    IsStable: boolean,
    K: integer,
    Kind: word,
    Largest: boolean,
    LeftSide: boolean,
    LhsBatchDims: integers,
    LhsContractingDims: integers,
    LhsRaggedDims: integers,
    Literal: literal,
    Lower: boolean,
    MantissaBits: integer,
    Mode: word,
    NumCarries: integer,
    OffsetDims: integers,
    OperandBatchingDims: integers,
    OperandLayoutConstraints: shapes,
    OperandPrecision: precisions,
    Order: word,
    OutfeedConfig: bytes,
    OutfeedShape: shape,
    OutputToOperandAliasing: aliases,
    Padding: padding,
    PaddingType: word,
    ReplicaGroups: groups,
    ResultAccuracy: accuracy,
    RhsBatchDims: integers,
    RhsContractingDims: integers,
    RhsGroupDims: integers,
    Scatter: computation,
    ScatterDimsToOperandDims: integers,
    ScatterIndicesBatchingDims: integers,
    Schedule: word,
    Select: computation,
    Slice: slice,
    SliceSizes: integers_or_lists,
    SourceTargetPairs: pairs,
    SparsityConfig: sparsity,
    StartIndexMap: integers,
    StartIndicesBatchingDims: integers,
    ToApply: computation,
    TransposeA: word,
    TrueComputation: computation,
    Type: word,
    UniqueIndices: boolean,
    UnitDiagonal: boolean,
    UpdateWindowDims: integers,
    UseGlobalDeviceIds: boolean,
    Window: window,
}
