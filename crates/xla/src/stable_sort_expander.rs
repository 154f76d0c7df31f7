//! `stable-sort-expander`: implements a stable sort by an unstable one.
//!
//! ```text
//!   s = f32[n] sort(x), is_stable=true      =>     i = s32[n] iota()
//!                                                  t = (f32[n], s32[n]) sort(x, i), is_stable=true
//!                                                  s = f32[n] get-tuple-element(t), index=0
//! ```
//!
//! XLA's GPU compiler has no stable sort: it also sorts the positions of elements, unless they are an operand already,
//! and compares them to break ties. Older ones (jaxlib 0.10.2) do not see that a broadcast of an iota is such an operand;
//! newer ones do (0.12.0.1). Here the comparator and `is_stable` stay; only the array of positions matters. Left alone:
//! sorts with control dependencies. *Changed* means that a sort got positions.

use memplan_ir::{ArrayShape, Cursor, ElementType, Insert, InstructionId, Module, Names, Op, Shape};
use memplan_rewriter::{Context, PassError};
use serde::Deserialize;
use smallvec::SmallVec;

/// Which operands are positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StableSortRules {
    /// Whether a broadcast of an iota is.
    pub sees_broadcasts: bool,
}

/// The type of positions; an iota of another type is not taken for them.
const PLACE: ElementType = ElementType::S32;

pass_with_rules!(
    STABLE_SORT_EXPANDER = StableSortExpander(StableSortRules),
    "stable-sort-expander",
    "sort positions along with elements in stable sorts, as XLA's GPU compiler does",
    run
);

fn run(module: &mut Module, _: &Context<'_>, rules: &StableSortRules) -> Result<bool, PassError> {
    Ok(expand_all(module, *rules))
}

fn expand_all(module: &mut Module, rules: StableSortRules) -> bool {
    let mut names = Names::new(module);
    let mut changed = false;
    for computation in module.computations.keys().collect::<Vec<_>>() {
        if !module.instructions_of(computation).any(|(id, _)| lacks_places(module, rules, id)) {
            continue;
        }
        module.edit_in_order(computation, |module, id| match lacks_places(module, rules, id) {
            true => add_places(module, id, &mut names),
            false => module.list(id),
        });
        changed = true;
    }
    if changed {
        module.compact();
    }
    changed
}

/// Whether an instruction is a stable sort without the places.
fn lacks_places(module: &Module, rules: StableSortRules, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let Op::Sort { dimension, is_stable: true } = instruction.op else { return false };
    let is_places = |operand: &InstructionId| {
        let instruction = &module.instructions[*operand];
        let element_type = module.shape(*operand).as_array().map(|array| array.element_type);
        element_type == Some(PLACE)
            && match &instruction.op {
                Op::Iota { dimension: along } => *along == dimension,
                Op::Broadcast { dimensions } if rules.sees_broadcasts => {
                    let source = &module.instructions[instruction.operands[0]].op;
                    matches!(source, Op::Iota { dimension: along } if dimensions[*along as usize] == dimension)
                }
                _ => false,
            }
    };
    instruction.control_predecessors.is_empty() && !instruction.operands.iter().any(is_places)
}

/// Replaces the sort by one of elements and positions; the old instruction becomes the result that its readers expect.
fn add_places(module: &mut Module, id: InstructionId, names: &mut Names) {
    let sort = module.instructions[id].clone();
    let Op::Sort { dimension, .. } = sort.op else { unreachable!("only sorts lack places") };
    let keys = module.shape(sort.operands[0]).as_array().expect("arrays are sorted").clone();
    let places = ArrayShape { element_type: PLACE, ..keys };
    let results = match module.shape(id).as_tuple() {
        Some(parts) => parts.to_vec(),
        None => vec![module.shape(id).clone()],
    };
    let all: Vec<Shape> = results.iter().cloned().chain([Shape::Array(places.clone())]).collect();
    let iota = Cursor::beside(module, names, id).iota(places.into(), dimension);
    let comparator = with_two_more(module, sort.called[0], names);
    let operands = sort.operands.iter().copied().chain([iota]);
    let mut at = Cursor::beside(module, names, id);
    let whole = at.insert_instruction(sort.op, operands, [comparator], Some(Shape::tuple(all)));
    let elements: Vec<InstructionId> =
        (0..results.len() as u32).map(|i| at.get_tuple_element(whole, i)).collect();
    let is_tuple = module.shape(id).is_tuple();
    let old = &mut module.instructions[id];
    old.called.clear();
    (old.op, old.operands) = match is_tuple {
        true => (Op::Tuple, elements.into_iter().collect()),
        false => (Op::GetTupleElement { index: 0 }, SmallVec::from_iter([whole])),
    };
    module.list(id);
}

/// A comparator that also takes two positions, and ignores them.
fn with_two_more(
    module: &mut Module,
    comparator: memplan_ir::ComputationId,
    names: &mut Names,
) -> memplan_ir::ComputationId {
    let name = names.fresh(&module.computations[comparator].name.clone());
    let copy = module.clone_computation(comparator, name);
    let mut at = Cursor::end(module, names, copy);
    for _ in 0..2 {
        at.named("place").parameter(Shape::scalar(PLACE));
    }
    copy
}
