//! How instructions treat rows: which part of each operand a block of result rows needs.
//!
//! Rows are parts of an array along one dimension, equally many in every array of a region. If reshapes merge that
//! dimension with later ones, a row has several elements:
//!
//! ```text
//!   x = f32[8,1024,768]        8 rows: dimension 0, 1 element each
//!   y = f32[8192,768]          reshape(x): dimension 0, 1024 elements each
//!   z = f32[768,8192]          transpose(y): dimension 1, 1024 elements each
//!   d = f32[8192,8192]         dot(y, y): rows of the left operand, the whole right one
//!   s = f32[768,768]           dot(z, y): a sum over rows
//! ```
//!
//! The [`IndexMap`]s of an operation tell which elements a row reads. Operations without maps are left alone, and so
//! are operations that mix rows: convolutions, sorts and reverses along the rows. `fusion` asks whether a kernel may keep
//! a few rows at a time, `row_blocks` and `parts` what a block of rows needs, `keep-within-loops` what a step sums,
//! `rows-within-loops` what a row is computed from.

use memplan_ir::indexing::{IndexMap, Source, operands_read};
use memplan_ir::{
    ArrayShape, BinaryOp, Cursor, ElementType, Insert, InstructionId, Module, Op, Operands, Role, Shape,
};
use smallvec::SmallVec;

use crate::plain_combiner;

/// The position of an array's rows: `n` rows in a dimension of `n * unit` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The dimension of the array that the rows are parts of.
    pub dimension: usize,
    /// Elements of that dimension in a row.
    pub unit: i64,
}

/// The result of an operation on rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The result has rows, too. Those of a tuple are along the same dimension of each element.
    Rows(Rows),
    /// The result is made of all rows by an operation whose order may change.
    Sum(BinaryOp),
}

/// An instruction's result from parts of its operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// What becomes of the rows.
    pub outcome: Outcome,
    /// For each operand its rows; `None` where each row takes the whole operand.
    pub operands: SmallVec<[Option<Rows>; 4]>,
}

impl Treatment {
    /// The rows of the result.
    pub fn rows(&self) -> Option<Rows> {
        match self.outcome {
            Outcome::Rows(rows) => Some(rows),
            Outcome::Sum(_) => None,
        }
    }
}

/// The operand parts for `n` rows of a result; `None` if rows cannot be computed separately.
pub fn by_result(module: &Module, id: InstructionId, n: i64, rows: Rows) -> Option<Treatment> {
    let operands = parts_of_operands(module, id, n, rows)?;
    let treatment = Treatment { outcome: Outcome::Rows(rows), operands };
    fits(module, id, n, &treatment).then_some(treatment)
}

/// The result of `n` rows of operand `number`.
pub fn by_operand(
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
pub fn on_block(op: &Op, treatment: &Treatment, extent: i64) -> Op {
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
        Op::CustomCall(call) => {
            for shape in call.operand_layout_constraints.iter_mut().flatten() {
                *shape = block_of(shape, Rows { dimension: rows.dimension, unit: extent });
            }
        }
        _ => {}
    }
    op
}

/// The shape of a block of rows.
pub fn block_of(shape: &Shape, rows: Rows) -> Shape {
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

/// A block of rows of an array that exists as a whole, from the element `start` of their dimension on; `zero` is where it
/// starts in the others.
pub fn cut_rows(
    at: &mut Cursor<'_>,
    whole: InstructionId,
    rows: Rows,
    start: InstructionId,
    zero: InstructionId,
) -> InstructionId {
    let block = block_of(at.module().shape(whole), rows);
    let slice_sizes = block.as_array().expect("rows are of arrays").dimensions.clone();
    let starts = (0..slice_sizes.len()).map(|d| if d == rows.dimension { start } else { zero });
    let operands: Operands = std::iter::once(whole).chain(starts).collect();
    at.insert_shaped(Op::DynamicSlice { slice_sizes }, operands, block)
}

/// Lets an iota count from `start`, an integer of any type.
pub fn count_from(at: &mut Cursor<'_>, iota: InstructionId, mut start: InstructionId) -> InstructionId {
    let array =
        |at: &Cursor<'_>, id| at.module().shape(id).as_array().expect("numbers are in arrays").clone();
    let shape = array(at, iota);
    if array(at, start).element_type != shape.element_type {
        start = at.convert(start, shape.element_type);
    }
    let start = at.fill(start, shape);
    at.binary(BinaryOp::Add, iota, start)
}

/// The neutral integer for a sum over a block, if the sum over all blocks has its own initial value. `None` if the
/// initial value may be used for each block, since repetition does not matter.
pub fn neutral(op: BinaryOp) -> Option<i64> {
    match op {
        BinaryOp::Add => Some(0),
        BinaryOp::Multiply => Some(1),
        _ => None,
    }
}

/// The type in which sums over blocks are carried from block to block: narrow floating-point numbers in `f32`, so that they
/// are rounded once.
pub fn carried_type(op: BinaryOp, element_type: ElementType) -> ElementType {
    match op {
        BinaryOp::Add | BinaryOp::Multiply if element_type.is_floating() && element_type.bits() < 32 => {
            ElementType::F32
        }
        _ => element_type,
    }
}

/// Whether an instruction makes a wide array of narrow ones by repeating elements, or of nothing.
pub fn is_repetition(op: &Op) -> bool {
    matches!(op, Op::Broadcast { .. } | Op::Iota { .. })
}

/// Whether a scatter adds rows to an array whose elements are equal at first, as gradients of tables do.
pub fn sums_equal_rows(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    matches!(instruction.op, Op::Scatter(_))
        && is_repetition(&module.instructions[instruction.operands[0]].op)
}

/// Whether an operation computes a value that is worth keeping: repeated elements can be made anywhere.
pub fn makes_values(op: &Op) -> bool {
    op.traits().role == Role::Computes && !is_repetition(op)
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
    match &instruction.op {
        Op::GetTupleElement { .. } => return Some(SmallVec::from_elem(Some(rows), 1)),
        // The first number of a block is added to it, which only whole numbers bear.
        Op::Iota { dimension } => {
            let is_exact = module.shape(id).as_array()?.element_type.is_integral();
            return (*dimension != rows.dimension as i64 || is_exact).then(SmallVec::new);
        }
        // Blocks of features or of places are not cut out, though each could be computed by itself.
        Op::Convolution(it) if it.dimensions.output_batch != rows.dimension as i64 => return None,
        // Several arrays at a time.
        Op::Scatter(_) if instruction.operands.len() != 3 => return None,
        _ => {}
    }
    let maps = operands_read(module, id);
    let part = |(&operand, map): (&InstructionId, &Option<IndexMap>)| -> Option<Option<Rows>> {
        let array = module.shape(operand).as_array()?;
        let Some(map) = map else { return array.dimensions.is_empty().then_some(None) };
        match map.dimension_along(rows.dimension) {
            _ if !map.mentions(rows.dimension) => Some(None),
            Some(dimension) => Some(Some(Rows { dimension, ..rows })),
            None if matches!(instruction.op, Op::Reshape { .. }) => {
                through_reshape(module.shape(id).as_array()?, array, n, rows).map(Some)
            }
            None => None,
        }
    };
    let parts: SmallVec<[Option<Rows>; 4]> =
        instruction.operands.iter().zip(&maps).map(part).collect::<Option<_>>()?;
    let is_made_of_rows = match &instruction.op {
        // Indices say which row an update is for, but not in a block.
        Op::Scatter(_) => parts[2].is_some(),
        op => is_repetition(op) || parts.iter().any(Option::is_some),
    };
    is_made_of_rows.then_some(parts)
}

/// The position of an operand's rows in the result. A first answer only: the rows that it needs confirm it.
fn rows_of_result(module: &Module, id: InstructionId, n: i64, number: usize, rows: Rows) -> Option<Rows> {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::GetTupleElement { .. } => Some(rows),
        Op::Reshape { .. } => {
            let operand = module.shape(instruction.operands[number]).as_array()?;
            through_reshape(operand, module.shape(id).as_array()?, n, rows)
        }
        op if op.is_elementwise() => Some(rows),
        _ => {
            let maps = operands_read(module, id);
            let map = maps[number].as_ref()?;
            match *map.sources.get(rows.dimension)? {
                Source::Dim(dimension) if dimension < map.rank => Some(Rows { dimension, ..rows }),
                _ => None,
            }
        }
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

/// The position of `n` rows of an array after a reshape: their dimension begins at the same place, and rows stay whole.
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

/// The place of a dimension in a list of them.
fn place_of(dimensions: &[i64], dimension: usize) -> Option<usize> {
    dimensions.iter().position(|&d| d == dimension as i64)
}

#[cfg(test)]
mod tests;
