//! The best that can be done for one candidate when holding fast memory has a price: a shortest path over its events.

use memplan_analysis::{LiveRange, Time};
use memplan_ir::InstructionId;

use super::model::{Candidate, Start, View};

/// What is done for a candidate.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) mode: Mode,
    /// What main memory moves, in the unit of gain.
    pub(super) traffic: f64,
    /// That and the price of holding fast memory.
    pub(super) cost: f64,
    /// When fast memory is held: in no particular order.
    pub(super) busy: Vec<LiveRange>,
    /// One past the last instant at which the copy out of fast memory is under way; 0 without one.
    pub(super) copied_until: Time,
}

/// Where a candidate lives.
#[derive(Clone, Debug)]
pub(super) enum Mode {
    /// In fast memory, all its life.
    Whole,
    /// In main memory, and in fast memory for some parts of its life.
    Main(Vec<Stays>),
    /// A part, of which a loop brings the next one in every iteration, in one of the candidate's ways: all events are served from fast memory.
    Carried { way: usize },
    /// A parameter in main memory, and in fast memory all the time, from one call to the next: copied before an
    /// instruction, and marked with a number.
    Resident { before: InstructionId, index: u32 },
    /// Written to fast memory, copied to main memory, and in fast memory for some parts of its life.
    Evicted(Stays),
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::Main(Vec::new())
    }
}

/// The parts of a life, as one computation sees them, in which a value is in fast memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Stays {
    /// Which view of the candidate, or of the event around.
    pub(super) view: usize,
    /// In order of time.
    pub(super) stays: Vec<Stay>,
    /// Within events that are served from main memory: the event, and the stays inside.
    pub(super) inside: Vec<(usize, Stays)>,
}

/// A part of a life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// Where the copy starts that brings the value; `None`: it was written to fast memory.
    pub(super) start: Option<Start>,
    /// The first event that it serves.
    pub(super) first: usize,
    /// The last event that it serves.
    pub(super) last: usize,
}

impl Choice {
    /// The best choice when holding `bytes` in a range costs `price(bytes, range)`, which is infinite where there is no
    /// room. Linear in the number of events.
    pub(super) fn best(candidate: &Candidate, price: &impl Fn(u64, LiveRange) -> f64) -> Choice {
        let hold = |range: LiveRange| price(candidate.bytes, range);
        let mut main = Path::default();
        let mut stays = Vec::new();
        for (i, view) in candidate.views.iter().enumerate() {
            let (path, inner) = walk(view, i, None, &hold);
            main.add(path);
            stays.push(inner);
        }
        main.pay(candidate.write + candidate.room);
        let mut best = Choice { mode: Mode::Main(stays), ..main.into_choice() };
        if let (Some(evicted), [view]) = (&candidate.evicted, candidate.views.as_slice()) {
            let (mut path, stays) = walk(view, 0, Some(evicted.busy), &hold);
            path.pay(evicted.cost + candidate.room);
            if path.cost < best.cost {
                let copied_until = evicted.busy.end;
                best = Choice { mode: Mode::Evicted(stays), copied_until, ..path.into_choice() };
            }
        }
        for (way, carried) in candidate.carried.iter().enumerate() {
            let held: f64 = carried.busy.iter().map(|&range| hold(range)).sum();
            if carried.cost + held < best.cost {
                best = Choice {
                    mode: Mode::Carried { way },
                    traffic: carried.cost,
                    cost: carried.cost + held,
                    busy: carried.busy.to_vec(),
                    copied_until: 0,
                };
            }
        }
        if let Some(whole) = &candidate.whole {
            let held: f64 = whole.busy.iter().map(|&range| hold(range)).sum();
            // Of two ways that cost the same, the one without copies.
            if whole.cost + held <= best.cost {
                best = Choice {
                    mode: Mode::Whole,
                    traffic: whole.cost,
                    cost: whole.cost + held,
                    busy: whole.busy.clone(),
                    copied_until: 0,
                };
            }
        }
        best
    }

    /// Everything in main memory.
    pub(super) fn main(candidate: &Candidate) -> Choice {
        Choice::best(candidate, &|_, _| f64::INFINITY)
    }

    /// What main memory moves, without what it costs to take some of it.
    pub(super) fn moved(&self, candidate: &Candidate) -> f64 {
        match self.mode {
            Mode::Whole => self.traffic,
            Mode::Main(_) | Mode::Evicted(_) | Mode::Carried { .. } | Mode::Resident { .. } => {
                self.traffic - candidate.room
            }
        }
    }

    /// Whether fast memory is held at all.
    pub(super) fn is_fast(&self) -> bool {
        !self.busy.is_empty()
    }
}

/// What a way through events costs.
#[derive(Clone, Debug, Default)]
struct Path {
    traffic: f64,
    cost: f64,
    busy: Vec<LiveRange>,
}

impl Path {
    fn add(&mut self, other: Path) {
        self.traffic += other.traffic;
        self.cost += other.cost;
        self.busy.extend(other.busy);
    }

    fn pay(&mut self, traffic: f64) {
        self.traffic += traffic;
        self.cost += traffic;
    }

    fn into_choice(self) -> Choice {
        Choice { traffic: self.traffic, cost: self.cost, busy: self.busy, ..Choice::default() }
    }
}

/// How an event is reached in fast memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// By a copy that starts early enough to be done in time.
    Copy,
    /// By a copy that the cores wait for.
    LateCopy,
    /// It stayed from the event before, or from the write.
    Stay,
}

/// The cheapest way through the events of a view of a value that is in main memory; with `written`, of one that is in
/// fast memory to begin with, during that range at least.
fn walk(
    view: &View,
    number: usize,
    written: Option<LiveRange>,
    hold: &impl Fn(LiveRange) -> f64,
) -> (Path, Stays) {
    let n = view.events.len();
    let mut inner: Vec<(Path, Vec<Stays>)> = Vec::with_capacity(n);
    // The least cost up to and including an event: with the value in main memory only, and in fast memory too.
    let start = written.map_or(0.0, hold);
    let (mut main, mut fast) = (start, if written.is_some() { start } else { f64::INFINITY });
    let mut steps: Vec<(bool, From)> = Vec::with_capacity(n);
    let mut held_until: Option<Time> = written.map(|range| range.end);
    for event in &view.events {
        let mut inside = Path::default();
        let mut stays = Vec::new();
        for (i, view) in event.inside.iter().enumerate() {
            let (path, inner) = walk(view, i, None, hold);
            inside.add(path);
            stays.push(inner);
        }
        let in_main = event.main + inside.cost;
        let fetched = main.min(fast);
        let came_from_fast = fast < main;
        let mut copied = (f64::INFINITY, From::Copy);
        if let Some(cost) = event.fast {
            for (from, start) in [(From::Copy, event.start), (From::LateCopy, event.latest)] {
                let range = LiveRange { start: start.time, end: event.range.end };
                let total = fetched + view.fetch + start.exposed * view.wait + hold(range) + cost;
                if total < copied.0 {
                    copied = (total, from);
                }
            }
        }
        let stayed = match held_until {
            Some(from) if fast.is_finite() => {
                let gap = LiveRange { start: from, end: from.max(event.range.end) };
                fast + hold(gap) + event.fast.unwrap_or(in_main)
            }
            _ => f64::INFINITY,
        };
        main = fetched + in_main;
        let from = if copied.0 < stayed { copied.1 } else { From::Stay };
        fast = copied.0.min(stayed);
        held_until = Some(held_until.map_or(event.range.end, |end| end.max(event.range.end)));
        steps.push((came_from_fast, from));
        inner.push((inside, stays));
    }
    let mut path = Path { cost: main.min(fast), ..Path::default() };
    let mut stays = Stays { view: number, ..Stays::default() };
    let mut is_fast = fast < main;
    // Backwards: which events are served from fast memory.
    let mut last = None;
    for (i, event) in view.events.iter().enumerate().rev() {
        let (came_from_fast, from) = steps[i];
        let served_from_fast = is_fast && event.fast.is_some();
        if served_from_fast {
            path.traffic += event.fast.unwrap_or_default();
        } else {
            let (inside, inner) = std::mem::take(&mut inner[i]);
            path.traffic += event.main + inside.traffic;
            path.busy.extend(inside.busy);
            let used = inner.into_iter().filter(|stays| !stays.is_empty());
            stays.inside.extend(used.map(|stays| (i, stays)));
        }
        if is_fast {
            let last_event = *last.get_or_insert(i);
            if from != From::Stay {
                let start = if from == From::LateCopy { event.latest } else { event.start };
                path.traffic += view.fetch + start.exposed * view.wait;
                path.busy.push(LiveRange { start: start.time, end: view.events[last_event].range.end });
                stays.stays.push(Stay { start: Some(start), first: i, last: last_event });
                last = None;
                is_fast = came_from_fast;
            }
        } else {
            is_fast = came_from_fast;
        }
    }
    if let Some(range) = written {
        let end = last.map_or(range.end, |i| view.events[i].range.end.max(range.end));
        path.busy.push(LiveRange { start: range.start, end });
        if let Some(last) = last {
            stays.stays.push(Stay { start: None, first: 0, last });
        }
    }
    stays.stays.reverse();
    stays.inside.reverse();
    (path, stays)
}

impl Stays {
    fn is_empty(&self) -> bool {
        self.stays.is_empty() && self.inside.is_empty()
    }
}
