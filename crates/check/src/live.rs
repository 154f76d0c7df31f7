//! The live bytes at every instant: a replay of the schedule, with the values found by the walk.
//!
//! The schedule is flattened: the instructions of a called computation precede their caller, a loop's condition
//! precedes its body, branches follow each other. A place (an allocation and an offset) is live from a write to the
//! last use of the written value. Since passing a value on moves nothing, the names under which it is read do not
//! matter.
//!
//! ```text
//!   place +0    written at 2, read at 5, written at 8, read at 9     live in [2, 6) and [8, 10)
//! ```

use std::collections::BTreeMap;

use memplan_ir::{ComputationId, EntityRef, InstructionId, Module, Op, PositionId, SecondaryMap};
use memplan_memory::{AllocationId, AllocationKind, Bytes, MemorySpaceId, Slice};
use rustc_hash::FxHashMap;

use crate::bytes::Holder;
use crate::facts::Facts;
use crate::join::is_joined_in_place;
use crate::structure::runs_callees;

/// Most bytes live at one instant.
pub(crate) struct Peaks {
    /// Of everything but the scratch of kernels.
    pub(crate) live: Peak,
    /// The peak in the arena of each space, scratch included.
    pub(crate) temp: BTreeMap<MemorySpaceId, Peak>,
}

/// The peak of live bytes at one instant. If one value is written over a larger one, or passed on with more padding,
/// the larger may count as long as either is needed, or each for its own time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Peak {
    pub(crate) least: Bytes,
    pub(crate) most: Bytes,
}

/// Replays a right plan. `None` where a computation is called from several places, since then it has no place in one
/// line of time. Takes time n log n in positions.
pub(crate) fn replay(facts: &Facts<'_>, names: &[Holder], computations: &[ComputationId]) -> Option<Peaks> {
    let line = Line::new(facts, computations)?;
    let last_use = FxHashMap::default();
    let mut touches = Touches { facts, names, last_use, all: Vec::new(), held: Vec::new() };
    for &id in &line.order {
        touches.instruction(&line, id);
    }
    for &computation in computations {
        let root = facts.module.computations[computation].root;
        touches.all_parts(root, line.last(computation), When::After);
    }
    touches.entry(&line);
    Some(peaks(facts, &line, &touches.into_spans()))
}

fn peaks(facts: &Facts<'_>, line: &Line, spans: &[Span]) -> Peaks {
    let allocations = &facts.plan.allocations;
    let instants = line.order.len();
    let mut live = Load::new(instants);
    let mut temp: BTreeMap<MemorySpaceId, Load> = BTreeMap::new();
    let mut arena = |allocation: AllocationId, add: &dyn Fn(&mut Load)| {
        let allocation = &allocations[allocation];
        if allocation.kind == AllocationKind::Temp {
            add(temp.entry(allocation.space).or_insert_with(|| Load::new(instants)));
        }
    };
    let mut before: Option<&Span> = None;
    for span in spans {
        before = before.filter(|before| before.place == span.place);
        live.add_span(span, before);
        arena(span.place.0, &|load| load.add_span(span, before));
        before = before.filter(|before| before.end >= span.end).or(Some(span));
    }
    for (&id, slices) in &facts.plan.scratch {
        let time = line.times[id];
        for slice in slices {
            arena(slice.allocation, &|load| load.add(time, time + 1, slice.size));
        }
    }
    for allocation in allocations.values().filter(|a| a.kind == AllocationKind::Constant) {
        live.add(0, instants as u32, allocation.size);
    }
    Peaks { live: live.peak(), temp: temp.into_iter().map(|(space, load)| (space, load.peak())).collect() }
}

/// The flattened schedule.
struct Line {
    order: Vec<InstructionId>,
    times: SecondaryMap<InstructionId, u32>,
    /// The first instant of the computations that an instruction calls, or its own.
    begins: SecondaryMap<InstructionId, u32>,
    /// The first instant of each computation, and one past its last.
    ranges: SecondaryMap<ComputationId, (u32, u32)>,
}

impl Line {
    /// `computations` has callees before callers.
    fn new(facts: &Facts<'_>, computations: &[ComputationId]) -> Option<Line> {
        let module = facts.module;
        let mut lengths: SecondaryMap<ComputationId, u32> = SecondaryMap::new();
        let mut is_called: SecondaryMap<ComputationId, bool> = SecondaryMap::new();
        for &computation in computations {
            let mut length = module.computations[computation].instructions.len() as u32;
            for &id in &module.computations[computation].instructions {
                for callee in callees(module, id) {
                    if std::mem::replace(&mut is_called[callee], true) {
                        return None;
                    }
                    length += lengths[callee];
                }
            }
            lengths[computation] = length;
        }
        let mut line = Line {
            order: vec![InstructionId::new(0); lengths[module.entry] as usize],
            times: SecondaryMap::new(),
            begins: SecondaryMap::new(),
            ranges: SecondaryMap::new(),
        };
        line.ranges[module.entry] = (0, lengths[module.entry]);
        for &computation in computations.iter().rev() {
            let mut now = line.ranges[computation].0;
            for &id in facts.schedule.sequence(computation) {
                line.begins[id] = now;
                for callee in callees(module, id) {
                    line.ranges[callee] = (now, now + lengths[callee]);
                    now += lengths[callee];
                }
                line.times[id] = now;
                line.order[now as usize] = id;
                now += 1;
            }
        }
        Some(line)
    }

    /// The last instant of a computation.
    fn last(&self, computation: ComputationId) -> u32 {
        self.ranges[computation].1 - 1
    }
}

/// The computations that an instruction runs, in order.
fn callees(module: &Module, id: InstructionId) -> impl Iterator<Item = ComputationId> + '_ {
    let instruction = &module.instructions[id];
    let called = if runs_callees(&instruction.op) { &instruction.called[..] } else { &[] };
    // A loop's condition runs first, but is called second.
    let is_loop = instruction.op == Op::While;
    (0..called.len()).map(move |i| called[if is_loop { called.len() - 1 - i } else { i }])
}

/// In which order things happen at one instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    /// The value is read.
    Read,
    /// The value is passed on under another name, perhaps with more padding.
    Pass,
    /// Something new is written.
    Write,
    /// The value, new or not, is still needed.
    After,
}

/// Something that happens to the bytes at a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Touch {
    place: (AllocationId, Bytes),
    time: u32,
    when: When,
    size: Bytes,
}

struct Touches<'f, 'a> {
    facts: &'f Facts<'a>,
    names: &'f [Holder],
    /// The last read so far of the value with a name.
    last_use: FxHashMap<PositionId, u32>,
    all: Vec<Touch>,
    /// Places that stay in use without a break, for any writes in between.
    held: Vec<Span>,
}

impl Touches<'_, '_> {
    /// The writes, passed-on values and reads of an instruction, and until when its operands stay in use.
    fn instruction(&mut self, line: &Line, id: InstructionId) {
        let facts = self.facts;
        let instruction = &facts.module.instructions[id];
        let (time, begin) = (line.times[id], line.begins[id]);
        // The callee wrote the results of a call; if several values may be returned, the result counts as new.
        let is_new = !matches!(instruction.op, Op::Call { .. } | Op::Parameter { .. });
        for position in facts.positions.of(id) {
            let is_written = is_new && self.name(position) == Some(position);
            self.add(position, time, if is_written { When::Write } else { When::Pass });
        }
        if let Op::GetTupleElement { .. } = instruction.op {
            self.add(facts.positions.root(instruction.operands[0]), time, When::Read);
        }
        let read_at = match &instruction.op {
            Op::Tuple
            | Op::GetTupleElement { .. }
            | Op::Bitcast
            | Op::OptimizationBarrier
            | Op::Domain(_)
            | Op::AddDependency
            | Op::AfterAll => None,
            // Operands are passed on when the first computation begins.
            Op::While | Op::Call { .. } | Op::Conditional => Some(begin),
            // The bytes stay, and belong to the result from now on.
            _ if is_joined_in_place(facts, id) => time.checked_sub(1),
            _ => Some(time),
        };
        if let Some(read_at) = read_at {
            instruction.operands.iter().for_each(|&operand| self.all_parts(operand, read_at, When::Read));
        }
        self.use_in_callees(line, id);
        match instruction.op {
            // The state that the condition has tested is what leaves the loop.
            Op::While => {
                let end = line.last(instruction.called[1]);
                self.all_parts(id, end, When::After);
            }
            // Values that the operation's computation uses are in use until it is done.
            Op::AsyncDone(_) => {
                let mut start = instruction.operands[0];
                while let Op::AsyncUpdate(_) = facts.module.instructions[start].op {
                    start = facts.module.instructions[start].operands[0];
                }
                for inner in line.begins[start]..line.times[start] {
                    self.hold(line.order[inner as usize], inner, time + 1);
                }
            }
            _ => {}
        }
    }

    /// A value that computations get is in use as long as any of them uses it. The place of a conditional's operand stays in
    /// use until the last branch has read the operand, though a branch before may write another value there.
    fn use_in_callees(&mut self, line: &Line, id: InstructionId) {
        let facts = self.facts;
        let instruction = &facts.module.instructions[id];
        if !runs_callees(&instruction.op) {
            return;
        }
        let is_conditional = instruction.op == Op::Conditional;
        for (i, callee) in instruction.called.iter().copied().enumerate() {
            let computation = &facts.module.computations[callee];
            for position in facts.positions.of(computation.root) {
                self.use_at(position, line.last(callee));
            }
            let operands = match instruction.op {
                Op::Conditional => &instruction.operands[i + 1..i + 2],
                _ => &instruction.operands[..],
            };
            for (&operand, &parameter) in operands.iter().zip(&computation.parameters) {
                let root = |id: InstructionId| facts.positions.root(id);
                let Some(parts) = facts.pair(root(operand), root(parameter)) else { continue };
                for (operand, parameter) in parts {
                    let used = self.name(parameter).and_then(|name| self.last_use.get(&name).copied());
                    let Some(time) = used else { continue };
                    self.use_at(operand, time);
                    if is_conditional && let Some(slice) = self.writable(operand) {
                        let (place, size) = ((slice.allocation, slice.offset), slice.size);
                        let (start, end) = (line.begins[id], time + 1);
                        self.held.push(Span { place, start, end, size, least: size });
                    }
                }
            }
        }
    }

    /// Notes a read of the value at a position.
    fn use_at(&mut self, position: PositionId, time: u32) {
        if let Some(name) = self.name(position) {
            let last = self.last_use.entry(name).or_insert(time);
            *last = time.max(*last);
        }
    }

    fn name(&self, position: PositionId) -> Option<PositionId> {
        match self.names[position.index()] {
            Holder::Value(name) => Some(name),
            _ => None,
        }
    }

    /// The values before the program begins, and after it ends.
    fn entry(&mut self, line: &Line) {
        let facts = self.facts;
        let last = line.last(facts.module.entry);
        for &parameter in &facts.module.entry_computation().parameters {
            for position in facts.positions.of(parameter) {
                self.add(position, 0, When::Write);
                if facts.slice(position).is_some_and(|slice| facts.read_only(slice.allocation).is_some()) {
                    self.add(position, last, When::After);
                }
            }
        }
        for &id in &facts.module.entry_computation().instructions {
            // It may be there from the call before, and is to be there in the next one.
            if let Op::CopyStart { cross_program_prefetch_index: Some(_) } = facts.module.instructions[id].op
                && let Some(to) = facts.positions.find(id, &[0].into())
            {
                self.add(to, 0, When::Write);
                self.add(to, line.times[id], When::Read);
                self.add(to, last, When::After);
            }
        }
    }

    fn all_parts(&mut self, instruction: InstructionId, time: u32, when: When) {
        for position in self.facts.positions.of(instruction) {
            self.add(position, time, when);
        }
    }

    fn add(&mut self, position: PositionId, time: u32, when: When) {
        if matches!(when, When::Read | When::After) {
            self.use_at(position, time);
        }
        if let Some(Slice { allocation, offset, size }) = self.writable(position) {
            self.all.push(Touch { place: (allocation, offset), time, when, size });
        }
    }

    fn hold(&mut self, instruction: InstructionId, start: u32, end: u32) {
        for position in self.facts.positions.of(instruction) {
            if let Some(Slice { allocation, offset, size }) = self.writable(position) {
                self.held.push(Span { place: (allocation, offset), start, end, size, least: size });
            }
        }
    }

    /// The slice of a position, unless it is constant data.
    fn writable(&self, position: PositionId) -> Option<Slice> {
        self.facts.slice(position).filter(|slice| !self.facts.holds_constants(slice.allocation))
    }

    /// When each place is live, place by place, ascending.
    fn into_spans(mut self) -> Vec<Span> {
        self.all.sort_unstable();
        let mut spans: Vec<Span> = Vec::new();
        // A value that is passed on counts with its full size from the beginning, if anything needs it later.
        let mut passed = Bytes::ZERO;
        for Touch { place, time, when, size } in self.all {
            match spans.last_mut().filter(|last| last.place == place && when != When::Write) {
                Some(_) if when == When::Pass => passed = passed.max(size),
                Some(span) => {
                    span.size = span.size.max(size).max(passed);
                    span.end = span.end.max(time + 1);
                }
                None => {
                    spans.push(Span { place, start: time, end: time + 1, size, least: size });
                    passed = Bytes::ZERO;
                }
            }
        }
        spans.extend(self.held);
        spans.sort_unstable_by_key(|span| (span.place, span.start, span.end));
        spans
    }
}

/// A place from a write to the last use of the written value.
#[derive(Clone, Copy)]
struct Span {
    place: (AllocationId, Bytes),
    start: u32,
    end: u32,
    /// The most bytes that anything there has meanwhile.
    size: Bytes,
    /// The written bytes.
    least: Bytes,
}

/// Bytes live at every instant, as differences to the instant before: at least, and at most.
struct Load([Vec<i128>; 2]);

impl Load {
    fn new(instants: usize) -> Load {
        Load([vec![0; instants + 1], vec![0; instants + 1]])
    }

    fn add(&mut self, start: u32, end: u32, bytes: Bytes) {
        self.add_each(start, end, [bytes.0.into(); 2]);
    }

    fn add_each(&mut self, start: u32, end: u32, bytes: [i128; 2]) {
        for (load, bytes) in self.0.iter_mut().zip(bytes) {
            load[start as usize] += bytes;
            load[end as usize] -= bytes;
        }
    }

    /// Adds a span; bytes that it shares with the longest earlier span at its place count once.
    fn add_span(&mut self, span: &Span, before: Option<&Span>) {
        self.add_each(span.start, span.end, [span.least.0.into(), span.size.0.into()]);
        if let Some(before) = before.filter(|before| before.end > span.start) {
            let shared = [span.least.min(before.least), span.size.min(before.size)];
            self.add_each(span.start, span.end.min(before.end), shared.map(|bytes| -i128::from(bytes.0)));
        }
    }

    fn peak(&self) -> Peak {
        let [least, most] = self.0.each_ref().map(|load| {
            let mut live = 0;
            let all = load.iter().map(|change| {
                live += change;
                live
            });
            Bytes(all.max().unwrap_or(0).clamp(0, u64::MAX.into()) as u64)
        });
        Peak { least, most }
    }
}
