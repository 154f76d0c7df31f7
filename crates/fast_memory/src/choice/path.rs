//! The cheapest path of one view through its events.

use memplan_analysis::{LiveRange, Time};

use super::{Choice, Mode};
use crate::candidate::{CopyStart, View};

/// Segments of a live range, as one computation sees it, in which a value is in fast memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    /// Which view of the candidate, or of the event around.
    pub(crate) view: usize,
    /// In order of time.
    pub(crate) segments: Vec<Segment>,
    /// Within events that are served from main memory: the event, and the segments inside.
    pub(crate) inside: Vec<(usize, Segments)>,
}

/// A segment of a live range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// The start of the copy into fast memory; `None`: the value was written there.
    pub(crate) start: Option<CopyStart>,
    /// The first event that it serves.
    pub(crate) first: usize,
    /// The last event that it serves.
    pub(crate) last: usize,
}

impl Segments {
    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.inside.is_empty()
    }

    /// Whether an event of the view is served from fast memory.
    pub(crate) fn serve(&self, view: &View, event: usize) -> bool {
        view.events[event].fast.is_some()
            && self.segments.iter().any(|segment| segment.first <= event && event <= segment.last)
    }
}

/// The cost of a path through events, as in [`Choice`].
#[derive(Debug, Default)]
pub(super) struct Path {
    traffic: f64,
    /// The part of the traffic that is the price of main memory.
    price: f64,
    pub(super) cost: f64,
    busy: Vec<LiveRange>,
}

impl Path {
    /// The path of a candidate that moves so many bytes and holds fast memory during some ranges.
    pub(super) fn of(traffic: f64, busy: &[LiveRange], hold: &impl Fn(LiveRange) -> f64) -> Path {
        let held: f64 = busy.iter().map(|&range| hold(range)).sum();
        Path { traffic, price: 0.0, cost: traffic + held, busy: busy.to_vec() }
    }

    pub(super) fn add(&mut self, other: Path) {
        self.traffic += other.traffic;
        self.cost += other.cost;
        self.busy.extend(other.busy);
    }

    /// Adds the traffic of main memory, and the price of held memory.
    pub(super) fn pay(&mut self, moved: f64, price: f64) {
        self.traffic += moved + price;
        self.cost += moved + price;
        self.price = price;
    }

    pub(super) fn into_choice(self, mode: Mode) -> Choice {
        let Path { traffic, price, cost, busy } = self;
        Choice { mode, moved: traffic - price, traffic, cost, busy, evicted_until: 0 }
    }
}

/// How a value gets into fast memory at an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// By a copy that starts early enough to be done in time.
    Copy,
    /// By a copy that the cores wait for.
    LateCopy,
    /// It is still there from the event before, or from the write.
    Kept,
}

/// The cheapest way through the events of a view of a value that is in main memory; with `written`, of one that is in
/// fast memory to begin with, during that range at least. A shortest path with two nodes for each event: the value is in
/// main memory only, or in fast memory too.
pub(super) fn cheapest_path(
    view: &View,
    number: usize,
    written: Option<LiveRange>,
    hold: &impl Fn(LiveRange) -> f64,
) -> (Path, Segments) {
    let forward = Forward::new(view, written, hold);
    forward.trace_back(view, number, written)
}

/// The least costs up to and including each event.
struct Forward {
    /// The least cost of all events with the value in main memory only.
    main: f64,
    /// The least cost of all events with the value in fast memory too.
    fast: f64,
    steps: Vec<Step>,
}

/// How the least costs at an event come about.
struct Step {
    /// Whether the event before is cheaper with the value in fast memory.
    came_from_fast: bool,
    /// How the value gets into fast memory.
    source: Source,
    /// The choice inside if the event is served from main memory.
    inside: Path,
    segments: Vec<Segments>,
}

impl Forward {
    fn new(view: &View, written: Option<LiveRange>, hold: &impl Fn(LiveRange) -> f64) -> Forward {
        let start = written.map_or(0.0, hold);
        let (mut main, mut fast) = (start, if written.is_some() { start } else { f64::INFINITY });
        let mut steps: Vec<Step> = Vec::with_capacity(view.events.len());
        let mut held_until: Option<Time> = written.map(|range| range.end);
        for event in &view.events {
            let mut inside = Path::default();
            let mut segments = Vec::new();
            for (i, view) in event.inside.iter().enumerate() {
                let (path, inner) = cheapest_path(view, i, None, hold);
                inside.add(path);
                segments.push(inner);
            }
            let in_main = event.main + inside.cost;
            let fetched = main.min(fast);
            let came_from_fast = fast < main;
            let mut copied = (f64::INFINITY, Source::Copy);
            if let Some(cost) = event.fast {
                for (source, start) in [(Source::Copy, event.start), (Source::LateCopy, event.latest)] {
                    let range = LiveRange { start: start.time, end: event.range.end };
                    let copy = fetched + view.prefetch_cost + start.exposed * view.wait_cost;
                    let total = copy + hold(range) + cost;
                    if total < copied.0 {
                        copied = (total, source);
                    }
                }
            }
            let kept = match held_until {
                Some(from) if fast.is_finite() && event.is_near => {
                    let gap = LiveRange { start: from, end: from.max(event.range.end) };
                    fast + hold(gap) + event.fast.unwrap_or(in_main)
                }
                _ => f64::INFINITY,
            };
            main = fetched + in_main;
            let source = if copied.0 < kept { copied.1 } else { Source::Kept };
            fast = copied.0.min(kept);
            held_until = Some(held_until.map_or(event.range.end, |end| end.max(event.range.end)));
            steps.push(Step { came_from_fast, source, inside, segments });
        }
        Forward { main, fast, steps }
    }

    /// Which events are served from fast memory, found from the last one backwards.
    fn trace_back(self, view: &View, number: usize, written: Option<LiveRange>) -> (Path, Segments) {
        let mut path = Path { cost: self.main.min(self.fast), ..Path::default() };
        let mut segments = Segments { view: number, ..Segments::default() };
        let mut is_fast = self.fast < self.main;
        // The last event of the segment that is under way.
        let mut last = None;
        for (i, (event, step)) in view.events.iter().zip(self.steps).enumerate().rev() {
            match event.fast.filter(|_| is_fast) {
                Some(cost) => path.traffic += cost,
                None => {
                    path.traffic += event.main + step.inside.traffic;
                    path.busy.extend(step.inside.busy);
                    let used = step.segments.into_iter().filter(|inner| !inner.is_empty());
                    segments.inside.extend(used.map(|inner| (i, inner)));
                }
            }
            if !is_fast {
                is_fast = step.came_from_fast;
                continue;
            }
            let last_event = *last.get_or_insert(i);
            if step.source != Source::Kept {
                let start = if step.source == Source::LateCopy { event.latest } else { event.start };
                path.traffic += view.prefetch_cost + start.exposed * view.wait_cost;
                path.busy.push(LiveRange { start: start.time, end: view.events[last_event].range.end });
                segments.segments.push(Segment { start: Some(start), first: i, last: last_event });
                last = None;
                is_fast = step.came_from_fast;
            }
        }
        if let Some(range) = written {
            let end = last.map_or(range.end, |i| view.events[i].range.end.max(range.end));
            path.busy.push(LiveRange { start: range.start, end });
            if let Some(last) = last {
                segments.segments.push(Segment { start: None, first: 0, last });
            }
        }
        segments.segments.reverse();
        segments.inside.reverse();
        (path, segments)
    }
}
