//! Explains one value: its definition, its readers, what keeps it alive, the values that share its bytes, and how to
//! free it.

use memplan_analysis::{Phase, Time, ValueClass, ValueId, ValueKind, operation};
use memplan_ir::{InstructionId, Op};
use memplan_memory::{AllocationKind, Bytes, MemorySpaceId};
use memplan_plan_hlo::{KeptBy, kept_by, peak_report_in};
use serde::Serialize;

use super::{ArgumentNote, Donation, Subject, donation};
use crate::shape_at;

/// The explanation of one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ValueNote {
    /// The instruction that makes it, and the index into its result.
    pub name: String,
    /// Its computation.
    pub computation: String,
    /// Its operation, as HLO names it.
    pub opcode: String,
    /// Its shape.
    pub shape: String,
    /// Its class.
    pub class: String,
    /// The framework's operation; empty if unknown.
    pub operation: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// The line in an installed package, if that is a different one.
    pub library_source: Option<String>,
    /// Bytes that it takes; `None` if it has no address in memory.
    pub bytes: Option<Bytes>,
    /// Its address: `argument 3`, `output`, `temp +4096`.
    pub place: String,
    /// Whether it is live at the peak of the main memory.
    pub is_at_peak: bool,
    /// The first and the last instant at which it is needed, in the flattened schedule.
    pub instants: Option<(Time, Time)>,
    /// How many instants there are.
    pub of_instants: Time,
    /// Its readers, in the order of execution.
    pub readers: Vec<String>,
    /// Why it is needed until the last instant.
    pub why: String,
    /// Other values in the same bytes.
    pub shares: Vec<SharedBytes>,
    /// Changes that would free its bytes, or need fewer.
    pub remedies: Vec<String>,
}

/// A value in the same bytes as another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SharedBytes {
    /// The other value.
    pub name: String,
    /// How they share: `in place` if both must have one address, `before` and `after` if they take turns by choice.
    pub how: &'static str,
}

/// The most readers, and the most sharing values, to list.
const MOST_LISTED: usize = 12;

impl Subject<'_> {
    /// Explains the value at an index of an instruction's result; the whole result if no index is given. `None` if the
    /// instruction runs inside a kernel, so that its result is never in memory; [`Subject::kernel_of`] finds that
    /// kernel. Linear in the module.
    pub fn value(&self, id: InstructionId, index: &memplan_ir::ShapeIndex) -> Option<ValueNote> {
        let (module, facts) = (self.module, self.facts());
        let position = facts.flow.positions.find(id, index)?;
        let value = facts.flow.value_at(position)?;
        let definition = facts.flow.positions.position(facts.flow.values[value].definition);
        let maker = self.words.maker(value);
        let slice = self.plan().slices.get(&facts.flow.positions.position(position)).copied();
        let slice = slice.or_else(|| self.plan().slices.get(&definition).copied());
        let source = self.words.sources.user(maker);
        let live = facts.live.of(value);
        let peak = peak_report_in(module, facts, self.plan(), MemorySpaceId::MAIN);
        Some(ValueNote {
            name: self.name_at(&definition),
            computation: module.computations[module.instructions[definition.instruction].parent]
                .name
                .to_string(),
            opcode: module.instructions[definition.instruction].opcode().to_string(),
            shape: shape_at(module, &definition),
            class: self.words.classes.of(value).to_string(),
            operation: operation(module, maker).to_string(),
            source: source.map(|frame| frame.to_string()),
            library_source: (self.words.sources.innermost(maker))
                .filter(|frame| Some(*frame) != source)
                .map(|frame| frame.to_string()),
            bytes: slice.map(|slice| slice.size),
            place: slice.map_or_else(|| "none: it needs no memory".to_string(), |slice| self.place(slice)),
            is_at_peak: live.is_live_at(peak.time) && slice.is_some(),
            instants: slice.map(|_| (live.start, live.end.saturating_sub(1))),
            of_instants: facts.line.end(),
            readers: self.readers(value),
            why: self.why(value),
            shares: slice.map_or_else(Vec::new, |slice| self.shares(value, slice)),
            remedies: self.remedies(value),
        })
    }

    /// The kernel that contains an instruction.
    pub fn kernel_of(&self, id: InstructionId) -> Option<InstructionId> {
        let mut computation = self.module.instructions[id].parent;
        let called = |computation| {
            self.module.instructions.iter().find(|(_, instruction)| instruction.called.contains(&computation))
        };
        // Kernels may call computations, but never in a cycle.
        while !self.facts().graph.is_sequential(computation) {
            let (caller, instruction) = called(computation)?;
            if self.facts().graph.is_sequential(instruction.parent) {
                return Some(caller);
            }
            computation = instruction.parent;
        }
        None
    }

    fn place(&self, slice: memplan_memory::Slice) -> String {
        let allocation = &self.plan().allocations[slice.allocation];
        match &allocation.kind {
            AllocationKind::Argument { parameter, index } if index.is_root() => {
                format!("argument {parameter}")
            }
            AllocationKind::Argument { parameter, index } => format!("argument {parameter}{index}"),
            AllocationKind::Output => "output".to_string(),
            AllocationKind::Constant => "constant".to_string(),
            AllocationKind::Temp if allocation.space == MemorySpaceId::MAIN => {
                format!("temp +{}", slice.offset.0)
            }
            AllocationKind::Temp => {
                let space = self.target.space(allocation.space).map_or("temp", |space| &space.name);
                format!("{space} +{}", slice.offset.0)
            }
        }
    }

    /// The readers of a value in memory, without instructions that only pass it on.
    fn readers(&self, value: ValueId) -> Vec<String> {
        let mut readers: Vec<(Time, InstructionId)> = Vec::new();
        let flow = &self.facts().flow;
        for &id in &self.facts().line.instructions {
            let instruction = &self.module.instructions[id];
            let is_read = instruction.operands.iter().any(|&operand| {
                flow.positions.of(operand).any(|position| flow.value_at(position) == Some(value))
            });
            if is_read && instruction.op.reads_operands() {
                readers.push((self.facts().line.time(id), id));
            }
        }
        let more = readers.len().saturating_sub(MOST_LISTED);
        // The first readers, and the last one, for which the value is kept.
        let shown =
            readers.iter().enumerate().filter(|(i, _)| *i + 1 < MOST_LISTED || *i + 1 == readers.len());
        let mut names: Vec<String> = shown.map(|(_, &(_, id))| self.name(id)).collect();
        if more > 0 {
            let last = names.pop();
            names.push(format!("{more} more"));
            names.extend(last);
        }
        names
    }

    fn why(&self, value: ValueId) -> String {
        let flow = &self.facts().flow;
        match kept_by(self.module, self.facts(), value) {
            KeptBy::Caller => {
                "the caller keeps it: it was not donated, so it must not change until the end".to_string()
            }
            KeptBy::Result => "it is a result of the program".to_string(),
            KeptBy::Constant => "it is a constant, which is always in memory".to_string(),
            KeptBy::Loop(_) => {
                format!("it is state of {}, needed from beginning to end", self.words.kept_by(value))
            }
            KeptBy::Reader(reader) => {
                let words = self.words.kept_by(value);
                let name = self.name(reader);
                let definition = flow.positions.instruction(flow.values[value].definition);
                let phases = &self.words.classes.phases;
                let crosses = phases.has_backward()
                    && phases.of(definition) == Phase::Forward
                    && phases.of(reader) != Phase::Forward;
                let crosses =
                    if crosses { ": computed in the forward half, read in the backward half" } else { "" };
                match words.contains(&name) {
                    true => format!("{words} reads it last{crosses}"),
                    false => format!("{words} reads it last (`{name}`){crosses}"),
                }
            }
        }
    }

    /// Values in the same bytes: those that must share, and those that are there at other times.
    fn shares(&self, value: ValueId, slice: memplan_memory::Slice) -> Vec<SharedBytes> {
        let facts = self.facts();
        let (buffer, live) = (facts.buffers.of(value), facts.live.of(value));
        let mut shares = Vec::new();
        for (other, of) in facts.flow.values.iter().filter(|(other, _)| *other != value) {
            let position = facts.flow.positions.position(of.definition);
            let Some(at) = self.plan().slices.get(&position) else { continue };
            let overlaps = at.allocation == slice.allocation
                && at.offset.0 < slice.offset.0.saturating_add(slice.size.0)
                && slice.offset.0 < at.offset.0.saturating_add(at.size.0);
            if !overlaps {
                continue;
            }
            let how = match () {
                () if facts.buffers.of(other) == buffer => "in place",
                () if facts.live.of(other).start < live.start => "before",
                () => "after",
            };
            shares.push((facts.live.of(other).start, SharedBytes { name: self.name_at(&position), how }));
        }
        shares.sort_by_key(|(start, _)| start.abs_diff(live.start));
        shares.into_iter().take(MOST_LISTED).map(|(_, shared)| shared).collect()
    }

    /// Changes that would free a value's bytes, or need fewer.
    fn remedies(&self, value: ValueId) -> Vec<String> {
        let flow = &self.facts().flow;
        let of = flow.values[value];
        let definition = flow.positions.instruction(of.definition);
        let class = self.words.classes.of(value);
        let mut remedies = Vec::new();
        if of.kind == ValueKind::Parameter {
            remedies.extend(self.argument(value).and_then(donation_remedy));
        } else if self.facts().live.is_live_out(value) {
            let arguments = donation::arguments(self);
            let result = result_index(self, value);
            let wanted = result.map(|index| format!("result {index} could"));
            let taker = arguments.iter().find(|argument| {
                argument.donation == Donation::Possible
                    && wanted.as_ref().is_some_and(|w| argument.why.starts_with(w))
            });
            remedies.extend(taker.map(|argument| {
                format!(
                    "donate argument {} (`{}`): the result would take its place",
                    argument.number, argument.name
                )
            }));
        }
        if class == ValueClass::Activation {
            remedies.push(match of.kind {
                ValueKind::Written => format!(
                    "recompute it in the backward half: `jax.checkpoint` around the code that makes it ({}), or `memplan rewrite`",
                    self.words.does(self.words.maker(value))
                ),
                _ => "keep fewer rows for the backward loop: `jax.checkpoint` around the body of the forward loop, or \
                      `memplan rewrite`"
                    .to_string(),
            });
        }
        if matches!(self.module.instructions[definition].op, Op::Copy) {
            remedies.push("it is a copy: `memplan explain` without a value explains each copy".to_string());
        }
        remedies
    }

    fn argument(&self, value: ValueId) -> Option<ArgumentNote> {
        let position = self.facts().flow.positions.position(self.facts().flow.values[value].definition);
        let parameters = &self.module.entry_computation().parameters;
        let number = parameters.iter().position(|&id| id == position.instruction)?;
        donation::arguments(self)
            .into_iter()
            .find(|argument| argument.number as usize == number && argument.index[..] == position.index.0[..])
    }
}

fn donation_remedy(argument: ArgumentNote) -> Option<String> {
    match argument.donation {
        Donation::Possible => {
            Some(format!("donate it (`donate_argnums`): {}, which saves {}", argument.why, argument.bytes))
        }
        _ => None,
    }
}

/// The index of a value in the program's result.
fn result_index(subject: &Subject<'_>, value: ValueId) -> Option<memplan_ir::ShapeIndex> {
    let flow = &subject.facts().flow;
    let root = subject.module.entry_computation().root;
    let mut positions = flow.positions.of(root);
    let position = positions.find(|&position| flow.value_at(position) == Some(value))?;
    Some(flow.positions.shape_index(position).clone())
}
