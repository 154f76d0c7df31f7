//! Makes tuples explicit whose single elements are to be replaced.

use memplan_ir::ElementType::U32;
use memplan_ir::{
    ComputationId, Cursor, Insert, Instruction, InstructionId, Module, Names, Op, OutputOperandAlias, Shape,
    ShapeIndex,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Gives each loop of a computation, and every other instruction that overwrites elements of a tuple, its own explicit
/// tuple as operand, and with `root` the computation an explicit tuple as root, at all levels; a result that is not a
/// tuple stays, and so do operations in flight. Returns whether anything was added.
///
/// ```text
///   w = while(p), ...      =>      e = get-tuple-element(p), index=0    t = tuple(e)    w = while(t), ...
/// ```
pub(crate) fn spell_out_tuples(
    module: &mut Module,
    computation: ComputationId,
    root: bool,
    names: &mut Names,
) -> bool {
    let ids = &module.computations[computation].instructions;
    let n = ids.len();
    let n_uses = count_uses(module, ids, module.computations[computation].root);
    module.edit_in_order(computation, |module, id| {
        for number in overwritten_operands(&module.instructions[id]) {
            let operand = module.instructions[id].operands[number];
            module.instructions[id].operands[number] =
                spell_out(module, operand, computation, &n_uses, false, names);
        }
        module.list(id);
    });
    if root {
        let root = module.computations[computation].root;
        module.computations[computation].root = spell_out(module, root, computation, &n_uses, false, names);
    }
    module.computations[computation].instructions.len() != n
}

/// The operands that an instruction may overwrite elements of.
fn overwritten_operands(instruction: &Instruction) -> SmallVec<[usize; 1]> {
    let declared = match &instruction.op {
        Op::While => return SmallVec::from_elem(0, 1),
        op if op.permutes_in_place() => return SmallVec::from_elem(1, 1),
        Op::Fusion(fusion) => &fusion.output_operand_aliasing,
        Op::CustomCall(call) => &call.output_operand_aliasing,
        Op::AsyncStart(start) => &start.output_operand_aliasing,
        _ => return SmallVec::new(),
    };
    let mut operands: SmallVec<[usize; 1]> = declared.iter().map(|alias| alias.operand as usize).collect();
    operands.sort_unstable();
    operands.dedup();
    operands
}

/// Makes the starts of asynchronous operations on references to memory declare that their operands are overwritten:
/// such a reference is the result, which cannot be a copy. Returns whether anything was declared.
pub(crate) fn declare_references(module: &mut Module, computation: ComputationId) -> bool {
    let mut changed = false;
    for id in module.computations[computation].instructions.clone() {
        let instruction = &module.instructions[id];
        let (Op::AsyncStart(start), &[wrapped]) = (&instruction.op, instruction.called.as_slice()) else {
            continue;
        };
        let declare = |alias: OutputOperandAlias| {
            let output_index = ShapeIndex::from([1]).join(&alias.output_index);
            let is_new = start.output_operand_aliasing.iter().all(|known| known.output_index != output_index);
            is_new.then_some(OutputOperandAlias { output_index, ..alias })
        };
        let declared: Vec<_> =
            overwritten_references(module, wrapped).into_iter().filter_map(declare).collect();
        changed |= !declared.is_empty();
        if let Op::AsyncStart(start) = &mut module.instructions[id].op {
            start.output_operand_aliasing.extend(declared);
        }
    }
    changed
}

/// The references among a computation's parameters that the library call at its root overwrites, which may be behind calls:
/// by the numbers of parameters.
fn overwritten_references(module: &Module, computation: ComputationId) -> Vec<OutputOperandAlias> {
    let root_of = |computation: ComputationId| &module.instructions[module.computations[computation].root];
    let mut roots = vec![root_of(computation)];
    while let Some(Instruction { op: Op::Call { .. }, called, .. }) = roots.last() {
        roots.push(root_of(called[0]));
    }
    let mut aliases = match &roots[roots.len() - 1].op {
        Op::CustomCall(call) => call.output_operand_aliasing.clone(),
        _ => return Vec::new(),
    };
    for root in roots.into_iter().rev() {
        aliases.retain_mut(|alias| {
            let operand = root.operands[alias.operand as usize];
            let is_reference = module.shape(operand).subshape(&alias.operand_index);
            let Op::Parameter { number } = module.instructions[operand].op else { return false };
            alias.operand = number;
            matches!(is_reference, Some(Shape::Buffer(_)))
        });
    }
    aliases
}

fn count_uses(
    module: &Module,
    ids: &[InstructionId],
    root: InstructionId,
) -> FxHashMap<InstructionId, usize> {
    let mut uses = FxHashMap::default();
    for &operand in ids.iter().flat_map(|&id| &module.instructions[id].operands).chain([&root]) {
        if module.shape(operand).is_tuple() {
            *uses.entry(operand).or_default() += 1;
        }
    }
    uses
}

/// An explicit tuple, at all levels, with the elements of `id`: itself where it is one already and not shared, neither by
/// its own users nor as a part of a tuple that is.
fn spell_out(
    module: &mut Module,
    id: InstructionId,
    computation: ComputationId,
    n_uses: &FxHashMap<InstructionId, usize>,
    is_part_of_shared: bool,
    names: &mut Names,
) -> InstructionId {
    let Some(elements) = module.shape(id).as_tuple().map(<[Shape]>::to_vec) else { return id };
    let is_tuple = module.instructions[id].op == Op::Tuple;
    let is_shared = is_part_of_shared || n_uses.get(&id).is_some_and(|&uses| uses > 1);
    let mut parts = Vec::with_capacity(elements.len());
    for (i, element) in elements.into_iter().enumerate() {
        let is_nested = element.is_tuple() && !is_in_flight(&element);
        let part = match is_tuple {
            true => module.instructions[id].operands[i],
            false => {
                let name = format!("{}.element.{}", module.instructions[id].name, module.instructions.len());
                Cursor::end(module, names, computation).named_unique(&name).get_tuple_element(id, i as u32)
            }
        };
        parts.push(match is_nested {
            true => spell_out(module, part, computation, n_uses, is_shared, names),
            false => part,
        });
    }
    if is_tuple && !is_shared && parts.as_slice() == module.instructions[id].operands.as_slice() {
        return id;
    }
    let name = format!("{}.tuple.{}", module.instructions[id].name, module.instructions.len());
    Cursor::beside(module, names, id).named_unique(&name).tuple(parts)
}

/// Whether a shape is that of a send or receive in flight: data, context, token. It goes around loops as a whole.
pub(crate) fn is_in_flight(shape: &Shape) -> bool {
    matches!(
        shape.as_tuple(),
        Some([_, Shape::Array(context), Shape::Token]) if context.element_type == U32 && context.rank() == 0
    )
}

/// The leaves of an explicit tuple: shape index, the instruction that holds it, a tuple or a send, and the operand number.
pub(crate) fn tuple_leaves(module: &Module, id: InstructionId) -> Vec<(ShapeIndex, InstructionId, usize)> {
    let mut leaves = Vec::new();
    let mut pending = vec![(ShapeIndex::root(), id)];
    while let Some((index, tuple)) = pending.pop() {
        match module.instructions[tuple].op {
            Op::Tuple => {}
            Op::Send(_) => {
                leaves.push((index.child(0), tuple, 0));
                continue;
            }
            _ => continue,
        }
        for (number, &element) in module.instructions[tuple].operands.iter().enumerate() {
            let index = index.child(number as u32);
            match module.shape(element).is_tuple() {
                true => pending.push((index, element)),
                false => leaves.push((index, tuple, number)),
            }
        }
    }
    leaves.sort();
    leaves
}
