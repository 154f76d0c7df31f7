//! Explicit tuples where single elements are to be replaced.

use memplan_ir::{ComputationId, Instruction, InstructionId, Module, Names, Op, Shape, ShapeIndex};
use rustc_hash::FxHashMap;

/// Gives each loop of a computation an explicit tuple of its own as operand, and the computation an explicit tuple as
/// root, at all levels; a result that is no tuple stays. Returns whether anything was added.
///
/// ```text
///   w = while(p), ...      =>      e = get-tuple-element(p), index=0    t = tuple(e)    w = while(t), ...
/// ```
pub(crate) fn spell_out_tuples(module: &mut Module, computation: ComputationId, names: &mut Names) -> bool {
    let ids = std::mem::take(&mut module.computations[computation].instructions);
    let n = ids.len();
    let n_uses = count_uses(module, &ids, module.computations[computation].root);
    // New instructions are appended to the computation, so rebuilding the list in order puts them before their user.
    for id in ids {
        if module.instructions[id].op == Op::While {
            let init = module.instructions[id].operands[0];
            module.instructions[id].operands[0] = spell_out(module, init, computation, &n_uses, names);
        }
        module.computations[computation].instructions.push(id);
    }
    let root = module.computations[computation].root;
    module.computations[computation].root = spell_out(module, root, computation, &n_uses, names);
    module.computations[computation].instructions.len() != n
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

/// An explicit tuple, at all levels, with the elements of `id`: itself where it is one already and not shared.
fn spell_out(
    module: &mut Module,
    id: InstructionId,
    computation: ComputationId,
    n_uses: &FxHashMap<InstructionId, usize>,
    names: &mut Names,
) -> InstructionId {
    let shape = module.instructions[id].shape;
    let Some(elements) = module.shape_of(shape).as_tuple().map(<[Shape]>::to_vec) else { return id };
    let is_tuple = module.instructions[id].op == Op::Tuple;
    let mut parts = Vec::with_capacity(elements.len());
    for (i, element) in elements.into_iter().enumerate() {
        let is_nested = element.is_tuple();
        let part = match is_tuple {
            true => module.instructions[id].operands[i],
            false => {
                let name = format!("{}.element.{}", module.instructions[id].name, module.instructions.len());
                let shape = module.intern(element);
                let op = Op::GetTupleElement { index: i as u32 };
                module.add_instruction(Instruction::new(names.unique(&name), shape, op, [id], computation))
            }
        };
        parts.push(if is_nested { spell_out(module, part, computation, n_uses, names) } else { part });
    }
    let is_shared = n_uses.get(&id).is_some_and(|&uses| uses > 1);
    if is_tuple && !is_shared && parts.as_slice() == module.instructions[id].operands.as_slice() {
        return id;
    }
    let name = format!("{}.tuple.{}", module.instructions[id].name, module.instructions.len());
    let mut tuple = Instruction::new(names.unique(&name), shape, Op::Tuple, parts, computation);
    tuple.metadata = module.instructions[id].metadata.clone();
    module.add_instruction(tuple)
}

/// The leaves of an explicit tuple: shape index, the tuple instruction and the operand number.
pub(crate) fn tuple_leaves(module: &Module, id: InstructionId) -> Vec<(ShapeIndex, InstructionId, usize)> {
    let mut leaves = Vec::new();
    let mut pending = vec![(ShapeIndex::root(), id)];
    while let Some((index, tuple)) = pending.pop() {
        if module.instructions[tuple].op != Op::Tuple {
            continue;
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
