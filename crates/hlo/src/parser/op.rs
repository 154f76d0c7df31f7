//! From an opcode with its attributes to an [`Op`].

mod asynchronous;
mod operand_count;
mod structures;
mod take;

use memplan_ir::{Async, ComputationId, Feed, Fusion, Op, Opcode, Operands, Scan, TriangularSolve};
use smallvec::{SmallVec, smallvec};

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
                    // XLA's parser takes no word for no.
                    is_associative: Some(self.flag(A::IsAssociative)),
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
            Opcode::Outfeed => {
                let given = self.attributes.shape(A::OutfeedShape).map(|shape| *shape);
                let shape = given.unwrap_or_else(|| self.parser.module.shape(self.operands[0]).clone());
                let config = self.attributes.bytes(A::OutfeedConfig).unwrap_or_default();
                Op::Outfeed(Box::new(Feed { config, shape: Some(shape) }))
            }
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
                let execution_thread = self.attributes.string(A::AsyncExecutionThread).unwrap_or_default();
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
            _ => opcode.without_attributes().expect("all others have attributes"),
        };
        Ok((op, called))
    }
}
