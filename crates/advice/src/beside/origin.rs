//! Finds the operation that computes a value, through kernels and through operations that only move elements.
//!
//! ```text
//!   t = fusion(a, b) { s = add(a, b)   ROOT r = transpose(s) }      t is computed by s, and is in another order
//!   c = fusion(t)    { ROOT k = copy(t) }                           c is computed by s, and moved
//! ```
//!
//! Compilers divide kernels differently, rename them and transpose their results. The operation inside, with the name and
//! the source line from the framework, is the same for all compilers.

use memplan_analysis::{Dataflow, ValueId, ValueKind, folded_operation, operation};
use memplan_ir::{ArrayShape, ComputationId, Instruction, InstructionId, Module, Op, ShapeIndex};

use crate::Words;

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// What computes its elements.
    pub(super) computes: InstructionId,
    /// The framework's operation, numbers of layers as `*`, or else what the instruction is.
    pub(super) name: String,
    /// Whether the framework has named what computes it. Else a compiler has put it there.
    pub(super) is_named: bool,
    /// How it comes from another value, if nothing is computed on the way, and from what.
    pub(super) moved: Option<(Move, InstructionId)>,
    /// Whether elements are put around those that are computed.
    pub(super) is_padded: bool,
    /// The operation that puts what is computed into a stack, if it is one.
    pub(super) stacked_by: Option<String>,
}

/// What becomes of a value that is only moved; the last of several is the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Move {
    /// To another place.
    Copied,
    /// Into another order of dimensions, or another layout.
    Turned,
    /// Into another element type.
    Converted,
}

/// Most steps from a value to what computes it: bounds the time for hostile modules.
const MOST_STEPS: usize = 64;

impl Origin {
    /// Finds what computes a value.
    pub(super) fn of(words: &Words<'_>, value: ValueId) -> Origin {
        let (module, flow) = (words.module, &words.facts.flow);
        let instruction = |id: InstructionId| &module.instructions[id];
        let defined_by = flow.positions.instruction(flow.values[value].definition);
        let (mut id, mut index) = place(flow, written(words, value));
        let mut kernels: Vec<InstructionId> = Vec::new();
        let (mut moved, mut from) = (Move::Copied, None);
        let (mut is_padded, mut is_state) = (false, false);
        let mut stacked_by = None;
        let mut name = "";
        for _ in 0..MOST_STEPS {
            let Instruction { op, operands, called, .. } = instruction(id);
            let is_outside = kernels.is_empty();
            // The innermost name is that of what is computed; kernels have the name of one of their results.
            let named = if matches!(op, Op::Fusion(_)) { "" } else { operation(module, id) };
            name = if named.is_empty() { name } else { named };
            let next = match op {
                Op::Fusion(_) => {
                    kernels.push(id);
                    Some(module.computations[called[0]].root)
                }
                Op::Tuple => index.pop().and_then(|i| operands.get(i as usize).copied()),
                Op::GetTupleElement { index: i } => {
                    index.push(*i);
                    operands.first().copied()
                }
                // In which memory a value is does not make it another one.
                Op::CopyStart { .. } => {
                    index.clear();
                    operands.first().copied()
                }
                Op::CopyDone => operands.first().copied(),
                Op::Parameter { number } => match kernels.pop() {
                    Some(kernel) => {
                        let operand = instruction(kernel).operands.get(*number as usize).copied();
                        from = from.or(operand.filter(|_| kernels.is_empty()));
                        operand
                    }
                    // State of a loop is what the loop writes into it.
                    None if !is_state => {
                        is_state = true;
                        let path = ShapeIndex(index.iter().rev().copied().collect());
                        let state = flow.find(id, &path).map(|value| written(words, value));
                        state.map(|value| {
                            let (next, path) = place(flow, value);
                            index = path;
                            next
                        })
                    }
                    None => None,
                },
                // What is put into a stack says what the stack is.
                Op::DynamicUpdateSlice => {
                    stacked_by = stacked_by.or(Some(folded_operation(named)).filter(|_| from.is_none()));
                    operands.get(1).copied()
                }
                Op::Pad { .. } => {
                    is_padded |= from.is_none();
                    operands.first().copied()
                }
                _ => how_moved(module, id).and_then(|how| {
                    if from.is_none() {
                        moved = moved.max(how);
                    }
                    from = from.or(operands.first().copied().filter(|_| is_outside));
                    operands.first().copied()
                }),
            };
            match next {
                Some(next) if next != id => id = next,
                _ => break,
            }
        }
        let name = [name, operation(module, defined_by)].into_iter().find(|name| !name.is_empty());
        Origin {
            computes: id,
            name: name.map_or_else(|| instruction(id).op.opcode().to_string(), folded_operation),
            is_named: !operation(module, id).is_empty(),
            moved: from.filter(|_| stacked_by.is_none()).map(|from| (moved, from)),
            is_padded,
            stacked_by,
        }
    }

    /// How it is not what is computed, as a prefix of what it is called; empty where it is.
    pub(super) fn prefix(&self) -> &'static str {
        match self.moved {
            _ if self.stacked_by.is_some() => "stack of ",
            _ if self.is_padded => "padded ",
            Some((Move::Copied, _)) => "copy of ",
            Some((Move::Turned, _)) => "transposed ",
            Some((Move::Converted, _)) => "converted ",
            None => "",
        }
    }
}

/// Of values that meet, the one that is written within most loops, and of those the last: what a loop is for, and not a first
/// value.
fn written(words: &Words<'_>, value: ValueId) -> ValueId {
    let facts = words.facts;
    let flow = &facts.flow;
    if matches!(flow.values[value].kind, ValueKind::Parameter | ValueKind::Written) {
        return value;
    }
    let depth = |value: ValueId| {
        let computation =
            words.module.instructions[flow.positions.instruction(flow.values[value].definition)].parent;
        let caller = |&computation: &ComputationId| {
            let caller = facts.graph.caller(computation)?;
            Some(words.module.instructions[caller].parent)
        };
        std::iter::successors(Some(computation), caller).take(MOST_STEPS).count()
    };
    let values = facts.buffers.values[facts.buffers.of(value)].iter().copied();
    let written = values.filter(|&value| flow.values[value].kind == ValueKind::Written);
    written.max_by_key(|&value| (depth(value), value)).unwrap_or(value)
}

/// What defines a value, and where in its result, the outermost step last.
fn place(flow: &Dataflow, value: ValueId) -> (InstructionId, Vec<u32>) {
    let position = flow.positions.position(flow.values[value].definition);
    (position.instruction, position.index.0.iter().rev().copied().collect())
}

/// How an instruction moves its operand, if that is all that it does.
fn how_moved(module: &Module, id: InstructionId) -> Option<Move> {
    let order = |id| module.shape(id).as_array().map(ArrayShape::minor_to_major);
    let instruction = &module.instructions[id];
    match instruction.op {
        Op::Copy if order(id) == order(instruction.operands[0]) => Some(Move::Copied),
        Op::Copy | Op::Transpose { .. } => Some(Move::Turned),
        Op::Bitcast | Op::Reshape { .. } => Some(Move::Copied),
        Op::Convert => Some(Move::Converted),
        _ => None,
    }
}
