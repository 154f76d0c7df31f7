//! Costs of operations: which are cheap enough to compute twice, and the bytes of their results.
//!
//! Classes follow XLA's list of expensive instructions, from the view of memory: on every machine with a memory wall,
//! an exponential of an element in a register costs less than reading the element, so transcendental functions are
//! *cheap* here. *Expensive* operations read many elements for each element of their result.

use memplan_analysis::{Machine, operations};
use memplan_ir::{Access, ArrayShape, InstructionId, Module, Op, Role, Shape};
use memplan_memory::{MemorySpaceId, Target, is_view};

use crate::views::inverse;

/// How an operation relates to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostClass {
    /// An element of the result takes a fixed, small number of elements of the operands: it may be computed wherever
    /// it is needed, several times if need be.
    Cheap,
    /// A kernel of its own, computed once, which may take cheap operations along.
    Hero(Hero),
    /// Nothing is computed and no bytes are moved.
    Free,
    /// Anything else: control flow, communication, library calls, side effects.
    Opaque,
}

/// The expensive operation that a kernel is built around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hero {
    /// A matrix product.
    Dot,
    /// A convolution.
    Convolution,
    /// A reduction over dimensions, or over windows.
    Reduction,
    /// An update of a part of an array in place: dynamic-update-slice, scatter.
    Update,
}

/// How an instruction relates to a kernel, by its operation and shape alone.
pub fn class_of(module: &Module, id: InstructionId) -> CostClass {
    let instruction = &module.instructions[id];
    // Fused code knows static arrays only, and loops over one memory space.
    let is_plain = |shape: &Shape| match shape {
        Shape::Array(array) => array.is_plain() && array.element_count().is_some(),
        _ => false,
    };
    let class = class_of_op(&instruction.op);
    let fits = match class {
        CostClass::Free | CostClass::Opaque => true,
        // A variadic reduction or scatter has a tuple of results.
        CostClass::Hero(Hero::Reduction) => module.shape(id).leaves().iter().all(|(_, leaf)| is_plain(leaf)),
        CostClass::Cheap | CostClass::Hero(_) => is_plain(module.shape(id)),
    };
    let operands_fit = || instruction.operands.iter().all(|&operand| is_plain(module.shape(operand)));
    if fits && (matches!(class, CostClass::Free | CostClass::Opaque) || operands_fit()) {
        class
    } else {
        CostClass::Opaque
    }
}

/// Whether an operation is [`CostClass::Free`]. Its shape plays no part in that.
pub fn is_free(op: &Op) -> bool {
    class_of_op(op) == CostClass::Free
}

fn class_of_op(op: &Op) -> CostClass {
    let traits = op.traits();
    match (traits.role, traits.access) {
        (Role::Provides | Role::Regroups, _) => CostClass::Free,
        (Role::PassesOn, _) if matches!(op, Op::Bitcast | Op::OptimizationBarrier) => CostClass::Free,
        (Role::Computes, Access::Elementwise) if op.is_elementwise() => CostClass::Cheap,
        (Role::Computes, Access::Reindexing) => CostClass::Cheap,
        (_, Access::Contraction) => match op {
            Op::Dot(_) => CostClass::Hero(Hero::Dot),
            Op::Convolution(_) => CostClass::Hero(Hero::Convolution),
            _ => CostClass::Opaque,
        },
        (_, Access::Reduction) => CostClass::Hero(Hero::Reduction),
        (_, Access::Update) => CostClass::Hero(Hero::Update),
        _ => CostClass::Opaque,
    }
}

/// Whether a matrix product takes no longer than moving its result out of the cores and back: recomputing it is then no
/// slower than keeping it. Attention scores are such products (64 multiplications per element against 4 bytes of
/// memory), products of dense layers are not. The roofline model: Williams, Waterman, Patterson 2009.
///
/// `false` where the target does not say how fast it multiplies, or how fast its memory is.
pub fn is_dot_faster_than_memory(module: &Module, target: &Target, id: InstructionId) -> bool {
    if !matches!(module.instructions[id].op, Op::Dot(_)) {
        return false;
    }
    let machine = Machine::new(target);
    let moving = |id: InstructionId| {
        machine.memory_seconds(MemorySpaceId::MAIN, result_bytes(module, target, id) as f64)
    };
    let (computing, moved) = (machine.compute_seconds(&operations(module, id)), moving(id));
    let reading: f64 = module.instructions[id].operands.iter().map(|&operand| moving(operand)).sum();
    computing > 0.0 && moved > 0.0 && computing + reading <= 2.0 * moved
}

/// Seconds that an operation takes in a kernel of its own: computing, or reading its operands, whichever takes longer. Its
/// result is not counted, which somebody writes or reads in any case.
pub fn seconds(module: &Module, target: &Target, id: InstructionId) -> f64 {
    let machine = Machine::new(target);
    let bytes = |&operand: &InstructionId| result_bytes(module, target, operand) as f64;
    let read = module.instructions[id].operands.iter().map(bytes).sum();
    let reading = machine.memory_seconds(MemorySpaceId::MAIN, read);
    target.kernel_overhead + reading.max(machine.compute_seconds(&operations(module, id)))
}

/// Whether an instruction reads each element of its operands once, for one element of its result: the order of
/// elements may change, and their type, but each is there once.
pub fn is_bijective(module: &Module, id: InstructionId) -> bool {
    match &module.instructions[id].op {
        Op::Reshape { .. } | Op::Transpose { .. } | Op::Reverse { .. } => true,
        _ => is_pointwise(module, id),
    }
}

/// Whether element `i` of the result needs element `i` of each operand, and nothing else.
pub fn is_pointwise(module: &Module, id: InstructionId) -> bool {
    match &module.instructions[id].op {
        // Between types of different widths it adds or takes away a dimension.
        Op::BitcastConvert => {
            let operand = module.instructions[id].operands[0];
            let extents = |id| module.shape(id).as_array().map(|array| &array.dimensions);
            extents(id) == extents(operand)
        }
        op => op.is_elementwise(),
    }
}

/// Whether an element of an operand may be read for several elements of the result.
pub fn reuses_elements(module: &Module, id: InstructionId) -> bool {
    let op = &module.instructions[id].op;
    matches!(op, Op::Broadcast { .. } | Op::Gather(_) | Op::ReduceWindow(_) | Op::Dot(_) | Op::Convolution(_))
}

/// Whether a reshape or transpose leaves every byte where it is, so that it is only another view of its operand. Of a dynamic
/// array it moves elements apart or together, and the sizes behind them.
pub fn moves_no_bytes(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    if !matches!(instruction.op, Op::Reshape { .. } | Op::Transpose { .. }) {
        return false;
    }
    let operand = module.shape(instruction.operands[0]).as_array();
    let Some((result, operand)) = module.shape(id).as_array().zip(operand) else { return false };
    if result.is_dynamic() || operand.is_dynamic() {
        return false;
    }
    match &instruction.op {
        Op::Reshape { .. } => is_view(operand, result),
        Op::Transpose { dimensions } => is_view(&permuted(operand, dimensions), result),
        _ => false,
    }
}

/// An array with its dimensions numbered anew, and its elements where they are.
pub fn permuted(array: &ArrayShape, dimensions: &[i64]) -> ArrayShape {
    let mut permuted = array.clone();
    permuted.dimensions = dimensions.iter().map(|&d| array.dimensions[d as usize]).collect();
    let becomes = inverse(dimensions);
    let order = array.minor_to_major().iter().map(|&d| becomes[d as usize]).collect();
    permuted.layout.get_or_insert_default().minor_to_major = order;
    permuted
}

/// The padded bytes of an instruction's result: all leaves of a tuple together; zero for immediates.
pub fn result_bytes(module: &Module, target: &Target, id: InstructionId) -> u64 {
    if is_embedded(module, target, id) {
        return 0;
    }
    match module.shape(id) {
        tuple @ Shape::Tuple(_) => {
            tuple.leaves().iter().fold(0, |sum: u64, (_, leaf)| sum.saturating_add(target.size_of(leaf).0))
        }
        array => target.size_of(array).0,
    }
}

/// Whether an instruction is a constant that becomes part of the code.
pub fn is_embedded(module: &Module, target: &Target, id: InstructionId) -> bool {
    matches!(module.instructions[id].op, Op::Constant(_))
        && matches!(module.shape(id), Shape::Array(_))
        && target.unpadded_size_of(module.shape(id)) <= target.embedded_constant_bytes
}
