//! A planned program as a trace for Perfetto and Chrome: launches over time, transfers beside them, and for each memory
//! space its buffers and live bytes.
//!
//! The format is the JSON of trace events. Slices of one thread may nest but not overlap, so buffers and transfers are
//! spread over as many threads as overlap at any time.

use memplan_memory::{Bytes, MemorySpaceId};
use serde_json::{Value, json};

use super::{View, lanes::lanes};

/// The process that launches and transfers belong to. Memory spaces follow, a process each.
const PROGRAM: u32 = 1;

/// The thread of the launches; transfers follow.
const LAUNCHES: u32 = 1;

/// The trace of a planned program, in microseconds of the cost model. A launch in a loop is one slice for all its runs
/// together. Takes time n log n in launches and buffers.
pub fn perfetto(view: &View) -> String {
    let mut trace = Trace { view, events: Vec::new() };
    trace.launches();
    trace.transfers();
    for (process, curve) in (PROGRAM + 1..).zip(&view.curves) {
        let name = view.space_name(curve.space);
        trace.name("process_name", process, 0, &format!("memory: {name}"));
        trace.counter(process, "bytes live", &curve.live);
        trace.buffers(process, curve.space);
    }
    // The sum is not what one memory has.
    if view.curves.len() > 1 {
        trace.counter(PROGRAM, "bytes live in all memories", &view.live);
    }
    let about = json!({
        "module": view.layout.module, "target": view.layout.target, "peak": view.peak.bytes,
        "total": view.layout.totals.total,
    });
    json!({ "displayTimeUnit": "ns", "otherData": about, "traceEvents": trace.events }).to_string()
}

struct Trace<'a> {
    view: &'a View,
    events: Vec<Value>,
}

impl Trace<'_> {
    fn launches(&mut self) {
        let layout = &self.view.layout;
        self.name("process_name", PROGRAM, 0, &format!("{} on {}", layout.module, layout.target));
        self.name("thread_name", PROGRAM, LAUNCHES, "launches");
        for (computation, launch) in layout.launches_in_order() {
            let notes = &self.view.launches[launch.index as usize];
            let arguments = json!({
                "launch": launch.index, "opcode": launch.opcode, "computation": computation.name,
                "operation": notes.operation, "source": notes.source, "trip_count": launch.trip_count,
                "seconds": notes.seconds,
            });
            let range = (notes.begin.min(launch.index), launch.index + 1);
            self.slice(PROGRAM, LAUNCHES, &launch.name, range, arguments);
        }
    }

    fn transfers(&mut self) {
        let view = self.view;
        let range = |transfer: &crate::layout::Transfer| {
            (transfer.start, transfer.done.unwrap_or(transfer.start).max(transfer.start) + 1)
        };
        let lanes = lanes(view.layout.transfers.iter().map(range));
        self.lane_names(PROGRAM, LAUNCHES + 1, &lanes, "transfers");
        for (transfer, lane) in view.layout.transfers.iter().zip(lanes) {
            let arguments = json!({
                "operation": transfer.operation, "bytes": transfer.bytes, "runs": transfer.runs,
                "from": view.space_name(transfer.from), "to": view.space_name(transfer.to),
            });
            self.slice(PROGRAM, LAUNCHES + 1 + lane, &transfer.name, range(transfer), arguments);
        }
    }

    fn buffers(&mut self, process: u32, space: MemorySpaceId) {
        let view = self.view;
        let mut buffers: Vec<u32> =
            (0..).zip(&view.layout.buffers).filter(|(_, b)| b.space == space).map(|(i, _)| i).collect();
        let live = |i: u32| view.layout.buffers[i as usize].live;
        let range = |i: u32| (live(i).from, view.end_of(live(i)));
        buffers.sort_by_key(|&i| (range(i), i));
        let lanes = lanes(buffers.iter().map(|&i| range(i)));
        self.lane_names(process, 1, &lanes, "buffers");
        for (&i, lane) in buffers.iter().zip(lanes) {
            let (buffer, notes) = (&view.layout.buffers[i as usize], &view.buffers[i as usize]);
            let arguments = json!({
                "buffer": i, "bytes": buffer.address.size, "unpadded": buffer.unpadded, "shape": buffer.shape,
                "allocation": view.layout.allocations[buffer.address.allocation as usize].name,
                "offset": buffer.address.offset, "operation": notes.value.operation, "source": notes.value.source,
                "kept_by": notes.value.kept_by,
            });
            self.slice(process, 1 + lane, &buffer.full_name(), range(i), arguments);
        }
    }

    /// A value for each launch, as far as it changes.
    fn counter(&mut self, process: u32, name: &str, values: &[Bytes]) {
        let mut before = None;
        for (launch, &bytes) in (0..).zip(values) {
            if before != Some(bytes) {
                let at = micros(self.view.starts_at(launch));
                self.events.push(
                    json!({ "ph": "C", "pid": process, "name": name, "ts": at, "args": { "bytes": bytes } }),
                );
            }
            before = Some(bytes);
        }
    }

    fn slice(&mut self, process: u32, thread: u32, name: &str, range: (u32, u32), arguments: Value) {
        let (start, end) = (self.view.starts_at(range.0), self.view.starts_at(range.1));
        self.events.push(json!({
            "ph": "X", "pid": process, "tid": thread, "name": name, "ts": micros(start),
            "dur": micros(end) - micros(start), "args": arguments,
        }));
    }

    fn lane_names(&mut self, process: u32, first: u32, lanes: &[u32], name: &str) {
        let n = lanes.iter().max().map_or(0, |&lane| lane + 1);
        (0..n).for_each(|lane| self.name("thread_name", process, first + lane, name));
    }

    fn name(&mut self, what: &str, process: u32, thread: u32, name: &str) {
        let arguments = json!({ "name": name });
        self.events
            .push(json!({ "ph": "M", "pid": process, "tid": thread, "name": what, "args": arguments }));
    }
}

/// Whole nanoseconds, as traces keep them, in microseconds.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}

impl View {
    /// The name of a memory space for people.
    pub fn space_name(&self, space: MemorySpaceId) -> String {
        let known = self.layout.spaces.iter().find(|known| known.id == space);
        known.map_or_else(|| space.to_string(), |known| known.name.clone())
    }
}
