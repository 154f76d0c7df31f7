//! Copies of values, array by array, into other shapes with equally many elements.

use crate::{Cursor, Insert, InstructionId, Module, Names, Op, Shape};

/// Copies the arrays of a value where `other`, given an array's shape and the required shape, returns a shape for the
/// copy; returns the instruction itself if nothing is copied. Copies and tuples come last in the computation, and are
/// named for their purpose.
pub fn copied_as(
    module: &mut Module,
    id: InstructionId,
    asked: &Shape,
    other: impl Fn(&Shape, &Shape) -> Option<Shape> + Copy,
    purpose: &str,
    names: &mut Names,
) -> InstructionId {
    if let Some(shape) = other(module.shape(id), asked) {
        return copy_into(module, id, shape, purpose, names);
    }
    let Shape::Tuple(elements) = asked else { return id };
    let found = module.shape(id).leaves();
    if found.iter().zip(asked.leaves()).all(|((_, found), (_, asked))| other(found, asked).is_none()) {
        return id;
    }
    let name = module.instructions[id].name.clone();
    let parts = (0..).zip(elements.iter()).map(|(index, asked)| {
        let name = format!("{name}.element.{}", module.instructions.len());
        let part = Cursor::beside(module, names, id).named_unique(&name).get_tuple_element(id, index);
        copied_as(module, part, asked, other, purpose, names)
    });
    let parts: Vec<InstructionId> = parts.collect();
    let name = format!("{name}.tuple.{}", module.instructions.len());
    Cursor::beside(module, names, id).named_unique(&name).tuple(parts)
}

/// The shape of an array in the required layout (row-major by default), if that differs from its own.
pub fn other_layout(found: &Shape, asked: &Shape) -> Option<Shape> {
    let (Shape::Array(found), Shape::Array(asked)) = (found, asked) else { return None };
    let layout = asked.layout.as_ref()?;
    let is_so = match &found.layout {
        Some(found) => found == layout,
        None => layout.is_default(),
    };
    (!is_so).then(|| Shape::Array(crate::ArrayShape { layout: Some(layout.clone()), ..found.clone() }))
}

/// A copy of an array in another shape, as the last instruction of its computation.
pub fn copy_into(
    module: &mut Module,
    source: InstructionId,
    shape: Shape,
    purpose: &str,
    names: &mut Names,
) -> InstructionId {
    let name = format!("{}.{purpose}.{}", module.instructions[source].name, module.instructions.len());
    Cursor::beside(module, names, source).named_unique(&name).insert_shaped(Op::Copy, [source], shape)
}
