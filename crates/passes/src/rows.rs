//! How instructions treat rows: which part of each operand a block of rows of the result takes.
//!
//! Rows are parts of an array along one dimension, as many in every array of a region. A dimension that reshapes have
//! merged with the ones behind it has several elements for each row:
//!
//! ```text
//!   x = f32[8,1024,768]        8 rows: dimension 0, 1 element each
//!   y = f32[8192,768]          reshape(x): dimension 0, 1024 elements each
//!   z = f32[768,8192]          transpose(y): dimension 1, 1024 elements each
//!   d = f32[8192,8192]         dot(y, y): rows of the left operand, the whole right one
//!   s = f32[768,768]           dot(z, y): a sum over rows
//! ```
//!
//! What is left alone, operation by operation, stands at the end of the list in [`parts_of_operands`]; of the others, what
//! mixes rows: convolutions along what is convolved, sorts along what is sorted, reverses along what is reversed. Kernels
//! ask (`fusion`: may a kernel hold a few rows at a time?), and so do loops over blocks of rows (`row_blocks`).

use memplan_ir::{
    ArrayShape, BinaryOp, ComputationId, Dimensions, Dot, ElementType, GatherDimensions, InstructionId,
    Module, Op, ScatterDimensions, Shape,
};
use smallvec::SmallVec;

/// Where the rows of an array are: `n` rows in a dimension of `n * unit` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    pub(crate) dimension: usize,
    pub(crate) unit: i64,
}

/// What becomes of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The result has rows, too. Those of a tuple are along the same dimension of each element.
    Rows(Rows),
    /// The result is made of all rows by an operation whose order may change.
    Sum(BinaryOp),
}

/// What an instruction makes of which parts of its operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Treatment {
    pub(crate) outcome: Outcome,
    /// For each operand its rows; `None` where each row takes the whole operand.
    pub(crate) operands: SmallVec<[Option<Rows>; 4]>,
}

impl Treatment {
    /// The rows of the result.
    pub(crate) fn rows(&self) -> Option<Rows> {
        match self.outcome {
            Outcome::Rows(rows) => Some(rows),
            Outcome::Sum(_) => None,
        }
    }
}

/// What `n` rows of a result take; `None` where they cannot be computed one by one.
pub(crate) fn by_result(module: &Module, id: InstructionId, n: i64, rows: Rows) -> Option<Treatment> {
    let operands = parts_of_operands(module, id, n, rows)?;
    let treatment = Treatment { outcome: Outcome::Rows(rows), operands };
    fits(module, id, n, &treatment).then_some(treatment)
}

/// What becomes of `n` rows of operand `number`.
pub(crate) fn by_operand(
    module: &Module,
    id: InstructionId,
    n: i64,
    number: usize,
    rows: Rows,
) -> Option<Treatment> {
    let treatment = match sum_over(module, id, number, rows) {
        Some(sum) => sum,
        None => by_result(module, id, n, rows_of_result(module, id, n, number, rows)?)?,
    };
    let is_meant = treatment.operands.get(number).copied().flatten() == Some(rows);
    (is_meant && fits(module, id, n, &treatment)).then_some(treatment)
}

/// An operation on a block of rows, which has `extent` elements where the whole has the rows' dimension. Its shape apart,
/// that is the operation on the whole but for attributes that repeat extents.
pub(crate) fn on_block(op: &Op, treatment: &Treatment, extent: i64) -> Op {
    let mut op = op.clone();
    let Some(rows) = treatment.rows() else { return op };
    match &mut op {
        Op::Slice { dimensions } => dimensions[rows.dimension].limit = extent,
        Op::DynamicSlice { slice_sizes } => slice_sizes[rows.dimension] = extent,
        Op::Gather(gather) => {
            if let Some(operand) = treatment.operands[0].filter(|o| gather.slice_sizes[o.dimension] != 1) {
                gather.slice_sizes[operand.dimension] = extent;
            }
        }
        Op::Reshape { inferred_dimension } => *inferred_dimension = None,
        _ => {}
    }
    op
}

/// The shape of a block of rows.
pub(crate) fn block_of(shape: &Shape, rows: Rows) -> Shape {
    match shape {
        Shape::Tuple(elements) => {
            Shape::Tuple(elements.iter().map(|element| block_of(element, rows)).collect())
        }
        Shape::Array(array) => {
            let mut array = array.clone();
            array.dimensions[rows.dimension] = rows.unit;
            Shape::Array(array)
        }
        other => other.clone(),
    }
}

/// What a sum over a block begins with, as a whole number, where the sum over all blocks has its own beginning. `None` where
/// it may begin with that as well, since it does not matter how often a value is taken.
pub(crate) fn neutral(op: BinaryOp) -> Option<i64> {
    match op {
        BinaryOp::Add => Some(0),
        BinaryOp::Multiply => Some(1),
        _ => None,
    }
}

/// The type in which sums over blocks are carried from block to block: narrow floating-point numbers in `f32`, so that they
/// are rounded once.
pub(crate) fn carried_type(op: BinaryOp, element_type: ElementType) -> ElementType {
    match op {
        BinaryOp::Add | BinaryOp::Multiply if element_type.is_floating() && element_type.bits() < 32 => {
            ElementType::F32
        }
        _ => element_type,
    }
}

/// Whether an instruction makes a wide array of narrow ones by repeating elements, or of nothing.
pub(crate) fn is_repetition(op: &Op) -> bool {
    matches!(op, Op::Broadcast { .. } | Op::Iota { .. })
}

/// The array in a shape; the first one of a tuple.
pub(crate) fn first_array(shape: &Shape) -> Option<&ArrayShape> {
    match shape {
        Shape::Tuple(elements) => first_array(elements.first()?),
        Shape::Array(array) => Some(array),
        _ => None,
    }
}

/// Whether all parts have as many rows as there should be, and are arrays of the plain kind.
fn fits(module: &Module, id: InstructionId, n: i64, treatment: &Treatment) -> bool {
    let has_rows = |array: &ArrayShape, rows: Rows| {
        !array.is_dynamic()
            && array.memory_space() == 0
            && array
                .dimensions
                .get(rows.dimension)
                .is_some_and(|&extent| Some(extent) == n.checked_mul(rows.unit))
    };
    let shape_has_rows = |shape: &Shape, rows: Option<Rows>| match (shape, rows) {
        (Shape::Array(array), Some(rows)) => has_rows(array, rows),
        (Shape::Tuple(elements), Some(rows)) => {
            elements.iter().all(|element| matches!(element, Shape::Array(array) if has_rows(array, rows)))
        }
        (_, rows) => rows.is_none(),
    };
    let instruction = &module.instructions[id];
    shape_has_rows(module.shape(id), treatment.rows())
        && instruction.operands.len() == treatment.operands.len()
        && (instruction.operands.iter().zip(&treatment.operands))
            .all(|(&operand, &rows)| shape_has_rows(module.shape(operand), rows))
}

/// The rows that each operand gives for rows of the result; `None` where the result is not computed row by row.
fn parts_of_operands(
    module: &Module,
    id: InstructionId,
    n: i64,
    rows: Rows,
) -> Option<SmallVec<[Option<Rows>; 4]>> {
    let instruction = &module.instructions[id];
    let array = |number: usize| module.shape(instruction.operands[number]).as_array();
    let count = instruction.operands.len();
    let at = |dimension: usize| Some(Rows { dimension, ..rows });
    let (d, all) = (rows.dimension, SmallVec::from_elem(Some(rows), count));
    let first = |n_first: usize, part: Option<Rows>| {
        (0..count).map(|number| if number < n_first { part } else { None }).collect::<SmallVec<_>>()
    };
    Some(match &instruction.op {
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare { .. }
        | Op::Select
        | Op::Clamp
        | Op::Convert
        | Op::StochasticConvert
        | Op::Copy
        | Op::ReducePrecision { .. } => {
            let is_array = |number: usize| array(number).is_some_and(|array| array.rank() > 0);
            (0..count).map(|number| is_array(number).then_some(rows)).collect()
        }
        Op::Map { .. } | Op::GetTupleElement { .. } => all,
        Op::BitcastConvert => (d < array(0)?.rank()).then_some(all)?,
        Op::Broadcast { dimensions } => first(1, place_of(dimensions, d).and_then(at)),
        Op::Reshape { .. } => {
            first(1, Some(through_reshape(module.shape(id).as_array()?, array(0)?, n, rows)?))
        }
        Op::Transpose { dimensions } => first(1, at(dimensions[d] as usize)),
        Op::Reverse { dimensions } => place_of(dimensions, d).is_none().then_some(all)?,
        Op::Slice { dimensions } => {
            let slice = dimensions[d];
            let is_whole = slice.start == 0 && slice.stride == 1 && slice.limit == array(0)?.dimensions[d];
            is_whole.then_some(all)?
        }
        Op::DynamicSlice { slice_sizes } => {
            (slice_sizes[d] == array(0)?.dimensions[d]).then(|| first(1, Some(rows)))?
        }
        Op::DynamicUpdateSlice => {
            (array(1)?.dimensions[d] == array(0)?.dimensions[d]).then(|| first(2, Some(rows)))?
        }
        Op::Concatenate { dimension } => (*dimension != d as i64).then_some(all)?,
        Op::Pad { dimensions } => {
            let padding = dimensions[d];
            let is_none = padding.low == 0 && padding.high == 0 && padding.interior == 0;
            is_none.then_some(first(1, Some(rows)))?
        }
        Op::Reduce { dimensions } => {
            let mut kept = (0..array(0)?.rank()).filter(|&i| place_of(dimensions, i).is_none());
            first(count / 2, at(kept.nth(d)?))
        }
        Op::ReduceWindow(window) => {
            let is_trivial = window.dimensions[d] == Default::default();
            is_trivial.then_some(first(count / 2, Some(rows)))?
        }
        Op::SelectAndScatter(window) => {
            let is_trivial = window.dimensions[d] == Default::default();
            is_trivial.then_some(first(2, Some(rows)))?
        }
        Op::Sort { dimension, .. } => (*dimension != d as i64).then_some(all)?,
        Op::TopK { .. } => (d + 1 < array(0)?.rank()).then_some(all)?,
        Op::Iota { dimension } => {
            let is_exact = module.shape(id).as_array()?.element_type.is_integral();
            (*dimension != d as i64 || is_exact).then_some(all)?
        }
        Op::Dot(dot) => SmallVec::from_slice(&parts_of_dot(dot, array(0)?, array(1)?, rows)?),
        Op::Gather(gather) => SmallVec::from_slice(&parts_of_gather(gather, array(0)?, array(1)?, rows)?),
        Op::Scatter(scatter) if count == 3 => {
            SmallVec::from_slice(&parts_of_scatter(scatter, array(0)?, array(2)?, rows)?)
        }
        Op::Convolution(convolution) => {
            let (dimensions, is_batch) = (&convolution.dimensions, convolution.batch_group_count == 1);
            let is_batch = is_batch && dimensions.output_batch == d as i64;
            is_batch.then_some(first(1, at(dimensions.input_batch as usize)))?
        }
        Op::Fft { lengths, .. } => (d + lengths.len() < array(0)?.rank()).then_some(all)?,
        Op::Cholesky { .. } | Op::TriangularSolve(_) => (d + 2 < array(0)?.rank()).then_some(all)?,
        // Several arrays at a time, scales of blocks and groups of unequal size; statistics over all rows.
        Op::Scatter(_)
        | Op::ScaledDot(_)
        | Op::RaggedDot(_)
        | Op::Scan(_)
        | Op::BatchNormTraining { .. }
        | Op::BatchNormInference { .. }
        | Op::BatchNormGrad { .. }
        // Extents and places that only a run knows, or that a layout decides.
        | Op::DynamicReshape
        | Op::GetDimensionSize { .. }
        | Op::SetDimensionSize { .. }
        | Op::Bitcast
        // Numbers that come in an order.
        | Op::Rng { .. }
        | Op::RngBitGenerator { .. }
        | Op::RngGetAndUpdateState { .. }
        // What is given, named, handed on as a whole, or decided elsewhere.
        | Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Tuple
        | Op::AddDependency
        | Op::AfterAll
        | Op::OptimizationBarrier
        | Op::Domain(_)
        | Op::ReplicaId
        | Op::PartitionId
        | Op::While
        | Op::Conditional
        | Op::Call { .. }
        | Op::Fusion(_)
        | Op::CustomCall(_)
        // Memory, devices and hosts.
        | Op::CopyStart { .. }
        | Op::CopyDone
        | Op::AsyncStart(_)
        | Op::AsyncUpdate(_)
        | Op::AsyncDone(_)
        | Op::Infeed(_)
        | Op::Outfeed(_)
        | Op::Send(_)
        | Op::SendDone(_)
        | Op::Recv(_)
        | Op::RecvDone(_)
        | Op::AllGather(_)
        | Op::AllGatherStart(_)
        | Op::AllGatherDone(_)
        | Op::AllReduce(_)
        | Op::AllReduceStart(_)
        | Op::AllReduceDone(_)
        | Op::ReduceScatter(_)
        | Op::AllToAll(_)
        | Op::RaggedAllToAll(_)
        | Op::CollectiveBroadcast(_)
        | Op::CollectivePermute(_)
        | Op::CollectivePermuteStart(_)
        | Op::CollectivePermuteDone(_) => return None,
    })
}

/// Where the rows of an operand are in the result. Only a first answer: what they take settles it.
fn rows_of_result(module: &Module, id: InstructionId, n: i64, number: usize, rows: Rows) -> Option<Rows> {
    let instruction = &module.instructions[id];
    let array = |number: usize| module.shape(instruction.operands[number]).as_array();
    let (d, at) = (rows.dimension, |dimension: usize| Some(Rows { dimension, ..rows }));
    match &instruction.op {
        Op::Broadcast { dimensions } => at(dimensions[d] as usize),
        Op::Reshape { .. } => through_reshape(array(0)?, module.shape(id).as_array()?, n, rows),
        Op::Transpose { dimensions } => at(place_of(dimensions, d)?),
        Op::Reduce { dimensions } => at(d - dimensions.iter().filter(|&&i| i < d as i64).count()),
        Op::Dot(dot) => {
            let dot = &dot.dimensions;
            let (batch, contracting) = match number {
                0 => (&dot.lhs_batch, &dot.lhs_contracting),
                _ => (&dot.rhs_batch, &dot.rhs_contracting),
            };
            let is_free = |i: &usize| place_of(batch, *i).is_none() && place_of(contracting, *i).is_none();
            let left = array(0)?.rank() - dot.lhs_batch.len() - dot.lhs_contracting.len();
            let free_before = (0..d).filter(is_free).count() + if number == 1 { left } else { 0 };
            at(place_of(batch, d).unwrap_or(batch.len() + free_before))
        }
        // The dimension of the result that takes these rows.
        Op::Gather(gather) => {
            let (operand, indices) = (array(0)?, array(1)?);
            let takes = |parts: [Option<Rows>; 2]| parts[number] == Some(rows);
            let mut dimensions = 0..module.shape(id).as_array()?.rank();
            at(dimensions.find(|&to| {
                parts_of_gather(gather, operand, indices, Rows { dimension: to, ..rows }).is_some_and(takes)
            })?)
        }
        Op::Scatter(scatter) if instruction.operands.len() == 3 => {
            let (operand, updates) = (array(0)?, array(2)?);
            let takes = |parts: [Option<Rows>; 3]| parts[number] == Some(rows);
            let mut dimensions = 0..module.shape(id).as_array()?.rank();
            at(dimensions.find(|&to| {
                parts_of_scatter(scatter, operand, updates, Rows { dimension: to, ..rows }).is_some_and(takes)
            })?)
        }
        Op::Convolution(convolution) => at(convolution.dimensions.output_batch as usize),
        _ => Some(rows),
    }
}

/// The treatment of an instruction that sums up the rows of an operand.
fn sum_over(module: &Module, id: InstructionId, number: usize, rows: Rows) -> Option<Treatment> {
    let instruction = &module.instructions[id];
    let (outcome, operands) = match &instruction.op {
        Op::Reduce { dimensions } if instruction.operands.len() == 2 && number == 0 => {
            place_of(dimensions, rows.dimension)?;
            let combined = plain_combiner(module, instruction.called[0])?;
            (Outcome::Sum(combined), [Some(rows), None])
        }
        Op::Dot(dot) => {
            let pair = (&dot.dimensions.lhs_contracting, &dot.dimensions.rhs_contracting);
            let (own, other) = if number == 0 { pair } else { (pair.1, pair.0) };
            let dimension = other[place_of(own, rows.dimension)?] as usize;
            let other = Some(Rows { dimension, ..rows });
            let operands = if number == 0 { [Some(rows), other] } else { [other, Some(rows)] };
            (Outcome::Sum(BinaryOp::Add), operands)
        }
        _ => return None,
    };
    Some(Treatment { outcome, operands: SmallVec::from_slice(&operands) })
}

/// The operation of a reducer that combines its two parameters by nothing else, in any order.
fn plain_combiner(module: &Module, reducer: ComputationId) -> Option<BinaryOp> {
    let reducer = &module.computations[reducer];
    let root = &module.instructions[reducer.root];
    let mut operands: SmallVec<[InstructionId; 3]> = root.operands.clone();
    operands.sort_unstable();
    let mut parameters = reducer.parameters.clone();
    parameters.sort_unstable();
    match root.op {
        Op::Binary(
            op @ (BinaryOp::Add
            | BinaryOp::Multiply
            | BinaryOp::Maximum
            | BinaryOp::Minimum
            | BinaryOp::And
            | BinaryOp::Or),
        ) if operands[..] == parameters[..] => Some(op),
        _ => None,
    }
}

/// Where `n` rows of an array are after a reshape: their dimension begins where it did, and a row stays whole.
fn through_reshape(from: &ArrayShape, to: &ArrayShape, n: i64, rows: Rows) -> Option<Rows> {
    let product = |dimensions: &[i64]| dimensions.iter().try_fold(1i64, |a, &b| a.checked_mul(b));
    let before = product(&from.dimensions[..rows.dimension])?;
    let elements = rows.unit.checked_mul(product(&from.dimensions[rows.dimension + 1..])?)?;
    let mut ahead = 1i64;
    for (dimension, &extent) in to.dimensions.iter().enumerate() {
        if ahead == before && extent != 1 {
            let behind = product(&to.dimensions[dimension + 1..])?;
            let (unit, is_whole) = (extent / n, extent % n == 0);
            return (is_whole && unit.checked_mul(behind)? == elements).then_some(Rows { dimension, unit });
        }
        ahead = ahead.checked_mul(extent)?;
    }
    None
}

fn parts_of_dot(dot: &Dot, lhs: &ArrayShape, rhs: &ArrayShape, rows: Rows) -> Option<[Option<Rows>; 2]> {
    let dot = &dot.dimensions;
    let at = |dimension: usize| Some(Rows { dimension, ..rows });
    let n_batch = dot.lhs_batch.len();
    if rows.dimension < n_batch {
        return Some([
            at(dot.lhs_batch[rows.dimension] as usize),
            at(dot.rhs_batch[rows.dimension] as usize),
        ]);
    }
    let free = |array: &ArrayShape, batch: &Dimensions, contracting: &Dimensions| -> Vec<usize> {
        let is_free = |i: &usize| place_of(batch, *i).is_none() && place_of(contracting, *i).is_none();
        (0..array.rank()).filter(is_free).collect()
    };
    let left = free(lhs, &dot.lhs_batch, &dot.lhs_contracting);
    let right = free(rhs, &dot.rhs_batch, &dot.rhs_contracting);
    let i = rows.dimension - n_batch;
    match left.get(i) {
        Some(&dimension) => Some([at(dimension), None]),
        None => Some([None, at(*right.get(i - left.len())?)]),
    }
}

/// A row of what a gather takes is a row of what it takes from, where a slice is as wide as that; or a row of indices,
/// and with it of what is taken from where the two go together.
fn parts_of_gather(
    gather: &GatherDimensions,
    operand: &ArrayShape,
    indices: &ArrayShape,
    rows: Rows,
) -> Option<[Option<Rows>; 2]> {
    let at = |dimension: i64| Some(Rows { dimension: dimension as usize, ..rows });
    if let Some(i) = place_of(&gather.offset_dims, rows.dimension) {
        let is_kept =
            |d: &i64| !gather.collapsed_slice_dims.contains(d) && !gather.operand_batching_dims.contains(d);
        let from = (0..operand.rank() as i64).filter(is_kept).nth(i)?;
        let is_whole = gather.slice_sizes[from as usize] == operand.dimensions[from as usize];
        return is_whole.then_some([at(from), None]);
    }
    let i = (0..rows.dimension).filter(|&d| place_of(&gather.offset_dims, d).is_none()).count();
    let from = (0..indices.rank() as i64).filter(|&d| d != gather.index_vector_dim).nth(i)?;
    let batch = gather.start_indices_batching_dims.iter().position(|&d| d == from);
    Some([batch.and_then(|batch| at(gather.operand_batching_dims[batch])), at(from)])
}

/// A row that a scatter writes into is one of the updates, too, where a window is as wide as that, or where updates,
/// indices and what they are written into go together.
fn parts_of_scatter(
    scatter: &ScatterDimensions,
    operand: &ArrayShape,
    updates: &ArrayShape,
    rows: Rows,
) -> Option<[Option<Rows>; 3]> {
    let at = |dimension: i64| Some(Rows { dimension: dimension as usize, ..rows });
    let d = rows.dimension as i64;
    if let Some(batch) = scatter.input_batching_dims.iter().position(|&i| i == d) {
        let from = scatter.scatter_indices_batching_dims[batch];
        let i = (0..from).filter(|&d| d != scatter.index_vector_dim).count();
        let is_batch = |d: &i64| !scatter.update_window_dims.contains(d);
        let update = (0..updates.rank() as i64).filter(is_batch).nth(i)?;
        return Some([Some(rows), at(from), at(update)]);
    }
    let is_window =
        |d: &i64| !scatter.inserted_window_dims.contains(d) && !scatter.input_batching_dims.contains(d);
    let i = (0..operand.rank() as i64).filter(is_window).position(|i| i == d)?;
    let update = *scatter.update_window_dims.get(i)?;
    let is_whole = updates.dimensions[update as usize] == operand.dimensions[rows.dimension];
    let is_target = scatter.scatter_dims_to_operand_dims.contains(&d);
    (is_whole && !is_target).then_some([Some(rows), None, at(update)])
}

/// The place of a dimension in a list of them.
fn place_of(dimensions: &[i64], dimension: usize) -> Option<usize> {
    dimensions.iter().position(|&d| d == dimension as i64)
}

#[cfg(test)]
mod tests;
