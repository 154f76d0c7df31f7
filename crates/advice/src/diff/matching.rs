//! Matches the values before with those after: by name first, and by class and shape if names changed.
//!
//! The arguments show which dimension changed. So each of several values with one name is matched with the value that it
//! has become, and not with another one that happens to be as large.

use std::collections::VecDeque;

use indexmap::IndexMap;
use memplan_memory::HolderEntry;
use rustc_hash::FxHashSet;

use super::Matched;
use super::shape::{Ratio, ShapeText, is_scaled, ratios};

/// Values of one kind on each side, or on one.
pub(super) type Pair<'h> = (Option<Part<'h>>, Option<Part<'h>>, Matched);

/// Values of one holder, or some of them.
#[derive(Clone, Copy)]
pub(super) struct Part<'h> {
    pub(super) holder: &'h HolderEntry,
    /// Its place in the list.
    pub(super) at: usize,
    pub(super) count: usize,
}

/// What two holders have in common beside their names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Like {
    /// Shape and number.
    Number,
    /// The shape.
    Shape,
    /// The shape, but for dimensions that changed as those of arguments did.
    Scaled,
    /// The dimensions, or scaled ones, of another element type.
    Retyped,
    /// Elements and bytes, however many dimensions they are.
    Size,
    /// Number, element type and how many dimensions there are.
    Rank,
}

/// What two holders are called alike by.
#[derive(Clone, Copy)]
pub(crate) enum Name {
    All,
    /// The line moved.
    OperationAndClass,
    /// What the value is for changed, too.
    Operation,
    /// The name moved: the other side has nothing that is called so.
    ClassAndSource,
    Class,
    /// Another operation of the same line.
    Source,
    /// Any operation, of values that have a class.
    SomeClass,
}

use Like::{Number, Rank, Retyped, Scaled, Shape, Size};

/// What is paired.
pub(crate) struct Rules {
    /// Names, and how much alike holders of one name have to be; the strictest first.
    rounds: &'static [(Name, &'static [Like])],
    /// Whether values of one name and shape are one pair of however many there are on each side; else those that are too many
    /// go on looking for partners.
    pairs_kinds: bool,
}

/// Programs may have changed. Names are given up before a shape that nothing explains is taken.
pub(crate) const CHANGED: Rules = Rules {
    rounds: &[
        (Name::All, &[Number, Shape, Scaled, Retyped]),
        (Name::OperationAndClass, &[Number, Shape, Scaled, Retyped]),
        (Name::Operation, &[Shape, Scaled, Retyped]),
        (Name::ClassAndSource, &[Number, Shape, Scaled]),
        (Name::Class, &[Number, Shape, Scaled]),
        (Name::All, &[Rank]),
        (Name::OperationAndClass, &[Rank]),
    ],
    pairs_kinds: true,
};

/// One program was compiled twice: shapes stay, but for how dimensions are joined; of several operations of one line, one or
/// the other may end a kernel.
pub(crate) const COMPILED_TWICE: Rules = Rules {
    rounds: &[
        (Name::All, &[Number, Shape, Size]),
        (Name::Operation, &[Shape, Size]),
        (Name::Source, &[Shape, Size]),
        (Name::SomeClass, &[Shape, Size]),
        (Name::Operation, &[Retyped]),
        (Name::SomeClass, &[Retyped]),
    ],
    pairs_kinds: false,
};

/// Most holders of one name that are looked through for one that is like another: bounds the time for hostile files.
const MOST_LOOKED_AT: usize = 64;

/// Pairs holders; the closest likeness goes first. Of several the largest goes to the largest, as files list them.
pub(super) fn pairs<'h>(before: &'h [HolderEntry], after: &'h [HolderEntry], rules: &Rules) -> Vec<Pair<'h>> {
    let names = |holders: &'h [HolderEntry]| -> FxHashSet<&'h str> {
        holders.iter().filter_map(|holder| holder.operation.as_deref()).collect()
    };
    let (before, after) = (Side::new(before, &names(after)), Side::new(after, &names(before)));
    let ratios = ratios_of_arguments(&before, &after);
    let mut matcher = Matcher { before, after, ratios, pairs_kinds: rules.pairs_kinds, pairs: Vec::new() };
    for &(name, likes) in rules.rounds {
        likes.iter().for_each(|&like| matcher.pair(name, like));
    }
    matcher.finish()
}

/// The holders of a side, and how many values of each have no partner yet.
struct Side<'h> {
    holders: &'h [HolderEntry],
    shapes: Vec<(&'h str, Vec<u64>)>,
    /// Whether nothing on the other side has the name.
    has_moved: Vec<bool>,
    left: Vec<usize>,
}

/// What is called alike: operation, line, class; and the shape, where that is to be the same.
type Key<'h> = (Option<&'h str>, Option<&'h str>, Option<&'h str>, Option<&'h str>);

impl<'h> Side<'h> {
    fn new(holders: &'h [HolderEntry], others: &FxHashSet<&str>) -> Side<'h> {
        let is_other =
            |holder: &HolderEntry| holder.operation.as_deref().is_some_and(|name| others.contains(name));
        let shape = |holder: &'h HolderEntry| {
            let shape = ShapeText::new(holder.shape.as_deref().unwrap_or_default());
            (shape.element, shape.dimensions())
        };
        Side {
            holders,
            shapes: holders.iter().map(shape).collect(),
            has_moved: holders.iter().map(|holder| !is_other(holder)).collect(),
            left: holders.iter().map(|holder| holder.count).collect(),
        }
    }

    /// Those that have no partner yet.
    fn waiting(&self) -> impl Iterator<Item = usize> {
        (0..self.left.len()).filter(|&i| self.left[i] > 0)
    }

    /// None where a holder has no such name.
    fn key(&self, i: usize, name: Name, like: Like) -> Option<Key<'h>> {
        let holder = &self.holders[i];
        let (operation, source) = (holder.operation.as_deref(), holder.source.as_deref());
        let (class, shape) = (holder.class.as_deref(), holder.shape.as_deref());
        let shape = shape.filter(|_| matches!(like, Number | Shape));
        match name {
            Name::All => operation.map(|_| (operation, source, class, shape)),
            Name::OperationAndClass => operation.map(|_| (operation, None, class, shape)),
            Name::Operation => operation.map(|_| (operation, None, None, shape)),
            Name::ClassAndSource | Name::Class if !self.has_moved[i] => None,
            Name::ClassAndSource => source.map(|_| (None, source, class, shape)),
            Name::Class => Some((None, None, class, shape)),
            Name::Source => source.map(|_| (None, source, None, shape)),
            Name::SomeClass => class.map(|_| (None, None, class, shape)),
        }
    }

    fn take(&mut self, i: usize, count: usize) -> Part<'h> {
        self.left[i] -= count;
        Part { holder: &self.holders[i], at: i, count }
    }

    /// Whatever has no partner.
    fn rest(self) -> impl Iterator<Item = Part<'h>> {
        let parts = self.holders.iter().zip(self.left).enumerate();
        parts.filter(|(_, (_, count))| *count > 0).map(|(at, (holder, count))| Part { holder, at, count })
    }
}

/// By what the dimensions of arguments changed: of those that have but one like them by name, or else by class.
fn ratios_of_arguments(before: &Side<'_>, after: &Side<'_>) -> Vec<Ratio> {
    let is_argument = |side: &Side<'_>, i: usize| {
        let class = side.holders[i].class.as_deref();
        class.is_some_and(|class| ["input", "parameter", "optimizer-state", "state"].contains(&class))
    };
    let by = |name: Name| {
        let mut alike: IndexMap<_, [Vec<usize>; 2]> = IndexMap::new();
        for (at, side) in [before, after].into_iter().enumerate() {
            for i in (0..side.holders.len()).filter(|&i| is_argument(side, i)) {
                let (element, dimensions) = &side.shapes[i];
                if let Some(key) = side.key(i, name, Scaled) {
                    alike.entry((key, *element, dimensions.len())).or_default()[at].push(i);
                }
            }
        }
        let single = alike.values().filter_map(|[a, b]| match (&a[..], &b[..]) {
            (&[a], &[b]) => Some((&before.shapes[a].1[..], &after.shapes[b].1[..])),
            _ => None,
        });
        ratios(single)
    };
    let named = by(Name::All);
    if named.is_empty() { by(Name::Class) } else { named }
}

/// Holders that have no pair yet, and pairs.
struct Matcher<'h> {
    before: Side<'h>,
    after: Side<'h>,
    ratios: Vec<Ratio>,
    pairs_kinds: bool,
    pairs: Vec<Pair<'h>>,
}

impl<'h> Matcher<'h> {
    /// Pairs what has one name and is alike.
    fn pair(&mut self, name: Name, like: Like) {
        let matched = match name {
            Name::All | Name::OperationAndClass | Name::Operation => Matched::Name,
            Name::ClassAndSource | Name::Class | Name::Source | Name::SomeClass => Matched::Shape,
        };
        let mut waiting: IndexMap<Key<'h>, VecDeque<usize>> = IndexMap::new();
        for i in self.after.waiting() {
            if let Some(key) = self.after.key(i, name, like) {
                waiting.entry(key).or_default().push_back(i);
            }
        }
        for a in self.before.waiting().collect::<Vec<_>>() {
            let list = self.before.key(a, name, like).and_then(|key| waiting.get_mut(&key));
            let Some(list) = list else { continue };
            while self.before.left[a] > 0
                && let Some(at) = list.iter().take(MOST_LOOKED_AT).position(|&b| self.are_alike(a, b, like))
            {
                let b = list[at];
                let counts = (self.before.left[a], self.after.left[b]);
                // Of one shape there are more or fewer now; values of another shape have a partner each.
                let (n_a, n_b) = match like {
                    Number | Shape | Rank if self.pairs_kinds => counts,
                    _ => (counts.0.min(counts.1), counts.0.min(counts.1)),
                };
                self.pairs.push((Some(self.before.take(a, n_a)), Some(self.after.take(b, n_b)), matched));
                if self.after.left[b] == 0 {
                    list.remove(at);
                }
            }
        }
    }

    fn are_alike(&self, a: usize, b: usize, like: Like) -> bool {
        let ((element_a, dimensions_a), (element_b, dimensions_b)) =
            (&self.before.shapes[a], &self.after.shapes[b]);
        let (is_type, is_number) = (element_a == element_b, self.before.left[a] == self.after.left[b]);
        match like {
            // The shape is part of the key.
            Number => is_number,
            Shape => true,
            Scaled => is_type && is_scaled(dimensions_a, dimensions_b, &self.ratios),
            Retyped => is_scaled(dimensions_a, dimensions_b, &self.ratios),
            Size => {
                let bytes =
                    |side: &Side<'_>, i: usize| side.holders[i].bytes.0 / side.holders[i].count.max(1) as u64;
                let elements = |dimensions: &[u64]| dimensions.iter().fold(1u64, |n, &d| n.saturating_mul(d));
                is_type
                    && elements(dimensions_a) == elements(dimensions_b)
                    && bytes(&self.before, a) == bytes(&self.after, b)
            }
            Rank => is_type && is_number && dimensions_a.len() == dimensions_b.len(),
        }
    }

    fn finish(self) -> Vec<Pair<'h>> {
        let mut pairs = self.pairs;
        pairs.extend(self.before.rest().map(|part| (Some(part), None, Matched::Alone)));
        pairs.extend(self.after.rest().map(|part| (None, Some(part), Matched::Alone)));
        pairs
    }
}
