//! `reduction-layouts`: computes values that a loop stacks in the dimension order in which they are reduced.
//!
//! ```text
//!   b = f32[8,4,64] broadcast(x), dimensions={0,1}       b = f32[8,64,4] broadcast(x), dimensions={0,2}
//!   e = f32[8,4,64] exponential(b)                       e = f32[8,64,4] exponential(b)
//!   s = f32[8,64] reduce(e), dimensions={1}        =>    s = f32[8,64] reduce(e), dimensions={2}
//!   u = f32[1,8,4,64] reshape(e)                         u = f32[1,8,4,64] reshape(transpose(e))
//! ```
//!
//! XLA's layout assignment puts reduced dimensions last, if they have 32 elements and more. Elementwise results of
//! broadcasts have no other order, and a loop stacks them in this order, too; if another loop reads the stack, XLA
//! transposes all of it. If there are several reductions, the last one decides first; a reduction whose result has a
//! single dimension does not count. State that the loop only reads is read transposed, and `loop-state-layouts` then
//! stores it and the stack in this order.
//!
//! Seen in 0.12 on XLA GPU, on logarithms of sums of exponentials in loops that are differentiated (hidden Markov models,
//! optimal transport). Left alone: values that depend on anything but broadcasts and unchanging state. *Changed* means
//! that a value is computed in another order.

use memplan_ir::{ComputationId, Cursor, Dimensions, Insert, InstructionId, Module, Names, Op, Shape, Users};
use memplan_rewriter::loops::{self, Loop};
use memplan_rewriter::rows::is_repetition;
use memplan_rewriter::views::inverse;
use memplan_rewriter::{Context, PassError, PassFn, cost};
use rustc_hash::FxHashSet;

/// The pass.
pub const REDUCTION_LAYOUTS: PassFn = PassFn {
    name: "reduction-layouts",
    description: "compute what a loop stacks in the order in which it is reduced, as XLA's GPU compiler does",
    run,
};

/// Reductions of fewer elements leave the order to others, which XLA sets.
const FEWEST_REDUCED: i64 = 32;

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut names = Names::new(module);
    let mut users = Users::new(module);
    let mut changed = false;
    for of in loops::loops(module, &users) {
        let listed = module.computations[of.body].instructions.clone();
        for id in listed {
            let Some(cluster) = Cluster::stacked_by(module, &users, &of, id) else { continue };
            let Some(order) = cluster.order(module, &module.computations[of.body].instructions) else {
                continue;
            };
            cluster.compute_in(module, &mut names, of.body, &order);
            users = Users::new(module);
            changed = true;
        }
    }
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// Operations on elements that belong to each other, of arrays with the same extents.
#[derive(Default)]
struct Cluster {
    members: FxHashSet<InstructionId>,
    /// State that the loop passes on.
    given: FxHashSet<InstructionId>,
    reductions: FxHashSet<InstructionId>,
    /// Rows of stacks.
    rows: FxHashSet<InstructionId>,
}

impl Cluster {
    /// What a row of a stack is computed of; `None` where some of it has an order of its own.
    fn stacked_by(module: &Module, users: &Users, of: &Loop, update: InstructionId) -> Option<Cluster> {
        let Op::DynamicUpdateSlice = module.instructions[update].op else { return None };
        let row = module.instructions[update].operands[1];
        let Op::Reshape { .. } = module.instructions[row].op else { return None };
        let source = module.instructions[row].operands[0];
        let extents = module.shape(source).as_array()?.dimensions.clone();
        let is_like =
            |id: InstructionId| module.shape(id).as_array().is_some_and(|array| array.dimensions == extents);
        let is_element = |id: InstructionId| {
            let instruction = &module.instructions[id];
            is_like(id)
                && cost::is_pointwise(module, id)
                && instruction.called.is_empty()
                && instruction.control_predecessors.is_empty()
        };
        let is_given = |id| of.element_at(module, id).is_some_and(|element| of.passes_on(module, element));
        let mut cluster = Cluster::default();
        let mut open = vec![source];
        while let Some(id) = open.pop() {
            let is_new = match () {
                _ if is_repetition(&module.instructions[id].op) => false,
                _ if is_element(id) => cluster.members.insert(id),
                _ if is_given(id) => cluster.given.insert(id),
                _ => return None,
            };
            if !is_new {
                continue;
            }
            if cluster.members.contains(&id) {
                let operands = module.instructions[id].operands.iter();
                open.extend(operands.filter(|&&operand| is_like(operand)));
            }
            for &user in users.of(id) {
                match &module.instructions[user].op {
                    _ if is_element(user) => open.push(user),
                    Op::Reduce { .. } if module.instructions[user].operands.len() == 2 => {
                        cluster.reductions.insert(user);
                    }
                    Op::Reshape { .. } if is_row(module, users, user, &extents) => {
                        _ = cluster.rows.insert(user)
                    }
                    Op::Tuple if user == of.next && cluster.given.contains(&id) => {}
                    _ => return None,
                }
            }
        }
        (!cluster.members.is_empty()).then_some(cluster)
    }

    /// The order of dimensions that the last reduction asks for; `None` if that is the order that they have, or if the
    /// result of another one would be in another order.
    fn order(&self, module: &Module, listed: &[InstructionId]) -> Option<Dimensions> {
        let reduced = |id: InstructionId| match &module.instructions[id].op {
            Op::Reduce { dimensions } => dimensions,
            _ => unreachable!("it reduces"),
        };
        let asks = |id: InstructionId| module.shape(id).as_array().is_some_and(|array| array.rank() > 1);
        let last = *listed.iter().rev().find(|&&id| self.reductions.contains(&id) && asks(id))?;
        let array = module.shape(module.instructions[last].operands[0]).as_array()?;
        let n_reduced: i64 = reduced(last).iter().map(|&d| array.dimensions[d as usize]).product();
        let kept = (0..array.rank() as i64).filter(|d| !reduced(last).contains(d));
        let order: Dimensions = kept.chain(reduced(last).iter().copied()).collect();
        let leaves_order =
            |&id: &InstructionId| order.iter().filter(|d| !reduced(id).contains(d)).is_sorted();
        (n_reduced >= FEWEST_REDUCED && !order.is_sorted() && self.reductions.iter().all(leaves_order))
            .then_some(order)
    }

    fn compute_in(&self, module: &mut Module, names: &mut Names, body: ComputationId, order: &Dimensions) {
        let places = inverse(order);
        let listed = module.computations[body].instructions.clone();
        for &id in listed.iter().filter(|id| self.members.contains(id)) {
            for number in 0..module.instructions[id].operands.len() {
                let operand = module.instructions[id].operands[number];
                if !self.members.contains(&operand) {
                    module.instructions[id].operands[number] = in_order(module, names, operand, order);
                }
            }
            let shape = permuted(module.shape(id), order);
            module.set_shape(id, shape);
        }
        for &id in listed.iter().filter(|id| self.reductions.contains(id)) {
            let operand = module.instructions[id].operands[0];
            if !self.members.contains(&operand) {
                module.instructions[id].operands[0] = in_order(module, names, operand, order);
            }
            let Op::Reduce { dimensions } = &mut module.instructions[id].op else {
                unreachable!("it reduces")
            };
            dimensions.iter_mut().for_each(|d| *d = places[*d as usize]);
            dimensions.sort_unstable();
        }
        for &id in listed.iter().filter(|id| self.rows.contains(id)) {
            let row = module.instructions[id].operands[0];
            let back = Cursor::unlisted(module, names, body).transpose(row, places.iter().copied());
            module.instructions[id].operands[0] = back;
        }
        module.put_operands_first(body);
    }
}

/// Whether something is only the row of a stack.
fn is_row(module: &Module, users: &Users, id: InstructionId, extents: &[i64]) -> bool {
    let is_update = |&user: &InstructionId| {
        let instruction = &module.instructions[user];
        let n_uses = instruction.operands.iter().filter(|&&operand| operand == id).count();
        instruction.op == Op::DynamicUpdateSlice && instruction.operands[1] == id && n_uses == 1
    };
    let is_one = |found: &[i64]| found.first() == Some(&1) && &found[1..] == extents;
    module.shape(id).as_array().is_some_and(|array| is_one(&array.dimensions))
        && users.of(id).iter().all(is_update)
}

/// The shape of an array with its dimensions in another order.
fn permuted(shape: &Shape, order: &Dimensions) -> Shape {
    let array = shape.as_array().expect("operations on elements make arrays");
    Shape::array(array.element_type, order.iter().map(|&d| array.dimensions[d as usize]))
}

/// A value that has no order of its own in an order, or another one transposed; a scalar as it is.
fn in_order(module: &mut Module, names: &mut Names, id: InstructionId, order: &Dimensions) -> InstructionId {
    if module.shape(id).as_array().is_none_or(|array| array.rank() == 0) {
        return id;
    }
    let places = inverse(order);
    let shape = permuted(module.shape(id), order);
    let instruction = module.instructions[id].clone();
    let mut at = Cursor::unlisted(module, names, instruction.parent).with_metadata_of(id);
    match &instruction.op {
        Op::Broadcast { dimensions } => {
            let to: Dimensions = dimensions.iter().map(|&d| places[d as usize]).collect();
            let mut by_place: Dimensions = (0..to.len() as i64).collect();
            by_place.sort_by_key(|&i| to[i as usize]);
            let source = match by_place.is_sorted() {
                true => instruction.operands[0],
                false => at.transpose(instruction.operands[0], by_place.iter().copied()),
            };
            let dimensions = by_place.iter().map(|&i| to[i as usize]).collect();
            at.insert_shaped(Op::Broadcast { dimensions }, [source], shape)
        }
        Op::Iota { dimension } => at.iota(shape, places[*dimension as usize]),
        _ => at.transpose(id, order.iter().copied()),
    }
}
