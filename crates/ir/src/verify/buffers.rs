//! References to memory, `b(f32[8])`: a program may pass them on, but at most one operation writes what each refers to.
//!
//! ```text
//!   b = b(f32[8]) custom-call(p), custom_call_target="Pin"
//!   c = b(f32[8]) custom-call(b), custom_call_target="writer", output_to_operand_aliasing={{}: (0, {})}
//!   v = f32[8] custom-call(c), custom_call_target="Unpin"
//! ```

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    ComputationId, CustomCall, Instruction, InstructionId, Op, PositionId, Positions, Shape, ShapeIndex,
};

use super::{BufferError, Verifier};

/// Calls with this frontend attribute represent code on another stream.
const STREAM_ANNOTATION: &str = "_xla_stream_annotation";

impl Verifier<'_> {
    /// Looks at modules that are sound otherwise.
    pub(super) fn check_buffers(&mut self) {
        if !self.errors.is_empty() {
            return;
        }
        let (module, wrapped) = (self.module, self.wrapped_computations());
        for (id, instruction) in self.sound_instructions() {
            let is_root = module.computations[instruction.parent].root == id;
            let is_looked_at = !wrapped.contains(&instruction.parent)
                || is_root && matches!(instruction.op, Op::CustomCall(_));
            if is_looked_at && let Err(error) = self.check_use_of_buffers(instruction) {
                self.report(id, error);
            }
        }
        if module.shapes.iter().any(|shape| matches!(shape, Shape::Buffer(_))) {
            self.check_writers(&wrapped);
        }
    }

    /// Computations that run asynchronously.
    fn wrapped_computations(&self) -> FxHashSet<ComputationId> {
        let starts = self.sound_instructions().filter(|(_, i)| matches!(i.op, Op::AsyncStart(_)));
        starts.flat_map(|(_, start)| start.called.iter().copied()).collect()
    }

    /// Which operations may have references as operands and results.
    fn check_use_of_buffers(&self, instruction: &Instruction) -> Result<(), BufferError> {
        let module = self.module;
        let shape = module.shape_of(instruction.shape);
        let operand = |i: usize| instruction.operands.get(i).map(|&operand| module.shape(operand));
        let no_operand_from = |first: usize| {
            let mut operands = instruction.operands.iter().skip(first);
            operands.all(|&operand| !module.shape(operand).has_references())
        };
        let is_allowed = match &instruction.op {
            Op::CustomCall(call) => return self.check_custom_call(instruction, call),
            Op::Parameter { .. } => instruction.parent != module.entry || !shape.has_references(),
            Op::While | Op::Tuple | Op::GetTupleElement { .. } => true,
            Op::AsyncStart(_) | Op::AsyncUpdate(_) | Op::AsyncDone(_) => true,
            Op::Call { .. } if instruction.frontend_attribute(STREAM_ANNOTATION).is_some() => true,
            Op::DynamicUpdateSlice if matches!(operand(0), Some(Shape::Buffer(_))) => {
                matches!(shape, Shape::Buffer(_)) && no_operand_from(1)
            }
            _ => !shape.has_references() && no_operand_from(0),
        };
        if is_allowed { Ok(()) } else { Err(BufferError::NotAllowed) }
    }

    fn check_custom_call(&self, instruction: &Instruction, call: &CustomCall) -> Result<(), BufferError> {
        let module = self.module;
        let result = module.shape_of(instruction.shape);
        let operands: Vec<&Shape> = instruction.operands.iter().map(|&id| module.shape(id)).collect();
        let is_aliased_once = call.output_operand_aliasing.len() == 1;
        let same = |a: &Shape, b: &Shape| {
            a.as_array().zip(b.as_array()).is_some_and(|(a, b)| a.same_ignoring_layout(b))
        };
        match (&*call.target, operands.as_slice(), result) {
            ("Pin", [value @ Shape::Array(_)], Shape::Buffer(_))
            | ("Unpin", [value @ Shape::Buffer(_)], Shape::Array(_)) => {
                match same(value, result) && is_aliased_once {
                    true => Ok(()),
                    false => Err(BufferError::NotThatOfOperand),
                }
            }
            ("Pin", ..) => Err(BufferError::Signature("one array to a buffer")),
            ("Unpin", ..) => Err(BufferError::Signature("one buffer to an array")),
            ("CreateBuffer", [], Shape::Buffer(_)) => Ok(()),
            ("CreateBuffer", ..) => Err(BufferError::Signature("nothing to a buffer")),
            _ => check_aliases(call, &operands, result),
        }
    }

    /// At most one operation writes the memory of a reference, through all values that hold it.
    fn check_writers(&mut self, wrapped: &FxHashSet<ComputationId>) {
        let module = self.module;
        let positions = Positions::new(module);
        // The source of the reference at a position, if it is elsewhere.
        let mut origins: FxHashMap<PositionId, PositionId> = FxHashMap::default();
        let mut writers: FxHashMap<PositionId, usize> = FxHashMap::default();
        let bodies: FxHashSet<ComputationId> =
            self.sound_instructions().filter(|(_, i)| i.op == Op::While).map(|(_, i)| i.called[0]).collect();
        for (id, instruction) in self.sound_instructions() {
            let origin =
                |origins: &FxHashMap<PositionId, PositionId>, id: InstructionId, index: &ShapeIndex| {
                    let position = positions.find(id, index).expect("a part of the shape");
                    origins.get(&position).copied().unwrap_or(position)
                };
            let is_next_state =
                bodies.contains(&instruction.parent) && module.computations[instruction.parent].root == id;
            match &instruction.op {
                Op::GetTupleElement { index } => {
                    for part in buffers_of(module.shape(id)) {
                        let from = origin(
                            &origins,
                            instruction.operands[0],
                            &ShapeIndex::from([*index]).join(&part),
                        );
                        origins.insert(positions.find(id, &part).expect("a part of the shape"), from);
                    }
                }
                Op::Tuple if !is_next_state => {
                    for (i, &operand) in (0..).zip(&instruction.operands) {
                        for part in buffers_of(module.shape(operand)) {
                            let from = origin(&origins, operand, &part);
                            let at = positions.find(id, &ShapeIndex::from([i]).join(&part));
                            origins.insert(at.expect("a part of the shape"), from);
                        }
                    }
                }
                // A loop may write its state, and a callee its operands: nothing more is known here.
                _ => {
                    let mut written: Vec<PositionId> = Vec::new();
                    for &operand in &instruction.operands {
                        let parts = buffers_of(module.shape(operand));
                        written.extend(parts.iter().map(|part| origin(&origins, operand, part)));
                    }
                    written.sort_unstable();
                    written.dedup();
                    written.into_iter().for_each(|origin| *writers.entry(origin).or_default() += 1);
                }
            }
        }
        let mut several: Vec<PositionId> =
            writers.into_iter().filter(|&(_, count)| count > 1).map(|(origin, _)| origin).collect();
        several.sort_unstable();
        for origin in several {
            let id = positions.instruction(origin);
            if !wrapped.contains(&module.instructions[id].parent) {
                self.report(id, BufferError::SeveralWriters(positions.shape_index(origin).clone()));
            }
        }
    }
}

/// References among the operands are returned, as one part of the result each.
fn check_aliases(call: &CustomCall, operands: &[&Shape], result: &Shape) -> Result<(), BufferError> {
    let aliases = &call.output_operand_aliasing;
    for (i, operand) in (0..).zip(operands) {
        for part in buffers_of(operand) {
            let found = aliases.iter().filter(|a| a.operand == i && a.operand_index == part).count();
            if found != 1 {
                return Err(BufferError::OperandAliases { operand: i, index: part, found });
            }
        }
    }
    for part in buffers_of(result) {
        let found = aliases.iter().filter(|a| a.output_index == part).count();
        if found != 1 {
            return Err(BufferError::ResultAliases { index: part, found });
        }
    }
    Ok(())
}

fn buffers_of(shape: &Shape) -> Vec<ShapeIndex> {
    if !shape.has_references() {
        return Vec::new();
    }
    let leaves = shape.leaves().into_iter();
    leaves.filter(|(_, part)| matches!(part, Shape::Buffer(_))).map(|(index, _)| index).collect()
}
