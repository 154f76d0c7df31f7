//! Turning groups of instructions into fusion instructions.

use memplan_ir::{ComputationId, Fusion, FusionKind, Instruction, InstructionId, Module, Op};
use memplan_memory::Target;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::kernels::{Grouping, Kernel};
use crate::cost::{self, Hero};

/// Fresh names for computations and fusions.
pub(crate) struct Names {
    taken: FxHashSet<Box<str>>,
    next: u32,
}

impl Names {
    /// Every name of a module is taken.
    pub(crate) fn new(module: &Module) -> Names {
        let computations = module.computations.values();
        let instructions = computations.clone().flat_map(|computation| &computation.instructions);
        let taken = computations
            .map(|computation| computation.name.clone())
            .chain(instructions.map(|&id| module.instructions[id].name.clone()))
            .collect();
        Names { taken, next: 0 }
    }

    /// A name that is not taken, made from a stem.
    pub(crate) fn fresh(&mut self, stem: &str) -> Box<str> {
        loop {
            self.next += 1;
            let name = format!("{stem}.{}", self.next).into_boxed_str();
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// Replaces every group by a fusion in place of its root, and views by bitcasts. Says whether anything changed.
pub(super) fn emit(
    module: &mut Module,
    target: &Target,
    computation: ComputationId,
    grouping: &Grouping,
    names: &mut Names,
) -> bool {
    let mut changed = !grouping.views.is_empty();
    for &id in &module.computations[computation].instructions {
        if grouping.is_view(id) {
            module.instructions[id].op = Op::Bitcast;
        }
    }
    let mut inside: FxHashSet<InstructionId> = FxHashSet::default();
    // Kernels were begun from the last to the first; names count from the first.
    for kernel in grouping.kernels.values().rev() {
        // An expensive operation alone is no fusion. Anything else is, so that nothing is left for a second run.
        if kernel.hero.is_some() && kernel.members.len() == 1 {
            continue;
        }
        emit_kernel(module, target, computation, kernel, names);
        inside.extend(&kernel.members[1..]);
        changed = true;
    }
    module.computations[computation].instructions.retain(|id| !inside.contains(id));
    changed
}

/// Moves a kernel's root into a new computation, with copies of the other members, and calls it where the root stood.
fn emit_kernel(module: &mut Module, target: &Target, parent: ComputationId, kernel: &Kernel, names: &mut Names) {
    let root = kernel.root;
    let opcode = kernel.opcode(module).to_string().replace('-', "_");
    let fused = module.add_computation(names.fresh(&format!("fused_{opcode}")));
    let mut inner: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut operands: SmallVec<[InstructionId; 3]> = SmallVec::new();
    let is_member: FxHashSet<InstructionId> = kernel.members.iter().copied().collect();

    // Parameters first, in the order in which the members read them.
    for &member in kernel.members.iter().rev() {
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
    for &member in kernel.members.iter().rev() {
        let mut copy = module.instructions[member].clone();
        copy.parent = fused;
        for operand in &mut copy.operands {
            *operand = inner[&*operand]; // a parameter, or a member that stands before
        }
        inner.insert(member, module.add_instruction(copy));
    }
    module.computations[fused].root = inner[&root];

    let (kind, config) = kind_of(target, kernel);
    let name = names.fresh(&format!("{}_fusion", stem_of(kind, &opcode)));
    let instruction = &mut module.instructions[root];
    instruction.name = name;
    instruction.op = Op::Fusion(Box::new(Fusion { kind, output_operand_aliasing: Vec::new() }));
    instruction.operands = operands;
    instruction.called = SmallVec::from_iter([fused]);
    instruction.backend_config = config;
    instruction.parent = parent;
}

/// The kind that XLA gives such a fusion, and the name of the code generator where the target says one.
fn kind_of(target: &Target, kernel: &Kernel) -> (FusionKind, Option<Box<[u8]>>) {
    let contraction = match kernel.hero {
        None => return (FusionKind::Loop, None),
        Some((_, Hero::Update)) => return (FusionKind::Loop, None),
        Some((_, Hero::Reduction)) => return (FusionKind::Input, None),
        Some((_, Hero::Dot)) => &target.fusion.dot,
        Some((_, Hero::Convolution)) => &target.fusion.convolution,
    };
    match contraction.kernel.as_str() {
        "" => (FusionKind::Output, None),
        name => {
            let config = format!(r#"{{"fusion_backend_config":{{"kind":"{name}"}}}}"#);
            (FusionKind::Custom, Some(config.into_bytes().into()))
        }
    }
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
