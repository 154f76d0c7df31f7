//! Conversion between literals, which are row-major and unpacked, and arrays in memory.

use memplan_ir::{ArrayLiteral, ArrayShape, ElementType, LiteralData};

use crate::element::{At, Class, LANES, Lanes, load, store};
use crate::memory::{Memory, Place};
use memplan_memory::Addressing;

/// Writes the elements of a literal to an array in memory.
pub(crate) fn write(literal: &ArrayLiteral, addressing: &Addressing, memory: &mut Memory, place: Place) {
    let bytes = literal.bytes();
    if addressing.is_row_major {
        memory.bytes_mut(place)[..bytes.len()].copy_from_slice(&bytes);
        return;
    }
    let t = literal.element_type;
    let mut lanes = Lanes::new(Class::of(t), LANES);
    for_each_batch(&literal.dimensions, addressing, |base, offsets| {
        load(t, &bytes, At::Consecutive(base * t.byte_width() as usize), offsets.len(), &mut lanes);
        store(t, &lanes, offsets.len(), at(addressing, offsets), memory.bytes_mut(place));
    });
}

/// Reads an array in memory.
pub(crate) fn read(
    shape: &ArrayShape,
    addressing: &Addressing,
    memory: &Memory,
    place: Place,
) -> ArrayLiteral {
    let t = shape.element_type;
    let count = shape.dimensions.iter().product::<i64>() as usize;
    let size = count * t.byte_width() as usize;
    if addressing.is_row_major {
        return ArrayLiteral::new(t, shape.dimensions.iter().copied(), &memory.bytes(place)[..size]);
    }
    let mut bytes = vec![0u8; size];
    let mut lanes = Lanes::new(Class::of(t), LANES);
    for_each_batch(&shape.dimensions, addressing, |base, offsets| {
        load(t, memory.bytes(place), at(addressing, offsets), offsets.len(), &mut lanes);
        store(t, &lanes, offsets.len(), At::Consecutive(base * t.byte_width() as usize), &mut bytes);
    });
    ArrayLiteral {
        element_type: t,
        dimensions: shape.dimensions.clone(),
        data: LiteralData::Bytes(bytes.into()),
    }
}

/// The elements of an array, or of a part of one, each at an offset that depends on its index.
pub(crate) struct Elements<'a, F> {
    pub(crate) place: Place,
    pub(crate) addressing: &'a Addressing,
    pub(crate) offset: F,
}

/// Copies elements of type `t` with all indices below `extents` from one array to another.
pub(crate) fn copy(
    t: ElementType,
    extents: &[i64],
    memory: &mut Memory,
    from: Elements<'_, impl Fn(&[i64]) -> i64>,
    to: Elements<'_, impl Fn(&[i64]) -> i64>,
) {
    let mut lanes = Lanes::new(Class::of(t), LANES);
    let (mut sources, mut targets) = (Vec::with_capacity(LANES), Vec::with_capacity(LANES));
    let mut flush = |sources: &mut Vec<i64>, targets: &mut Vec<i64>| {
        load(t, memory.bytes(from.place), at(from.addressing, sources), sources.len(), &mut lanes);
        store(t, &lanes, targets.len(), at(to.addressing, targets), memory.bytes_mut(to.place));
        sources.clear();
        targets.clear();
    };
    for_each_index(extents, |index| {
        sources.push((from.offset)(index));
        targets.push((to.offset)(index));
        if sources.len() == LANES {
            flush(&mut sources, &mut targets);
        }
    });
    if !sources.is_empty() {
        flush(&mut sources, &mut targets);
    }
}

/// How offsets of this addressing are meant.
pub(crate) fn at<'a>(addressing: &Addressing, offsets: &'a [i64]) -> At<'a> {
    match addressing.packed_bits {
        Some(bits) => At::Packed(offsets, bits),
        None => At::Offsets(offsets),
    }
}

/// Calls `f` with the position of the first and the offsets of all elements of each batch, in row-major order.
pub(crate) fn for_each_batch(extents: &[i64], addressing: &Addressing, mut f: impl FnMut(usize, &[i64])) {
    let mut offsets = Vec::with_capacity(LANES);
    let mut base = 0;
    for_each_index(extents, |index| {
        offsets.push(addressing.offset(index.iter().copied()));
        if offsets.len() == LANES {
            f(base, &offsets);
            base += LANES;
            offsets.clear();
        }
    });
    if !offsets.is_empty() {
        f(base, &offsets);
    }
}

/// Calls `f` with every index in row-major order.
pub(crate) fn for_each_index(extents: &[i64], mut f: impl FnMut(&[i64])) {
    if extents.iter().any(|&e| e <= 0) {
        return;
    }
    let mut index = vec![0i64; extents.len()];
    loop {
        f(&index);
        let Some(d) = (0..extents.len()).rev().find(|&d| index[d] + 1 < extents[d]) else { return };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}
