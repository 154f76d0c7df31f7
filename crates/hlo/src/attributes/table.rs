//! The table: the attributes of each operation, and their names.
//!
//! An entry has the opcodes that share it, the struct with the fields (the [`Op`](memplan_ir::Op) itself, or a struct
//! in it), and its fields in XLA's order:
//!
//! ```text
//!     Sort => Op {
//!         dimension: required(Dimensions) [dimensions],
//!         is_stable: optional(IsStable) [is_stable],
//!     }
//! ```
//!
//! The field's name is followed by its spelling in text, as the name of two methods: that of
//! [`Operation`](crate::parser::Operation) reads the named attributes, that of [`Printer`](crate::printer::Printer)
//! writes them.
//!
//! | | absent from text | in text |
//! |---|---|---|
//! | `required` | an error | always |
//! | `some` | `None` | when there is a value |
//! | `optional` | the default of the type | when it is something else |
//! | `stated` | the default of the type | always |
//! | `count` | one | when it is more |
//! | `silent` | the default of the type | never |
//!
//! The brackets contain the field of `HloInstructionProto`, or of a message in it (`a.b`; `a?.b` if a missing message
//! means one of defaults); `via f` names two methods again, of `proto::import::Import` and `proto::export::Export`;
//! `[]` is no field.
//!
//! The table omits constants, whose value is in place of operands, the later parts of asynchronous operations, which
//! repeat the start's attributes, and called computations ([`called`](super::called)).

/// Hands the table to a macro.
macro_rules! operations {
    ($macro:ident) => {
        $macro! {
            Parameter => Op {
                number: silent() [parameter_number],
            }
            Compare => Op {
                direction: required(Direction) [comparison_direction],
                comparison_type: comparison_type(Type, Order) [via comparison_type],
            }
            Iota => Op {
                dimension: required(IotaDimension) [dimensions],
            }
            ReducePrecision => Op {
                exponent_bits: required(ExponentBits) [exponent_bits],
                mantissa_bits: required(MantissaBits) [mantissa_bits],
            }
            Broadcast => Op {
                dimensions: broadcast(Dimensions) [dimensions],
            }
            Transpose | Reverse | Reduce => Op {
                dimensions: required(Dimensions) [dimensions],
            }
            Map => Op {
                dimensions: stated(Dimensions) [dimensions],
            }
            Concatenate | GetDimensionSize | SetDimensionSize => Op {
                dimension: required(Dimensions) [dimensions],
            }
            Reshape => Op {
                inferred_dimension: some(InferredDimension) [via inferred_dimension],
            }
            Slice => Op {
                dimensions: required(Slice) [slice_dimensions],
            }
            DynamicSlice => Op {
                slice_sizes: required(DynamicSliceSizes) [dynamic_slice_sizes],
            }
            Pad => Op {
                dimensions: required(Padding) [padding_config],
            }
            Gather => GatherDimensions {
                offset_dims: required(OffsetDims) [gather_dimension_numbers.offset_dims],
                collapsed_slice_dims: required(CollapsedSliceDims) [gather_dimension_numbers.collapsed_slice_dims],
                start_index_map: required(StartIndexMap) [gather_dimension_numbers.start_index_map],
                operand_batching_dims: optional(OperandBatchingDims) [gather_dimension_numbers.operand_batching_dims],
                start_indices_batching_dims: optional(StartIndicesBatchingDims) [gather_dimension_numbers.start_indices_batching_dims],
                index_vector_dim: required(IndexVectorDim) [gather_dimension_numbers.index_vector_dim],
                slice_sizes: required(SliceSizes) [gather_slice_sizes],
                indices_are_sorted: optional(IndicesAreSorted) [indices_are_sorted],
            }
            Scatter => ScatterDimensions {
                update_window_dims: required(UpdateWindowDims) [scatter_dimension_numbers.update_window_dims],
                inserted_window_dims: required(InsertedWindowDims) [scatter_dimension_numbers.inserted_window_dims],
                scatter_dims_to_operand_dims: required(ScatterDimsToOperandDims) [scatter_dimension_numbers.scatter_dims_to_operand_dims],
                input_batching_dims: optional(InputBatchingDims) [scatter_dimension_numbers.input_batching_dims],
                scatter_indices_batching_dims: optional(ScatterIndicesBatchingDims) [scatter_dimension_numbers.scatter_indices_batching_dims],
                index_vector_dim: required(IndexVectorDim) [scatter_dimension_numbers.index_vector_dim],
                indices_are_sorted: optional(IndicesAreSorted) [indices_are_sorted],
                unique_indices: optional(UniqueIndices) [unique_indices],
            }
            ReduceWindow | SelectAndScatter => Itself {
                optional(Window) [window],
            }
            Scan => Scan {
                dimension: required(Dimensions) [dimensions],
                is_reverse: optional(IsReverse) [is_reverse],
                is_associative: associative(IsAssociative) [is_associative],
                num_carries: required(NumCarries) [num_carries],
            }
            Sort => Op {
                dimension: required(Dimensions) [dimensions],
                is_stable: optional(IsStable) [is_stable],
            }
            TopK => Op {
                k: required(K) [k],
                largest: largest(Largest) [largest],
                is_stable: some(IsStable) [is_stable],
            }
            Dot | ScaledDot => Dot {
                dimensions: dot_dimensions(LhsBatchDims, LhsContractingDims, RhsBatchDims, RhsContractingDims) [dot_dimension_numbers],
                precision: precision(OperandPrecision, Algorithm) [via precision],
            }
            RaggedDot => RaggedDot {
                dimensions: dot_dimensions(LhsBatchDims, LhsContractingDims, RhsBatchDims, RhsContractingDims)
                    [ragged_dot_dimension_numbers.dot_dimension_numbers],
                lhs_ragged_dims: optional(LhsRaggedDims) [ragged_dot_dimension_numbers.lhs_ragged_dimensions],
                rhs_group_dims: optional(RhsGroupDims) [ragged_dot_dimension_numbers.rhs_group_dimensions],
                precision: precision(OperandPrecision, Algorithm) [via precision],
            }
            Convolution => Convolution {
                window: optional(Window) [window],
                dimensions: required(DimLabels) [convolution_dimension_numbers],
                feature_group_count: count(FeatureGroupCount) [via feature_group_count],
                batch_group_count: count(BatchGroupCount) [via batch_group_count],
                kind: optional(ConvolutionKind) [conv_kind],
                precision: precision(OperandPrecision, Algorithm) [via precision],
                sparsity: optional(SparsityConfig) [sparsity_config],
            }
            Fft => Op {
                kind: required(FftType) [fft_type],
                lengths: required(FftLength) [fft_length],
            }
            TriangularSolve => TriangularSolve {
                left_side: optional(LeftSide) [triangular_solve_options?.left_side],
                lower: optional(Lower) [triangular_solve_options?.lower],
                unit_diagonal: optional(UnitDiagonal) [triangular_solve_options?.unit_diagonal],
                transpose_a: stated(TransposeA) [triangular_solve_options?.transpose_a],
            }
            Cholesky => Op {
                lower: optional(Lower) [cholesky_options?.lower],
            }
            BatchNormTraining | BatchNormInference | BatchNormGrad => Op {
                epsilon: required(Epsilon) [epsilon],
                feature_index: required(FeatureIndex) [feature_index],
            }
            Rng => Op {
                distribution: required(Distribution) [distribution],
            }
            RngBitGenerator => Op {
                algorithm: required(Algorithm) [rng_algorithm],
            }
            RngGetAndUpdateState => Op {
                delta: required(Delta) [delta],
            }
            GetTupleElement => Op {
                index: required(Index) [tuple_index],
            }
            Call => Op {
                is_composite: optional(IsComposite) [is_composite],
            }
            Fusion => Fusion {
                kind: required(Kind) [fusion_kind],
                output_operand_aliasing: optional(OutputToOperandAliasing) [output_operand_aliasing],
            }
            CustomCall => CustomCall {
                window: some(Window) [window],
                dimensions: some(DimLabels) [convolution_dimension_numbers],
                feature_group_count: count(FeatureGroupCount) [via feature_group_count],
                batch_group_count: count(BatchGroupCount) [via batch_group_count],
                precision: precision(OperandPrecision, Algorithm) [via precision],
                padding_type: some(PaddingType) [padding_type],
                target: required(CustomCallTarget) [custom_call_target],
                operand_layout_constraints: some(OperandLayoutConstraints) [via operand_layout_constraints],
                has_side_effect: optional(CustomCallHasSideEffect) [custom_call_has_side_effect],
                literal: some(Literal) [literal],
                output_operand_aliasing: optional(OutputToOperandAliasing) [output_operand_aliasing],
                schedule: optional(Schedule) [custom_call_schedule],
                api_version: optional(ApiVersion) [custom_call_api_version],
                uses_to_apply: silent() [],
            }
            Domain => Itself {
                required(Domain) [via domain],
            }
            Infeed => Feed {
                config: optional(InfeedConfig) [infeed_config],
                shape: silent() [],
            }
            Outfeed => Feed {
                shape: outfeed_shape(OutfeedShape) [via outfeed_shape],
                config: optional(OutfeedConfig) [outfeed_config],
            }
            Send | SendDone | Recv | RecvDone => Transfer {
                channel_id: some(ChannelId) [channel_id],
                is_host_transfer: optional(IsHostTransfer) [is_host_transfer],
            }
            CopyStart => Op {
                cross_program_prefetch_index: some(CrossProgramPrefetchIndex) [cross_program_prefetch_index],
            }
            AllGather
            | AllGatherStart
            | AllReduce
            | AllReduceStart
            | AllToAll
            | CollectiveBroadcast
            | RaggedAllToAll
            | ReduceScatter => Collective {
                channel_id: some(ChannelId) [channel_id],
                replica_groups: stated(ReplicaGroups) [via replica_groups],
                constrain_layout: optional(ConstrainLayout) [constrain_layout],
                mode: some(Mode) [],
                use_global_device_ids: optional(UseGlobalDeviceIds) [use_global_device_ids],
                has_dynamic_root: optional(HasDynamicRoot) [has_dynamic_root],
                dimension: gathered(Dimensions) [dimensions],
                source_target_pairs: silent() [source_target_pairs],
                slice_sizes: silent() [via slice_sizes],
            }
            CollectivePermute | CollectivePermuteStart => Collective {
                channel_id: some(ChannelId) [channel_id],
                source_target_pairs: required(SourceTargetPairs) [source_target_pairs],
                slice_sizes: optional(SliceSizes) [via slice_sizes],
                mode: some(Mode) [],
                replica_groups: silent() [via replica_groups],
                constrain_layout: silent() [constrain_layout],
                use_global_device_ids: silent() [use_global_device_ids],
                has_dynamic_root: silent() [has_dynamic_root],
                dimension: silent() [dimensions],
            }
            AllGatherDone | AllReduceDone | CollectivePermuteDone => Collective {
                channel_id: silent() [channel_id],
                replica_groups: silent() [via replica_groups],
                constrain_layout: silent() [constrain_layout],
                mode: silent() [],
                use_global_device_ids: silent() [use_global_device_ids],
                has_dynamic_root: silent() [has_dynamic_root],
                dimension: silent() [dimensions],
                source_target_pairs: silent() [source_target_pairs],
                slice_sizes: silent() [via slice_sizes],
            }
            AsyncStart => Async {
                execution_thread: optional(AsyncExecutionThread) [via execution_thread],
                output_operand_aliasing: optional(OutputToOperandAliasing) [output_operand_aliasing],
            }
        }
    };
}

/// Hands the names of the attributes in the table to a macro, each with the function of `parser::value` that reads its value.
macro_rules! attributes {
    ($macro:ident) => {
        $macro! {
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
    };
}

/// Binds references to the fields of an operation.
macro_rules! fields {
    ($op:ident, $opcode:ident, Op, [$($field:ident)*]) => {
        let Op::$opcode { $($field),* } = $op else { unreachable!("just matched") };
    };
    ($op:ident, $opcode:ident, Itself, [$it:ident]) => {
        let Op::$opcode($it) = $op else { unreachable!("just matched") };
    };
    ($op:ident, $opcode:ident, $of:ident, [$($field:ident)*]) => {
        let Op::$opcode(it) = $op else { unreachable!("just matched") };
        let it: &$of = it;
        let $of { $($field),* } = it;
    };
}

pub(crate) use {attributes, fields, operations};
