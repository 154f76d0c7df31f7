//! Clones computations for call sites that need their own.

use memplan_ir::{ComputationId, InstructionId, Module, Op};
use rustc_hash::{FxHashMap, FxHashSet};

/// Gives every asynchronous operation a computation of its own, after a pass has copied some. Returns whether any was
/// cloned.
pub fn unshare_async(module: &mut Module) -> bool {
    let starts: Vec<InstructionId> = module
        .computations
        .values()
        .flat_map(|computation| &computation.instructions)
        .copied()
        .filter(|&id| matches!(module.instructions[id].op, Op::AsyncStart(_)))
        .collect();
    let mut taken: FxHashSet<ComputationId> = FxHashSet::default();
    let shared: Vec<InstructionId> =
        starts.into_iter().filter(|&id| !taken.insert(module.instructions[id].called[0])).collect();
    if shared.is_empty() {
        return false;
    }
    let mut names = CloneNames::new(module);
    for id in shared {
        let clone = clone_computation(module, module.instructions[id].called[0], &mut names);
        module.instructions[id].called[0] = clone;
    }
    follow_async_starts(module);
    module.compact();
    true
}

/// Appends a copy of a computation, named after it.
pub fn clone_computation(
    module: &mut Module,
    original: ComputationId,
    names: &mut CloneNames,
) -> ComputationId {
    let name = names.of_next(&module.computations[original].name);
    module.clone_computation(original, name)
}

/// Names of clones: `f.clone`, `f.clone.1`, ...
pub struct CloneNames {
    taken: FxHashSet<Box<str>>,
    /// How many were tried for each original, so that the next need not try them again.
    tried: FxHashMap<Box<str>, u32>,
}

impl CloneNames {
    /// Knows the names of all computations of a module.
    pub fn new(module: &Module) -> CloneNames {
        let taken = module.computations.values().map(|c| c.name.clone()).collect();
        CloneNames { taken, tried: FxHashMap::default() }
    }

    /// The next free name of a clone.
    pub fn of_next(&mut self, original: &str) -> Box<str> {
        let tried = self.tried.entry(original.into()).or_default();
        loop {
            let name: Box<str> = match *tried {
                0 => format!("{original}.clone").into(),
                n => format!("{original}.clone.{n}").into(),
            };
            *tried += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The later halves of an asynchronous operation name the computation that its start calls.
pub fn follow_async_starts(module: &mut Module) {
    for computation in module.computations.values() {
        for &id in &computation.instructions {
            if matches!(module.instructions[id].op, Op::AsyncUpdate(_) | Op::AsyncDone(_)) {
                let start = module.instructions[id].operands[0];
                module.instructions[id].called = module.instructions[start].called.clone();
            }
        }
    }
}
