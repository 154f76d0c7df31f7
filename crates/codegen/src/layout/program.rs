//! A planned program with its launches and buffers numbered.

use memplan_analysis::{Facts, LiveRange, Time, ValueId};
use memplan_hlo as hlo;
use memplan_ir::{
    ComputationId, InstructionId, Module, Op, PackedOption, PositionId, Role, SecondaryMap, Shape,
};
use memplan_memory::{MemoryPlan, MemorySpaceId, Slice, Target};

use super::{Address, Buffer, LaunchKind, Lifetime};

/// Facts about the program, with launches and buffers numbered.
pub(crate) struct NumberedProgram<'a> {
    pub(crate) module: &'a Module,
    pub(crate) facts: &'a Facts,
    pub(crate) target: &'a Target,
    pub(crate) plan: &'a MemoryPlan,
    /// The number of launches before each instant; one more entry at the end.
    launches_before: Vec<u32>,
    /// The values with an address, by number.
    pub(crate) values: Vec<ValueId>,
    pub(crate) numbers: SecondaryMap<ValueId, PackedOption<BufferNumber>>,
    /// How many calls are around each computation, and how often it runs as far as that is known.
    nesting: SecondaryMap<ComputationId, Nesting>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferNumber(pub(crate) u32);
cranelift_entity::entity_impl!(BufferNumber);

#[derive(Clone, Copy, Default)]
pub(crate) struct Nesting {
    pub(crate) depth: u32,
    pub(crate) runs: u64,
}

impl<'a> NumberedProgram<'a> {
    pub(crate) fn new(
        module: &'a Module,
        facts: &'a Facts,
        target: &'a Target,
        plan: &'a MemoryPlan,
    ) -> NumberedProgram<'a> {
        let mut program = NumberedProgram {
            module,
            facts,
            target,
            plan,
            launches_before: Vec::with_capacity(facts.line.instructions.len() + 1),
            values: Vec::new(),
            numbers: SecondaryMap::new(),
            nesting: SecondaryMap::new(),
        };
        program.number_launches();
        program.number_buffers();
        program.nest();
        program
    }

    fn number_launches(&mut self) {
        let mut count = 0;
        for &id in &self.facts.line.instructions {
            self.launches_before.push(count);
            count += u32::from(self.is_launch(id));
        }
        self.launches_before.push(count);
    }

    fn number_buffers(&mut self) {
        for (value, definition) in self.facts.flow.values.iter() {
            if self.slice(definition.definition).is_some() {
                self.numbers[value] = BufferNumber(self.values.len() as u32).into();
                self.values.push(value);
            }
        }
    }

    /// Callers before callees.
    fn nest(&mut self) {
        self.nesting[self.module.entry] = Nesting { depth: 0, runs: 1 };
        for &computation in self.facts.graph.sequential().iter().rev() {
            let Some(caller) = self.facts.graph.caller(computation) else { continue };
            let outer = self.nesting[self.module.instructions[caller].parent];
            let trips = self.trip_count(caller).unwrap_or(1);
            self.nesting[computation] =
                Nesting { depth: outer.depth + 1, runs: outer.runs.saturating_mul(trips) };
        }
    }

    pub(crate) fn nesting(&self, computation: ComputationId) -> Nesting {
        self.nesting[computation]
    }

    pub(crate) fn n_launches(&self) -> u32 {
        self.launches_before.last().copied().unwrap_or(0)
    }

    /// The number of launches before an instant.
    pub(crate) fn launch_at(&self, time: Time) -> u32 {
        self.launches_before[time.min(self.facts.line.end()) as usize]
    }

    /// The number of an instruction among the launches, which it must be one of.
    pub(crate) fn launch_number(&self, id: InstructionId) -> u32 {
        self.launches_before[self.facts.line.time(id) as usize]
    }

    pub(crate) fn is_launch(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match instruction.op.traits().role {
            // There is nothing to write, or it is there already.
            _ if instruction.op.only_names_memory() => false,
            Role::Provides | Role::Orders | Role::Continues => false,
            // The table of a tuple that the caller sees has to be written.
            Role::PassesOn | Role::Regroups => self
                .facts
                .flow
                .positions
                .of(id)
                .any(|position| self.defines(position) && self.slice(position).is_some()),
            // The wrapped instruction of an asynchronous operation is the operation itself.
            _ => self.wrapped(instruction.parent).is_none(),
        }
    }

    /// The only operation of a computation that an asynchronous operation runs.
    pub(crate) fn wrapped(&self, id: ComputationId) -> Option<InstructionId> {
        let caller = self.facts.graph.caller(id)?;
        let computation = &self.module.computations[id];
        let is_one_operation = matches!(self.module.instructions[caller].op, Op::AsyncStart(_))
            && computation.instructions.len() == computation.parameters.len() + 1
            && !computation.parameters.contains(&computation.root);
        is_one_operation.then_some(computation.root)
    }

    pub(crate) fn kind(&self, id: InstructionId) -> LaunchKind {
        match &self.module.instructions[id].op {
            Op::While => LaunchKind::While,
            Op::Conditional => LaunchKind::Conditional,
            Op::Call { .. } => LaunchKind::Call,
            op => match op.traits().role {
                Role::Starts => LaunchKind::Start,
                Role::Ends => LaunchKind::Done,
                Role::PassesOn | Role::Regroups => LaunchKind::Table,
                _ => LaunchKind::Kernel,
            },
        }
    }

    /// How often a loop runs, where that is known; once for everything else.
    pub(crate) fn trip_count(&self, id: InstructionId) -> Option<u64> {
        match self.module.instructions[id].op {
            Op::While => memplan_analysis::trip_count(self.module, id),
            _ => Some(1),
        }
    }

    pub(crate) fn slice(&self, position: PositionId) -> Option<Slice> {
        self.plan.slices.get(&self.facts.flow.positions.position(position)).copied()
    }

    pub(crate) fn defines(&self, position: PositionId) -> bool {
        let flow = &self.facts.flow;
        flow.value_at(position).is_some_and(|value| flow.values[value].definition == position)
    }

    pub(crate) fn address(&self, position: PositionId) -> Option<Address> {
        self.slice(position).map(address_of)
    }

    pub(crate) fn space(&self, address: &Address) -> MemorySpaceId {
        self.plan.allocations[memplan_memory::AllocationId::from_u32(address.allocation)].space
    }

    /// The part of a shape at a position.
    pub(crate) fn part(&self, position: PositionId) -> &'a Shape {
        self.facts.flow.positions.part(self.module, position)
    }

    /// The shape of a buffer where it is defined.
    pub(crate) fn definition(&self, buffer: &Buffer) -> &'a Shape {
        self.part(self.facts.flow.values[self.values[buffer.index as usize]].definition)
    }

    pub(crate) fn lifetime(&self, live: LiveRange) -> Lifetime {
        Lifetime { from: self.launch_at(live.start), to: self.launch_at(live.end) }
    }

    /// Whether the start of an asynchronous operation begins to write a part of its result; other parts repeat its
    /// operands.
    pub(crate) fn is_started(&self, id: InstructionId, position: PositionId) -> bool {
        let index = self.facts.flow.positions.shape_index(position);
        match self.module.instructions[id].op {
            // (operands, results, contexts): the results are those of its computation.
            Op::AsyncStart(_) => index.0.first() == Some(&1) || self.defines(position),
            _ => self.defines(position),
        }
    }
}

/// The text of a shape with layout; of a tuple how many elements it has, since that is what its table consists of.
pub(crate) fn shape_text(shape: &Shape) -> String {
    match shape {
        Shape::Tuple(elements) => format!("tuple({})", elements.len()),
        other => hlo::shape_text(other),
    }
}

pub(crate) fn address_of(slice: Slice) -> Address {
    Address { allocation: slice.allocation.as_u32(), offset: slice.offset, size: slice.size }
}
