//! Packs each tile by time: assigns offsets to items that are not always live.
//!
//! Items on (nearly) every tile are *common*: they are packed once, at the same offset everywhere. A tile's other items
//! are above the common part, as low as its height at that time allows:
//!
//! ```text
//! address
//!   ^       +--+             d: on some tiles only; it stands on whatever is common while it is live
//!   |  +----| d|             (the pedestal), not on the highest point of all
//!   |  | b  +--+--+
//!   |  +----+--+ c|
//!   |  |   a   |--+
//!   +--+-------+---> time
//! ```
//!
//! Tiles whose own items have equal sizes and times are one problem and are solved once.

use memplan_analysis::LiveRange;
use memplan_memory::{Alignment, Bytes};
use memplan_pack::{Error, Item, Options, Problem};
use rustc_hash::FxHashMap;

use crate::tile_set::{TileSet, fill_from_largest};

/// Something that needs bytes on each of some tiles at some times.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) bytes: Bytes,
    /// Disjoint, ascending, at least one.
    pub(crate) busy: Vec<LiveRange>,
    pub(crate) tiles: TileSet,
}

/// The offset of every need on every tile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arenas {
    /// Needs with one offset on all tiles, ascending.
    common: Vec<(usize, Bytes)>,
    /// Which of the arrangements each tile has, and which of its own needs are its items, in the order of the items.
    tiles: Vec<(usize, Vec<u32>)>,
    arrangements: Vec<Arrangement>,
}

/// A solved problem.
#[derive(Clone, Debug, Default)]
struct Arrangement {
    offsets: Vec<Bytes>,
    height: Bytes,
}

impl Arenas {
    /// Bytes that a tile needs.
    pub(crate) fn height(&self, tile: u32) -> Bytes {
        self.arrangements[self.tiles[tile as usize].0].height
    }

    /// How many different problems there were.
    pub(crate) fn n_arrangements(&self) -> usize {
        self.arrangements.len()
    }

    /// The needs on a tile with their offsets: common ones are there only if the tile has them.
    pub(crate) fn on_tile<'a>(
        &'a self,
        needs: &'a [Need],
        tile: u32,
    ) -> impl Iterator<Item = (usize, Bytes)> + 'a {
        let (arrangement, own) = &self.tiles[tile as usize];
        let own =
            own.iter().zip(&self.arrangements[*arrangement].offsets).map(|(&need, &at)| (need as usize, at));
        let common = self.common.iter().copied().filter(move |&(need, _)| needs[need].tiles.contains(tile));
        common.chain(own)
    }
}

/// Packs the needs of all tiles. `end` is one past the last instant.
///
/// # Errors
/// When sizes add up beyond 64 bits.
pub(crate) fn pack(
    needs: &[Need],
    tiles: u32,
    end: u32,
    alignment: Alignment,
    options: &Options,
) -> Result<Arenas, Error> {
    let is_common = |need: &Need| u64::from(need.tiles.len()) * 16 >= u64::from(tiles) * 15;
    let (common, own): (Vec<usize>, Vec<usize>) = (0..needs.len()).partition(|&i| is_common(&needs[i]));
    let problem: Problem = common.iter().map(|&i| item(&needs[i], alignment)).collect();
    let packing = memplan_pack::minimize(&problem, options)?;
    let common: Vec<(usize, Bytes)> =
        common.into_iter().zip(packing.offsets.into_iter().map(Bytes)).collect();
    let pedestal = Pedestal::new(needs, &common, end, alignment);
    let mut arenas = Arenas { common, ..Arenas::default() };
    let mut solved: FxHashMap<Vec<u32>, usize> = FxHashMap::default();
    for (contents, own) in own_needs(needs, &own, tiles) {
        let arrangement = match solved.get(&contents) {
            Some(&known) => known,
            None => {
                arenas.arrangements.push(arrange(needs, &own, &pedestal, alignment)?);
                solved.insert(contents, arenas.arrangements.len() - 1);
                arenas.arrangements.len() - 1
            }
        };
        arenas.tiles.push((arrangement, own));
    }
    Ok(arenas)
}

fn item(need: &Need, alignment: Alignment) -> Item {
    let (first, last) = (need.busy[0], need.busy[need.busy.len() - 1]);
    let mut item = Item::new(need.bytes.0, first.start.into()..last.end.into()).aligned(alignment.bytes());
    for pair in need.busy.windows(2) {
        item = item.with_gap(pair[0].end.into()..pair[1].start.into());
    }
    item
}

/// For each tile what its own needs are like (numbers for equal sizes and times, ascending), and the needs.
fn own_needs(needs: &[Need], own: &[usize], tiles: u32) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut kinds: FxHashMap<(Bytes, &[LiveRange]), u32> = FxHashMap::default();
    let mut sorted: Vec<(u32, usize)> = Vec::with_capacity(own.len());
    for &i in own {
        let next = kinds.len() as u32;
        sorted.push((*kinds.entry((needs[i].bytes, &needs[i].busy)).or_insert(next), i));
    }
    sorted.sort_unstable();
    let mut by_tile = vec![(Vec::new(), Vec::new()); tiles as usize];
    for (kind, i) in sorted {
        for tile in needs[i].tiles.iter() {
            let (contents, own) = &mut by_tile[tile as usize];
            contents.push(kind);
            own.push(i as u32);
        }
    }
    by_tile
}

/// Packs a tile's own items above the common ones.
fn arrange(
    needs: &[Need],
    own: &[u32],
    pedestal: &Pedestal,
    alignment: Alignment,
) -> Result<Arrangement, Error> {
    let mut problem: Problem = own.iter().map(|&i| item(&needs[i as usize], alignment)).collect();
    let ranges = || own.iter().flat_map(|&i| &needs[i as usize].busy);
    let mut instants: Vec<u32> = ranges().flat_map(|range| [range.start, range.end]).collect();
    instants.sort_unstable();
    instants.dedup();
    for pair in instants.windows(2) {
        let top = pedestal.highest(pair[0], pair[1]);
        if top > 0 {
            problem.push(Item::new(top, pair[0].into()..pair[1].into()).fixed_at(0));
        }
    }
    let packing = memplan_pack::minimize(&problem, &Options::quick())?;
    let offsets = packing.offsets[..own.len()].iter().copied().map(Bytes).collect();
    Ok(Arrangement { offsets, height: Bytes(packing.height.max(pedestal.height)) })
}

/// How high the common part is at each time.
struct Pedestal {
    height: u64,
    /// Maxima over runs of 1, 2, 4, ... instants from each instant on.
    maxima: Vec<Vec<u64>>,
}

impl Pedestal {
    fn new(needs: &[Need], common: &[(usize, Bytes)], end: u32, alignment: Alignment) -> Pedestal {
        let mut tops: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
        for &(i, offset) in common {
            let top = offset.saturating_add(needs[i].bytes).align_up(alignment).0;
            tops.extend(needs[i].busy.iter().map(|range| (top, range.start as usize..range.end as usize)));
        }
        tops.sort_unstable_by_key(|(top, range)| (std::cmp::Reverse(*top), range.start));
        let height = tops.first().map_or(0, |&(top, _)| top);
        let mut maxima = vec![fill_from_largest(end as usize, tops)];
        let mut run = 1;
        while 2 * run <= end as usize {
            let last = &maxima[maxima.len() - 1];
            maxima.push((0..=end as usize - 2 * run).map(|i| last[i].max(last[i + run])).collect());
            run *= 2;
        }
        Pedestal { height, maxima }
    }

    /// The highest it is from `start` to before `end`.
    fn highest(&self, start: u32, end: u32) -> u64 {
        let (start, end) = (start as usize, end as usize);
        let level = (end - start).ilog2() as usize;
        let row = &self.maxima[level];
        row[start].max(row[end - (1 << level)])
    }
}
