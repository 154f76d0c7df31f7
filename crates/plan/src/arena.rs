//! An arena: the items to pack, and their offsets.

use memplan_pack::{Item, Packing, Problem};
use memplan_program::{LiveRange, Time};
use memplan_units::{Alignment, Bytes, Machine, MemorySpaceId, SpaceTotals};

use crate::{Load, PlaceError, StorageId, Storages};

/// The items to pack into one arena.
pub(crate) struct Arena {
    pub(crate) space: MemorySpaceId,
    pub(crate) alignment: Alignment,
    pub(crate) temps: Vec<StorageId>,
    /// The first item of each temp.
    first_items: Vec<usize>,
    /// When operations need working memory, and how much. Ascending.
    scratch: Vec<(LiveRange, Bytes)>,
    spans: Vec<Span>,
    /// The first item of the spans.
    first_scratch: usize,
    pub(crate) problem: Problem,
    /// Live bytes at every instant, scratch included.
    pub(crate) load: Load,
}

impl Arena {
    pub(crate) fn new(
        storages: &Storages,
        space: MemorySpaceId,
        alignment: Alignment,
        temps: Vec<StorageId>,
        scratch: Vec<(LiveRange, Bytes)>,
    ) -> Arena {
        let mut problem = Problem::new();
        let mut load = Load::new(storages.end);
        let mut first_items = Vec::with_capacity(temps.len());
        let mut strictest = alignment;
        let occupied: Vec<_> = temps.iter().map(|&id| storages.occupancy(id)).collect();
        let ranges = occupied.iter().flatten().chain(&scratch).map(|&(range, _)| range);
        let events = events(ranges, storages.end);
        let live = |range: LiveRange| events[range.start as usize]..events[range.end as usize];
        for (&id, occupied) in temps.iter().zip(occupied) {
            let storage = &storages.all[id];
            let aligned = alignment.max(storage.alignment);
            strictest = strictest.max(aligned);
            let first = problem.items.len();
            for (range, size) in occupied {
                load.add(range, size);
                problem.push(Item::new(size.0, live(range)).aligned(aligned.bytes()));
            }
            if problem.items.len() - first > 1 {
                problem.colocate(first..problem.items.len());
            }
            debug_assert!(problem.items.len() > first || storage.busy.is_empty());
            first_items.push(first);
        }
        let first_scratch = problem.items.len();
        let spans = spans(&scratch, &load);
        for span in &spans {
            problem.push(Item::new(span.size.0, live(span.range)).aligned(alignment.bytes()));
        }
        scratch.iter().for_each(|&(range, size)| load.add(range, size));
        Arena {
            space,
            alignment: strictest,
            temps,
            first_items,
            scratch,
            spans,
            first_scratch,
            problem,
            load,
        }
    }

    /// An offset for everything.
    pub(crate) fn pack(&mut self, options: &memplan_pack::Options) -> Result<Packing, PlaceError> {
        let packing = match self.space {
            MemorySpaceId::MAIN => memplan_pack::pack(&self.problem, options),
            // A compiler's best fit is for main memory; near the cores XLA has another placement, which fits everything.
            _ => self.pack_above_scratch(&memplan_pack::Options { only_best_fit: None, ..options.clone() }),
        };
        packing.map_err(|_| PlaceError::TooLarge { space: self.space })
    }

    /// Packs with scratch below all values, where the kernels of libtpu have theirs, or anywhere, when that is lower and
    /// the problem's capacity asks for it.
    fn pack_above_scratch(
        &mut self,
        options: &memplan_pack::Options,
    ) -> Result<Packing, memplan_pack::Error> {
        let (first, load) = (self.first_scratch, self.load.peak().1);
        let problem = &mut self.problem;
        // An asynchronous operation cannot share working memory with operations that run meanwhile.
        if !self.spans.is_sorted_by(|a, b| a.range.end <= b.range.start) {
            return memplan_pack::pack(problem, options);
        }
        problem.items[first..].iter_mut().for_each(|item| item.fixed = Some(0));
        let mut below = memplan_pack::pack(problem, options)?;
        if first == problem.items.len() || below.height <= problem.capacity.unwrap_or(load.0) {
            return Ok(below);
        }
        problem.items[first..].iter_mut().for_each(|item| item.fixed = None);
        let anywhere = memplan_pack::pack(problem, options)?;
        if anywhere.height < below.height {
            return Ok(anywhere);
        }
        below.certificate.optimal = below.height == anywhere.certificate.lower_bound;
        Ok(below)
    }

    /// The offset of each temp.
    pub(crate) fn temp_offsets(&self, packing: &Packing) -> impl Iterator<Item = (StorageId, Bytes)> {
        let temps = self.temps.iter().zip(&self.first_items);
        temps.filter_map(|(&id, &first)| Some((id, Bytes(*packing.offsets.get(first)?))))
    }

    /// When operations have working memory, where, and how much.
    pub(crate) fn scratch_offsets(&self, packing: &Packing) -> impl Iterator<Item = (Time, Bytes, Bytes)> {
        let offsets = self.spans.iter().zip(&packing.offsets[self.first_scratch..]);
        let offsets = offsets.flat_map(|(span, &offset)| std::iter::repeat_n(Bytes(offset), span.kernels));
        self.scratch.iter().zip(offsets).map(|(&(range, size), offset)| (range.start, offset, size))
    }

    /// The figures of its memory space before the sums are known.
    pub(crate) fn totals(&self, packing: &Packing, machine: &dyn Machine) -> SpaceTotals {
        let memory = machine.memory(self.space);
        let temp = Bytes(packing.height);
        let temp_lower_bound = self.load.peak().1;
        SpaceTotals {
            space: self.space,
            name: memory.map_or_else(|| self.space.to_string(), |memory| memory.name.into()),
            capacity: memory.and_then(|memory| memory.capacity),
            available: memory.filter(|memory| !memory.is_divided).and_then(|memory| memory.usable),
            excess: Bytes::ZERO,
            read_only: memory.is_some_and(|memory| memory.is_read_only),
            arguments: Bytes::ZERO,
            outputs: Bytes::ZERO,
            constants: Bytes::ZERO,
            total: Bytes::ZERO,
            temp,
            temp_lower_bound,
            // With kernels put together, only the load says that nothing is lower.
            proved_minimal: temp == temp_lower_bound
                || packing.certificate.optimal && self.spans.len() == self.scratch.len(),
        }
    }
}

/// How often memory is taken or given back before each instant: the time by which XLA's heap simulator sees how long a value
/// is live. Linear in ranges.
fn events(ranges: impl Iterator<Item = LiveRange>, end: Time) -> Vec<u64> {
    let mut events = vec![0; end as usize + 1];
    for range in ranges {
        events[range.start as usize + 1] += 1;
        events[range.end as usize] += 1;
    }
    for instant in 1..events.len() {
        events[instant] += events[instant - 1];
    }
    events
}

/// Operations one after the other that use the same bytes as scratch.
struct Span {
    range: LiveRange,
    size: Bytes,
    kernels: usize,
}

/// Puts operations together that follow each other and need as much, as long as no more is live between them than while
/// they run. Linear in instants.
fn spans(scratch: &[(LiveRange, Bytes)], values: &Load) -> Vec<Span> {
    let live: Vec<Bytes> = values.curve().collect();
    let mut spans: Vec<Span> = Vec::new();
    for &(range, size) in scratch {
        let most = |last: &Span| live[last.range.end as usize - 1].max(live[range.start as usize]);
        let follows = |last: &Span| {
            last.size == size
                && last.range.end <= range.start
                && live[last.range.end as usize..range.start as usize].iter().all(|&l| l <= most(last))
        };
        match spans.last_mut() {
            Some(last) if follows(last) => {
                last.range.end = range.end;
                last.kernels += 1;
            }
            _ => spans.push(Span { range, size, kernels: 1 }),
        }
    }
    spans
}
