//! Whether layouts are assigned, so that a transpose can be a view of the bytes of its operand.

use memplan_ir::{ComputationId, InstructionId, Layout, Module, Op, Shape};

/// Whether what is handed on lies alike wherever it is named: in tuples and their elements, and on both sides of calls,
/// loops, conditionals and fusions. In what JAX hands over that need not be so: an array that is declared column-major
/// may be passed to a parameter that is declared row-major, because both are only the elements.
pub(super) fn agree(module: &Module) -> bool {
    let shape = |id: InstructionId| module.shape(id);
    let root = |computation: ComputationId| shape(module.computations[computation].root);
    let parameter = |computation: ComputationId, number: usize| {
        shape(module.computations[computation].parameters[number])
    };
    let all = module.computations.values().flat_map(|computation| &computation.instructions);
    all.copied().all(|id| {
        let instruction = &module.instructions[id];
        let (operands, called) = (&instruction.operands, &instruction.called);
        match instruction.op {
            Op::Tuple => {
                let elements = shape(id).as_tuple().unwrap_or_default();
                elements.iter().zip(operands).all(|(element, &operand)| lie_alike(element, shape(operand)))
            }
            Op::GetTupleElement { index } => {
                let elements = shape(operands[0]).as_tuple().unwrap_or_default();
                elements.get(index as usize).is_some_and(|element| lie_alike(element, shape(id)))
            }
            Op::While => {
                let states =
                    [shape(operands[0]), root(called[0]), parameter(called[0], 0), parameter(called[1], 0)];
                states.iter().all(|state| lie_alike(state, shape(id)))
            }
            Op::Conditional => called.iter().zip(&operands[1..]).all(|(&branch, &operand)| {
                lie_alike(root(branch), shape(id)) && lie_alike(parameter(branch, 0), shape(operand))
            }),
            Op::Call { .. } | Op::Fusion(_) => {
                let mut operands = operands.iter().enumerate();
                lie_alike(root(called[0]), shape(id))
                    && operands.all(|(i, &operand)| lie_alike(parameter(called[0], i), shape(operand)))
            }
            _ => true,
        }
    })
}

/// Whether arrays of two shapes have the same order of dimensions in memory; row-major where nothing is said.
fn lie_alike(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Tuple(a), Shape::Tuple(b)) => a.iter().zip(b).all(|(a, b)| lie_alike(a, b)),
        (Shape::Array(a), Shape::Array(b)) => match (&a.layout, &b.layout) {
            (Some(a), Some(b)) => a.minor_to_major == b.minor_to_major,
            (Some(layout), None) | (None, Some(layout)) => {
                layout.minor_to_major == Layout::row_major(a.rank()).minor_to_major
            }
            (None, None) => true,
        },
        _ => true,
    }
}
