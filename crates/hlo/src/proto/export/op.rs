//! Operations: which fields of an instruction each of them sets.

use memplan_ir::*;

use super::{Exporter, pb};
use crate::proto::convert::*;

impl Exporter<'_> {
    pub(super) fn set_op(&self, p: &mut pb::HloInstructionProto, instruction: &Instruction, shape: &Shape) {
        match &instruction.op {
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Clamp
            | Op::Convert
            | Op::BitcastConvert
            | Op::StochasticConvert
            | Op::Copy
            | Op::Bitcast
            | Op::DynamicReshape
            | Op::DynamicUpdateSlice
            | Op::AddDependency
            | Op::AfterAll
            | Op::Tuple
            | Op::While
            | Op::Conditional
            | Op::CopyDone
            | Op::ReplicaId
            | Op::PartitionId
            | Op::OptimizationBarrier => (),

            Op::Parameter { number } => p.parameter_number = i64::from(*number),
            Op::Constant(literal) => p.literal = literal_proto(literal, shape_proto(shape)).map(Box::new),
            Op::Compare { direction, comparison_type } => {
                p.comparison_direction = direction.to_string();
                let operand = instruction.operands.first().and_then(|&id| self.module.shape(id).as_array());
                // XLA always writes the type, which its text leaves out where it is the natural one.
                let natural = || operand.map(|array| ComparisonType::default_for(array.element_type));
                p.comparison_type =
                    comparison_type.or_else(natural).map_or_else(String::new, |t| t.to_string());
            }
            Op::ReducePrecision { exponent_bits, mantissa_bits } => {
                (p.exponent_bits, p.mantissa_bits) = (*exponent_bits, *mantissa_bits);
            }
            Op::Broadcast { dimensions }
            | Op::Transpose { dimensions }
            | Op::Reverse { dimensions }
            | Op::Reduce { dimensions }
            | Op::Map { dimensions } => p.dimensions = dimensions.to_vec(),
            Op::Iota { dimension }
            | Op::Concatenate { dimension }
            | Op::GetDimensionSize { dimension }
            | Op::SetDimensionSize { dimension } => p.dimensions = vec![*dimension],
            Op::Reshape { inferred_dimension } => p.dimensions = inferred_dimension.iter().copied().collect(),
            Op::Slice { dimensions } => p.slice_dimensions = slices_proto(dimensions),
            Op::DynamicSlice { slice_sizes } => p.dynamic_slice_sizes = slice_sizes.to_vec(),
            Op::Pad { dimensions } => p.padding_config = Some(padding_proto(dimensions)),
            Op::Gather(numbers) => set_gather(p, numbers),
            Op::Scatter(numbers) => set_scatter(p, numbers),
            Op::ReduceWindow(window) | Op::SelectAndScatter(window) => p.window = Some(window_proto(window)),
            Op::Scan(scan) => {
                p.dimensions = vec![scan.dimension];
                (p.num_carries, p.is_reverse) = (scan.num_carries, scan.is_reverse);
                p.is_associative = match scan.is_associative {
                    None => 0,
                    Some(true) => 1,
                    Some(false) => 2,
                };
            }
            Op::Sort { dimension, is_stable } => {
                p.dimensions = vec![*dimension];
                p.is_stable = *is_stable;
            }
            Op::TopK { k, largest, is_stable } => {
                (p.k, p.largest, p.is_stable) = (*k, *largest, is_stable.unwrap_or(false));
            }

            Op::Dot(dot) | Op::ScaledDot(dot) => {
                p.dot_dimension_numbers = Some(dot_dimensions_proto(&dot.dimensions));
                p.precision_config = Some(precision_config_proto(&dot.precision, instruction.operands.len()));
            }
            Op::RaggedDot(dot) => {
                p.ragged_dot_dimension_numbers = Some(ragged_dot_proto(dot));
                p.precision_config = Some(precision_config_proto(&dot.precision, 2));
            }
            Op::Convolution(convolution) => {
                p.window = Some(window_proto(&convolution.window));
                p.convolution_dimension_numbers = Some(convolution_dimensions_proto(&convolution.dimensions));
                p.feature_group_count = convolution.feature_group_count;
                p.batch_group_count = convolution.batch_group_count;
                p.conv_kind = convolution_kind_number(convolution.kind);
                p.precision_config = Some(precision_config_proto(&convolution.precision, 2));
                p.sparsity_config = sparsity_proto(convolution);
            }
            Op::Fft { kind, lengths } => {
                (p.fft_type, p.fft_length) = (fft_kind_number(*kind), lengths.to_vec())
            }
            Op::TriangularSolve(options) => {
                p.triangular_solve_options = Some(triangular_solve_proto(options))
            }
            Op::Cholesky { lower } => p.cholesky_options = Some(pb::CholeskyOptions { lower: *lower }),
            Op::BatchNormTraining { epsilon, feature_index }
            | Op::BatchNormInference { epsilon, feature_index }
            | Op::BatchNormGrad { epsilon, feature_index } => {
                (p.epsilon, p.feature_index) = (*epsilon, *feature_index);
            }
            Op::Rng { distribution } => p.distribution = distribution_number(*distribution),
            Op::RngBitGenerator { algorithm } => p.rng_algorithm = rng_algorithm_number(*algorithm),
            Op::RngGetAndUpdateState { delta } => p.delta = *delta,
            Op::GetTupleElement { index } => p.tuple_index = i64::from(*index),

            Op::Call { is_composite } => p.is_composite = *is_composite,
            Op::Fusion(fusion) => {
                p.fusion_kind = fusion.kind.to_string();
                p.output_operand_aliasing = aliasing_proto(&fusion.output_operand_aliasing);
            }
            Op::CustomCall(call) => set_custom_call(p, call, instruction.operands.len()),
            Op::Domain(domain) => {
                // The message means by entry the operand's side, the text the user's.
                p.domain_entry_sharding = Some(Box::new(sharding_proto(&domain.exit)));
                p.domain_exit_sharding = Some(Box::new(sharding_proto(&domain.entry)));
            }
            Op::Infeed(feed) => p.infeed_config = feed.config.to_vec().into(),
            Op::Outfeed(feed) => {
                p.outfeed_config = feed.config.to_vec().into();
                let operand = instruction.operands.first().map(|&id| self.module.shape(id));
                p.outfeed_shape = feed.shape.as_ref().or(operand).map(|shape| Box::new(shape_proto(shape)));
            }
            Op::Send(transfer) | Op::SendDone(transfer) | Op::Recv(transfer) | Op::RecvDone(transfer) => {
                p.channel_id = transfer.channel_id.unwrap_or_default();
                p.is_host_transfer = transfer.is_host_transfer;
            }
            Op::CopyStart { cross_program_prefetch_index } => {
                p.cross_program_prefetch_index = *cross_program_prefetch_index;
            }
            Op::AllGather(collective)
            | Op::AllGatherStart(collective)
            | Op::AllGatherDone(collective)
            | Op::AllReduce(collective)
            | Op::AllReduceStart(collective)
            | Op::AllReduceDone(collective)
            | Op::ReduceScatter(collective)
            | Op::AllToAll(collective)
            | Op::RaggedAllToAll(collective)
            | Op::CollectiveBroadcast(collective)
            | Op::CollectivePermute(collective)
            | Op::CollectivePermuteStart(collective)
            | Op::CollectivePermuteDone(collective) => set_collective(p, collective),
            Op::AsyncStart(start) => {
                p.async_execution_thread = start.execution_thread.to_string();
                p.output_operand_aliasing = aliasing_proto(&start.output_operand_aliasing);
            }
            // Readers take thread and computation from the start.
            Op::AsyncUpdate(_) | Op::AsyncDone(_) => p.called_computation_ids.clear(),
        }
    }
}

fn set_collective(p: &mut pb::HloInstructionProto, collective: &Collective) {
    set_replica_groups(p, collective);
    p.channel_id = collective.channel_id.unwrap_or_default();
    p.constrain_layout = collective.constrain_layout;
    p.use_global_device_ids = collective.use_global_device_ids;
    p.dimensions = collective.dimension.iter().copied().collect();
    p.source_target_pairs = collective
        .source_target_pairs
        .iter()
        .map(|&(source, target)| pb::SourceTarget { source, target })
        .collect();
    p.dynamic_slice_sizes = collective.slice_sizes.iter().flatten().copied().collect();
    p.has_dynamic_root = collective.has_dynamic_root;
}

fn set_custom_call(p: &mut pb::HloInstructionProto, call: &CustomCall, operands: usize) {
    p.custom_call_target = call.target.to_string();
    p.window = call.window.as_ref().map(window_proto);
    p.convolution_dimension_numbers = call.dimensions.as_ref().map(convolution_dimensions_proto);
    p.feature_group_count = call.feature_group_count.unwrap_or(1);
    p.batch_group_count = call.batch_group_count.unwrap_or(1);
    p.constrain_layout = call.operand_layout_constraints.is_some();
    p.operand_shapes_with_layout =
        call.operand_layout_constraints.iter().flatten().map(shape_proto).collect();
    p.custom_call_has_side_effect = call.has_side_effect;
    p.output_operand_aliasing = aliasing_proto(&call.output_operand_aliasing);
    p.padding_type = call.padding_type.map_or(0, padding_type_number);
    p.literal = call.literal.as_ref().and_then(|literal| {
        let shape = literal_shape(literal);
        literal_proto(literal, shape_proto(&shape)).map(Box::new)
    });
    p.precision_config = Some(precision_config_proto(&call.precision, operands));
    p.custom_call_schedule = custom_call_schedule_number(call.schedule);
    p.custom_call_api_version = api_version_number(call.api_version);
}

fn literal_shape(literal: &Literal) -> Shape {
    match literal {
        Literal::Array(array) => Shape::array(array.element_type, array.dimensions.iter().copied()),
        Literal::Tuple(elements) => Shape::Tuple(elements.iter().map(literal_shape).collect()),
        Literal::Token => Shape::Token,
    }
}
