//! Replays traces: serves a sequence of requests and frees by an allocator. The same trace gives the same numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use memplan_memory::Bytes;

use crate::bfc::{self, Bfc};
use crate::trace::{AllocationIndex, Event, Trace};
use crate::{Allocator, GRANULE, Request, Sample};

/// How long XLA lets a request wait for others to free before it fails.
pub const RETRY_TIME: Duration = Duration::from_secs(10);

/// The outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was served, by the event that asked for it or, if it had to wait, by a later one.
    Served {
        /// Its address.
        address: u64,
        /// The event.
        event: usize,
    },
    /// It asked for nothing.
    Empty,
    /// It did not fit.
    Failed,
}

/// The outcome of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The outcome of each request, in the order of the trace.
    pub outcomes: Vec<Outcome>,
    /// The allocator after each event.
    pub samples: Vec<Sample>,
}

impl Replay {
    /// How many requests did not fit.
    pub fn failures(&self) -> usize {
        self.outcomes.iter().filter(|&&outcome| outcome == Outcome::Failed).count()
    }

    /// How many requests had to wait.
    pub fn waits(&self, trace: &Trace) -> usize {
        let asked = trace.events().iter().enumerate().filter_map(|(event, timed)| match timed.event {
            Event::Allocate(index) => Some((event, index)),
            _ => None,
        });
        asked
            .filter(|&(asked, index)| {
                matches!(self.outcomes[index.0], Outcome::Served { event, .. } if event != asked)
            })
            .count()
    }

    /// The moment with the most of a figure, the first of equals, and that figure.
    pub fn peak(&self, figure: impl Fn(&Sample) -> Bytes) -> (usize, Bytes) {
        let mut peak = (0, Bytes::ZERO);
        for (event, sample) in self.samples.iter().enumerate() {
            if figure(sample) > peak.1 {
                peak = (event, figure(sample));
            }
        }
        peak
    }
}

/// Replays a trace. A request that does not fit fails, or with `patience` waits for frees up to that long, while the rest
/// of the trace goes on, as other threads would; waiting requests are served in the order in which they came. The free
/// of a request that failed or waits does nothing but end it.
pub fn replay(allocator: &mut impl Allocator, trace: &Trace, patience: Option<Duration>) -> Replay {
    let mut outcomes = vec![Outcome::Failed; trace.allocations().len()];
    let mut samples = Vec::with_capacity(trace.events().len());
    // By number, which is the order in which they came, with the time until which each waits.
    let mut waiting: BTreeMap<AllocationIndex, Duration> = BTreeMap::new();
    let serve = |allocator: &mut dyn FnMut(Request) -> Option<u64>, index: AllocationIndex, event| {
        allocator(trace[index].request).map(|address| Outcome::Served { address, event })
    };
    for (event, timed) in trace.events().iter().enumerate() {
        while waiting.first_key_value().is_some_and(|(_, &deadline)| deadline < timed.time) {
            waiting.pop_first();
        }
        match timed.event {
            Event::Allocate(index) if trace[index].request.bytes == Bytes::ZERO => {
                outcomes[index.0] = Outcome::Empty;
            }
            Event::Allocate(index) => {
                match (serve(&mut |request| allocator.allocate(request), index, event), patience) {
                    (Some(outcome), _) => outcomes[index.0] = outcome,
                    (None, Some(patience)) => {
                        waiting.insert(index, timed.time.saturating_add(patience));
                    }
                    (None, None) => {}
                }
            }
            Event::Free(index) => {
                waiting.remove(&index);
                if let Outcome::Served { address, .. } = outcomes[index.0] {
                    allocator.free(address);
                }
            }
            Event::Synchronize => allocator.synchronize(),
        }
        if !matches!(timed.event, Event::Allocate(_)) {
            waiting.retain(|&index, _| {
                let served = serve(&mut |request| allocator.allocate(request), index, event);
                outcomes[index.0] = served.unwrap_or(Outcome::Failed);
                served.is_none()
            });
        }
        samples.push(allocator.sample());
    }
    Replay { outcomes, samples }
}

/// The platform's own allocator, without a pool: it holds exactly the bytes in use, rounded up to [`GRANULE`]. The
/// driver's addresses are not modeled, so it never fails before the limit.
#[derive(Clone, Debug)]
pub struct Platform {
    limit: Bytes,
    /// Rounded and requested bytes by address.
    live: BTreeMap<u64, (u64, u64)>,
    next_address: u64,
    in_use: u64,
    requested: u64,
}

impl Platform {
    /// An allocator that may hold up to a limit.
    pub fn new(limit: Bytes) -> Platform {
        Platform { limit, live: BTreeMap::new(), next_address: 0, in_use: 0, requested: 0 }
    }
}

impl Allocator for Platform {
    fn allocate(&mut self, request: Request) -> Option<u64> {
        let size = request.bytes.0.checked_next_multiple_of(GRANULE)?;
        let alignment = request.alignment.bytes().max(GRANULE);
        let address = self.next_address.checked_next_multiple_of(alignment)?;
        if size == 0 || size > self.limit.0 - self.in_use {
            return None;
        }
        self.next_address = address.checked_add(size)?;
        self.live.insert(address, (size, request.bytes.0));
        self.in_use += size;
        self.requested += request.bytes.0;
        Some(address)
    }

    fn free(&mut self, address: u64) {
        if let Some((size, requested)) = self.live.remove(&address) {
            self.in_use -= size;
            self.requested -= requested;
        }
    }

    fn sample(&self) -> Sample {
        let in_use = Bytes(self.in_use);
        Sample { reserved: in_use, in_use, requested: Bytes(self.requested), largest_free: Bytes::ZERO }
    }
}

/// The smallest limit under which a trace is served completely, as found by bisection, from the peak of live bytes to
/// the options' own limit; `None` if that is not enough. The result was tried, so it suffices; a smaller pool might
/// suffice too, because best fit is not monotonic in the limit.
pub fn smallest_pool(trace: &Trace, options: bfc::Options) -> Option<Bytes> {
    let is_enough = |limit: u64| {
        let limit = Bytes(limit * GRANULE);
        let mut pool = Bfc::new(bfc::Options { limit, device: limit, ..options });
        replay(&mut pool, trace, None).failures() == 0
    };
    let most = options.limit.0 / GRANULE;
    let live = replay(&mut Platform::new(options.limit), trace, None).peak(|sample| sample.in_use).1;
    if live == Bytes::ZERO && is_enough(0) {
        return Some(Bytes::ZERO);
    }
    let mut too_small = (live.0 / GRANULE).saturating_sub(1).min(most);
    // Up in doubling steps, then down by halving.
    let mut step = 1;
    let mut enough = loop {
        let tried = too_small.saturating_add(step).min(most);
        if is_enough(tried) {
            break tried;
        }
        if tried == most {
            return None;
        }
        (too_small, step) = (tried, step.saturating_mul(2));
    };
    while enough - too_small > 1 {
        let middle = too_small + (enough - too_small) / 2;
        if is_enough(middle) { enough = middle } else { too_small = middle }
    }
    Some(Bytes(enough * GRANULE))
}
