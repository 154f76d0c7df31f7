//! Removes fast memory from a program: all values return to main memory.
//!
//! Copies that only moved a value from one memory to the other, whole or in slices, are removed if source and copy can
//! be one value: results computed from it may overwrite it, element by element. If one of them is overwritten while the
//! other is needed, a plain copy remains. Slices in transfers become plain slices.
//!
//! ```text
//!   s = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(p)
//!   a = f32[8]{0:S(1)} negate(q)                               a = f32[8]{0} negate(q)
//!   d = f32[8]{0:S(1)} copy-done(s)                      ->
//!   r = f32[8]{0} add(a, d)                                    r = f32[8]{0} add(a, p)
//! ```

use std::sync::Arc;

use cranelift_entity::{EntityRef, SecondaryMap};
use memplan_analysis::{BufferId, CallGraphError, Facts, LiveRange, ValueId, ValueKind};
use memplan_ir::{
    EntitySet, Instruction, InstructionId, Module, Op, Operands, PackedOption, Schedule, Shape, ShapeIndex,
};
use memplan_memory::{MemorySpaceId, Target};
use petgraph::unionfind::UnionFind;

/// Removes the target's fast memory from a scheduled program; without fast memory in the target, the program is
/// unchanged. Unscheduled instructions stay in [`Module::instructions`]. Takes time linear in the module, and for each
/// copy linear in the values that its two ends share memory with.
///
/// # Errors
/// When the call graph is not one that memory can be planned for.
pub fn strip_fast_memory(module: &mut Module, target: &Target) -> Result<(), CallGraphError> {
    let Some(fast) = target.fast_memory else { return Ok(()) };
    let moves = moves(module, fast.space);
    return_to_main(module, fast.space);
    let facts = Facts::new(module, &Schedule::in_textual_order(module))?;
    let mut joining = Joining::new(module, &facts);
    let mut replaced: SecondaryMap<InstructionId, PackedOption<InstructionId>> = SecondaryMap::new();
    let mut gone = EntitySet::new();
    for Move { source, done, starts, .. } in moves.iter().filter(|m| m.is_whole) {
        gone.extend(starts.iter().copied());
        if joining.join(module, &facts, *source, *done) {
            replaced[*done] = (*source).into();
            gone.insert(*done);
        } else {
            become_plain(&mut module.instructions[*done], Op::Copy, [*source].into_iter().collect());
        }
    }
    for Move { done, starts, slice, .. } in moves.iter().filter(|m| !m.is_whole) {
        gone.extend(starts.iter().copied());
        let op = module.instructions[slice.expect("a move of a part has a slice")].op.clone();
        let operands = module.instructions[starts[0]].operands.clone();
        become_plain(&mut module.instructions[*done], op, operands);
    }
    replace(module, &replaced, &gone);
    Ok(())
}

/// A transfer between main and fast memory.
struct Move {
    source: InstructionId,
    /// The instruction whose result is what arrived.
    done: InstructionId,
    /// The instructions of the transfer, except the last.
    starts: Vec<InstructionId>,
    /// For a part: the slice that says which.
    slice: Option<InstructionId>,
    is_whole: bool,
}

/// All transfers, in order of the instructions that end them.
fn moves(module: &Module, fast: MemorySpaceId) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut parts: Vec<Move> = Vec::new();
    let mut joined: EntitySet<InstructionId> = EntitySet::new();
    for (done, instruction) in module.computations.keys().flat_map(|c| module.instructions_of(c)) {
        match &instruction.op {
            Op::CopyDone => {
                let start = instruction.operands[0];
                let source = module.instructions[start].operands[0];
                if changes_only_space(module, source, done, fast) {
                    moves.push(Move { source, done, starts: vec![start], slice: None, is_whole: true });
                }
            }
            Op::AsyncDone(_) => parts.extend(part(module, done)),
            op if op.is_concatenation_in_place() => {
                if let Some(source) = whole_of_parts(module, done)
                    && changes_only_space(module, source, done, fast)
                {
                    let dones = instruction.operands.iter().copied();
                    joined.extend(dones.clone());
                    let starts = dones.flat_map(|d| [module.instructions[d].operands[0], d]).collect();
                    moves.push(Move { source, done, starts, slice: None, is_whole: true });
                }
            }
            _ => {}
        }
    }
    parts.retain(|part| !joined.contains(part.done));
    moves.extend(parts);
    moves
}

/// An asynchronous slice: `async-start` of a computation that only cuts something out of its first parameter.
fn part(module: &Module, done: InstructionId) -> Option<Move> {
    let start = module.instructions[done].operands[0];
    let started = &module.instructions[start];
    let (Op::AsyncStart(_), &[wrapped], &[source, ..]) =
        (&started.op, started.called.as_slice(), started.operands.as_slice())
    else {
        return None;
    };
    let root = module.computations[wrapped].root;
    let is_slice = matches!(module.instructions[root].op, Op::Slice { .. } | Op::DynamicSlice { .. })
        && module.instructions[root].operands.as_slice() == module.computations[wrapped].parameters;
    is_slice.then_some(Move { source, done, starts: vec![start], slice: Some(root), is_whole: false })
}

/// The value that a custom call puts together again from slices that follow one another in memory.
fn whole_of_parts(module: &Module, concat: InstructionId) -> Option<InstructionId> {
    let operands = &module.instructions[concat].operands;
    let parts: Option<Vec<Move>> = operands.iter().map(|&done| part(module, done)).collect();
    let parts = parts?;
    let source = parts.first()?.source;
    let array = module.shape(source).as_array()?;
    // The one dimension that is cut, and from where to where. The slices are listed as they arrive, in any order.
    let mut cuts: Vec<(usize, i64, i64)> = Vec::new();
    for part in &parts {
        let Op::Slice { dimensions } = &module.instructions[part.slice?].op else { return None };
        let whole = |d: usize| dimensions[d].start == 0 && dimensions[d].limit == array.dimensions[d];
        let mut cut = (0..dimensions.len()).filter(|&d| !whole(d));
        let along = cut.next()?;
        if part.source != source || cut.next().is_some() || dimensions[along].stride != 1 {
            return None;
        }
        cuts.push((along, dimensions[along].start, dimensions[along].limit));
    }
    cuts.sort_unstable();
    let (along, first, _) = *cuts.first()?;
    let follows = |pair: &[(usize, i64, i64)]| pair[0].0 == pair[1].0 && pair[0].2 == pair[1].1;
    let is_all = first == 0 && cuts.last()?.2 == array.dimensions[along] && cuts.windows(2).all(follows);
    is_all.then_some(source)
}

fn changes_only_space(module: &Module, from: InstructionId, to: InstructionId, fast: MemorySpaceId) -> bool {
    let (Shape::Array(from), Shape::Array(to)) = (module.shape(from), module.shape(to)) else { return false };
    let spaces = [from.memory_space(), to.memory_space()];
    let (mut plain, mut other) = (from.clone(), to.clone());
    for array in [&mut plain, &mut other] {
        array.layout.iter_mut().for_each(|layout| layout.memory_space = 0);
    }
    plain == other && spaces.contains(&0) && spaces.contains(&i64::from(fast.0))
}

/// Takes the fast memory out of every layout.
fn return_to_main(module: &mut Module, fast: MemorySpaceId) {
    let shapes: Vec<Shape> = module.shapes.iter().cloned().collect();
    let stripped: Vec<_> = shapes
        .into_iter()
        .map(|mut shape| {
            strip(&mut shape, i64::from(fast.0));
            module.intern(shape)
        })
        .collect();
    for instruction in module.instructions.values_mut() {
        if let Some(&shape) = stripped.get(instruction.shape.index()) {
            instruction.shape = shape;
        }
    }
}

/// Recursion is as deep as the shape; the parsers bound that depth.
fn strip(shape: &mut Shape, fast: i64) {
    match shape {
        Shape::Tuple(elements) => Arc::make_mut(elements).iter_mut().for_each(|element| strip(element, fast)),
        Shape::Array(array) | Shape::Buffer(array) => {
            array.layout.iter_mut().filter(|l| l.memory_space == fast).for_each(|l| l.memory_space = 0);
        }
        Shape::Token | Shape::Opaque => {}
    }
}

fn become_plain(instruction: &mut Instruction, op: Op, operands: Operands) {
    instruction.op = op;
    instruction.operands = operands;
    instruction.called.clear();
    instruction.backend_config = None;
}

/// Which values are one, and which share memory, as copies go.
struct Joining {
    /// Values that are the same.
    names: UnionFind<u32>,
    /// Buffers that became one.
    classes: UnionFind<u32>,
    members: SecondaryMap<BufferId, Vec<(ValueId, LiveRange)>>,
}

impl Joining {
    fn new(module: &Module, facts: &Facts) -> Joining {
        let mut members: SecondaryMap<BufferId, Vec<(ValueId, LiveRange)>> = SecondaryMap::new();
        for (buffer, values) in facts.buffers.values.iter() {
            let is_table = |value: ValueId| {
                let definition = facts.flow.values[value].definition;
                let id = facts.flow.positions.instruction(definition);
                let index = facts.flow.positions.shape_index(definition);
                module.shape(id).subshape(index).is_some_and(Shape::is_tuple)
            };
            let arrays = values.iter().copied().filter(|&value| !is_table(value));
            members[buffer] = arrays.map(|value| (value, facts.live.of(value))).collect();
        }
        Joining {
            names: UnionFind::new(facts.flow.values.len()),
            classes: UnionFind::new(facts.buffers.values.len()),
            members,
        }
    }

    /// Makes source and copy one value, if then no two values need the same memory at a time.
    fn join(&mut self, module: &Module, facts: &Facts, source: InstructionId, done: InstructionId) -> bool {
        let find = |id| facts.flow.find(id, &ShapeIndex::root());
        let (Some(a), Some(b)) = (find(source), find(done)) else { return false };
        let class = |joining: &mut Joining, value| {
            BufferId::new(joining.classes.find_mut(facts.buffers.of(value).as_u32()) as usize)
        };
        let (first, second) = (class(self, a), class(self, b));
        let (one, other) = (self.names.find_mut(a.as_u32()), self.names.find_mut(b.as_u32()));
        if first == second && one != other {
            return false;
        }
        let name = |joining: &mut Joining, value: ValueId| match joining.names.find_mut(value.as_u32()) {
            name if name == other => one,
            name => name,
        };
        let (left, right) = (self.members[first].clone(), self.members[second].clone());
        for &(x, range) in &left {
            for &(y, with) in &right {
                if name(self, x) != name(self, y)
                    && range.interferes(&with)
                    && !(takes_over(module, facts, x, y) || takes_over(module, facts, y, x))
                {
                    return false;
                }
            }
        }
        let all = || left.iter().chain(&right).map(|&(value, _)| value);
        let is_fixed = |value: ValueId| match facts.flow.values[value].kind {
            ValueKind::Parameter => !facts.live.is_given_up(value),
            _ => {
                let id = facts.flow.positions.instruction(facts.flow.values[value].definition);
                matches!(module.instructions[id].op, Op::Constant(_))
            }
        };
        // Read-only values and arguments are alone; so is each result.
        let parameters = all().filter(|&v| facts.flow.values[v].kind == ValueKind::Parameter).count();
        let fixed = all().any(is_fixed);
        let is_one_value = {
            let names: Vec<u32> = all().map(|value| name(self, value)).collect();
            names.iter().all(|&n| n == names[0])
        };
        let outs = [&left, &right].map(|side| side.iter().any(|&(v, _)| facts.live.is_live_out(v)));
        if parameters > 1 || (fixed && (!is_one_value || outs[0] || outs[1])) || (outs[0] && outs[1]) {
            return false;
        }
        self.names.union(one, other);
        self.classes.union(first.as_u32(), second.as_u32());
        let kept = class(self, a);
        self.members[kept] = left.into_iter().chain(right).collect();
        true
    }
}

/// Whether a value may be written over another one, which is read last by the instruction that writes it.
fn takes_over(module: &Module, facts: &Facts, old: ValueId, new: ValueId) -> bool {
    let definition = facts.flow.values[new].definition;
    let id = facts.flow.positions.instruction(definition);
    let output = facts.flow.positions.shape_index(definition);
    let operands = module.instructions[id].operands.iter().enumerate();
    let mut numbers =
        operands.filter(|&(_, &o)| facts.flow.value_of(o) == Some(old)).map(|(n, _)| n).peekable();
    facts.live.of(old).end <= facts.line.time(id) + 1
        && numbers.peek().is_some()
        && numbers.all(|number| facts.in_place.may_take_over(module, id, number, output))
}

/// Removes instructions from the schedule, and replaces their uses.
fn replace(
    module: &mut Module,
    replaced: &SecondaryMap<InstructionId, PackedOption<InstructionId>>,
    gone: &EntitySet<InstructionId>,
) {
    let resolve = |mut id: InstructionId| {
        while let Some(by) = replaced[id].expand() {
            id = by;
        }
        id
    };
    for computation in module.computations.values_mut() {
        computation.instructions.retain(|&id| !gone.contains(id));
        computation.root = resolve(computation.root);
        for &id in &computation.instructions {
            let instruction = &mut module.instructions[id];
            for operand in instruction.operands.iter_mut().chain(&mut instruction.control_predecessors) {
                *operand = resolve(*operand);
            }
            instruction.control_predecessors.retain(|predecessor| !gone.contains(*predecessor));
        }
    }
}
