//! Replaces a stack of equal rows by a broadcast, and rows read from a broadcast by its operand.
//!
//! JAX's scan stacks every value that the gradient of a step needs, even values that are equal in all steps, such as
//! the weights of a recurrence.
//!
//! ```text
//! w = while((0, v, zeros))                            s = f32[9,8] broadcast(v), dimensions={1}
//!   s' = dynamic-update-slice(s, v, i, 0)       =>
//! u = while((0, get-tuple-element(w)))                u = while((0, v))
//!   row = dynamic-slice(s, j, 0)                        row = v
//! ```
//!
//! The written value may be computed from values that do not change: it is then computed once, before the loop, and
//! takes one row instead of the whole stack.

use memplan_ir::{Access, Cursor, Insert, Instruction, InstructionId, Module, Names, Op, Operands, Users};
use memplan_rewriter::cost::{CostClass, Hero, class_of};
use memplan_rewriter::loops::{Loop, loops};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::apply::use_instead;
use crate::find::{Made, made_row_by_row};

/// Rewrites what can be, with at most so many operations that a row is computed by.
pub(super) fn run(module: &mut Module, max_operations: usize) -> bool {
    if module.is_scheduled {
        return false;
    }
    let users = Users::new(module);
    let loops = loops(module, &users);
    let stacks: Vec<Vec<Stack>> = loops.iter().map(|of| stacks(module, &users, of, max_operations)).collect();
    let inits: FxHashSet<InstructionId> = loops.iter().map(|of| of.init).collect();
    let carried: Vec<Vec<u32>> =
        loops.iter().map(|of| carried_broadcasts(module, &users, &inits, of)).collect();
    if stacks.iter().all(Vec::is_empty) && carried.iter().all(Vec::is_empty) {
        return false;
    }
    let mut names = Names::new(module);
    let mut stands_for: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for (of, stacks) in loops.iter().zip(&stacks) {
        for stack in stacks {
            let broadcast = broadcast_after(module, of, stack, &mut names);
            stands_for.extend(of.results[&stack.made.element].iter().map(|&result| (result, broadcast)));
        }
    }
    for (of, elements) in loops.iter().zip(&carried) {
        for &element in elements {
            carry_what_is_broadcast(module, of, element, &mut names);
        }
    }
    use_instead(module, &stands_for);
    true
}

/// A stack of rows that are all the same.
struct Stack {
    made: Made,
    /// The instructions in the body that compute a row, operands first.
    computed: Vec<InstructionId>,
}

fn stacks(module: &Module, users: &Users, of: &Loop, max_operations: usize) -> Vec<Stack> {
    if of.results.is_empty() || of.is_sharded(module) {
        return Vec::new();
    }
    let made = made_row_by_row(module, users, of).into_iter();
    let is_read = |made: &Made| of.results.contains_key(&made.element);
    made.filter(is_read)
        .filter_map(|made| {
            let computed = computed_alike(module, of, made.row(module, of), max_operations)?;
            Some(Stack { made, computed })
        })
        .collect()
}

/// The instructions that compute a value of the body, if they are equal in every step.
fn computed_alike(
    module: &Module,
    of: &Loop,
    value: InstructionId,
    max_operations: usize,
) -> Option<Vec<InstructionId>> {
    let mut placed: FxHashSet<InstructionId> = FxHashSet::default();
    let mut computed = Vec::new();
    // Each with whether its operands come first on the stack.
    let mut open = vec![(value, false)];
    while let Some((id, is_ready)) = open.pop() {
        if of.element_at(module, id).is_some_and(|element| stays(module, of, element)) || placed.contains(&id)
        {
            continue;
        }
        if is_ready {
            placed.insert(id);
            computed.push(id);
            continue;
        }
        if computed.len() + open.len() > max_operations || !is_function(module, id) {
            return None;
        }
        open.push((id, true));
        open.extend(module.instructions[id].operands.iter().map(|&operand| (operand, false)));
    }
    Some(computed)
}

/// Whether an element of the state is equal in every step: it is passed on, or replaced by its initial value.
fn stays(module: &Module, of: &Loop, element: u32) -> bool {
    let init = &module.instructions[of.init].operands;
    let next = module.instructions[of.next].operands[element as usize];
    let is_begun_alike = |&other: &u32| init[other as usize] == init[element as usize];
    of.passes_on(module, element)
        || of.element_at(module, next).filter(is_begun_alike).is_some_and(|other| of.passes_on(module, other))
}

/// Whether an operation computes an array only from its operands, in any position.
fn is_function(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_computed = match instruction.op.traits().access {
        Access::Elementwise => instruction.op.is_elementwise(),
        Access::Reindexing => instruction.op != Op::Bitcast,
        Access::Contraction | Access::Reduction => true,
        Access::Update | Access::Whole => matches!(instruction.op, Op::Constant(_)),
    };
    is_computed && module.plain_array(id).is_some() && instruction.control_predecessors.is_empty()
}

/// The stack as a broadcast of a row that is computed beside the loop.
fn broadcast_after(module: &mut Module, of: &Loop, stack: &Stack, names: &mut Names) -> InstructionId {
    let Made { element, rows, shape, .. } = stack.made;
    let Instruction { operands: init, parent, .. } = module.instructions[of.init].clone();
    let row = stack.made.row(module, of);
    let mut at = Cursor::unlisted(module, names, parent).with_metadata_of(of.id);
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let given = |module: &Module, copies: &FxHashMap<_, _>, id: InstructionId| match of.element_at(module, id)
    {
        Some(element) => init[element as usize],
        None => copies[&id],
    };
    for &id in &stack.computed {
        let Instruction { op, operands, called, .. } = at.module().instructions[id].clone();
        let operands: Operands =
            operands.iter().map(|&operand| given(at.module(), &copies, operand)).collect();
        let shape = at.module().shape(id).clone();
        copies.insert(id, at.insert_instruction(op, operands, called, Some(shape)));
    }
    let row = given(at.module(), &copies, row);
    let whole = at.module().shape_of(shape).as_array().expect("a stack is an array").clone();
    // The rows of a step, then a new dimension for the steps before the one that is cut into rows.
    let d = rows.dimension;
    let count = i64::try_from(rows.count).expect("rows are within an array");
    let mut apart = whole.dimensions.clone();
    apart[d] = whole.dimensions[d] / count.max(1);
    apart.insert(d + 1, count);
    let dimensions = (0..=whole.dimensions.len() as i64).filter(|&i| i != d as i64);
    let broadcast = at.broadcast(row, apart, dimensions);
    let shape = at.module().shape(of.results[&element][0]).clone();
    at.insert_shaped(Op::Reshape { inferred_dimension: None }, [broadcast], shape)
}

/// The elements of the state that are broadcasts of less, of which the loop only reads what kernels read by the element.
fn carried_broadcasts(
    module: &Module,
    users: &Users,
    inits: &FxHashSet<InstructionId>,
    of: &Loop,
) -> Vec<u32> {
    if of.is_sharded(module) {
        return Vec::new();
    }
    let init = &module.instructions[of.init].operands;
    let elements = |id: InstructionId| module.plain_array(id).and_then(|array| array.element_count());
    let is_broadcast = |&element: &u32| {
        let given = init[element as usize];
        let instruction = &module.instructions[given];
        // A broadcast of one element is `while-simplifier`'s.
        matches!(instruction.op, Op::Broadcast { .. })
            && elements(instruction.operands[0])
                .zip(elements(given))
                .is_some_and(|(narrow, wide)| 1 < narrow && narrow < wide)
    };
    let reads_elements =
        |user: InstructionId, taken: InstructionId, element: u32| match class_of(module, user) {
            CostClass::Cheap | CostClass::Hero(Hero::Reduction) => true,
            _ if user == of.next => {
                let operands = (0u32..).zip(&module.instructions[of.next].operands);
                operands.filter(|(_, operand)| **operand == taken).all(|(i, _)| i == element)
            }
            _ => module.instructions[user].op == Op::Tuple && inits.contains(&user),
        };
    let is_read_by_element = |&element: &u32| {
        let taken = of.taken.get(&element).map_or(&[][..], Vec::as_slice);
        of.passes_on(module, element)
            && !of.read_by_condition.contains(&element)
            && !of.results.contains_key(&element)
            && taken
                .iter()
                .all(|&taken| users.of(taken).iter().all(|&user| reads_elements(user, taken, element)))
    };
    (0..init.len() as u32).filter(is_broadcast).filter(is_read_by_element).collect()
}

/// If an element of a loop's state is a broadcast, the loop carries the operand, and broadcasts it at each read.
fn carry_what_is_broadcast(module: &mut Module, of: &Loop, element: u32, names: &mut Names) {
    let broadcast = module.instructions[module.instructions[of.init].operands[element as usize]].clone();
    let narrow = broadcast.operands[0];
    module.instructions[of.init].operands[element as usize] = narrow;
    let shape = module.shape(narrow).clone();
    // The state gets that shape below.
    let take = Op::GetTupleElement { index: element };
    let mut at = Cursor::unlisted(module, names, of.body).with_metadata_of(of.state);
    let taken = at.insert_shaped(take, [of.state], shape);
    for &wide in of.taken.get(&element).into_iter().flatten() {
        let wide = &mut module.instructions[wide];
        wide.op = broadcast.op.clone();
        wide.operands = [taken].into_iter().collect();
    }
    module.instructions[of.next].operands[element as usize] = taken;
    of.set_shapes(module);
    module.put_operands_first(of.body);
}
