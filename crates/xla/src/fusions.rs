//! Makes fusions of groups of instructions, for passes that follow XLA's own.

use memplan_ir::{FusionKind, InstructionId, Module, Names};
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
