//! Dimension numbers, windows, and the values of enumerations.

use memplan_ir::{
    ConvolutionDimensions, DotDimensions, OutputOperandAlias, PaddingDimension, Precision,
    PrecisionAlgorithm, PrecisionConfig, SliceDimension, TensorSparsity, Window, WindowDimension,
};
use smallvec::SmallVec;

use super::{Field, FieldError, number, shape_index, steps};
use crate::proto::messages as pb;

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

pub(in crate::proto) fn sparsity_proto(
    sides: &[Option<TensorSparsity>; 2],
) -> Option<Box<pb::SparsityConfig>> {
    let side = |side: TensorSparsity| pb::TensorSparsityConfig {
        num_non_zero: side.num_non_zero,
        block_size: side.block_size,
        dimension: side.dimension,
        stride: side.stride,
    };
    let [lhs, rhs] = sides.map(|s| s.map(side));
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

/// Precisions that are all default are not kept: it is what their absence means.
pub(in crate::proto) fn precision_config(
    proto: Option<&pb::PrecisionConfigProto>,
) -> Result<PrecisionConfig, FieldError> {
    let Some(proto) = proto else { return Ok(PrecisionConfig::default()) };
    let operand_precision = match proto.operand_precision.iter().all(|&p| p == 0) {
        true => Default::default(),
        false => {
            let read = |&number: &i32| Precision::get(&mut { number }, "operand_precision");
            proto.operand_precision.iter().map(read).collect::<Result<_, _>>()?
        }
    };
    let algorithm = PrecisionAlgorithm::get(&mut { proto.algorithm }, "algorithm")?;
    Ok(PrecisionConfig { operand_precision, algorithm })
}

/// XLA expects a precision for each of `operands`.
pub(in crate::proto) fn precision_config_proto(
    config: &PrecisionConfig,
    operands: usize,
) -> pb::PrecisionConfigProto {
    let operand_precision = match config.operand_precision.is_empty() {
        true => vec![0; operands],
        false => config.operand_precision.iter().map(Field::set).collect(),
    };
    pb::PrecisionConfigProto { operand_precision, algorithm: config.algorithm.set() }
}

pub(in crate::proto) fn slices(protos: &[pb::SliceDimensions]) -> SmallVec<[SliceDimension; 2]> {
    protos.iter().map(|d| SliceDimension { start: d.start, limit: d.limit, stride: d.stride }).collect()
}

pub(in crate::proto) fn slices_proto(slices: &[SliceDimension]) -> Vec<pb::SliceDimensions> {
    slices.iter().map(|d| pb::SliceDimensions { start: d.start, limit: d.limit, stride: d.stride }).collect()
}

pub(in crate::proto) fn padding(proto: &pb::PaddingConfig) -> SmallVec<[PaddingDimension; 2]> {
    let dimension = |d: &pb::PaddingConfigDimension| PaddingDimension {
        low: d.edge_padding_low,
        high: d.edge_padding_high,
        interior: d.interior_padding,
    };
    proto.dimensions.iter().map(dimension).collect()
}

pub(in crate::proto) fn padding_proto(dimensions: &[PaddingDimension]) -> pb::PaddingConfig {
    let dimension = |d: &PaddingDimension| pb::PaddingConfigDimension {
        edge_padding_low: d.low,
        edge_padding_high: d.high,
        interior_padding: d.interior,
    };
    pb::PaddingConfig { dimensions: dimensions.iter().map(dimension).collect() }
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
