//! Arguments that are weights: what products multiply the data of the program by, told from how programs are written.

use cranelift_entity::SecondaryMap;
use memplan_ir::{Access, ComputationId, InstructionId, Module, Op};
use rustc_hash::FxHashSet;

use crate::{CallGraph, Dataflow, Phase, Phases, ValueId, ValueKind};

/// The arguments that are read as weights: the second operand of a product or a convolution, a table that rows are
/// gathered from, or what is spread over an array that it is added to or multiplied by (biases, scales). Conversions,
/// transposes, slices and the like do not hide an argument. Linear in the module.
pub(crate) fn weights(
    module: &Module,
    graph: &CallGraph,
    flow: &Dataflow,
    phases: &Phases,
) -> FxHashSet<ValueId> {
    let mut search = Search { module, flow, phases, of: SecondaryMap::new(), weights: FxHashSet::default() };
    for &computation in graph.sequential() {
        search.look(computation);
    }
    search.weights
}

/// An argument that an array is made of by moving elements.
#[derive(Clone, Copy)]
struct Moved {
    argument: ValueId,
    /// Whether elements of it stand at several places.
    is_spread: bool,
}

struct Search<'a> {
    module: &'a Module,
    flow: &'a Dataflow,
    phases: &'a Phases,
    of: SecondaryMap<InstructionId, Option<Moved>>,
    weights: FxHashSet<ValueId>,
}

impl Search<'_> {
    fn look(&mut self, computation: ComputationId) {
        for (id, _) in self.module.instructions_of(computation) {
            self.of[id] = self.of[id].or_else(|| self.argument(id)).or_else(|| self.moved(id));
            // The backward half multiplies by data, too.
            if self.phases.of(id) == Phase::Forward {
                self.note(id);
            }
        }
    }

    /// What an instruction is if nothing moves: the argument itself, also within a loop.
    fn argument(&self, id: InstructionId) -> Option<Moved> {
        let argument = self.flow.value_of(id)?;
        let is_argument = self.flow.values[argument].kind == ValueKind::Parameter;
        is_argument.then_some(Moved { argument, is_spread: false })
    }

    fn moved(&mut self, id: InstructionId) -> Option<Moved> {
        let instruction = &self.module.instructions[id];
        let from = |this: &Self| instruction.operands.first().and_then(|&operand| this.of[operand]);
        match instruction.op {
            Op::Fusion(_) => {
                let interior = &self.module.computations[instruction.called[0]];
                for (&parameter, &operand) in interior.parameters.iter().zip(&instruction.operands) {
                    self.of[parameter] = self.of[operand].or_else(|| self.argument(operand));
                }
                self.look(instruction.called[0]);
                self.of[interior.root]
            }
            Op::Broadcast { .. } => from(self).map(|moved| Moved { is_spread: true, ..moved }),
            Op::Convert | Op::Copy => from(self),
            ref op if op.only_passes_on() || op.traits().access == Access::Reindexing => from(self),
            _ => None,
        }
    }

    fn note(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        let [first, second, ..] = instruction.operands[..] else { return };
        let (a, b) = (self.of[first], self.of[second]);
        let weight = match &instruction.op {
            // The rows that it gives are data, whatever the table is.
            Op::Gather(_) => {
                self.of[id] = None;
                a.filter(|_| is_floating(self.module, first))
            }
            Op::CustomCall(_) => b.filter(|_| a.is_none()),
            op if op.traits().access == Access::Contraction => b.or(a),
            op if op.is_elementwise() => match (a, b) {
                (None, Some(moved)) | (Some(moved), None) => Some(moved).filter(|moved| moved.is_spread),
                _ => None,
            },
            _ => None,
        };
        let shape =
            |moved: &Moved| self.flow.positions.instruction(self.flow.values[moved.argument].definition);
        let is_array = weight.is_some_and(|moved| is_floating(self.module, shape(&moved)));
        self.weights.extend(weight.filter(|_| is_array).map(|moved| moved.argument));
    }
}

/// Whether an instruction is, or holds, arrays of floating-point numbers.
fn is_floating(module: &Module, id: InstructionId) -> bool {
    module.shape(id).as_array().is_none_or(|array| array.rank() > 0 && array.element_type.is_floating())
}
