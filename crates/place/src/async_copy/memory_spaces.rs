//! Memory spaces in layouts: a value in fast memory has `S(n)` wherever it appears.

use cranelift_entity::SecondaryMap;
use indexmap::IndexMap;
use memplan_analysis::{CallGraph, CallGraphError, dataflow};
use memplan_ir::{ArrayShape, InstructionId, Module, Op, Position, Shape, ShapeIndex};
use memplan_memory::FastMemory;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::Placed;

/// Writes the memory space of fast memory into the layouts of values, at every position where they appear.
pub(super) fn set_memory_spaces(
    module: &mut Module,
    fast: FastMemory,
    placed: &[Placed],
) -> Result<(), CallGraphError> {
    let flow = dataflow(module, &CallGraph::new(module)?);
    let mut parts: SecondaryMap<InstructionId, Vec<ShapeIndex>> = SecondaryMap::new();
    let mut seen = FxHashSet::default();
    for Position { instruction, index } in placed.iter().map(|it| &it.position) {
        let value =
            flow.find(*instruction, index).expect("fast memory is assigned in sequential computations");
        if seen.insert(value) {
            for &position in flow.positions_of(value) {
                let id = flow.positions.instruction(position);
                parts[id].push(flow.positions.shape_index(position).clone());
            }
        }
    }
    for (id, parts) in parts.iter().filter(|(_, parts)| !parts.is_empty()) {
        let mut shape = module.shape(id).clone();
        parts.iter().for_each(|index| set_space(&mut shape, index, fast.space.0));
        module.instructions[id].shape = module.intern(shape);
    }
    set_in_fusions(module);
    Ok(())
}

/// Gives parameters and roots of fused computations the memory spaces of the fusions' operands and results. A computation
/// that several fusions share gets those on which they agree.
fn set_in_fusions(module: &mut Module) {
    let mut spaces: FxHashMap<(InstructionId, ShapeIndex), Option<i64>> = FxHashMap::default();
    let mut order = Vec::new();
    let fusions = module.instructions.iter().filter(|(_, i)| matches!(i.op, Op::Fusion(_)));
    for (id, instruction) in fusions {
        let fused = &module.computations[instruction.called[0]];
        let root = &module.instructions[fused.root];
        let mut say = |inner: InstructionId, index: ShapeIndex, outer: &Shape| {
            let space = outer.as_array().map_or(0, ArrayShape::memory_space);
            let said = spaces.entry((inner, index.clone())).or_insert_with(|| {
                order.push((inner, index));
                Some(space)
            });
            if *said != Some(space) {
                *said = None;
            }
        };
        for (&parameter, &operand) in fused.parameters.iter().zip(&instruction.operands) {
            for (index, leaf) in module.shape(operand).leaves() {
                say(parameter, index, leaf);
            }
        }
        for (index, leaf) in module.shape(id).leaves() {
            if let (Op::Tuple, [i]) = (&root.op, index.0.as_slice()) {
                say(root.operands[*i as usize], ShapeIndex::root(), leaf);
            }
            say(fused.root, index, leaf);
        }
    }
    // All parts of a shape before it is interned, since a shared tuple is copied when it changes.
    let mut changed: IndexMap<InstructionId, Shape, FxBuildHasher> = IndexMap::default();
    for (inner, index) in order {
        let Some(space) = spaces[&(inner, index.clone())] else { continue };
        let part = changed.get(&inner).unwrap_or_else(|| module.shape(inner)).subshape(&index);
        if part.and_then(Shape::as_array).is_some_and(|array| array.memory_space() != space) {
            let shape = changed.entry(inner).or_insert_with(|| module.shape(inner).clone());
            set_space(shape, &index, u32::try_from(space).unwrap_or(0));
        }
    }
    for (inner, shape) in changed {
        module.instructions[inner].shape = module.intern(shape);
    }
}

fn set_space(shape: &mut Shape, index: &ShapeIndex, space: u32) {
    let part = shape.subshape_mut(index);
    if let Some(layout) = part.and_then(Shape::as_array_mut).and_then(|array| array.layout.as_mut()) {
        layout.memory_space = i64::from(space);
    }
}
