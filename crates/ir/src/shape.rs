//! Shapes: the types of values.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Dimensions, ElementType, Layout};

/// The shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// A dense array, scalars included.
    Array(ArrayShape),
    /// A tuple, nested to any depth. Copies share the elements, since the shape of a program's state may have very many.
    Tuple(Arc<[Shape]>),
    /// `b(...)`: a reference to an array that may not be copied.
    Buffer(ArrayShape),
    /// A token, which orders side effects and has no bytes.
    Token,
    /// An opaque handle.
    Opaque,
}

/// The shape of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayShape {
    /// Element type.
    pub element_type: ElementType,
    /// Extents; a bounded dynamic dimension (`<=n`) has its bound here, an unbounded one (`?`)
    /// [`ArrayShape::UNBOUNDED`].
    pub dimensions: Dimensions,
    /// Which dimensions are dynamic: empty when none is, otherwise one entry each.
    pub dynamic: SmallVec<[bool; 8]>,
    /// The order of the elements in memory; `None` when not chosen yet.
    pub layout: Option<Layout>,
}

/// Path into a nested tuple; empty for the whole value. Printed `{1,0}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShapeIndex(pub SmallVec<[u32; 4]>);

impl ArrayShape {
    /// The extent of a dimension without a bound.
    pub const UNBOUNDED: i64 = i64::MIN;

    /// An array with a row-major layout and static dimensions.
    pub fn new(element_type: ElementType, dimensions: impl IntoIterator<Item = i64>) -> ArrayShape {
        let dimensions: Dimensions = dimensions.into_iter().collect();
        let layout = Some(Layout::row_major(dimensions.len()));
        ArrayShape { element_type, dimensions, dynamic: SmallVec::new(), layout }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dimensions.len()
    }

    /// Number of elements at the bounds of dynamic dimensions; `None` when unbounded or beyond `u64`.
    pub fn element_count(&self) -> Option<u64> {
        // A zero extent makes the product zero even where the other extents overflow.
        if self.dimensions.contains(&0) {
            return Some(0);
        }
        self.dimensions.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
    }

    /// Bytes of the elements alone, without the padding of a layout; `None` as for [`Self::element_count`].
    pub fn dense_bytes(&self) -> Option<u64> {
        self.element_count()?.checked_mul(u64::from(self.element_type.byte_width()))
    }

    /// Whether dimension `d` is dynamic.
    pub fn is_dynamic_dimension(&self, d: usize) -> bool {
        self.dynamic.get(d).copied().unwrap_or(false)
    }

    /// Whether any dimension is dynamic.
    pub fn is_dynamic(&self) -> bool {
        self.dynamic.iter().any(|&d| d)
    }

    /// Whether it has fixed extents and is in main memory.
    pub fn is_plain(&self) -> bool {
        !self.is_dynamic() && self.memory_space() == 0
    }

    /// Whether any dimension has no bound ([`ArrayShape::UNBOUNDED`]).
    pub fn is_unbounded(&self) -> bool {
        self.dimensions.contains(&ArrayShape::UNBOUNDED)
    }

    /// The memory space of the layout; 0 without one.
    pub fn memory_space(&self) -> i64 {
        self.layout.as_ref().map_or(0, |l| l.memory_space)
    }

    /// The dimensions from fastest to slowest varying: the layout's order, row-major without a layout.
    pub fn minor_to_major(&self) -> Dimensions {
        match &self.layout {
            Some(layout) => layout.minor_to_major.clone(),
            None => (0..self.rank() as i64).rev().collect(),
        }
    }

    /// Whether the last dimension varies fastest, and so on, as it does without a layout. Tiles are not looked at.
    pub fn is_row_major(&self) -> bool {
        self.layout.as_ref().is_none_or(Layout::is_row_major)
    }

    /// Same element type and extents, with any layout.
    pub fn same_ignoring_layout(&self, other: &ArrayShape) -> bool {
        self.element_type == other.element_type
            && self.dimensions == other.dimensions
            && self.is_dynamic() == other.is_dynamic()
            && (0..self.rank()).all(|d| self.is_dynamic_dimension(d) == other.is_dynamic_dimension(d))
    }
}

impl Shape {
    /// An array with a row-major layout and static dimensions.
    pub fn array(element_type: ElementType, dimensions: impl IntoIterator<Item = i64>) -> Shape {
        Shape::Array(ArrayShape::new(element_type, dimensions))
    }

    /// A scalar.
    pub fn scalar(element_type: ElementType) -> Shape {
        Shape::array(element_type, [])
    }

    /// A tuple.
    pub fn tuple(elements: impl Into<Arc<[Shape]>>) -> Shape {
        Shape::Tuple(elements.into())
    }

    /// The array in an array or buffer shape.
    pub fn as_array(&self) -> Option<&ArrayShape> {
        match self {
            Shape::Array(a) | Shape::Buffer(a) => Some(a),
            _ => None,
        }
    }

    /// Mutable access to the array in an array or buffer shape.
    pub fn as_array_mut(&mut self) -> Option<&mut ArrayShape> {
        match self {
            Shape::Array(a) | Shape::Buffer(a) => Some(a),
            _ => None,
        }
    }

    /// The elements of a tuple; `None` for anything else.
    pub fn as_tuple(&self) -> Option<&[Shape]> {
        match self {
            Shape::Tuple(elements) => Some(elements),
            _ => None,
        }
    }

    /// The number of arrays and tokens. Recursion is as deep as the shape; the parsers bound that depth.
    pub fn leaf_count(&self) -> usize {
        match self {
            Shape::Tuple(elements) => elements.iter().map(Shape::leaf_count).sum(),
            _ => 1,
        }
    }

    /// Whether all arrays are row-major, without tiles or packing, in whichever memory.
    pub fn is_plain(&self) -> bool {
        match self {
            Shape::Tuple(elements) => elements.iter().all(Shape::is_plain),
            Shape::Array(a) | Shape::Buffer(a) => a.layout.as_ref().is_none_or(Layout::is_plain),
            Shape::Token | Shape::Opaque => true,
        }
    }

    /// Whether this is a tuple.
    pub fn is_tuple(&self) -> bool {
        matches!(self, Shape::Tuple(_))
    }

    /// The part at `index`; `None` when there is no such part.
    pub fn subshape(&self, index: &ShapeIndex) -> Option<&Shape> {
        index.0.iter().try_fold(self, |shape, &i| shape.as_tuple()?.get(i as usize))
    }

    /// The part at `index`, to be changed; `None` when there is no such part.
    pub fn subshape_mut(&mut self, index: &ShapeIndex) -> Option<&mut Shape> {
        index.0.iter().try_fold(self, |shape, &i| match shape {
            Shape::Tuple(elements) => Arc::make_mut(elements).get_mut(i as usize),
            _ => None,
        })
    }

    /// Every part with its index, the whole first, then depth first from left to right.
    ///
    /// Recursion is as deep as the shape; the parsers bound that depth.
    pub fn for_each_subshape<'a>(&'a self, mut f: impl FnMut(&ShapeIndex, &'a Shape)) {
        fn walk<'a>(shape: &'a Shape, at: &mut ShapeIndex, f: &mut impl FnMut(&ShapeIndex, &'a Shape)) {
            f(at, shape);
            for (i, element) in shape.as_tuple().unwrap_or_default().iter().enumerate() {
                at.0.push(i as u32);
                walk(element, at, f);
                at.0.pop();
            }
        }
        walk(self, &mut ShapeIndex::default(), &mut f);
    }

    /// Whether the shape is a reference to memory, or has one.
    pub fn has_references(&self) -> bool {
        match self {
            Shape::Buffer(_) => true,
            Shape::Tuple(elements) => elements.iter().any(Shape::has_references),
            _ => false,
        }
    }

    /// Whether any array, or buffer, of the shape is as asked.
    pub fn any_array(&self, is_asked: impl Fn(&ArrayShape) -> bool + Copy) -> bool {
        match self {
            Shape::Tuple(elements) => elements.iter().any(|element| element.any_array(is_asked)),
            other => other.as_array().is_some_and(is_asked),
        }
    }

    /// The array, or the first one of a tuple.
    pub fn first_array(&self) -> Option<&ArrayShape> {
        match self {
            Shape::Tuple(elements) => elements.first()?.first_array(),
            other => other.as_array(),
        }
    }

    /// Bytes of all arrays without padding; arrays with unknown extents count as empty.
    pub fn dense_bytes(&self) -> u64 {
        match self {
            Shape::Tuple(elements) => {
                elements.iter().fold(0, |sum, element| sum.saturating_add(element.dense_bytes()))
            }
            other => other.as_array().and_then(ArrayShape::dense_bytes).unwrap_or(0),
        }
    }

    /// Every part that is not a tuple, with its index, depth first from left to right.
    pub fn leaves(&self) -> Vec<(ShapeIndex, &Shape)> {
        let mut leaves = Vec::new();
        self.for_each_subshape(|index, shape| {
            if !shape.is_tuple() {
                leaves.push((index.clone(), shape));
            }
        });
        leaves
    }

    /// Same structure, element types and extents, with any layouts.
    pub fn same_ignoring_layout(&self, other: &Shape) -> bool {
        match (self, other) {
            (Shape::Array(a), Shape::Array(b)) | (Shape::Buffer(a), Shape::Buffer(b)) => {
                a.same_ignoring_layout(b)
            }
            (Shape::Tuple(a), Shape::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.same_ignoring_layout(b))
            }
            (Shape::Token, Shape::Token) | (Shape::Opaque, Shape::Opaque) => true,
            _ => false,
        }
    }
}

impl From<ArrayShape> for Shape {
    fn from(array: ArrayShape) -> Shape {
        Shape::Array(array)
    }
}

impl ShapeIndex {
    /// The index of the whole value.
    pub fn root() -> ShapeIndex {
        ShapeIndex::default()
    }

    /// Whether this is the whole value.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// This index followed by one more step.
    #[must_use]
    pub fn child(&self, i: u32) -> ShapeIndex {
        let mut index = self.clone();
        index.0.push(i);
        index
    }

    /// This index followed by another.
    #[must_use]
    pub fn join(&self, rest: &ShapeIndex) -> ShapeIndex {
        ShapeIndex(self.0.iter().chain(&rest.0).copied().collect())
    }

    /// This index and all of its prefixes, the whole value first.
    pub fn prefixes(&self) -> impl Iterator<Item = ShapeIndex> {
        (0..=self.0.len()).map(|n| ShapeIndex(self.0[..n].into()))
    }

    /// The rest of this index below `prefix`; `None` if it is not below.
    pub fn strip_prefix(&self, prefix: &ShapeIndex) -> Option<ShapeIndex> {
        Some(ShapeIndex(self.0.strip_prefix(prefix.0.as_slice())?.into()))
    }
}

impl<I: IntoIterator<Item = u32>> From<I> for ShapeIndex {
    fn from(steps: I) -> ShapeIndex {
        ShapeIndex(steps.into_iter().collect())
    }
}

impl std::fmt::Display for ShapeIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("{")?;
        for (i, step) in self.0.iter().enumerate() {
            write!(f, "{}{step}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("}")
    }
}
