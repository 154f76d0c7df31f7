//! Shape inference: the shape of an operation's result from its operands, attributes and called computations.
//!
//! The rules are those of XLA's shape inference and verifier, checked against `jaxlib` as far as its parser reveals
//! them (it infers shapes that the text omits). Three questions occur in every rule:
//!
//! * *Layouts.* Elementwise results and values that are passed through keep the layout of the operand; every other
//!   array is row-major. Nothing is ever rejected for its layout.
//! * *Precision.* Operands whose types differ only in floating-point precision are accepted; the result has the
//!   larger range, then the higher precision.
//! * *Dynamic dimensions.* A bound counts as the extent. A result dimension is dynamic if a dimension that it depends
//!   on is.
//!
//! Some operations leave a part of their shape open: `convert` its element type, `reshape` its extents. Then
//! [`infer_shape`] is an error, and [`infer_shape_given`] takes that part from a given shape and checks the rest.
//!
//! All arithmetic is checked: an extent beyond 64 bits is an error, and only the result is allocated.

mod communication;
mod contraction;
mod control;
mod dimension;
mod elementwise;
mod error;
mod indexing;
mod reduction;
mod reshaping;

use std::borrow::Cow;

use crate::{ArrayShape, ComputationId, Module, Op, Opcode, Shape};

pub(crate) use dimension::{Agreement, compatible, padded, placements};
pub(crate) use error::brief;
pub use error::{Extent, InferError};

/// Most parts, tuples and leaves together, that an inferred tuple may have. Training states have thousands of leaves;
/// a chain of `tuple(x, x)` would double its size with every instruction.
pub const MAX_TUPLE_PARTS: usize = 1 << 16;

/// Most levels that an inferred tuple may nest. Shapes are walked recursively.
pub const MAX_TUPLE_DEPTH: usize = 128;

type Result<T, E = InferError> = std::result::Result<T, E>;

/// The shape of the result of `op`, from the shapes of its operands and the computations it calls.
///
/// # Errors
/// [`InferError::Undetermined`] when the operation leaves a part of its shape open (parameter, iota, bitcast,
/// bitcast-convert, convert, stochastic-convert, reshape, dynamic-reshape, broadcast of anything but a scalar to
/// itself, custom-call, infeed, recv, rng, rng-bit-generator, and collectives whose group size is not known); any
/// other variant when the operation is not valid.
pub fn infer_shape(module: &Module, op: &Op, operands: &[&Shape], called: &[ComputationId]) -> Result<Shape> {
    Inference { module, op, operands, called, given: None }.shape().map(Cow::into_owned)
}

/// As [`infer_shape`], but what the operation leaves open is taken from `given`, which for instance is the shape that
/// a program declares. The result need not equal `given` otherwise.
///
/// # Errors
/// Any but [`InferError::Undetermined`].
pub fn infer_shape_given(
    module: &Module,
    op: &Op,
    operands: &[&Shape],
    called: &[ComputationId],
    given: &Shape,
) -> Result<Shape> {
    Inference { module, op, operands, called, given: Some(given) }.shape().map(Cow::into_owned)
}

/// One question: what is the shape of this operation's result?
#[derive(Clone, Copy)]
pub(crate) struct Inference<'a> {
    pub(crate) module: &'a Module,
    pub(crate) op: &'a Op,
    pub(crate) operands: &'a [&'a Shape],
    pub(crate) called: &'a [ComputationId],
    pub(crate) given: Option<&'a Shape>,
}

/// The parameters and result of a called computation.
struct Signature<'a> {
    name: &'a str,
    parameters: Vec<&'a Shape>,
    result: &'a Shape,
}

impl<'a> Inference<'a> {
    /// The answer; borrowed where the result is a shape that already exists.
    pub(crate) fn shape(&self) -> Result<Cow<'a, Shape>> {
        self.check_counts()?;
        let owned = match self.op {
            Op::Parameter { .. } => return self.given_shape().map(Cow::Borrowed),
            Op::Bitcast => return self.bitcast().map(Cow::Borrowed),
            Op::CustomCall(call) => return self.custom_call(call).map(Cow::Borrowed),
            Op::Copy | Op::Domain(_) | Op::OptimizationBarrier | Op::AddDependency => {
                return self.pass_through().map(Cow::Borrowed);
            }
            Op::Tuple => return self.tuple(),
            Op::GetTupleElement { index } => return self.get_tuple_element(*index).map(Cow::Borrowed),
            Op::Call { .. } | Op::Fusion(_) => return self.call().map(Cow::Borrowed),
            Op::While => return self.while_loop().map(Cow::Borrowed),
            Op::Conditional => return self.conditional().map(Cow::Borrowed),
            Op::AllReduceDone(_) => return Ok(Cow::Borrowed(self.operands[0])),
            Op::CopyDone => return self.element_of_operand(0).map(Cow::Borrowed),
            Op::AllGatherDone(_) | Op::CollectivePermuteDone(_) | Op::AsyncDone(_) => {
                return self.element_of_operand(1).map(Cow::Borrowed);
            }

            Op::Unary(unary) => self.unary(*unary)?.into(),
            Op::Binary(binary) => self.binary(*binary)?.into(),
            Op::Compare { comparison_type, .. } => self.compare(*comparison_type)?.into(),
            Op::Select => self.select()?.into(),
            Op::Clamp => self.clamp()?.into(),
            Op::Convert => self.convert()?.into(),
            Op::BitcastConvert => self.bitcast_convert()?.into(),
            Op::StochasticConvert => self.stochastic_convert()?.into(),
            Op::ReducePrecision { exponent_bits, mantissa_bits } => {
                self.reduce_precision(*exponent_bits, *mantissa_bits)?.into()
            }

            Op::Constant(literal) => self.constant(literal)?,
            Op::Iota { dimension } => self.iota(*dimension)?.into(),
            Op::ReplicaId | Op::PartitionId => Shape::scalar(crate::ElementType::U32),
            Op::Rng { distribution } => self.rng(*distribution)?.into(),
            Op::RngBitGenerator { .. } => self.rng_bit_generator()?,
            Op::RngGetAndUpdateState { .. } => Shape::array(crate::ElementType::U64, [2]),

            Op::Broadcast { dimensions } => self.broadcast(dimensions)?.into(),
            Op::Reshape { inferred_dimension } => self.reshape(*inferred_dimension)?.into(),
            Op::DynamicReshape => self.dynamic_reshape()?.into(),
            Op::Transpose { dimensions } => self.transpose(dimensions)?.into(),
            Op::Reverse { dimensions } => self.reverse(dimensions)?.into(),
            Op::Concatenate { dimension } => self.concatenate(*dimension)?.into(),
            Op::Pad { dimensions } => self.pad(dimensions)?.into(),
            Op::GetDimensionSize { dimension } => self.get_dimension_size(*dimension)?,
            Op::SetDimensionSize { dimension } => self.set_dimension_size(*dimension)?.into(),

            Op::Slice { dimensions } => self.slice(dimensions)?.into(),
            Op::DynamicSlice { slice_sizes } => self.dynamic_slice(slice_sizes)?.into(),
            Op::DynamicUpdateSlice => self.dynamic_update_slice()?.into(),
            Op::Gather(numbers) => self.gather(numbers)?.into(),
            Op::Scatter(numbers) => self.scatter(numbers)?,

            Op::Reduce { dimensions } => self.reduce(dimensions)?,
            Op::ReduceWindow(window) => self.reduce_window(window)?,
            Op::SelectAndScatter(window) => self.select_and_scatter(window)?.into(),
            Op::Map { dimensions } => self.map(dimensions)?.into(),
            Op::Scan(scan) => self.scan(scan)?,
            Op::Sort { dimension, .. } => self.sort(*dimension)?,
            Op::TopK { k, .. } => self.top_k(*k)?,
            Op::BatchNormTraining { feature_index, .. } => self.batch_norm(*feature_index, true)?,
            Op::BatchNormInference { feature_index, .. } => self.batch_norm(*feature_index, false)?,
            Op::BatchNormGrad { feature_index, .. } => self.batch_norm(*feature_index, true)?,

            Op::Dot(dot) => self.dot(&dot.dimensions)?.into(),
            Op::ScaledDot(dot) => self.scaled_dot(&dot.dimensions)?.into(),
            Op::RaggedDot(dot) => self.ragged_dot(dot)?.into(),
            Op::Convolution(convolution) => self.convolution(convolution)?.into(),
            Op::Fft { kind, lengths } => self.fft(*kind, lengths)?.into(),
            Op::TriangularSolve(options) => self.triangular_solve(options)?.into(),
            Op::Cholesky { .. } => self.cholesky()?.into(),

            Op::AfterAll => Shape::Token,
            Op::Infeed(_) => self.infeed()?,
            Op::Outfeed(feed) => self.outfeed(feed)?,
            Op::Send(_) => self.send()?,
            Op::SendDone(_) => Shape::Token,
            Op::Recv(_) => self.recv()?,
            Op::RecvDone(_) => self.recv_done()?,
            Op::CopyStart { .. } => self.copy_start(),
            Op::AsyncStart(_) => self.async_start()?,
            Op::AsyncUpdate(_) => self.async_update()?,

            Op::AllGather(collective) => self.all_gather(collective)?,
            Op::AllGatherStart(collective) => self.all_gather_start(collective)?,
            Op::AllReduce(_) | Op::AllReduceStart(_) => self.all_reduce()?,
            Op::ReduceScatter(collective) => self.reduce_scatter(collective)?,
            Op::AllToAll(collective) => self.all_to_all(collective)?,
            Op::RaggedAllToAll(_) => self.ragged_all_to_all()?,
            Op::CollectiveBroadcast(collective) => self.collective_broadcast(collective)?,
            Op::CollectivePermute(_) => self.collective_permute()?,
            Op::CollectivePermuteStart(_) => self.collective_permute_start()?,
        };
        Ok(Cow::Owned(owned))
    }

    /// The numbers of operands and called computations, which every rule may then rely on.
    fn check_counts(&self) -> Result<()> {
        let traits = self.op.traits();
        let (expected, found) = (traits.operands, self.operands.len());
        if !expected.allows(found) {
            return Err(InferError::OperandCount { expected, found });
        }
        let (expected, found) = (traits.called, self.called.len());
        if !expected.allows(found) {
            return Err(InferError::CalledCount { expected, found });
        }
        Ok(())
    }

    fn opcode(&self) -> Opcode {
        self.op.opcode()
    }

    fn given_shape(&self) -> Result<&'a Shape> {
        self.given.ok_or(InferError::Undetermined(self.opcode()))
    }

    fn given_array(&self) -> Result<&'a ArrayShape> {
        match self.given_shape()? {
            Shape::Array(array) => Ok(array),
            other => Err(InferError::Given { expected: "an array".into(), found: brief(other) }),
        }
    }

    /// Operand `i`, which must be an array.
    fn array(&self, i: usize) -> Result<&'a ArrayShape> {
        match self.operands[i] {
            Shape::Array(array) => Ok(array),
            _ => Err(self.operand_error(i, "an array")),
        }
    }

    fn arrays(&self) -> Result<Vec<&'a ArrayShape>> {
        (0..self.operands.len()).map(|i| self.array(i)).collect()
    }

    /// Operand `i`, which must be an array of rank 0.
    fn scalar(&self, i: usize) -> Result<&'a ArrayShape> {
        let array = self.array(i)?;
        if array.rank() == 0 { Ok(array) } else { Err(self.operand_error(i, "a scalar")) }
    }

    fn operand_error(&self, operand: usize, expected: impl Into<String>) -> InferError {
        InferError::Operand { operand, expected: expected.into(), found: brief(self.operands[operand]) }
    }

    fn mismatch(&self, first: usize, second: usize, what: &'static str) -> InferError {
        let [first_shape, second_shape] = [first, second].map(|i| brief(self.operands[i]));
        InferError::Mismatch { first, second, what, first_shape, second_shape }
    }

    /// The parameters and result of the `i`-th called computation.
    fn signature(&self, i: usize) -> Result<Signature<'a>> {
        let id = self.called[i];
        signature(self.module, id).ok_or(InferError::UnknownComputation(id))
    }
}

impl Signature<'_> {
    fn check_count(&self, expected: usize) -> Result<()> {
        if self.parameters.len() == expected {
            return Ok(());
        }
        Err(InferError::ParameterCount {
            computation: self.name.into(),
            expected,
            found: self.parameters.len(),
        })
    }

    fn check_parameter(&self, parameter: usize, expected: &Shape, agreement: Agreement) -> Result<()> {
        if compatible(self.parameters[parameter], expected, agreement) {
            return Ok(());
        }
        Err(InferError::Parameter {
            computation: self.name.into(),
            parameter,
            expected: brief(expected),
            found: brief(self.parameters[parameter]),
        })
    }

    fn check_result(&self, expected: &Shape, agreement: Agreement) -> Result<()> {
        if compatible(self.result, expected, agreement) {
            Ok(())
        } else {
            Err(self.result_error(brief(expected)))
        }
    }

    fn result_error(&self, expected: impl Into<String>) -> InferError {
        InferError::Result {
            computation: self.name.into(),
            expected: expected.into(),
            found: brief(self.result),
        }
    }
}

/// `None` when an id leads nowhere, as in a module under construction or a broken one.
fn signature(module: &Module, id: ComputationId) -> Option<Signature<'_>> {
    let shape = |instruction| module.shapes.get_index(index_of(module.instructions.get(instruction)?.shape));
    let computation = module.computations.get(id)?;
    let parameters = computation.parameters.iter().map(|&p| shape(p)).collect::<Option<_>>()?;
    Some(Signature { name: &computation.name, parameters, result: shape(computation.root)? })
}

fn index_of(id: impl crate::EntityRef) -> usize {
    id.index()
}

/// A single array as it is, several as a tuple.
fn one_or_tuple(mut shapes: Vec<Shape>) -> Shape {
    if shapes.len() == 1 { shapes.remove(0) } else { Shape::tuple(shapes) }
}

/// Checks that every entry is a dimension of an array of that rank, and none occurs twice.
fn check_dimensions(attribute: &'static str, dimensions: &[i64], rank: usize) -> Result<()> {
    let mut seen = vec![false; rank];
    for &dimension in dimensions {
        match usize::try_from(dimension).ok().and_then(|d| seen.get_mut(d)) {
            None => return Err(InferError::DimensionOutOfRange { attribute, dimension, rank }),
            Some(seen) if *seen => return Err(InferError::DuplicateDimension { attribute, dimension }),
            Some(seen) => *seen = true,
        }
    }
    Ok(())
}

/// For each dimension of an array of that rank, whether a checked list has it.
fn membership(dimensions: &[i64], rank: usize) -> Vec<bool> {
    let mut members = vec![false; rank];
    for &d in dimensions {
        members[d as usize] = true;
    }
    members
}

/// `dimension` as an index into an array of that rank.
fn check_dimension(attribute: &'static str, dimension: i64, rank: usize) -> Result<usize> {
    match usize::try_from(dimension) {
        Ok(d) if d < rank => Ok(d),
        _ => Err(InferError::DimensionOutOfRange { attribute, dimension, rank }),
    }
}

/// Checks that a list has the length that goes with a rank.
fn check_length(attribute: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(InferError::Attribute {
        attribute,
        expected: format!("{expected} long"),
        found: format!("{found} long"),
    })
}

/// The error for an attribute of the wrong value.
fn attribute_error(attribute: &'static str, expected: impl ToString, found: impl ToString) -> InferError {
    InferError::Attribute { attribute, expected: expected.to_string(), found: found.to_string() }
}
