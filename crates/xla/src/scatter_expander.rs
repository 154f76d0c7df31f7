//! `scatter-expander`: writes a scatter of one window as an update of the slice there.
//!
//! ```text
//!   r = f32[5,8] scatter(x, at, u), to_apply=add      =>     s = f32[1,8] dynamic-slice(x, at, 0)
//!       at = s32[1], u = f32[8]                              r = f32[5,8] dynamic-update-slice(x, add(s, u), at, 0)
//! ```
//!
//! `x.at[i].add(u)` is such a scatter. A window that does not lie within the array changes nothing; where the place is no
//! constant, a select keeps the slice then.
//!
//! XLA's compilers for GPUs and CPUs do this (`ScatterExpander`, seen on jaxlib 0.12): kernels compute such updates, and a
//! scatter is a kernel of its own. Left alone: several windows, arrays or batches, and combiners other than one sum,
//! product, maximum, minimum, or taking the update. *Changed* means that there was such a scatter.

use memplan_ir::{
    BinaryOp, ComparisonDirection, Dimensions, Insert, InstructionId, Op, Scalar, ScatterDimensions,
    SliceDimension,
};
use memplan_rewriter::{Rewriter, Sweep, plain_combiner};

/// The pass.
pub const SCATTER_EXPANDER: Sweep = Sweep {
    name: "scatter-expander",
    description: "update slices where scatters write one window, as XLA's compilers for GPUs and CPUs do",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Scatter(numbers) = r.op(id).clone() else { return None };
    let &[operand, indices, updates] = r.operands(id) else { return None };
    let reducer = r.get(id).called[0];
    let combine = plain_combiner(r.module(), reducer);
    let root = r.module().computations[reducer].root;
    if combine.is_none() && r.get(root).op != (Op::Parameter { number: 1 }) {
        return None;
    }
    let window = Window::new(r, &numbers, [operand, indices, updates])?;
    let old = window.slice(r, operand);
    let update = r.reshaped(updates, &window.extents)?;
    let new = match combine {
        Some(op) => r.binary(op, old, update),
        None => update,
    };
    let new = window.if_within(r, new, old);
    Some(r.dynamic_update_slice(operand, new, window.places))
}

/// The only window that a scatter writes.
struct Window {
    /// Where it is along each dimension of the array.
    places: Vec<InstructionId>,
    /// The places, if they are known; they are within the array then.
    known: Option<Vec<i64>>,
    extents: Dimensions,
    /// The last place along each dimension at which it is within the array.
    last: Vec<i64>,
    /// The dimensions that have a place.
    placed: Dimensions,
}

impl Window {
    fn new(
        r: &mut Rewriter<'_>,
        numbers: &ScatterDimensions,
        [operand, indices, updates]: [InstructionId; 3],
    ) -> Option<Window> {
        let whole = r.array(operand)?.clone();
        let of_indices = r.array(indices)?.clone();
        let of_updates = r.array(updates)?.dimensions.clone();
        let placed = numbers.scatter_dims_to_operand_dims.clone();
        let is_one = of_indices.element_count() == Some(placed.len() as u64);
        // Bounds are numbers of the type of the places.
        let is_wide = of_indices.element_type.bits() >= 32;
        if !is_one || !is_wide || !numbers.input_batching_dims.is_empty() || whole.is_dynamic() {
            return None;
        }
        let mut in_window = numbers.update_window_dims.iter().map(|&d| of_updates[d as usize]);
        let rank = whole.rank() as i64;
        let extent =
            |d: i64| if numbers.inserted_window_dims.contains(&d) { Some(1) } else { in_window.next() };
        let extents: Dimensions = (0..rank).map(extent).collect::<Option<_>>()?;
        let last: Vec<i64> =
            whole.dimensions.iter().zip(&extents).map(|(whole, extent)| whole - extent).collect();
        let everywhere = r.splat(indices).and_then(|place| place.as_integer());
        let place = |d: i64| if placed.contains(&d) { everywhere } else { Some(0) };
        let known: Option<Vec<i64>> = (0..rank).map(place).collect();
        let is_within =
            |places: &[i64]| places.iter().zip(&last).all(|(place, last)| (0..=*last).contains(place));
        if known.as_ref().is_some_and(|known| !is_within(known)) {
            return None;
        }
        let element_type = of_indices.element_type;
        let flat = r.reshaped(indices, &[placed.len() as i64])?;
        let mut places = Vec::new();
        for d in 0..rank {
            places.push(match (&known, (0..).zip(&placed).find(|&(_, &other)| other == d)) {
                (None, Some((i, _))) => {
                    let part = r.slice_along(flat, 0, i..i + 1);
                    r.reshaped(part, &[])?
                }
                (known, _) => {
                    let place = known.as_ref().map_or(0, |known| known[d as usize]);
                    r.splat_array(Scalar::integer(element_type, place), &[])
                }
            });
        }
        Some(Window { places, known, extents, last, placed })
    }

    /// The part of an array that the window covers.
    fn slice(&self, r: &mut Rewriter<'_>, array: InstructionId) -> InstructionId {
        let extents = self.extents.iter().copied();
        let Some(known) = &self.known else {
            return r.dynamic_slice(array, self.places.iter().copied(), extents);
        };
        let part = |(&start, extent)| SliceDimension { start, limit: start + extent, stride: 1 };
        r.slice(array, known.iter().zip(extents).map(part))
    }

    /// The new elements if the window lies within the array, and the old ones if not.
    fn if_within(&self, r: &mut Rewriter<'_>, new: InstructionId, old: InstructionId) -> InstructionId {
        if self.known.is_some() {
            return new;
        }
        let mut within: Option<InstructionId> = None;
        for &d in &self.placed {
            let place = self.places[d as usize];
            let element_type = r.element_type(place).expect("a place is a number");
            let [first, last] = [0, self.last[d as usize]]
                .map(|bound| r.splat_array(Scalar::integer(element_type, bound), &[]));
            for (direction, bound) in [(ComparisonDirection::Ge, first), (ComparisonDirection::Le, last)] {
                let holds = r.compare(direction, place, bound);
                within = Some(within.map_or(holds, |before| r.binary(BinaryOp::And, before, holds)));
            }
        }
        let Some(within) = within else { return new };
        let everywhere = r.broadcast_scalar(within, &self.extents);
        r.select(everywhere, new, old)
    }
}
