//! Defragmentation: moves live buffers to join free bytes into one large hole.
//!
//! ```text
//! before    |AAAA|      |B|      |CCCCCC|  |D|    a hole of 13 is wanted
//! slide     |AAAA|B|CCCCCC|D|                |    moves B, C and D
//! evacuate  |AAAA|             |CCCCCC|B |D|      moves B
//! ```
//!
//! A runtime that moves buffers pays for bytes, not for moves. There are two ways to make a hole: *sliding* the buffers
//! between some holes together, which always works and moves all of them; and *evacuating* a window, which moves only
//! the buffers in it, if the holes elsewhere have room. Both are tried everywhere and the cheaper is kept. All buffers
//! that overlap the final hole must move, so the least of these bytes over all windows is a lower bound.
//!
//! The order of the moves never overwrites live data: a buffer moves once its destination is free of others' bytes.
//! Cycles, which occur only in arbitrary placements, are broken by using free space.

use std::collections::{BTreeMap, BTreeSet};

use memplan_memory::{Alignment, Bytes};

/// How many windows are tried for evacuation, cheapest first.
const MOST_WINDOWS: usize = 256;

/// A live buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// By which moves name it.
    pub id: usize,
    /// Its address.
    pub address: u64,
    /// How large it is.
    pub size: u64,
}

impl Buffer {
    fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// Constraints on moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of every new address; buffers already are so aligned.
    pub alignment: Alignment,
    /// Whether one copy may read and write the same bytes, as `memmove` does. Otherwise such a move is made in pieces.
    pub allow_overlap: bool,
}

/// One move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Of which buffer.
    pub id: usize,
    /// Its old address.
    pub from: u64,
    /// Its new address.
    pub to: u64,
    /// How many.
    pub bytes: u64,
    /// Bytes copied at once: all, or as far as the buffer moves, so that no copy overwrites its source. Pieces are
    /// copied from the leading end: ascending if the buffer moves down.
    pub piece: u64,
}

/// How a region is compacted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// In order.
    pub moves: Vec<Move>,
    /// The address and size of the hole; at least as large as requested.
    pub hole: (u64, u64),
    /// No way to make that hole moves fewer bytes.
    pub lower_bound: Bytes,
    /// Bytes that sliding everything down to make one hole moves, for comparison.
    pub slide_all: Bytes,
}

impl Compaction {
    /// Bytes moved in all.
    pub fn bytes_moved(&self) -> Bytes {
        Bytes(self.moves.iter().map(|m| m.bytes).sum())
    }
}

/// Why nothing can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefragmentError {
    /// More is requested than is free, including alignment.
    #[error("a hole of {wanted} was requested, but only {free} are free")]
    TooLarge {
        /// The requested bytes.
        wanted: Bytes,
        /// The bytes that sliding everything together would leave.
        free: Bytes,
    },
    /// Buffers overlap, or are not in the region.
    #[error("buffer {0} overlaps another one, or the end of the region")]
    Overlap(usize),
    /// A cycle of moves was not broken: no hole takes a buffer of it that was not moved out of the way before.
    #[error("buffer {0} cannot be moved out of the way: no hole is large enough")]
    NoRoom(usize),
}

/// The moves that leave one hole of all that is free in the region `[0, region)`, as [`make_hole`] finds them.
///
/// # Errors
/// [`DefragmentError::Overlap`].
pub fn compact(buffers: &[Buffer], region: u64, options: &Options) -> Result<Compaction, DefragmentError> {
    let free = Occupancy::new(buffers, region, options)?.free_when_slid();
    make_hole(buffers, region, free, options)
}

/// The moves that make a hole of at least `wanted` bytes in the region `[0, region)`, the cheapest found. Nothing moves
/// if there is such a hole.
///
/// Takes time n log n in buffers.
///
/// # Errors
/// See [`DefragmentError`]; [`DefragmentError::NoRoom`] does not occur.
pub fn make_hole(
    buffers: &[Buffer],
    region: u64,
    wanted: u64,
    options: &Options,
) -> Result<Compaction, DefragmentError> {
    let layout = Occupancy::new(buffers, region, options)?;
    let free = layout.free_when_slid();
    if wanted > free {
        return Err(DefragmentError::TooLarge { wanted: Bytes(wanted), free: Bytes(free) });
    }
    let windows = layout.windows(wanted);
    let slide = layout.cheapest_slide(wanted);
    let mut cheaper = windows.iter().take(MOST_WINDOWS).take_while(|window| window.bytes < slide.bytes);
    let targets = cheaper.find_map(|window| layout.evacuate(window)).unwrap_or(slide.targets);
    let moves = order(buffers, &targets, region, options)?;
    let mut placed = layout.buffers.clone();
    for buffer in &mut placed {
        buffer.address = targets.get(&buffer.id).copied().unwrap_or(buffer.address);
    }
    placed.sort_unstable_by_key(|buffer| buffer.address);
    Ok(Compaction {
        moves,
        hole: holes(&placed, region)
            .max_by_key(|&(start, size)| (size, std::cmp::Reverse(start)))
            .unwrap_or((0, 0)),
        lower_bound: Bytes(windows.first().map_or(0, |window| window.bytes)),
        slide_all: Bytes(layout.slide(0, layout.buffers.len()).bytes),
    })
}

/// An order in which buffers can be moved to new addresses without overwriting one that has yet to move. Those without a
/// new address stay. Cycles are broken by moving their smallest buffer out of the way first, so that it moves twice.
///
/// Takes time n log n in buffers, times n for each cycle.
///
/// # Errors
/// [`DefragmentError::Overlap`] when the old or the new addresses overlap, [`DefragmentError::NoRoom`] when a cycle leaves
/// no room to break it.
pub fn order(
    buffers: &[Buffer],
    targets: &BTreeMap<usize, u64>,
    region: u64,
    options: &Options,
) -> Result<Vec<Move>, DefragmentError> {
    let new = |buffer: &Buffer| Buffer {
        address: targets.get(&buffer.id).copied().unwrap_or(buffer.address),
        ..*buffer
    };
    Occupancy::new(buffers, region, options)?;
    Occupancy::new(&buffers.iter().map(new).collect::<Vec<_>>(), region, options)?;
    let mut mover = Mover {
        options,
        region,
        now: buffers.iter().filter(|b| b.size > 0).map(|b| (b.address, *b)).collect(),
        pending: buffers
            .iter()
            .filter(|b| b.size > 0 && new(b).address != b.address)
            .map(|b| (b.id, b.address))
            .collect(),
        targets,
        moves: Vec::new(),
    };
    mover.run()?;
    Ok(mover.moves)
}

/// Live buffers by address.
struct Occupancy {
    buffers: Vec<Buffer>,
    region: u64,
    alignment: Alignment,
}

/// New addresses, and the bytes that move.
struct Slide {
    bytes: u64,
    targets: BTreeMap<usize, u64>,
}

/// A place for the hole, and the buffers that are in the way.
struct Window {
    start: u64,
    end: u64,
    first: usize,
    /// One past the last.
    last: usize,
    /// Of all of them.
    bytes: u64,
}

impl Occupancy {
    fn new(buffers: &[Buffer], region: u64, options: &Options) -> Result<Occupancy, DefragmentError> {
        let mut buffers = buffers.to_vec();
        buffers.retain(|buffer| buffer.size > 0);
        buffers.sort_unstable_by_key(|buffer| (buffer.address, buffer.id));
        let mut end = 0;
        for buffer in &buffers {
            if buffer.address < end {
                return Err(DefragmentError::Overlap(buffer.id));
            }
            end = buffer.address.checked_add(buffer.size).ok_or(DefragmentError::Overlap(buffer.id))?;
            if end > region {
                return Err(DefragmentError::Overlap(buffer.id));
            }
        }
        Ok(Occupancy { buffers, region, alignment: options.alignment })
    }

    fn align(&self, address: u64) -> u64 {
        Bytes(address).align_up(self.alignment).0
    }

    /// The end of the buffer before an index.
    fn end_before(&self, i: usize) -> u64 {
        i.checked_sub(1).map_or(0, |before| self.buffers[before].end())
    }

    /// The start of the first buffer at or after an index.
    fn start_of(&self, i: usize) -> u64 {
        self.buffers.get(i).map_or(self.region, |buffer| buffer.address)
    }

    fn free_when_slid(&self) -> u64 {
        let unit = u128::from(self.alignment.bytes());
        let after = |end: u128, buffer: &Buffer| end.next_multiple_of(unit) + u128::from(buffer.size);
        let end = self.buffers.iter().fold(0, after);
        self.region.saturating_sub(u64::try_from(end).unwrap_or(u64::MAX))
    }

    /// Slides the buffers `first..last` down, to the previous buffer.
    fn slide(&self, first: usize, last: usize) -> Slide {
        let mut slide = Slide { bytes: 0, targets: BTreeMap::new() };
        let mut end = self.end_before(first);
        for buffer in &self.buffers[first..last] {
            let to = self.align(end);
            if to != buffer.address {
                slide.bytes += buffer.size;
                slide.targets.insert(buffer.id, to);
            }
            end = to + buffer.size;
        }
        slide
    }

    /// The fewest bytes between holes that together are large enough. Two ends move over the buffers in tandem: every
    /// first one has a least last one, which never goes back.
    fn cheapest_slide(&self, wanted: u64) -> Slide {
        // Wider than addresses: an alignment may be larger than the region.
        let packed = |buffer: &Buffer| u128::from(self.align(buffer.size));
        let (mut best, mut last): (Option<(u64, usize, usize)>, usize) = (None, 0);
        let (mut bytes, mut room) = (0, 0u128);
        for first in 0..=self.buffers.len() {
            if last < first {
                (last, bytes, room) = (first, 0, 0);
            }
            // Rounding every size up makes the estimate independent of where the sliding begins; it errs on the safe side.
            let gap = |last: usize, room: u128| {
                let packed = u128::from(self.align(self.end_before(first))) + room;
                u128::from(self.start_of(last)).saturating_sub(packed)
            };
            let wanted = u128::from(wanted);
            while gap(last, room) < wanted && last < self.buffers.len() {
                bytes += self.buffers[last].size;
                room += packed(&self.buffers[last]);
                last += 1;
            }
            if gap(last, room) < wanted {
                break;
            }
            if best.is_none_or(|(least, ..)| bytes < least) {
                best = Some((bytes, first, last));
            }
            if last > first {
                bytes -= self.buffers[first].size;
                room -= packed(&self.buffers[first]);
            }
        }
        match best {
            Some((_, first, last)) => self.slide(first, last),
            None => self.slide(0, self.buffers.len()),
        }
    }

    /// All useful windows, the cheapest first: those that begin at a buffer's end, and those that end at a buffer's
    /// start.
    fn windows(&self, wanted: u64) -> Vec<Window> {
        let mut sums = vec![0];
        for buffer in &self.buffers {
            sums.push(sums.last().expect("it begins with one") + buffer.size);
        }
        let starts = (0..=self.buffers.len())
            .flat_map(|i| [Some(self.end_before(i)), self.start_of(i).checked_sub(wanted)]);
        let starts: BTreeSet<u64> = starts
            .flatten()
            .filter(|start| start.checked_add(wanted).is_some_and(|end| end <= self.region))
            .collect();
        let window = |start: u64| {
            let end = start + wanted;
            let first = self.buffers.partition_point(|buffer| buffer.end() <= start);
            let last = self.buffers.partition_point(|buffer| buffer.address < end);
            Window { start, end, first, last: last.max(first), bytes: sums[last.max(first)] - sums[first] }
        };
        let mut windows: Vec<Window> = starts.into_iter().map(window).collect();
        windows.sort_by_key(|window| (window.bytes, window.start));
        windows
    }

    /// Moves the buffers in a window into holes elsewhere, the largest first, each into the smallest hole that fits.
    /// Only bytes that are free before any move count, so that no move waits for another one.
    fn evacuate(&self, window: &Window) -> Option<BTreeMap<usize, u64>> {
        let mut rest: BTreeSet<(u64, u64)> = BTreeSet::new();
        let insert = |rest: &mut BTreeSet<(u64, u64)>, start: u64, end: u64| {
            let start = self.align(start);
            if start < end {
                rest.insert((end - start, start));
            }
        };
        for (start, size) in holes(&self.buffers, self.region) {
            insert(&mut rest, start, (start + size).min(window.start));
            insert(&mut rest, start.max(window.end), start + size);
        }
        let mut moving: Vec<&Buffer> = self.buffers[window.first..window.last].iter().collect();
        moving.sort_unstable_by_key(|buffer| (std::cmp::Reverse(buffer.size), buffer.address));
        let mut targets = BTreeMap::new();
        for buffer in moving {
            let &(size, start) = rest.range((buffer.size, 0)..).next()?;
            rest.remove(&(size, start));
            targets.insert(buffer.id, start);
            insert(&mut rest, start + buffer.size, start + size);
        }
        Some(targets)
    }
}

/// Buffers under way.
struct Mover<'a> {
    options: &'a Options,
    region: u64,
    /// The current position of everything, by address.
    now: BTreeMap<u64, Buffer>,
    /// The current address of each buffer that has yet to move, by id.
    pending: BTreeMap<usize, u64>,
    targets: &'a BTreeMap<usize, u64>,
    moves: Vec<Move>,
}

impl Mover<'_> {
    fn run(&mut self) -> Result<(), DefragmentError> {
        let mut detoured = BTreeSet::new();
        loop {
            let cycle = self.run_until_stuck();
            let Some(&any) = cycle.first() else { return Ok(()) };
            let size = |id: &usize| self.now[&self.pending[id]].size;
            let mut by_size: Vec<usize> = cycle.iter().copied().filter(|id| !detoured.contains(id)).collect();
            by_size.sort_unstable_by_key(|id| (size(id), *id));
            let detour = by_size.into_iter().find_map(|id| Some((id, self.room(size(&id))?)));
            let (id, to) = detour.ok_or(DefragmentError::NoRoom(any))?;
            detoured.insert(id);
            self.perform(id, to);
        }
    }

    /// Moves every buffer whose destination is free. The rest waits for a cycle, which is returned.
    fn run_until_stuck(&mut self) -> Vec<usize> {
        let mut blockers: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut waiting: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut ready = BTreeSet::new();
        for (&id, &from) in &self.pending {
            let own = self.in_the_way(id);
            own.iter().for_each(|&blocker| waiting.entry(blocker).or_default().push(id));
            if own.is_empty() {
                ready.insert((from, id));
            }
            blockers.insert(id, own);
        }
        while let Some((_, id)) = ready.pop_first() {
            self.perform(id, self.targets[&id]);
            blockers.remove(&id);
            for waiter in waiting.remove(&id).unwrap_or_default() {
                let own = blockers.get_mut(&waiter).expect("who waits has not moved");
                own.remove(&id);
                if own.is_empty() {
                    ready.insert((self.pending[&waiter], waiter));
                }
            }
        }
        // From anybody who waits, the blockers lead into a cycle.
        let Some(mut id) = self.pending.keys().next().copied() else { return Vec::new() };
        let mut path: Vec<usize> = Vec::new();
        let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
        while seen.insert(id, path.len()).is_none() {
            path.push(id);
            id = *blockers[&id].first().expect("who is not ready is blocked");
        }
        let start = path.iter().position(|&other| other == id).expect("it was seen");
        path.split_off(start)
    }

    /// The buffers that are where a pending one goes, without itself. They all are pending, since no two goals overlap.
    fn in_the_way(&self, id: usize) -> BTreeSet<usize> {
        let (start, size) = (self.targets[&id], self.now[&self.pending[&id]].size);
        let from =
            self.now.range(..start).next_back().filter(|(_, b)| b.end() > start).map_or(start, |(&a, _)| a);
        let there = self.now.range(from..start + size).map(|(_, buffer)| buffer.id);
        there.filter(|&other| other != id).collect()
    }

    /// Moves a buffer; it is pending no longer when it has come where it should.
    fn perform(&mut self, id: usize, to: u64) {
        let from = self.pending[&id];
        let buffer = self.now.remove(&from).expect("pending buffers are where they are said to be");
        let distance = from.abs_diff(to);
        let piece = if self.options.allow_overlap { buffer.size } else { buffer.size.min(distance) };
        self.moves.push(Move { id, from, to, bytes: buffer.size, piece });
        self.now.insert(to, Buffer { address: to, ..buffer });
        if to == self.targets[&id] {
            self.pending.remove(&id);
        } else {
            self.pending.insert(id, to);
        }
    }

    /// Free space for a detour, the end of the smallest hole that takes it: best where nobody will go, else anywhere.
    fn room(&self, size: u64) -> Option<u64> {
        let now: Vec<Buffer> = self.now.values().copied().collect();
        let goal = |(id, from): (&usize, &u64)| Buffer { address: self.targets[id], ..self.now[from] };
        let mut taken = now.clone();
        taken.extend(self.pending.iter().map(goal));
        taken.sort_unstable_by_key(|buffer| buffer.address);
        let fits = |taken: &[Buffer]| {
            let fitting = holes(taken, self.region).filter_map(|(start, room)| {
                let last = (start + room).checked_sub(size)? & !(self.options.alignment.bytes() - 1);
                (last >= start).then_some((room, last))
            });
            fitting.min().map(|(_, start)| start)
        };
        fits(&taken).or_else(|| fits(&now))
    }
}

/// The free ranges between buffers in order of their addresses: start and size.
fn holes(buffers: &[Buffer], region: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut end = 0;
    let bounds = buffers.iter().map(|buffer| (buffer.address, buffer.end())).chain([(region, region)]);
    bounds.filter_map(move |(start, next)| {
        let hole = (end, start.saturating_sub(end));
        end = end.max(next);
        (hole.1 > 0).then_some(hole)
    })
}
