//! `memplan replay --defragment-at`: the moves by which a runtime could compact its pool at one moment of a trace.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use memplan::memory::{Alignment, Bytes};
use memplan::pool::GRANULE;
use memplan::pool::bfc::{self, Bfc};
use memplan::pool::defragment::{Buffer, Compaction, Options, compact, make_hole};
use memplan::pool::replay::{Outcome, replay};
use memplan::pool::trace::{AllocationIndex, Event, Trace};

use crate::failure::Failure;

/// Most moves to list.
const MAX_MOVES: usize = 32;

/// What to do.
pub(crate) struct Wish {
    /// The event after which to compact.
    pub(crate) event: usize,
    /// The size of the hole; `None`: all free bytes.
    pub(crate) hole: Option<Bytes>,
    /// Whether a copy may overlap itself.
    pub(crate) allow_overlap: bool,
}

/// A pool at one moment, and the moves that compact it.
pub(crate) struct Defragmentation<'a> {
    trace: &'a Trace,
    event: usize,
    buffers: Vec<Buffer>,
    region: u64,
    compaction: Compaction,
}

/// Replays a trace up to an event and compacts the buffers that are live then, in the pool's one region.
pub(crate) fn defragment<'a>(
    trace: &'a Trace,
    options: bfc::Options,
    wish: &Wish,
) -> Result<Defragmentation<'a>, Failure> {
    let n = trace.events().len();
    if wish.event >= n {
        return Err(Failure::Usage(format!("there is no event {}: the trace has {n}, from 0", wish.event)));
    }
    let mut pool = Bfc::new(options);
    let prefix = trace.prefix(wish.event + 1);
    let outcomes = replay(&mut pool, &prefix, None).outcomes;
    let regions: Vec<(u64, u64)> = pool.regions().collect();
    let &[(0, region)] = regions.as_slice() else {
        let message = "only a pool of one region can be defragmented: drop --growth, and choose an event after the first request";
        return Err(Failure::Usage(message.to_string()));
    };
    let mut live: BTreeMap<u64, AllocationIndex> = BTreeMap::new();
    for timed in prefix.events() {
        match timed.event {
            Event::Allocate(index) | Event::Free(index) => {
                let Outcome::Served { address, .. } = outcomes[index.0] else { continue };
                match timed.event {
                    Event::Allocate(_) => live.insert(address, index),
                    _ => live.remove(&address),
                };
            }
            Event::Synchronize => {}
        }
    }
    let used = pool.chunks().filter(|(_, chunk)| chunk.requested.is_some());
    let buffers: Vec<Buffer> =
        used.map(|(address, chunk)| Buffer { id: live[&address].0, address, size: chunk.size }).collect();
    let strictest = live.values().map(|&index| trace[index].request.alignment).max();
    let granule = Alignment::new(GRANULE).expect("256 is a power of two");
    let moving = Options {
        alignment: strictest.map_or(granule, |alignment| alignment.max(granule)),
        allow_overlap: wish.allow_overlap,
    };
    let compaction = match wish.hole {
        None => compact(&buffers, region, &moving),
        Some(hole) => make_hole(&buffers, region, hole.0, &moving),
    };
    let compaction = compaction.map_err(|error| Failure::DoesNotFit(error.to_string()))?;
    Ok(Defragmentation { trace, event: wish.event, buffers, region, compaction })
}

impl Defragmentation<'_> {
    pub(crate) fn text(&self) -> String {
        let Compaction { moves, hole, lower_bound, slide_all } = &self.compaction;
        let live = Bytes(self.buffers.iter().map(|buffer| buffer.size).sum());
        let mut text = format!(
            "\nafter event {}, {} buffers of {live} are live in {}\n{} moved in {} moves leave a hole of {} at {}\nsliding \
             everything down would move {slide_all}; no way moves less than {lower_bound}\n",
            self.event,
            self.buffers.len(),
            Bytes(self.region),
            self.compaction.bytes_moved(),
            moves.len(),
            Bytes(hole.1),
            hole.0,
        );
        if moves.is_empty() {
            return text;
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(["buffer", "size", "from", "to", "in pieces of"]);
        for m in moves.iter().take(MAX_MOVES) {
            let name = self.trace[AllocationIndex(m.id)].name.to_string();
            let piece = if m.piece < m.bytes { Bytes(m.piece).to_string() } else { String::new() };
            table.add_row([name, Bytes(m.bytes).to_string(), m.from.to_string(), m.to.to_string(), piece]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        text.push_str(&format!("\n{}\n", table.trim_fmt()));
        if moves.len() > MAX_MOVES {
            text.push_str(&format!("and {} more\n", moves.len() - MAX_MOVES));
        }
        text
    }

    pub(crate) fn document(&self) -> Document<'_> {
        let moves = self.compaction.moves.iter().map(|m| Moved {
            from: m.from,
            id: &self.trace[AllocationIndex(m.id)].name,
            piece: m.piece,
            size: m.bytes,
            to: m.to,
        });
        Document {
            bytes_moved: self.compaction.bytes_moved(),
            event: self.event,
            hole: Hole { offset: self.compaction.hole.0, size: self.compaction.hole.1 },
            lower_bound: self.compaction.lower_bound,
            moves: moves.collect(),
            slide_all: self.compaction.slide_all,
        }
    }
}

/// What `--format json` writes of it. Sizes are in bytes.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Document<'a> {
    bytes_moved: Bytes,
    /// After which event of the trace.
    event: usize,
    /// The free bytes that there are then in one piece.
    hole: Hole,
    /// No way to make that hole moves fewer bytes.
    lower_bound: Bytes,
    /// In order.
    moves: Vec<Moved<'a>>,
    /// Bytes that sliding everything down would move.
    slide_all: Bytes,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Hole {
    offset: u64,
    size: u64,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Moved<'a> {
    from: u64,
    id: &'a str,
    /// Bytes to copy at once, so that no copy overwrites its source.
    piece: u64,
    size: u64,
    to: u64,
}
