//! A simulator of the best-fit-with-coalescing allocator of GPU runtimes.
//!
//! A pool consists of regions, a region of adjacent chunks, each free or in use. Free chunks are in 21 bins of doubling
//! sizes, 256 bytes in the first, 256 MiB and more in the last; a request takes the smallest chunk that fits, and
//! returns the rest if it is large enough. A freed chunk merges with its free neighbors at once, or, if frees have
//! times, when the device has reached that time.
//!
//! A pool with two ends separates collective memory from everything else, without a fixed border:
//!
//! ```text
//! 0                                                            limit
//! | lower | hole | lower |          gap          | upper | hole | upper |
//! ```
//!
//! Each end reuses only its own holes, then allocates from the gap, so its offsets depend only on its own requests
//! until the gap is used up. Chunks freed beside the gap rejoin it, with the holes behind them.
//!
//! The rules are those of XLA's `BFCAllocator` (`xla/tsl/framework/bfc_allocator.h`), which follows Doug Lea's malloc.
//! Waiting for other threads to free is part of [`replay`](crate::replay), since a pool alone has no time.

mod chunks;
mod dump;
mod regions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use memplan_memory::{Alignment, Bytes};

use crate::{Allocator, GRANULE, Request, Sample};
use chunks::Tag;
pub use dump::BinUsage;

/// How many bins free chunks are filed in.
pub const BINS: usize = 21;

/// The first region of a pool that grows, and the alignment of regions.
const FIRST_REGION: u64 = 2 << 20;

/// A rest of this many bytes is given back however large the request was, unless the options say otherwise.
const LARGEST_WASTE: u64 = 128 << 20;

/// How a pool behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Bytes that all regions together may have.
    pub limit: Bytes,
    /// Bytes the device can give to regions; less than `limit` when others use it too.
    pub device: Bytes,
    /// Whether and how the pool takes more than it has.
    pub growth: Growth,
    /// Whether regions without any chunk in use are given back before a request fails.
    pub release_regions: bool,
    /// A rest of this share of the limit is given back however large the request was; 0: of 128 MiB.
    pub fragmentation_fraction: f64,
    /// Whether the two kinds of requests fill the pool from its two ends. Such a pool does not double.
    pub two_ended: bool,
    /// Whether frees have times: a freed chunk stays apart until [`Bfc::set_safe_frontier`] passes its time.
    pub timestamps: bool,
}

/// Whether and how a pool takes more than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// One region of the whole limit, taken by the first request.
    Never,
    /// A region of 2 MiB, and each following one twice as large.
    Doubling,
    /// A first region, extended at its upper end: XLA's experimental growth of pools with two ends. Only the upper end
    /// requests more, and owns the appended memory.
    Append(Append),
}

/// Settings of [`Growth::Append`]; the default is XLA's, for a first region of nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Bytes of the first region.
    pub first: Bytes,
    /// Appended memory is a multiple of this, as far as the limit allows.
    pub increment: Bytes,
    /// Bytes of the device that are left to others.
    pub headroom: Bytes,
    /// Bytes of the first region that the upper end leaves to the lower one.
    pub collective_reserve: Bytes,
}

impl Default for Append {
    fn default() -> Append {
        Append {
            first: Bytes::ZERO,
            increment: Bytes(64 << 20),
            headroom: Bytes(1 << 30),
            collective_reserve: Bytes::ZERO,
        }
    }
}

impl Options {
    /// One region of the whole limit, with one end.
    pub fn preallocated(limit: Bytes) -> Options {
        Options {
            limit,
            device: limit,
            growth: Growth::Never,
            release_regions: false,
            fragmentation_fraction: 0.0,
            two_ended: false,
            timestamps: false,
        }
    }

    /// Regions as they are needed.
    pub fn growing(limit: Bytes) -> Options {
        Options { growth: Growth::Doubling, ..Options::preallocated(limit) }
    }

    /// One region, filled from both ends.
    pub fn two_ended(limit: Bytes) -> Options {
        Options { two_ended: true, ..Options::preallocated(limit) }
    }
}

/// A piece of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes, a multiple of [`GRANULE`].
    pub size: u64,
    /// Requested bytes; `None` if the chunk is free.
    pub requested: Option<u64>,
    /// When it was freed, while that matters; 0: long ago.
    pub freed_at: u64,
    tag: Tag,
}

/// A pool of memory.
#[derive(Clone, Debug)]
pub struct Bfc {
    options: Options,
    /// Bytes by first address. Regions never merge, and the addresses between them belong to nobody.
    regions: BTreeMap<u64, u64>,
    /// By first address. The chunks of a region cover it, and no two free ones are adjacent, unless frees have times:
    /// then, as in the original, a chunk merges once with its mergeable neighbors, which may leave more.
    chunks: BTreeMap<u64, Chunk>,
    /// The free chunks without the gap, in the order in which they are tried.
    bins: [BTreeSet<chunks::Key>; BINS],
    /// The beginning of the gap between the two ends, if there is one.
    gap: Option<u64>,
    /// The size of the next region, when the pool doubles.
    next_region: u64,
    next_address: u64,
    /// Frees so far, which are the times of frees.
    clock: u64,
    /// Frees before this time have been reached by the device.
    safe_frontier: u64,
    /// Freed chunks that may not be merged yet, in order of their frees.
    pending: VecDeque<u64>,
    reserved: u64,
    in_use: u64,
    requested: u64,
}

/// A request as the pool looks for it.
#[derive(Clone, Copy)]
struct Fit {
    /// Rounded up to [`GRANULE`].
    size: u64,
    alignment: Alignment,
    requested: u64,
    tag: Tag,
    freed_before: u64,
}

impl Bfc {
    /// A pool in which nothing is allocated. It takes its first region with the first request.
    pub fn new(options: Options) -> Bfc {
        let first = match options.growth {
            Growth::Never => options.limit.0,
            Growth::Doubling => options.limit.0.min(FIRST_REGION),
            Growth::Append(append) => append.first.0.min(options.limit.0),
        };
        Bfc {
            options,
            regions: BTreeMap::new(),
            chunks: BTreeMap::new(),
            bins: Default::default(),
            gap: None,
            next_region: rounded(first).unwrap_or(u64::MAX - (GRANULE - 1)).max(GRANULE),
            next_address: 0,
            clock: 0,
            safe_frontier: 0,
            pending: VecDeque::new(),
            reserved: 0,
            in_use: 0,
            requested: 0,
        }
    }

    /// Serves a request and returns its address; `None` when it does not fit, or asks for nothing.
    ///
    /// Takes time logarithmic in the number of chunks, times the free chunks that are of the other end, freed too late
    /// or misaligned for the request.
    pub fn allocate(&mut self, request: Request) -> Option<u64> {
        if request.bytes == Bytes::ZERO {
            return None;
        }
        let fit = Fit {
            size: rounded(request.bytes.0)?,
            alignment: request.alignment.max(Alignment::new(GRANULE).expect("256 is a power of two")),
            requested: request.bytes.0,
            tag: if self.options.two_ended { Tag::of(request.end) } else { Tag::Lower },
            freed_before: request.freed_before,
        };
        self.merge_safe();
        // A miss is answered step by step, each more desperate than the one before.
        let steps: [fn(&mut Bfc, &Fit) -> bool; 4] = [
            |_, _| true,
            Bfc::extend,
            |pool, fit| fit.freed_before == 0 && pool.merge_unsafe(fit.size),
            |pool, fit| pool.release_regions(fit.size) && pool.extend(fit),
        ];
        steps.into_iter().find_map(|step| if step(self, &fit) { self.take(&fit) } else { None })
    }

    /// Frees the allocation at an address. Returns whether there was one.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(Chunk { size, requested: Some(requested), .. }) = self.chunks.get(&address).copied() else {
            return false;
        };
        self.in_use -= size;
        self.requested -= requested;
        self.clock += 1;
        self.release(address);
        true
    }

    /// Says how far the device has come: frees before the given one, counted from 1, may be merged and reused by all.
    /// Never goes back.
    pub fn set_safe_frontier(&mut self, frees: u64) {
        self.safe_frontier = self.safe_frontier.max(frees);
    }

    /// How many frees there were.
    pub fn frees(&self) -> u64 {
        self.clock
    }

    /// All chunks by address.
    pub fn chunks(&self) -> impl Iterator<Item = (u64, Chunk)> + '_ {
        self.chunks.iter().map(|(&address, &chunk)| (address, chunk))
    }

    /// All regions: first address and bytes.
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.regions.iter().map(|(&address, &bytes)| (address, bytes))
    }

    /// The free chunks of a bin, size and address, in the order in which they are tried.
    ///
    /// # Panics
    /// When there is no such bin.
    pub fn bin(&self, bin: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.bins[bin].iter().map(|key| (key.size(), key.address()))
    }

    /// The gap between the two ends: where it begins and ends.
    pub fn gap(&self) -> Option<(u64, u64)> {
        self.gap.map(|address| (address, address + self.chunks[&address].size))
    }
}

impl Allocator for Bfc {
    fn allocate(&mut self, request: Request) -> Option<u64> {
        Bfc::allocate(self, request)
    }

    fn free(&mut self, address: u64) {
        Bfc::free(self, address);
    }

    fn synchronize(&mut self) {
        self.set_safe_frontier(self.clock + 1);
    }

    fn sample(&self) -> Sample {
        let binned = self.bins.iter().rev().find_map(|bin| bin.last()).map_or(0, chunks::Key::size);
        let gap = self.gap().map_or(0, |(start, end)| end - start);
        Sample {
            reserved: Bytes(self.reserved),
            in_use: Bytes(self.in_use),
            requested: Bytes(self.requested),
            largest_free: Bytes(binned.max(gap)),
        }
    }
}

/// The bin of a chunk or request of a number of bytes.
pub fn bin(size: u64) -> usize {
    ((size.max(GRANULE) / GRANULE).ilog2() as usize).min(BINS - 1)
}

/// The next multiple of [`GRANULE`]; `None` beyond `u64`.
fn rounded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(GRANULE)
}
