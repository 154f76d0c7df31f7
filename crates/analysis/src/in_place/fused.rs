//! How a fused computation uses its parameters: which it updates in place, and which it reads element by element.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayLiteral, ArrayShape, ComputationId, InstructionId, Module, Op, ShapeIndex, Users};
use smallvec::SmallVec;

use super::lie::{same_order, storage_bits, tiles};
use super::{InPlace, is_in_step};

/// A leaf of a fused root that an in-place operation writes into a parameter's buffer.
#[derive(Clone, Debug)]
pub(super) struct Updated {
    pub(super) parameter: u32,
    pub(super) output_index: ShapeIndex,
}

/// A fusion parameter each of whose elements is read once, at its own place in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct PointwiseUse {
    /// The leaves of the root whose element at a place is computed from its element there.
    pub(super) points: SmallVec<[ShapeIndex; 1]>,
    /// The leaves of the root that are computed from a reduction of it.
    pub(super) reduced: Vec<ShapeIndex>,
    /// The leaves of the root that a scatter makes beside the array that it updates.
    pub(super) beside: Vec<ShapeIndex>,
}

/// The leaves of a fused root in order, each with the instruction that computes it. Linear in their number.
pub(crate) fn root_leaves(module: &Module, fused: ComputationId) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    let mut open = vec![(ShapeIndex::root(), module.computations[fused].root)];
    while let Some((output, id)) = open.pop() {
        let instruction = &module.instructions[id];
        if instruction.op == Op::Tuple {
            let elements = instruction.operands.iter().enumerate().rev();
            open.extend(elements.map(|(i, &element)| (output.join(&[i as u32].into()), element)));
            continue;
        }
        let shape = module.shape(id);
        if !shape.is_tuple() {
            leaves.push((output, id, ShapeIndex::root()));
            continue;
        }
        leaves.extend(shape.leaves().into_iter().map(|(at, _)| (output.join(&at), id, at)));
    }
    leaves
}

/// The fused instruction that computes a leaf of the root.
pub(super) fn leaf_at(module: &Module, fused: ComputationId, output: &ShapeIndex) -> Option<InstructionId> {
    output.0.iter().try_fold(module.computations[fused].root, |at, &i| match module.instructions[at].op {
        Op::Tuple => module.instructions[at].operands.get(i as usize).copied(),
        _ => None,
    })
}

/// Leaves of the root that in-place operations write into a parameter that nothing reads at another place. Such a fusion
/// would have to start from a copy of its operand, and shares nothing.
pub(super) fn updated_in_place(
    module: &Module,
    fused: ComputationId,
    facts: &InPlace,
    uses: &[Option<PointwiseUse>],
) -> Vec<Updated> {
    let root = module.shape(module.computations[fused].root);
    let extents = |leaf: &ShapeIndex| Some(&root.subshape(leaf)?.as_array()?.dimensions);
    let mut found: Vec<Updated> = Vec::new();
    for (output_index, leaf, at) in root_leaves(module, fused) {
        let Some(parameter) = written_parameter(module, leaf, at, facts) else { continue };
        let Some(Some(uses)) = uses.get(parameter as usize) else { continue };
        let is_one_loop = uses.points.iter().all(|leaf| extents(leaf) == extents(&output_index));
        let is_first = found.iter().all(|f| f.parameter != parameter);
        if is_first && is_one_loop && uses.points.contains(&output_index) {
            found.push(Updated { parameter, output_index });
        }
    }
    found
}

/// The parameter into which in-place operations alone write a part of an instruction's result.
fn written_parameter(module: &Module, leaf: InstructionId, at: ShapeIndex, facts: &InPlace) -> Option<u32> {
    let (mut id, mut at) = see_through(module, leaf, at);
    // Each step walks up to an operand, so this ends.
    let mut is_in_place = false;
    loop {
        let instruction = &module.instructions[id];
        if let Op::Parameter { number } = instruction.op {
            return is_in_place.then_some(number);
        }
        let pair = facts.must_alias(module, id).into_iter().find(|pair| pair.output_index == at)?;
        is_in_place = true;
        (id, at) = see_through(module, instruction.operands[pair.operand as usize], ShapeIndex::root());
        if !pair.operand_index.is_root() {
            return None;
        }
    }
}

/// Walks up through bitcasts and tuple elements to where a value is made: an instruction and a position in it.
fn see_through(module: &Module, mut id: InstructionId, mut at: ShapeIndex) -> (InstructionId, ShapeIndex) {
    loop {
        let instruction = &module.instructions[id];
        match &instruction.op {
            Op::Bitcast => id = instruction.operands[0],
            Op::GetTupleElement { index } => {
                at.0.insert(0, *index);
                id = instruction.operands[0];
            }
            Op::Tuple if !at.is_root() => id = instruction.operands[at.0.remove(0) as usize],
            _ => return (id, at),
        }
    }
}

/// How each parameter is used. A use is pointwise when all that is computed from the parameter, up to the roots, is
/// elementwise, updates it in place, moves no bytes, or is reduced: then a kernel reads each element once, in the step of
/// its loop that writes the result at the same place.
///
/// ```text
///   s = subtract(p, b)     over p: fine, e and r read p through s at the same place
///   e = exponential(s)     r = reduce(e)        root (s, r)
/// ```
///
/// Not if reduced values flow back to the same position (softmax): then all of a row is read before any is written.
/// Close to linear in the values computed from each parameter.
pub(super) fn pointwise_uses(
    module: &Module,
    fused: ComputationId,
    facts: &InPlace,
    readers: &mut Readers,
) -> Vec<Option<PointwiseUse>> {
    let leaves = root_leaves(module, fused);
    let parameters = module.computations[fused].parameters.iter();
    let uses = parameters.map(|&parameter| {
        let Readers { users, place, reaches, reached, next } = readers;
        let mut walk = Walk { module, facts, parameter, reaches, reached };
        let found = pointwise_use(&mut walk, fused, users, place, next, &leaves);
        next.clear();
        reached.drain(..).for_each(|id| reaches[id] = None);
        found
    });
    uses.collect()
}

/// The readers of each instruction within computations, with their positions.
pub(super) struct Readers {
    users: Users,
    /// The place of each instruction in its computation.
    place: SecondaryMap<InstructionId, u32>,
    /// Of the walk from one parameter; of none between walks.
    reaches: SecondaryMap<InstructionId, Option<Reach>>,
    /// Those that have a reach.
    reached: Vec<InstructionId>,
    /// The places of those that the walk is about to visit.
    next: BinaryHeap<Reverse<u32>>,
}

impl Readers {
    pub(super) fn new(module: &Module) -> Readers {
        let mut place = SecondaryMap::with_capacity(module.instructions.len());
        place.resize(module.instructions.len());
        for computation in module.computations.values() {
            (0..).zip(&computation.instructions).for_each(|(i, &id)| place[id] = i);
        }
        let mut reaches = SecondaryMap::with_capacity(module.instructions.len());
        reaches.resize(module.instructions.len());
        Readers { users: Users::new(module), place, reaches, reached: Vec::new(), next: BinaryHeap::new() }
    }
}

/// A leaf of a fused root: where it is, which instruction computes it, and where in its result.
type Leaf = (ShapeIndex, InstructionId, ShapeIndex);

/// How an instruction depends on a parameter.
#[derive(Clone, Copy, PartialEq)]
enum Reach {
    /// Its element at a place is computed from the parameter's element there.
    Point,
    /// Its element at a place is computed from the element there of a window of the parameter, which this slice or
    /// dynamic-slice cuts out.
    Window(InstructionId),
    /// It is made by a scatter of several arrays that updates the parameter as another result.
    Beside,
    /// It is computed from a reduction of the parameter, or it is an update of another array with it.
    Reduced,
}

/// Follows one parameter to the roots, and stops at the first use that is not fine.
fn pointwise_use(
    walk: &mut Walk<'_>,
    fused: ComputationId,
    users: &Users,
    place: &SecondaryMap<InstructionId, u32>,
    next: &mut BinaryHeap<Reverse<u32>>,
    leaves: &[Leaf],
) -> Option<PointwiseUse> {
    let (module, mut last) = (walk.module, walk.parameter);
    let root = module.computations[fused].root;
    let is_root_tuple = |id: InstructionId| id == root && module.instructions[id].op == Op::Tuple;
    walk.reach(last, Reach::Point);
    // Reached instructions are visited in the order of the computation: after all their operands.
    loop {
        let of_last = users.of(last).iter().filter(|&&user| !is_root_tuple(user));
        next.extend(of_last.map(|&user| Reverse(place[user])));
        let Some(Reverse(first)) = next.pop() else { break };
        while next.peek() == Some(&Reverse(first)) {
            next.pop();
        }
        last = module.computations[fused].instructions[first as usize];
        let reach = walk.step(last)?;
        walk.reach(last, reach);
    }
    let mut found = PointwiseUse::default();
    for (index, leaf, at) in leaves {
        match at.0.first().map_or_else(|| walk.of(*leaf), |&i| walk.of_element(*leaf, i)) {
            Some(Reach::Point) => found.points.push(index.clone()),
            Some(Reach::Reduced) => found.reduced.push(index.clone()),
            Some(Reach::Beside) => found.beside.push(index.clone()),
            Some(Reach::Window(_)) => return None,
            None => {}
        }
    }
    Some(found)
}

/// The way from one parameter.
struct Walk<'a> {
    module: &'a Module,
    facts: &'a InPlace,
    parameter: InstructionId,
    reaches: &'a mut SecondaryMap<InstructionId, Option<Reach>>,
    /// Those that have a reach.
    reached: &'a mut Vec<InstructionId>,
}

impl Walk<'_> {
    fn of(&self, id: InstructionId) -> Option<Reach> {
        self.reaches[id]
    }

    fn reach(&mut self, id: InstructionId, reach: Reach) {
        self.reaches[id] = Some(reach);
        self.reached.push(id);
    }

    /// The same of one element of a tuple.
    fn of_element(&self, tuple: InstructionId, index: u32) -> Option<Reach> {
        let reach = self.of(tuple)?;
        let instruction = &self.module.instructions[tuple];
        match instruction.op {
            Op::Scatter(_) => Some(self.of(instruction.operands[index as usize]).unwrap_or(Reach::Beside)),
            _ => Some(reach),
        }
    }

    fn array(&self, id: InstructionId) -> Option<&ArrayShape> {
        self.module.shape(id).as_array()
    }

    fn is_reached(&self, ids: &[InstructionId]) -> bool {
        ids.iter().any(|&id| self.of(id).is_some())
    }

    /// The common reach of the given instructions that depend on the parameter.
    fn join(&self, ids: &[InstructionId]) -> Option<Reach> {
        let mut reaches = ids.iter().filter_map(|&id| self.of(id));
        let first = reaches.next()?;
        reaches.all(|other| other == first).then_some(first)
    }

    /// How an instruction depends on the parameter, of which at least one operand does; `None` when in no way that is
    /// fine.
    fn step(&self, id: InstructionId) -> Option<Reach> {
        let instruction = &self.module.instructions[id];
        let operands = instruction.operands.as_slice();
        let lies_like =
            |operand: &InstructionId| same_order(self.module.shape(*operand), self.module.shape(id));
        match &instruction.op {
            Op::GetTupleElement { index } => {
                let element = self.module.shape(operands[0]).subshape(&[*index].into())?;
                self.of_element(operands[0], *index).filter(|_| same_order(element, self.module.shape(id)))
            }
            Op::Bitcast => self.of(operands[0]).filter(|_| self.stays_in_place(operands[0], id)),
            Op::Reduce { .. } => {
                let (inputs, initial) = operands.split_at(operands.len() / 2);
                let is_folded = !self.is_reached(initial) && self.join(inputs)? == Reach::Point;
                is_folded.then_some(Reach::Reduced)
            }
            Op::DynamicSlice { .. } => {
                let is_window = self.of(operands[0])? == Reach::Point && !self.is_reached(&operands[1..]);
                is_window.then_some(Reach::Window(id))
            }
            Op::Slice { dimensions } => {
                let is_window =
                    self.of(operands[0])? == Reach::Point && dimensions.iter().all(|d| d.stride == 1);
                is_window.then_some(Reach::Window(id))
            }
            Op::DynamicUpdateSlice if !self.is_reached(&operands[2..]) => {
                match (self.of(operands[0]), self.of(operands[1])) {
                    (Some(Reach::Point), None) if lies_like(&operands[0]) => Some(Reach::Point),
                    (Some(Reach::Point), Some(Reach::Window(slice))) if lies_like(&operands[0]) => {
                        replaces(self.module, id, slice).then_some(Reach::Point)
                    }
                    // The kernel of an update elsewhere runs over the update, and reads each element in its turn.
                    (None, Some(Reach::Point)) => {
                        is_updated_parameter(self.module, operands[0]).then_some(Reach::Reduced)
                    }
                    _ => None,
                }
            }
            // Kernels start by copying arrays that are not in the results yet: an array that is updated as two results,
            // and shares bytes with the first, might be updated before it is copied to the second.
            Op::Scatter(_) => {
                let (arrays, rest) = operands.split_at(operands.len() / 2);
                let mut reached = arrays.iter().filter_map(|&array| self.of(array));
                let is_updated = reached.next() == Some(Reach::Point) && reached.next().is_none();
                (is_updated && !self.is_reached(rest)).then_some(Reach::Point)
            }
            Op::Fusion(_) => self.step_into(id),
            op if is_in_step(op) => {
                let mut reached = operands.iter().filter(|&&operand| self.of(operand).is_some());
                let reach = self.join(operands).filter(|&reach| reach != Reach::Beside);
                if reached.all(lies_like) { reach } else { None }
            }
            _ => None,
        }
    }

    /// A nested fusion that reads the reached value element by element, if all results that depend on it have equally
    /// many elements.
    fn step_into(&self, id: InstructionId) -> Option<Reach> {
        let (module, operands) = (self.module, &self.module.instructions[id].operands);
        let inner = module.instructions[id].called[0];
        let parameters = &module.computations[inner].parameters;
        let reach = self.join(operands).filter(|reach| !matches!(reach, Reach::Reduced | Reach::Beside))?;
        let is_fine = |(k, &operand): (usize, &InstructionId)| {
            let Some(Some(uses)) = self.facts.pointwise[inner].get(k) else { return false };
            let count = |id: InstructionId| self.array(id).and_then(ArrayShape::element_count);
            let keeps = |leaf: &ShapeIndex| leaf_at(module, inner, leaf).and_then(count) == count(operand);
            same_order(module.shape(operand), module.shape(parameters[k]))
                && uses.reduced.is_empty()
                && uses.beside.is_empty()
                && uses.points.iter().all(keeps)
        };
        let mut reached = operands.iter().enumerate().filter(|(_, operand)| self.of(**operand).is_some());
        let is_as_inside = same_order(module.shape(id), module.shape(module.computations[inner].root));
        (is_as_inside && reached.all(is_fine)).then_some(reach)
    }

    /// Whether a bitcast keeps elements in place. Narrower elements have other tiles than the parameter's.
    fn stays_in_place(&self, operand: InstructionId, id: InstructionId) -> bool {
        let (Some(a), Some(b)) = (self.array(operand), self.array(id)) else { return false };
        let is_tiled = !tiles(a).is_empty() || !tiles(b).is_empty();
        a.element_count() == b.element_count()
            && storage_bits(a) == storage_bits(b)
            && (!is_tiled || self.array(self.parameter).is_some_and(|p| storage_bits(p) == storage_bits(a)))
    }
}

/// Whether an array is a parameter, updates of it aside: then the kernel that updates it runs over the update alone.
fn is_updated_parameter(module: &Module, mut base: InstructionId) -> bool {
    loop {
        match module.instructions[base].op {
            Op::Parameter { .. } => return true,
            Op::Bitcast | Op::DynamicUpdateSlice => base = module.instructions[base].operands[0],
            _ => return false,
        }
    }
}

/// Whether a dynamic-update-slice puts its update where a slice or dynamic-slice cut out a piece of the same size:
/// `dynamic-update-slice(p, f(dynamic-slice(p, i)), i)` with an elementwise `f`.
fn replaces(module: &Module, update: InstructionId, slice: InstructionId) -> bool {
    let (written, cut) = (&module.instructions[update].operands, &module.instructions[slice]);
    let constant = |id: InstructionId| match &module.instructions[id].op {
        Op::Constant(literal) => literal.as_array(),
        _ => None,
    };
    let starts = &written[2..];
    let same_starts = match &cut.op {
        // A slice is in bounds, so starts that are equal are not clamped.
        Op::Slice { dimensions } => {
            starts.len() == dimensions.len()
                && starts.iter().zip(dimensions).all(|(&start, dimension)| {
                    constant(start).and_then(ArrayLiteral::as_integer) == Some(dimension.start)
                })
        }
        _ => {
            starts.len() == cut.operands.len() - 1
                && starts
                    .iter()
                    .zip(&cut.operands[1..])
                    .all(|(&a, &b)| a == b || (constant(a).is_some() && constant(a) == constant(b)))
        }
    };
    same_starts
        && same_order(module.shape(written[0]), module.shape(cut.operands[0]))
        && same_order(module.shape(written[1]), module.shape(slice))
}
