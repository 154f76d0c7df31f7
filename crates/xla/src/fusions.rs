//! Makes fusions of groups of instructions, for passes that follow XLA's own.

use memplan_ir::{ComputationId, FusionKind, InstructionId, Module, Names};
use memplan_memory::Target;
use memplan_rewriter::fusions::{Kind, Members, emit_in_place};
use memplan_rewriter::{Context, DCE, PassError};

/// Instructions to become one fusion; the last one is its result.
pub(super) struct Group {
    /// The instruction that the fusion replaces.
    pub(super) root: InstructionId,
    /// All instructions, users before operands. Each may also be in other groups, or stay outside.
    pub(super) members: Vec<InstructionId>,
}

/// Replaces groups by fusions of a kind, and removes instructions that are not needed outside them any more.
pub(super) fn fuse(
    module: &mut Module,
    context: &Context<'_>,
    groups: &[Group],
    kind: FusionKind,
) -> Result<bool, PassError> {
    if groups.is_empty() {
        return Ok(false);
    }
    let mut names = Names::new(module);
    fuse_all(module, context.target, groups, kind, &mut names);
    if !(DCE.run)(module, context)? {
        module.compact();
    }
    Ok(true)
}

fn fuse_all(module: &mut Module, target: &Target, groups: &[Group], kind: FusionKind, names: &mut Names) {
    let members =
        groups.iter().map(|group| Members { roots: std::slice::from_ref(&group.root), all: &group.members });
    emit_in_place(module, target, members, &Kind { kind, config: None }, names);
}

/// The instructions of a computation in XLA's post-order: depth first from those without users, operands from left to
/// right, each after its operands.
pub(super) fn post_order(module: &Module, computation: ComputationId) -> Vec<InstructionId> {
    let listed = &module.computations[computation].instructions;
    let mut is_used = rustc_hash::FxHashSet::default();
    listed.iter().for_each(|&id| is_used.extend(module.instructions[id].operands.iter().copied()));
    let mut order = Vec::with_capacity(listed.len());
    let mut is_open = rustc_hash::FxHashSet::default();
    let mut is_done = rustc_hash::FxHashSet::default();
    let mut stack: Vec<InstructionId> = Vec::new();
    for &last in listed.iter().filter(|id| !is_used.contains(id)) {
        stack.push(last);
        while let Some(&id) = stack.last() {
            if !is_open.insert(id) {
                stack.pop();
                if is_done.insert(id) {
                    order.push(id);
                }
                continue;
            }
            let instruction = &module.instructions[id];
            stack.extend(instruction.operands.iter().rev().filter(|operand| !is_done.contains(operand)));
            let before = instruction.control_predecessors.iter();
            stack.extend(before.filter(|before| !is_done.contains(before)));
        }
    }
    order
}
