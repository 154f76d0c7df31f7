//! The cost of padding: the shapes that lose most, and remedies.

use indexmap::IndexMap;
use memplan_ir::{ArrayShape, Layout, Shape};
use memplan_memory::Bytes;

use super::program::{NumberedProgram, shape_text};
use super::{Buffer, Padding, Remedy};

/// Most shapes to report.
const MAX_SHAPES: usize = 16;

/// The shapes that lose most bytes to padding in one buffer, worst first.
pub(super) fn worst(program: &NumberedProgram<'_>, buffers: &[Buffer]) -> Vec<Padding> {
    let mut shapes: IndexMap<ArrayShape, Padding, rustc_hash::FxBuildHasher> = IndexMap::default();
    for buffer in buffers {
        let lost = buffer.address.size.saturating_sub(buffer.unpadded);
        let Some(array) = program.definition(buffer).as_array().filter(|_| lost > Bytes::ZERO) else {
            continue;
        };
        let array = in_main_memory(array);
        let entry = shapes.entry(array).or_insert_with_key(|array| Padding {
            shape: shape_text(&Shape::Array(array.clone())),
            buffers: Vec::new(),
            size: buffer.address.size,
            lost,
            remedies: Vec::new(),
        });
        entry.buffers.push(buffer.index);
    }
    shapes.sort_by(|_, a, _, b| (b.lost, b.buffers.len()).cmp(&(a.lost, a.buffers.len())));
    shapes.truncate(MAX_SHAPES);
    let with_remedies =
        |(array, padding): (ArrayShape, Padding)| Padding { remedies: remedies(program, &array), ..padding };
    shapes.into_iter().map(with_remedies).collect()
}

/// The same array in main memory: padding is the same everywhere.
fn in_main_memory(array: &ArrayShape) -> ArrayShape {
    let layout = array.layout.clone().map(|layout| Layout { memory_space: 0, ..layout });
    ArrayShape { layout, ..array.clone() }
}

/// Remedies, as text.
fn remedies(program: &NumberedProgram<'_>, array: &ArrayShape) -> Vec<Remedy> {
    let of = memplan_memory::remedies(program.target, array).into_iter();
    of.map(|remedy| Remedy {
        kind: remedy.kind,
        shape: shape_text(&Shape::Array(remedy.array)),
        size: remedy.size,
        lost: remedy.lost,
    })
    .collect()
}
