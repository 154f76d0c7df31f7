//! Turns groups of instructions into fusion instructions.

use memplan_ir::{
    ComputationId, Cursor, Fusion, FusionKind, Insert, InstructionId, Module, Names, Op, Opcode, Operands,
};
use memplan_memory::Target;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::cost;

/// Replaces the root of each group by a fusion of all its members. Members may be in several groups; other instructions
/// are left to dead code elimination.
pub fn emit_in_place<'a>(
    module: &mut Module,
    target: &Target,
    groups: impl Iterator<Item = Members<'a>>,
    kind: &Kind,
    names: &mut Names,
) {
    // All are copied before the first is replaced: a root may be a member elsewhere.
    let fused: Vec<(InstructionId, Fused)> = groups
        .map(|members| {
            let root = members.roots[0];
            let opcode = module.instructions[root].opcode();
            (root, fused_computation(module, target, members, opcode, names))
        })
        .collect();
    for (root, fused) in fused {
        replace(module, kind, root, fused, names);
    }
}

/// The instructions of a fusion.
#[derive(Clone, Copy)]
pub struct Members<'a> {
    /// The instructions whose results it writes, last in the text first.
    pub roots: &'a [InstructionId],
    /// All instructions, users before operands.
    pub all: &'a [InstructionId],
}

/// The kind that XLA gives a fusion, and the name of the code generator where the target says one.
pub struct Kind {
    /// The kind.
    pub kind: FusionKind,
    /// The backend configuration that names the code generator.
    pub config: Option<Box<[u8]>>,
}

/// A computation of a kernel's members, and its operands.
pub struct Fused {
    computation: ComputationId,
    operands: Operands,
    opcode: String,
}

/// Copies a kernel's members into a new computation.
pub fn fused_computation(
    module: &mut Module,
    target: &Target,
    members: Members<'_>,
    opcode: Opcode,
    names: &mut Names,
) -> Fused {
    let opcode = opcode.to_string().replace('-', "_");
    let fused = module.add_computation(names.fresh(&format!("fused_{opcode}")));
    let parent = module.instructions[members.roots[0]].parent;
    module.computations[fused].execution_thread = module.computations[parent].execution_thread.clone();
    let mut at = Cursor::end(module, names, fused);
    let mut inner: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    inner.reserve(2 * members.all.len());
    let mut operands = Operands::new();
    let is_member: FxHashSet<InstructionId> = members.all.iter().copied().collect();
    // Parameters first, in the order in which the members read them.
    let mut readers = members.all.to_vec();
    if !target.fusion.operands_of_result_first {
        readers.reverse();
    }
    for member in readers {
        for i in 0..at.module().instructions[member].operands.len() {
            let operand = at.module().instructions[member].operands[i];
            if is_member.contains(&operand) || inner.contains_key(&operand) {
                continue;
            }
            let copy = match cost::is_embedded(at.module(), target, operand) {
                true => at.copy_edited(operand, |_| {}),
                false => {
                    let name = format!("param_{}", operands.len());
                    operands.push(operand);
                    let shape = at.module().shape(operand).clone();
                    at.named_exactly(name).parameter(shape)
                }
            };
            inner.insert(operand, copy);
        }
    }
    for &member in members.all.iter().rev() {
        // Operands are parameters, or members that have been copied before.
        let copy = at.copy_edited(member, |copy| {
            copy.operands.iter_mut().for_each(|operand| *operand = inner[operand]);
        });
        inner.insert(member, copy);
    }
    let root = match members.roots[..] {
        [root] => inner[&root],
        _ => {
            // The arrays of several results, some of which may be tuples themselves.
            let mut arrays: Vec<InstructionId> = Vec::new();
            for root in members.roots.iter().rev().map(|root| inner[root]) {
                match at.module().shape(root).is_tuple() {
                    true => arrays.extend(at.elements(root)),
                    false => arrays.push(root),
                }
            }
            at.tuple(arrays)
        }
    };
    module.computations[fused].root = root;
    Fused { computation: fused, operands, opcode }
}

/// Replaces the root by a call of a kernel with one result.
pub fn replace(module: &mut Module, kind: &Kind, root: InstructionId, fused: Fused, names: &mut Names) {
    let name = names.fresh(&format!("{}_fusion", stem_of(kind.kind, &fused.opcode)));
    let instruction = &mut module.instructions[root];
    instruction.name = name;
    instruction.op = Op::Fusion(Box::new(Fusion { kind: kind.kind, output_operand_aliasing: Vec::new() }));
    instruction.operands = fused.operands;
    instruction.called = SmallVec::from_iter([fused.computation]);
    instruction.backend_config = kind.config.clone();
    // How exact it is, the operation inside says.
    if let Some(extras) = &mut instruction.extras {
        extras.result_accuracy = None;
    }
}

/// Calls a kernel with several results, and makes each root an element of them. The call is in no computation's
/// list yet.
pub fn replace_several(
    module: &mut Module,
    kind: &Kind,
    parent: ComputationId,
    roots: &[InstructionId],
    fused: Fused,
    names: &mut Names,
) {
    let first = *roots.last().expect("a kernel has a root");
    let shape = module.shape(module.computations[fused.computation].root).clone();
    // It becomes the call below, which names it.
    let mut at = Cursor::unlisted(module, names, parent).with_metadata_of(first);
    let call = at.named_exactly("").insert_shaped(Op::Tuple, [], shape);
    let mut index = 0;
    for &root in roots.iter().rev() {
        let Some(n) = module.shape(root).as_tuple().map(|elements| elements.len() as u32) else {
            become_element(module, root, call, index);
            index += 1;
            continue;
        };
        // The tuple of a reduction of several arrays is put together again.
        let mut at = Cursor::unlisted(module, names, parent);
        let arrays: Operands = (index..index + n).map(|index| at.get_tuple_element(call, index)).collect();
        index += n;
        let instruction = &mut module.instructions[root];
        (instruction.op, instruction.operands) = (Op::Tuple, arrays);
        instruction.called.clear();
    }
    replace(module, kind, call, fused, names);
}

fn become_element(module: &mut Module, id: InstructionId, of: InstructionId, index: u32) {
    let instruction = &mut module.instructions[id];
    instruction.op = Op::GetTupleElement { index };
    instruction.operands = SmallVec::from_iter([of]);
    instruction.called.clear();
    instruction.backend_config = None;
}

fn stem_of(kind: FusionKind, opcode: &str) -> String {
    let kind = match kind {
        FusionKind::Loop => "loop",
        FusionKind::Input => "input",
        FusionKind::Output => "output",
        FusionKind::Custom => "custom",
    };
    format!("{kind}_{opcode}")
}
