//! `sort-iota-fusion`: a sort also generates the element numbers that it sorts as a second operand.
//!
//! ```text
//!   i = s32[n] iota()                        =>      t = (f32[n], s32[n]) fusion(x), kind=kCustom,
//!   t = (f32[n], s32[n]) sort(x, i)                      calls={iota, and sort}
//! ```
//!
//! XLA's GPU compiler has a kernel for this (seen on jaxlib 0.10.2), so the numbers are in memory only once, as a
//! result. Like a sort without a fusion, it sorts in place: the fusion declares that it overwrites operands without
//! other readers. *Changed* means that there was such a sort.

use memplan_ir::{FusionKind, InstructionId, Module, Op, OutputOperandAlias, Role, ShapeIndex, Users};
use memplan_rewriter::{Context, PassError, PassFn};

use super::fusions::{self, Group};

/// The pass.
pub const SORT_IOTA_FUSION: PassFn = PassFn {
    name: "sort-iota-fusion",
    description: "number elements in the kernel that sorts them, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let listed = module.computations.values().flat_map(|computation| &computation.instructions);
    let groups: Vec<Group> = listed.filter_map(|&id| sort_and_places(module, id)).collect();
    let changed = fusions::fuse(module, context, &groups, FusionKind::Custom)?;
    if changed {
        declare_in_place(module);
    }
    Ok(changed)
}

/// Says of each fusion of a sort which operands it sorts in place.
fn declare_in_place(module: &mut Module) {
    let users = Users::new(module);
    for id in module.instructions.keys().collect::<Vec<_>>() {
        let instruction = &module.instructions[id];
        let (Op::Fusion(_), &[fused]) = (&instruction.op, instruction.called.as_slice()) else { continue };
        let root = &module.instructions[module.computations[fused].root];
        if !matches!(root.op, Op::Sort { .. }) {
            continue;
        }
        let mut aliases: Vec<OutputOperandAlias> = Vec::new();
        for (i, &sorted) in (0..).zip(&root.operands) {
            let Op::Parameter { number } = module.instructions[sorted].op else { continue };
            let source = module.instructions[id].operands[number as usize];
            if is_read_once(module, &users, source) && aliases.iter().all(|alias| alias.operand != number) {
                let output_index = ShapeIndex::from([i]);
                aliases.push(OutputOperandAlias {
                    operand: number,
                    operand_index: ShapeIndex::default(),
                    output_index,
                });
            }
        }
        if let Op::Fusion(fusion) = &mut module.instructions[id].op {
            fusion.output_operand_aliasing = aliases;
        }
    }
}

/// Whether an instruction is computed, and is read by one other alone.
fn is_read_once(module: &Module, users: &Users, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    users.of(id).len() == 1
        && match instruction.op {
            Op::Reshape { .. } | Op::Bitcast => is_read_once(module, users, instruction.operands[0]),
            ref op => op.traits().role == Role::Computes,
        }
}

/// A sort and the operands that number elements, if there are any.
fn sort_and_places(module: &Module, id: InstructionId) -> Option<Group> {
    let instruction = &module.instructions[id];
    let is_places = |operand: &InstructionId| matches!(module.instructions[*operand].op, Op::Iota { .. });
    let mut members = vec![id];
    members.extend(instruction.operands.iter().copied().filter(is_places));
    members.dedup();
    (matches!(instruction.op, Op::Sort { .. }) && members.len() > 1).then_some(Group { root: id, members })
}
