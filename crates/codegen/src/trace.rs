//! Traces: sequences of requests and frees, recorded as CSV or derived from when values live.
//!
//! ```text
//! event,id,size,alignment,tag,time
//! alloc,weights,1048576,,,0
//! alloc,all-reduce,65536,2097152,collective,0.5
//! free,weights,,,,0.75
//! ```
//!
//! `event` is `alloc`, `free`, or `sync`: the device has come as far as the host. `id` is any name, free to be used again
//! once it was freed. Only `event`, `id` and `size` are required columns, in any order. `time` is in seconds and never
//! goes back; without it everything happens at once. What is tagged `collective` goes to the lower end of a pool that has
//! two. Fields have no quotes and no commas.

use std::collections::HashMap;
use std::ops::Index;
use std::time::Duration;

use memplan_memory::{Alignment, Bytes};

use crate::bfc::{End, Request};

/// A request of a trace, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationIndex(pub usize);

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedAllocation {
    /// By which it is freed.
    pub name: Box<str>,
    /// What is asked for.
    pub request: Request,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request is made.
    Allocate(AllocationIndex),
    /// What was requested is freed.
    Free(AllocationIndex),
    /// The device has come as far as the host.
    Synchronize,
}

/// What happens, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// Since the start.
    pub time: Duration,
    /// What happens.
    pub event: Event,
}

/// A sequence of requests and frees: every free is of a request that lives, times never go back.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    allocations: Vec<TracedAllocation>,
    events: Vec<TimedEvent>,
    live: HashMap<Box<str>, AllocationIndex>,
}

/// What a trace cannot have.
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
    #[error("`{0}` is no column of a trace; they are {names}", names = COLUMNS.join(", "))]
    UnknownColumn(String),
    /// A column of the header appears twice.
    #[error("the header has the column `{0}` twice")]
    RepeatedColumn(String),
    /// A line with more or fewer fields than the header.
    #[error("the line has {found} fields, the header has {expected}")]
    FieldCount {
        /// Fields in the line.
        found: usize,
        /// Fields in the header.
        expected: usize,
    },
    /// Something that is no event.
    #[error("`{0}` is no event; they are alloc, free and sync")]
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
    /// Bytes that are no text.
    #[error("the line is not UTF-8")]
    NotText,
}

/// What is wrong with a trace in CSV, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {kind}")]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// The byte within the line, from 1.
    pub column: usize,
    /// What is wrong there.
    pub kind: TraceErrorKind,
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

    /// Adds the free of what has a name.
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
                let name = self[*index].name.replace(|c: char| c == ',' || c.is_whitespace(), "_");
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
        let mut lines = text.split(|&byte| byte == b'\n').enumerate().map(|(i, line)| Line::new(i + 1, line));
        let header = Header::new(&lines.next().expect("a split has at least one part")?)?;
        let mut trace = Trace::new();
        for line in lines {
            let line = line?;
            if !line.text.trim().is_empty() {
                header.event(&line, &mut trace)?;
            }
        }
        Ok(trace)
    }
}

/// When a value lives, in instants of a program.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime<'n> {
    /// What to call it.
    pub name: &'n str,
    /// What it takes.
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

/// A line of CSV.
struct Line<'t> {
    number: usize,
    text: &'t str,
}

/// A field of a line.
#[derive(Clone, Copy)]
struct Field<'t> {
    line: usize,
    column: usize,
    text: &'t str,
}

impl<'t> Line<'t> {
    fn new(number: usize, line: &'t [u8]) -> Result<Line<'t>, TraceError> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = std::str::from_utf8(line).map_err(|error| TraceError {
            line: number,
            column: error.valid_up_to() + 1,
            kind: TraceErrorKind::NotText,
        })?;
        Ok(Line { number, text })
    }

    fn fields(&self) -> impl Iterator<Item = Field<'t>> {
        let (line, text) = (self.number, self.text);
        text.split(',').map(move |field| {
            let start = field.as_ptr() as usize - text.as_ptr() as usize;
            let blanks = field.len() - field.trim_start().len();
            Field { line, column: start + blanks + 1, text: field.trim() }
        })
    }
}

impl Field<'_> {
    fn error(&self, kind: TraceErrorKind) -> TraceError {
        TraceError { line: self.line, column: self.column, kind }
    }

    fn bytes(&self) -> Result<Bytes, TraceError> {
        self.text.parse().map(Bytes).map_err(|_| self.error(TraceErrorKind::NotBytes(shortened(self.text))))
    }

    fn alignment(&self) -> Result<Alignment, TraceError> {
        let parsed = self.text.parse().ok().and_then(|bytes| Alignment::new(bytes).ok());
        parsed.ok_or_else(|| self.error(TraceErrorKind::NotAnAlignment(shortened(self.text))))
    }

    fn time(&self) -> Result<Duration, TraceError> {
        let parsed = self.text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        parsed.ok_or_else(|| self.error(TraceErrorKind::NotATime(shortened(self.text))))
    }
}

/// Which column is where.
struct Header {
    places: [Option<usize>; COLUMNS.len()],
    fields: usize,
}

impl Header {
    fn new(line: &Line<'_>) -> Result<Header, TraceError> {
        let mut header = Header { places: [None; COLUMNS.len()], fields: 0 };
        for (i, field) in line.fields().enumerate() {
            let unknown = || field.error(TraceErrorKind::UnknownColumn(shortened(field.text)));
            let column = COLUMNS.iter().position(|&name| name == field.text).ok_or_else(unknown)?;
            if header.places[column].replace(i).is_some() {
                return Err(field.error(TraceErrorKind::RepeatedColumn(field.text.into())));
            }
            header.fields = i + 1;
        }
        match header.places[..3].iter().position(Option::is_none) {
            Some(i) => {
                let kind = TraceErrorKind::MissingColumn(COLUMNS[i]);
                Err(TraceError { line: line.number, column: 1, kind })
            }
            None => Ok(header),
        }
    }

    /// Adds the event of a line to a trace.
    fn event(&self, line: &Line<'_>, trace: &mut Trace) -> Result<(), TraceError> {
        let fields: Vec<Field<'_>> = line.fields().take(self.fields + 1).collect();
        let found = line.text.split(',').count();
        if found != self.fields {
            let kind = TraceErrorKind::FieldCount { found, expected: self.fields };
            return Err(TraceError { line: line.number, column: 1, kind });
        }
        let [event, id, size, alignment, tag, time] = self.places.map(|place| place.map(|i| fields[i]));
        let (event, id, size) = (event.zip(id).zip(size))
            .map(|((e, i), s)| (e, i, s))
            .expect("a header has the required columns");
        let last = trace.events.last().map_or(Duration::ZERO, |last| last.time);
        let time = time.filter(|field| !field.text.is_empty());
        let now = time.map_or(Ok(last), |field| match field.time()? {
            now if now < last => Err(field.error(TraceErrorKind::TimeGoesBack)),
            now => Ok(now),
        })?;
        let alignment = alignment.filter(|field| !field.text.is_empty());
        match event.text {
            "alloc" => {
                let end = match tag {
                    Some(Field { text: "collective", .. }) => End::Lower,
                    _ => End::Upper,
                };
                let alignment = alignment.map_or(Ok(Alignment::ONE), |field| field.alignment())?;
                let request = Request::new(size.bytes()?).aligned(alignment).at(end);
                trace.allocate(id.text, request).map_err(|kind| id.error(kind))?;
            }
            "free" => {
                trace.free(id.text).map_err(|kind| id.error(kind))?;
            }
            "sync" => trace.synchronize(),
            other => return Err(event.error(TraceErrorKind::UnknownEvent(shortened(other)))),
        }
        trace.set_time(now);
        Ok(())
    }
}

/// The start of a text, for messages.
fn shortened(text: &str) -> String {
    const MOST: usize = 40;
    if text.chars().count() <= MOST { text.into() } else { text.chars().take(MOST).chain(['…']).collect() }
}
