//! Which rows of its operands a band of rows of a result reads, and the operation on a band.
//!
//! ```text
//!   y = convolution(x, w), window 3, stride 2, one row of padding before the first:
//!   rows 4..6 of y read rows 7..12 of x: each row three, and the next row begins two further
//! ```

use std::ops::Range;

use memplan_ir::indexing::{IndexMap, Source, Strided, operands_read};
use memplan_ir::{InstructionId, Module, Op};
use smallvec::SmallVec;

/// Rows by their numbers: those below zero and beyond the array are padding.
pub(super) type Rows = Range<i64>;

/// How the rows of an operand move with those of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// The dimension of the operand's rows.
    pub(super) dimension: usize,
    /// Rows from where one row of the result begins to read to where the next one does.
    pub(super) stride: i64,
    /// Rows of padding before the operand's first row.
    before: i64,
    /// From the first row that is read for one row to the last.
    size: i64,
}

impl Reach {
    /// Whether each row reads the row of the same number.
    pub(super) fn is_same_row(self) -> bool {
        (self.stride, self.before, self.size) == (1, 0, 1)
    }

    /// The rows that some rows of the result read.
    pub(super) fn of(self, rows: &Rows) -> Rows {
        let first = rows.start * self.stride - self.before;
        first..first + (rows.end - 1 - rows.start) * self.stride + self.size
    }
}

/// How an instruction computes rows of its result.
#[derive(Clone, Debug)]
pub(super) struct Treatment {
    /// The dimension of the result's rows.
    pub(super) dimension: usize,
    /// For each operand the rows that it gives; `None` where each row may read the whole operand.
    pub(super) operands: SmallVec<[Option<Reach>; 4]>,
}

/// How rows along a dimension of a result are computed from rows of the operands; `None` if they are not.
pub(super) fn by_rows(module: &Module, id: InstructionId, dimension: usize) -> Option<Treatment> {
    let instruction = &module.instructions[id];
    module.plain_array(id).filter(|array| dimension < array.rank())?;
    if !instruction.control_predecessors.is_empty() || !computes_by_rows(module, id, dimension) {
        return None;
    }
    let maps = operands_read(module, id);
    let operands = instruction.operands.iter().zip(&maps).map(|(&operand, map)| {
        let array = module.plain_array(operand)?;
        match map {
            Some(map) => reach(map, dimension),
            None if array.rank() == 0 => Some(None),
            None => None,
        }
    });
    Some(Treatment { dimension, operands: operands.collect::<Option<_>>()? })
}

/// Operations that compute any rows as [`on_band`] says. A constant has equal elements.
fn computes_by_rows(module: &Module, id: InstructionId, dimension: usize) -> bool {
    let op = &module.instructions[id].op;
    match op {
        Op::Constant(_) => memplan_rewriter::loops::scalar(module, id).is_some(),
        Op::Convolution(convolution) => convolution.dimensions.output_spatial.contains(&(dimension as i64)),
        Op::Concatenate { dimension: joined } => *joined != dimension as i64,
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Pad { .. }
        | Op::Slice { .. }
        | Op::ReduceWindow(_)
        | Op::Reduce { .. }
        | Op::Dot(_) => true,
        op => op.is_elementwise() && !op.has_side_effect(),
    }
}

/// How an operand is read along a dimension of the result; the inner `None` where rows do not matter.
fn reach(map: &IndexMap, dimension: usize) -> Option<Option<Reach>> {
    let mut along = map.sources.iter().enumerate().filter(|(_, source)| source.mentions(dimension));
    let Some((number, source)) = along.next() else { return Some(None) };
    if along.next().is_some() {
        return None;
    }
    let of = |stride, before, size| Some(Some(Reach { dimension: number, stride, before, size }));
    match *source {
        Source::Dim(_) => of(1, 0, 1),
        Source::Strided(Strided { start, stride, dilation: 1, .. }) if stride > 0 => of(stride, -start, 1),
        Source::Window { dim, window, .. } if dim == dimension && window.base_dilation == 1 => {
            let size = (window.size - 1).checked_mul(window.window_dilation)?.checked_add(1)?;
            // Every row reads something that exists.
            let is_inside = window.padding_low < size && window.padding_high < size;
            if is_inside { of(window.stride, window.padding_low, size) } else { None }
        }
        _ => None,
    }
}

/// An operation that computes a band of rows: of the operand that has rows, it reads only those that exist.
pub(super) fn on_band(module: &Module, id: InstructionId, treatment: &Treatment, rows: &Rows) -> Op {
    let instruction = &module.instructions[id];
    let mut op = instruction.op.clone();
    let of_first = treatment.operands.first().copied().flatten();
    let Some(reach) = of_first else { return op };
    let read = reach.of(rows);
    let array = module.plain_array(instruction.operands[0]).expect("operands of members are arrays");
    let before = (-read.start).max(0);
    let after = (read.end - array.dimensions[reach.dimension]).max(0);
    let dimension = treatment.dimension;
    match &mut op {
        Op::Convolution(convolution) => {
            let spatial = &convolution.dimensions.output_spatial;
            if let Some(i) = spatial.iter().position(|&d| d == dimension as i64) {
                let window = &mut convolution.window.dimensions[i];
                (window.padding_low, window.padding_high) = (before, after);
            }
        }
        Op::ReduceWindow(window) => {
            let window = &mut window.dimensions[dimension];
            (window.padding_low, window.padding_high) = (before, after);
        }
        Op::Pad { dimensions } => {
            let padding = &mut dimensions[dimension];
            (padding.low, padding.high) = (before, after);
        }
        Op::Slice { dimensions } => {
            let slice = &mut dimensions[dimension];
            (slice.start, slice.limit) = (0, read.end - read.start);
        }
        Op::Reshape { inferred_dimension } => *inferred_dimension = None,
        _ => {}
    }
    op
}
