//! Finds arguments that are weights: the operands by which products multiply the program's data.

use cranelift_entity::SecondaryMap;
use memplan_ir::{Access, BinaryOp, ComputationId, ElementType, InstructionId, Module, Op};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::{CallGraph, Dataflow, Phase, Phases, ValueId, ValueKind};

/// The arguments that are read as weights: the second operand of a product or a convolution, a table that rows are
/// gathered from, or an operand that is broadcast to an array that it is added to or multiplied by (biases, scales).
/// Conversions, transposes, slices and similar operations do not hide an argument. Linear in the module.
pub(crate) fn weights(
    module: &Module,
    graph: &CallGraph,
    flow: &Dataflow,
    phases: &Phases,
) -> FxHashSet<ValueId> {
    let mut search = Search { module, flow, of: SecondaryMap::new(), weights: FxHashSet::default() };
    for &computation in graph.sequential() {
        // The backward half multiplies by data, too.
        search.look(computation, |id| phases.of(id) == Phase::Forward);
    }
    search.weights
}

/// Arguments that an array is made of by moving elements.
#[derive(Clone)]
struct Moved {
    arguments: SmallVec<[ValueId; 1]>,
    /// Whether its elements are at several positions.
    is_spread: bool,
}

struct Search<'a> {
    module: &'a Module,
    flow: &'a Dataflow,
    of: SecondaryMap<InstructionId, Option<Moved>>,
    weights: FxHashSet<ValueId>,
}

/// Most arguments of one array that are followed, so that chains of concatenations do not take quadratic time.
const MOST_ARGUMENTS: usize = 16;

impl Search<'_> {
    fn look(&mut self, computation: ComputationId, counts: impl Fn(InstructionId) -> bool) {
        for (id, _) in self.module.instructions_of(computation) {
            if self.of[id].is_none() {
                self.of[id] = self.argument(id).or_else(|| self.moved(id, counts(id)));
            }
            if counts(id) {
                self.note(id);
            }
        }
    }

    /// The argument behind an instruction, if nothing changes it, also within a loop.
    fn argument(&self, id: InstructionId) -> Option<Moved> {
        let argument = self.flow.value_of(id)?;
        let is_argument = self.flow.values[argument].kind == ValueKind::Parameter;
        is_argument.then_some(Moved { arguments: SmallVec::from_elem(argument, 1), is_spread: false })
    }

    fn moved(&mut self, id: InstructionId, counts: bool) -> Option<Moved> {
        let instruction = &self.module.instructions[id];
        let from = |this: &Self| instruction.operands.first().and_then(|&operand| this.of[operand].clone());
        match instruction.op {
            Op::Fusion(_) => {
                let interior = &self.module.computations[instruction.called[0]];
                for (&parameter, &operand) in interior.parameters.iter().zip(&instruction.operands) {
                    self.of[parameter] = self.of[operand].clone().or_else(|| self.argument(operand));
                }
                self.look(instruction.called[0], |_| counts);
                self.of[interior.root].clone()
            }
            Op::Broadcast { .. } => from(self).map(|moved| Moved { is_spread: true, ..moved }),
            Op::Concatenate { .. } => {
                let parts = instruction.operands.iter().filter_map(|&operand| self.of[operand].as_ref());
                let arguments = parts.flat_map(|moved| moved.arguments.iter().copied());
                let arguments: SmallVec<_> = arguments.take(MOST_ARGUMENTS).collect();
                (!arguments.is_empty()).then_some(Moved { arguments, is_spread: false })
            }
            Op::Convert | Op::Copy => from(self),
            // Quantised weights times their scales.
            Op::Binary(BinaryOp::Multiply) => {
                let moved = |&operand: &InstructionId| self.of[operand].clone();
                let of: Option<SmallVec<[Moved; 2]>> = instruction.operands.iter().map(moved).collect();
                let mut of = of?.into_iter();
                let (a, b) = (of.next()?, of.next()?);
                match (a.is_spread, b.is_spread) {
                    (true, false) => Some(b),
                    (false, true) => Some(a),
                    _ => None,
                }
            }
            ref op if op.only_passes_on() || op.traits().access == Access::Reindexing => from(self),
            _ => None,
        }
    }

    fn note(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        let [first, second, ..] = instruction.operands[..] else { return };
        let (a, b) = (self.of[first].clone(), self.of[second].clone());
        let weight = match &instruction.op {
            // The gathered rows are data, whatever the table is.
            Op::Gather(_) => {
                self.of[id] = None;
                a
            }
            Op::CustomCall(_) => b.filter(|_| a.is_none()),
            op if op.is_contraction() => b.or(a),
            op if op.is_elementwise() => match (a, b) {
                (None, Some(moved)) | (Some(moved), None) => Some(moved).filter(|moved| moved.is_spread),
                (Some(a), Some(b)) if a.is_spread != b.is_spread => Some(if a.is_spread { a } else { b }),
                _ => None,
            },
            _ => None,
        };
        let arguments = weight.into_iter().flat_map(|moved| moved.arguments);
        let is_array = |argument: &ValueId| {
            let definition = self.flow.positions.instruction(self.flow.values[*argument].definition);
            holds_numbers(self.module, definition)
        };
        self.weights.extend(arguments.filter(is_array));
    }
}

/// Whether an instruction is, or holds, arrays of numbers that are multiplied: of floating point, or quantised.
fn holds_numbers(module: &Module, id: InstructionId) -> bool {
    use ElementType::{S2, S4, S8};
    module.shape(id).as_array().is_none_or(|array| {
        let is_quantised = matches!(array.element_type, S2 | S4 | S8);
        array.rank() > 0 && (array.element_type.is_floating() || is_quantised)
    })
}
