//! Replaying allocations and frees.

use std::collections::BTreeMap;

use memplan_memory::{Alignment, Bytes};

/// One step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request.
    Allocate {
        /// By which it is freed.
        id: u64,
        /// Bytes asked for.
        bytes: Bytes,
        /// Alignment asked for.
        alignment: Alignment,
    },
    /// The end of what was requested.
    Free {
        /// Of the request.
        id: u64,
    },
}

/// A pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes that the pool holds.
    pub reserved: Bytes,
    /// Bytes of chunks in use.
    pub in_use: Bytes,
    /// Bytes that were asked for, of those in use.
    pub requested: Bytes,
    /// The largest free piece.
    pub largest_free: Bytes,
}

impl Sample {
    /// The share of the free bytes that is not in the largest free piece, from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        let free = self.reserved.saturating_sub(self.in_use);
        if free == Bytes::ZERO { 0.0 } else { (free - self.largest_free).0 as f64 / free.0 as f64 }
    }
}

/// Something that serves requests.
pub trait Allocator {
    /// Serves a request and returns its address; `None` when it does not fit.
    fn allocate(&mut self, bytes: Bytes, alignment: Alignment) -> Option<u64>;

    /// Frees what was allocated at an address.
    fn free(&mut self, address: u64);

    /// The figures of this moment.
    fn sample(&self) -> Sample;
}

/// What became of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// The addresses of the requests, in order; `None` where one did not fit.
    pub addresses: Vec<Option<u64>>,
    /// The pool after each event.
    pub samples: Vec<Sample>,
}

/// A trace that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The id of a request is that of another one that lives.
    #[error("event {event} allocates {id}, which is not free")]
    Allocated {
        /// Its number, from 0.
        event: usize,
        /// The id.
        id: u64,
    },
    /// A free without a request.
    #[error("event {event} frees {id}, which is not allocated")]
    NotAllocated {
        /// Its number, from 0.
        event: usize,
        /// The id.
        id: u64,
    },
}

/// Replays a trace. The free of a request that did not fit does nothing.
///
/// # Errors
/// An id is allocated twice, or freed without being allocated.
pub fn replay(allocator: &mut impl Allocator, events: &[Event]) -> Result<Replay, ReplayError> {
    let mut result = Replay::default();
    let mut live: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    for (event, step) in events.iter().enumerate() {
        match *step {
            Event::Allocate { id, .. } if live.contains_key(&id) => {
                return Err(ReplayError::Allocated { event, id });
            }
            Event::Allocate { id, bytes, alignment } => {
                let address = allocator.allocate(bytes, alignment);
                live.insert(id, address);
                result.addresses.push(address);
            }
            Event::Free { id } => match live.remove(&id) {
                None => return Err(ReplayError::NotAllocated { event, id }),
                Some(None) => {}
                Some(Some(address)) => allocator.free(address),
            },
        }
        result.samples.push(allocator.sample());
    }
    Ok(result)
}
