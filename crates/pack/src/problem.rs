//! The problem: items that need `size` bytes during a live range.
//!
//! ```text
//! address
//!   ^        +-----+
//!   |  +-----|  c  |
//!   |  |  b  +-----+--+        An item is a rectangle whose place along time is given
//!   |  +--+--------+  |        and whose place along addresses is asked for.
//!   |     |   a    |  |
//!   +-----+--------+--+--> time
//! ```
//!
//! Two items *interfere* if some time is in both live ranges and in no gap of either. Items that interfere get disjoint
//! bytes, unless a colocation group makes them share an offset.

use alloc::vec::Vec;
use core::ops::Range;

/// One buffer: its size, its alignment and the times at which its bytes are needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// Bytes needed. An item of no bytes interferes with nothing.
    pub size: u64,
    /// The offset must be a multiple of this. At least 1; need not be a power of two.
    pub alignment: u64,
    /// First time at which the item is live.
    pub lower: u64,
    /// One past the last time at which the item is live; above `lower`.
    pub upper: u64,
    /// The only offset allowed, where the place was decided earlier.
    pub fixed: Option<u64>,
    /// An offset to use when that costs no height.
    pub preferred: Option<u64>,
    /// Times inside `lower..upper` at which the bytes are free for others.
    /// The item keeps its offset across a gap, its contents are not kept. Some time must be left.
    pub gaps: Vec<Range<u64>>,
}

impl Item {
    /// An item of `size` bytes, live during the half-open range `live`, with no further wishes.
    pub fn new(size: u64, live: Range<u64>) -> Self {
        Item {
            size,
            alignment: 1,
            lower: live.start,
            upper: live.end,
            fixed: None,
            preferred: None,
            gaps: Vec::new(),
        }
    }

    /// Asks for offsets that are multiples of `alignment`.
    #[must_use]
    pub fn aligned(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }

    /// Allows `offset` only.
    #[must_use]
    pub fn fixed_at(mut self, offset: u64) -> Self {
        self.fixed = Some(offset);
        self
    }

    /// Asks for `offset` where that costs no height.
    #[must_use]
    pub fn preferably_at(mut self, offset: u64) -> Self {
        self.preferred = Some(offset);
        self
    }

    /// Frees the bytes during `gap`, a part of the live range.
    #[must_use]
    pub fn with_gap(mut self, gap: Range<u64>) -> Self {
        self.gaps.push(gap);
        self
    }
}

/// Items, the groups among them that share an offset, and optionally the bytes there are.
///
/// ```
/// use memplan_pack::{Item, Options, Problem};
///
/// let mut problem = Problem::new();
/// let a = problem.push(Item::new(96, 0..2).aligned(64));
/// let b = problem.push(Item::new(32, 1..3));
/// let packing = memplan_pack::pack(&problem, &Options::default())?;
/// assert_eq!(packing.height, 128);
/// assert!(packing.certificate.optimal);
/// assert_ne!(packing.offsets[a], packing.offsets[b]);
/// # Ok::<(), memplan_pack::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// The items, named by their index.
    pub items: Vec<Item>,
    /// Colocation groups: the items of a group get one offset and may share bytes.
    /// Groups that have an item in common are one group.
    pub groups: Vec<Vec<usize>>,
    /// The bytes there are, where the question is whether everything fits.
    pub capacity: Option<u64>,
}

impl Problem {
    /// No items, no groups, no capacity.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an item and returns its index.
    pub fn push(&mut self, item: Item) -> usize {
        self.items.push(item);
        self.items.len() - 1
    }

    /// Makes the items share an offset.
    pub fn colocate(&mut self, items: impl IntoIterator<Item = usize>) {
        self.groups.push(items.into_iter().collect());
    }

    /// Limits the height to `capacity` bytes.
    #[must_use]
    pub fn with_capacity(mut self, capacity: u64) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// Checks what every entry point relies on.
    ///
    /// # Errors
    ///
    /// The first item or group, by index, that breaks a rule of [`Item`] or [`Problem`].
    pub fn check(&self) -> Result<(), Error> {
        for (index, item) in self.items.iter().enumerate() {
            check_item(index, item)?;
        }
        for (group, members) in self.groups.iter().enumerate() {
            if let Some(&item) = members.iter().find(|&&item| item >= self.items.len()) {
                return Err(Error::UnknownItem { group, item, n_items: self.items.len() });
            }
        }
        Ok(())
    }
}

impl FromIterator<Item> for Problem {
    fn from_iter<I: IntoIterator<Item = Item>>(items: I) -> Self {
        Problem { items: items.into_iter().collect(), ..Problem::default() }
    }
}

/// Why a problem cannot be posed, or its answer not be written down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A live range without a time in it.
    #[error("item {item} is live in [{lower}, {upper}), which is empty")]
    EmptyRange {
        /// The item.
        item: usize,
        /// Its first time.
        lower: u64,
        /// Its end.
        upper: u64,
    },
    /// An alignment of zero.
    #[error("item {item} has alignment 0")]
    ZeroAlignment {
        /// The item.
        item: usize,
    },
    /// A gap that is empty or leaves the live range.
    #[error("gap [{}, {}) of item {item} is empty or outside its live range", .gap.start, .gap.end)]
    Gap {
        /// The item.
        item: usize,
        /// The gap.
        gap: Range<u64>,
    },
    /// Gaps that leave nothing of the live range.
    #[error("the gaps of item {item} cover all of its live range")]
    NeverLive {
        /// The item.
        item: usize,
    },
    /// A fixed offset that is not a multiple of the alignment.
    #[error("item {item} is fixed at offset {offset}, which is not a multiple of its alignment {alignment}")]
    Misaligned {
        /// The item.
        item: usize,
        /// The fixed offset.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A group that names an item that is not there.
    #[error("group {group} names item {item}, but there are {n_items} items")]
    UnknownItem {
        /// The group.
        group: usize,
        /// The index it names.
        item: usize,
        /// How many items there are.
        n_items: usize,
    },
    /// Two members of a group that are fixed at different offsets.
    #[error("items {first} and {second} share an offset but are fixed at {first_offset} and {second_offset}")]
    GroupOffsets {
        /// A member.
        first: usize,
        /// Another member.
        second: usize,
        /// The fixed offset of the first.
        first_offset: u64,
        /// The fixed offset of the second.
        second_offset: u64,
    },
    /// Alignments of a group without a common multiple below 2^64.
    #[error("the alignments of the group of item {item} have no common multiple below 2^64")]
    GroupAlignment {
        /// The first member.
        item: usize,
    },
    /// Two interfering items are fixed at overlapping bytes.
    #[error("items {first} and {second} are live together and fixed at overlapping bytes")]
    FixedOverlap {
        /// One item.
        first: usize,
        /// The other.
        second: usize,
    },
    /// Offsets would not fit in 64 bits.
    #[error("the items live together need more than 2^64 bytes")]
    TooLarge,
}

fn check_item(index: usize, item: &Item) -> Result<(), Error> {
    if item.lower >= item.upper {
        return Err(Error::EmptyRange { item: index, lower: item.lower, upper: item.upper });
    }
    if item.alignment == 0 {
        return Err(Error::ZeroAlignment { item: index });
    }
    let outside = |gap: &&Range<u64>| gap.is_empty() || gap.start < item.lower || gap.end > item.upper;
    if let Some(gap) = item.gaps.iter().find(outside) {
        return Err(Error::Gap { item: index, gap: gap.clone() });
    }
    if !item.gaps.is_empty() {
        let mut gaps = item.gaps.clone();
        gaps.sort_unstable_by_key(|gap| gap.start);
        let covered = |to: u64, gap: &Range<u64>| if gap.start <= to { to.max(gap.end) } else { to };
        if gaps.iter().fold(item.lower, covered) >= item.upper {
            return Err(Error::NeverLive { item: index });
        }
    }
    match item.fixed {
        Some(offset) if offset % item.alignment != 0 => {
            Err(Error::Misaligned { item: index, offset, alignment: item.alignment })
        }
        Some(offset) if offset.checked_add(item.size).is_none() => Err(Error::TooLarge),
        _ => Ok(()),
    }
}
