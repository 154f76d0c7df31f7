//! `bfloat16-propagation`: stores a value in the type in which its readers round it, if all readers are products.
//!
//! ```text
//!   t = f32[n,n] tanh(x)                     =>     t = f32[n,n] tanh(x)
//!   p = f32[m,n] pad(t, zero)                       u = bf16[n,n] convert(t)
//!   d = f32[m,n] dot(p, w)                          p = bf16[m,n] pad(u, bzero)
//!                                                   d = f32[m,n] dot(p, w)
//! ```
//!
//! The matrix unit of a TPU multiplies bf16. Unless a dot or convolution requests more precision, it rounds its
//! operands, so an operand without other readers can be rounded where it is made, for half the bytes. The same holds
//! for values that are only moved, padded, selected or compared before the product, and for values that the program
//! converts itself. A value passed through loops or branches is rounded if all values that meet there can be rounded.
//! What a loop passes on unchanged is rounded once before the loop if only such products in it read it, whatever reads it
//! elsewhere.
//! Parameters that convolutions and products of batches load are rounded once before them, in case layouts have them copied.
//!
//! Left alone: parameters and results of the program, operations with several results, and operands of operations that
//! neither are such products nor only move numbers. *Changed* means that some value is narrower.

use memplan_analysis::{CallGraph, Dataflow, ValueId, ValueKind, dataflow};
use memplan_ir::{
    BinaryOp, Cursor, ElementType, Insert, Instruction, InstructionId, Module, Names, Op, Precision,
    SecondaryMap, UnaryOp, Users,
};
use memplan_rewriter::loops::{Loop, is_zero, loops};
use memplan_rewriter::{Context, PassError, PassFn, call_graph};
use rustc_hash::{FxHashMap, FxHashSet};

/// The pass.
pub const BFLOAT16_PROPAGATION: PassFn = PassFn {
    name: "bfloat16-propagation",
    description: "store values in bf16 that only dots and convolutions read, as XLA's TPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let graph = call_graph(module, BFLOAT16_PROPAGATION.name)?;
    let unchanged = unchanged_in_loops(module);
    let original = (!unchanged.is_empty()).then(|| module.clone());
    let for_loops = copies_for_loops(module, &graph, &unchanged);
    let flow = dataflow(module, &graph);
    let narrow = narrow_values(module, &graph, &flow);
    let users = Users::new(module);
    let becomes_narrow = |(value, is_narrow): (ValueId, &bool)| {
        *is_narrow && !is_rounded(module, &users, flow.positions.instruction(flow.values[value].definition))
    };
    let loads_wide = |(id, instruction): (InstructionId, &Instruction)| {
        instruction
            .operands
            .iter()
            .enumerate()
            .any(|(k, &operand)| is_rounded_when_loaded(module, id, k, operand))
    };
    if !narrow.iter().any(becomes_narrow) && !module.instructions.iter().any(loads_wide) {
        if let Some(original) = original {
            *module = original;
        }
        return Ok(false);
    }
    change_shapes(module, &flow, &narrow);
    convert_where_types_meet(module, &graph, &flow, &narrow, &for_loops);
    module.compact();
    Ok(true)
}

/// Whether an instruction is only read by conversions to bf16.
fn is_rounded(module: &Module, users: &Users, id: InstructionId) -> bool {
    let is_conversion = |&user: &InstructionId| {
        module.instructions[user].op == Op::Convert && element_type(module, user) == Some(ElementType::Bf16)
    };
    !users.of(id).is_empty() && users.of(id).iter().all(is_conversion)
}

/// Copies what loops pass on unchanged before them, so that it is a value of its own there, which may be narrower than the
/// original. None of the copies stays.
fn copies_for_loops(
    module: &mut Module,
    graph: &CallGraph,
    unchanged: &FxHashMap<InstructionId, Vec<u32>>,
) -> FxHashSet<InstructionId> {
    let mut names = Names::new(module);
    let mut copies = FxHashSet::default();
    for &computation in graph.sequential() {
        module.edit_in_order(computation, |module, id| {
            if let Some(unchanged) = unchanged.get(&id) {
                let mut state = module.instructions[module.instructions[id].operands[0]].operands.clone();
                let mut before = Cursor::beside(module, &mut names, id);
                for &element in unchanged {
                    let original = &mut state[element as usize];
                    *original = before.insert(Op::Copy, [*original]);
                    copies.insert(*original);
                }
                let init = before.tuple(state);
                module.instructions[id].operands[0] = init;
            }
            module.list(id);
        });
    }
    copies
}

/// For each loop that has some, the elements of its state that are wide, and that its body reads and passes on unchanged.
fn unchanged_in_loops(module: &Module) -> FxHashMap<InstructionId, Vec<u32>> {
    let users = Users::new(module);
    let loops = loops(module, &users);
    let unchanged = loops.iter().map(|of| (of.id, wide_and_unchanged(module, &users, of)));
    unchanged.filter(|(_, elements)| !elements.is_empty()).collect()
}

/// The elements of a loop's state that are wide, and that its body reads and passes on unchanged.
fn wide_and_unchanged(module: &Module, users: &Users, of: &Loop) -> Vec<u32> {
    let init = &module.instructions[of.init].operands;
    let is_wide = |&element: &u32| element_type(module, init[element as usize]) == Some(ElementType::F32);
    let is_unchanged = |&element: &u32| of.passes_on(module, element);
    let is_read = |&element: &u32| {
        let taken = of.taken.get(&element).into_iter().flatten();
        taken.flat_map(|&taken| users.of(taken)).any(|&user| user != of.next)
    };
    let elements = 0..init.len() as u32;
    elements.filter(is_wide).filter(is_unchanged).filter(is_read).collect()
}

/// The values that can be narrow: as many as possible, such that each is read only as bf16.
fn narrow_values(module: &Module, graph: &CallGraph, flow: &Dataflow) -> SecondaryMap<ValueId, bool> {
    let mut narrow = SecondaryMap::new();
    for (value, definition) in flow.values.iter() {
        let id = flow.positions.instruction(definition.definition);
        let shape = module.shape(id).subshape(flow.positions.shape_index(definition.definition));
        let is_wide =
            shape.and_then(|shape| shape.as_array()).is_some_and(|a| a.element_type == ElementType::F32);
        let is_made_here = match definition.kind {
            ValueKind::Written => may_be_narrow(module, id),
            ValueKind::LoopPhi | ValueKind::ExitPhi => true,
            ValueKind::Parameter => false,
        };
        if is_wide && is_made_here {
            narrow[value] = true;
        }
    }
    // Values that must be wide if a value is.
    let mut with: FxHashMap<ValueId, Vec<ValueId>> = FxHashMap::default();
    for &(phi, input) in &flow.phi_inputs {
        with.entry(phi).or_default().push(input);
        with.entry(input).or_default().push(phi);
    }
    let mut wide = Vec::new();
    for &computation in graph.sequential() {
        for (id, instruction) in module.instructions_of(computation) {
            for (k, &operand) in instruction.operands.iter().enumerate() {
                let result = match need_of(module, id, k) {
                    Need::None => continue,
                    Need::AsResult => flow.value_of(id),
                    Need::Wide => None,
                };
                for value in flow.positions.of(operand).filter_map(|p| flow.value_at(p)) {
                    match result {
                        Some(result) => with.entry(result).or_default().push(value),
                        None => wide.push(value),
                    }
                }
            }
        }
    }
    let root = module.entry_computation().root;
    wide.extend(flow.positions.of(root).filter_map(|p| flow.value_at(p)));
    wide.extend(with.keys().copied().filter(|&value| !narrow[value] && !is_bf16(module, flow, value)));
    wide.sort_unstable();
    while let Some(value) = wide.pop() {
        let was_narrow = std::mem::take(&mut narrow[value]);
        if was_narrow || !is_bf16(module, flow, value) {
            wide.extend(with.remove(&value).unwrap_or_default());
        }
    }
    narrow
}

fn is_bf16(module: &Module, flow: &Dataflow, value: ValueId) -> bool {
    let definition = flow.values[value].definition;
    let shape = module.shape(flow.positions.instruction(definition));
    let part = shape.subshape(flow.positions.shape_index(definition)).and_then(|shape| shape.as_array());
    part.is_some_and(|array| array.element_type == ElementType::Bf16)
}

/// The precision that an operand must have for its reader.
enum Need {
    /// Nothing: it is rounded anyway, or seen elsewhere.
    None,
    /// The result's precision.
    AsResult,
    /// All of it.
    Wide,
}

fn need_of(module: &Module, id: InstructionId, operand: usize) -> Need {
    let op = &module.instructions[id].op;
    match op {
        op if rounds(op, operand) => Need::None,
        Op::While | Op::Call { .. } => Need::None,
        Op::Conditional if operand > 0 => Need::None,
        Op::Bitcast => Need::Wide,
        Op::Compare { .. } if asks_for_sign(module, id) => Need::None,
        op if op.only_passes_on() => Need::None,
        op if moves_operand(op, operand) => Need::AsResult,
        _ => Need::Wide,
    }
}

/// Whether an operation is a product that rounds an operand to bf16.
pub(crate) fn rounds(op: &Op, operand: usize) -> bool {
    let precision = match op {
        Op::Dot(dot) => &dot.precision,
        Op::Convolution(convolution) => &convolution.precision,
        _ => return false,
    };
    precision.operand_precision.get(operand).is_none_or(|it| *it == Precision::Default)
}

/// Whether images are compared with zero whose rows or columns are short enough for a word of 32 bits: libtpu keeps the bits
/// instead, from where the numbers are computed. Here the rounded numbers are compared, which have the same sign.
fn asks_for_sign(module: &Module, id: InstructionId) -> bool {
    let is_packed = module.plain_array(id).is_some_and(
        |array| matches!(array.dimensions[..], [_, height, width, _] if height.min(width) <= i64::from(u32::BITS)),
    );
    is_packed && module.instructions[id].operands.iter().any(|&operand| is_zero(module, operand))
}

/// Whether elements of the result are elements of an operand, or it of others like them.
pub(crate) fn moves_operand(op: &Op, operand: usize) -> bool {
    match op {
        Op::Unary(UnaryOp::Abs)
        | Op::Binary(BinaryOp::Maximum | BinaryOp::Minimum)
        | Op::Clamp
        | Op::Broadcast { .. }
        | Op::Concatenate { .. }
        | Op::Convert
        | Op::Copy
        | Op::Pad { .. }
        | Op::Reshape { .. }
        | Op::Reverse { .. }
        | Op::Slice { .. }
        | Op::Transpose { .. } => true,
        Op::DynamicSlice { .. } | Op::Gather(_) => operand == 0,
        Op::DynamicUpdateSlice => operand <= 1,
        Op::Select => operand >= 1,
        _ => false,
    }
}

/// Whether an instruction makes a single array of numbers that may be rounded behind it.
fn may_be_narrow(module: &Module, id: InstructionId) -> bool {
    let op = &module.instructions[id].op;
    let computes = op.is_elementwise()
        || (0..2).any(|operand| moves_operand(op, operand))
        || matches!(
            op,
            Op::Constant(_)
                | Op::Iota { .. }
                | Op::Dot(_)
                | Op::Convolution(_)
                | Op::Reduce { .. }
                | Op::ReduceWindow(_)
                | Op::SelectAndScatter(_)
                | Op::Scatter(_)
        );
    computes && module.shape(id).as_array().is_some() && *op != Op::BitcastConvert
}

/// Makes the shapes narrow at which narrow values are seen, other than where numbers are computed.
fn change_shapes(module: &mut Module, flow: &Dataflow, narrow: &SecondaryMap<ValueId, bool>) {
    for (value, definition) in flow.values.iter().filter(|(value, _)| narrow[*value]) {
        for &position in flow.positions_of(value) {
            let id = flow.positions.instruction(position);
            let computed = definition.kind == ValueKind::Written && position == definition.definition;
            if computed && !becomes_narrow(&module.instructions[id].op) {
                continue;
            }
            let mut shape = module.shape(id).clone();
            let part = shape.subshape_mut(flow.positions.shape_index(position));
            let array = part.and_then(|shape| shape.as_array_mut()).expect("narrow values are arrays");
            array.element_type = ElementType::Bf16;
            module.set_shape(id, shape);
        }
    }
}

/// Whether an operation makes narrow numbers of narrow operands.
fn becomes_narrow(op: &Op) -> bool {
    (0..2).any(|operand| moves_operand(op, operand))
}

/// Puts a conversion behind what computes wide numbers that are read as narrow ones, and before what moves both kinds.
fn convert_where_types_meet(
    module: &mut Module,
    graph: &CallGraph,
    flow: &Dataflow,
    narrow: &SecondaryMap<ValueId, bool>,
    for_loops: &FxHashSet<InstructionId>,
) {
    let mut names = Names::new(module);
    // The replacement of an instruction.
    let mut instead: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    // The rounded parameters that convolutions and products of batches load.
    let mut loaded: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for &computation in graph.sequential() {
        module.edit_in_order(computation, |module, id| {
            let value = flow.value_of(id);
            let mut is_sliced_wide = false;
            for k in 0..module.instructions[id].operands.len() {
                let mut operand = module.instructions[id].operands[k];
                operand = instead.get(&operand).copied().unwrap_or(operand);
                let op = &module.instructions[id].op;
                let is_narrow = element_type(module, id) == Some(ElementType::Bf16);
                let meets = *op != Op::Convert && becomes_narrow(op) && moves_operand(op, k);
                let is_narrow = is_narrow && meets || is_compared_with_narrow(module, id, &instead);
                if is_narrow && element_type(module, operand) == Some(ElementType::F32) {
                    if has_strides(&module.instructions[id].op) {
                        // What is sliced is in memory, and is rounded as it is sliced.
                        is_sliced_wide = true;
                    } else {
                        operand = to_bf16(module, operand, &mut names);
                    }
                }
                if is_rounded_when_loaded(module, id, k, operand) {
                    operand = *loaded.entry(operand).or_insert_with(|| to_bf16(module, operand, &mut names));
                }
                module.instructions[id].operands[k] = operand;
            }
            if for_loops.contains(&id) {
                instead.insert(id, module.instructions[id].operands[0]);
                return;
            }
            module.list(id);
            if is_sliced_wide {
                set_element_type(module, id, ElementType::F32);
                let converted = to_bf16(module, id, &mut names);
                instead.insert(id, converted);
                return;
            }
            let op = &module.instructions[id].op;
            let is_identity = *op == Op::Convert
                && element_type(module, id) == Some(ElementType::Bf16)
                && element_type(module, module.instructions[id].operands[0]) == Some(ElementType::Bf16);
            if is_identity {
                instead.insert(id, module.instructions[id].operands[0]);
            } else if value.is_some_and(|value| narrow[value] && is_defined_by(flow, value, id))
                && !becomes_narrow(op)
            {
                let converted = to_bf16(module, id, &mut names);
                instead.insert(id, converted);
            }
        });
        let root = module.computations[computation].root;
        module.computations[computation].root = instead.get(&root).copied().unwrap_or(root);
    }
}

/// Whether an instruction compares a narrow operand with another one.
fn is_compared_with_narrow(
    module: &Module,
    id: InstructionId,
    instead: &FxHashMap<InstructionId, InstructionId>,
) -> bool {
    let instruction = &module.instructions[id];
    let new = |operand: &InstructionId| instead.get(operand).copied().unwrap_or(*operand);
    let is_narrow = |operand| element_type(module, new(operand)) == Some(ElementType::Bf16);
    matches!(instruction.op, Op::Compare { .. }) && instruction.operands.iter().any(is_narrow)
}

fn has_strides(op: &Op) -> bool {
    matches!(op, Op::Slice { dimensions } if dimensions.iter().any(|of| of.stride > 1))
}

/// Whether a convolution, or a product of batches, rounds a parameter as it loads it.
fn is_rounded_when_loaded(module: &Module, id: InstructionId, k: usize, operand: InstructionId) -> bool {
    let loads = match &module.instructions[id].op {
        Op::Convolution(_) => k == 0,
        Op::Dot(dot) => !dot.dimensions.lhs_batch.is_empty(),
        _ => false,
    };
    loads
        && matches!(need_of(module, id, k), Need::None)
        && matches!(module.instructions[operand].op, Op::Parameter { .. })
        && element_type(module, operand) == Some(ElementType::F32)
}

fn is_defined_by(flow: &Dataflow, value: ValueId, id: InstructionId) -> bool {
    let definition = flow.values[value];
    definition.kind == ValueKind::Written && flow.positions.instruction(definition.definition) == id
}

pub(crate) fn element_type(module: &Module, id: InstructionId) -> Option<ElementType> {
    module.shape(id).as_array().map(|array| array.element_type)
}

/// Gives the result of an instruction, if it is an array, another type of elements.
pub(crate) fn set_element_type(module: &mut Module, id: InstructionId, element_type: ElementType) {
    let mut shape = module.shape(id).clone();
    if let Some(array) = shape.as_array_mut() {
        array.element_type = element_type;
    }
    module.set_shape(id, shape);
}

/// Lists a conversion next.
fn to_bf16(module: &mut Module, id: InstructionId, names: &mut Names) -> InstructionId {
    Cursor::beside(module, names, id).convert(id, ElementType::Bf16)
}
