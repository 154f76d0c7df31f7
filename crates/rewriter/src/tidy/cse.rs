//! `cse`: computes equal values only once.
//!
//! ```text
//! a = f32[4] exponential(p)             a = f32[4] exponential(p)
//! b = f32[4] exponential(p)        =>   ROOT r = f32[4] add(a, a)
//! ROOT r = f32[4] add(a, b)
//! ```
//!
//! Two instructions are equal if operation, attributes, result shape and operands are; the operands of commutative
//! operations may be swapped. Called computations are compared by content: JAX writes one `add` region per reduction,
//! and all of them become one.
//!
//! Leaves alone: side effects, random numbers, collectives, parameters, control dependencies, storage without contents,
//! references, each of which has its own memory, and loops, whose states are so large that it matters which of two is
//! live when. Layouts count only if the module has chosen them. Requires nothing. *Changed* means that an instruction
//! or a computation was merged into another. Linear, since candidates are found by a hash of everything compared.

use std::hash::{Hash, Hasher};

use cranelift_entity::{EntityRef, SecondaryMap};
use memplan_ir::{
    ArrayShape, Callees, ComputationId, InstructionId, Literal, LiteralData, Module, Op, Operands,
    PackedOption, Shape, ShapeId,
};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use crate::rewrite::Rewriter;
use crate::{Context, Outcome, Pass, PassError};

/// Merges equal instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cse {
    /// Called computations of at most this many instructions are merged. Functions of elements are a handful of
    /// instructions; merging larger computations would save no memory.
    pub max_merged_computation: usize,
}

/// The pass with the limit that `compile` uses.
pub const CSE: Cse = Cse { max_merged_computation: 64 };

impl Default for Cse {
    fn default() -> Cse {
        CSE
    }
}

impl Pass for Cse {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn description(&self) -> &'static str {
        "compute equal values only once"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let merged_computations = merge_computations(module, self.max_merged_computation);
        let mut rewriter = Rewriter::new(module);
        if merged_computations {
            rewriter.mark_changed();
        }
        let shape_classes = shape_classes(rewriter.module(), rewriter.is_layout_sensitive());
        let mut seen: FxHashMap<u64, SmallVec<[InstructionId; 1]>> = FxHashMap::default();
        rewriter.sweep(|r, id| {
            if r.is_pinned(id) || !may_merge(r.op(id)) || r.shape(id).has_references() {
                return None;
            }
            let candidates = seen.entry(hash_instruction(r, id, &shape_classes)).or_default();
            let equal = candidates.iter().copied().find(|&other| are_equal(r, other, id, &shape_classes));
            if equal.is_none() {
                candidates.push(id);
            }
            equal
        });
        Ok(rewriter.finish().into())
    }
}

fn may_merge(op: &Op) -> bool {
    !matches!(op, Op::While) && !op.is_allocation() && !op.is_asynchronous() && op.collective().is_none()
}

/// A number for each shape, the same for shapes that count as equal.
fn shape_classes(module: &Module, is_layout_sensitive: bool) -> Vec<u32> {
    if is_layout_sensitive {
        return (0..module.shapes.len() as u32).collect();
    }
    let mut classes: FxHashMap<Shape, u32> = FxHashMap::default();
    let mut class_of = |shape: &Shape| {
        let next = classes.len() as u32;
        *classes.entry(without_order(shape)).or_insert(next)
    };
    module.shapes.iter().map(&mut class_of).collect()
}

/// A shape without the parts of layouts that are still to be chosen; the memory space stays.
fn without_order(shape: &Shape) -> Shape {
    let array = |array: &ArrayShape| {
        let mut array = array.clone();
        if let Some(layout) = &mut array.layout {
            layout.minor_to_major = (0..array.dimensions.len() as i64).rev().collect();
        }
        array
    };
    match shape {
        Shape::Array(a) => Shape::Array(array(a)),
        Shape::Buffer(a) => Shape::Buffer(array(a)),
        Shape::Tuple(elements) => Shape::Tuple(elements.iter().map(without_order).collect()),
        other => other.clone(),
    }
}

fn are_equal(r: &Rewriter<'_>, a: InstructionId, b: InstructionId, shape_classes: &[u32]) -> bool {
    let class = |shape: ShapeId| shape_classes.get(shape.index());
    let (a, b) = (r.get(a), r.get(b));
    a.parent == b.parent
        && class(a.shape) == class(b.shape)
        && a.called == b.called
        && a.op == b.op
        && sorted_operands(&a.op, &a.operands) == sorted_operands(&b.op, &b.operands)
}

fn hash_instruction(r: &Rewriter<'_>, id: InstructionId, shape_classes: &[u32]) -> u64 {
    let instruction = r.get(id);
    let mut hash = FxHasher::default();
    instruction.parent.hash(&mut hash);
    shape_classes[instruction.shape.index()].hash(&mut hash);
    instruction.called.hash(&mut hash);
    sorted_operands(&instruction.op, &instruction.operands).hash(&mut hash);
    hash_op(&instruction.op, &mut hash);
    hash.finish()
}

fn sorted_operands(op: &Op, operands: &Operands) -> Operands {
    let mut operands = operands.clone();
    if matches!(op, Op::Binary(op) if op.is_commutative()) {
        operands.sort_unstable();
    }
    operands
}

/// Hashes an operation with the attributes that tell many instructions of one shape and operand apart.
fn hash_op(op: &Op, hash: &mut FxHasher) {
    op.opcode().hash(hash);
    match op {
        Op::Parameter { number } => number.hash(hash),
        Op::Constant(literal) => hash_literal(literal, hash),
        Op::Iota { dimension } | Op::Concatenate { dimension } => dimension.hash(hash),
        Op::GetTupleElement { index } => index.hash(hash),
        Op::Compare { direction, .. } => direction.hash(hash),
        Op::Broadcast { dimensions }
        | Op::Transpose { dimensions }
        | Op::Reverse { dimensions }
        | Op::Reduce { dimensions }
        | Op::Map { dimensions } => dimensions.hash(hash),
        Op::Slice { dimensions } => dimensions.hash(hash),
        Op::Pad { dimensions } => dimensions.hash(hash),
        Op::DynamicSlice { slice_sizes } => slice_sizes.hash(hash),
        Op::Gather(attributes) => attributes.hash(hash),
        Op::Scatter(attributes) => attributes.hash(hash),
        Op::ReduceWindow(window) | Op::SelectAndScatter(window) => window.hash(hash),
        Op::Dot(dot) => dot.dimensions.hash(hash),
        Op::Convolution(convolution) => convolution.hash(hash),
        Op::CustomCall(call) => call.target.hash(hash),
        _ => {}
    }
}

fn hash_literal(literal: &Literal, hash: &mut FxHasher) {
    match literal {
        Literal::Array(array) => match &array.data {
            LiteralData::Bytes(bytes) => bytes.hash(hash),
            LiteralData::Elided => array.dimensions.hash(hash),
        },
        Literal::Tuple(elements) => elements.iter().for_each(|element| hash_literal(element, hash)),
        Literal::Token => {}
    }
}

/// Lets operations that apply a function to elements call the first of all computations, of at most so many
/// instructions, that compute the same.
fn merge_computations(module: &mut Module, max_instructions: usize) -> bool {
    let mut representative: SecondaryMap<ComputationId, PackedOption<ComputationId>> = SecondaryMap::new();
    let mut seen: FxHashMap<u64, SmallVec<[ComputationId; 1]>> = FxHashMap::default();
    // The place of each instruction in its computation.
    let mut place: SecondaryMap<InstructionId, u32> = SecondaryMap::new();
    place.resize(module.instructions.len());
    for computation in module.computations.values() {
        (0..).zip(&computation.instructions).for_each(|(i, &id)| place[id] = i);
    }
    let mut changed = false;
    for id in module.computations.keys().collect::<Vec<_>>() {
        // Callees precede callers, so what this one calls is merged by now.
        for i in 0..module.computations[id].instructions.len() {
            let instruction = &mut module.instructions[module.computations[id].instructions[i]];
            if instruction.op.traits().callees != Callees::Applied {
                continue;
            }
            for callee in &mut instruction.called {
                if let Some(first) = representative[*callee].expand() {
                    changed |= first != *callee;
                    *callee = first;
                }
            }
        }
        if module.computations[id].instructions.len() > max_instructions {
            continue;
        }
        let candidates = seen.entry(hash_computation(module, id, &place)).or_default();
        match candidates.iter().find(|&&first| computes_the_same(module, first, id, &place)) {
            Some(&first) => representative[id] = first.into(),
            None => candidates.push(id),
        }
    }
    changed
}

fn hash_computation(module: &Module, id: ComputationId, place: &SecondaryMap<InstructionId, u32>) -> u64 {
    let mut hash = FxHasher::default();
    for (_, instruction) in module.instructions_of(id) {
        hash_op(&instruction.op, &mut hash);
        instruction.shape.hash(&mut hash);
        instruction.called.hash(&mut hash);
        instruction.operands.iter().for_each(|&operand| place[operand].hash(&mut hash));
    }
    hash.finish()
}

fn computes_the_same(
    module: &Module,
    a: ComputationId,
    b: ComputationId,
    place: &SecondaryMap<InstructionId, u32>,
) -> bool {
    let (ca, cb) = (&module.computations[a], &module.computations[b]);
    ca.instructions.len() == cb.instructions.len()
        && place[ca.root] == place[cb.root]
        && ca.execution_thread == cb.execution_thread
        && ca.instructions.iter().zip(&cb.instructions).all(|(&a, &b)| {
            let (a, b) = (&module.instructions[a], &module.instructions[b]);
            let are_alike = |(&a, &b): (&InstructionId, &InstructionId)| place[a] == place[b];
            a.shape == b.shape
                && a.called == b.called
                && a.op == b.op
                && a.control_predecessors.is_empty()
                && b.control_predecessors.is_empty()
                && a.operands.len() == b.operands.len()
                && a.operands.iter().zip(&b.operands).all(are_alike)
        })
}
