//! Storage: which values share bytes, by need and by choice, and what kind of memory they live in.
//!
//! Starts from the must-alias buffers. Then, in order of time, a result takes over the storage of an operand that
//! dies where the operation reads each element before it writes it:
//!
//! ```text
//!   a = f32[4] exponential(p)      storage 1  [------)
//!   b = f32[4] negate(a)                         [------)   b takes over storage 1: a is read last here
//! ```
//!
//! XLA lets only buffers of one value take part, on both sides; here any two that are otherwise never live together.

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use memplan_analysis::{BufferId, Facts, LiveRange, Time, ValueId, ValueKind, union_of_ranges};
use memplan_ir::{InstructionId, Literal, Module, Op, PositionId, Shape, ShapeIndex};
use memplan_memory::{Bytes, MemorySpaceId, Target};

use crate::PlanError;

/// Values that live at one offset of one allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(u32);
entity_impl!(StorageId, "storage");

/// Values that live at one offset of one allocation.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The values.
    pub values: Vec<ValueId>,
    /// When any of them is live: disjoint, ascending.
    pub busy: Vec<LiveRange>,
    /// What kind of memory.
    pub home: Home,
    /// In which space.
    pub space: MemorySpaceId,
    /// The size of the largest.
    pub size: Bytes,
}

/// The kind of memory that values live in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// They need no memory: tokens, interior tuple tables, immediates.
    Nowhere,
    /// An entry parameter.
    Argument(u32, ShapeIndex),
    /// A result of the entry.
    Output,
    /// Constant data.
    Constant,
    /// The arena.
    Temp,
}

/// The partition of values into storages.
#[derive(Clone, Debug)]
pub struct Storages {
    /// The storages. Those that were taken over are left empty.
    pub all: PrimaryMap<StorageId, Storage>,
    /// Bytes of each value; zero for what needs no memory.
    pub sizes: SecondaryMap<ValueId, Bytes>,
    of_value: SecondaryMap<ValueId, StorageId>,
}

impl Storages {
    /// The storage of a value.
    pub fn of(&self, value: ValueId) -> StorageId {
        self.of_value[value]
    }
}

/// Which storages may be taken over. Taking over lowers the bytes live at once, but a storage that is needed at many
/// separate times is harder to pack, so that sometimes less is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// Any two that are otherwise never live together.
    Any,
    /// Only those whose buffers have one value each, as XLA does it.
    SingleValues,
    /// Of these, only results of the same shape as the operand, as XLA does it on CPUs.
    SameShapes,
}

/// Decides which values share storage. Close to linear in positions and live ranges.
///
/// # Errors
/// When a must-alias buffer cannot exist: two parameters in one, or a constant that would be overwritten.
pub fn storages(
    module: &Module,
    facts: &Facts,
    target: &Target,
    policy: TakeOver,
) -> Result<Storages, PlanError> {
    let mut build = Build::new(module, facts, target)?;
    build.policy = policy;
    for &id in &facts.line.instructions {
        build.take_over_operands(id);
    }
    Ok(build.storages)
}

struct Build<'a> {
    module: &'a Module,
    facts: &'a Facts,
    policy: TakeOver,
    storages: Storages,
}

impl<'a> Build<'a> {
    fn new(module: &'a Module, facts: &'a Facts, target: &'a Target) -> Result<Build<'a>, PlanError> {
        let sizes = value_sizes(module, facts, target);
        let mut all = PrimaryMap::with_capacity(facts.buffers.values.len());
        let mut of_value = SecondaryMap::with_default(StorageId(0));
        of_value.resize(facts.flow.values.len());
        for (buffer, values) in facts.buffers.values.iter() {
            let storage = Storage {
                busy: union_of_ranges(
                    values.iter().filter(|&&v| sizes[v] > Bytes::ZERO).map(|&v| facts.live.of(v)).collect(),
                ),
                home: home(module, facts, buffer, &sizes)?,
                space: space(module, facts, values),
                size: values.iter().map(|&v| sizes[v]).max().unwrap_or_default(),
                values: values.clone(),
            };
            let id = all.push(storage);
            values.iter().for_each(|&value| of_value[value] = id);
        }
        Ok(Build { module, facts, policy: TakeOver::Any, storages: Storages { all, sizes, of_value } })
    }

    /// Lets each result of an instruction take over the storage of one operand that dies there.
    fn take_over_operands(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        if !may_ever_take_over(&instruction.op) {
            return;
        }
        let facts = self.facts;
        let instruction_shape = self.module.shape(id);
        let time = facts.line.time(id);
        for position in facts.flow.positions.of(id) {
            let Some(result) = facts.flow.value_at(position) else { continue };
            if facts.flow.values[result].definition != position || self.storages.sizes[result] == Bytes::ZERO
            {
                continue;
            }
            let output = facts.flow.positions.shape_index(position);
            let mut best: Option<(bool, StorageId)> = None;
            for &operand in &instruction.operands {
                let Some(source) = facts.flow.value_of(operand) else { continue };
                let from = self.storages.of(source);
                let dies = facts.live.of(source).end == time + 1 && !self.is_needed_after(id, source);
                let fits = self.policy != TakeOver::SameShapes
                    || instruction_shape.subshape(output) == Some(self.module.shape(operand));
                if !dies || !fits || !self.may_overwrite(id, from, output) {
                    continue;
                }
                if !self.holds_result(id, result, from)
                    && self.can_merge(from, self.storages.of(result), time)
                {
                    // An operand in an argument or output leaves room in the arena, so it is the better one.
                    let lives_outside = self.storages.all[from].home != Home::Temp;
                    if best.is_none_or(|(outside, _)| lives_outside && !outside) {
                        best = Some((lives_outside, from));
                    }
                }
            }
            if let Some((_, from)) = best {
                self.merge(from, self.storages.of(result));
            }
        }
    }

    /// Whether a storage holds another result of an instruction than this one: though nobody may read it, it is written.
    fn holds_result(&self, id: InstructionId, result: ValueId, storage: StorageId) -> bool {
        let mut values = self.facts.flow.positions.of(id).filter_map(|p| self.facts.flow.value_at(p));
        values.any(|value| value != result && self.storages.of(value) == storage)
    }

    /// Whether a value whose live range ends with an instruction is needed after it all the same: the instruction is the
    /// last of its computation, which hands the value to whoever runs it.
    fn is_needed_after(&self, id: InstructionId, value: ValueId) -> bool {
        let (facts, computation) = (self.facts, self.module.instructions[id].parent);
        if facts.line.range(computation).1 != facts.line.time(id) + 1 {
            return false;
        }
        let root = self.module.computations[computation].root;
        let is_returned = facts.flow.positions.of(root).any(|p| facts.flow.value_at(p) == Some(value));
        let is_kept = match facts.flow.values[value].kind {
            // The caller keeps it, unless it was given up.
            ValueKind::Parameter => !facts.live.is_given(value),
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

    /// Whether an instruction may write a result over a storage: every operand that has part of it is read in step.
    fn may_overwrite(&self, id: InstructionId, storage: StorageId, output: &ShapeIndex) -> bool {
        let operands = self.module.instructions[id].operands.iter().enumerate();
        let holds = |&operand: &InstructionId| {
            let positions = self.facts.flow.positions.of(operand);
            positions
                .filter_map(|p| self.facts.flow.value_at(p))
                .any(|value| self.storages.of(value) == storage)
        };
        operands
            .filter(|(_, operand)| holds(operand))
            .all(|(number, _)| self.facts.in_place.may_take_over(self.module, id, number, output))
    }

    /// Whether two storages may be one: kinds agree, and they are never live together but at `time`.
    fn can_merge(&self, a: StorageId, b: StorageId, time: Time) -> bool {
        let (a, b) = (&self.storages.all[a], &self.storages.all[b]);
        if std::ptr::eq(a, b) || a.space != b.space {
            return false;
        }
        let homes_agree = match (&a.home, &b.home) {
            (Home::Temp, Home::Temp) => true,
            (Home::Temp, Home::Argument(..) | Home::Output) => a.size <= b.size,
            (Home::Argument(..) | Home::Output, Home::Temp) => b.size <= a.size,
            _ => false,
        };
        homes_agree && self.policy_allows(a, b) && never_together_but_at(&a.busy, &b.busy, time)
    }

    fn policy_allows(&self, a: &Storage, b: &Storage) -> bool {
        let buffers = &self.facts.buffers;
        let is_single = |&value: &ValueId| buffers.values[buffers.of(value)].len() == 1;
        self.policy == TakeOver::Any || a.values.iter().chain(&b.values).all(is_single)
    }

    fn merge(&mut self, a: StorageId, b: StorageId) {
        let all = &mut self.storages.all;
        // The one with fewer values moves, so that a long chain costs n log n.
        let (kept, moved) = if all[a].values.len() >= all[b].values.len() { (a, b) } else { (b, a) };
        let values = std::mem::take(&mut all[moved].values);
        let busy_moved = std::mem::take(&mut all[moved].busy);
        let home = std::mem::replace(&mut all[moved].home, Home::Nowhere);
        let size = all[moved].size;
        values.iter().for_each(|&value| self.storages.of_value[value] = kept);
        let kept = &mut all[kept];
        kept.values.extend(values);
        insert_ranges(&mut kept.busy, busy_moved);
        kept.size = kept.size.max(size);
        if home != Home::Temp {
            kept.home = home;
        }
    }
}

/// Operations that may overwrite an operand: a quick test before the exact one.
pub(crate) fn may_ever_take_over(op: &Op) -> bool {
    op.is_elementwise()
        || matches!(
            op,
            Op::BitcastConvert | Op::Fusion(_) | Op::Sort { .. } | Op::AllReduce(_) | Op::TriangularSolve(_)
        )
}

/// Bytes of every value: the largest its positions ask for. Tuple tables exist in parameters and results only, and where
/// they share their buffer with those: a loop whose state is the result is handed the table that it returns.
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

/// Whether a value is a constant small enough to be part of the code.
fn is_immediate(module: &Module, facts: &Facts, target: &Target, definition: PositionId) -> bool {
    let id = facts.flow.positions.instruction(definition);
    matches!(module.instructions[id].op, Op::Constant(Literal::Array(_)))
        && target.unpadded_size_of(module.shape(id)) <= target.embedded_constant_bytes
}

/// What kind of memory a must-alias buffer lives in.
fn home(
    module: &Module,
    facts: &Facts,
    buffer: BufferId,
    sizes: &SecondaryMap<ValueId, Bytes>,
) -> Result<Home, PlanError> {
    let values = &facts.buffers.values[buffer];
    let instruction = |value: ValueId| facts.flow.positions.instruction(facts.flow.values[value].definition);
    let name = |value: ValueId| module.instructions[instruction(value)].name.clone();
    let mut parameters =
        values.iter().copied().filter(|&v| facts.flow.values[v].kind == ValueKind::Parameter);
    if let Some(parameter) = parameters.next() {
        if let Some(other) = parameters.next() {
            return Err(PlanError::Merged { first: name(parameter), second: name(other) });
        }
        let definition = facts.flow.values[parameter].definition;
        let Op::Parameter { number } = module.instructions[instruction(parameter)].op else {
            unreachable!("parameter values are defined by parameters");
        };
        return Ok(Home::Argument(number, facts.flow.positions.shape_index(definition).clone()));
    }
    if values.iter().all(|&v| sizes[v] == Bytes::ZERO) {
        return Ok(Home::Nowhere);
    }
    let constant =
        values.iter().copied().find(|&v| matches!(module.instructions[instruction(v)].op, Op::Constant(_)));
    let live_out = values.iter().any(|&v| facts.live.is_live_out(v));
    match constant {
        Some(constant) if values.len() > 1 || live_out => {
            Err(PlanError::ReadOnly { constant: name(constant) })
        }
        Some(_) => Ok(Home::Constant),
        None if live_out => Ok(Home::Output),
        None => Ok(Home::Temp),
    }
}

/// The memory space that the layouts of a buffer's values ask for.
fn space(module: &Module, facts: &Facts, values: &[ValueId]) -> MemorySpaceId {
    let definition = facts.flow.values[values[0]].definition;
    let instruction = facts.flow.positions.instruction(definition);
    let part = module.shape(instruction).subshape(facts.flow.positions.shape_index(definition));
    let space = part.and_then(Shape::as_array).map_or(0, |array| array.memory_space());
    MemorySpaceId(u32::try_from(space).unwrap_or(0))
}

/// Adds disjoint, ascending ranges to others.
fn insert_ranges(into: &mut Vec<LiveRange>, more: Vec<LiveRange>) {
    let mut all = std::mem::take(into);
    all.extend(more);
    *into = union_of_ranges(all);
}

/// Whether two lists of disjoint, ascending ranges share no instant but `time`.
fn never_together_but_at(a: &[LiveRange], b: &[LiveRange], time: Time) -> bool {
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    few.iter().all(|range| {
        let first = many.partition_point(|other| other.end <= range.start);
        many[first..].iter().take_while(|other| other.start < range.end).all(|other| {
            let (start, end) = (range.start.max(other.start), range.end.min(other.end));
            start == time && end == time + 1
        })
    })
}
