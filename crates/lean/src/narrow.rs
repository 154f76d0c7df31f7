//! Makes numbers narrower: those of arguments and of the results that alias them, or of values that the forward half
//! keeps for the backward half.
//!
//! ```text
//!   x = f32[64,64] dot(a, w)           x = f32[64,64] dot(a, w)
//!   y = tanh(x)                        n = bf16[64,64] convert(x)
//!   ..                           =>    k = bf16[64,64] opt-barrier(n)
//!   g = multiply(d, x)                 v = f32[64,64] convert(k)
//!                                      y = tanh(v)
//!                                      ..
//!                                      g = multiply(d, v)
//! ```
//!
//! Compilers that may compute more exactly than the program, like XLA, would remove the two conversions; the barrier
//! prevents that.

use memplan_analysis::{Phase, Phases};
use memplan_ir::{Access, Cursor, ElementType, Insert, InstructionId, Module, Names, Op, Shape, ShapeId};
use memplan_rewriter::interface::{results_in, set_interface};
use memplan_rewriter::rows::{is_repetition, makes_values};
use rustc_hash::{FxHashMap, FxHashSet};

/// Arrays of fewer elements are not worth narrowing.
const SMALL: u64 = 1 << 10;

/// Changes the type of parameters, given by number, and of the results that alias them.
///
/// # Panics
/// One of them is no array.
pub fn narrow_arguments(module: &mut Module, numbers: &[usize], element_type: ElementType) {
    let results = results_in(module, numbers);
    let mut names = Names::new(module);
    let entry = module.entry;
    let parameters: Vec<InstructionId> =
        numbers.iter().map(|&number| module.computations[entry].parameters[number]).collect();
    let wide: FxHashMap<InstructionId, ShapeId> =
        parameters.iter().map(|&id| (id, module.instructions[id].shape)).collect();
    let root = module.computations[entry].root;
    for &id in &parameters {
        module.instructions[id].shape = retyped(module, id, element_type);
    }
    let mut instead: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    module.edit_in_order(entry, |module, id| {
        read_instead(module, id, &instead);
        if id == root && module.instructions[id].op == Op::Tuple {
            for &result in &results {
                let operand = module.instructions[id].operands[result];
                let mut at = Cursor::beside(module, &mut names, id);
                let converted = at.named("narrow").convert(operand, element_type);
                module.instructions[id].operands[result] = converted;
            }
            module.reshape_tuple(id);
        }
        module.list(id);
        if let Some(&shape) = wide.get(&id) {
            let shape = module.shape_of(shape).clone();
            let mut at = Cursor::beside(module, &mut names, id);
            instead.insert(id, at.named("widen").insert_shaped(Op::Convert, [id], shape));
        }
    });
    set_interface(module);
}

/// The 32-bit values kept for the backward half: those that it reads of the forward half, or that kernels recompute
/// such values from, element by element. Only values of the entry computation: values that loops keep are in their
/// state. Close to linear.
pub fn kept_for_backward(module: &Module, phases: &Phases) -> Vec<InstructionId> {
    let entry = module.entry_computation();
    let readers = entry.instructions.iter().filter(|&&id| phases.of(id) == Phase::Backward);
    let mut open: Vec<InstructionId> =
        readers.flat_map(|&id| module.instructions[id].operands.iter().copied()).collect();
    let (mut seen, mut kept): (FxHashSet<InstructionId>, FxHashSet<InstructionId>) = Default::default();
    while let Some(id) = open.pop() {
        if phases.of(id) != Phase::Forward || !is_large(module, id) || !seen.insert(id) {
            continue;
        }
        if let Some(operand) = made_anew_from(module, id) {
            open.push(operand);
        } else if is_kept(module, id) {
            kept.insert(id);
        }
    }
    entry.instructions.iter().copied().filter(|id| kept.contains(id)).collect()
}

fn is_large(module: &Module, id: InstructionId) -> bool {
    module.shape(id).as_array().is_some_and(|array| array.element_count() >= Some(SMALL))
}

/// The one large array that an array is made from element by element, or by looking at it in another way: kernels that
/// need it make it anew rather than keep it.
fn made_anew_from(module: &Module, id: InstructionId) -> Option<InstructionId> {
    let instruction = &module.instructions[id];
    let op = &instruction.op;
    if let Op::GetTupleElement { index } = *op {
        let tuple = &module.instructions[instruction.operands[0]];
        return (tuple.op == Op::Tuple).then(|| tuple.operands[index as usize]);
    }
    if !op.is_elementwise() && op.traits().access != Access::Reindexing {
        return None;
    }
    let is_splat = |id: InstructionId| {
        let op = &module.instructions[id].op;
        is_repetition(op) || matches!(op, Op::Constant(_))
    };
    let mut large = instruction.operands.iter().copied().filter(|&operand| is_large(module, operand));
    let first = large.clone().find(|&operand| !is_splat(operand))?;
    large.all(|operand| operand == first || is_splat(operand)).then_some(first)
}

fn is_kept(module: &Module, id: InstructionId) -> bool {
    let op = &module.instructions[id].op;
    let is_wide = module.shape(id).as_array().is_some_and(|array| array.element_type == ElementType::F32);
    is_wide && makes_values(op)
}

/// Keeps values of the entry computation in another type: all their readers read the kept value. Results of the program
/// stay unchanged.
///
/// # Panics
/// One of the values is no array.
pub fn narrow_values(module: &mut Module, kept: &[InstructionId], element_type: ElementType) {
    let kept: FxHashSet<InstructionId> = kept.iter().copied().collect();
    let mut names = Names::new(module);
    let (entry, root) = (module.entry, module.entry_computation().root);
    let mut instead: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    module.edit_in_order(entry, |module, id| {
        if id != root {
            read_instead(module, id, &instead);
        }
        module.list(id);
        if kept.contains(&id) {
            let wide = module.shape(id).clone();
            let mut at = Cursor::beside(module, &mut names, id);
            let narrowed = at.named("narrow").convert(id, element_type);
            let held = at.named("kept").insert(Op::OptimizationBarrier, [narrowed]);
            instead.insert(id, at.named("widen").insert_shaped(Op::Convert, [held], wide));
        }
    });
}

fn read_instead(module: &mut Module, id: InstructionId, instead: &FxHashMap<InstructionId, InstructionId>) {
    for operand in &mut module.instructions[id].operands {
        *operand = instead.get(operand).copied().unwrap_or(*operand);
    }
}

/// The shape of an array with another element type.
fn retyped(module: &mut Module, id: InstructionId, element_type: ElementType) -> ShapeId {
    let mut shape: Shape = module.shape(id).clone();
    shape.as_array_mut().expect("only arrays are narrowed").element_type = element_type;
    module.intern(shape)
}
