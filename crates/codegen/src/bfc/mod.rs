//! The best-fit-with-coalescing allocator that GPU runtimes use, as a simulator.
//!
//! A pool consists of regions, a region of chunks that follow each other without a gap, each free or in use. Free
//! chunks are filed by size into 21 bins of doubling sizes, 256 bytes in the first, 256 MiB and more in the last; a
//! request takes the smallest chunk that fits, and gives back the rest when that is large enough to be worth it. A
//! freed chunk merges with its free neighbors at once.
//!
//! The rules are those of XLA's `BFCAllocator`, itself after Doug Lea's malloc. Not simulated: timestamped frees, which
//! depend on how far the device has come, and waiting for other threads to free.

mod trace;
mod two_ended;

use std::collections::{BTreeMap, BTreeSet};

use memplan_memory::{Alignment, Bytes};

pub use trace::{Allocator, Event, Replay, ReplayError, Sample, replay};
pub use two_ended::{End, TwoEnded};

/// Sizes are multiples of this, and so are addresses.
pub const GRANULE: u64 = 256;

/// How many bins free chunks are filed in.
pub const BINS: usize = 21;

/// The first region of a pool that grows.
const FIRST_REGION: u64 = 2 << 20;

/// A rest of this many bytes is given back however large the request was.
const LARGEST_WASTE: u64 = 128 << 20;

/// How a pool behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes that all regions together may have.
    pub limit: Bytes,
    /// Whether regions are added as they are needed, instead of one of the whole limit at once.
    pub growth: bool,
    /// Whether regions without any chunk in use are given back before a request fails.
    pub release_regions: bool,
    /// Bytes the device can give to regions; less than `limit` when others use it too.
    pub device: Bytes,
}

impl Options {
    /// One region, taken at the start.
    pub fn preallocated(limit: Bytes) -> Options {
        Options { limit, growth: false, release_regions: false, device: limit }
    }

    /// Regions as they are needed.
    pub fn growing(limit: Bytes) -> Options {
        Options { growth: true, ..Options::preallocated(limit) }
    }
}

/// A piece of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes, a multiple of [`GRANULE`].
    pub size: u64,
    /// Bytes that were asked for; `None` when the chunk is free.
    pub requested: Option<u64>,
}

/// A pool of memory.
#[derive(Clone, Debug)]
pub struct Bfc {
    options: Options,
    /// Bytes by first address. Regions never merge, and the addresses between them belong to nobody.
    regions: BTreeMap<u64, u64>,
    /// By first address. Those of a region cover it, and no two free ones are neighbors within it.
    chunks: BTreeMap<u64, Chunk>,
    /// The free chunks, by size and then address.
    bins: [BTreeSet<(u64, u64)>; BINS],
    /// The size of the next region.
    next_region: u64,
    next_address: u64,
    reserved: u64,
    in_use: u64,
    requested: u64,
    backpedaled: bool,
}

impl Bfc {
    /// A pool in which nothing is allocated.
    pub fn new(options: Options) -> Bfc {
        let first = if options.growth { options.limit.0.min(FIRST_REGION) } else { options.limit.0 };
        Bfc {
            options,
            regions: BTreeMap::new(),
            chunks: BTreeMap::new(),
            bins: Default::default(),
            next_region: rounded(first).unwrap_or(u64::MAX - (GRANULE - 1)).max(GRANULE),
            next_address: 0,
            reserved: 0,
            in_use: 0,
            requested: 0,
            backpedaled: false,
        }
    }

    /// Serves a request and returns its address; `None` when it does not fit.
    ///
    /// Takes time logarithmic in the number of chunks, times the free chunks that are misaligned for the request.
    pub fn allocate(&mut self, bytes: Bytes, alignment: Alignment) -> Option<u64> {
        let size = rounded(bytes.0.max(1))?;
        let alignment = alignment.max(Alignment::new(GRANULE).expect("256 is a power of two"));
        // Regions begin at multiples of 2 MiB; a stricter alignment may miss even in a new one.
        let address = self.find(size, alignment).or_else(|| {
            let grown = self.extend(size) || (self.release_regions(size) && self.extend(size));
            if grown { self.find(size, alignment) } else { None }
        })?;
        self.occupy(address, size, alignment, bytes.0)
    }

    /// Frees what was allocated at an address. Returns whether there was anything.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(Chunk { size, requested: Some(requested) }) = self.chunks.get(&address).copied() else {
            return false;
        };
        self.in_use -= size;
        self.requested -= requested;
        let (mut start, mut end) = (address, address + size);
        if let Some(next) = self.chunks.get(&end).copied()
            && next.requested.is_none()
            && !self.regions.contains_key(&end)
        {
            self.remove_free(end, next.size);
            end += next.size;
        }
        if !self.regions.contains_key(&address)
            && let Some((&before, &previous)) = self.chunks.range(..address).next_back()
            && previous.requested.is_none()
        {
            self.remove_free(before, previous.size);
            start = before;
        }
        self.chunks.remove(&address);
        self.insert_free(start, end - start);
        true
    }

    /// The first free chunk that fits, from the bin of the size on upward, in each by size and address.
    fn find(&self, size: u64, alignment: Alignment) -> Option<u64> {
        let fits = |&&(chunk, address): &&(u64, u64)| {
            prefix(address, alignment).checked_add(size).is_some_and(|needed| needed <= chunk)
        };
        self.bins[bin(size)..]
            .iter()
            .find_map(|bin| bin.range((size, 0)..).find(fits))
            .map(|&(_, address)| address)
    }

    /// Takes a free chunk for a request, without what lies before the aligned address and what is not needed.
    fn occupy(&mut self, address: u64, size: u64, alignment: Alignment, requested: u64) -> Option<u64> {
        let mut chunk = self.chunks.get(&address)?.size;
        self.remove_free(address, chunk);
        let before = prefix(address, alignment);
        if before > 0 {
            self.insert_free(address, before);
            chunk -= before;
        }
        let start = address + before;
        if worth_splitting(chunk, size) {
            self.insert_free(start + size, chunk - size);
            chunk = size;
        }
        self.chunks.insert(start, Chunk { size: chunk, requested: Some(requested) });
        self.in_use += chunk;
        self.requested += requested;
        Some(start)
    }

    /// Adds a region that a request fits into, if the limit and the device allow it.
    fn extend(&mut self, size: u64) -> bool {
        let available = self.options.limit.0.saturating_sub(self.reserved) / GRANULE * GRANULE;
        let device = self.options.device.0.saturating_sub(self.reserved);
        if size > available {
            return false;
        }
        let mut doubled = false;
        while self.next_region < size {
            self.next_region = self.next_region.saturating_mul(2);
            doubled = true;
        }
        let mut bytes = self.next_region.min(available);
        // A device that refuses is asked for a tenth less, again and again, but only once in the life of a pool.
        if bytes > device && !self.backpedaled {
            self.backpedaled = true;
            while bytes > device && bytes >= size {
                let less = (bytes as f64 * 0.9) as u64;
                bytes =
                    rounded(less).filter(|&rounded| rounded < bytes).unwrap_or(bytes.saturating_sub(GRANULE));
            }
        }
        if bytes > device || bytes < size {
            return false;
        }
        if !doubled {
            self.next_region = self.next_region.saturating_mul(2);
        }
        let Some(end) = self.next_address.checked_add(bytes) else { return false };
        self.regions.insert(self.next_address, bytes);
        self.insert_free(self.next_address, bytes);
        self.next_address = end.checked_next_multiple_of(FIRST_REGION).unwrap_or(end);
        self.reserved += bytes;
        true
    }

    /// Gives back all regions that are entirely free, if the request could fit then.
    fn release_regions(&mut self, size: u64) -> bool {
        if !self.options.release_regions {
            return false;
        }
        let is_free = |(&start, &bytes): (&u64, &u64)| {
            let chunk = self.chunks.get(&start)?;
            (chunk.requested.is_none() && chunk.size == bytes).then_some((start, bytes))
        };
        let free: Vec<(u64, u64)> = self.regions.iter().filter_map(is_free).collect();
        let free_bytes: u64 = free.iter().map(|&(_, bytes)| bytes).sum();
        if free.is_empty()
            || size > self.options.limit.0.saturating_sub(self.reserved).saturating_add(free_bytes)
        {
            return false;
        }
        for (start, bytes) in free {
            self.remove_free(start, bytes);
            self.regions.remove(&start);
            self.reserved -= bytes;
        }
        true
    }

    fn insert_free(&mut self, address: u64, size: u64) {
        self.chunks.insert(address, Chunk { size, requested: None });
        self.bins[bin(size)].insert((size, address));
    }

    fn remove_free(&mut self, address: u64, size: u64) {
        self.chunks.remove(&address);
        let was_there = self.bins[bin(size)].remove(&(size, address));
        assert!(was_there, "every free chunk is in the bin of its size");
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
        self.bins[bin].iter().copied()
    }

    /// What the pool looks like from its start to its end: a strip of 100 characters, `_` free, `*` asked for and in
    /// use, `x` in use but only because of rounding. Each shows what most of its bytes are.
    pub fn strip(&self) -> String {
        let mut shares = [[0u64; 3]; 100];
        let mut position = 0u64;
        for chunk in self.chunks.values() {
            let asked = chunk.requested.map_or(0, |requested| requested.min(chunk.size));
            let parts = match chunk.requested {
                None => [chunk.size, 0, 0],
                Some(_) => [0, asked, chunk.size - asked],
            };
            for (kind, bytes) in parts.into_iter().enumerate().filter(|&(_, bytes)| bytes > 0) {
                let (from, to) = (position, position + bytes);
                let cell = |at: u64| (u128::from(at) * 100 / u128::from(self.reserved)) as usize;
                let cell_start =
                    |cell: usize| (cell as u128 * u128::from(self.reserved)).div_ceil(100) as u64;
                for (i, share) in shares.iter_mut().enumerate().take(cell(to - 1) + 1).skip(cell(from)) {
                    share[kind] += to.min(cell_start(i + 1)).saturating_sub(from.max(cell_start(i)));
                }
                position = to;
            }
        }
        let most = |share: &[u64; 3]| match *share {
            [free, used, padding] if free >= used && free >= padding => '_',
            [_, used, padding] if used >= padding => '*',
            _ => 'x',
        };
        shares.iter().map(most).collect()
    }
}

impl Allocator for Bfc {
    fn allocate(&mut self, bytes: Bytes, alignment: Alignment) -> Option<u64> {
        Bfc::allocate(self, bytes, alignment)
    }

    fn free(&mut self, address: u64) {
        Bfc::free(self, address);
    }

    fn sample(&self) -> Sample {
        let largest = self.bins.iter().rev().find_map(|bin| bin.last()).map_or(0, |&(size, _)| size);
        Sample {
            reserved: Bytes(self.reserved),
            in_use: Bytes(self.in_use),
            requested: Bytes(self.requested),
            largest_free: Bytes(largest),
        }
    }
}

/// The bin of a chunk or request of a number of bytes.
pub fn bin(size: u64) -> usize {
    ((size.max(GRANULE) / GRANULE).ilog2() as usize).min(BINS - 1)
}

/// Whether the rest of a chunk is given back after a request took its part.
fn worth_splitting(chunk: u64, size: u64) -> bool {
    chunk / 2 >= size || chunk - size >= LARGEST_WASTE
}

/// The next multiple of [`GRANULE`]; `None` beyond `u64`.
fn rounded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(GRANULE)
}

/// Bytes from an address to the next aligned one.
fn prefix(address: u64, alignment: Alignment) -> u64 {
    address.wrapping_neg() & (alignment.bytes() - 1)
}
