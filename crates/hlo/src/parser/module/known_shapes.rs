//! Shapes by their text: programs repeat few shapes often.

use memplan_ir::{Shape, ShapeId};

use super::{Cursor, Parsed, Parser};
use crate::parser::shape::shape_end;

/// A shape that was read before.
pub(super) struct KnownShape {
    pub(super) shape: Shape,
    /// Its id, once an instruction has it.
    pub(super) id: Option<ShapeId>,
}

impl<'s> Parser<'s> {
    /// A shape, by its place in the list of known shapes.
    pub(in crate::parser) fn known_shape(&mut self) -> Parsed<usize> {
        let start = self.cursor.span.start;
        if let Some(end) = shape_end(self.cursor.source, start)
            && let Some(&known) = self.shape_texts.get(&self.cursor.source[start..end])
        {
            self.cursor.jump(end);
            return Ok(known);
        }
        let shape = self.cursor.shape()?;
        let text = &self.cursor.source[start..self.cursor.previous_end];
        let known = *self.shape_texts.entry(text).or_insert_with(|| {
            self.shapes.push(KnownShape { shape, id: None });
            self.shapes.len() - 1
        });
        Ok(known)
    }

    /// The known shape at a place.
    pub(in crate::parser) fn shape_at(&self, known: usize) -> &Shape {
        &self.shapes[known].shape
    }

    /// The known shape at a place, and the cursor to read on with.
    pub(in crate::parser) fn shape_and_cursor(&mut self, known: usize) -> (&Shape, &mut Cursor<'s>) {
        (&self.shapes[known].shape, &mut self.cursor)
    }

    /// Whether a known shape is known to have this id.
    pub(in crate::parser) fn is_shape(&self, known: usize, id: ShapeId) -> bool {
        self.shapes[known].id == Some(id)
    }

    /// The id of a known shape.
    pub(in crate::parser) fn shape_id(&mut self, known: usize) -> ShapeId {
        let entry = &mut self.shapes[known];
        let module = &mut self.module;
        *entry.id.get_or_insert_with(|| module.intern(entry.shape.clone()))
    }
}
