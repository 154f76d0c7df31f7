//! Operations: which fields of an instruction each of them uses.

use memplan_ir::*;

use super::{FieldError, Importer, pb};
use crate::proto::convert::{self, *};
use crate::tables;

impl Importer {
    /// The operation of an instruction. Takes out of `p` what it uses and needs no more.
    pub(super) fn op(
        &self,
        p: &mut pb::HloInstructionProto,
        shape: &Shape,
        operands: &[InstructionId],
    ) -> Result<Op, FieldError> {
        let opcode = tables::opcode(&p.opcode).ok_or_else(|| FieldError::Opcode(p.opcode.clone()))?;
        if let Some(op) = opcode.without_attributes() {
            return Ok(op);
        }
        let dimensions = Dimensions::from_slice(&p.dimensions);
        Ok(match opcode {
            Opcode::Parameter => Op::Parameter { number: number("parameter_number", p.parameter_number)? },
            Opcode::Constant => Op::Constant(match p.literal.take() {
                Some(literal) => convert::literal(&literal)?,
                None => elided(shape)?,
            }),
            Opcode::Iota => Op::Iota { dimension: one(p)? },
            Opcode::Compare => Op::Compare {
                direction: text("comparison_direction", &p.comparison_direction)?,
                comparison_type: self.comparison_type(p, operands)?,
            },
            Opcode::ReducePrecision => {
                Op::ReducePrecision { exponent_bits: p.exponent_bits, mantissa_bits: p.mantissa_bits }
            }
            Opcode::Broadcast => Op::Broadcast { dimensions },
            Opcode::Reshape => {
                Op::Reshape { inferred_dimension: dimensions.first().copied().filter(|&d| d != -1) }
            }
            Opcode::Transpose => Op::Transpose { dimensions },
            Opcode::Reverse => Op::Reverse { dimensions },
            Opcode::Slice => Op::Slice { dimensions: slices(&p.slice_dimensions).collect() },
            Opcode::DynamicSlice => Op::DynamicSlice { slice_sizes: p.dynamic_slice_sizes.as_slice().into() },
            Opcode::Concatenate => Op::Concatenate { dimension: one(p)? },
            Opcode::Pad => {
                let config = p.padding_config.as_ref().ok_or(FieldError::Missing("padding_config"))?;
                Op::Pad { dimensions: padding(config).collect() }
            }
            Opcode::Gather => Op::Gather(Box::new(gather(p)?)),
            Opcode::Scatter => Op::Scatter(Box::new(scatter(p)?)),
            Opcode::Reduce => Op::Reduce { dimensions },
            Opcode::ReduceWindow => Op::ReduceWindow(Box::new(window_of(p))),
            Opcode::SelectAndScatter => Op::SelectAndScatter(Box::new(window_of(p))),
            Opcode::Map => Op::Map { dimensions },
            Opcode::Scan => Op::Scan(Box::new(Scan {
                dimension: one(p)?,
                num_carries: p.num_carries,
                is_reverse: p.is_reverse,
                is_associative: match p.is_associative {
                    0 => None,
                    1 => Some(true),
                    2 => Some(false),
                    other => return Err(FieldError::value("is_associative", other)),
                },
            })),
            Opcode::Sort => Op::Sort { dimension: one(p)?, is_stable: p.is_stable },
            Opcode::TopK => Op::TopK { k: p.k, largest: p.largest, is_stable: p.is_stable.then_some(true) },

            Opcode::Dot | Opcode::ScaledDot => {
                let numbers = p.dot_dimension_numbers.as_deref();
                let dot = Box::new(Dot {
                    dimensions: numbers.map_or_else(DotDimensions::default, dot_dimensions),
                    precision: precision_config(p.precision_config.as_ref())?,
                });
                if opcode == Opcode::Dot { Op::Dot(dot) } else { Op::ScaledDot(dot) }
            }
            Opcode::RaggedDot => {
                let numbers = p.ragged_dot_dimension_numbers.as_deref();
                let numbers = numbers.ok_or(FieldError::Missing("ragged_dot_dimension_numbers"))?;
                Op::RaggedDot(Box::new(ragged_dot(numbers, precision_config(p.precision_config.as_ref())?)))
            }
            Opcode::Convolution => {
                let numbers = p.convolution_dimension_numbers.as_deref();
                let numbers = numbers.ok_or(FieldError::Missing("convolution_dimension_numbers"))?;
                Op::Convolution(Box::new(Convolution {
                    window: window_of(p),
                    dimensions: convolution_dimensions(numbers),
                    feature_group_count: p.feature_group_count.max(1),
                    batch_group_count: p.batch_group_count.max(1),
                    kind: convolution_kind(p.conv_kind)?,
                    precision: precision_config(p.precision_config.as_ref())?,
                    sparsity: sparsity(p.sparsity_config.as_deref()),
                }))
            }
            Opcode::Fft => Op::Fft { kind: fft_kind(p.fft_type)?, lengths: p.fft_length.as_slice().into() },
            Opcode::TriangularSolve => {
                Op::TriangularSolve(triangular_solve(&p.triangular_solve_options.take().unwrap_or_default())?)
            }
            Opcode::Cholesky => Op::Cholesky { lower: p.cholesky_options.take().unwrap_or_default().lower },
            Opcode::BatchNormTraining => {
                Op::BatchNormTraining { epsilon: p.epsilon, feature_index: p.feature_index }
            }
            Opcode::BatchNormInference => {
                Op::BatchNormInference { epsilon: p.epsilon, feature_index: p.feature_index }
            }
            Opcode::BatchNormGrad => Op::BatchNormGrad { epsilon: p.epsilon, feature_index: p.feature_index },
            Opcode::Rng => Op::Rng { distribution: distribution(p.distribution)? },
            Opcode::RngBitGenerator => Op::RngBitGenerator { algorithm: rng_algorithm(p.rng_algorithm)? },
            Opcode::RngGetAndUpdateState => Op::RngGetAndUpdateState { delta: p.delta },
            Opcode::GetDimensionSize => Op::GetDimensionSize { dimension: one(p)? },
            Opcode::SetDimensionSize => Op::SetDimensionSize { dimension: one(p)? },
            Opcode::GetTupleElement => Op::GetTupleElement { index: number("tuple_index", p.tuple_index)? },

            Opcode::Call => Op::Call { is_composite: p.is_composite },
            Opcode::Fusion => Op::Fusion(Box::new(Fusion {
                kind: text("fusion_kind", &p.fusion_kind)?,
                output_operand_aliasing: aliasing(&p.output_operand_aliasing)?,
            })),
            Opcode::CustomCall => Op::CustomCall(Box::new(custom_call(p)?)),
            Opcode::Domain => {
                let side = |side: Option<Box<pb::OpSharding>>| {
                    sharding(*side.ok_or(FieldError::Missing("domain sharding"))?)
                };
                // The message means by entry the operand's side, the text the user's.
                let exit = side(p.domain_entry_sharding.take())?;
                Op::Domain(Box::new(Domain { entry: side(p.domain_exit_sharding.take())?, exit }))
            }
            Opcode::Infeed => {
                Op::Infeed(Box::new(Feed { config: p.infeed_config.as_ref().into(), shape: None }))
            }
            Opcode::Outfeed => Op::Outfeed(Box::new(Feed {
                config: p.outfeed_config.as_ref().into(),
                shape: p.outfeed_shape.as_deref().map(convert::shape).transpose()?,
            })),
            Opcode::Send => Op::Send(transfer(p)),
            Opcode::SendDone => Op::SendDone(transfer(p)),
            Opcode::Recv => Op::Recv(transfer(p)),
            Opcode::RecvDone => Op::RecvDone(transfer(p)),
            Opcode::CopyStart => {
                Op::CopyStart { cross_program_prefetch_index: p.cross_program_prefetch_index }
            }
            Opcode::AllGather => Op::AllGather(collective(p)?),
            Opcode::AllGatherStart => Op::AllGatherStart(collective(p)?),
            Opcode::AllGatherDone => Op::AllGatherDone(collective(p)?),
            Opcode::AllReduce => Op::AllReduce(collective(p)?),
            Opcode::AllReduceStart => Op::AllReduceStart(collective(p)?),
            Opcode::AllReduceDone => Op::AllReduceDone(collective(p)?),
            Opcode::ReduceScatter => Op::ReduceScatter(collective(p)?),
            Opcode::AllToAll => Op::AllToAll(collective(p)?),
            Opcode::RaggedAllToAll => Op::RaggedAllToAll(collective(p)?),
            Opcode::CollectiveBroadcast => Op::CollectiveBroadcast(collective(p)?),
            Opcode::CollectivePermute | Opcode::CollectivePermuteStart => {
                let mut permute = collective(p)?;
                permute.slice_sizes = self.slice_sizes(&p.dynamic_slice_sizes, operands);
                match opcode {
                    Opcode::CollectivePermute => Op::CollectivePermute(permute),
                    _ => Op::CollectivePermuteStart(permute),
                }
            }
            Opcode::CollectivePermuteDone => Op::CollectivePermuteDone(collective(p)?),
            Opcode::AsyncStart => Op::AsyncStart(asynchronous(p)?),
            Opcode::AsyncUpdate => Op::AsyncUpdate(self.continued(p, operands)?),
            Opcode::AsyncDone => Op::AsyncDone(self.continued(p, operands)?),
            other => unreachable!("{other} is elementwise"),
        })
    }

    /// An update or done goes on with what its first operand started; the message says neither thread nor computation.
    fn continued(
        &self,
        p: &mut pb::HloInstructionProto,
        operands: &[InstructionId],
    ) -> Result<Box<Async>, FieldError> {
        let mut run = asynchronous(p)?;
        let before = operands.first().and_then(|&id| self.module.instructions.get(id));
        if let Some(Op::AsyncStart(before) | Op::AsyncUpdate(before)) = before.map(|before| &before.op)
            && run.execution_thread.is_empty()
        {
            run.execution_thread = before.execution_thread.clone();
        }
        Ok(run)
    }

    /// The message always has the type; a module has it where it is not the natural one for the operands.
    fn comparison_type(
        &self,
        p: &pb::HloInstructionProto,
        operands: &[InstructionId],
    ) -> Result<Option<ComparisonType>, FieldError> {
        let operand = operands.first().and_then(|&id| self.module.instructions.get(id));
        let array = operand.and_then(|operand| self.module.shape_of(operand.shape).as_array());
        let natural = array.map(|array| ComparisonType::default_for(array.element_type));
        Ok(optional_text("comparison_type", &p.comparison_type)?.filter(|t| Some(*t) != natural))
    }

    /// The message has the sizes of all slices one after the other; each has as many as its source has dimensions.
    fn slice_sizes(&self, sizes: &[i64], operands: &[InstructionId]) -> Vec<Dimensions> {
        let source = operands.first().and_then(|&id| self.module.instructions.get(id));
        let rank = |shape: &Shape| shape.as_array().map_or(0, ArrayShape::rank);
        let ranks = source.map_or_else(Vec::new, |source| match self.module.shape_of(source.shape) {
            Shape::Tuple(elements) => elements.iter().map(rank).collect(),
            single => vec![rank(single)],
        });
        let mut rest = sizes;
        let mut slices = Vec::new();
        for rank in ranks.into_iter().filter(|&rank| rank > 0).cycle() {
            match rest.split_at_checked(rank) {
                Some((slice, after)) => {
                    slices.push(slice.into());
                    rest = after;
                }
                None => break,
            }
        }
        if !rest.is_empty() {
            slices.push(rest.into());
        }
        slices
    }
}

/// The only dimension.
fn one(p: &pb::HloInstructionProto) -> Result<i64, FieldError> {
    match p.dimensions[..] {
        [dimension] => Ok(dimension),
        _ => Err(FieldError::value("dimensions", format!("{} long", p.dimensions.len()))),
    }
}

fn text<T: std::str::FromStr>(field: &'static str, value: &str) -> Result<T, FieldError> {
    value.parse().map_err(|_| FieldError::value(field, format!("{value:?}")))
}

fn optional_text<T: std::str::FromStr>(field: &'static str, value: &str) -> Result<Option<T>, FieldError> {
    if value.is_empty() { Ok(None) } else { text(field, value).map(Some) }
}

fn window_of(p: &pb::HloInstructionProto) -> Window {
    p.window.as_deref().map_or_else(Window::default, window)
}

fn transfer(p: &pb::HloInstructionProto) -> Transfer {
    Transfer { channel_id: channel(p), is_host_transfer: p.is_host_transfer }
}

/// Channels count from 1.
fn channel(p: &pb::HloInstructionProto) -> Option<i64> {
    Some(p.channel_id).filter(|&id| id > 0)
}

fn collective(p: &mut pb::HloInstructionProto) -> Result<Box<Collective>, FieldError> {
    Ok(Box::new(Collective {
        replica_groups: replica_groups(p)?,
        channel_id: channel(p),
        constrain_layout: p.constrain_layout,
        use_global_device_ids: p.use_global_device_ids,
        dimension: p.dimensions.first().copied(),
        mode: None,
        source_target_pairs: p.source_target_pairs.iter().map(|pair| (pair.source, pair.target)).collect(),
        slice_sizes: Vec::new(),
        has_dynamic_root: p.has_dynamic_root,
    }))
}

fn asynchronous(p: &mut pb::HloInstructionProto) -> Result<Box<Async>, FieldError> {
    // The main thread has no name here, and one in XLA.
    let thread = if p.async_execution_thread == "main" { "" } else { &p.async_execution_thread };
    Ok(Box::new(Async {
        execution_thread: thread.into(),
        output_operand_aliasing: aliasing(&p.output_operand_aliasing)?,
    }))
}

fn custom_call(p: &mut pb::HloInstructionProto) -> Result<CustomCall, FieldError> {
    let constraints = || p.operand_shapes_with_layout.iter().map(shape).collect::<Result<_, _>>();
    // XLA writes 1 for both counts where the text says nothing, which is what they mean.
    let count = |count: i64| Some(count).filter(|&n| n > 1);
    Ok(CustomCall {
        target: p.custom_call_target.as_str().into(),
        window: p.window.as_deref().map(window),
        dimensions: p.convolution_dimension_numbers.as_deref().map(convolution_dimensions),
        feature_group_count: count(p.feature_group_count),
        batch_group_count: count(p.batch_group_count),
        operand_layout_constraints: p.constrain_layout.then(constraints).transpose()?,
        has_side_effect: p.custom_call_has_side_effect,
        output_operand_aliasing: aliasing(&p.output_operand_aliasing)?,
        // Invalid is also what an absent field reads as.
        padding_type: Some(padding_type(p.padding_type)?).filter(|&t| t != PaddingType::PaddingInvalid),
        literal: p.literal.take().map(|literal| convert::literal(&literal)).transpose()?,
        precision: precision_config(p.precision_config.as_ref())?,
        schedule: custom_call_schedule(p.custom_call_schedule)?,
        api_version: api_version(p.custom_call_api_version)?,
        uses_to_apply: false,
    })
}

/// A constant whose message has no literal.
fn elided(shape: &Shape) -> Result<Literal, FieldError> {
    Ok(match shape {
        Shape::Array(array) => Literal::Array(ArrayLiteral {
            element_type: array.element_type,
            dimensions: array.dimensions.clone(),
            data: LiteralData::Elided,
        }),
        Shape::Tuple(elements) => Literal::Tuple(elements.iter().map(elided).collect::<Result<_, _>>()?),
        Shape::Token => Literal::Token,
        Shape::Buffer(_) | Shape::Opaque => return Err(FieldError::Missing("literal")),
    })
}
