//! Traces: sequences of requests and frees, recorded as CSV or derived from live ranges.
//!
//! ```text
//! event,id,size,alignment,tag,time
//! alloc,weights,1048576,,,0
//! alloc,all-reduce,65536,2097152,collective,0.5
//! free,weights,,,,0.75
//! ```
//!
//! `event` is `alloc`, `free`, or `sync`: the device has caught up with the host. `id` is any name, which may be reused
//! after a free. Only `event`, `id` and `size` are required columns, in any order. `time` is in seconds and never
//! decreases; without it everything happens at once. Requests tagged `collective` go to the lower end of a pool with
//! two ends.

use std::collections::HashMap;
use std::ops::Index;
use std::time::Duration;

use memplan_memory::{Alignment, Bytes};
use memplan_pack::csv::{self, Field, Lines, shorten};

use crate::{End, Request};

/// A request of a trace, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationIndex(pub usize);

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedAllocation {
    /// By which it is freed.
    pub name: Box<str>,
    /// The request.
    pub request: Request,
}

/// The kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request is made.
    Allocate(AllocationIndex),
    /// The allocation of a request is freed.
    Free(AllocationIndex),
    /// The device has come as far as the host.
    Synchronize,
}

/// An event with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// Since the start.
    pub time: Duration,
    /// The event.
    pub event: Event,
}

/// A sequence of requests and frees: every free is of a request that lives, times never go back.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    allocations: Vec<TracedAllocation>,
    events: Vec<TimedEvent>,
    live: HashMap<Box<str>, AllocationIndex>,
}

/// The errors of a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The name of a request is that of another one that lives.
    #[error("`{0}` is allocated already")]
    Allocated(Box<str>),
    /// A free without a request.
    #[error("`{0}` is not allocated")]
    NotAllocated(Box<str>),
    /// A time before the one of the line above.
    #[error("the time is before that of the event above")]
    TimeGoesBack,
    /// A required column is not in the header.
    #[error("the header has no column `{0}`; event, id and size are required")]
    MissingColumn(&'static str),
    /// A column that traces do not have.
    #[error("`{0}` is not a column of a trace; the columns are {names}", names = COLUMNS.join(", "))]
    UnknownColumn(String),
    /// Lines that are no CSV.
    #[error(transparent)]
    Csv(csv::ErrorKind),
    /// Something that is no event.
    #[error("`{0}` is not an event; the events are alloc, free and sync")]
    UnknownEvent(String),
    /// A field that should be a number of bytes.
    #[error("`{0}` is not a whole number of bytes")]
    NotBytes(String),
    /// A field that should be an alignment.
    #[error("`{0}` is not a power of two")]
    NotAnAlignment(String),
    /// A field that should be a time.
    #[error("`{0}` is not a number of seconds")]
    NotATime(String),
}

/// An error of a trace in CSV, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {kind}")]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// The byte within the line, from 1.
    pub column: usize,
    /// The error.
    pub kind: TraceErrorKind,
}

impl From<csv::Error> for TraceError {
    fn from(error: csv::Error) -> TraceError {
        TraceError { line: error.line, column: error.column, kind: TraceErrorKind::Csv(error.kind) }
    }
}

/// The columns a trace may have.
const COLUMNS: [&str; 6] = ["event", "id", "size", "alignment", "tag", "time"];

impl Trace {
    /// A trace of nothing.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Adds a request.
    ///
    /// # Errors
    /// When something of that name lives.
    pub fn allocate(&mut self, name: &str, request: Request) -> Result<AllocationIndex, TraceErrorKind> {
        let index = AllocationIndex(self.allocations.len());
        if self.live.contains_key(name) {
            return Err(TraceErrorKind::Allocated(name.into()));
        }
        self.live.insert(name.into(), index);
        self.allocations.push(TracedAllocation { name: name.into(), request });
        self.push(Event::Allocate(index));
        Ok(index)
    }

    /// Adds the free of a named allocation.
    ///
    /// # Errors
    /// When nothing of that name lives.
    pub fn free(&mut self, name: &str) -> Result<AllocationIndex, TraceErrorKind> {
        let index = self.live.remove(name).ok_or_else(|| TraceErrorKind::NotAllocated(name.into()))?;
        self.push(Event::Free(index));
        Ok(index)
    }

    /// The device comes as far as the host.
    pub fn synchronize(&mut self) {
        self.push(Event::Synchronize);
    }

    /// Lets what follows happen at a time; earlier times than that of the last event are taken for it.
    fn set_time(&mut self, time: Duration) {
        if let Some(last) = self.events.last_mut() {
            last.time = last.time.max(time);
        }
    }

    fn push(&mut self, event: Event) {
        let time = self.events.last().map_or(Duration::ZERO, |last| last.time);
        self.events.push(TimedEvent { time, event });
    }

    /// The requests, in order.
    pub fn allocations(&self) -> &[TracedAllocation] {
        &self.allocations
    }

    /// The events, in order.
    pub fn events(&self) -> &[TimedEvent] {
        &self.events
    }

    /// The trace up to a number of events.
    #[must_use]
    pub fn prefix(&self, events: usize) -> Trace {
        Trace { events: self.events[..events.min(self.events.len())].to_vec(), ..self.clone() }
    }

    /// The trace of values that live from one instant to before another one. At each instant, what ends is freed before
    /// what begins is requested; in the order given, among equals.
    pub fn of_lifetimes<'n>(lifetimes: impl IntoIterator<Item = Lifetime<'n>>) -> Trace {
        let is_live = |lifetime: &Lifetime<'n>| lifetime.end.is_none_or(|end| lifetime.start < end);
        let lifetimes: Vec<Lifetime<'n>> = lifetimes.into_iter().filter(is_live).collect();
        let mut edges: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * lifetimes.len());
        for (i, lifetime) in lifetimes.iter().enumerate() {
            edges.push((lifetime.start, true, i));
            edges.extend(lifetime.end.map(|end| (end, false, i)));
        }
        edges.sort_unstable();
        let mut trace = Trace::new();
        let mut indices = vec![AllocationIndex(0); lifetimes.len()];
        for (_, is_start, i) in edges {
            if is_start {
                let Lifetime { name, request, .. } = lifetimes[i];
                indices[i] = AllocationIndex(trace.allocations.len());
                trace.allocations.push(TracedAllocation { name: name.into(), request });
            }
            let index = indices[i];
            trace.push(if is_start { Event::Allocate(index) } else { Event::Free(index) });
        }
        trace
    }

    /// The trace in CSV, for [`Trace::parse`] to read again. Names get the number of their request, since only requests
    /// that do not live together may share one.
    pub fn to_csv(&self) -> String {
        let mut text = COLUMNS.join(",") + "\n";
        for TimedEvent { time, event } in &self.events {
            let seconds = time.as_secs_f64();
            let name = |index: &AllocationIndex| {
                let name =
                    self[*index].name.replace(|c: char| matches!(c, ',' | '"') || c.is_whitespace(), "_");
                format!("{name}#{}", index.0)
            };
            text.push_str(&match event {
                Event::Allocate(index) => {
                    let Request { bytes, alignment, end, .. } = self[*index].request;
                    let tag = if end == End::Lower { "collective" } else { "" };
                    format!("alloc,{},{},{alignment},{tag},{seconds}\n", name(index), bytes.0)
                }
                Event::Free(index) => format!("free,{},,,,{seconds}\n", name(index)),
                Event::Synchronize => format!("sync,,,,,{seconds}\n"),
            });
        }
        text
    }

    /// Reads a trace in CSV.
    ///
    /// # Errors
    /// [`TraceError`] with line and column.
    pub fn parse(text: &[u8]) -> Result<Trace, TraceError> {
        let lines = Lines::new(text)?;
        let header = Header::of(&lines.header)?;
        let mut trace = Trace::new();
        for fields in lines {
            header.event(&fields?, &mut trace)?;
        }
        Ok(trace)
    }
}

/// When a value lives, in instants of a program.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime<'n> {
    /// Its name.
    pub name: &'n str,
    /// Its request.
    pub request: Request,
    /// The first instant.
    pub start: u64,
    /// One past the last; `None`: it is never freed.
    pub end: Option<u64>,
}

impl Index<AllocationIndex> for Trace {
    type Output = TracedAllocation;

    fn index(&self, index: AllocationIndex) -> &TracedAllocation {
        &self.allocations[index.0]
    }
}

/// An error at what a field says, behind its blanks.
fn error_at(field: &Field<'_>, kind: TraceErrorKind) -> TraceError {
    let blanks = field.text.len() - field.text.trim_start().len();
    TraceError { line: field.line, column: field.column + blanks, kind }
}

fn bytes(field: &Field<'_>) -> Result<Bytes, TraceError> {
    let parsed = field.trimmed().parse().map(Bytes);
    parsed.map_err(|_| error_at(field, TraceErrorKind::NotBytes(shorten(field.trimmed()))))
}

fn alignment(field: &Field<'_>) -> Result<Alignment, TraceError> {
    let parsed = field.trimmed().parse().ok().and_then(|bytes| Alignment::new(bytes).ok());
    parsed.ok_or_else(|| error_at(field, TraceErrorKind::NotAnAlignment(shorten(field.trimmed()))))
}

fn time(field: &Field<'_>) -> Result<Duration, TraceError> {
    let parsed = field.trimmed().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed.ok_or_else(|| error_at(field, TraceErrorKind::NotATime(shorten(field.trimmed()))))
}

/// Which column is where.
struct Header {
    places: [Option<usize>; COLUMNS.len()],
}

impl Header {
    fn of(fields: &[Field<'_>]) -> Result<Header, TraceError> {
        if let Some(field) = fields.iter().find(|field| !COLUMNS.contains(&field.trimmed())) {
            return Err(error_at(field, TraceErrorKind::UnknownColumn(shorten(field.trimmed()))));
        }
        let places = COLUMNS.map(|name| fields.iter().position(|field| field.trimmed() == name));
        match places[..3].iter().position(Option::is_none) {
            Some(i) => {
                let line = fields.first().map_or(1, |field| field.line);
                Err(TraceError { line, column: 1, kind: TraceErrorKind::MissingColumn(COLUMNS[i]) })
            }
            None => Ok(Header { places }),
        }
    }

    /// Adds the event of a line to a trace.
    fn event(&self, fields: &[Field<'_>], trace: &mut Trace) -> Result<(), TraceError> {
        let given = |column: usize| self.places[column].map(|i| &fields[i]);
        let required = |column| given(column).expect("a header has the required columns");
        let optional = |column| given(column).filter(|field| !field.trimmed().is_empty());
        let (event, id, size) = (required(0), required(1), required(2));
        let last = trace.events.last().map_or(Duration::ZERO, |last| last.time);
        let now = optional(5).map_or(Ok(last), |field| match time(field)? {
            now if now < last => Err(error_at(field, TraceErrorKind::TimeGoesBack)),
            now => Ok(now),
        })?;
        match event.trimmed() {
            "alloc" => {
                let is_collective = given(4).is_some_and(|tag| tag.trimmed() == "collective");
                let end = if is_collective { End::Lower } else { End::Upper };
                let alignment = optional(3).map_or(Ok(Alignment::ONE), alignment)?;
                let request = Request::new(bytes(size)?).aligned(alignment).at(end);
                trace.allocate(id.trimmed(), request).map_err(|kind| error_at(id, kind))?;
            }
            "free" => {
                trace.free(id.trimmed()).map_err(|kind| error_at(id, kind))?;
            }
            "sync" => trace.synchronize(),
            other => return Err(error_at(event, TraceErrorKind::UnknownEvent(shorten(other)))),
        }
        trace.set_time(now);
        Ok(())
    }
}
