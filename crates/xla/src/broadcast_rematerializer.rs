//! `broadcast-rematerializer`: writes an array of one repeated number again for each of its readers, instead of copying
//! it.
//!
//! ```text
//!   b = f32[512,512] fusion(), calls={broadcast(0)}      =>      b = f32[512,512] fusion(), calls={broadcast(0)}
//!   c = f32[512,512] copy(b)                                     c = f32[512,512] fusion(), calls={broadcast(0)}
//!   t1 = tuple(b), t2 = tuple(c)                                 t1 = tuple(b), t2 = tuple(c)
//! ```
//!
//! XLA's GPU compiler does this in the entry computation (seen on jaxlib 0.12.0.1), so that no array is kept for the
//! copies. It copies small arrays, and arrays of which a single instruction reads the original and the copies. Runs
//! after copy insertion. *Changed* means that there was such a copy.

use memplan_ir::{InstructionId, Module, Op, Users};
use memplan_rewriter::unshare::{CloneNames, clone_computation};
use memplan_rewriter::{Context, PassError, cost};
use rustc_hash::FxHashSet;
use serde::Deserialize;

/// What is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BroadcastRematerializerRules {
    /// The least bytes of an array.
    pub min_bytes: u64,
}

pass_with_rules!(
    BROADCAST_REMATERIALIZER = BroadcastRematerializer(BroadcastRematerializerRules),
    "broadcast-rematerializer",
    "write an array of one number for each reader rather than copy it, as XLA's GPU compiler does",
    run
);

fn run(
    module: &mut Module,
    context: &Context<'_>,
    rules: &BroadcastRematerializerRules,
) -> Result<bool, PassError> {
    let users = Users::new(module);
    let is_large = |id: InstructionId| cost::result_bytes(module, context.target, id) >= rules.min_bytes;
    let listed = &module.computations[module.entry].instructions;
    let filled = listed.iter().filter(|&&id| is_filled(module, id) && is_large(id));
    let copies: Vec<InstructionId> = filled.flat_map(|&id| copies_of(module, &users, id)).collect();
    let mut names = CloneNames::new(module);
    for &copy in &copies {
        write_again(module, copy, &mut names);
    }
    if !copies.is_empty() {
        module.compact();
    }
    Ok(!copies.is_empty())
}

/// Whether a kernel writes an array, and reads nothing.
fn is_filled(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_free = instruction.operands.is_empty() && instruction.control_predecessors.is_empty();
    is_free && matches!(instruction.op, Op::Fusion(_)) && module.shape(id).as_array().is_some()
}

/// The copies of an array, if several instructions read it and them.
fn copies_of(module: &Module, users: &Users, id: InstructionId) -> Vec<InstructionId> {
    let is_copy = |user: &InstructionId| {
        module.instructions[*user].op == Op::Copy && module.shape(*user) == module.shape(id)
    };
    let (copies, others): (Vec<_>, Vec<_>) = users.of(id).iter().copied().partition(is_copy);
    let behind = copies.iter().flat_map(|&copy| users.of(copy)).copied();
    let readers: FxHashSet<InstructionId> = others.into_iter().chain(behind).collect();
    if readers.len() > 1 { copies } else { Vec::new() }
}

/// Lets the kernel that an array is copied from write it again in place of the copy.
fn write_again(module: &mut Module, copy: InstructionId, names: &mut CloneNames) {
    let filled = module.instructions[module.instructions[copy].operands[0]].clone();
    let called = clone_computation(module, filled.called[0], names);
    let instruction = &mut module.instructions[copy];
    (instruction.op, instruction.called) = (filled.op, [called].into_iter().collect());
    instruction.operands.clear();
}
