//! Gives every call site of control flow its own computation.
//!
//! ```text
//!   a = call(x), to_apply=f              a = call(x), to_apply=f
//!   b = call(y), to_apply=f      =>      b = call(y), to_apply=f.clone
//! ```
//!
//! The buffers inside a computation have one address each, so one computation can serve one call site. Computations
//! that are applied to elements (reducers, comparators, fused computations) have no buffers and stay shared, unless
//! control flow calls them too. Changed: whether anything was cloned.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ComputationId, InstructionId, Module, Op};
use memplan_rewriter::unshare::{CloneNames, clone_computation, follow_async_starts};
use memplan_rewriter::{Context, PassError, PassFn};

use crate::Unsupported;

/// The pass, described at the top of this file.
pub const FLATTEN_CALL_GRAPH: PassFn = PassFn {
    name: "flatten-call-graph",
    description: "give every call site of control flow its own computation",
    run,
};

/// Calls that call calls can double the program at every level; beyond this many instructions per instruction of the
/// input (and a million for small inputs) it is no program that a compiler made.
const MAX_GROWTH: usize = 64;

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let limit = module.instruction_count().saturating_mul(MAX_GROWTH).max(1_000_000);
    let mut flatten = Flatten::new(module);
    let mut pending = vec![flatten.module.entry];
    let mut count = 0;
    while let Some(caller) = pending.pop() {
        for i in 0..flatten.module.computations[caller].instructions.len() {
            let id = flatten.module.computations[caller].instructions[i];
            if !flatten.module.instructions[id].op.runs_callees() {
                continue;
            }
            for c in 0..flatten.module.instructions[id].called.len() {
                let callee = flatten.own(id, c);
                count += flatten.module.computations[callee].instructions.len();
                pending.push(callee);
            }
            if count > limit {
                let source = Unsupported::Growth(limit);
                return Err(PassError::failed(FLATTEN_CALL_GRAPH.name, source));
            }
        }
    }
    let changed = flatten.changed;
    if changed {
        follow_async_starts(module);
        module.compact();
    }
    Ok(changed)
}

struct Flatten<'m> {
    module: &'m mut Module,
    /// Computations that a kernel uses, or a call site has taken.
    taken: SecondaryMap<ComputationId, bool>,
    names: CloneNames,
    changed: bool,
}

impl<'m> Flatten<'m> {
    fn new(module: &'m mut Module) -> Flatten<'m> {
        let mut taken = SecondaryMap::new();
        for instruction in module.instructions.values() {
            let is_async = matches!(instruction.op, Op::AsyncUpdate(_) | Op::AsyncDone(_));
            if !instruction.op.runs_callees() && !is_async {
                instruction.called.iter().for_each(|&callee| taken[callee] = true);
            }
        }
        let names = CloneNames::new(module);
        Flatten { module, taken, names, changed: false }
    }

    /// Makes callee `c` of an instruction its own.
    fn own(&mut self, id: InstructionId, c: usize) -> ComputationId {
        let callee = self.module.instructions[id].called[c];
        if !std::mem::replace(&mut self.taken[callee], true) {
            return callee;
        }
        self.changed = true;
        let clone = clone_computation(self.module, callee, &mut self.names);
        self.taken[clone] = true;
        self.module.instructions[id].called[c] = clone;
        clone
    }
}
