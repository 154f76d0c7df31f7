//! Computations that text leaves out: `slice-start(x), slice={...}` says what the computation that it calls holds.

use memplan_ir::{ComputationId, InstructionId, Module, Op, PackedOption, SecondaryMap};

/// For each computation that is left out, the operation in it.
pub(super) struct Sugar(SecondaryMap<ComputationId, PackedOption<InstructionId>>);

impl Sugar {
    pub(super) fn new(module: &Module) -> Sugar {
        let mut sugar = SecondaryMap::new();
        for (id, computation) in module.computations.iter() {
            // The name first: it is no for almost all.
            if computation.name.starts_with("async_wrapped") && id != module.entry {
                sugar[id] = wrapped(module, id).into();
            }
        }
        for instruction in module.instructions.values() {
            if !matches!(instruction.op, Op::AsyncStart(_) | Op::AsyncUpdate(_) | Op::AsyncDone(_)) {
                for &called in &instruction.called {
                    sugar[called] = None.into();
                }
            }
        }
        Sugar(sugar)
    }

    /// The operation that a computation exists to run, if text says no more of the computation than that.
    pub(super) fn wrapped(&self, computation: ComputationId) -> Option<InstructionId> {
        self.0[computation].expand()
    }
}

/// The operation in a computation that holds nothing else: its parameters in order, then one instruction that takes
/// them in order, all with the names that reading `slice-start(...)` gives them.
///
/// XLA leaves out such computations whatever their names. We keep names that a program chose.
fn wrapped(module: &Module, id: ComputationId) -> Option<InstructionId> {
    let computation = &module.computations[id];
    let (&root, parameters) = computation.instructions.split_last()?;
    let instruction = &module.instructions[root];
    let is_only_an_operation = root == computation.root
        && parameters == computation.parameters.as_slice()
        && parameters == instruction.operands.as_slice()
        && instruction.name.starts_with("async_op")
        && parameters.iter().all(|&id| module.instructions[id].name.starts_with("async_param"))
        && instruction.control_predecessors.is_empty()
        && instruction.metadata.is_none()
        && instruction.backend_config.is_none()
        && instruction.extras.is_none()
        && !matches!(instruction.op, Op::Parameter { .. } | Op::Constant(_))
        && has_async_spelling(&instruction.op);
    is_only_an_operation.then_some(root)
}

/// Whether `-start` behind the name of an operation means that it is wrapped, not an operation of its own.
fn has_async_spelling(op: &Op) -> bool {
    let name: &str = op.opcode().into();
    ["-start", "-update", "-done"]
        .iter()
        .all(|suffix| crate::tables::opcode(&format!("{name}{suffix}")).is_none())
}
