//! Shapes as plan files write them.

/// An array, without its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ShapeText<'t> {
    /// The element type.
    pub(super) element: &'t str,
    dimensions: &'t str,
}

impl<'t> ShapeText<'t> {
    /// Takes `f32[8,16]{1,0}` apart; whatever has no brackets is an element type alone.
    pub(super) fn new(text: &'t str) -> ShapeText<'t> {
        let (element, rest) = text.split_once('[').unwrap_or((text, ""));
        ShapeText { element, dimensions: rest.split(']').next().unwrap_or_default() }
    }

    /// The dimensions; one that is no number, as of a dynamic shape, is 0.
    pub(super) fn dimensions(self) -> Vec<u64> {
        let parts = self.dimensions.split(',').filter(|part| !part.is_empty());
        parts.map(|part| part.trim_start_matches("<=").parse().unwrap_or(0)).collect()
    }

    /// Element type and number of dimensions.
    pub(super) fn kind(self) -> (&'t str, usize) {
        (self.element, self.dimensions().len())
    }
}
