//! Live ranges: when the bytes of a value are needed.
//!
//! A value is live at instant `t` if its bytes must be intact while instruction `t` runs: from the instant that writes
//! it to one past the last that reads it. Operand and result of one instruction therefore always overlap; reuse in
//! place is an explicit choice of the planner. (XLA's bounds are inclusive on both sides.)
//!
//! ```text
//!   time        0  1  2  3  4
//!   a = f(p)    .  [-----)         read at 2
//!   b = g(a)    .  .  [-----)      read at 3; a and b are both live at 2
//! ```
//!
//! - Entry parameters are live from the start; they stay live to the end, unless donated.
//! - The result of a `copy-start` with a `cross_program_prefetch_index` is live from the start to the end: it may exist
//!   from the call before, and must exist for the next one.
//! - Results of a computation are live to its end: a loop's next state until the loop runs again.
//! - Loop state is live from the loop's begin at least to the end of its condition, where the loop ends.
//! - Operands of calls and conditionals are live at least until the called computation begins, read or not.
//! - Operands of an asynchronous operation are live until it is done, and so is what its computation uses.
//! - Parts of a larger value end when the whole begins ([`Parts`](crate::Parts)): the whole reuses their bytes.
//! - The branches of a conditional are laid out one after the other; a value that enters a branch without being read
//!   there is live in it only if it is needed later.

use std::ops::Range;

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Module, Op, OutputOperandAlias, PositionId};
use memplan_program::{LiveRange, Time, ValueId};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::{CallGraph, Dataflow, Parts, Timeline, ValueKind, given_parameters};

/// The live range of every value.
#[derive(Clone, Debug)]
pub struct LiveRanges {
    ranges: SecondaryMap<ValueId, LiveRange>,
    live_out: SecondaryMap<ValueId, bool>,
    given_up: FxHashSet<ValueId>,
    residents: FxHashSet<ValueId>,
}

impl LiveRanges {
    /// The live range of a value.
    pub fn of(&self, value: ValueId) -> LiveRange {
        self.ranges[value]
    }

    /// Whether a value is part of the program's result.
    pub fn is_live_out(&self, value: ValueId) -> bool {
        self.live_out[value]
    }

    /// Whether a value is a part of a parameter whose memory the caller gave up, by an alias or a donation.
    pub fn is_given_up(&self, value: ValueId) -> bool {
        self.given_up.contains(&value)
    }

    /// Lets values end where they become parts of another: nothing reads them there, their bytes have another name.
    pub(crate) fn end_parts(&mut self, parts: &Parts, line: &Timeline) {
        for (value, part) in parts.all() {
            self.ranges[value].end = line.time(part.joined_by);
        }
    }

    /// Whether the next call of the program may look for a value: it is needed after the last instruction.
    pub fn is_resident(&self, value: ValueId) -> bool {
        self.residents.contains(&value)
    }
}

/// Finds the live range of every value, in time linear in the number of positions.
pub fn live_ranges(module: &Module, graph: &CallGraph, flow: &Dataflow, line: &Timeline) -> LiveRanges {
    let (ranges, live_out) = (SecondaryMap::new(), SecondaryMap::new());
    let (given_up, residents) = (given_parameters(module, flow), FxHashSet::default());
    let mut live = Live { module, graph, flow, line, ranges, live_out, given_up, residents };
    live.define();
    live.extend_to_uses();
    live.extend_through_returns();
    live.extend_loop_state();
    live.keep_parameters();
    live.keep_residents();
    live.extend_async();
    let Live { ranges, live_out, given_up, residents, .. } = live;
    LiveRanges { ranges, live_out, given_up, residents }
}

/// A computation that runs while others do.
#[derive(Clone, Debug)]
pub struct Flight {
    /// The operation that starts it.
    pub start: InstructionId,
    /// The instants of its instructions, which are before that of the start.
    pub inside: Range<Time>,
    /// The first instant at which it is done for sure.
    pub end: Time,
}

/// The asynchronous operations of a program that run computations. Linear in instants.
pub fn flights(module: &Module, line: &Timeline) -> impl Iterator<Item = Flight> {
    let ends = line.instructions.iter().filter(|&&id| matches!(module.instructions[id].op, Op::AsyncDone(_)));
    ends.map(|&id| {
        let start = module.start_of(id);
        Flight { start, inside: line.begin(start)..line.time(start), end: line.time(id) + 1 }
    })
}

struct Live<'a> {
    module: &'a Module,
    graph: &'a CallGraph,
    flow: &'a Dataflow,
    line: &'a Timeline,
    ranges: SecondaryMap<ValueId, LiveRange>,
    live_out: SecondaryMap<ValueId, bool>,
    given_up: FxHashSet<ValueId>,
    residents: FxHashSet<ValueId>,
}

impl Live<'_> {
    fn define(&mut self) {
        for (id, value) in self.flow.values.iter() {
            let instruction = self.flow.positions.instruction(value.definition);
            let start = match value.kind {
                ValueKind::Written | ValueKind::ExitPhi => self.line.time(instruction),
                ValueKind::Parameter => 0,
                ValueKind::LoopPhi => self
                    .line
                    .range(self.module.instructions[instruction].parent)
                    .0
                    .min(self.loop_begin(instruction)),
            };
            self.ranges[id] = LiveRange { start, end: start + 1 };
        }
    }

    /// The beginning of the loop whose body or condition `parameter` belongs to.
    fn loop_begin(&self, parameter: InstructionId) -> Time {
        let computation = self.module.instructions[parameter].parent;
        self.graph.caller(computation).map_or(0, |caller| self.line.begin(caller))
    }

    /// Every instruction reads all parts of its operands, unless it only passes them on. A get-tuple-element reads the
    /// tuple's table.
    fn extend_to_uses(&mut self) {
        for (time, &id) in self.line.instructions.iter().enumerate() {
            let instruction = &self.module.instructions[id];
            if let Op::GetTupleElement { .. } = instruction.op {
                let table = self.flow.positions.root(instruction.operands[0]);
                self.extend(table, time as Time + 1);
            }
            let (reads, at): (&[_], Time) = match &instruction.op {
                op if op.only_passes_on() => (&[], 0),
                Op::AfterAll => (&[], 0),
                // Operands are read when the loop begins; inside, the state matters.
                Op::While => (&instruction.operands, self.line.begin(id)),
                // Operands are read inside; an operand without readers is at least passed on, so that the parameters of
                // a computation never overlap.
                Op::Call { .. } | Op::Conditional => (&instruction.operands, self.line.begin(id)),
                _ => (&instruction.operands, time as Time),
            };
            for &operand in reads {
                self.extend_all(operand, at + 1);
            }
        }
    }

    /// Results of a computation are needed until the caller takes over.
    fn extend_through_returns(&mut self) {
        for &computation in self.graph.sequential() {
            let root = self.module.computations[computation].root;
            let (_, end) = self.line.range(computation);
            self.extend_all(root, end);
            if computation == self.module.entry {
                for position in self.flow.positions.of(root) {
                    if let Some(value) = self.flow.value_at(position) {
                        self.live_out[value] = true;
                    }
                }
            }
        }
    }

    /// Whenever the condition says no, the state it has tested is what leaves the loop.
    fn extend_loop_state(&mut self) {
        for (id, value) in self.flow.values.iter() {
            if value.kind != ValueKind::LoopPhi {
                continue;
            }
            let body = self.module.instructions[self.flow.positions.instruction(value.definition)].parent;
            let caller = self.graph.caller(body).expect("a loop's body has a caller");
            let condition = self.module.instructions[caller].called[1];
            let end = self.line.range(condition).1;
            let range = &mut self.ranges[id];
            range.end = range.end.max(end);
        }
    }

    /// Parameters stay intact to the end, unless the caller gave them up.
    fn keep_parameters(&mut self) {
        for (id, value) in self.flow.values.iter() {
            if value.kind == ValueKind::Parameter && !self.given_up.contains(&id) {
                self.ranges[id].end = self.line.end();
            }
        }
    }

    /// Values that the program keeps for its next call are live all the time.
    fn keep_residents(&mut self) {
        for &id in &self.module.entry_computation().instructions {
            let is_kept = matches!(
                self.module.instructions[id].op,
                Op::CopyStart { cross_program_prefetch_index: Some(_) }
            );
            if is_kept && let Some(value) = self.flow.find(id, &[0].into()) {
                self.ranges[value] = LiveRange { start: 0, end: self.line.end() };
                self.residents.insert(value);
            }
        }
    }

    /// Values that the wrapped computation of an asynchronous operation touches are needed until the operation is done.
    /// An overwritten operand is the result from then on.
    fn extend_async(&mut self) {
        for Flight { start, inside, end } in flights(self.module, self.line) {
            let overwritten = self.overwritten_by(start);
            for inner in inside {
                for position in self.flow.positions.of(self.line.instructions[inner as usize]) {
                    if !self.flow.value_at(position).is_some_and(|value| overwritten.contains(&value)) {
                        self.extend(position, end);
                    }
                }
            }
        }
    }

    /// The values that an asynchronous operation is declared to overwrite.
    fn overwritten_by(&self, start: InstructionId) -> SmallVec<[ValueId; 1]> {
        let start = &self.module.instructions[start];
        let Op::AsyncStart(attributes) = &start.op else { return SmallVec::new() };
        let operand = |alias: &OutputOperandAlias| {
            self.flow.find(*start.operands.get(alias.operand as usize)?, &alias.operand_index)
        };
        attributes.output_operand_aliasing.iter().filter_map(operand).collect()
    }

    fn extend_all(&mut self, instruction: InstructionId, end: Time) {
        for position in self.flow.positions.of(instruction) {
            self.extend(position, end);
        }
    }

    fn extend(&mut self, position: PositionId, end: Time) {
        if let Some(value) = self.flow.value_at(position) {
            let range = &mut self.ranges[value];
            range.end = range.end.max(end);
        }
    }
}
