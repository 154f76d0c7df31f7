//! Turns the kernels of a computation into fusion instructions.

use memplan_ir::{ComputationId, FusionKind, InstructionId, Module, Names, Op};
use memplan_memory::Target;
use memplan_rewriter::cost::Hero;
use memplan_rewriter::fusions::{self, Fused, Kind, Members};
use rustc_hash::{FxHashMap, FxHashSet};

use super::kernels::{Grouping, Kernel};

/// Replaces every group by a fusion in place of its root, and views by bitcasts where layouts are assigned. Says whether
/// anything changed.
pub(super) fn emit(
    module: &mut Module,
    target: &Target,
    computation: ComputationId,
    grouping: &Grouping,
    views_are_bitcasts: bool,
    names: &mut Names,
) -> bool {
    let mut changed = views_are_bitcasts && !grouping.views.is_empty();
    for &id in &module.computations[computation].instructions {
        if views_are_bitcasts && grouping.is_view(id) {
            module.instructions[id].op = Op::Bitcast;
        }
    }
    let is_stored = |id: &InstructionId| grouping.kernel_rooted_at(*id).is_some();
    // Kernels were begun from the last to the first; names count from the first. An expensive operation alone is no fusion.
    // Anything else is, so that nothing is left for a second run.
    let is_fusion =
        |kernel: &&Kernel| !kernel.members.is_empty() && (kernel.hero.is_none() || kernel.members.len() > 1);
    let kernels = grouping.kernels.values().rev().filter(is_fusion);
    let copy = |module: &mut Module, kernel: &Kernel, names: &mut Names| {
        let members = Members { roots: &kernel.roots, all: &kernel.members };
        fusions::fused_computation(module, target, members, kernel.opcode(module), names)
    };
    // What another kernel stores is copied before it becomes a call of that one.
    let mut copied: FxHashMap<InstructionId, Fused> = FxHashMap::default();
    for kernel in kernels.clone() {
        if kernel.members.iter().any(|member| is_stored(member) && !kernel.roots.contains(member)) {
            copied.insert(kernel.roots[0], copy(module, kernel, names));
        }
    }
    let mut inside: FxHashSet<InstructionId> = FxHashSet::default();
    let mut has_several_results = false;
    for kernel in kernels {
        inside.extend(kernel.members.iter().filter(|member| !is_stored(member)));
        let fused = copied.remove(&kernel.roots[0]).unwrap_or_else(|| copy(module, kernel, names));
        let kind = kind_of(target, kernel);
        match kernel.roots[..] {
            [root] => fusions::replace(module, &kind, root, fused, names),
            _ => {
                fusions::replace_several(module, &kind, computation, &kernel.roots, fused, names);
                has_several_results = true;
            }
        }
        changed = true;
    }
    module.computations[computation].instructions.retain(|id| !inside.contains(id));
    if has_several_results {
        module.put_operands_first(computation);
    }
    changed
}

fn kind_of(target: &Target, kernel: &Kernel) -> Kind {
    let plain = |kind| Kind { kind, config: None };
    let contraction = match kernel.hero {
        None | Some((_, Hero::Update)) => return plain(FusionKind::Loop),
        Some((_, Hero::Reduction)) => return plain(FusionKind::Input),
        Some((_, Hero::Dot)) => &target.fusion.dot,
        Some((_, Hero::Convolution)) => &target.fusion.convolution,
    };
    match contraction.kernel.as_str() {
        "" => plain(FusionKind::Output),
        name => {
            let config = format!(r#"{{"fusion_backend_config":{{"kind":"{name}"}}}}"#);
            Kind { kind: FusionKind::Custom, config: Some(config.into_bytes().into()) }
        }
    }
}
