//! The solver's form of the problem: blocks over sections.
//!
//! - A **block** is an item, or the items of a colocation group: it has one offset.
//! - A **section** is a relevant stretch of time. Times are compressed twice: to the points where something starts or
//!   ends, and then to the stretches whose live set is not contained in a neighbor's. All interference, and the highest
//!   load, is in one of those.
//! - A **piece** is a run of sections during which a block has a constant size. A plain item has one piece; gaps and
//!   groups make more of them.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::{Error, Problem};

/// A block holds `size` bytes during the sections `lower..upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) lower: u32,
    pub(crate) upper: u32,
    pub(crate) size: u64,
}

/// An item or group with one offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// First section of the first piece.
    pub(crate) lower: u32,
    /// End of the last piece.
    pub(crate) upper: u32,
    /// Size of the largest piece.
    pub(crate) size: u64,
    /// Time from its first to its last, as the problem counts it.
    pub(crate) duration: u64,
    /// That of the first of its items.
    pub(crate) first_duration: u64,
    pub(crate) alignment: u64,
    pub(crate) fixed: Option<u64>,
    pub(crate) preferred: Option<u64>,
    /// The index of its first piece in [`Instance::pieces`].
    first_piece: u32,
    n_pieces: u32,
}

/// Blocks over sections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instance {
    pub(crate) blocks: Vec<Block>,
    /// Grouped by block, in order of time, disjoint.
    pieces: Vec<Piece>,
    pub(crate) n_sections: usize,
}

/// The mapping between the blocks of an instance and the items of a problem.
pub(crate) struct Mapping {
    places: Vec<Place>,
}

/// The source of an item's offset.
#[derive(Clone, Copy)]
enum Place {
    Block(u32),
    /// The item never holds a byte: anywhere will do.
    At(u64),
}

impl Instance {
    pub(crate) fn pieces(&self, block: usize) -> &[Piece] {
        let block = &self.blocks[block];
        &self.pieces[block.first_piece as usize..][..block.n_pieces as usize]
    }

    pub(crate) fn n_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Sections times the blocks live there.
    pub(crate) fn area(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.upper - piece.lower)).sum()
    }

    /// Whether the block is one rectangle.
    pub(crate) fn is_plain(&self, block: usize) -> bool {
        self.blocks[block].n_pieces == 1
    }

    /// Whether the block holds the same number of bytes whenever it holds any.
    pub(crate) fn is_uniform(&self, block: usize) -> bool {
        self.pieces(block).iter().all(|piece| piece.size == self.blocks[block].size)
    }

    /// Bytes live in each section. `None`: more than 2^64.
    pub(crate) fn loads(&self) -> Option<Vec<u64>> {
        let mut delta = vec![0i128; self.n_sections + 1];
        for piece in &self.pieces {
            delta[piece.lower as usize] += i128::from(piece.size);
            delta[piece.upper as usize] -= i128::from(piece.size);
        }
        let mut load = 0i128;
        delta[..self.n_sections]
            .iter()
            .map(|d| {
                load += d;
                u64::try_from(load).ok()
            })
            .collect()
    }

    /// A height that no packing goes below.
    ///
    /// When all offsets are multiples of some `g`, a block that has another above it takes up its size
    /// rounded up to `g`; only the top one of a section does not. Ends of fixed blocks count as well.
    pub(crate) fn lower_bound(&self) -> Option<u64> {
        let g = self.unit();
        let mut rounded = vec![0i128; self.n_sections + 1];
        for piece in &self.pieces {
            let size = i128::from(piece.size.div_ceil(g)) * i128::from(g);
            rounded[piece.lower as usize] += size;
            rounded[piece.upper as usize] -= size;
        }
        let mut bound = 0i128;
        let mut load = 0i128;
        let saved = self.most_rounding(g);
        for (delta, saved) in rounded[..self.n_sections].iter().zip(saved) {
            load += delta;
            bound = bound.max(load - i128::from(saved));
        }
        let fixed = self.blocks.iter().filter_map(|block| Some(block.fixed? + block.size)).max();
        u64::try_from(bound).ok().map(|bound| bound.max(fixed.unwrap_or(0)))
    }

    /// The greatest common divisor of everything offsets are made of: each offset can be assumed a multiple.
    pub(crate) fn unit(&self) -> u64 {
        self.blocks.iter().fold(0, |g, block| gcd(gcd(g, block.alignment), block.fixed.unwrap_or(0))).max(1)
    }

    /// For each section the most that rounding adds to a block that is live there.
    fn most_rounding(&self, g: u64) -> Vec<u64> {
        let mut most = vec![0; self.n_sections];
        if g == 1 {
            return most;
        }
        // Large roundings first; each section is written once, and `next` skips written ones.
        let mut order: Vec<&Piece> = self.pieces.iter().collect();
        let rounding = |piece: &Piece| (g - piece.size % g) % g;
        order.sort_by_key(|piece| core::cmp::Reverse(rounding(piece)));
        let mut next: Vec<u32> = (0..=self.n_sections as u32).collect();
        for piece in order {
            let mut section = find(&mut next, piece.lower);
            while section < piece.upper {
                most[section as usize] = rounding(piece);
                next[section as usize] = section + 1;
                section = find(&mut next, section + 1);
            }
        }
        most
    }

    /// Two fixed blocks that overlap, if there are any: a sweep along time over the fixed pieces in order of offset.
    fn fixed_overlap(&self) -> Option<(usize, usize)> {
        let mut events: Vec<(u32, bool, u64, u64, usize)> = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            let Some(offset) = block.fixed else { continue };
            for piece in self.pieces(index) {
                events.push((piece.lower, true, offset, offset + piece.size, index));
                events.push((piece.upper, false, offset, offset + piece.size, index));
            }
        }
        // At equal times ends come first.
        events.sort_unstable();
        let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for (_, starts, offset, end, index) in events {
            if !starts {
                live.remove(&offset);
                continue;
            }
            if let Some((_, &(below_end, below))) = live.range(..end).next_back()
                && below_end > offset
            {
                return Some((below, index));
            }
            live.insert(offset, (end, index));
        }
        None
    }

    /// Builds an instance from the pieces of blocks: (block, piece), any order; times are compressed.
    fn build(mut blocks: Vec<Block>, pieces: &[(u32, u64, u64, u64)]) -> Instance {
        let sections = Sections::new(pieces.iter().map(|&(_, lower, upper, _)| (lower, upper)));
        let mut all = Vec::with_capacity(pieces.len());
        let mut previous = None;
        for &(block, lower, upper, size) in pieces {
            let (lower, upper) = (sections.at(lower), sections.at(upper));
            let piece = Piece { lower, upper, size };
            let entry = &mut blocks[block as usize];
            if previous != Some(block) {
                (entry.first_piece, entry.n_pieces) = (all.len() as u32, 0);
                (entry.lower, entry.size) = (lower, 0);
                previous = Some(block);
            }
            entry.n_pieces += 1;
            entry.upper = upper;
            entry.size = entry.size.max(size);
            all.push(piece);
        }
        Instance { blocks, pieces: all, n_sections: sections.ends.len() }
    }

    /// The part of the instance made of the given blocks, with its times compressed again.
    pub(crate) fn restrict(&self, blocks: &[u32]) -> Instance {
        let pieces = blocks.iter().enumerate().flat_map(|(index, &block)| {
            let convert =
                move |piece: &Piece| (index as u32, piece.lower.into(), piece.upper.into(), piece.size);
            self.pieces(block as usize).iter().map(convert)
        });
        let pieces: Vec<_> = pieces.collect();
        Instance::build(blocks.iter().map(|&block| self.blocks[block as usize].clone()).collect(), &pieces)
    }

    /// Groups of blocks that share no section with each other, in order of time.
    pub(crate) fn components(&self) -> Vec<Vec<u32>> {
        let mut order: Vec<u32> = (0..self.blocks.len() as u32).collect();
        order.sort_by_key(|&block| self.blocks[block as usize].lower);
        let mut components: Vec<Vec<u32>> = Vec::new();
        let mut end = 0;
        for block in order {
            let Block { lower, upper, .. } = self.blocks[block as usize];
            if components.is_empty() || lower >= end {
                components.push(Vec::new());
            }
            end = end.max(upper);
            components.last_mut().expect("one was pushed").push(block);
        }
        components
    }
}

impl Mapping {
    /// The blocks of a problem, which has been checked.
    pub(crate) fn new(problem: &Problem) -> Result<(Instance, Mapping), Error> {
        let units = group_units(problem);
        let mut order: Vec<u32> = (0..units.len() as u32).collect();
        order.sort_by_key(|&item| units[item as usize]);
        let mut places = vec![Place::At(0); units.len()];
        let mut blocks: Vec<Block> = Vec::new();
        let mut first_items = Vec::new();
        let mut pieces = Vec::with_capacity(units.len());
        for members in order.chunk_by(|&a, &b| units[a as usize] == units[b as usize]) {
            let block = merge(problem, members)?;
            let index = blocks.len() as u32;
            let n_before = pieces.len();
            for_each_span(problem, members, |lower, upper, size| pieces.push((index, lower, upper, size)));
            let holds_bytes = pieces.len() > n_before;
            let place = if holds_bytes { Place::Block(index) } else { Place::At(block.fixed.unwrap_or(0)) };
            for &item in members {
                places[item as usize] = place;
            }
            if holds_bytes {
                blocks.push(block);
                first_items.push(members[0] as usize);
            }
        }
        let instance = Instance::build(blocks, &pieces);
        match instance.fixed_overlap() {
            Some((a, b)) => Err(Error::FixedOverlap { first: first_items[a], second: first_items[b] }),
            None => Ok((instance, Mapping { places })),
        }
    }

    /// The offsets of the items, given the blocks' offsets.
    pub(crate) fn offsets(&self, blocks: &[u64]) -> Vec<u64> {
        let offset = |place: &Place| match *place {
            Place::Block(block) => blocks[block as usize],
            Place::At(offset) => offset,
        };
        self.places.iter().map(offset).collect()
    }
}

/// For each item the first item of its group.
fn group_units(problem: &Problem) -> Vec<u32> {
    let mut parent: Vec<u32> = (0..problem.items.len() as u32).collect();
    for pair in problem.groups.iter().flat_map(|group| group.windows(2)) {
        let (a, b) = (find(&mut parent, pair[0] as u32), find(&mut parent, pair[1] as u32));
        parent[a.max(b) as usize] = a.min(b);
    }
    (0..parent.len() as u32).map(|item| find(&mut parent, item)).collect()
}

/// Follows `next` to a fixed point, and shortens the way for those who come later.
fn find(next: &mut [u32], mut at: u32) -> u32 {
    while next[at as usize] != at {
        next[at as usize] = next[next[at as usize] as usize];
        at = next[at as usize];
    }
    at
}

/// The constraints of a group on its common offset.
fn merge(problem: &Problem, members: &[u32]) -> Result<Block, Error> {
    let mut alignment = 1u64;
    let mut fixed: Option<(usize, u64)> = None;
    let mut preferred = None;
    for &member in members {
        let index = member as usize;
        let item = &problem.items[index];
        let factor = item.alignment / gcd(alignment, item.alignment);
        alignment =
            alignment.checked_mul(factor).ok_or(Error::GroupAlignment { item: members[0] as usize })?;
        preferred = preferred.or(item.preferred);
        match (fixed, item.fixed) {
            (Some((first, first_offset)), Some(second_offset)) if first_offset != second_offset => {
                return Err(Error::GroupOffsets { first, second: index, first_offset, second_offset });
            }
            (None, Some(offset)) => fixed = Some((index, offset)),
            _ => {}
        }
    }
    if let Some((item, offset)) = fixed {
        if offset % alignment != 0 {
            return Err(Error::Misaligned { item, offset, alignment });
        }
        if members.iter().any(|&member| offset.checked_add(problem.items[member as usize].size).is_none()) {
            return Err(Error::TooLarge);
        }
    }
    let fixed = fixed.map(|(_, offset)| offset);
    let items = members.iter().map(|&member| &problem.items[member as usize]);
    let first = items.clone().min_by_key(|item| item.lower).map_or(0..0, |item| item.lower..item.upper);
    let last = items.map(|item| item.upper).max().unwrap_or(0);
    Ok(Block {
        lower: 0,
        upper: 0,
        size: 0,
        duration: last - first.start,
        first_duration: first.end - first.start,
        alignment,
        fixed,
        preferred,
        first_piece: 0,
        n_pieces: 0,
    })
}

/// The times at which a group holds bytes, and how many: in order, disjoint.
fn for_each_span(problem: &Problem, members: &[u32], mut emit: impl FnMut(u64, u64, u64)) {
    if let [member] = members {
        let item = &problem.items[*member as usize];
        if item.gaps.is_empty() {
            if item.size > 0 {
                emit(item.lower, item.upper, item.size);
            }
            return;
        }
    }
    // A sweep over starts and ends, with the sizes that are live in a counted set. A gap takes its item
    // out for a while; as gaps may overlap each other, each is first cut to what earlier ones leave.
    let mut events: Vec<(u64, u64, bool)> = Vec::new();
    for &member in members {
        let item = &problem.items[member as usize];
        if item.size == 0 {
            continue;
        }
        let mut gaps: Vec<_> = item.gaps.iter().map(|gap| (gap.start, gap.end)).collect();
        gaps.push((item.upper, item.upper));
        gaps.sort_unstable();
        let mut from = item.lower;
        for (start, end) in gaps {
            if from < start {
                events.extend([(from, item.size, true), (start, item.size, false)]);
            }
            from = from.max(end);
        }
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, u32> = BTreeMap::new();
    let mut open: Option<(u64, u64)> = None;
    for same_time in events.chunk_by(|a, b| a.0 == b.0) {
        let time = same_time[0].0;
        for &(_, size, starts) in same_time {
            let count = live.entry(size).or_default();
            // Counts wrap below zero when an end is met before a start at the same time, and come back.
            *count = if starts { count.wrapping_add(1) } else { count.wrapping_sub(1) };
        }
        live.retain(|_, count| *count != 0);
        let size = live.last_key_value().map(|(&size, _)| size);
        if open.map(|(_, size)| size) != size {
            if let Some((since, size)) = open {
                emit(since, time, size);
            }
            open = size.map(|size| (time, size));
        }
    }
}

/// From times to sections.
struct Sections {
    /// The last time of each section, increasing.
    ends: Vec<u64>,
}

impl Sections {
    /// A section ends where something ends, when something has started since the last one did.
    fn new(spans: impl Iterator<Item = (u64, u64)>) -> Sections {
        let mut events: Vec<(u64, bool)> =
            spans.flat_map(|(lower, upper)| [(lower, true), (upper, false)]).collect();
        // At equal times ends come first.
        events.sort_unstable();
        let mut grown = false;
        let mut ends = Vec::new();
        for (time, starts) in events {
            if !starts && grown {
                ends.push(time);
            }
            grown = starts;
        }
        Sections { ends }
    }

    /// The first section that ends after `time`: where a range that starts then begins,
    /// and one past the last section of a range that ends then.
    fn at(&self, time: u64) -> u32 {
        self.ends.partition_point(|&end| end <= time) as u32
    }
}

/// The greatest common divisor; of 0 and `a` it is `a`.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
