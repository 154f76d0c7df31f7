//! Turns groups of instructions into fusion instructions.

use memplan_ir::{
    ComputationId, Fusion, FusionKind, Instruction, InstructionId, Module, Names, Op, Opcode, Operands, Shape,
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

/// What a fusion is made of.
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

/// A computation of a kernel's members, and what it must be called with.
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
    let mut inner: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut operands = Operands::new();
    let is_member: FxHashSet<InstructionId> = members.all.iter().copied().collect();
    // Parameters first, in the order in which the members read them.
    for &member in members.all.iter().rev() {
        for i in 0..module.instructions[member].operands.len() {
            let operand = module.instructions[member].operands[i];
            if is_member.contains(&operand) || inner.contains_key(&operand) {
                continue;
            }
            let copy = match cost::is_embedded(module, target, operand) {
                true => module.instructions[operand].clone(),
                false => {
                    let number = operands.len() as u32;
                    operands.push(operand);
                    let shape = module.instructions[operand].shape;
                    Instruction::new(format!("param_{number}"), shape, Op::Parameter { number }, [], fused)
                }
            };
            let is_parameter = matches!(copy.op, Op::Parameter { .. });
            let id = module.add_instruction(Instruction { parent: fused, ..copy });
            if is_parameter {
                module.computations[fused].parameters.push(id);
            }
            inner.insert(operand, id);
        }
    }
    for &member in members.all.iter().rev() {
        let mut copy = module.instructions[member].clone();
        copy.parent = fused;
        // Operands are parameters, or members that have been copied before.
        copy.operands.iter_mut().for_each(|operand| *operand = inner[operand]);
        inner.insert(member, module.add_instruction(copy));
    }
    module.computations[fused].root = match members.roots[..] {
        [root] => inner[&root],
        _ => {
            let roots: Vec<InstructionId> = members.roots.iter().rev().map(|root| inner[root]).collect();
            add_flat_tuple(module, fused, &roots, names)
        }
    };
    Fused { computation: fused, operands, opcode }
}

/// A tuple of the arrays of several results, some of which may be tuples themselves.
fn add_flat_tuple(
    module: &mut Module,
    parent: ComputationId,
    roots: &[InstructionId],
    names: &mut Names,
) -> InstructionId {
    let mut arrays: Vec<InstructionId> = Vec::new();
    for &root in roots {
        let Some(elements) = module.shape(root).as_tuple().map(<[Shape]>::to_vec) else {
            arrays.push(root);
            continue;
        };
        for (index, element) in (0..).zip(elements) {
            let shape = module.intern(element);
            let name = names.fresh("get-tuple-element");
            let get = Instruction::new(name, shape, Op::GetTupleElement { index }, [root], parent);
            arrays.push(module.add_instruction(get));
        }
    }
    let shape = Shape::Tuple(arrays.iter().map(|&array| module.shape(array).clone()).collect());
    let shape = module.intern(shape);
    module.add_instruction(Instruction::new(names.fresh("tuple"), shape, Op::Tuple, arrays, parent))
}

/// Calls a kernel with one result where its root stood.
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
    let shape = module.instructions[module.computations[fused.computation].root].shape;
    let call = Instruction {
        shape,
        metadata: module.instructions[first].metadata.clone(),
        ..Instruction::new("", shape, Op::Tuple, [], parent)
    };
    let call = module.instructions.push(call);
    let mut index = 0;
    for &root in roots.iter().rev() {
        let Some(elements) = module.shape(root).as_tuple().map(<[Shape]>::to_vec) else {
            become_element(module, root, call, index);
            index += 1;
            continue;
        };
        // The tuple of a reduction of several arrays is put together again.
        let mut arrays = Operands::new();
        for element in elements {
            let shape = module.intern(element);
            let name = names.fresh("get-tuple-element");
            let get = Instruction::new(name, shape, Op::GetTupleElement { index }, [call], parent);
            arrays.push(module.instructions.push(get));
            index += 1;
        }
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
