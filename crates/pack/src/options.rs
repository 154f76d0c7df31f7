//! Options for effort and time, and for watching and stopping a search.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "std")]
use std::time::{Duration, Instant};

/// Limits and hooks. The defaults are a number of steps, some seconds for most problems, so that the answer is the same
/// on every machine and in every run: without a time limit it depends only on the problem, `node_limit`, `threads` and
/// `seed`. [`Options::within`] limits the time instead.
#[derive(Clone)]
pub struct Options {
    /// Wall-clock limit. One packing, by a heuristic that takes about a second for a million items, is made in any
    /// case; all else stops within milliseconds. `None`: no limit. Only with feature `std`, which has a clock.
    #[cfg(feature = "std")]
    pub time_limit: Option<Duration>,
    /// The most decisions that each worker (two or three, or as many as there are threads) may try after the first
    /// heuristics. Many visited blocks count as a decision, so that one is about two microseconds of work, in any
    /// problem. `None`: no limit; 0: heuristics only.
    pub node_limit: Option<u64>,
    /// Threads to use; at least one is. Without feature `std`, which has threads, the calling one does the work of all.
    pub threads: usize,
    /// Packs by best fit alone, in the orders of a compiler, and keeps the lowest packing. Best fit takes quadratic time: if
    /// there are too many pieces for it, the other heuristics pack them.
    pub only_best_fit: Option<BestFit>,
    /// Varies the random choices.
    pub seed: u64,
    /// Set it to true from anywhere to end early with the best packing so far, as when the time is up.
    pub stop: Option<Arc<AtomicBool>>,
    /// Called, from any thread, with every lower height and every better bound.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

/// The orders in which a compiler places pieces, each into the smallest gap that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BestFit {
    /// The longest life first, and the largest first: XLA's global decreasing-size best fit.
    Decreasing,
    /// As they begin: libtpu's. What short pieces left behind is taken by small ones, so that it packs worse.
    Beginning,
}

/// Most decisions of each worker by default: some seconds of search.
const DEFAULT_NODES: u64 = 250_000;

impl Options {
    /// Heuristics only: linearithmic, deterministic, about a second for a million items.
    pub fn quick() -> Self {
        Options { node_limit: Some(0), threads: 1, ..Options::default() }
    }

    /// As a compiler packs: for estimates of it.
    pub fn as_compiler(order: BestFit) -> Self {
        Options { only_best_fit: Some(order), ..Options::quick() }
    }

    /// As many steps as fit into a time, so that the answer depends on the machine and its load.
    #[cfg(feature = "std")]
    pub fn within(time_limit: Duration) -> Self {
        Options { time_limit: Some(time_limit), node_limit: None, ..Options::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            #[cfg(feature = "std")]
            time_limit: None,
            node_limit: Some(DEFAULT_NODES),
            // Not the number of cores: the number of threads affects the result.
            threads: 2,
            only_best_fit: None,
            seed: 0,
            stop: None,
            progress: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Options");
        #[cfg(feature = "std")]
        text.field("time_limit", &self.time_limit);
        text.field("node_limit", &self.node_limit)
            .field("threads", &self.threads)
            .field("only_best_fit", &self.only_best_fit)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// A better packing or a better bound was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The lowest height so far.
    pub height: u64,
    /// The best lower bound so far.
    pub lower_bound: u64,
    /// Decisions tried so far.
    pub nodes: u64,
    /// Time since the start. Only with feature `std`.
    #[cfg(feature = "std")]
    pub elapsed: Duration,
}

/// One thread's share of the limits: counts nodes and looks at the clock now and then.
pub(crate) struct Budget<'a> {
    clock: &'a Clock,
    nodes: u64,
    /// Nodes, and what counts as such.
    effort: u64,
    /// The effort when the clock was last looked at.
    effort_at_clock: u64,
    n_looks: u64,
    limit: u64,
    over: bool,
}

/// The limits all threads share.
pub(crate) struct Clock {
    #[cfg(feature = "std")]
    pub(crate) started: Instant,
    #[cfg(feature = "std")]
    deadline: Option<Instant>,
    stop: Option<Arc<AtomicBool>>,
    node_limit: u64,
}

impl Clock {
    pub(crate) fn new(options: &Options) -> Self {
        #[cfg(feature = "std")]
        let started = Instant::now();
        Clock {
            #[cfg(feature = "std")]
            started,
            #[cfg(feature = "std")]
            deadline: options.time_limit.and_then(|limit| started.checked_add(limit)),
            stop: options.stop.clone(),
            node_limit: options.node_limit.unwrap_or(u64::MAX),
        }
    }

    /// Without a limit, for what has to be done in any case.
    pub(crate) fn unlimited() -> Self {
        Clock::new(&Options { node_limit: None, ..Options::default() })
    }

    /// Whether the time is up or someone asked to stop; nodes do not count here.
    pub(crate) fn is_over(&self) -> bool {
        #[cfg(feature = "std")]
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return true;
        }
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    pub(crate) fn progress(&self, height: u64, lower_bound: u64, nodes: u64) -> Progress {
        Progress {
            height,
            lower_bound,
            nodes,
            #[cfg(feature = "std")]
            elapsed: self.started.elapsed(),
        }
    }

    pub(crate) fn budget(&self) -> Budget<'_> {
        Budget {
            clock: self,
            nodes: 0,
            effort: 0,
            effort_at_clock: 0,
            n_looks: 0,
            limit: self.node_limit,
            over: false,
        }
    }
}

/// Effort between two looks at the clock: a node, or what counts as one, is some microseconds, so a look every millisecond
/// or so.
const CLOCK_EVERY: u64 = 256;

/// Looks that take as long as what else a node takes.
const LOOKS_PER_NODE: u64 = 256;

impl<'a> Budget<'a> {
    /// The state that all threads share.
    pub(crate) fn clock(&self) -> &'a Clock {
        self.clock
    }

    /// Counts `nodes` decisions and returns whether there is budget left.
    pub(crate) fn spend(&mut self, nodes: u64) -> bool {
        self.nodes += nodes;
        self.effort += nodes;
        if self.effort - self.effort_at_clock >= CLOCK_EVERY {
            self.effort_at_clock = self.effort;
            self.over |= self.clock.is_over();
        }
        !self.is_over()
    }

    /// Counts what a decision looked at: many looks are as much effort as a decision.
    pub(crate) fn strain(&mut self, n_looks: u64) {
        self.n_looks += n_looks;
        self.effort += self.n_looks / LOOKS_PER_NODE;
        self.n_looks %= LOOKS_PER_NODE;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over || self.effort >= self.limit
    }

    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }
}
