//! Dimension numbers, windows, and the values of enumerations.

use memplan_ir::{
    Convolution, ConvolutionDimensions, ConvolutionKind, CustomCallApiVersion, CustomCallSchedule,
    DotDimensions, FftKind, GatherDimensions, OutputOperandAlias, PaddingDimension, PaddingType, Precision,
    PrecisionAlgorithm, PrecisionConfig, RaggedDot, RngAlgorithm, RngDistribution, ScatterDimensions,
    SliceDimension, TensorSparsity, TriangularSolve, TriangularTranspose, Window, WindowDimension,
};

use super::{FieldError, enumeration, number, shape_index, steps};
use crate::proto::messages as pb;

enumeration!(precision, precision_number, Precision, "operand_precision", [
    0 => Precision::Default,
    1 => Precision::High,
    2 => Precision::Highest,
]);

enumeration!(algorithm, algorithm_number, PrecisionAlgorithm, "algorithm", [
    0 => PrecisionAlgorithm::Unset,
    1 => PrecisionAlgorithm::AnyF8AnyF8F32,
    2 => PrecisionAlgorithm::AnyF8AnyF8F32FastAccum,
    3 => PrecisionAlgorithm::F16F16F16,
    4 => PrecisionAlgorithm::F16F16F32,
    5 => PrecisionAlgorithm::Bf16Bf16Bf16,
    6 => PrecisionAlgorithm::Bf16Bf16F32,
    7 => PrecisionAlgorithm::Bf16Bf16F32X3,
    8 => PrecisionAlgorithm::Bf16Bf16F32X6,
    9 => PrecisionAlgorithm::Tf32Tf32F32,
    10 => PrecisionAlgorithm::Tf32Tf32F32X3,
    11 => PrecisionAlgorithm::F32F32F32,
    12 => PrecisionAlgorithm::F64F64F64,
    13 => PrecisionAlgorithm::Bf16Bf16F32X9,
]);

enumeration!(convolution_kind, convolution_kind_number, ConvolutionKind, "conv_kind", [
    0 => ConvolutionKind::Unset,
    1 => ConvolutionKind::Fprop,
    2 => ConvolutionKind::Dgrad,
    3 => ConvolutionKind::Wgrad,
]);

enumeration!(fft_kind, fft_kind_number, FftKind, "fft_type", [
    0 => FftKind::Fft,
    1 => FftKind::Ifft,
    2 => FftKind::Rfft,
    3 => FftKind::Irfft,
]);

enumeration!(transpose, transpose_number, TriangularTranspose, "transpose_a", [
    1 => TriangularTranspose::NoTranspose,
    2 => TriangularTranspose::Transpose,
    3 => TriangularTranspose::Adjoint,
]);

enumeration!(distribution, distribution_number, RngDistribution, "distribution", [
    1 => RngDistribution::RngUniform,
    2 => RngDistribution::RngNormal,
]);

enumeration!(rng_algorithm, rng_algorithm_number, RngAlgorithm, "rng_algorithm", [
    0 => RngAlgorithm::RngDefault,
    1 => RngAlgorithm::RngThreeFry,
    2 => RngAlgorithm::RngPhilox,
]);

enumeration!(custom_call_schedule, custom_call_schedule_number, CustomCallSchedule, "custom_call_schedule", [
    0 => CustomCallSchedule::ScheduleNone,
    1 => CustomCallSchedule::ScheduleLatest,
    2 => CustomCallSchedule::ScheduleEarliest,
]);

enumeration!(api_version, api_version_number, CustomCallApiVersion, "custom_call_api_version", [
    0 => CustomCallApiVersion::ApiVersionUnspecified,
    1 => CustomCallApiVersion::ApiVersionOriginal,
    2 => CustomCallApiVersion::ApiVersionStatusReturning,
    3 => CustomCallApiVersion::ApiVersionStatusReturningUnified,
    4 => CustomCallApiVersion::ApiVersionTypedFfi,
]);

enumeration!(padding_type, padding_type_number, PaddingType, "padding_type", [
    0 => PaddingType::PaddingInvalid,
    1 => PaddingType::PaddingValid,
    2 => PaddingType::PaddingSame,
]);

pub(in crate::proto) fn window(proto: &pb::WindowProto) -> Window {
    let dimension = |d: &pb::WindowDimensionProto| WindowDimension {
        size: d.size,
        stride: d.stride,
        padding_low: d.padding_low,
        padding_high: d.padding_high,
        window_dilation: d.window_dilation,
        base_dilation: d.base_dilation,
        window_reversal: d.window_reversal,
    };
    Window { dimensions: proto.dimensions.iter().map(dimension).collect() }
}

pub(in crate::proto) fn window_proto(window: &Window) -> Box<pb::WindowProto> {
    let dimension = |d: &WindowDimension| pb::WindowDimensionProto {
        size: d.size,
        stride: d.stride,
        padding_low: d.padding_low,
        padding_high: d.padding_high,
        window_dilation: d.window_dilation,
        base_dilation: d.base_dilation,
        window_reversal: d.window_reversal,
    };
    Box::new(pb::WindowProto { dimensions: window.dimensions.iter().map(dimension).collect() })
}

pub(in crate::proto) fn convolution_dimensions(
    proto: &pb::ConvolutionDimensionNumbers,
) -> ConvolutionDimensions {
    ConvolutionDimensions {
        input_batch: proto.input_batch_dimension,
        input_feature: proto.input_feature_dimension,
        input_spatial: proto.input_spatial_dimensions.as_slice().into(),
        kernel_input_feature: proto.kernel_input_feature_dimension,
        kernel_output_feature: proto.kernel_output_feature_dimension,
        kernel_spatial: proto.kernel_spatial_dimensions.as_slice().into(),
        output_batch: proto.output_batch_dimension,
        output_feature: proto.output_feature_dimension,
        output_spatial: proto.output_spatial_dimensions.as_slice().into(),
    }
}

pub(in crate::proto) fn convolution_dimensions_proto(
    dimensions: &ConvolutionDimensions,
) -> Box<pb::ConvolutionDimensionNumbers> {
    Box::new(pb::ConvolutionDimensionNumbers {
        kernel_input_feature_dimension: dimensions.kernel_input_feature,
        kernel_output_feature_dimension: dimensions.kernel_output_feature,
        kernel_spatial_dimensions: dimensions.kernel_spatial.to_vec(),
        input_batch_dimension: dimensions.input_batch,
        input_feature_dimension: dimensions.input_feature,
        output_batch_dimension: dimensions.output_batch,
        output_feature_dimension: dimensions.output_feature,
        input_spatial_dimensions: dimensions.input_spatial.to_vec(),
        output_spatial_dimensions: dimensions.output_spatial.to_vec(),
    })
}

pub(in crate::proto) fn sparsity(proto: Option<&pb::SparsityConfig>) -> [Option<TensorSparsity>; 2] {
    let side = |side: &pb::TensorSparsityConfig| TensorSparsity {
        num_non_zero: side.num_non_zero,
        block_size: side.block_size,
        dimension: side.dimension,
        stride: side.stride,
    };
    proto.map_or([None, None], |config| [config.lhs.as_ref().map(side), config.rhs.as_ref().map(side)])
}

pub(in crate::proto) fn sparsity_proto(convolution: &Convolution) -> Option<Box<pb::SparsityConfig>> {
    let side = |side: TensorSparsity| pb::TensorSparsityConfig {
        num_non_zero: side.num_non_zero,
        block_size: side.block_size,
        dimension: side.dimension,
        stride: side.stride,
    };
    let [lhs, rhs] = convolution.sparsity.map(|s| s.map(side));
    (lhs.is_some() || rhs.is_some()).then(|| Box::new(pb::SparsityConfig { lhs, rhs }))
}

pub(in crate::proto) fn dot_dimensions(proto: &pb::DotDimensionNumbers) -> DotDimensions {
    DotDimensions {
        lhs_contracting: proto.lhs_contracting_dimensions.as_slice().into(),
        rhs_contracting: proto.rhs_contracting_dimensions.as_slice().into(),
        lhs_batch: proto.lhs_batch_dimensions.as_slice().into(),
        rhs_batch: proto.rhs_batch_dimensions.as_slice().into(),
    }
}

pub(in crate::proto) fn dot_dimensions_proto(dimensions: &DotDimensions) -> Box<pb::DotDimensionNumbers> {
    Box::new(pb::DotDimensionNumbers {
        lhs_contracting_dimensions: dimensions.lhs_contracting.to_vec(),
        rhs_contracting_dimensions: dimensions.rhs_contracting.to_vec(),
        lhs_batch_dimensions: dimensions.lhs_batch.to_vec(),
        rhs_batch_dimensions: dimensions.rhs_batch.to_vec(),
    })
}

pub(in crate::proto) fn ragged_dot(
    proto: &pb::RaggedDotDimensionNumbers,
    precision: PrecisionConfig,
) -> RaggedDot {
    RaggedDot {
        dimensions: proto
            .dot_dimension_numbers
            .as_deref()
            .map_or_else(DotDimensions::default, dot_dimensions),
        lhs_ragged_dims: proto.lhs_ragged_dimensions.as_slice().into(),
        rhs_group_dims: proto.rhs_group_dimensions.as_slice().into(),
        precision,
    }
}

pub(in crate::proto) fn ragged_dot_proto(dot: &RaggedDot) -> Box<pb::RaggedDotDimensionNumbers> {
    Box::new(pb::RaggedDotDimensionNumbers {
        dot_dimension_numbers: Some(dot_dimensions_proto(&dot.dimensions)),
        lhs_ragged_dimensions: dot.lhs_ragged_dims.to_vec(),
        rhs_group_dimensions: dot.rhs_group_dims.to_vec(),
    })
}

/// Precisions that are all default are not kept: it is what their absence means.
pub(in crate::proto) fn precision_config(
    proto: Option<&pb::PrecisionConfigProto>,
) -> Result<PrecisionConfig, FieldError> {
    let Some(proto) = proto else { return Ok(PrecisionConfig::default()) };
    let operand_precision = match proto.operand_precision.iter().all(|&p| p == 0) {
        true => Default::default(),
        false => proto.operand_precision.iter().map(|&p| precision(p)).collect::<Result<_, _>>()?,
    };
    Ok(PrecisionConfig { operand_precision, algorithm: algorithm(proto.algorithm)? })
}

/// XLA expects a precision for each of `operands`.
pub(in crate::proto) fn precision_config_proto(
    config: &PrecisionConfig,
    operands: usize,
) -> pb::PrecisionConfigProto {
    let operand_precision = match config.operand_precision.is_empty() {
        true => vec![0; operands],
        false => config.operand_precision.iter().map(|&p| precision_number(p)).collect(),
    };
    pb::PrecisionConfigProto { operand_precision, algorithm: algorithm_number(config.algorithm) }
}

pub(in crate::proto) fn gather(proto: &pb::HloInstructionProto) -> Result<GatherDimensions, FieldError> {
    let numbers =
        proto.gather_dimension_numbers.as_deref().ok_or(FieldError::Missing("gather_dimension_numbers"))?;
    Ok(GatherDimensions {
        offset_dims: numbers.offset_dims.as_slice().into(),
        collapsed_slice_dims: numbers.collapsed_slice_dims.as_slice().into(),
        start_index_map: numbers.start_index_map.as_slice().into(),
        index_vector_dim: numbers.index_vector_dim,
        operand_batching_dims: numbers.operand_batching_dims.as_slice().into(),
        start_indices_batching_dims: numbers.start_indices_batching_dims.as_slice().into(),
        slice_sizes: proto.gather_slice_sizes.as_slice().into(),
        indices_are_sorted: proto.indices_are_sorted,
    })
}

pub(in crate::proto) fn set_gather(proto: &mut pb::HloInstructionProto, g: &GatherDimensions) {
    proto.gather_dimension_numbers = Some(Box::new(pb::GatherDimensionNumbers {
        offset_dims: g.offset_dims.to_vec(),
        collapsed_slice_dims: g.collapsed_slice_dims.to_vec(),
        start_index_map: g.start_index_map.to_vec(),
        index_vector_dim: g.index_vector_dim,
        operand_batching_dims: g.operand_batching_dims.to_vec(),
        start_indices_batching_dims: g.start_indices_batching_dims.to_vec(),
    }));
    proto.gather_slice_sizes = g.slice_sizes.to_vec();
    proto.indices_are_sorted = g.indices_are_sorted;
}

pub(in crate::proto) fn scatter(proto: &pb::HloInstructionProto) -> Result<ScatterDimensions, FieldError> {
    let numbers =
        proto.scatter_dimension_numbers.as_deref().ok_or(FieldError::Missing("scatter_dimension_numbers"))?;
    Ok(ScatterDimensions {
        update_window_dims: numbers.update_window_dims.as_slice().into(),
        inserted_window_dims: numbers.inserted_window_dims.as_slice().into(),
        scatter_dims_to_operand_dims: numbers.scatter_dims_to_operand_dims.as_slice().into(),
        index_vector_dim: numbers.index_vector_dim,
        input_batching_dims: numbers.input_batching_dims.as_slice().into(),
        scatter_indices_batching_dims: numbers.scatter_indices_batching_dims.as_slice().into(),
        indices_are_sorted: proto.indices_are_sorted,
        unique_indices: proto.unique_indices,
    })
}

pub(in crate::proto) fn set_scatter(proto: &mut pb::HloInstructionProto, s: &ScatterDimensions) {
    proto.scatter_dimension_numbers = Some(Box::new(pb::ScatterDimensionNumbers {
        update_window_dims: s.update_window_dims.to_vec(),
        inserted_window_dims: s.inserted_window_dims.to_vec(),
        scatter_dims_to_operand_dims: s.scatter_dims_to_operand_dims.to_vec(),
        index_vector_dim: s.index_vector_dim,
        input_batching_dims: s.input_batching_dims.to_vec(),
        scatter_indices_batching_dims: s.scatter_indices_batching_dims.to_vec(),
    }));
    proto.indices_are_sorted = s.indices_are_sorted;
    proto.unique_indices = s.unique_indices;
}

pub(in crate::proto) fn slices(protos: &[pb::SliceDimensions]) -> impl Iterator<Item = SliceDimension> {
    protos.iter().map(|d| SliceDimension { start: d.start, limit: d.limit, stride: d.stride })
}

pub(in crate::proto) fn slices_proto(slices: &[SliceDimension]) -> Vec<pb::SliceDimensions> {
    slices.iter().map(|d| pb::SliceDimensions { start: d.start, limit: d.limit, stride: d.stride }).collect()
}

pub(in crate::proto) fn padding(proto: &pb::PaddingConfig) -> impl Iterator<Item = PaddingDimension> {
    proto.dimensions.iter().map(|d| PaddingDimension {
        low: d.edge_padding_low,
        high: d.edge_padding_high,
        interior: d.interior_padding,
    })
}

pub(in crate::proto) fn padding_proto(dimensions: &[PaddingDimension]) -> pb::PaddingConfig {
    let dimension = |d: &PaddingDimension| pb::PaddingConfigDimension {
        edge_padding_low: d.low,
        edge_padding_high: d.high,
        interior_padding: d.interior,
    };
    pb::PaddingConfig { dimensions: dimensions.iter().map(dimension).collect() }
}

pub(in crate::proto) fn triangular_solve(
    proto: &pb::TriangularSolveOptions,
) -> Result<TriangularSolve, FieldError> {
    Ok(TriangularSolve {
        left_side: proto.left_side,
        lower: proto.lower,
        unit_diagonal: proto.unit_diagonal,
        // XLA's text leaves the transpose out, and then writes zero.
        transpose_a: if proto.transpose_a == 0 { Default::default() } else { transpose(proto.transpose_a)? },
    })
}

pub(in crate::proto) fn triangular_solve_proto(options: &TriangularSolve) -> pb::TriangularSolveOptions {
    pb::TriangularSolveOptions {
        left_side: options.left_side,
        lower: options.lower,
        unit_diagonal: options.unit_diagonal,
        transpose_a: transpose_number(options.transpose_a),
    }
}

pub(in crate::proto) fn aliasing(
    protos: &[pb::OutputOperandAliasing],
) -> Result<Vec<OutputOperandAlias>, FieldError> {
    const FIELD: &str = "output_operand_aliasing";
    let alias = |proto: &pb::OutputOperandAliasing| {
        Ok(OutputOperandAlias {
            output_index: shape_index(FIELD, &proto.output_shape_index)?,
            operand: number(FIELD, proto.operand_index)?,
            operand_index: shape_index(FIELD, &proto.operand_shape_index)?,
        })
    };
    protos.iter().map(alias).collect()
}

pub(in crate::proto) fn aliasing_proto(aliases: &[OutputOperandAlias]) -> Vec<pb::OutputOperandAliasing> {
    let alias = |alias: &OutputOperandAlias| pb::OutputOperandAliasing {
        output_shape_index: steps(&alias.output_index),
        operand_index: alias.operand.into(),
        operand_shape_index: steps(&alias.operand_index),
    };
    aliases.iter().map(alias).collect()
}
