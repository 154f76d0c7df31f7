//! Attributes that belong together: the dimension numbers of dots, gathers and scatters, windows, groups of devices.

use memplan_ir::{
    Collective, Convolution, CustomCall, Dimensions, Dot, DotDimensions, GatherDimensions, Opcode,
    PrecisionConfig, RaggedDot, ScatterDimensions, Transfer,
};
use smallvec::smallvec;

use super::{A, Called, Operation, Parsed};
use crate::error::ParseErrorKind;

impl Operation<'_, '_> {
    pub(super) fn branches(&mut self) -> Parsed<Called> {
        let branches: Called = if self.attributes.has(A::BranchComputations) {
            let branches = self.attributes.computations(A::BranchComputations).expect("just looked");
            branches.into_iter().collect()
        } else {
            smallvec![self.computation(A::TrueComputation)?, self.computation(A::FalseComputation)?]
        };
        if self.operands.len() != branches.len() + 1 {
            let (branches, found) = (branches.len(), self.operands.len().saturating_sub(1));
            let kind = ParseErrorKind::BranchCount { branches, found };
            return Err(self.parser.cursor.error_at(self.head.span.clone(), kind));
        }
        Ok(branches)
    }

    /// Scalars are broadcast along nothing, which need not be said.
    pub(super) fn broadcast_dimensions(&mut self) -> Parsed<Dimensions> {
        let operand = self.parser.module.shape(self.operands[0]);
        let is_scalar = operand.as_array().is_some_and(|array| array.rank() == 0);
        match is_scalar && !self.attributes.has(A::Dimensions) {
            true => Ok(Dimensions::new()),
            false => self.integers(A::Dimensions),
        }
    }

    pub(super) fn gather(&mut self) -> Parsed<GatherDimensions> {
        Ok(GatherDimensions {
            offset_dims: self.integers(A::OffsetDims)?,
            collapsed_slice_dims: self.integers(A::CollapsedSliceDims)?,
            start_index_map: self.integers(A::StartIndexMap)?,
            index_vector_dim: self.integer(A::IndexVectorDim)?,
            operand_batching_dims: self.attributes.integers(A::OperandBatchingDims).unwrap_or_default(),
            start_indices_batching_dims: self
                .attributes
                .integers(A::StartIndicesBatchingDims)
                .unwrap_or_default(),
            slice_sizes: self.integers(A::SliceSizes)?,
            indices_are_sorted: self.flag(A::IndicesAreSorted),
        })
    }

    pub(super) fn scatter(&mut self) -> Parsed<ScatterDimensions> {
        Ok(ScatterDimensions {
            update_window_dims: self.integers(A::UpdateWindowDims)?,
            inserted_window_dims: self.integers(A::InsertedWindowDims)?,
            scatter_dims_to_operand_dims: self.integers(A::ScatterDimsToOperandDims)?,
            index_vector_dim: self.integer(A::IndexVectorDim)?,
            input_batching_dims: self.attributes.integers(A::InputBatchingDims).unwrap_or_default(),
            scatter_indices_batching_dims: self
                .attributes
                .integers(A::ScatterIndicesBatchingDims)
                .unwrap_or_default(),
            indices_are_sorted: self.flag(A::IndicesAreSorted),
            unique_indices: self.flag(A::UniqueIndices),
        })
    }

    pub(super) fn dot(&mut self) -> Parsed<Dot> {
        Ok(Dot { dimensions: self.dot_dimensions(), precision: self.precision()? })
    }

    pub(super) fn ragged_dot(&mut self) -> Parsed<RaggedDot> {
        Ok(RaggedDot {
            dimensions: self.dot_dimensions(),
            lhs_ragged_dims: self.attributes.integers(A::LhsRaggedDims).unwrap_or_default(),
            rhs_group_dims: self.attributes.integers(A::RhsGroupDims).unwrap_or_default(),
            precision: self.precision()?,
        })
    }

    fn dot_dimensions(&mut self) -> DotDimensions {
        let mut get = |attribute| self.attributes.integers(attribute).unwrap_or_default();
        DotDimensions {
            lhs_contracting: get(A::LhsContractingDims),
            rhs_contracting: get(A::RhsContractingDims),
            lhs_batch: get(A::LhsBatchDims),
            rhs_batch: get(A::RhsBatchDims),
        }
    }

    pub(super) fn precision(&mut self) -> Parsed<PrecisionConfig> {
        Ok(PrecisionConfig {
            operand_precision: self.attributes.precisions(A::OperandPrecision).unwrap_or_default(),
            algorithm: self
                .optional_word(A::Algorithm, "an algorithm like dot_f32_f32_f32")?
                .unwrap_or_default(),
        })
    }

    pub(super) fn convolution(&mut self) -> Parsed<Convolution> {
        self.required(A::DimLabels, self.attributes.has(A::DimLabels))?;
        let dimensions = self.attributes.labels(A::DimLabels).expect("just required");
        Ok(Convolution {
            window: self.attributes.window(A::Window).map(|window| *window).unwrap_or_default(),
            dimensions: *dimensions,
            feature_group_count: self.attributes.integer(A::FeatureGroupCount).unwrap_or(1),
            batch_group_count: self.attributes.integer(A::BatchGroupCount).unwrap_or(1),
            kind: self.optional_word(A::ConvolutionKind, "fprop, dgrad or wgrad")?.unwrap_or_default(),
            precision: self.precision()?,
            sparsity: self.attributes.sparsity(A::SparsityConfig).map(|sides| *sides).unwrap_or_default(),
        })
    }

    pub(super) fn custom_call(&mut self) -> Parsed<(CustomCall, Called)> {
        self.required(A::CustomCallTarget, self.attributes.has(A::CustomCallTarget))?;
        let target = self.attributes.string(A::CustomCallTarget).expect("just required");
        let to_apply = self.attributes.computation(A::ToApply);
        let several = self.attributes.computations(A::CalledComputations);
        let called = to_apply.into_iter().chain(several.into_iter().flatten()).collect();
        let call = CustomCall {
            target,
            window: self.attributes.window(A::Window).map(|window| *window),
            dimensions: self.attributes.labels(A::DimLabels).map(|labels| *labels),
            feature_group_count: self.attributes.integer(A::FeatureGroupCount),
            batch_group_count: self.attributes.integer(A::BatchGroupCount),
            operand_layout_constraints: self.attributes.shapes(A::OperandLayoutConstraints),
            has_side_effect: self.flag(A::CustomCallHasSideEffect),
            output_operand_aliasing: self.attributes.aliases(A::OutputToOperandAliasing).unwrap_or_default(),
            padding_type: self.optional_word(A::PaddingType, "PADDING_VALID or PADDING_SAME")?,
            literal: self.attributes.literal(A::Literal).map(|literal| *literal),
            precision: self.precision()?,
            schedule: self
                .optional_word(A::Schedule, "SCHEDULE_NONE, SCHEDULE_LATEST or SCHEDULE_EARLIEST")?
                .unwrap_or_default(),
            api_version: self
                .optional_word(A::ApiVersion, "an API version like API_VERSION_TYPED_FFI")?
                .unwrap_or_default(),
            uses_to_apply: to_apply.is_some(),
        };
        Ok((call, called))
    }

    pub(super) fn transfer(&mut self) -> Transfer {
        Transfer {
            channel_id: self.attributes.integer(A::ChannelId),
            is_host_transfer: self.flag(A::IsHostTransfer),
        }
    }

    pub(super) fn collective(&mut self, called: &mut Called) -> Parsed<Box<Collective>> {
        let opcode = self.head.opcode;
        if matches!(opcode, Opcode::AllReduce | Opcode::AllReduceStart | Opcode::ReduceScatter) {
            called.push(self.computation(A::ToApply)?);
        }
        let has_dimension = self.attributes.has(A::Dimensions);
        let needs_dimension =
            matches!(opcode, Opcode::AllGather | Opcode::AllGatherStart | Opcode::ReduceScatter);
        let is_permute = matches!(opcode, Opcode::CollectivePermute | Opcode::CollectivePermuteStart);
        self.required(A::SourceTargetPairs, !is_permute || self.attributes.has(A::SourceTargetPairs))?;
        Ok(Box::new(Collective {
            replica_groups: self
                .attributes
                .groups(A::ReplicaGroups)
                .map(|groups| *groups)
                .unwrap_or_default(),
            channel_id: self.attributes.integer(A::ChannelId),
            constrain_layout: self.flag(A::ConstrainLayout),
            use_global_device_ids: self.flag(A::UseGlobalDeviceIds),
            dimension: match has_dimension || needs_dimension {
                true => Some(self.one_dimension()?),
                false => None,
            },
            mode: self.optional_word(A::Mode, "a collective group mode like cross_replica")?,
            source_target_pairs: self.attributes.pairs(A::SourceTargetPairs).unwrap_or_default(),
            slice_sizes: self.attributes.slice_size_lists(),
            has_dynamic_root: self.flag(A::HasDynamicRoot),
        }))
    }
}
