//! From an opcode with its attributes to an [`Op`].

use std::sync::LazyLock;

use memplan_ir::{
    Async, BinaryOp, Collective, ComputationId, Convolution, CustomCall, Dimensions, Dot, DotDimensions,
    Feed, Fusion, GatherDimensions, Instruction, Op, Opcode, Operands, PrecisionConfig, RaggedDot, Scan,
    ScatterDimensions, Shape, Transfer, TriangularSolve, UnaryOp,
};
use smallvec::{SmallVec, smallvec};
use strum::IntoEnumIterator;

use super::{
    attributes::{Attribute as A, Attributes},
    cursor::Parsed,
    instruction::Head,
    module::Parser,
};
use crate::error::ParseErrorKind;

/// The computations that an instruction calls.
type Called = SmallVec<[ComputationId; 1]>;

impl<'s> Parser<'s> {
    /// What an instruction computes, and which computations it calls.
    pub(super) fn op(
        &mut self,
        head: &Head,
        operands: &Operands,
        attributes: &mut Attributes<'s>,
    ) -> Parsed<(Op, Called)> {
        match head.wrapped {
            Some(wrapped) if head.opcode == Opcode::AsyncStart => {
                self.wrap(head, wrapped, operands, attributes)
            }
            Some(_) => self.async_continuation(head, operands, attributes),
            None => Operation { parser: self, head, operands, attributes }.op(),
        }
    }

    /// `slice-start(x), slice={...}`: an async-start of a computation that holds one slice.
    fn wrap(
        &mut self,
        head: &Head,
        wrapped: Opcode,
        operands: &Operands,
        attributes: &mut Attributes<'s>,
    ) -> Parsed<(Op, Called)> {
        let Some(known) = head.shape else {
            let kind = ParseErrorKind::ShapeRequired { opcode: head.opcode };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        };
        let parts = match self.shape_at(known) {
            Shape::Tuple(parts) => match parts.as_slice() {
                [Shape::Tuple(inputs), output, ..] => Some((inputs.clone(), output.clone())),
                _ => None,
            },
            _ => None,
        };
        let Some((inputs, output)) = parts else { return Err(self.bad_shape(head, known)) };
        if inputs.len() != operands.len() {
            let kind = ParseErrorKind::Count { expected: inputs.len(), found: operands.len() };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        }
        let mut scope = self.new_scope();
        let span = head.span.clone();
        let mut inner_operands = Operands::new();
        for (number, shape) in inputs.into_iter().enumerate() {
            let shape = self.module.intern(shape);
            let name = if number == 0 { "async_param".to_owned() } else { format!("async_param.{number}") };
            let op = Op::Parameter { number: number as u32 };
            let parameter = Instruction::new(name, shape, op, [], scope.id);
            inner_operands.push(self.add(&mut scope, parameter, span.clone()));
        }
        let inner_head = Head { shape: None, opcode: wrapped, wrapped: None, span: span.clone() };
        let aliases = attributes.aliases_unless(wrapped);
        let thread = attributes.string(A::AsyncExecutionThread);
        let (op, called) = self.op(&inner_head, &inner_operands, attributes)?;
        let shape = self.module.intern(output);
        let mut inner = Instruction::new("async_op", shape, op, inner_operands, scope.id);
        inner.called = called;
        self.add(&mut scope, inner, span.clone());
        let computation = self.finish_nameless("async_wrapped", span, scope)?;
        let execution_thread = thread.unwrap_or_default();
        self.module.computations[computation].execution_thread = execution_thread.clone();
        let op = Op::AsyncStart(Box::new(Async { execution_thread, output_operand_aliasing: aliases }));
        Ok((op, smallvec![computation]))
    }

    /// `slice-update(start)`, `slice-done(start)`: what is called is what the start calls.
    fn async_continuation(
        &mut self,
        head: &Head,
        operands: &Operands,
        attributes: &mut Attributes<'s>,
    ) -> Parsed<(Op, Called)> {
        let given = attributes.string(A::AsyncExecutionThread);
        let called = attributes.computation(A::Calls);
        let start = operands.first().map(|&id| &self.module.instructions[id]);
        let start = start.filter(|start| matches!(start.op, Op::AsyncStart(_) | Op::AsyncUpdate(_)));
        let Some(start) = start else {
            let kind = ParseErrorKind::NotAsync { opcode: head.opcode };
            return Err(self.cursor.error_at(head.span.clone(), kind));
        };
        let execution_thread = match (&start.op, given) {
            (_, Some(thread)) => thread,
            (Op::AsyncStart(start) | Op::AsyncUpdate(start), None) => start.execution_thread.clone(),
            _ => unreachable!("just filtered"),
        };
        let called = called.map_or_else(|| start.called.clone(), |called| smallvec![called]);
        let attributes = Box::new(Async { execution_thread, output_operand_aliasing: Vec::new() });
        let op = match head.opcode {
            Opcode::AsyncUpdate => Op::AsyncUpdate(attributes),
            _ => Op::AsyncDone(attributes),
        };
        Ok((op, called))
    }

    fn bad_shape(&self, head: &Head, known: usize) -> Box<crate::ParseError> {
        let shape = crate::printer::shape_text(self.shape_at(known));
        let expected = "((operands), result, contexts...)";
        let kind = ParseErrorKind::ResultShape { opcode: head.opcode, shape, expected };
        self.cursor.error_at(head.span.clone(), kind)
    }
}

/// One operation being put together.
struct Operation<'p, 's> {
    parser: &'p mut Parser<'s>,
    head: &'p Head,
    operands: &'p Operands,
    attributes: &'p mut Attributes<'s>,
}

impl<'s> Operation<'_, 's> {
    fn op(&mut self) -> Parsed<(Op, Called)> {
        let mut called = Called::new();
        let opcode = self.head.opcode;
        self.check_operand_count()?;
        let op = match opcode {
            Opcode::Select => Op::Select,
            Opcode::Clamp => Op::Clamp,
            Opcode::Convert => Op::Convert,
            Opcode::BitcastConvert => Op::BitcastConvert,
            Opcode::StochasticConvert => Op::StochasticConvert,
            Opcode::Copy => Op::Copy,
            Opcode::Bitcast => Op::Bitcast,
            Opcode::DynamicReshape => Op::DynamicReshape,
            Opcode::DynamicUpdateSlice => Op::DynamicUpdateSlice,
            Opcode::AddDependency => Op::AddDependency,
            Opcode::AfterAll => Op::AfterAll,
            Opcode::Tuple => Op::Tuple,
            Opcode::CopyDone => Op::CopyDone,
            Opcode::ReplicaId => Op::ReplicaId,
            Opcode::PartitionId => Op::PartitionId,
            Opcode::OptimizationBarrier => Op::OptimizationBarrier,
            Opcode::While => {
                called = smallvec![self.computation(A::Body)?, self.computation(A::Condition)?];
                Op::While
            }
            Opcode::Conditional => {
                called = self.branches()?;
                Op::Conditional
            }
            Opcode::Compare => Op::Compare {
                direction: self.word(A::Direction, "EQ, NE, GE, GT, LE or LT")?,
                comparison_type: self.optional_word(A::Type, "FLOAT, TOTALORDER, SIGNED or UNSIGNED")?,
            },
            Opcode::Iota => Op::Iota { dimension: self.integer(A::IotaDimension)? },
            Opcode::ReducePrecision => Op::ReducePrecision {
                exponent_bits: self.small(A::ExponentBits)?,
                mantissa_bits: self.small(A::MantissaBits)?,
            },
            Opcode::Broadcast => Op::Broadcast { dimensions: self.broadcast_dimensions()? },
            Opcode::Reshape => {
                Op::Reshape { inferred_dimension: self.attributes.integer(A::InferredDimension) }
            }
            Opcode::Transpose => Op::Transpose { dimensions: self.integers(A::Dimensions)? },
            Opcode::Reverse => Op::Reverse { dimensions: self.integers(A::Dimensions)? },
            Opcode::Slice => {
                self.required(A::Slice, self.attributes.has(A::Slice))?;
                let dimensions = self.attributes.slice(A::Slice).expect("just required");
                Op::Slice { dimensions: dimensions.into_iter().collect() }
            }
            Opcode::DynamicSlice => Op::DynamicSlice { slice_sizes: self.integers(A::DynamicSliceSizes)? },
            Opcode::Concatenate => Op::Concatenate { dimension: self.one_dimension()? },
            Opcode::Pad => {
                self.required(A::Padding, self.attributes.has(A::Padding))?;
                let padding = self.attributes.padding(A::Padding).expect("just required");
                Op::Pad { dimensions: padding.into_iter().collect() }
            }
            Opcode::Gather => Op::Gather(Box::new(self.gather()?)),
            Opcode::Scatter => {
                called = smallvec![self.computation(A::ToApply)?];
                Op::Scatter(Box::new(self.scatter()?))
            }
            Opcode::Reduce => {
                called = smallvec![self.computation(A::ToApply)?];
                Op::Reduce { dimensions: self.integers(A::Dimensions)? }
            }
            Opcode::ReduceWindow => {
                called = smallvec![self.computation(A::ToApply)?];
                Op::ReduceWindow(self.attributes.window(A::Window).unwrap_or_default())
            }
            Opcode::SelectAndScatter => {
                called = smallvec![self.computation(A::Select)?, self.computation(A::Scatter)?];
                Op::SelectAndScatter(self.attributes.window(A::Window).unwrap_or_default())
            }
            Opcode::Map => {
                called = smallvec![self.computation(A::ToApply)?];
                Op::Map { dimensions: self.attributes.integers(A::Dimensions).unwrap_or_default() }
            }
            Opcode::Scan => {
                called = smallvec![self.computation(A::ToApply)?];
                Op::Scan(Box::new(Scan {
                    dimension: self.one_dimension()?,
                    num_carries: self.integer(A::NumCarries)?,
                    is_reverse: self.flag(A::IsReverse),
                    is_associative: self.attributes.boolean(A::IsAssociative),
                }))
            }
            Opcode::Sort => {
                called = smallvec![self.computation(A::ToApply)?];
                Op::Sort { dimension: self.one_dimension()?, is_stable: self.flag(A::IsStable) }
            }
            Opcode::TopK => Op::TopK {
                k: self.integer(A::K)?,
                largest: self.attributes.boolean(A::Largest).unwrap_or(true),
                is_stable: self.attributes.boolean(A::IsStable),
            },
            Opcode::Dot => Op::Dot(Box::new(self.dot()?)),
            Opcode::ScaledDot => Op::ScaledDot(Box::new(self.dot()?)),
            Opcode::RaggedDot => Op::RaggedDot(Box::new(self.ragged_dot()?)),
            Opcode::Convolution => Op::Convolution(Box::new(self.convolution()?)),
            Opcode::Fft => Op::Fft {
                kind: self.word(A::FftType, "FFT, IFFT, RFFT or IRFFT")?,
                lengths: self.integers(A::FftLength)?,
            },
            Opcode::TriangularSolve => Op::TriangularSolve(TriangularSolve {
                left_side: self.flag(A::LeftSide),
                lower: self.flag(A::Lower),
                unit_diagonal: self.flag(A::UnitDiagonal),
                transpose_a: self
                    .optional_word(A::TransposeA, "NO_TRANSPOSE, TRANSPOSE or ADJOINT")?
                    .unwrap_or_default(),
            }),
            Opcode::Cholesky => Op::Cholesky { lower: self.flag(A::Lower) },
            Opcode::BatchNormTraining | Opcode::BatchNormInference | Opcode::BatchNormGrad => {
                self.required(A::Epsilon, self.attributes.has(A::Epsilon))?;
                let epsilon = self.attributes.float(A::Epsilon).expect("just required") as f32;
                let feature_index = self.integer(A::FeatureIndex)?;
                match opcode {
                    Opcode::BatchNormTraining => Op::BatchNormTraining { epsilon, feature_index },
                    Opcode::BatchNormInference => Op::BatchNormInference { epsilon, feature_index },
                    _ => Op::BatchNormGrad { epsilon, feature_index },
                }
            }
            Opcode::Rng => Op::Rng { distribution: self.word(A::Distribution, "rng_uniform or rng_normal")? },
            Opcode::RngBitGenerator => Op::RngBitGenerator {
                algorithm: self.word(A::Algorithm, "rng_default, rng_three_fry or rng_philox")?,
            },
            Opcode::RngGetAndUpdateState => Op::RngGetAndUpdateState { delta: self.integer(A::Delta)? },
            Opcode::GetDimensionSize => Op::GetDimensionSize { dimension: self.one_dimension()? },
            Opcode::SetDimensionSize => Op::SetDimensionSize { dimension: self.one_dimension()? },
            Opcode::GetTupleElement => {
                let place = self.attributes.place(A::Index);
                let index = self.integer(A::Index)?;
                let index = u32::try_from(index)
                    .map_err(|_| self.out_of_range(place.unwrap_or(0), index, "a tuple index"))?;
                Op::GetTupleElement { index }
            }
            Opcode::Call => {
                called = smallvec![self.computation(A::ToApply)?];
                Op::Call { is_composite: self.flag(A::IsComposite) }
            }
            Opcode::Fusion => {
                called = smallvec![self.computation(A::Calls)?];
                Op::Fusion(Box::new(Fusion {
                    kind: self.word(A::Kind, "kLoop, kInput, kOutput or kCustom")?,
                    output_operand_aliasing: self
                        .attributes
                        .aliases(A::OutputToOperandAliasing)
                        .unwrap_or_default(),
                }))
            }
            Opcode::CustomCall => {
                let (op, computations) = self.custom_call()?;
                called = computations;
                Op::CustomCall(Box::new(op))
            }
            Opcode::Domain => {
                self.required(A::Domain, self.attributes.has(A::Domain))?;
                Op::Domain(self.attributes.domain(A::Domain).expect("just required"))
            }
            Opcode::Infeed => Op::Infeed(Box::new(Feed {
                config: self.attributes.bytes(A::InfeedConfig).unwrap_or_default(),
                shape: None,
            })),
            Opcode::Outfeed => Op::Outfeed(Box::new(Feed {
                config: self.attributes.bytes(A::OutfeedConfig).unwrap_or_default(),
                shape: self.attributes.shape(A::OutfeedShape).map(|shape| *shape),
            })),
            Opcode::Send => Op::Send(self.transfer()),
            Opcode::SendDone => Op::SendDone(self.transfer()),
            Opcode::Recv => Op::Recv(self.transfer()),
            Opcode::RecvDone => Op::RecvDone(self.transfer()),
            Opcode::CopyStart => Op::CopyStart {
                cross_program_prefetch_index: match self.attributes.has(A::CrossProgramPrefetchIndex) {
                    true => Some(self.small(A::CrossProgramPrefetchIndex)?),
                    false => None,
                },
            },
            Opcode::AllGather => Op::AllGather(self.collective(&mut called)?),
            Opcode::AllGatherStart => Op::AllGatherStart(self.collective(&mut called)?),
            Opcode::AllGatherDone => Op::AllGatherDone(Box::default()),
            Opcode::AllReduce => Op::AllReduce(self.collective(&mut called)?),
            Opcode::AllReduceStart => Op::AllReduceStart(self.collective(&mut called)?),
            Opcode::AllReduceDone => Op::AllReduceDone(Box::default()),
            Opcode::ReduceScatter => Op::ReduceScatter(self.collective(&mut called)?),
            Opcode::AllToAll => Op::AllToAll(self.collective(&mut called)?),
            Opcode::RaggedAllToAll => Op::RaggedAllToAll(self.collective(&mut called)?),
            Opcode::CollectiveBroadcast => Op::CollectiveBroadcast(self.collective(&mut called)?),
            Opcode::CollectivePermute => Op::CollectivePermute(self.collective(&mut called)?),
            Opcode::CollectivePermuteStart => Op::CollectivePermuteStart(self.collective(&mut called)?),
            Opcode::CollectivePermuteDone => Op::CollectivePermuteDone(Box::default()),
            Opcode::AsyncStart => {
                let computation = self.computation(A::Calls)?;
                called = smallvec![computation];
                let thread = self.attributes.string(A::AsyncExecutionThread);
                let execution_thread = thread
                    .unwrap_or_else(|| self.parser.module.computations[computation].execution_thread.clone());
                let aliases = self.attributes.aliases(A::OutputToOperandAliasing);
                let output_operand_aliasing = aliases.unwrap_or_default();
                Op::AsyncStart(Box::new(Async { execution_thread, output_operand_aliasing }))
            }
            Opcode::AsyncUpdate | Opcode::AsyncDone => {
                return self.parser.async_continuation(self.head, self.operands, self.attributes);
            }
            Opcode::Parameter | Opcode::Constant => {
                // Async spellings come here: neither runs asynchronously.
                let kind = ParseErrorKind::UnknownOpcode { name: format!("{opcode}-start") };
                return Err(self.parser.cursor.error_at(self.head.span.clone(), kind));
            }
            _ => elementwise(opcode).expect("all other opcodes are unary or binary"),
        };
        Ok((op, called))
    }

    /// XLA checks the number of operands while it parses, for it picks a constructor by it.
    fn check_operand_count(&self) -> Parsed<()> {
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

    fn branches(&mut self) -> Parsed<Called> {
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
    fn broadcast_dimensions(&mut self) -> Parsed<Dimensions> {
        let operand = self.parser.module.shape(self.operands[0]);
        let is_scalar = operand.as_array().is_some_and(|array| array.rank() == 0);
        match is_scalar && !self.attributes.has(A::Dimensions) {
            true => Ok(Dimensions::new()),
            false => self.integers(A::Dimensions),
        }
    }

    fn gather(&mut self) -> Parsed<GatherDimensions> {
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

    fn scatter(&mut self) -> Parsed<ScatterDimensions> {
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

    fn dot(&mut self) -> Parsed<Dot> {
        Ok(Dot { dimensions: self.dot_dimensions(), precision: self.precision()? })
    }

    fn ragged_dot(&mut self) -> Parsed<RaggedDot> {
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

    fn precision(&mut self) -> Parsed<PrecisionConfig> {
        Ok(PrecisionConfig {
            operand_precision: self.attributes.precisions(A::OperandPrecision).unwrap_or_default(),
            algorithm: self
                .optional_word(A::Algorithm, "an algorithm like dot_f32_f32_f32")?
                .unwrap_or_default(),
        })
    }

    fn convolution(&mut self) -> Parsed<Convolution> {
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

    fn custom_call(&mut self) -> Parsed<(CustomCall, Called)> {
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

    fn transfer(&mut self) -> Transfer {
        Transfer {
            channel_id: self.attributes.integer(A::ChannelId),
            is_host_transfer: self.flag(A::IsHostTransfer),
        }
    }

    fn collective(&mut self, called: &mut Called) -> Parsed<Box<Collective>> {
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

    fn required(&self, attribute: A, is_there: bool) -> Parsed<()> {
        match is_there {
            true => Ok(()),
            false => {
                let kind = ParseErrorKind::MissingAttribute { name: attribute.into() };
                Err(self.parser.cursor.error_at(self.head.span.clone(), kind))
            }
        }
    }

    fn computation(&mut self, attribute: A) -> Parsed<ComputationId> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.attributes.computation(attribute).expect("just required"))
    }

    fn integer(&mut self, attribute: A) -> Parsed<i64> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.attributes.integer(attribute).expect("just required"))
    }

    /// An integer of 32 bits.
    fn small(&mut self, attribute: A) -> Parsed<i32> {
        let place = self.attributes.place(attribute);
        let value = self.integer(attribute)?;
        i32::try_from(value).map_err(|_| self.out_of_range(place.unwrap_or(0), value, "32 bits"))
    }

    fn integers(&mut self, attribute: A) -> Parsed<Dimensions> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.attributes.integers(attribute).expect("just required"))
    }

    /// `dimensions={1}` with exactly one entry.
    fn one_dimension(&mut self) -> Parsed<i64> {
        let place = self.attributes.place(A::Dimensions);
        match self.integers(A::Dimensions)?.as_slice() {
            &[dimension] => Ok(dimension),
            several => {
                let kind = ParseErrorKind::Count { expected: 1, found: several.len() };
                let at = place.unwrap_or(self.head.span.start);
                Err(self.parser.cursor.error_at(at..at + 1, kind))
            }
        }
    }

    fn flag(&mut self, attribute: A) -> bool {
        self.attributes.boolean(attribute).unwrap_or(false)
    }

    fn word<T: std::str::FromStr>(&mut self, attribute: A, expected: &str) -> Parsed<T> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.optional_word(attribute, expected)?.expect("just required"))
    }

    fn optional_word<T: std::str::FromStr>(&mut self, attribute: A, expected: &str) -> Parsed<Option<T>> {
        let Some((at, word)) = self.attributes.word(attribute) else { return Ok(None) };
        match word.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => {
                let (expected, found) = (expected.to_owned(), format!("`{word}`"));
                let kind = ParseErrorKind::Unexpected { expected, found };
                Err(self.parser.cursor.error_at(at..at + word.len(), kind))
            }
        }
    }

    fn out_of_range(&self, at: usize, value: i64, what: &'static str) -> Box<crate::ParseError> {
        let text = value.to_string();
        let end = at + text.len();
        self.parser.cursor.error_at(at..end, ParseErrorKind::NumberOutOfRange { text, what })
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

/// The operation of a unary or binary opcode.
fn elementwise(opcode: Opcode) -> Option<Op> {
    match elementwise_kind(opcode)? {
        Elementwise::Unary(op) => Some(Op::Unary(op)),
        Elementwise::Binary(op) => Some(Op::Binary(op)),
    }
}

#[derive(Clone, Copy)]
enum Elementwise {
    Unary(UnaryOp),
    Binary(BinaryOp),
}

fn elementwise_kind(opcode: Opcode) -> Option<Elementwise> {
    /// By opcode, for most instructions are elementwise.
    static TABLE: LazyLock<Vec<Option<Elementwise>>> = LazyLock::new(|| {
        let mut table = vec![None; Opcode::iter().count()];
        UnaryOp::iter().for_each(|op| table[op.opcode() as usize] = Some(Elementwise::Unary(op)));
        BinaryOp::iter().for_each(|op| table[op.opcode() as usize] = Some(Elementwise::Binary(op)));
        table
    });
    TABLE[opcode as usize]
}
