//! The interface of allocators.

use memplan_memory::{Alignment, Bytes};

/// Sizes are multiples of this, and so are addresses.
pub const GRANULE: u64 = 256;

/// Something that serves requests.
pub trait Allocator {
    /// Serves a request and returns its address; `None` when it does not fit, or asks for nothing.
    fn allocate(&mut self, request: Request) -> Option<u64>;

    /// Frees the allocation at an address.
    fn free(&mut self, address: u64);

    /// The device has come as far as the host.
    fn synchronize(&mut self) {}

    /// The figures of this moment.
    fn sample(&self) -> Sample;
}

/// An allocator at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes that it holds.
    pub reserved: Bytes,
    /// Bytes of chunks in use.
    pub in_use: Bytes,
    /// The requested bytes of allocations in use.
    pub requested: Bytes,
    /// The largest free piece.
    pub largest_free: Bytes,
}

impl Sample {
    /// Bytes held and not in use.
    pub fn free(&self) -> Bytes {
        self.reserved.saturating_sub(self.in_use)
    }

    /// The share of the free bytes that is not in the largest free piece, from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        let free = self.free();
        if free == Bytes::ZERO { 0.0 } else { (free - self.largest_free).0 as f64 / free.0 as f64 }
    }
}

/// An end of a pool that has two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Grows up: collective memory. It splits holes exactly, and takes the lowest of holes of one size.
    Lower,
    /// Grows down: everything else. Holes are split when the rest is worth it, as in a pool with one end, and of holes
    /// of one size it takes the highest.
    #[default]
    Upper,
}

/// A request to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes.
    pub bytes: Bytes,
    /// Of the address; at least [`GRANULE`] is given.
    pub alignment: Alignment,
    /// Its end of a pool with two ends.
    pub end: End,
    /// Only memory that was freed at this time or before, or is safe; 0: any.
    pub freed_before: u64,
}

impl Request {
    /// Bytes at the upper end, aligned to [`GRANULE`].
    pub fn new(bytes: Bytes) -> Request {
        Request { bytes, alignment: Alignment::ONE, end: End::Upper, freed_before: 0 }
    }

    /// The same with an alignment.
    #[must_use]
    pub fn aligned(self, alignment: Alignment) -> Request {
        Request { alignment, ..self }
    }

    /// The same at an end.
    #[must_use]
    pub fn at(self, end: End) -> Request {
        Request { end, ..self }
    }
}
