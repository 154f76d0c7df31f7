//! `conditional-in-place`: turns a conditional that changes or returns its operands into a loop of at most one step.
//!
//! ```text
//! false { p = f32[9] parameter(0), ROOT r = p }       body { s = (s32[], f32[9]) parameter(0), ... }
//! true  { p = f32[9] parameter(0), ... }              i = s32[] select(c, 0, 1)
//! r = f32[9] conditional(c, p, p)                =>   w = (s32[], f32[9]) while((i, p)), while i < 1
//! ```
//!
//! XLA's GPU compiler copies what a branch returns into the memory of the conditional's result, unless that is the first
//! branch (or, from jaxlib 0.12 on, the result must be there anyway); loops change their state in place. So an optimizer step that is skipped when gradients are not finite,
//! and any other conditional change, needs no extra memory.
//!
//! The program must not need a returned array's operand any more (see [`Backings`]), and the result must belong into
//! the operand's memory: the loop would copy an array that is needed later. Scalars may be needed later.
//!
//! Left alone: conditionals of more than two branches, and those with side effects or control dependencies. Requires
//! inlined calls. *Changed* means that a conditional was replaced.

use memplan_ir::{
    ComparisonDirection, ComputationId, ElementType, Insert, InstructionId, Module, Op, Scalar, Shape,
    ShapeIndex, Users,
};
use memplan_rewriter::loops::loops;
use memplan_rewriter::{CALL_INLINER, Context, PassError, PassFn, Rewriter};
use rustc_hash::FxHashMap;

use crate::backing::Backings;

/// The pass.
pub const CONDITIONAL_IN_PLACE: PassFn = PassFn {
    name: "conditional-in-place",
    description: "let conditionals that change or return their operands change them in place",
    run,
};

/// A conditional one branch of which only returns its operand.
struct Plan {
    /// Which branch does something: 0 or 1.
    acts: usize,
    /// For each result, which element of the other branch's operand it is; `None` where the operand is no tuple.
    handed_back: Vec<Option<u32>>,
}

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let plans = plans(module);
    if plans.is_empty() {
        return Ok(false);
    }
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| {
        let plan = plans.get(&id).filter(|_| !r.is_pinned(id))?;
        Some(loop_of(r, id, plan))
    });
    let changed = rewriter.finish();
    // The body of the loop calls the branch.
    (CALL_INLINER.run)(module, context)?;
    Ok(changed)
}

fn plans(module: &Module) -> FxHashMap<InstructionId, Plan> {
    let users = Users::new(module);
    let loops = loops(module, &users);
    let backings = Backings::new(module, &users, &loops);
    let ids = module.computations.values().flat_map(|computation| &computation.instructions);
    let conditionals = ids.filter(|&&id| module.instructions[id].op == Op::Conditional);
    conditionals.filter_map(|&id| Some((id, plan(module, &users, &backings, id)?))).collect()
}

fn plan(module: &Module, users: &Users, backings: &Backings<'_>, id: InstructionId) -> Option<Plan> {
    let conditional = &module.instructions[id];
    let &[_, first, second] = conditional.operands.as_slice() else { return None };
    let plan = [0, 1].into_iter().find_map(|idle| {
        Some(Plan { acts: 1 - idle, handed_back: handed_back(module, conditional.called[idle])? })
    })?;
    let idle = [first, second][1 - plan.acts];
    // The operand of the acting branch becomes elements of the state, one by one.
    let is_flat = |operand: InstructionId| {
        let instruction = &module.instructions[operand];
        let is_array = |&id: &InstructionId| module.shape(id).as_array().is_some();
        is_array(&operand) || instruction.op == Op::Tuple && instruction.operands.iter().all(is_array)
    };
    let is_own_tuple = |&operand: &InstructionId| users.of(operand) == [id];
    let tuples = [first, second].into_iter().filter(|&operand| module.shape(operand).is_tuple());
    let mut holders: Vec<InstructionId> = tuples.filter(is_own_tuple).collect();
    holders.push(id);
    let is_tuple = module.shape(id).is_tuple();
    let is_taking =
        |&user: &InstructionId| matches!(module.instructions[user].op, Op::GetTupleElement { .. });
    let is_root = module.computations[conditional.parent].root == id;
    let is_result = is_root && conditional.parent == module.entry;
    if is_tuple && (is_root && !is_result || !users.of(id).iter().all(is_taking)) {
        return None;
    }
    let mut n_arrays = 0;
    for (k, &element) in plan.handed_back.iter().enumerate() {
        let value = match element {
            Some(element) if module.instructions[idle].op == Op::Tuple => {
                module.instructions[idle].operands[element as usize]
            }
            Some(_) => return None,
            None => idle,
        };
        let array = module.shape(value).as_array().filter(|array| !array.is_dynamic())?;
        if array.dimensions.iter().all(|&extent| extent == 1) {
            continue;
        }
        let takes = |user: &InstructionId| match module.instructions[*user].op {
            Op::GetTupleElement { index } => index as usize == k,
            _ => false,
        };
        let results: Vec<InstructionId> = match is_tuple {
            true => users.of(id).iter().copied().filter(takes).collect(),
            false => vec![id],
        };
        let backing = backings.of(value, &holders)?;
        backings.goes_to(&results, &backing)?;
        if is_tuple && is_result {
            backings.is_output(&backing, &ShapeIndex([k as u32].into_iter().collect()))?;
        }
        n_arrays += 1;
    }
    (n_arrays > 0 && is_flat(first) && is_flat(second)).then_some(plan)
}

/// The elements of its operand that a branch returns, if it does nothing else.
fn handed_back(module: &Module, branch: ComputationId) -> Option<Vec<Option<u32>>> {
    let computation = &module.computations[branch];
    let &[operand] = computation.parameters.as_slice() else { return None };
    let element = |id: InstructionId| match module.instructions[id].op {
        Op::GetTupleElement { index } if module.instructions[id].operands[0] == operand => Some(Some(index)),
        _ if id == operand => Some(None),
        _ => None,
    };
    match module.instructions[computation.root].op {
        Op::Tuple => module.instructions[computation.root].operands.iter().map(|&id| element(id)).collect(),
        // A tuple that is returned as a whole.
        _ if computation.root == operand && module.shape(operand).is_tuple() => {
            let n = module.shape(operand).as_tuple()?.len() as u32;
            Some((0..n).map(Some).collect())
        }
        _ => Some(vec![element(computation.root)?]),
    }
}

/// The loop that replaces a conditional.
fn loop_of(r: &mut Rewriter<'_>, id: InstructionId, plan: &Plan) -> InstructionId {
    let operand_of = |branch: usize| r.operand(id, 1 + branch);
    let elements = |operand: InstructionId| match r.op(operand) {
        Op::Tuple => r.operands(operand).to_vec(),
        _ => vec![operand],
    };
    let (acting, idle) = (operand_of(plan.acts), operand_of(1 - plan.acts));
    let branch = r.get(id).called[plan.acts];
    let given = elements(acting);
    // The state: a counter, the results, and what else the branch reads.
    let mut state: Vec<InstructionId> =
        plan.handed_back.iter().map(|element| elements(idle)[element.unwrap_or(0) as usize]).collect();
    let n_results = state.len();
    let mut places = Vec::with_capacity(given.len());
    for value in given {
        let known = state.iter().position(|&other| other == value);
        places.push(known.unwrap_or(state.len()));
        if known.is_none() {
            state.push(value);
        }
    }
    let start = start_of(r, id, plan.acts);
    state.insert(0, start);
    let parts: Vec<Shape> = state.iter().map(|&element| r.shape(element).clone()).collect();
    let shape = Shape::tuple(parts.clone());
    let (result_shape, argument_shape) = (r.shape(id).clone(), r.shape(acting).clone());
    let body = body(r, branch, &parts, n_results, &places, &argument_shape, &result_shape);
    let condition = condition(r, &parts);
    let init = r.emit(Op::Tuple, state, shape.clone());
    let looped = r.emit_call(Op::While, [init], [body, condition], shape);
    let results: Vec<InstructionId> = (1..=n_results)
        .map(|k| r.emit(Op::GetTupleElement { index: k as u32 }, [looped], parts[k].clone()))
        .collect();
    match result_shape.is_tuple() {
        true => r.emit(Op::Tuple, results, result_shape),
        false => results[0],
    }
}

/// The counter's initial value: 0 if the branch must run, 1 if not.
fn start_of(r: &mut Rewriter<'_>, id: InstructionId, acts: usize) -> InstructionId {
    let selector = r.operand(id, 0);
    let [zero, one] = [0, 1].map(|value| r.splat_array(Scalar::integer(ElementType::S32, value), &[]));
    let is_first = match r.element_type(selector) {
        Some(ElementType::Pred) => selector,
        _ => {
            // An index without a branch means the last one.
            let op = Op::Compare { direction: ComparisonDirection::Eq, comparison_type: None };
            r.emit(op, [selector, zero], Shape::scalar(ElementType::Pred))
        }
    };
    let [first, second] = if acts == 0 { [zero, one] } else { [one, zero] };
    r.emit(Op::Select, [is_first, first, second], Shape::scalar(ElementType::S32))
}

/// One step: the branch is called, the counter goes to 1.
fn body(
    r: &mut Rewriter<'_>,
    branch: ComputationId,
    state: &[Shape],
    n_results: usize,
    places: &[usize],
    argument_shape: &Shape,
    result_shape: &Shape,
) -> ComputationId {
    r.new_computation("at_most_once", "", |r| {
        let parameter = r.parameter("state", Shape::tuple(state.to_vec()));
        let elements: Vec<InstructionId> =
            (0..state.len() as u32).map(|i| r.get_tuple_element(parameter, i)).collect();
        // The counter comes first.
        let given: Vec<InstructionId> = places.iter().map(|&place| elements[1 + place]).collect();
        let argument = match argument_shape.is_tuple() {
            true => r.emit(Op::Tuple, given, argument_shape.clone()),
            false => given[0],
        };
        let call = Op::Call { is_composite: false };
        let result = r.emit_call(call, [argument], [branch], result_shape.clone());
        let mut next = vec![one(r)];
        for k in 0..n_results {
            next.push(match result_shape.is_tuple() {
                true => r.emit(Op::GetTupleElement { index: k as u32 }, [result], state[1 + k].clone()),
                false => result,
            });
        }
        next.extend(&elements[1 + n_results..]);
        r.emit(Op::Tuple, next, Shape::tuple(state.to_vec()))
    })
}

fn condition(r: &mut Rewriter<'_>, state: &[Shape]) -> ComputationId {
    r.new_computation("is_to_act", "", |r| {
        let parameter = r.parameter("state", Shape::tuple(state.to_vec()));
        let counter = r.get_tuple_element(parameter, 0);
        let one = one(r);
        r.compare(ComparisonDirection::Lt, counter, one)
    })
}

fn one(r: &mut Rewriter<'_>) -> InstructionId {
    r.splat_array(Scalar::integer(ElementType::S32, 1), &[])
}
