//! `collective-layouts`: gathers arrays along their first dimension.
//!
//! ```text
//!   g = f32[64,8] all-gather(x: f32[64,2]), dimensions={1}
//!      =>
//!   t = f32[2,64] transpose(x)
//!   a = f32[8,64] all-gather(t), dimensions={0}
//!   g = f32[64,8] transpose(a)
//! ```
//!
//! XLA's GPU compiler makes the dimension along which it gathers the most major one of the layout, so that the part of
//! each device is contiguous. If the part has another layout, XLA copies it. A product reads the gathered array in
//! either order; an array that passes through a barrier is copied before. Seen in 0.12.
//!
//! Left alone: gathers of several arrays. *Changed* means that there was a gather along another dimension.

use std::collections::BTreeSet;

use memplan_ir::{
    ArrayShape, ComputationId, Cursor, Dimensions, Insert, InstructionId, Module, Names, Op, Shape, Users,
};
use memplan_rewriter::views::inverse;
use memplan_rewriter::{Context, PassError, PassFn};

/// The pass.
pub const COLLECTIVE_LAYOUTS: PassFn = PassFn {
    name: "collective-layouts",
    description: "gather arrays along their first dimension, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut names = Names::new(module);
    let users = Users::new(module);
    let is_gather = |id: &InstructionId| matches!(module.instructions[*id].op, Op::AllGather(_));
    let gathers: Vec<InstructionId> = module.instructions.keys().filter(is_gather).collect();
    let changed = gathers.iter().filter_map(|&id| gather_first(module, &mut names, &users, id));
    let changed: BTreeSet<ComputationId> = changed.collect();
    for &computation in &changed {
        module.put_operands_first(computation);
    }
    if !changed.is_empty() {
        module.compact();
    }
    Ok(!changed.is_empty())
}

/// Returns the computation in which something changed, and whose instructions are not in order any more.
fn gather_first(
    module: &mut Module,
    names: &mut Names,
    users: &Users,
    id: InstructionId,
) -> Option<ComputationId> {
    let instruction = &module.instructions[id];
    let Op::AllGather(collective) = &instruction.op else { return None };
    let mut collective = collective.clone();
    let &[operand] = instruction.operands.as_slice() else { return None };
    let d = collective.dimension.filter(|&d| d > 0)?;
    let (part, whole) = (module.shape(operand).as_array()?.clone(), module.shape(id).as_array()?.clone());
    if part.dimensions[..d as usize].iter().all(|&extent| extent == 1) {
        return None;
    }
    let order: Dimensions =
        [d].into_iter().chain((0..part.rank() as i64).filter(|&other| other != d)).collect();
    let extents = order.iter().map(|&d| whole.dimensions[d as usize]);
    let shape = Shape::Array(ArrayShape::new(whole.element_type, extents.collect::<Dimensions>()));
    collective.dimension = Some(0);
    let parent = instruction.parent;
    let sent = match Passed::new(module, users, operand) {
        Some(passed) => {
            passed.transpose(module, names, &order);
            operand
        }
        None => Cursor::beside(module, names, id).transpose(operand, order.iter().copied()),
    };
    let mut at = Cursor::beside(module, names, id);
    let gathered = at.insert_shaped(Op::AllGather(collective), [sent], shape);
    let instruction = &mut module.instructions[id];
    instruction.op = Op::Transpose { dimensions: inverse(&order) };
    instruction.operands = [gathered].into_iter().collect();
    Some(parent)
}

/// A value that only passes through a tuple, perhaps with a barrier: it has one layout before and behind it.
struct Passed {
    /// The tuple, and the barrier behind it.
    tuples: Vec<InstructionId>,
    element: InstructionId,
    index: u32,
}

impl Passed {
    /// `None` where others look at the value, too.
    fn new(module: &Module, users: &Users, element: InstructionId) -> Option<Passed> {
        let Op::GetTupleElement { index } = module.instructions[element].op else { return None };
        let mut tuples = vec![module.instructions[element].operands[0]];
        if let (&[barrier], true) = (
            module.instructions[tuples[0]].operands.as_slice(),
            module.instructions[tuples[0]].op == Op::OptimizationBarrier,
        ) {
            tuples.insert(0, barrier);
        }
        if module.instructions[tuples[0]].op != Op::Tuple {
            return None;
        }
        let looks = |&&id: &&InstructionId| {
            let takes_another =
                matches!(module.instructions[id].op, Op::GetTupleElement { index: other } if other != index);
            id != element && !tuples.contains(&id) && !takes_another
        };
        let is_alone = users.of(element).len() == 1
            && tuples.iter().flat_map(|&tuple| users.of(tuple)).find(looks).is_none();
        let root = module.computations[module.instructions[element].parent].root;
        let is_kept = root != element && !tuples.contains(&root);
        (is_alone && is_kept).then_some(Passed { tuples, element, index })
    }

    fn transpose(&self, module: &mut Module, names: &mut Names, order: &[i64]) {
        let (at, tuple) = (self.index as usize, self.tuples[0]);
        let before = module.instructions[tuple].operands[at];
        let transposed = Cursor::beside(module, names, tuple).transpose(before, order.iter().copied());
        module.instructions[tuple].operands[at] = transposed;
        let shape = module.shape(transposed).clone();
        for &tuple in &self.tuples {
            let mut elements = module.shape(tuple).as_tuple().expect("it is a tuple").to_vec();
            elements[at] = shape.clone();
            module.set_shape(tuple, Shape::tuple(elements));
        }
        module.set_shape(self.element, shape);
    }
}
