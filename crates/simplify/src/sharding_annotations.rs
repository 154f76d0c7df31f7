//! `sharding-remover` drops sharding annotations, `sharding-folding` moves them to the operations that they describe.
//!
//! ```text
//! e = f32[8] exponential(p)
//! ROOT a = f32[8] custom-call(e), custom_call_target="Sharding", sharding={devices=[2]<=[2]}
//!     =>
//! ROOT e = f32[8] exponential(p), sharding={devices=[2]<=[2]}
//! ```
//!
//! Annotations say how values are spread over devices, and are not values themselves: a partitioner reads and drops
//! them. With explicit axes, JAX annotates every value; after folding, they do not hide patterns.
//!
//! Leave alone: annotations with control dependencies. Folding leaves alone annotations of parameters, of tuple
//! elements and of other annotations, which may mean a transfer, and annotations of values with other readers, unless
//! they state the obvious: scalars cannot be sharded, and a loop's result is sharded like the end of its body. Require
//! nothing. *Changed* means that an annotation was removed.

use memplan_ir::{InstructionId, Module, Op, Sharding, Users};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter};
use rustc_hash::FxHashSet;

/// Drops annotations of shardings.
pub const SHARDING_REMOVER: PassFn =
    PassFn { name: "sharding-remover", description: "drop sharding annotations", run: remove };

/// Moves annotations of shardings to the operations that they are about.
pub const SHARDING_FOLDING: PassFn = PassFn {
    name: "sharding-folding",
    description: "move sharding annotations to the operations that they describe",
    run: fold,
};

/// Under which Shardy's shardings are noted.
const SHARDY: &str = "xla.sdy.sharding";

fn remove(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let all = module.instructions.keys().filter(|&id| is_annotation(module, id)).collect();
    Ok(drop_annotations(module, &all))
}

fn fold(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let mut folded = FxHashSet::default();
    let annotations: Vec<InstructionId> =
        module.instructions.keys().filter(|&id| is_annotation(module, id)).collect();
    for id in annotations {
        let value = module.instructions[id].operands[0];
        let is_scalar = module.shape(id).as_array().is_some_and(|array| array.rank() == 0);
        let said = own_sharding(module, id);
        if is_scalar || (said.is_some() && sharding_of(module, value) == said) {
            folded.insert(id);
        } else if can_carry(module, &users, value) {
            let notes = module.instructions[id].extras_mut().clone();
            let extras = module.instructions[value].extras_mut();
            extras.sharding = notes.sharding;
            if let Some(sharding) = notes.frontend_attributes.get(SHARDY) {
                extras.frontend_attributes.insert(SHARDY.into(), sharding.clone());
            }
            folded.insert(id);
        }
    }
    Ok(drop_annotations(module, &folded))
}

/// Whether an instruction is its operand, and says how it is spread over devices.
fn is_annotation(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    matches!(&instruction.op, Op::CustomCall(call) if &*call.target == "Sharding" && !call.has_side_effect)
        && instruction.operands.len() == 1
        && instruction.control_predecessors.is_empty()
        && instruction.backend_config.as_ref().is_none_or(|config| config.is_empty())
        && module.shape(id) == module.shape(instruction.operands[0])
}

/// The sharding of a value; for a loop's result, that at the end of its body.
fn sharding_of(module: &Module, id: InstructionId) -> Option<&Sharding> {
    let instruction = &module.instructions[id];
    if let Op::GetTupleElement { index } = instruction.op {
        let whole = &module.instructions[instruction.operands[0]];
        let body = matches!(whole.op, Op::While).then(|| whole.called[0])?;
        let end = &module.instructions[module.computations[body].root];
        let &element = matches!(end.op, Op::Tuple).then(|| end.operands.get(index as usize))??;
        return own_sharding(module, element);
    }
    own_sharding(module, id)
}

fn own_sharding(module: &Module, id: InstructionId) -> Option<&Sharding> {
    module.instructions[id].extras.as_ref()?.sharding.as_ref()
}

/// Whether a value is computed, has no sharding yet, and has readers that all say the same of it.
fn can_carry(module: &Module, users: &Users, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_given =
        matches!(instruction.op, Op::Parameter { .. } | Op::GetTupleElement { .. } | Op::CustomCall(_));
    !is_given
        && module.shape(id).as_array().is_some()
        && users.of(id).iter().all(|&user| is_annotation(module, user))
        && users.of(id).windows(2).all(|two| sharding_of(module, two[0]) == sharding_of(module, two[1]))
        && own_sharding(module, id).is_none()
}

fn drop_annotations(module: &mut Module, annotations: &FxHashSet<InstructionId>) -> bool {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| {
        let is_dropped = annotations.contains(&id) && !r.has_control_dependencies(id);
        is_dropped.then(|| r.operand(id, 0))
    });
    rewriter.finish()
}
