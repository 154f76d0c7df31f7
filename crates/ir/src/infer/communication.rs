//! Operations that talk to other devices, to the host, or to a later point in time.

use crate::{Collective, CollectiveGroupMode, ElementType, Feed, ReplicaGroups, Shape};

use super::control::compatible_contents;
use super::dimension::{Agreement, compatible, dim, dims};
use super::{
    ArrayShape, InferError, Inference, Result, attribute_error, brief, check_dimension, one_or_tuple,
};

impl<'a> Inference<'a> {
    pub(super) fn infeed(&self) -> Result<Shape> {
        self.check_token(0)?;
        let given = self.given_shape()?;
        match given.as_tuple() {
            Some([data, _]) => Ok(Shape::tuple([data.clone(), Shape::Token])),
            _ => Err(InferError::Given { expected: "a pair of data and token".into(), found: brief(given) }),
        }
    }

    pub(super) fn outfeed(&self, feed: &Feed) -> Result<Shape> {
        self.check_token(1)?;
        match &feed.shape {
            Some(shape) if !compatible(shape, self.operands[0], Agreement::Exact) => {
                Err(self.operand_error(0, format!("as outfeed_shape says, {}", brief(shape))))
            }
            _ => Ok(Shape::Token),
        }
    }

    pub(super) fn send(&self) -> Result<Shape> {
        self.check_token(1)?;
        Ok(Shape::tuple([self.operands[0].clone(), context(), Shape::Token]))
    }

    pub(super) fn recv(&self) -> Result<Shape> {
        self.check_token(0)?;
        let given = self.given_shape()?;
        match given.as_tuple() {
            Some([data, ..]) => Ok(Shape::tuple([data.clone(), context(), Shape::Token])),
            _ => Err(InferError::Given {
                expected: "a tuple of data, u32[] and token[]".into(),
                found: brief(given),
            }),
        }
    }

    pub(super) fn recv_done(&self) -> Result<Shape> {
        Ok(Shape::tuple([self.element_of_operand(0)?.clone(), Shape::Token]))
    }

    /// Destination, source, context.
    pub(super) fn copy_start(&self) -> Shape {
        Shape::tuple([self.operands[0].clone(), self.operands[0].clone(), context()])
    }

    /// Operands, result, and the contexts of a given shape, if any.
    pub(super) fn async_start(&self) -> Result<Shape> {
        let wrapped = self.signature(0)?;
        wrapped.check_count(self.operands.len())?;
        for (i, operand) in self.operands.iter().enumerate() {
            wrapped.check_parameter(i, operand, Agreement::Exact)?;
        }
        let mut parts = vec![Self::parameters_as_tuple(&wrapped), wrapped.result.clone()];
        if let Some(contexts) = self.given.and_then(Shape::as_tuple).and_then(|parts| parts.get(2..)) {
            parts.extend_from_slice(contexts);
        }
        if let crate::Op::AsyncStart(start) = self.op {
            // An alias is relative to the whole result: the result is element 1.
            let whole = Shape::Tuple(parts.into());
            self.check_aliasing(&start.output_operand_aliasing, &whole, compatible_contents)?;
            return Ok(whole);
        }
        Ok(Shape::tuple(parts))
    }

    /// The shape of the start. Operands that an update adds, as newer versions of XLA can, are not taken.
    pub(super) fn async_update(&self) -> Result<Shape> {
        self.element_of_operand(1)?;
        Ok(self.operands[0].clone())
    }

    pub(super) fn all_gather(&self, collective: &Collective) -> Result<Shape> {
        self.gathered(collective, self.given)
    }

    /// The operands, then the result of an all-gather, then the contexts of a given shape, if any.
    pub(super) fn all_gather_start(&self, collective: &Collective) -> Result<Shape> {
        let given = self.given.and_then(Shape::as_tuple).and_then(|parts| parts.get(1));
        let operands = one_or_tuple(self.operands.iter().map(|&s| s.clone()).collect());
        Ok(self.with_contexts(vec![operands, self.gathered(collective, given)?]))
    }

    fn gathered(&self, collective: &Collective, given: Option<&Shape>) -> Result<Shape> {
        let at = self.collective_dimension(collective)?;
        let first = self.array(0)?;
        let ratio = extent_of_first(given, self.operands.len(), at)
            .map(|extent| quotient(extent, first.dimensions[at]));
        let count = self.shard_count(collective, ratio)?;
        self.scaled(at, |size| size.checked_mul(count))
    }

    pub(super) fn reduce_scatter(&self, collective: &Collective) -> Result<Shape> {
        self.check_reducer()?;
        let at = self.collective_dimension(collective)?;
        let first = self.array(0)?;
        let extent = extent_of_first(self.given, self.operands.len(), at);
        let count =
            self.shard_count(collective, extent.map(|extent| quotient(first.dimensions[at], extent)))?;
        for i in 0..self.operands.len() {
            let extent = dim(self.array(i)?, at);
            if !extent.is_unbounded() && extent.size % count != 0 {
                return Err(
                    self.operand_error(i, format!("of an extent divisible by {count} in dimension {at}"))
                );
            }
        }
        self.scaled(at, |size| Some(size / count))
    }

    /// Into how many shards a value is cut: the size of a group, which a program for one device does not know. Then
    /// the ratio of extents that are given tells.
    fn shard_count(&self, collective: &Collective, given_ratio: Option<i64>) -> Result<i64> {
        match (self.group_size(collective), given_ratio) {
            (None | Some(1), Some(ratio)) => Ok(ratio),
            (Some(size), _) => Ok(size),
            (None, None) => Err(InferError::Undetermined(self.opcode())),
        }
    }

    /// The operands with dimension `at` of each changed by `f`.
    fn scaled(&self, at: usize, f: impl Fn(i64) -> Option<i64>) -> Result<Shape> {
        let results = (0..self.operands.len()).map(|i| {
            let operand = self.array(i)?;
            check_dimension("dimensions", at as i64, operand.rank())?;
            let mut result = dims(operand);
            result[at] = result[at].map(at, &f)?;
            Ok(Shape::Array(super::dimension::array(operand.element_type, &result)?))
        });
        Ok(one_or_tuple(results.collect::<Result<Vec<_>>>()?))
    }

    pub(super) fn all_reduce(&self) -> Result<Shape> {
        self.check_reducer()?;
        self.arrays()?;
        Ok(one_or_tuple(self.operands.iter().map(|&s| s.clone()).collect()))
    }

    /// The reducer of a collective takes two scalars, or two for each operand.
    fn check_reducer(&self) -> Result<()> {
        let reducer = self.signature(0)?;
        let n = if reducer.parameters.len() == 2 { 1 } else { self.operands.len() };
        reducer.check_count(2 * n)?;
        let is_scalar = |s: &Shape| s.as_array().is_some_and(|a| a.rank() == 0);
        let parts = reducer.result.as_tuple().unwrap_or(std::slice::from_ref(reducer.result));
        if parts.len() != n || !parts.iter().all(is_scalar) {
            return Err(reducer.result_error(if n == 1 { "a scalar" } else { "one scalar per operand" }));
        }
        Ok(())
    }

    /// Of an array: the same shape. Of several: a tuple of them, one per device of a group.
    pub(super) fn all_to_all(&self, collective: &Collective) -> Result<Shape> {
        let arrays = self.arrays()?;
        let Some(dimension) = collective.dimension else {
            for i in 1..arrays.len() {
                if !compatible(self.operands[0], self.operands[i], Agreement::IgnoringPrecision) {
                    return Err(self.mismatch(0, i, "the same shape"));
                }
            }
            if let Some(count) = self.group_size(collective)
                && count != arrays.len() as i64
            {
                let expected = crate::Arity::exactly(usize::try_from(count).unwrap_or(usize::MAX));
                return Err(InferError::OperandCount { expected, found: arrays.len() });
            }
            let tuple = Shape::Tuple(self.operands.iter().map(|&s| s.clone()).collect());
            // One array in a group of one may be written without the tuple.
            return Ok(match self.given {
                Some(Shape::Array(_)) if arrays.len() == 1 => self.operands[0].clone(),
                _ => tuple,
            });
        };
        if arrays.len() != 1 {
            let expected = crate::Arity::exactly(1);
            return Err(InferError::OperandCount { expected, found: arrays.len() });
        }
        let at = check_dimension("dimensions", dimension, arrays[0].rank())?;
        let extent = dim(arrays[0], at);
        match self.group_size(collective) {
            Some(count) if !extent.is_unbounded() && extent.size % count != 0 => {
                Err(self.operand_error(0, format!("of an extent divisible by {count} in dimension {at}")))
            }
            _ => Ok(self.operands[0].clone()),
        }
    }

    /// Operand 1 is written in place; 2 to 5 are offsets and sizes.
    pub(super) fn ragged_all_to_all(&self) -> Result<Shape> {
        let (input, output) = (self.array(0)?, self.array(1)?);
        if input.element_type != output.element_type {
            return Err(self.mismatch(0, 1, "the same element type"));
        }
        for i in 2..6 {
            let numbers = self.array(i)?;
            if !numbers.element_type.is_integral() || !(1..=2).contains(&numbers.rank()) {
                return Err(self.operand_error(i, "an integer array of rank 1 or 2"));
            }
            if !compatible(self.operands[2], self.operands[i], Agreement::Exact) {
                return Err(self.mismatch(2, i, "the same shape"));
            }
        }
        Ok(self.operands[1].clone())
    }

    /// A dynamic root is one more operand.
    pub(super) fn collective_broadcast(&self, collective: &Collective) -> Result<Shape> {
        let mut shapes: Vec<Shape> = self.operands.iter().map(|&s| s.clone()).collect();
        if collective.has_dynamic_root && shapes.len() > 1 {
            shapes.pop();
        }
        Ok(one_or_tuple(shapes))
    }

    pub(super) fn collective_permute(&self) -> Result<Shape> {
        self.permuted()
    }

    /// The operands (source and destination in place), the result, and the contexts of a given shape, if any.
    pub(super) fn collective_permute_start(&self) -> Result<Shape> {
        let result = self.permuted()?;
        let sources = if self.op.permutes_in_place() { &self.operands[..1] } else { self.operands };
        let operands = one_or_tuple(sources.iter().map(|&s| s.clone()).collect());
        Ok(self.with_contexts(vec![operands, result]))
    }

    /// In place, operand 1 is the destination, and 2 and 3 say where in source and destination.
    fn permuted(&self) -> Result<Shape> {
        if !self.op.permutes_in_place() {
            return Ok(one_or_tuple(self.operands.iter().map(|&s| s.clone()).collect()));
        }
        if self.operands.len() != 4 {
            let expected = crate::Arity::exactly(4);
            return Err(InferError::OperandCount { expected, found: self.operands.len() });
        }
        match (self.operands[0].as_tuple(), self.operands[1].as_tuple()) {
            (None, None) => {
                (0..2).try_for_each(|i| self.check_offsets(i, self.operands[i], self.operands[i + 2]))?
            }
            (Some(sources), Some(destinations)) if sources.len() == destinations.len() => {
                for (i, arrays) in [sources, destinations].into_iter().enumerate() {
                    let offsets = self.operands[i + 2].as_tuple().unwrap_or_default();
                    if offsets.len() != arrays.len() {
                        return Err(self.mismatch(i, i + 2, "as many elements"));
                    }
                    let mut pairs = arrays.iter().zip(offsets);
                    pairs.try_for_each(|(array, offsets)| self.check_offsets(i, array, offsets))?;
                }
            }
            _ => return Err(self.mismatch(0, 1, "as many arrays")),
        }
        Ok(self.operands[1].clone())
    }

    /// Offsets into operand `i`, or a part of it: one for each of its dimensions, or a tuple of such.
    fn check_offsets(&self, i: usize, array: &Shape, offsets: &Shape) -> Result<()> {
        let rank = array.as_array().map(ArrayShape::rank);
        let offsets = offsets.as_tuple().unwrap_or_default();
        let is_one_each = |offsets: &[Shape]| {
            Some(offsets.len()) == rank && offsets.iter().all(|offset| matches!(offset, Shape::Array(_)))
        };
        let is_list = || {
            let counts = offsets.iter().map(|one| one.as_tuple().map(<[Shape]>::len));
            !offsets.is_empty() && counts.into_iter().all(|count| count.is_some() && count == rank)
        };
        match is_one_each(offsets) || is_list() {
            true => Ok(()),
            false => Err(self.operand_error(i + 2, "a tuple with one offset for each dimension")),
        }
    }

    /// These parts, then all further parts of a given shape.
    fn with_contexts(&self, mut parts: Vec<Shape>) -> Shape {
        if let Some(contexts) =
            self.given.and_then(Shape::as_tuple).and_then(|given| given.get(parts.len()..))
        {
            parts.extend_from_slice(contexts);
        }
        Shape::tuple(parts)
    }

    fn collective_dimension(&self, collective: &Collective) -> Result<usize> {
        let dimension =
            collective.dimension.ok_or_else(|| attribute_error("dimensions", "given", "absent"))?;
        check_dimension("dimensions", dimension, self.array(0)?.rank())
    }

    fn check_token(&self, i: usize) -> Result<()> {
        if *self.operands[i] == Shape::Token { Ok(()) } else { Err(self.operand_error(i, "a token")) }
    }

    pub(super) fn rng_bit_generator(&self) -> Result<Shape> {
        let given = self.given_shape()?;
        match given {
            Shape::Array(_) => Ok(given.clone()),
            Shape::Tuple(parts) if parts.len() == 2 && parts[1].as_array().is_some() => {
                Ok(Shape::tuple([self.operands[0].clone(), parts[1].clone()]))
            }
            _ => Err(InferError::Given {
                expected: "an array, or a pair of state and bits".into(),
                found: brief(given),
            }),
        }
    }

    /// The number of devices that share a value: the size of a replica group, times the partitions if a replica
    /// represents all of its own. `None` if neither groups nor module determine it.
    fn group_size(&self, collective: &Collective) -> Option<i64> {
        use CollectiveGroupMode::*;
        let config = &self.module.config;
        let mode = collective.group_mode(self.opcode());
        let listed = match &collective.replica_groups {
            ReplicaGroups::List(groups) => groups.first().map(|group| group.len() as i64),
            ReplicaGroups::Iota { dimensions, .. } => Some(dimensions[1]),
            ReplicaGroups::Mesh { mesh, axes } => axes.iter().try_fold(1i64, |product, axis| {
                let whole = mesh.axes.get(axis.axis as usize)?.1;
                product.checked_mul(axis.sub_axis.map_or(whole, |(_, size)| size))
            }),
        };
        let size = match (listed, mode) {
            (Some(n), CrossReplicaAndPartition) => n.checked_mul(config.num_partitions.unwrap_or(1)),
            (Some(n), _) => Some(n),
            (None, CrossReplica) => config.replica_count,
            (None, CrossPartition) => config.num_partitions,
            (None, _) => config.replica_count.unwrap_or(1).checked_mul(config.num_partitions?),
        };
        size.filter(|&n| n > 0)
    }
}

/// How many times `part` goes into `whole`; 1 where the question makes no sense.
fn quotient(whole: i64, part: i64) -> i64 {
    if part > 0 { (whole / part).max(1) } else { 1 }
}

/// The handle of an operation in flight.
fn context() -> Shape {
    Shape::scalar(ElementType::U32)
}

/// The extent of dimension `at` in the first of `n` results.
fn extent_of_first(given: Option<&Shape>, n: usize, at: usize) -> Option<i64> {
    let given = given?;
    let first = if n == 1 { given } else { given.as_tuple()?.first()? };
    let array: &ArrayShape = first.as_array()?;
    array.dimensions.get(at).copied().filter(|&extent| extent != ArrayShape::UNBOUNDED)
}
