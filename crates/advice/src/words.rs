//! Describes instructions and values: the operation that makes a value, and the one that keeps it alive.

use memplan_analysis::{
    Facts, Phase, Sources, ValueClasses, ValueId, ValueKind, folded_operation, operation, operation_or_name,
};
use memplan_ir::{InstructionId, Module, Op, Users};
use memplan_plan_hlo::{KeptBy, kept_by};

/// JAX's name for operations that the backward half recomputes.
pub(crate) const RECOMPUTED: &str = "rematted_computation";

/// The facts that descriptions use.
#[derive(Debug)]
pub struct Words<'a> {
    /// The module.
    pub module: &'a Module,
    /// Its facts.
    pub facts: &'a Facts,
    /// The class of each value.
    pub classes: ValueClasses,
    /// The lines of the user's program.
    pub sources: Sources<'a>,
    users: Users,
}

impl<'a> Words<'a> {
    /// Takes time close to linear in the module.
    pub fn new(module: &'a Module, facts: &'a Facts) -> Words<'a> {
        Words {
            module,
            facts,
            classes: ValueClasses::new(module, facts),
            sources: Sources::new(module),
            users: Users::new(module),
        }
    }

    /// The instruction whose name and line describe best where a value comes from: for loop state, the instruction that
    /// writes it; for an updated array, the update's operand.
    pub fn maker(&self, value: ValueId) -> InstructionId {
        let flow = &self.facts.flow;
        let definition = flow.positions.instruction(flow.values[value].definition);
        let written = match flow.values[value].kind {
            ValueKind::Parameter => return definition,
            ValueKind::Written => Some(definition),
            // The last write to the place is the purpose of the loop; earlier ones are initial values.
            ValueKind::LoopPhi | ValueKind::ExitPhi => {
                let values = self.facts.buffers.values[self.facts.buffers.of(value)].iter().rev();
                let mut written = values.filter(|&&v| flow.values[v].kind == ValueKind::Written);
                written.next().map(|&v| flow.positions.instruction(flow.values[v].definition))
            }
        };
        let written = written.unwrap_or(definition);
        let part = self.part(written);
        [part, written, definition]
            .into_iter()
            .find(|&id| !operation(self.module, id).is_empty())
            .unwrap_or(definition)
    }

    /// The value that an update writes into an array; for any other instruction, itself.
    fn part(&self, id: InstructionId) -> InstructionId {
        let instruction = |id: InstructionId| &self.module.instructions[id];
        let mut part = match instruction(id).op {
            Op::Fusion(_) => self.module.computations[instruction(id).called[0]].root,
            _ => id,
        };
        // Follows updates of updates, and views of arrays, of which there are few.
        for _ in 0..8 {
            let operand = match &instruction(part).op {
                Op::DynamicUpdateSlice => 1,
                op if op.only_passes_on() => 0,
                Op::Reshape { .. } | Op::Transpose { .. } | Op::Convert | Op::Copy => 0,
                _ => break,
            };
            // Empty tuples have no operands.
            let Some(&operand) = instruction(part).operands.get(operand) else { break };
            part = operand;
        }
        match instruction(part).op {
            Op::Parameter { .. } => id,
            _ => part,
        }
    }

    /// Describes what keeps a value alive.
    pub fn kept_by(&self, value: ValueId) -> String {
        match kept_by(self.module, self.facts, value) {
            KeptBy::Caller => "the caller".to_string(),
            KeptBy::Result => "being a result".to_string(),
            KeptBy::Constant => "being constant".to_string(),
            KeptBy::Loop(_) => {
                let flow = &self.facts.flow;
                let state = flow.positions.instruction(flow.values[value].definition);
                let caller = self.facts.graph.caller(self.module.instructions[state].parent);
                caller.map_or_else(|| "a loop".to_string(), |caller| self.control(caller))
            }
            KeptBy::Reader(reader) => self.reader(value, reader),
        }
    }

    /// Describes how an instruction uses a value.
    fn reader(&self, value: ValueId, reader: InstructionId) -> String {
        let flow = &self.facts.flow;
        let parent = |id: InstructionId| self.module.instructions[id].parent;
        let made_in = parent(flow.positions.instruction(flow.values[value].definition));
        // The outermost loop or branch that reads the value from outside.
        let (mut computation, mut within) = (parent(reader), None);
        while computation != made_in
            && let Some(caller) = self.facts.graph.caller(computation)
        {
            within = Some(caller);
            computation = parent(caller);
        }
        // Tuples only pass values on, so their users matter.
        let mut reader = reader;
        while within.is_none() && self.module.instructions[reader].op == Op::Tuple {
            match (self.users.of(reader), self.facts.graph.caller(parent(reader))) {
                ([user, ..], _) => reader = *user,
                ([], Some(caller)) => within = Some(caller),
                ([], None) => return "being a result".to_string(),
            }
        }
        match within {
            Some(caller) => self.control(caller),
            None => self.does(reader),
        }
    }

    /// A loop, a conditional or a call.
    fn control(&self, id: InstructionId) -> String {
        let kind = match self.module.instructions[id].op {
            Op::While => "loop",
            Op::Conditional => "conditional",
            _ => return self.does(id),
        };
        let at = self.sources.user(id).map_or_else(
            || {
                // "Loop" alone does not say which loop.
                let name = folded_operation(operation(self.module, id));
                match name.rsplit('/').next() {
                    Some("" | "while" | "cond") | None => format!(", {}", self.module.instructions[id].name),
                    Some(_) => format!(", {name}"),
                }
            },
            |frame| format!(" at {frame}"),
        );
        match (self.classes.phases.has_backward(), self.classes.phases.of(id)) {
            (false, _) => format!("the {kind}{at}"),
            (true, Phase::Forward) => format!("the forward {kind}{at}"),
            (true, Phase::Backward) => format!("the backward {kind}{at}"),
            (true, Phase::Update) => format!("the {kind} of the update{at}"),
        }
    }

    /// Describes an operation by the state that it updates, or by its name.
    pub fn does(&self, id: InstructionId) -> String {
        let instruction = &self.module.instructions[id];
        if instruction.op == Op::While || instruction.op == Op::Conditional {
            return self.control(id);
        }
        if self.classes.phases.has_backward()
            && self.classes.phases.of(id) == Phase::Update
            && let Some(state) = self.updated(id)
        {
            return format!("the update of {}", folded_operation(self.name(state)));
        }
        match operation(self.module, id) {
            "" => format!("{} {}", instruction.op.opcode(), instruction.name),
            name => folded_operation(name),
        }
    }

    /// The argument that an operation of the update changes: the one that its result overwrites, or else the first that
    /// it reads.
    fn updated(&self, id: InstructionId) -> Option<InstructionId> {
        let flow = &self.facts.flow;
        let is_argument = |&value: &ValueId| flow.values[value].kind == ValueKind::Parameter;
        let results = flow.positions.of(id).filter_map(|position| flow.value_at(position));
        let in_place = results
            .flat_map(|value| self.facts.buffers.values[self.facts.buffers.of(value)].iter().copied())
            .find(is_argument);
        let operands = self.module.instructions[id].operands.iter();
        let read = || operands.filter_map(|&operand| flow.value_of(operand)).find(is_argument);
        let argument = in_place.or_else(read)?;
        Some(flow.positions.instruction(flow.values[argument].definition))
    }

    /// The framework's name of an instruction, or its own.
    pub fn name(&self, id: InstructionId) -> &str {
        operation_or_name(self.module, id)
    }
}
