//! Slices, pads and concatenations: simplifies slices of concatenated or padded arrays.

use memplan_ir::{Dimensions, InstructionId, Op, PaddingDimension, Shape, SliceDimension};
use memplan_rewriter::Rewriter;
use smallvec::SmallVec;

type SliceDimensions = SmallVec<[SliceDimension; 2]>;

/// A slice of everything, or of something of which only a part is needed then.
pub(super) fn slice(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Slice { dimensions } = r.op(id).clone() else { return None };
    let x = r.operand(id, 0);
    let (from, to, shape) = (r.dimensions(x)?, r.dimensions(id)?, r.shape(id).clone());
    if from == to {
        // With a stride, a slice of one element may still be a slice of everything.
        return dimensions.iter().all(|d| d.start == 0).then_some(x);
    }
    // Of one element, the stride says nothing.
    if (0..to.len())
        .any(|d| to[d] == 1 && (dimensions[d].stride != 1 || dimensions[d].limit != dimensions[d].start + 1))
    {
        let mut dimensions = dimensions;
        for (d, slice) in dimensions.iter_mut().enumerate().filter(|(d, _)| to[*d] == 1) {
            *slice = SliceDimension { start: slice.start, limit: slice.start + 1, stride: 1 };
            debug_assert!(slice.limit <= from[d], "a slice of one element has it");
        }
        return Some(r.emit(Op::Slice { dimensions }, [x], shape));
    }
    match r.op(x).clone() {
        Op::Slice { dimensions: inner } => {
            let composed = inner.iter().zip(&dimensions).map(|(inner, outer)| {
                let start = inner.start + outer.start * inner.stride;
                let limit = inner.start + (outer.limit - 1) * inner.stride + 1;
                SliceDimension { start, limit: limit.max(start), stride: inner.stride * outer.stride }
            });
            let dimensions = composed.collect();
            let x = r.operand(x, 0);
            Some(r.emit(Op::Slice { dimensions }, [x], shape))
        }
        Op::Broadcast { dimensions: map } => {
            let x = r.operand(x, 0);
            let small: Dimensions = map.iter().map(|&d| to[d as usize]).collect();
            let inner: SliceDimensions = map.iter().map(|&d| dimensions[d as usize]).collect();
            let element_type = r.element_type(x)?;
            let x = r.emit(Op::Slice { dimensions: inner }, [x], Shape::array(element_type, small));
            Some(r.emit(Op::Broadcast { dimensions: map }, [x], shape))
        }
        Op::Iota { dimension } => {
            let along = dimensions[dimension as usize];
            let counts_on = along.start == 0 && (along.stride == 1 || to[dimension as usize] <= 1);
            counts_on.then(|| r.emit(Op::Iota { dimension }, [], shape))
        }
        Op::Transpose { dimensions: permutation } => {
            let x = r.operand(x, 0);
            let mut inner: SliceDimensions = dimensions.clone();
            let mut extents = to.clone();
            for (i, &d) in permutation.iter().enumerate() {
                inner[d as usize] = dimensions[i];
                extents[d as usize] = to[i];
            }
            let element_type = r.element_type(x)?;
            let x = r.emit(Op::Slice { dimensions: inner }, [x], Shape::array(element_type, extents));
            Some(r.emit(Op::Transpose { dimensions: permutation }, [x], shape))
        }
        Op::Pad { dimensions: padding } => slice_of_pad(r, id, x, &dimensions, &padding),
        Op::Concatenate { dimension } => slice_of_concatenate(r, id, x, dimensions, dimension as usize),
        _ => None,
    }
}

fn slice_of_pad(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    pad: InstructionId,
    dimensions: &SliceDimensions,
    padding: &[PaddingDimension],
) -> Option<InstructionId> {
    let (x, value) = (r.operand(pad, 0), r.operand(pad, 1));
    let extents = r.dimensions(x)?;
    let (to, shape) = (r.dimensions(id)?, r.shape(id).clone());
    let mut inner = dimensions.clone();
    let (mut is_inside, mut is_outside) = (true, false);
    for (d, slice) in inner.iter_mut().enumerate() {
        let (low, interior) = (padding[d].low, padding[d].interior);
        let end = low + if extents[d] == 0 { 0 } else { (extents[d] - 1) * (interior + 1) + 1 };
        is_outside |= slice.limit <= low || slice.start >= end;
        is_inside &= interior == 0 && slice.start >= low && slice.limit <= end;
        slice.start -= low;
        slice.limit -= low;
    }
    if is_outside {
        return Some(r.broadcast_scalar(value, &to));
    }
    is_inside.then(|| r.emit(Op::Slice { dimensions: inner }, [x], shape))
}

fn slice_of_concatenate(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    concatenate: InstructionId,
    mut dimensions: SliceDimensions,
    along: usize,
) -> Option<InstructionId> {
    let mut begin = 0;
    let shape = r.shape(id).clone();
    let slice = &mut dimensions[along];
    // The position of the last element, not the end of the slice: strides may stop short.
    let last = slice.start + (slice.limit - 1 - slice.start).max(0) / slice.stride * slice.stride;
    for &piece in r.operands(concatenate) {
        let end = begin + r.array(piece)?.dimensions[along];
        if begin <= slice.start && last < end {
            slice.start -= begin;
            slice.limit = last - begin + 1;
            return Some(r.emit(Op::Slice { dimensions }, [piece], shape));
        }
        begin = end;
    }
    None
}

/// A pad that adds nothing, or only elements equal to the operand's.
pub(super) fn pad(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Pad { dimensions } = r.op(id).clone() else { return None };
    let (x, value) = (r.operand(id, 0), r.operand(id, 1));
    let (from, to, shape) = (r.dimensions(x)?, r.dimensions(id)?, r.shape(id).clone());
    let adds_nothing = |d: usize| dimensions[d].interior == 0 || from[d] <= 1;
    if from == to && (0..from.len()).all(|d| dimensions[d].low == 0 && adds_nothing(d)) {
        return Some(x);
    }
    let is_value = r.splat(x).is_some() && r.splat(x) == r.splat(value);
    if from.contains(&0) || is_value {
        return Some(r.broadcast_scalar(value, &to));
    }
    if (0..from.len()).all(|d| dimensions[d].low <= 0 && dimensions[d].high <= 0 && adds_nothing(d)) {
        let crop = |d: usize| SliceDimension {
            start: -dimensions[d].low,
            limit: from[d] + dimensions[d].high,
            stride: 1,
        };
        let cropped: SliceDimensions = (0..from.len()).map(crop).collect();
        // Cropping more than there is leaves nothing, which a slice cannot say.
        return cropped
            .iter()
            .all(|d| d.start <= d.limit)
            .then(|| r.emit(Op::Slice { dimensions: cropped }, [x], shape));
    }
    let Op::Pad { dimensions: inner } = r.op(x).clone() else { return None };
    let same_value =
        r.operand(x, 1) == value || (r.splat(value).is_some() && r.splat(r.operand(x, 1)) == r.splat(value));
    let is_plain = |d: &PaddingDimension| d.interior == 0 && d.low >= 0 && d.high >= 0;
    if !same_value || !inner.iter().chain(&dimensions).all(is_plain) {
        return None;
    }
    let sum = |(a, b): (&PaddingDimension, &PaddingDimension)| PaddingDimension {
        low: a.low + b.low,
        high: a.high + b.high,
        interior: 0,
    };
    let dimensions = inner.iter().zip(&dimensions).map(sum).collect();
    let x = r.operand(x, 0);
    Some(r.emit(Op::Pad { dimensions }, [x, value], shape))
}

/// A concatenation of few pieces, of pieces that were one array before, or with a border of one value.
pub(super) fn concatenate(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Concatenate { dimension } = *r.op(id) else { return None };
    let along = dimension as usize;
    let pieces = r.operands(id).to_vec();
    let (to, shape) = (r.dimensions(id)?, r.shape(id).clone());
    let kept: Vec<_> =
        pieces.iter().copied().filter(|&p| r.dimensions(p).is_some_and(|p| p[along] != 0)).collect();
    if let [only] = kept[..] {
        return Some(only);
    }
    if kept.is_empty() {
        return Some(pieces[0]);
    }
    if let Some(value) = r.splat(kept[0])
        && kept.iter().all(|&piece| r.splat(piece) == Some(value))
    {
        return Some(r.splat_array(value, &to));
    }
    if kept.iter().all(|&piece| piece == kept[0]) {
        return repeated(r, id, kept[0], kept.len() as i64, along);
    }
    if let Some(joined) = join_adjacent_slices(r, &kept, along) {
        let piece_shape = |r: &Rewriter<'_>, slice: &Joined| {
            let mut extents = to.clone();
            extents[along] = slice.dimensions[along].limit - slice.dimensions[along].start;
            Shape::array(r.element_type(slice.source).expect("slices are of arrays"), extents)
        };
        let mut operands = Vec::with_capacity(joined.len());
        for piece in joined {
            operands.push(match piece {
                Piece::Whole(piece) => piece,
                Piece::Slice(slice) => {
                    let shape = piece_shape(r, &slice);
                    r.emit(Op::Slice { dimensions: slice.dimensions }, [slice.source], shape)
                }
            });
        }
        return match operands[..] {
            [only] => Some(only),
            _ => Some(r.emit(Op::Concatenate { dimension }, operands, shape)),
        };
    }
    // A concatenation that only this one uses need not exist.
    let is_nested = |r: &Rewriter<'_>, p: InstructionId| {
        matches!(r.op(p), Op::Concatenate { dimension: d } if *d == dimension) && r.uses(p) == 1
    };
    if kept.iter().any(|&p| is_nested(r, p)) {
        let flat: Vec<_> = kept
            .iter()
            .flat_map(|&p| if is_nested(r, p) { r.operands(p).to_vec() } else { vec![p] })
            .collect();
        return Some(r.emit(Op::Concatenate { dimension }, flat, shape));
    }
    if kept.len() < pieces.len() {
        return Some(r.emit(Op::Concatenate { dimension }, kept, shape));
    }
    border_of_one_value(r, id, &kept, along)
}

/// One piece, over and over: a broadcast along a new dimension before the one it is repeated in.
fn repeated(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    piece: InstructionId,
    times: i64,
    along: usize,
) -> Option<InstructionId> {
    let mut extents = r.dimensions(piece)?;
    let dimensions = (0..extents.len()).map(|d| (d + usize::from(d >= along)) as i64).collect();
    extents.insert(along, times);
    let (wide, shape) = (Shape::array(r.element_type(piece)?, extents), r.shape(id).clone());
    let broadcast = r.emit(Op::Broadcast { dimensions }, [piece], wide);
    Some(r.emit(Op::Reshape { inferred_dimension: None }, [broadcast], shape))
}

struct Joined {
    source: InstructionId,
    dimensions: SliceDimensions,
}

enum Piece {
    Whole(InstructionId),
    Slice(Joined),
}

/// Joins neighboring pieces that are neighboring slices of one array; `None` when there are none.
fn join_adjacent_slices(r: &Rewriter<'_>, pieces: &[InstructionId], along: usize) -> Option<Vec<Piece>> {
    let mut joined: Vec<Piece> = Vec::new();
    for &piece in pieces {
        let Op::Slice { dimensions } = r.op(piece) else {
            joined.push(Piece::Whole(piece));
            continue;
        };
        let source = r.operand(piece, 0);
        let continues = |before: &Joined| {
            before.source == source
                && before.dimensions[along].limit == dimensions[along].start
                && before.dimensions.iter().chain(dimensions).all(|d| d.stride == 1)
                && (0..dimensions.len()).all(|d| d == along || before.dimensions[d] == dimensions[d])
        };
        let before = match joined.last_mut() {
            Some(Piece::Slice(before)) if continues(before) => Some(before),
            _ => None,
        };
        match before {
            Some(before) => before.dimensions[along].limit = dimensions[along].limit,
            None => joined.push(Piece::Slice(Joined { source, dimensions: dimensions.clone() })),
        }
    }
    (joined.len() < pieces.len()).then_some(joined)
}

/// One piece between pieces of one value is that piece, padded.
fn border_of_one_value(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    pieces: &[InstructionId],
    along: usize,
) -> Option<InstructionId> {
    let (middle, value) = {
        let mut others = pieces.iter().enumerate().filter(|&(_, &p)| r.splat(p).is_none());
        let (middle, _) = others.next()?;
        let border = pieces[if middle == 0 { 1 } else { 0 }];
        let value = r.splat(border)?;
        let is_border = |(i, &p): (usize, &InstructionId)| i == middle || r.splat(p) == Some(value);
        if others.next().is_some() || !pieces.iter().enumerate().all(is_border) {
            return None;
        }
        (middle, value)
    };
    let extent = |r: &Rewriter<'_>, pieces: &[InstructionId]| -> Option<i64> {
        pieces.iter().map(|&p| Some(r.array(p)?.dimensions[along])).sum()
    };
    let (low, high) = (extent(r, &pieces[..middle])?, extent(r, &pieces[middle + 1..])?);
    let shape = r.shape(id).clone();
    let mut dimensions: SmallVec<[PaddingDimension; 2]> =
        SmallVec::from_elem(PaddingDimension::default(), r.dimensions(id)?.len());
    dimensions[along] = PaddingDimension { low, high, interior: 0 };
    let value = r.constant(value.literal());
    Some(r.emit(Op::Pad { dimensions }, [pieces[middle], value], shape))
}
