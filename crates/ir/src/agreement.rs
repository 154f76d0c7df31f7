//! Whether the layouts of a module have meaning.
//!
//! JAX's modules come before layout assignment: their layouts are leftovers of tracing. A call may pass a column-major
//! array to a parameter declared row-major, because only the elements matter:
//!
//! ```text
//!   a = f32[2,3]{0,1} negate(p)            f { x = f32[2,3]{1,0} parameter(0) ... }
//!   b = f32[2,3]{1,0} call(a), to_apply=f
//! ```
//!
//! In memory the difference matters. Nothing moves `a` in between, so a reader that trusts the layouts reads it
//! transposed.

use std::sync::Arc;

use crate::{
    ArrayShape, ComputationId, EntityRef, InstructionId, Layout, Module, Names, Op, Role, Shape,
    copy_around_library_calls, results_of_library_calls,
};

/// Whether every value that is passed on without being moved has one layout wherever it is named: in tuples and their
/// elements, and on both sides of calls, loops, conditionals, fusions and asynchronous operations. Linear in the
/// module.
pub fn layouts_agree(module: &Module) -> bool {
    let mut instructions = module.computations.values().flat_map(|computation| &computation.instructions);
    instructions.all(|&id| agrees(module, id))
}

/// Whether layouts mean something: they [agree](layouts_agree), or there is a schedule or a bitcast, whose meaning depends
/// on them. Linear in the module.
pub fn layouts_are_assigned(module: &Module) -> bool {
    let mut all = module.computations.values().flat_map(|computation| &computation.instructions);
    module.is_scheduled || all.any(|&id| module.instructions[id].op == Op::Bitcast) || layouts_agree(module)
}

/// Gives all arrays the row-major layout, in their memory spaces. Layouts required at the entry are dropped too, unless
/// they are row-major; library calls that declare other layouts get copies around them.
pub fn use_default_layouts(module: &mut Module) {
    let computations: Vec<ComputationId> = module.computations.keys().collect();
    let returned = results_of_library_calls(module, &computations);
    let shapes: Vec<Shape> = module.shapes.iter().cloned().collect();
    let renamed: Vec<_> = shapes.into_iter().map(|shape| module.intern(row_major(shape))).collect();
    for instruction in module.instructions.values_mut() {
        instruction.shape = renamed[instruction.shape.index()];
    }
    let asked = &mut module.config.entry_computation_layout;
    asked.take_if(|asked| !asked.parameters.iter().chain([&asked.result]).all(|shape| shape.is_plain()));
    if !returned.is_empty() {
        let mut names = Names::new(module);
        copy_around_library_calls(module, &computations, returned, |_| (), &mut names);
    }
}

/// Whether the layouts agree around one instruction.
fn agrees(module: &Module, id: InstructionId) -> bool {
    let shape = |id: InstructionId| module.shape(id);
    let root = |computation: ComputationId| shape(module.computations[computation].root);
    let parameter = |computation: ComputationId, number: usize| {
        shape(module.computations[computation].parameters[number])
    };
    let instruction = &module.instructions[id];
    let (operands, called) = (&instruction.operands, &instruction.called);
    let part_alike = |of: InstructionId, index: &[u32], other: &Shape| {
        let part = shape(of).subshape(&index.iter().copied().into());
        part.is_some_and(|part| lie_alike(part, other))
    };
    let passes_operands = |first: usize, callee: ComputationId| {
        let mut operands = operands[first..].iter().enumerate();
        operands.all(|(i, &operand)| lie_alike(parameter(callee, i), shape(operand)))
    };
    match instruction.op {
        Op::Tuple => {
            let mut elements = (0..).zip(operands);
            elements.all(|(i, &operand)| part_alike(id, &[i], shape(operand)))
        }
        Op::GetTupleElement { index } => part_alike(operands[0], &[index], shape(id)),
        Op::Copy if shape(id).is_tuple() => lie_alike(shape(operands[0]), shape(id)),
        // A bitcast says in which other layout its bytes are seen.
        ref op if op.traits().role == Role::PassesOn && *op != Op::Bitcast => {
            lie_alike(shape(operands[0]), shape(id))
        }
        Op::CopyStart { .. } => part_alike(id, &[1], shape(operands[0])),
        Op::CopyDone => part_alike(operands[0], &[0], shape(id)),
        ref op @ (Op::AllGatherStart(_) | Op::CollectivePermuteStart(_)) if !op.permutes_in_place() => {
            let given = shape(id).as_tuple().and_then(<[Shape]>::first).and_then(Shape::as_tuple);
            match given {
                Some(given) => {
                    given.iter().zip(operands).all(|(part, &operand)| lie_alike(part, shape(operand)))
                }
                None => part_alike(id, &[0], shape(operands[0])),
            }
        }
        Op::CollectivePermuteStart(_) => part_alike(id, &[0], shape(operands[0])),
        Op::AllGatherDone(_) | Op::CollectivePermuteDone(_) => part_alike(operands[0], &[1], shape(id)),
        Op::Send(_) => part_alike(id, &[0], shape(operands[0])),
        Op::RecvDone(_) => {
            part_alike(operands[0], &[0], shape(id).subshape(&[0].into()).unwrap_or(shape(id)))
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
            lie_alike(root(called[0]), shape(id)) && passes_operands(0, called[0])
        }
        Op::AsyncStart(_) => {
            let mut given = (0..).zip(operands);
            given.all(|(i, &operand)| part_alike(id, &[0, i], shape(operand)))
                && passes_operands(0, called[0])
                && part_alike(id, &[1], root(called[0]))
        }
        Op::AsyncUpdate(_) => lie_alike(shape(operands[0]), shape(id)),
        Op::AsyncDone(_) => part_alike(operands[0], &[1], shape(id)),
        _ => true,
    }
}

/// Whether arrays of two shapes have the same order of dimensions in memory, row-major by default, and the same tiles.
fn lie_alike(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Tuple(a), Shape::Tuple(b)) => a.iter().zip(b.iter()).all(|(a, b)| lie_alike(a, b)),
        (Shape::Array(a), Shape::Array(b)) => {
            let tiles = |array: &ArrayShape| array.layout.as_ref().map_or(0, |layout| layout.tiles.len());
            let same_tiles = || a.layout.as_ref().map(|l| &l.tiles) == b.layout.as_ref().map(|l| &l.tiles);
            a.minor_to_major() == b.minor_to_major() && (tiles(a) + tiles(b) == 0 || same_tiles())
        }
        _ => true,
    }
}

fn row_major(mut shape: Shape) -> Shape {
    match &mut shape {
        Shape::Tuple(elements) => {
            Arc::make_mut(elements)
                .iter_mut()
                .for_each(|e| *e = row_major(std::mem::replace(e, Shape::Token)));
        }
        Shape::Array(a) | Shape::Buffer(a) => {
            let memory_space = a.memory_space();
            a.layout = Some(Layout { memory_space, ..Layout::row_major(a.rank()) });
        }
        Shape::Token | Shape::Opaque => {}
    }
    shape
}
