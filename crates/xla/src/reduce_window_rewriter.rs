//! `reduce-window-rewriter`: computes long running sums as trees of short running sums.
//!
//! ```text
//!   s = f32[8,1024] reduce-window(x, 0), window={size=1x1024 pad=0_0x1023_0}, to_apply=add
//!      =>
//!   r = f32[8,64,16] reshape(x)
//!   w = f32[8,64,16] reduce-window(r, 0), window={size=1x1x16 pad=0_0x0_0x15_0}, to_apply=add     within each row
//!   l = f32[8,64] reshape(slice(w))                                                               the last of each row
//!   b = f32[8,64] the sums of all rows before, in the same way
//!   s = f32[8,1024] reshape(add(broadcast(b), w))
//! ```
//!
//! XLA does this if a window is as long as the dimension and gains one element per step (seen on jaxlib 0.10.2: rows of
//! 16 on CPUs and GPUs; libtpu 0.0.52: rows of 128). Transposes first make the dimension the last one.
//!
//! Left alone: sums of at most one row, several arrays at once, and reducers that do more than compute numbers.
//! *Changed* means that there was such a sum.

use memplan_ir::{
    ComputationId, Dimensions, Insert, InstructionId, Op, PaddingDimension, Shape, Window, WindowDimension,
};
use memplan_rewriter::{Rewriter, Sweep};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The pass with rows of 16, which XLA's CPU and GPU compilers both set.
pub const REDUCE_WINDOW_REWRITER: Sweep = Sweep {
    name: "reduce-window-rewriter",
    description: "compute running sums as trees, as XLA does",
    rule: |r, id| rule(r, id, 16),
};

/// The pass with rows of 128, the lanes of a TPU.
pub const REDUCE_WINDOW_REWRITER_TO_LANES: Sweep = Sweep {
    name: "reduce-window-rewriter-to-lanes",
    description: "compute running sums as trees, as XLA's TPU compiler does",
    rule: |r, id| rule(r, id, 128),
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId, row: i64) -> Option<InstructionId> {
    match r.op(id) {
        Op::ReduceWindow(window) => {
            let (dimension, backward) = running_dimension(r, id, window, row)?;
            rewrite(r, id, dimension, backward, row)
        }
        _ => None,
    }
}

/// The only dimension along which a window meets one more element with each step, and whether it does so from the end.
fn running_dimension(
    r: &Rewriter<'_>,
    id: InstructionId,
    window: &Window,
    row: i64,
) -> Option<(usize, bool)> {
    let extents = &r.array(r.operand(id, 0))?.dimensions;
    let is_trivial = |d: &WindowDimension| {
        *d == WindowDimension { size: 1, stride: 1, padding_low: 0, padding_high: 0, ..*d } && is_dense(d)
    };
    let mut moving = window.dimensions.iter().enumerate().filter(|(_, d)| !is_trivial(d));
    let (at, d) = moving.next()?;
    let extent = extents[at];
    let is_alone = moving.next().is_none() && is_dense(d) && d.stride == 1 && d.size == extent;
    match (d.padding_low, d.padding_high) {
        _ if !is_alone || extent <= row => None,
        (low, 0) if low == extent - 1 => Some((at, false)),
        (0, high) if high == extent - 1 => Some((at, true)),
        _ => None,
    }
}

fn is_dense(d: &WindowDimension) -> bool {
    d.window_dilation == 1 && d.base_dilation == 1 && !d.window_reversal
}

fn rewrite(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    dimension: usize,
    backward: bool,
    row: i64,
) -> Option<InstructionId> {
    let &[operand, initial] = r.operands(id) else { return None };
    let reducer = r.get(id).called[0];
    let computes_numbers = r.module().instructions_of(reducer).all(|(_, instruction)| {
        instruction.op.is_elementwise() || matches!(instruction.op, Op::Parameter { .. })
    });
    let rank = r.array(operand)?.dimensions.len();
    if !computes_numbers || r.array(id)?.element_type != r.array(operand)?.element_type {
        return None;
    }
    let mut order: Dimensions = (0..rank as i64).collect();
    order.swap(dimension, rank - 1);
    let running = Running { reducer, initial, backward, row };
    let along = r.transposed(operand, &order)?;
    let sums = running.sums(r, along, false);
    r.transposed(sums, &order)
}

/// The running sum over the last dimension, and its direction.
struct Running {
    reducer: ComputationId,
    initial: InstructionId,
    backward: bool,
    /// Elements that are summed up one after the other.
    row: i64,
}

impl Running {
    /// The sums of all elements up to each one, or with `exclusive` of those before it. As deep as the logarithm of the extent.
    fn sums(&self, r: &mut Rewriter<'_>, x: InstructionId, exclusive: bool) -> InstructionId {
        let array = r.array(x).expect("arrays are summed up").clone();
        let (extent, outer) = array.dimensions.split_last().expect("there is a dimension to sum up");
        let (extent, outer) = (*extent, outer.to_vec());
        let row = self.row;
        if extent <= row {
            return self.sums_one_by_one(r, x, exclusive);
        }
        let shape = |extents: &[i64]| Shape::array(array.element_type, [&outer[..], extents].concat());
        let n_rows = (extent - 1) / row + 1;
        let padded = self.padded(r, x, n_rows * row - extent, 0);
        let rows = r.emit(Op::Reshape { inferred_dimension: None }, [padded], shape(&[n_rows, row]));
        let within = self.sums_one_by_one(r, rows, false);
        let last = if self.backward { 0 } else { row - 1 };
        let totals = sliced(r, within, last, last + 1);
        let totals = r.emit(Op::Reshape { inferred_dimension: None }, [totals], shape(&[n_rows]));
        let before = self.sums(r, totals, true);
        let dimensions: Dimensions = (0..=outer.len() as i64).collect();
        let before = r.emit(Op::Broadcast { dimensions }, [before], shape(&[n_rows, row]));
        let sums = self.combined(r, before, within);
        let sums = r.emit(Op::Reshape { inferred_dimension: None }, [sums], shape(&[n_rows * row]));
        let (start, limit) = if self.backward { (n_rows * row - extent, n_rows * row) } else { (0, extent) };
        let sums = sliced(r, sums, start, limit);
        if exclusive { self.padded(r, sums, -1, 1) } else { sums }
    }

    /// As [`Running::sums`], by one window.
    fn sums_one_by_one(&self, r: &mut Rewriter<'_>, x: InstructionId, exclusive: bool) -> InstructionId {
        let array = r.array(x).expect("arrays are summed up").clone();
        let extent = *array.dimensions.last().expect("there is a dimension to sum up");
        let (mut before, mut after) = if exclusive { (extent, -1) } else { (extent - 1, 0) };
        if self.backward {
            std::mem::swap(&mut before, &mut after);
        }
        let mut dimensions: SmallVec<[WindowDimension; 4]> =
            SmallVec::from_elem(WindowDimension::default(), array.dimensions.len() - 1);
        dimensions.push(WindowDimension {
            size: extent,
            padding_low: before,
            padding_high: after,
            ..WindowDimension::default()
        });
        let shape = Shape::array(array.element_type, array.dimensions);
        let window = Op::ReduceWindow(Box::new(Window { dimensions }));
        r.emit_call(window, [x, self.initial], [self.reducer], shape)
    }

    /// The last dimension with so many more elements where sums end, and where they begin.
    fn padded(&self, r: &mut Rewriter<'_>, x: InstructionId, end: i64, begin: i64) -> InstructionId {
        if (end, begin) == (0, 0) {
            return x;
        }
        let mut array = r.array(x).expect("arrays are summed up").clone();
        let mut dimensions: SmallVec<[PaddingDimension; 2]> =
            SmallVec::from_elem(PaddingDimension::default(), array.dimensions.len());
        let last = dimensions.last_mut().expect("there is a dimension to sum up");
        (last.low, last.high) = if self.backward { (end, begin) } else { (begin, end) };
        *array.dimensions.last_mut().expect("there is a dimension to sum up") += end + begin;
        let shape = Shape::array(array.element_type, array.dimensions);
        r.emit(Op::Pad { dimensions }, [x, self.initial], shape)
    }

    /// Applies the reducer to two arrays, element by element.
    fn combined(&self, r: &mut Rewriter<'_>, left: InstructionId, right: InstructionId) -> InstructionId {
        let extents = r.dimensions(left).expect("arrays are summed up");
        let mut values: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        for id in r.live_instructions_of(self.reducer) {
            let value = match r.op(id).clone() {
                Op::Parameter { number } => [left, right][number as usize],
                op => {
                    let operands: Vec<InstructionId> =
                        r.operands(id).iter().map(|operand| values[operand]).collect();
                    let element_type = r.element_type(id).expect("numbers are computed");
                    r.emit(op, operands, Shape::array(element_type, extents.iter().copied()))
                }
            };
            values.insert(id, value);
        }
        let root = r.root_of(self.reducer);
        values[&root]
    }
}

/// A part of the last dimension.
fn sliced(r: &mut Rewriter<'_>, x: InstructionId, start: i64, limit: i64) -> InstructionId {
    let extents = r.dimensions(x).expect("arrays are sliced");
    let last = extents.len() - 1;
    if (start, limit) == (0, extents[last]) { x } else { r.slice_along(x, last, start..limit) }
}
