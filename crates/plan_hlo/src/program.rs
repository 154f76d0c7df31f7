//! A scheduled module as a `Program`.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use memplan_analysis::{BufferId, Facts, ValueKind, flights, kernel_scratch};
use memplan_ir::{FusionKind, Instruction, InstructionId, Literal, Module, Op, Opcode, PositionId};
use memplan_memory::{Alignment, Bytes, MemorySpaceId, Target};
use memplan_program::{Origin, Program, Scratch, Time, Value, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::pins::{self, Pin, PinError};
use crate::walk::walk;

/// A module under a schedule: its values are from the dataflow analysis, its instants from the timeline.
#[derive(Clone, Debug)]
pub struct HloProgram<'a> {
    module: &'a Module,
    facts: &'a Facts,
    /// Bytes of each value; zero for what needs no memory. Of a part of another value, up to its end within the whole.
    sizes: SecondaryMap<ValueId, Bytes>,
    /// Offsets of parts within the whole value.
    offsets: SecondaryMap<ValueId, Bytes>,
    /// The first value that has the same place as a value, of parts and wholes.
    first_of: FxHashMap<ValueId, ValueId>,
    /// For parts of entry parameters, which of all parts they are.
    arguments: SecondaryMap<ValueId, u32>,
    spaces: SecondaryMap<ValueId, MemorySpaceId>,
    scratch: Vec<Scratch>,
    /// Operands that operations may overwrite: an instant, a value that is read then, and the number of an operand that
    /// holds it. Ascending.
    operands_with: Vec<(Time, ValueId, u32)>,
    /// Instructions whose result is an element of a tuple to XLA, though it is none here.
    in_tuples: FxHashSet<InstructionId>,
    /// The most reductions that a kernel returns beside a result that XLA writes over an operand.
    reductions_beside: Option<u32>,
    /// Whether results are written only over operands that they are computed from.
    over_sources: bool,
    /// When XLA's walk comes to an instruction, if its order of buffers counts.
    turns: Option<SecondaryMap<InstructionId, u32>>,
}

impl<'a> HloProgram<'a> {
    /// Computes all sizes for a target. `own_scratch` is main memory that the kernels of instructions need while they
    /// run, in addition to the target's scratch ([`kernel_scratch`]). Linear in positions.
    pub fn new(
        module: &'a Module,
        facts: &'a Facts,
        target: &Target,
        own_scratch: &SecondaryMap<InstructionId, Bytes>,
    ) -> HloProgram<'a> {
        HloProgram::pinned(module, facts, target, own_scratch, &[])
            .expect("no pin is refused where there is none")
    }

    /// The same, with values in the memories that they are pinned to.
    ///
    /// # Errors
    /// See [`PinError`].
    pub fn pinned(
        module: &'a Module,
        facts: &'a Facts,
        target: &Target,
        own_scratch: &SecondaryMap<InstructionId, Bytes>,
        pins: &[Pin],
    ) -> Result<HloProgram<'a>, PinError> {
        let mut arguments = SecondaryMap::new();
        let parameters = &module.entry_computation().parameters;
        let parts = parameters.iter().flat_map(|&parameter| facts.flow.positions.of(parameter));
        for (part, number) in parts.zip(0..) {
            arguments[facts.flow.value_at(part).expect("the entry is sequential")] = number;
        }
        let line = &facts.line;
        let own = line.instructions.iter().map(|&id| (id, MemorySpaceId::MAIN, own_scratch[id]));
        let reserved = kernel_scratch(module, target);
        let reserved = reserved.iter().map(|it| (it.instruction, it.space, it.size));
        let needed = own.chain(reserved).filter(|&(_, _, size)| size > Bytes::ZERO);
        // An asynchronous operation keeps its working memory until it is done.
        let mut ends: FxHashMap<Time, Time> = FxHashMap::default();
        for (time, end) in flights(module, line).flat_map(|it| it.inside.map(move |time| (time, it.end))) {
            let last = ends.entry(time).or_default();
            *last = end.max(*last);
        }
        let scratch = needed.map(|(id, space, size)| {
            let time = line.time(id);
            Scratch { time, end: ends.get(&time).copied().unwrap_or(time + 1), space, size }
        });
        let scratch = scratch.collect();
        let mut sizes = value_sizes(module, facts, target);
        let (offsets, first_of) = place_parts(module, facts, target, &mut sizes);
        let spaces = pins::spaces(module, facts, target, pins)?;
        let operands_with = operands_with(module, facts);
        let in_tuples = FxHashSet::default();
        Ok(HloProgram {
            module,
            facts,
            sizes,
            offsets,
            first_of,
            arguments,
            spaces,
            scratch,
            operands_with,
            in_tuples,
            reductions_beside: None,
            over_sources: false,
            turns: None,
        })
    }

    /// The same, of a compiler whose library calls for some operations, alone or in a kernel, return their results in tuples.
    pub(crate) fn with_results_in_tuples(mut self, operations: &[Opcode]) -> HloProgram<'a> {
        let module = self.module;
        let is_called = |id: &InstructionId| operations.contains(&module.instructions[*id].op.opcode());
        let calls_library = |&id: &InstructionId| match &module.instructions[id].op {
            Op::Fusion(fusion) if fusion.kind == FusionKind::Custom => {
                let body = module.instructions[id].called[0];
                module.computations[body].instructions.iter().any(is_called)
            }
            _ => is_called(&id),
        };
        if !operations.is_empty() {
            self.in_tuples = self.facts.line.instructions.iter().copied().filter(calls_library).collect();
        }
        self
    }

    /// The same, of a compiler whose kernels write no result over an operand beside more reductions than this.
    pub(crate) fn with_reductions_beside(self, most: Option<u32>) -> HloProgram<'a> {
        HloProgram { reductions_beside: most, ..self }
    }

    /// The same, of a compiler whose kernels write results only over operands that they are computed from.
    pub(crate) fn with_results_over_sources(self, over_sources: bool) -> HloProgram<'a> {
        HloProgram { over_sources, ..self }
    }

    /// The same, of a compiler that orders buffers of one size as XLA does.
    pub(crate) fn in_order_of_xla(self) -> HloProgram<'a> {
        HloProgram { turns: Some(walk(self.module, &self.facts.graph)), ..self }
    }

    /// Whether a kernel returns more reductions than XLA allows beside a result that is written over an operand.
    fn has_more_reductions(&self, id: InstructionId) -> bool {
        let Some(most) = self.reductions_beside else { return false };
        let instruction = &self.module.instructions[id];
        let (Op::Fusion(_), &[fused]) = (&instruction.op, instruction.called.as_slice()) else {
            return false;
        };
        let root = &self.module.instructions[self.module.computations[fused].root];
        let is_reduction =
            |id: &&InstructionId| matches!(self.module.instructions[**id].op, Op::Reduce { .. });
        root.op == Op::Tuple && root.operands.iter().filter(is_reduction).count() > most as usize
    }

    /// The offset of a value within its group's place: parts are adjacent in their whole.
    pub(crate) fn offset_in_group(&self, value: ValueId) -> Bytes {
        self.offsets[value]
    }

    /// The name of the instruction that defines a value.
    pub(crate) fn name(&self, value: ValueId) -> Box<str> {
        self.module.instructions[self.defined_by(value)].name.clone()
    }

    fn defined_by(&self, value: ValueId) -> InstructionId {
        self.facts.flow.positions.instruction(self.facts.flow.values[value].definition)
    }

    /// Whether a value is needed after an instruction that ends its live range: the instruction is the last of its
    /// computation, which returns the value to its caller.
    fn is_needed_after(&self, id: InstructionId, value: ValueId) -> bool {
        let (facts, computation) = (self.facts, self.module.instructions[id].parent);
        if facts.line.range(computation).1 != facts.line.time(id) + 1 {
            return false;
        }
        let root = self.module.computations[computation].root;
        let is_returned = facts.flow.positions.of(root).any(|p| facts.flow.value_at(p) == Some(value));
        let is_kept = match facts.flow.values[value].kind {
            // The caller keeps it, unless it was given up.
            ValueKind::Parameter => !facts.live.is_given_up(value),
            // When the condition says no, this is what leaves the loop.
            ValueKind::LoopPhi => facts.graph.caller(computation).is_some_and(|caller| {
                let caller = &self.module.instructions[caller];
                caller.op == Op::While && caller.called[1] == computation
            }),
            // The next call may look for it.
            ValueKind::Written => facts.live.is_resident(value),
            ValueKind::ExitPhi => false,
        };
        is_returned || is_kept
    }

    /// The numbers of the operands that hold a value, of an operation that may overwrite operands.
    fn operands_with(&self, time: Time, value: ValueId) -> impl Iterator<Item = usize> {
        let all = &self.operands_with;
        let begin = all.partition_point(|&(at, held, _)| (at, held) < (time, value));
        let of_value = all[begin..].iter().take_while(move |&&(at, held, _)| (at, held) == (time, value));
        of_value.map(|&(_, _, operand)| operand as usize)
    }
}

impl Program for HloProgram<'_> {
    fn end(&self) -> Time {
        self.facts.line.end()
    }

    fn n_values(&self) -> usize {
        self.facts.flow.values.len()
    }

    fn value(&self, value: ValueId) -> Value {
        let (flow, live) = (&self.facts.flow, &self.facts.live);
        let instruction = self.defined_by(value);
        let origin = match &self.module.instructions[instruction].op {
            _ if flow.values[value].kind == ValueKind::Parameter => {
                Origin::Argument { number: self.arguments[value], writable: live.is_given_up(value) }
            }
            Op::Constant(_) => Origin::Constant,
            _ => Origin::Computed,
        };
        Value {
            size: self.sizes[value],
            alignment: Alignment::ONE,
            space: self.spaces[value],
            live: live.of(value),
            origin,
            is_result: live.is_live_out(value),
        }
    }

    fn group(&self, value: ValueId) -> ValueId {
        let first = self.facts.buffers.values[self.facts.buffers.of(value)][0];
        self.first_of.get(&first).copied().unwrap_or(first)
    }

    fn turn(&self, value: ValueId) -> (u32, u32) {
        let turn = |turns: &SecondaryMap<InstructionId, u32>| turns[self.defined_by(value)];
        (self.turns.as_ref().map_or(0, turn), value.as_u32())
    }

    fn may_reuse(&self, time: Time) -> bool {
        let instruction = self.facts.line.instructions[time as usize];
        may_ever_take_over(&self.module.instructions[instruction].op)
    }

    fn reads(&self, time: Time) -> impl Iterator<Item = ValueId> {
        let flow = &self.facts.flow;
        let instruction = &self.module.instructions[self.facts.line.instructions[time as usize]];
        // Operands of calls are read inside, if anywhere, and passed-on values are read by their users.
        let op = &instruction.op;
        let moves_nothing = op.runs_callees() || op.only_passes_on() || *op == Op::AfterAll;
        let operands = if moves_nothing { &[][..] } else { &instruction.operands[..] };
        let positions = operands.iter().flat_map(|&operand| flow.positions.of(operand));
        positions.filter_map(|position| flow.value_at(position))
    }

    fn writes(&self, time: Time) -> impl Iterator<Item = ValueId> {
        let flow = &self.facts.flow;
        let positions = flow.positions.of(self.facts.line.instructions[time as usize]);
        let values = positions.map(|position| (position, flow.value_at(position)));
        // A parameter's value exists before: from the caller, or from the beginning of a loop.
        let is_written = move |position, value: ValueId| {
            let of = flow.values[value];
            of.definition == position && matches!(of.kind, ValueKind::Written | ValueKind::ExitPhi)
        };
        values.filter_map(move |(position, value)| value.filter(|&value| is_written(position, value)))
    }

    fn may_overwrite(&self, time: Time, operand: ValueId, result: ValueId) -> bool {
        let id = self.facts.line.instructions[time as usize];
        let output = self.facts.flow.positions.shape_index(self.facts.flow.values[result].definition);
        let in_place = &self.facts.in_place;
        let may_take_over = |n| {
            in_place.may_take_over(self.module, id, n, output)
                && (!self.over_sources || in_place.is_computed_from(self.module, id, n, output))
        };
        self.operands_with(time, operand).all(may_take_over) && !self.is_needed_after(id, operand)
    }

    fn reads_directly(&self, time: Time, operand: ValueId) -> bool {
        let id = self.facts.line.instructions[time as usize];
        let flow = &self.facts.flow;
        let writer = flow.positions.instruction(flow.values[operand].definition);
        let instruction = &self.module.instructions[id];
        if self.in_tuples.contains(&writer) || self.has_more_reductions(id) {
            return false;
        }
        // Kernels take in what only renames dimensions.
        let is_kernel = matches!(instruction.op, Op::Fusion(_));
        let is_renamed =
            |id: InstructionId| matches!(self.module.instructions[id].op, Op::Bitcast | Op::Reshape { .. });
        instruction.operands.iter().any(|&read| {
            let mut read = read;
            while is_kernel && read != writer && is_renamed(read) {
                read = self.module.instructions[read].operands[0];
            }
            read == writer
        })
    }

    fn reads_alone(&self, time: Time, operand: ValueId) -> bool {
        let id = self.facts.line.instructions[time as usize];
        let flow = &self.facts.flow;
        let definition = flow.values[operand].definition;
        let writer = flow.positions.instruction(definition);
        definition == flow.positions.root(writer) && self.module.instructions[id].operands.contains(&writer)
    }

    fn is_same_shape(&self, time: Time, operand: ValueId, result: ValueId) -> bool {
        let id = self.facts.line.instructions[time as usize];
        let output = self.facts.flow.positions.shape_index(self.facts.flow.values[result].definition);
        let result = self.module.shape(id).subshape(output);
        let Instruction { op, operands, .. } = &self.module.instructions[id];
        // There, an all-reduce reads one buffer and writes another.
        let mut operands_with = self.operands_with(time, operand);
        !matches!(op, Op::AllReduce(_))
            && operands_with.any(|n| {
                result == Some(self.module.shape(operands[n])) && !is_renamed_inside(self.module, id, n)
            })
    }

    fn scratch(&self) -> impl Iterator<Item = Scratch> {
        self.scratch.iter().copied()
    }
}

/// Whether a kernel reshapes an operand, or a value that it computes from the operand.
fn is_renamed_inside(module: &Module, id: InstructionId, operand: usize) -> bool {
    let instruction = &module.instructions[id];
    let Op::Fusion(_) = instruction.op else { return false };
    let computation = &module.computations[instruction.called[0]];
    let mut reached = FxHashSet::from_iter([computation.parameters[operand]]);
    computation.instructions.iter().any(|&id| {
        let instruction = &module.instructions[id];
        let is_reached = instruction.operands.iter().any(|operand| reached.contains(operand));
        if is_reached {
            reached.insert(id);
        }
        is_reached && matches!(instruction.op, Op::Bitcast | Op::Reshape { .. })
    })
}

/// Operations that may overwrite an operand: a quick test before the exact one.
pub(crate) fn may_ever_take_over(op: &Op) -> bool {
    op.is_elementwise()
        || matches!(
            op,
            Op::BitcastConvert | Op::Fusion(_) | Op::Sort { .. } | Op::AllReduce(_) | Op::TriangularSolve(_)
        )
}

/// The values read at each instant whose operation may overwrite operands, with the operand numbers.
fn operands_with(module: &Module, facts: &Facts) -> Vec<(Time, ValueId, u32)> {
    let flow = &facts.flow;
    let mut all = Vec::new();
    for (time, &id) in (0..).zip(&facts.line.instructions) {
        let instruction = &module.instructions[id];
        if !may_ever_take_over(&instruction.op) {
            continue;
        }
        let begin = all.len();
        for (number, &operand) in (0..).zip(&instruction.operands) {
            let values = flow.positions.of(operand).filter_map(|position| flow.value_at(position));
            all.extend(values.map(|value| (time, value, number)));
        }
        all[begin..].sort_unstable();
    }
    all.dedup();
    all
}

/// Bytes of every value: the largest of its positions. Tuple tables exist only in parameters and results, and in values
/// that share their buffers: a loop whose state is the result receives the table that it returns.
fn value_sizes(module: &Module, facts: &Facts, target: &Target) -> SecondaryMap<ValueId, Bytes> {
    let flow = &facts.flow;
    let part_sizes: Vec<Vec<Bytes>> = module
        .shapes
        .iter()
        .map(|shape| {
            let mut sizes = Vec::new();
            shape.for_each_subshape(|_, part| sizes.push(target.size_of(part)));
            sizes
        })
        .collect();
    let buffers = &facts.buffers;
    let returned: SecondaryMap<BufferId, bool> = {
        let mut returned = SecondaryMap::new();
        let out = flow.values.keys().filter(|&value| facts.live.is_live_out(value));
        out.for_each(|value| returned[buffers.of(value)] = true);
        returned
    };
    let mut sizes = SecondaryMap::new();
    for (id, value) in flow.values.iter() {
        let has_table = value.kind == ValueKind::Parameter || returned[buffers.of(id)];
        let size_at = |&position: &PositionId| {
            let instruction = flow.positions.instruction(position);
            let shape = module.instructions[instruction].shape;
            let preorder = flow.positions.preorder(position);
            let is_tuple = !flow.positions.tree(instruction).children(preorder).is_empty();
            if is_tuple && !has_table { Bytes::ZERO } else { part_sizes[shape.as_u32() as usize][preorder] }
        };
        sizes[id] = flow.positions_of(id).iter().map(size_at).max().unwrap_or_default();
    }
    for (id, value) in flow.values.iter() {
        if is_immediate(module, facts, target, value.definition)
            && buffers.values[buffers.of(id)].len() == 1
            && !facts.live.is_live_out(id)
        {
            sizes[id] = Bytes::ZERO;
        }
    }
    sizes
}

/// Gives parts of a value places in it, one after the other. As they are written in this order, all bytes of the place up to
/// the end of a part are taken while the part is live; that is the size that the part gets. Returns where each part begins,
/// and of all values that are in one place the first.
fn place_parts(
    module: &Module,
    facts: &Facts,
    target: &Target,
    sizes: &mut SecondaryMap<ValueId, Bytes>,
) -> (SecondaryMap<ValueId, Bytes>, FxHashMap<ValueId, ValueId>) {
    let (mut offsets, mut first_of) = (SecondaryMap::new(), FxHashMap::default());
    let joins: BTreeSet<InstructionId> = facts.parts.all().map(|(_, part)| part.joined_by).collect();
    for id in joins {
        let operands = module.instructions[id].operands.iter();
        let parts: Vec<ValueId> = operands.filter_map(|&operand| facts.flow.value_of(operand)).collect();
        let whole = facts.flow.value_of(id).expect("parts have a whole");
        let first = parts.iter().copied().min().map_or(whole, |first| first.min(whole));
        first_of.insert(whole, first);
        let mut end = Bytes::ZERO;
        for part in parts {
            offsets[part] = end;
            end = end.saturating_add(sizes[part]);
            sizes[part] = end;
            first_of.insert(part, first);
        }
        debug_assert_eq!(end, sizes[whole], "{}", target.name);
    }
    (offsets, first_of)
}

/// Whether a value is a constant small enough to be part of the code.
fn is_immediate(module: &Module, facts: &Facts, target: &Target, definition: PositionId) -> bool {
    let id = facts.flow.positions.instruction(definition);
    matches!(module.instructions[id].op, Op::Constant(Literal::Array(_)))
        && target.unpadded_size_of(module.shape(id)) <= target.embedded_constant_bytes
}
