//! Operations that work in place: which operand's buffer a result must share, and which it may take over.

use cranelift_entity::SecondaryMap;
use memplan_ir::{
    ArrayShape, ComputationId, Instruction, InstructionId, Module, Op, Shape, ShapeIndex, Tile, UnaryOp,
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// A part of an operand and the part of the result that shares its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlacePair {
    /// Number of the operand.
    pub operand: u32,
    /// Position within the operand.
    pub operand_index: ShapeIndex,
    /// Position within the result.
    pub output_index: ShapeIndex,
}

/// In-place facts of a whole module: fusions are looked into once, nested ones first.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// For each fused computation: leaves of the root that are written into a parameter.
    fused: SecondaryMap<ComputationId, Vec<FusedInPlace>>,
    /// For each fused computation and parameter: whether it is only read at the index that is being written.
    pointwise: SecondaryMap<ComputationId, Vec<Option<PointwiseUse>>>,
}

#[derive(Clone, Debug)]
struct FusedInPlace {
    parameter: u32,
    output_index: ShapeIndex,
}

/// A fusion parameter each of whose elements is read once, at its own place in memory.
#[derive(Clone, Debug, Default)]
struct PointwiseUse {
    /// The leaves of the root whose element at a place is computed from its element there.
    points: Vec<ShapeIndex>,
    /// The leaves of the root that are computed from a reduction of it.
    reduced: Vec<ShapeIndex>,
}

impl InPlace {
    /// Looks into every fused computation. Linear in the module.
    pub fn new(module: &Module) -> InPlace {
        let mut facts = InPlace { fused: SecondaryMap::new(), pointwise: SecondaryMap::new() };
        // Callees precede callers, so a nested fusion is known before the one around it.
        for computation in module.computations.values() {
            for &instruction in &computation.instructions {
                let instruction = &module.instructions[instruction];
                if let (Op::Fusion(_), &[fused]) = (&instruction.op, instruction.called.as_slice())
                    && facts.pointwise[fused].is_empty()
                {
                    facts.fused[fused] = fused_in_place(module, fused, &facts);
                    facts.pointwise[fused] = pointwise_uses(module, fused);
                }
            }
        }
        facts
    }

    /// The pairs of an instruction that must share a buffer for the operation to mean what it says.
    pub fn must_alias(&self, module: &Module, id: InstructionId) -> SmallVec<[InPlacePair; 1]> {
        let instruction = &module.instructions[id];
        let pair = |operand: u32, operand_index: ShapeIndex, output_index: ShapeIndex| InPlacePair {
            operand,
            operand_index,
            output_index,
        };
        let root = ShapeIndex::root;
        let declared = |aliases: &[memplan_ir::OutputOperandAlias]| {
            aliases.iter().map(|a| pair(a.operand, a.operand_index.clone(), a.output_index.clone())).collect()
        };
        match &instruction.op {
            // An update in another layout moves everything.
            Op::DynamicUpdateSlice | Op::SetDimensionSize { .. } => {
                let stays = same_order(module.shape(instruction.operands[0]), module.shape(id));
                stays.then(|| pair(0, root(), root())).into_iter().collect()
            }
            Op::Scatter(_) | Op::AllReduceStart(_) => {
                let n = match &instruction.op {
                    Op::Scatter(_) => instruction.operands.len() / 2,
                    _ => instruction.operands.len(),
                };
                match module.shape(id).is_tuple() {
                    true => (0..n as u32).map(|i| pair(i, root(), [i].into())).collect(),
                    false => SmallVec::from_iter([pair(0, root(), root())]),
                }
            }
            Op::RaggedAllToAll(_) => SmallVec::from_iter([pair(1, root(), root())]),
            // The form with four operands updates a buffer that is given as operand 1.
            Op::CollectivePermute(_) if instruction.operands.len() == 4 => {
                SmallVec::from_iter([pair(1, root(), root())])
            }
            Op::CollectivePermuteStart(_) if instruction.operands.len() == 4 => {
                SmallVec::from_iter([pair(1, root(), [1].into())])
            }
            Op::CustomCall(call) => declared(&call.output_operand_aliasing),
            Op::AsyncStart(start) => declared(&start.output_operand_aliasing),
            Op::Fusion(fusion) => {
                let mut pairs: SmallVec<[InPlacePair; 1]> = declared(&fusion.output_operand_aliasing);
                for found in instruction.called.first().map_or(&[][..], |&fused| &self.fused[fused]) {
                    // One leaf cannot live in two operands, nor one operand hold two leaves: what is declared wins.
                    let taken = pairs
                        .iter()
                        .any(|p| p.output_index == found.output_index || p.operand == found.parameter);
                    let lies_as_inside =
                        lies_as_inside(module, id, found.parameter as usize, &found.output_index);
                    if !taken && lies_as_inside {
                        pairs.push(pair(found.parameter, root(), found.output_index.clone()));
                    }
                }
                pairs
            }
            _ => SmallVec::new(),
        }
    }

    /// Whether the array result at `output` may be written into the buffer of operand `operand`, when that operand
    /// is dead afterwards: every element is read before, and only for, the element that replaces it, or the
    /// operation is one whose kernels work in place anyway.
    pub fn may_take_over(
        &self,
        module: &Module,
        id: InstructionId,
        operand: usize,
        output: &ShapeIndex,
    ) -> bool {
        let instruction = &module.instructions[id];
        let (Some(Shape::Array(result)), Shape::Array(source)) =
            (module.shape(id).subshape(output), module.shape(instruction.operands[operand]))
        else {
            return false;
        };
        if let Op::Fusion(_) = instruction.op {
            let uses = &self.pointwise[instruction.called[0]];
            let Some(Some(pointwise)) = uses.get(operand) else { return false };
            // Results of other extents are written by loops of their own, before or after.
            let extents = |at: &ShapeIndex| {
                module.shape(id).subshape(at).and_then(Shape::as_array).map(|array| &array.dimensions)
            };
            let is_one_loop = pointwise.points.iter().all(|at| extents(at) == Some(&result.dimensions));
            if !is_one_loop || !lies_as_inside(module, id, operand, output) {
                return false;
            }
            // What is computed from the operand lies where the operand lies, whatever bitcasts call the extents. Any
            // other result must have the same extents and be elementwise, so that one loop reads and writes both.
            return match pointwise.points.contains(output) {
                true => same_bytes(result, source),
                false => {
                    pointwise.reduced.is_empty()
                        && same_storage(result, source)
                        && fused_leaf(module, instruction.called[0], output)
                            .is_some_and(|leaf| is_elementwise(&module.instructions[leaf]))
                }
            };
        }
        if !same_storage(result, source) {
            return false;
        }
        match &instruction.op {
            // Element k of operand i is only moved within result i, and kernels start from a copy in the result.
            Op::Sort { .. } => output.0.first().map_or(0, |&i| i as usize) == operand,
            Op::TriangularSolve(_) => operand == 1,
            _ => output.is_root() && is_elementwise(instruction),
        }
    }
}

/// Whether a fusion's operand and result lie as its computation calls them: what is known of the inside holds for the
/// bytes outside only then. Before layouts are assigned it need not be so.
fn lies_as_inside(module: &Module, fusion: InstructionId, operand: usize, output: &ShapeIndex) -> bool {
    let instruction = &module.instructions[fusion];
    let fused = &module.computations[instruction.called[0]];
    let made = fused_leaf(module, instruction.called[0], output)
        .map_or_else(|| module.shape(fused.root).subshape(output), |leaf| Some(module.shape(leaf)));
    let result = module.shape(fusion).subshape(output);
    fused.parameters.get(operand).is_some_and(|&parameter| {
        same_order(module.shape(instruction.operands[operand]), module.shape(parameter))
    }) && made.zip(result).is_some_and(|(made, result)| same_order(made, result))
}

/// The fused instruction that computes a leaf of the root.
fn fused_leaf(module: &Module, fused: ComputationId, output: &ShapeIndex) -> Option<InstructionId> {
    let root = module.computations[fused].root;
    match output.0.as_slice() {
        [] => Some(root),
        [i] if module.instructions[root].op == Op::Tuple => {
            module.instructions[root].operands.get(*i as usize).copied()
        }
        _ => None,
    }
}

/// Whether element `i` of the result depends on element `i` of each array operand and on nothing else of them.
pub fn is_elementwise(instruction: &Instruction) -> bool {
    match &instruction.op {
        // Real and imag read half of each element, but at the same index; counted by width elsewhere.
        Op::Unary(UnaryOp::Real | UnaryOp::Imag) => false,
        // Where it adds a dimension, or takes one away, extents differ and callers find nothing in place.
        Op::BitcastConvert => true,
        op => op.is_elementwise(),
    }
}

/// Same extents, element width, order and tiling: element `i` lies at the same byte in both.
fn same_storage(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.dimensions == b.dimensions
        && a.minor_to_major() == b.minor_to_major()
        && tiles(a) == tiles(b)
        && same_bytes(a, b)
}

/// Same number of elements of the same width, in the same memory.
fn same_bytes(a: &ArrayShape, b: &ArrayShape) -> bool {
    !a.is_dynamic()
        && !b.is_dynamic()
        && a.element_count() == b.element_count()
        && storage_bits(a) == storage_bits(b)
        && a.memory_space() == b.memory_space()
        && (tiles(a) == tiles(b) && (tiles(a).is_empty() || a.dimensions == b.dimensions))
}

fn storage_bits(shape: &ArrayShape) -> i64 {
    match shape.layout.as_ref().map_or(0, |layout| layout.element_size_in_bits) {
        0 => i64::from(shape.element_type.byte_width()) * 8,
        packed => packed,
    }
}

fn tiles(shape: &ArrayShape) -> &[Tile] {
    shape.layout.as_ref().map_or(&[], |layout| layout.tiles.as_slice())
}

/// Leaves of a fused root that an in-place operation writes into a parameter's buffer.
fn fused_in_place(module: &Module, fused: ComputationId, facts: &InPlace) -> Vec<FusedInPlace> {
    let root = module.computations[fused].root;
    let leaves: Vec<(InstructionId, ShapeIndex)> = match &module.instructions[root].op {
        Op::Tuple => {
            let operands = module.instructions[root].operands.iter();
            operands.enumerate().map(|(i, &leaf)| (leaf, [i as u32].into())).collect()
        }
        _ => vec![(root, ShapeIndex::root())],
    };
    let mut found: Vec<FusedInPlace> = Vec::new();
    for (leaf, output_index) in leaves {
        let (leaf, at) = see_through(module, leaf);
        let Some(parameter) = written_parameter(module, leaf, &at, facts) else { continue };
        if found.iter().all(|f| f.parameter != parameter) {
            found.push(FusedInPlace { parameter, output_index });
        }
    }
    found
}

/// The fusion parameter into which an in-place operation writes the result at `at`.
fn written_parameter(
    module: &Module,
    mut id: InstructionId,
    at: &ShapeIndex,
    facts: &InPlace,
) -> Option<u32> {
    let mut at = at.clone();
    // Each step walks up to an operand, so this ends.
    let mut is_in_place = false;
    loop {
        let instruction = &module.instructions[id];
        if let Op::Parameter { number } = instruction.op {
            return is_in_place.then_some(number);
        }
        let pair = facts.must_alias(module, id).into_iter().find(|pair| pair.output_index == at)?;
        // What is written must not come from what it overwrites elsewhere: such a fusion starts from a copy of its operand,
        // and shares nothing.
        let base = parameter_below(module, instruction.operands[pair.operand as usize]);
        if base.is_some_and(|base| reads_base_elsewhere(module, id, base)) {
            return None;
        }
        is_in_place = true;
        (id, at) = see_through(module, instruction.operands[pair.operand as usize]);
        if !pair.operand_index.is_root() {
            return None;
        }
    }
}

/// The parameter that an array is, operations that only update it aside.
fn parameter_below(module: &Module, mut id: InstructionId) -> Option<InstructionId> {
    loop {
        id = see_through(module, id).0;
        match module.instructions[id].op {
            Op::Parameter { .. } => return Some(id),
            Op::DynamicUpdateSlice | Op::Scatter(_) => id = module.instructions[id].operands[0],
            _ => return None,
        }
    }
}

/// Whether a fused update or scatter writes something that is computed from its base, other than from the very window
/// that it replaces: `dynamic-update-slice(p, f(dynamic-slice(p, i)), i)` with an elementwise `f` is fine. Linear in
/// what is above the instruction.
fn reads_base_elsewhere(module: &Module, id: InstructionId, base: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let written = match instruction.op {
        Op::Scatter(_) => &instruction.operands[instruction.operands.len() / 2..],
        Op::DynamicUpdateSlice => &instruction.operands[1..],
        _ => return false,
    };
    // Each instruction above, and whether everything on the way down from it stays at its place.
    let is_update = instruction.op == Op::DynamicUpdateSlice;
    let mut open: Vec<(InstructionId, bool)> =
        written.iter().enumerate().map(|(i, &operand)| (operand, is_update && i == 0)).collect();
    let mut seen = FxHashSet::default();
    while let Some((above, in_place)) = open.pop() {
        if above == base {
            return true;
        }
        if !seen.insert((above, in_place)) {
            continue;
        }
        let above_op = &module.instructions[above];
        if in_place && cuts_out_what_is_replaced(module, above, id, base) {
            open.extend(above_op.operands[1..].iter().map(|&start| (start, false)));
            continue;
        }
        let stays = in_place && (above_op.op == Op::Bitcast || is_elementwise(above_op));
        open.extend(above_op.operands.iter().map(|&operand| (operand, stays)));
    }
    false
}

/// Whether a dynamic-slice of the base has the start and the size of what a dynamic-update-slice replaces.
fn cuts_out_what_is_replaced(
    module: &Module,
    slice: InstructionId,
    update: InstructionId,
    base: InstructionId,
) -> bool {
    let (slice_op, update_op) = (&module.instructions[slice], &module.instructions[update]);
    let constant = |id: InstructionId| match &module.instructions[id].op {
        Op::Constant(literal) => Some(literal),
        _ => None,
    };
    let same_start = |(&a, &b): (&InstructionId, &InstructionId)| {
        a == b || (constant(a).is_some() && constant(a) == constant(b))
    };
    matches!(slice_op.op, Op::DynamicSlice { .. })
        && see_through(module, slice_op.operands[0]).0 == base
        && module.shape(slice).same_ignoring_layout(module.shape(update_op.operands[1]))
        && module.shape(slice_op.operands[0]).same_ignoring_layout(module.shape(update_op.operands[0]))
        && slice_op.operands.len() + 1 == update_op.operands.len()
        && slice_op.operands[1..].iter().zip(&update_op.operands[2..]).all(same_start)
}

/// Walks up through bitcasts and tuple elements to where a value is made: an instruction and a position in it.
fn see_through(module: &Module, mut id: InstructionId) -> (InstructionId, ShapeIndex) {
    let mut at = ShapeIndex::root();
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
/// elementwise, moves no bytes, or is reduced: then a kernel reads each element once, in the step of its loop that
/// writes the result at the same place.
///
/// ```text
///   s = subtract(p, b)     over p: fine, e and r read p through s at the same place
///   e = exponential(s)     r = reduce(e)        root (s, r)
/// ```
///
/// Not so if what was reduced flows back to the same place (softmax): then all of a row is read before any is written.
fn pointwise_uses(module: &Module, fused: ComputationId) -> Vec<Option<PointwiseUse>> {
    let computation = &module.computations[fused];
    computation.parameters.iter().map(|&parameter| pointwise_use(module, fused, parameter)).collect()
}

/// How an instruction depends on a parameter.
#[derive(Clone, Copy, PartialEq)]
enum Reach {
    /// Its element at a place is computed from the parameter's element there.
    Point,
    /// It is computed from a reduction of the parameter, or it is an update of another array with it.
    Reduced,
}

impl PointwiseUse {
    fn add(&mut self, leaf: ShapeIndex, reach: Option<Reach>) {
        match reach {
            Some(Reach::Point) => self.points.push(leaf),
            Some(Reach::Reduced) => self.reduced.push(leaf),
            None => {}
        }
    }
}

/// Follows one parameter to the roots. Linear in the fused computation, and stops at the first use that is not fine.
fn pointwise_use(module: &Module, fused: ComputationId, parameter: InstructionId) -> Option<PointwiseUse> {
    let computation = &module.computations[fused];
    let mut reach: FxHashMap<InstructionId, Reach> = FxHashMap::default();
    reach.insert(parameter, Reach::Point);
    let mut found = PointwiseUse::default();
    for &id in &computation.instructions {
        let instruction = &module.instructions[id];
        let reached = |operand: &InstructionId| reach.get(operand).copied();
        if instruction.op == Op::Tuple && id == computation.root {
            for (i, operand) in instruction.operands.iter().enumerate() {
                found.add(ShapeIndex::from([i as u32]), reached(operand));
            }
            continue;
        }
        let mut through = instruction.operands.iter().filter_map(reached);
        let Some(first) = through.next() else { continue };
        if through.any(|other| other != first) {
            return None;
        }
        let is_fine = |operand: &InstructionId| match &instruction.op {
            Op::Bitcast => same_width(module, id, *operand),
            _ => is_elementwise(instruction) && same_order(module.shape(id), module.shape(*operand)),
        };
        let next = match (first, &instruction.op) {
            (Reach::Reduced, _) => Reach::Reduced,
            (Reach::Point, Op::Reduce { .. }) => {
                let inputs = &instruction.operands[..instruction.operands.len() / 2];
                let initial = &instruction.operands[instruction.operands.len() / 2..];
                if initial.iter().any(|operand| reached(operand).is_some()) || inputs.is_empty() {
                    return None;
                }
                Reach::Reduced
            }
            (Reach::Point, Op::DynamicUpdateSlice) if is_update_elsewhere(module, id, reached) => {
                Reach::Reduced
            }
            (Reach::Point, _) => {
                if !instruction.operands.iter().filter(|operand| reached(operand).is_some()).all(is_fine) {
                    return None;
                }
                Reach::Point
            }
        };
        reach.insert(id, next);
        if id == computation.root {
            found.add(ShapeIndex::root(), Some(next));
        }
    }
    Some(found)
}

/// Whether a dynamic-update-slice writes what is reached into another parameter, which it updates in place: then its
/// kernel runs over the update, and reads each element in its turn.
fn is_update_elsewhere(
    module: &Module,
    id: InstructionId,
    reached: impl Fn(&InstructionId) -> Option<Reach>,
) -> bool {
    let operands = &module.instructions[id].operands;
    let is_only_update = (0..operands.len()).all(|i| reached(&operands[i]).is_some() == (i == 1));
    let mut base = operands[0];
    loop {
        match module.instructions[base].op {
            Op::Parameter { .. } => return is_only_update,
            Op::Bitcast | Op::DynamicUpdateSlice => base = module.instructions[base].operands[0],
            _ => return false,
        }
    }
}

/// Whether two arrays have the same extents and order, so that index `i` of one lies where index `i` of the other
/// does, widths and tiles aside.
fn same_order(a: &Shape, b: &Shape) -> bool {
    match (a.as_array(), b.as_array()) {
        (Some(a), Some(b)) => a.dimensions == b.dimensions && a.minor_to_major() == b.minor_to_major(),
        _ => false,
    }
}

fn same_width(module: &Module, a: InstructionId, b: InstructionId) -> bool {
    match (module.shape(a).as_array(), module.shape(b).as_array()) {
        (Some(a), Some(b)) => a.element_type.byte_width() == b.element_type.byte_width(),
        _ => false,
    }
}
