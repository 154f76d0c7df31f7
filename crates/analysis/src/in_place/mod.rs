//! Operations that work in place: which operand's buffer a result must share, and which it may reuse.

mod fused;
mod lie;

use cranelift_entity::SecondaryMap;
use memplan_ir::{
    ComputationId, FusionKind, InstructionId, Module, Op, OutputOperandAlias, Shape, ShapeIndex, UnaryOp,
};
use smallvec::SmallVec;

pub(crate) use self::fused::root_leaves;
use self::fused::{PointwiseUse, Readers, Updated, leaf_at, pointwise_uses, updated_in_place};
use self::lie::{same_bytes, same_order, same_storage};

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
    fused: SecondaryMap<ComputationId, Vec<Updated>>,
    /// For each fused computation and parameter: whether it is only read at the index that is being written.
    pointwise: SecondaryMap<ComputationId, Vec<Option<PointwiseUse>>>,
    /// For each computation that runs asynchronously: what its start declares.
    started: SecondaryMap<ComputationId, Vec<InPlacePair>>,
}

impl InPlace {
    /// Looks into every fused computation. Linear in the module.
    pub fn new(module: &Module) -> InPlace {
        let mut facts = InPlace {
            fused: SecondaryMap::new(),
            pointwise: SecondaryMap::new(),
            started: SecondaryMap::new(),
        };
        let mut readers = None;
        // Callees precede callers, so a nested fusion is known before the one around it.
        for computation in module.computations.values() {
            for &instruction in &computation.instructions {
                let instruction = &module.instructions[instruction];
                if let (Op::Fusion(fusion), &[fused]) = (&instruction.op, instruction.called.as_slice())
                    && facts.pointwise[fused].is_empty()
                    && !(fusion.kind == FusionKind::Custom && convolves(module, fused))
                {
                    let readers = readers.get_or_insert_with(|| Readers::new(module));
                    let uses = pointwise_uses(module, fused, &facts, readers);
                    facts.fused[fused] = updated_in_place(module, fused, &facts, &uses);
                    facts.pointwise[fused] = uses;
                }
                if let (Op::AsyncStart(start), &[wrapped]) = (&instruction.op, instruction.called.as_slice())
                {
                    facts.started[wrapped] = declared(&start.output_operand_aliasing).collect();
                }
            }
        }
        facts
    }

    /// The pairs of an instruction that must share a buffer to preserve the operation's meaning.
    pub fn must_alias(&self, module: &Module, id: InstructionId) -> SmallVec<[InPlacePair; 1]> {
        let pairs = self.declared_and_found(module, id);
        let part = |pair: &InPlacePair| module.shape(id).subshape(&pair.output_index);
        if !pairs.iter().any(|pair| part(pair).is_some_and(Shape::is_tuple)) {
            return pairs;
        }
        // A pair of tuples pairs their arrays.
        let arrays = |pair: &InPlacePair| -> Vec<InPlacePair> {
            let leaves = part(pair).map(Shape::leaves).unwrap_or_default();
            let below = leaves.into_iter().map(|(rest, _)| InPlacePair {
                operand: pair.operand,
                operand_index: pair.operand_index.join(&rest),
                output_index: pair.output_index.join(&rest),
            });
            below.collect()
        };
        pairs.iter().flat_map(arrays).collect()
    }

    /// The pairs of an instruction itself, and of the asynchronous operation that runs it: the start declares them, and
    /// the wrapped instruction implements them.
    fn declared_and_found(&self, module: &Module, id: InstructionId) -> SmallVec<[InPlacePair; 1]> {
        let mut pairs = self.own_pairs(module, id);
        let instruction = &module.instructions[id];
        let started = &self.started[instruction.parent];
        if started.is_empty() || module.computations[instruction.parent].root != id {
            return pairs;
        }
        for pair in started {
            let parameter = module.computations[instruction.parent].parameters.get(pair.operand as usize);
            let operand = instruction.operands.iter().position(|operand| Some(operand) == parameter);
            let output_index = pair.output_index.strip_prefix(&ShapeIndex::from([1]));
            if let (Some(operand), Some(output_index)) = (operand, output_index)
                && pairs.iter().all(|known| known.output_index != output_index)
            {
                pairs.push(InPlacePair { operand: operand as u32, output_index, ..pair.clone() });
            }
        }
        pairs
    }

    fn own_pairs(&self, module: &Module, id: InstructionId) -> SmallVec<[InPlacePair; 1]> {
        let instruction = &module.instructions[id];
        let pair = |operand: u32, operand_index: ShapeIndex, output_index: ShapeIndex| InPlacePair {
            operand,
            operand_index,
            output_index,
        };
        let root = ShapeIndex::root;
        match &instruction.op {
            // An update in another layout moves everything, and what becomes dynamic needs bytes for its extents.
            Op::DynamicUpdateSlice | Op::SetDimensionSize { .. } | Op::Scatter(_) | Op::AllReduceStart(_) => {
                let shape = module.shape(id);
                let n = match &instruction.op {
                    Op::Scatter(_) if shape.is_tuple() => instruction.operands.len() / 2,
                    Op::AllReduceStart(_) if shape.is_tuple() => instruction.operands.len(),
                    _ => 1,
                };
                let output = |i: u32| if shape.is_tuple() { [i].into() } else { root() };
                let stays = |&i: &u32| {
                    let before = module.shape(instruction.operands[i as usize]).as_array();
                    let after = shape.subshape(&output(i)).and_then(Shape::as_array);
                    matches!((before, after), (Some(before), Some(after)) if same_storage(before, after))
                };
                (0..n as u32).filter(stays).map(|i| pair(i, root(), output(i))).collect()
            }
            Op::RaggedAllToAll(_) => SmallVec::from_iter([pair(1, root(), root())]),
            op if op.permutes_in_place() => {
                let is_start = matches!(op, Op::CollectivePermuteStart(_));
                let result = if is_start { [1].into() } else { root() };
                SmallVec::from_iter([pair(1, root(), result)])
            }
            Op::CustomCall(call) => declared(&call.output_operand_aliasing).collect(),
            Op::AsyncStart(start) => declared(&start.output_operand_aliasing).collect(),
            Op::Fusion(fusion) => {
                let mut pairs: SmallVec<[InPlacePair; 1]> =
                    declared(&fusion.output_operand_aliasing).collect();
                for found in instruction.called.first().map_or(&[][..], |&fused| &self.fused[fused]) {
                    // One leaf cannot live in two operands, nor one operand hold two leaves: declared aliases win.
                    let taken = pairs
                        .iter()
                        .any(|p| p.output_index == found.output_index || p.operand == found.parameter);
                    if !taken && stays_in_place(module, id, found.parameter as usize, &found.output_index) {
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
        // With dynamic extents, other operations move elements.
        if result.is_dynamic() {
            return false;
        }
        if let Op::Fusion(_) = instruction.op {
            let Some(pointwise) = self.pointwise_use(instruction.called[0], operand) else { return false };
            // Results of other extents are written by loops of their own, before or after.
            let extents = |at: &ShapeIndex| {
                module.shape(id).subshape(at).and_then(Shape::as_array).map(|array| &array.dimensions)
            };
            let is_one_loop = pointwise.points.iter().all(|at| extents(at) == Some(&result.dimensions));
            if !is_one_loop || !lies_as_inside(module, id, operand, output) {
                return false;
            }
            // Values computed from the operand stay in its place, whatever extents bitcasts give them. Any other result
            // must have equal extents and be elementwise, so that one loop reads and writes both.
            return match pointwise.points.contains(output) {
                true => same_bytes(result, source),
                false => {
                    pointwise.reduced.is_empty()
                        && same_storage(result, source)
                        && leaf_at(module, instruction.called[0], output)
                            .is_some_and(|leaf| is_in_step(&module.instructions[leaf].op))
                }
            };
        }
        if !same_storage(result, source) {
            return false;
        }
        match &instruction.op {
            // Element k of operand i only moves within result i, or is reduced with the elements of other devices, and
            // kernels start from a copy in the result.
            Op::Sort { .. } | Op::AllReduce(_) => output.0.first().map_or(0, |&i| i as usize) == operand,
            Op::TriangularSolve(_) => operand == 1,
            _ => output.is_root() && is_in_step(&instruction.op),
        }
    }

    /// Whether an array result is computed from operand `operand`, element by element: of kernels with several results, one may
    /// not be.
    pub fn is_computed_from(
        &self,
        module: &Module,
        id: InstructionId,
        operand: usize,
        output: &ShapeIndex,
    ) -> bool {
        let instruction = &module.instructions[id];
        let Op::Fusion(_) = instruction.op else { return true };
        self.pointwise_use(instruction.called[0], operand).is_some_and(|uses| uses.points.contains(output))
    }

    fn pointwise_use(&self, fused: ComputationId, parameter: usize) -> Option<&PointwiseUse> {
        self.pointwise[fused].get(parameter)?.as_ref()
    }
}

fn declared(aliases: &[OutputOperandAlias]) -> impl Iterator<Item = InPlacePair> + '_ {
    aliases.iter().map(|alias| InPlacePair {
        operand: alias.operand,
        operand_index: alias.operand_index.clone(),
        output_index: alias.output_index.clone(),
    })
}

/// Whether a fusion's operand and result have the layouts of its computation: only then do facts about the inside hold
/// for the bytes outside. Before layout assignment they may differ.
fn lies_as_inside(module: &Module, fusion: InstructionId, operand: usize, output: &ShapeIndex) -> bool {
    let instruction = &module.instructions[fusion];
    let fused = &module.computations[instruction.called[0]];
    let made = leaf_at(module, instruction.called[0], output)
        .map_or_else(|| module.shape(fused.root).subshape(output), |leaf| Some(module.shape(leaf)));
    let result = module.shape(fusion).subshape(output);
    fused.parameters.get(operand).is_some_and(|&parameter| {
        same_order(module.shape(instruction.operands[operand]), module.shape(parameter))
    }) && made.zip(result).is_some_and(|(made, result)| same_order(made, result))
}

/// Whether a fusion's operand and result share bytes, with the shapes of its computation.
fn stays_in_place(module: &Module, fusion: InstructionId, operand: usize, output: &ShapeIndex) -> bool {
    let source = module.shape(module.instructions[fusion].operands[operand]).as_array();
    let result = module.shape(fusion).subshape(output).and_then(Shape::as_array);
    matches!((source, result), (Some(source), Some(result)) if same_bytes(source, result))
        && lies_as_inside(module, fusion, operand, output)
}

/// Whether a kernel reads element `i` of each array operand and then writes element `i` of the result, as wide as it.
fn is_in_step(op: &Op) -> bool {
    match op {
        // They read half of each element.
        Op::Unary(UnaryOp::Real | UnaryOp::Imag) => false,
        // If it adds or removes a dimension, extents differ and callers find nothing in place.
        Op::BitcastConvert => true,
        op => op.is_elementwise(),
    }
}

/// Whether a fused computation has a convolution: as a custom kernel it is a library's, whose result has memory of its own.
fn convolves(module: &Module, fused: ComputationId) -> bool {
    let is_convolution = |&id: &InstructionId| matches!(module.instructions[id].op, Op::Convolution(_));
    module.computations[fused].instructions.iter().any(is_convolution)
}
