//! Slices, updates, gathers and scatters at indices that are known or irrelevant.

use memplan_ir::{
    Dimensions, ElementType, GatherDimensions, InstructionId, Literal, Op, PaddingDimension, Scalar, Shape,
    SliceDimension,
};
use memplan_rewriter::Rewriter;
use smallvec::SmallVec;

/// A dynamic slice of everything, at a known place, of a place that was just written, or of another dynamic slice.
pub(super) fn dynamic_slice(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::DynamicSlice { slice_sizes } = r.op(id).clone() else { return None };
    let x = r.operand(id, 0);
    let (from, shape) = (r.dimensions(x)?, r.shape(id).clone());
    if from == slice_sizes {
        return Some(x);
    }
    let indices = scalar_indices(r, id, 1, from.len())?;
    if let Some(starts) = known_starts(r, &indices, &from, &slice_sizes) {
        let dimensions = (0..from.len())
            .map(|d| SliceDimension { start: starts[d], limit: starts[d] + slice_sizes[d], stride: 1 })
            .collect();
        return Some(r.emit(Op::Slice { dimensions }, [x], shape));
    }
    match r.op(x).clone() {
        Op::Broadcast { dimensions } => {
            let source = r.operand(x, 0);
            let small: Dimensions = dimensions.iter().map(|&d| slice_sizes[d as usize]).collect();
            let element_type = r.element_type(source)?;
            let sliced = if small.is_empty() {
                source
            } else {
                let indices: Vec<_> = dimensions.iter().map(|&d| indices[d as usize]).collect();
                let op = Op::DynamicSlice { slice_sizes: small.clone() };
                r.emit(op, [source].into_iter().chain(indices), Shape::array(element_type, small))
            };
            return Some(r.emit(Op::Broadcast { dimensions }, [sliced], shape));
        }
        Op::DynamicUpdateSlice => {
            let update = r.operand(x, 1);
            let same_place = r.operands(x)[2..] == r.operands(id)[1..];
            if same_place && r.dimensions(update)? == slice_sizes {
                return Some(update);
            }
        }
        Op::DynamicSlice { slice_sizes: wide } => {
            if let Some(starts) = starts_of_both(r, x, &wide, &indices, &slice_sizes) {
                let source = r.operand(x, 0);
                let op = Op::DynamicSlice { slice_sizes };
                return Some(r.emit(op, [source].into_iter().chain(starts), shape));
            }
        }
        _ => {}
    }
    let (indices, changed) = zero_where_whole(r, &indices, &from, &slice_sizes)?;
    changed.then(|| r.emit(Op::DynamicSlice { slice_sizes }, [x].into_iter().chain(indices), shape))
}

/// An update of everything, of nothing, with the same value, or of an operand that is overwritten anyway.
pub(super) fn dynamic_update_slice(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let (x, update) = (r.operand(id, 0), r.operand(id, 1));
    let (extents, sizes, shape) = (r.dimensions(x)?, r.dimensions(update)?, r.shape(id).clone());
    if extents == sizes {
        return Some(update);
    }
    if sizes.contains(&0) {
        return Some(x);
    }
    let place = r.operands(id)[2..].to_vec();
    if matches!(r.op(update), Op::DynamicSlice { .. })
        && r.operand(update, 0) == x
        && r.operands(update)[1..] == place
    {
        return Some(x);
    }
    if matches!(r.op(x), Op::DynamicUpdateSlice)
        && r.operands(x)[2..] == place
        && r.dimensions(r.operand(x, 1))? == sizes
    {
        let x = r.operand(x, 0);
        return Some(r.emit(Op::DynamicUpdateSlice, [x, update].into_iter().chain(place), shape));
    }
    let indices = scalar_indices(r, id, 2, extents.len())?;
    if let (Some(value), Some(starts)) = (r.splat(x), known_starts(r, &indices, &extents, &sizes)) {
        let dimensions = (0..extents.len())
            .map(|d| PaddingDimension {
                low: starts[d],
                high: extents[d] - sizes[d] - starts[d],
                interior: 0,
            })
            .collect();
        let value = r.constant(value.literal());
        return Some(r.emit(Op::Pad { dimensions }, [update, value], shape));
    }
    let (indices, changed) = zero_where_whole(r, &indices, &extents, &sizes)?;
    changed.then(|| r.emit(Op::DynamicUpdateSlice, [x, update].into_iter().chain(indices), shape))
}

/// A gather at one place is a dynamic slice: both clamp.
pub(super) fn gather(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Gather(numbers) = r.op(id).clone() else { return None };
    let (x, indices) = (r.operand(id, 0), r.operand(id, 1));
    let (extents, index_extents) = (r.dimensions(x)?, r.dimensions(indices)?);
    let to = r.dimensions(id)?;
    if to.contains(&0) {
        let zero = Scalar::integer(r.element_type(id)?, 0);
        return Some(r.splat_array(zero, &to));
    }
    if extents.contains(&0) {
        return None;
    }
    // Whatever is taken from an array of one value is that value.
    if r.op(x).repeats_scalar() {
        let value = r.operand(x, 0);
        return Some(r.broadcast_scalar(value, &to));
    }
    if let Some(slice) = gather_in_order(r, id, &numbers) {
        return Some(slice);
    }
    let n_indices = numbers.start_index_map.len();
    let is_single = index_extents.iter().product::<i64>() == n_indices as i64
        && numbers.operand_batching_dims.is_empty()
        && n_indices > 0;
    // Offset dimensions keep their order, so dropping ones leaves the slice.
    if !is_single || numbers.collapsed_slice_dims.iter().any(|&d| numbers.slice_sizes[d as usize] != 1) {
        return None;
    }
    let index_type = r.element_type(indices)?;
    let vector = Shape::array(index_type, [n_indices as i64]);
    let shape = r.shape(id).clone();
    let vector = r.emit(Op::Reshape { inferred_dimension: None }, [indices], vector);
    let zero = r.constant(Scalar::integer(index_type, 0).literal());
    let mut starts = vec![zero; extents.len()];
    for (i, &d) in numbers.start_index_map.iter().enumerate() {
        let i = i as i64;
        let dimensions = SmallVec::from_slice(&[SliceDimension { start: i, limit: i + 1, stride: 1 }]);
        let one = r.emit(Op::Slice { dimensions }, [vector], Shape::array(index_type, [1]));
        starts[d as usize] =
            r.emit(Op::Reshape { inferred_dimension: None }, [one], Shape::scalar(index_type));
    }
    let slice_sizes = numbers.slice_sizes.clone();
    let slice_shape = Shape::array(r.element_type(x)?, slice_sizes.iter().copied());
    let slice = r.emit(Op::DynamicSlice { slice_sizes }, [x].into_iter().chain(starts), slice_shape);
    Some(r.emit(Op::Reshape { inferred_dimension: None }, [slice], shape))
}

/// A gather of the first elements, rows, ... one after another is a slice, with their dimension where the indices have
/// theirs.
fn gather_in_order(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    numbers: &GatherDimensions,
) -> Option<InstructionId> {
    let (x, indices) = (r.operand(id, 0), r.operand(id, 1));
    let Op::Iota { dimension: counted } = *r.op(indices) else { return None };
    let [along] = numbers.start_index_map[..] else { return None };
    let (extents, index_extents) = (r.dimensions(x)?, r.dimensions(indices)?);
    // One dimension of indices, along which they count; the other one, if any, is the index vector of one element.
    let is_counted = counted != numbers.index_vector_dim
        && index_extents.iter().product::<i64>() == index_extents[counted as usize]
        && index_extents.len() == 1 + usize::from((numbers.index_vector_dim as usize) < index_extents.len());
    let n = index_extents[counted as usize];
    let takes_all_in_turn = numbers.collapsed_slice_dims[..] == [along]
        && numbers.slice_sizes[along as usize] == 1
        && numbers.operand_batching_dims.is_empty()
        && n <= extents[along as usize];
    let highest = Scalar::highest(r.element_type(indices)?)?.as_integer();
    if !is_counted || !takes_all_in_turn || highest.is_some_and(|highest| n - 1 > highest) {
        return None;
    }
    let mut sizes = numbers.slice_sizes.clone();
    sizes[along as usize] = n;
    let dimensions = sizes.iter().map(|&limit| SliceDimension { start: 0, limit, stride: 1 }).collect();
    let (sliced, shape) = (Shape::array(r.element_type(x)?, sizes.iter().copied()), r.shape(id).clone());
    let slice = r.emit(Op::Slice { dimensions }, [x], sliced);
    let mut others = (0..extents.len() as i64).filter(|&d| d != along);
    let dimensions = (0..extents.len() as i64)
        .map(|d| if numbers.offset_dims.contains(&d) { others.next() } else { Some(along) })
        .collect::<Option<_>>()?;
    Some(r.emit(Op::Transpose { dimensions }, [slice], shape))
}

/// A scatter of nothing.
pub(super) fn scatter(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let [x, _, updates] = *r.operands(id) else { return None };
    (r.array(updates)?.element_count() == Some(0)).then_some(x)
}

/// A sort along a dimension of extent one, or of nothing.
pub(super) fn sort(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Sort { dimension, .. } = *r.op(id) else { return None };
    let operands = r.operands(id).to_vec();
    if r.array(operands[0])?.dimensions[dimension as usize] > 1 {
        return None;
    }
    match operands[..] {
        [only] => Some(only),
        _ => {
            let shape = r.shape(id).clone();
            Some(r.emit(Op::Tuple, operands, shape))
        }
    }
}

/// The start indices of a slice of the dynamic slice `wide`, relative to the operand of `wide`, if that has no other
/// reader. Along each dimension one of the two must take everything: then it starts at zero, and the other is clamped
/// as before.
fn starts_of_both(
    r: &Rewriter<'_>,
    wide: InstructionId,
    wide_sizes: &[i64],
    indices: &[InstructionId],
    sizes: &[i64],
) -> Option<Vec<InstructionId>> {
    let extents = r.dimensions(r.operand(wide, 0))?;
    let wide_indices = scalar_indices(r, wide, 1, extents.len())?;
    let same_type = |&index: &InstructionId| r.element_type(index) == r.element_type(indices[0]);
    if r.uses(wide) > 1 || !wide_indices.iter().all(same_type) {
        return None;
    }
    let start = |d: usize| match () {
        () if wide_sizes[d] == extents[d] => Some(indices[d]),
        () if sizes[d] == wide_sizes[d] => Some(wide_indices[d]),
        () => None,
    };
    (0..extents.len()).map(start).collect()
}

/// The start indices from operand `first` on; `None` in the old form with one index vector.
fn scalar_indices(
    r: &Rewriter<'_>,
    id: InstructionId,
    first: usize,
    rank: usize,
) -> Option<Vec<InstructionId>> {
    let indices = &r.operands(id)[first..];
    let is_scalar = |&index: &InstructionId| r.array(index).is_some_and(|index| index.rank() == 0);
    (indices.len() == rank && indices.iter().all(is_scalar)).then(|| indices.to_vec())
}

/// The start indices, clamped to where the slice fits, when all are known.
fn known_starts(
    r: &Rewriter<'_>,
    indices: &[InstructionId],
    extents: &[i64],
    sizes: &[i64],
) -> Option<Dimensions> {
    let start = |(d, &index): (usize, &InstructionId)| match r.op(index) {
        _ if extents[d] == sizes[d] => Some(0),
        Op::Constant(Literal::Array(literal)) => {
            let room = extents[d] - sizes[d];
            let value = Scalar::element_of(literal, 0)?;
            match (value.as_integer(), value.element_type) {
                (Some(index), _) => Some(index.clamp(0, room)),
                (None, ElementType::U64) => Some(room),
                _ => None,
            }
        }
        _ => None,
    };
    indices.iter().enumerate().map(start).collect()
}

/// If a slice is as long as the array, its start is clamped to zero for any index.
fn zero_where_whole(
    r: &mut Rewriter<'_>,
    indices: &[InstructionId],
    extents: &[i64],
    sizes: &[i64],
) -> Option<(Vec<InstructionId>, bool)> {
    let is_moot = |r: &Rewriter<'_>, d: usize| {
        extents[d] == sizes[d] && !r.splat(indices[d]).is_some_and(|index| index.is_zero())
    };
    let mut indices_out = indices.to_vec();
    let mut changed = false;
    for d in 0..indices.len() {
        if is_moot(r, d) {
            let element_type = r.element_type(indices[d])?;
            indices_out[d] = r.constant(Scalar::integer(element_type, 0).literal());
            changed = true;
        }
    }
    Some((indices_out, changed))
}
