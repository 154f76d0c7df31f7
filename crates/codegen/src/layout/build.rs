//! From module, facts and plan to the document.

use std::cmp::Reverse;

use memplan_analysis::{Facts, LiveRange, Time, ValueId, ValueKind};
use memplan_hlo as hlo;
use memplan_ir::{
    ComputationId, EntityRef, InstructionId, Literal, Module, Op, PackedOption, Position, PositionId, Role,
    SecondaryMap, Shape, Tile,
};
use memplan_memory::{Alignment, AllocationKind, Bytes, KindName, MemoryPlan, MemorySpaceId, Slice, Target};

use super::transfer::transfers;
use super::{
    Address, Allocation, Argument, Buffer, Call, CallRole, Computation, Launch, LaunchKind, Lifetime, Port,
    ProgramLayout, Space, padding,
};
use crate::constants::constant_offsets;

/// The layout of a planned module: `facts` are those of the module under the plan's schedule.
///
/// Takes time close to linear in the module, and in what the launches read and write.
///
/// # Panics
/// When facts or plan are of another module.
///
/// # Examples
/// ```
/// use memplan_codegen::layout::layout;
/// use memplan_memory::Target;
///
/// let text = "
/// HloModule twice, is_scheduled=true
/// ENTRY main {
///   p = f32[16]{0} parameter(0)
///   a = f32[16]{0} add(p, p)
///   ROOT b = f32[16]{0} reverse(a), dimensions={0}
/// }";
/// let module = memplan_hlo::parse(text)?;
/// let target = Target::find("gpu-h100")?;
/// let planned = memplan_plan::plan(&module, &target, &Default::default())?;
/// let layout = layout(&module, &planned.facts, &target, &planned.plan);
///
/// let names: Vec<&str> = layout.launches_in_order().iter().map(|(_, launch)| &*launch.name).collect();
/// assert_eq!(names, ["a", "b"]);
/// // The sum is needed by both, and its buffer holds 64 bytes.
/// let sum = layout.buffers.iter().find(|buffer| buffer.name == "a").unwrap();
/// assert_eq!((sum.live.from, sum.live.to, sum.address.size.0), (0, 2, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn layout(module: &Module, facts: &Facts, target: &Target, plan: &MemoryPlan) -> ProgramLayout {
    let program = Program::new(module, facts, target, plan);
    let buffers = program.buffers();
    let (file_offsets, constants_file) = constant_offsets(plan);
    ProgramLayout {
        format: "memplan.layout".into(),
        version: 1,
        module: module.name.to_string(),
        fingerprint: format!("{:016x}", plan.fingerprint),
        target: target.name.clone(),
        totals: plan.totals,
        launches: program.n_launches(),
        constants_file,
        spaces: program.spaces(),
        allocations: program.allocations(&buffers, &file_offsets),
        parameters: program.parameters(),
        results: program.ports(module.entry_computation().root, None),
        computations: program.computations(),
        transfers: transfers(&program),
        padding: padding::worst(&program, &buffers),
        buffers,
    }
}

/// What is known about the program, with launches and buffers numbered.
pub(super) struct Program<'a> {
    pub(super) module: &'a Module,
    pub(super) facts: &'a Facts,
    pub(super) target: &'a Target,
    pub(super) plan: &'a MemoryPlan,
    /// How many launches stand before each instant; one more entry at the end.
    launches_before: Vec<u32>,
    /// The values with an address, by number.
    values: Vec<ValueId>,
    numbers: SecondaryMap<ValueId, PackedOption<BufferNumber>>,
    /// How many calls are around each computation, and how often it runs as far as that is known.
    nesting: SecondaryMap<ComputationId, Nesting>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct BufferNumber(u32);
cranelift_entity::entity_impl!(BufferNumber);

#[derive(Clone, Copy, Default)]
pub(super) struct Nesting {
    pub(super) depth: u32,
    pub(super) runs: u64,
}

impl<'a> Program<'a> {
    fn new(module: &'a Module, facts: &'a Facts, target: &'a Target, plan: &'a MemoryPlan) -> Program<'a> {
        let mut program = Program {
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

    pub(super) fn nesting(&self, computation: ComputationId) -> Nesting {
        self.nesting[computation]
    }

    fn n_launches(&self) -> u32 {
        self.launches_before.last().copied().unwrap_or(0)
    }

    /// The number of an instruction among the launches, which it must be one of.
    pub(super) fn launch_number(&self, id: InstructionId) -> u32 {
        self.launches_before[self.facts.line.time(id) as usize]
    }

    fn is_launch(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match instruction.op.traits().role {
            Role::Provides | Role::Orders | Role::Continues => false,
            // The table of a tuple that the caller sees has to be written.
            Role::PassesOn | Role::Regroups => self
                .facts
                .flow
                .positions
                .of(id)
                .any(|position| self.defines(position) && self.slice(position).is_some()),
            // What an asynchronous operation consists of is the operation itself.
            _ => self.wrapped(instruction.parent).is_none(),
        }
    }

    /// The only operation of a computation that an asynchronous operation runs.
    pub(super) fn wrapped(&self, id: ComputationId) -> Option<InstructionId> {
        let caller = self.facts.graph.caller(id)?;
        let computation = &self.module.computations[id];
        let is_one_operation = matches!(self.module.instructions[caller].op, Op::AsyncStart(_))
            && computation.instructions.len() == computation.parameters.len() + 1
            && !computation.parameters.contains(&computation.root);
        is_one_operation.then_some(computation.root)
    }

    pub(super) fn kind(&self, id: InstructionId) -> LaunchKind {
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
    fn trip_count(&self, id: InstructionId) -> Option<u64> {
        match self.module.instructions[id].op {
            Op::While => memplan_analysis::trip_count(self.module, id),
            _ => Some(1),
        }
    }

    fn slice(&self, position: PositionId) -> Option<Slice> {
        self.plan.slices.get(&self.facts.flow.positions.position(position)).copied()
    }

    fn defines(&self, position: PositionId) -> bool {
        let flow = &self.facts.flow;
        flow.value_at(position).is_some_and(|value| flow.values[value].definition == position)
    }

    pub(super) fn address(&self, position: PositionId) -> Option<Address> {
        self.slice(position).map(address)
    }

    pub(super) fn space(&self, address: &Address) -> MemorySpaceId {
        self.plan.allocations[memplan_memory::AllocationId::from_u32(address.allocation)].space
    }

    /// The part of a shape at a position.
    pub(super) fn part(&self, position: PositionId) -> &'a Shape {
        let positions = &self.facts.flow.positions;
        let shape = self.module.shape(positions.instruction(position));
        shape.subshape(positions.shape_index(position)).expect("positions are parts of shapes")
    }

    /// The shape of a buffer where it is defined.
    pub(super) fn definition(&self, buffer: &Buffer) -> &'a Shape {
        self.part(self.facts.flow.values[self.values[buffer.index as usize]].definition)
    }

    fn lifetime(&self, live: LiveRange) -> Lifetime {
        let launch = |time: Time| self.launches_before[time.min(self.facts.line.end()) as usize];
        Lifetime { from: launch(live.start), to: launch(live.end) }
    }

    fn spaces(&self) -> Vec<Space> {
        let mut ids: Vec<MemorySpaceId> = self.plan.allocations.values().map(|a| a.space).collect();
        ids.push(MemorySpaceId::MAIN);
        ids.sort_unstable();
        ids.dedup();
        let mut spaces: Vec<Space> = ids
            .into_iter()
            .map(|id| {
                let known = self.target.space(id);
                Space {
                    id,
                    name: known.map_or_else(|| id.to_string(), |space| space.name.clone()),
                    capacity: known.and_then(|space| space.capacity),
                    reserved: known.map_or(Bytes::ZERO, |space| space.reserved),
                    used: Bytes::ZERO,
                    temp: Bytes::ZERO,
                    alignment: self.target.alignment(id),
                    granule: known.map_or(Alignment::ONE, |space| space.granule),
                }
            })
            .collect();
        for allocation in self.plan.allocations.values() {
            let space = spaces.binary_search_by_key(&allocation.space, |space| space.id);
            let space = &mut spaces[space.expect("every allocation's space is listed")];
            space.used = space.used.saturating_add(allocation.size);
            if allocation.kind == AllocationKind::Temp {
                space.temp = space.temp.saturating_add(allocation.size);
            }
        }
        spaces
    }

    fn allocations(&self, buffers: &[Buffer], file_offsets: &[Option<Bytes>]) -> Vec<Allocation> {
        // The buffer that an allocation is for: a result, or whatever comes first.
        let mut owners: Vec<Option<&Buffer>> = vec![None; self.plan.allocations.len()];
        for buffer in buffers {
            let owner = &mut owners[buffer.address.allocation as usize];
            if owner.is_none_or(|owner| buffer.result && !owner.result && owner.parameter.is_none()) {
                *owner = Some(buffer);
            }
        }
        let entry = |(id, allocation): (memplan_memory::AllocationId, &memplan_memory::Allocation)| {
            let parameter = |number: u32| {
                let id = self.module.entry_computation().parameters[number as usize];
                self.module.instructions[id].name.to_string()
            };
            let name = match (&allocation.kind, owners[id.index()]) {
                (AllocationKind::Temp, _) => "temp".to_string(),
                (AllocationKind::Argument { parameter: number, index }, _) if index.is_root() => {
                    parameter(*number)
                }
                (AllocationKind::Argument { parameter: number, index }, _) => {
                    format!("{}{index}", parameter(*number))
                }
                (_, Some(buffer)) => buffer.full_name(),
                (_, None) => KindName::from(&allocation.kind).to_string(),
            };
            Allocation {
                index: id.as_u32(),
                name,
                kind: KindName::from(&allocation.kind),
                space: allocation.space,
                size: allocation.size,
                alignment: allocation.alignment,
                live_out: allocation.live_out,
                file_offset: file_offsets[id.index()],
            }
        };
        self.plan.allocations.iter().map(entry).collect()
    }

    fn parameters(&self) -> Vec<Port> {
        let parameters = self.module.entry_computation().parameters.iter().enumerate();
        parameters.flat_map(|(number, &id)| self.ports(id, Some(number as u32))).collect()
    }

    /// The parts of an instruction that the caller passes or gets.
    fn ports(&self, id: InstructionId, parameter: Option<u32>) -> Vec<Port> {
        let flow = &self.facts.flow;
        let has_bytes = |&position: &PositionId| {
            self.slice(position).is_some() || !matches!(self.part(position), Shape::Tuple(_) | Shape::Token)
        };
        let port = |position| {
            let value = flow.value_at(position).expect("the entry is sequential");
            Port {
                parameter,
                index: flow.positions.shape_index(position).0.to_vec(),
                name: self.module.instructions[id].name.to_string(),
                shape: shape_text(self.part(position)),
                buffer: self.buffer_number(value),
                address: self.address(position),
                donated: parameter.is_some() && self.facts.live.is_given(value),
            }
        };
        flow.positions.of(id).filter(has_bytes).map(port).collect()
    }

    fn buffer_number(&self, value: ValueId) -> Option<u32> {
        self.numbers[value].expand().map(|number| number.0)
    }

    fn buffers(&self) -> Vec<Buffer> {
        self.values.iter().enumerate().map(|(index, &value)| self.buffer(index as u32, value)).collect()
    }

    fn buffer(&self, index: u32, value: ValueId) -> Buffer {
        let flow = &self.facts.flow;
        let definition = flow.values[value];
        let Position { instruction: id, index: shape_index } = flow.positions.position(definition.definition);
        let instruction = &self.module.instructions[id];
        let slice = self.slice(definition.definition).expect("buffers are values with a slice");
        let part = self.part(definition.definition);
        let array = part.as_array();
        let constant = matches!(instruction.op, Op::Constant(_));
        let is_parameter = definition.kind == ValueKind::Parameter;
        let parameter = match instruction.op {
            Op::Parameter { number } if is_parameter => Some(number),
            _ => None,
        };
        // The bytes of constants are there from the start, whenever they are read.
        let live = match constant {
            true => Lifetime { from: 0, to: self.n_launches() },
            false => self.lifetime(self.facts.live.of(value)),
        };
        Buffer {
            index,
            name: instruction.name.to_string(),
            shape_index: shape_index.0.to_vec(),
            computation: self.module.computations[instruction.parent].name.to_string(),
            shape: shape_text(part),
            element_type: array.map(|array| array.element_type.to_string()),
            dimensions: array.map_or_else(Vec::new, |array| array.dimensions.to_vec()),
            tiles: array.and_then(|array| array.layout.as_ref()).map_or_else(String::new, tiles_text),
            address: address(slice),
            space: self.plan.allocations[slice.allocation].space,
            unpadded: self.target.unpadded_size_of(part),
            live,
            parameter,
            donated: parameter.is_some() && self.facts.live.is_given(value),
            constant,
            result: self.facts.live.is_live_out(value),
        }
    }

    fn computations(&self) -> Vec<Computation> {
        let mut ids: Vec<ComputationId> = self.facts.graph.sequential().to_vec();
        ids.retain(|&id| self.wrapped(id).is_none());
        // An outer computation begins no later than one inside it and is longer.
        ids.sort_by_key(|&id| {
            let (begin, end) = self.facts.line.range(id);
            (begin, Reverse(end), self.nesting[id].depth)
        });
        ids.into_iter().map(|id| self.computation(id)).collect()
    }

    fn computation(&self, id: ComputationId) -> Computation {
        let computation = &self.module.computations[id];
        let mut instructions = computation.instructions.clone();
        instructions.retain(|&id| self.is_launch(id));
        instructions.sort_by_key(|&id| self.facts.line.time(id));
        Computation {
            name: computation.name.to_string(),
            called_by: self.facts.graph.caller(id).map(|caller| self.launch_number(caller)),
            depth: self.nesting[id].depth,
            launches: instructions.into_iter().map(|id| self.launch(id)).collect(),
        }
    }

    fn launch(&self, id: InstructionId) -> Launch {
        let instruction = &self.module.instructions[id];
        let kind = self.kind(id);
        let function = match &instruction.op {
            Op::Fusion(_) => {
                instruction.called.first().map(|&c| self.module.computations[c].name.to_string())
            }
            Op::CustomCall(call) => Some(call.target.to_string()),
            _ => None,
        };
        Launch {
            index: self.launch_number(id),
            name: instruction.name.to_string(),
            opcode: self.opcode(id),
            kind,
            function,
            calls: self.calls(id),
            trip_count: if kind == LaunchKind::While { self.trip_count(id) } else { None },
            operands: self.operands(id, kind),
            results: self.results(id, kind),
            scratch: self.plan.scratch.get(&id).into_iter().flatten().copied().map(address).collect(),
        }
    }

    /// The operation's name, `slice-start` for an `async-start` that runs a `slice`.
    fn opcode(&self, id: InstructionId) -> String {
        let instruction = &self.module.instructions[id];
        let suffix = match instruction.op {
            Op::AsyncStart(_) => "start",
            Op::AsyncDone(_) => "done",
            _ => return instruction.opcode().to_string(),
        };
        let wrapped = instruction.called.first().and_then(|&called| self.wrapped(called));
        match wrapped {
            Some(wrapped) => format!("{}-{suffix}", self.module.instructions[wrapped].opcode()),
            None => instruction.opcode().to_string(),
        }
    }

    fn calls(&self, id: InstructionId) -> Vec<Call> {
        let instruction = &self.module.instructions[id];
        let is_called =
            |&c: &ComputationId| self.facts.graph.caller(c) == Some(id) && self.wrapped(c).is_none();
        let mut calls: Vec<Call> = instruction
            .called
            .iter()
            .copied()
            .filter(is_called)
            .enumerate()
            .map(|(i, called)| Call {
                role: match instruction.op {
                    Op::While if i == 0 => CallRole::Body,
                    Op::While => CallRole::Condition,
                    Op::Conditional => CallRole::Branch,
                    _ => CallRole::Callee,
                },
                computation: self.module.computations[called].name.to_string(),
            })
            .collect();
        if instruction.op == Op::While {
            calls.reverse();
        }
        calls
    }

    /// The end of an asynchronous operation reads nothing itself.
    fn operands(&self, id: InstructionId, kind: LaunchKind) -> Vec<Argument> {
        if kind == LaunchKind::Done {
            return Vec::new();
        }
        let operands = self.module.instructions[id].operands.iter().enumerate();
        let positions = |operand: InstructionId| self.facts.flow.positions.of(operand);
        operands
            .flat_map(|(number, &operand)| positions(operand).map(move |p| (number as u32, p)))
            .filter(|&(_, position)| {
                self.slice(position).is_some()
                    || !matches!(self.part(position), Shape::Tuple(_) | Shape::Token)
            })
            .map(|(number, position)| self.argument(number, position))
            .collect()
    }

    fn results(&self, id: InstructionId, kind: LaunchKind) -> Vec<Argument> {
        let positions = self.facts.flow.positions.of(id).filter(|&position| {
            let is_there = match kind {
                LaunchKind::Kernel | LaunchKind::Table => self.defines(position),
                LaunchKind::Start => self.is_started(id, position),
                LaunchKind::Done | LaunchKind::While | LaunchKind::Conditional | LaunchKind::Call => true,
            };
            is_there && self.slice(position).is_some()
        });
        positions.map(|position| self.argument(0, position)).collect()
    }

    /// Whether the start of an asynchronous operation begins to write a part of its result; other parts repeat its
    /// operands.
    pub(super) fn is_started(&self, id: InstructionId, position: PositionId) -> bool {
        let index = self.facts.flow.positions.shape_index(position);
        match self.module.instructions[id].op {
            // (operands, results, contexts): the results are those of the computation that it runs.
            Op::AsyncStart(_) => index.0.first() == Some(&1) || self.defines(position),
            _ => self.defines(position),
        }
    }

    fn argument(&self, number: u32, position: PositionId) -> Argument {
        let flow = &self.facts.flow;
        let value = flow.value_at(position);
        let address = self.address(position);
        Argument {
            number,
            index: flow.positions.shape_index(position).0.to_vec(),
            shape: shape_text(self.part(position)),
            buffer: value.and_then(|value| self.buffer_number(value)),
            immediate: match address {
                None => value.and_then(|value| self.immediate(value)),
                Some(_) => None,
            },
            address,
        }
    }

    /// The text of a constant that has no address.
    fn immediate(&self, value: ValueId) -> Option<String> {
        let definition = self.facts.flow.positions.position(self.facts.flow.values[value].definition);
        let Op::Constant(literal) = &self.module.instructions[definition.instruction].op else { return None };
        let part = definition.index.0.iter().try_fold(literal, |literal, &step| match literal {
            Literal::Tuple(elements) => elements.get(step as usize),
            _ => None,
        });
        part.map(hlo::literal_text)
    }
}

/// The text of a shape with layout; of a tuple how many elements it has, since that is what its table consists of.
pub(super) fn shape_text(shape: &Shape) -> String {
    match shape {
        Shape::Tuple(elements) => format!("tuple({})", elements.len()),
        other => hlo::shape_text(other),
    }
}

fn address(slice: Slice) -> Address {
    Address { allocation: slice.allocation.as_u32(), offset: slice.offset, size: slice.size }
}

fn tiles_text(layout: &memplan_ir::Layout) -> String {
    let extent = |&extent: &i64| match extent {
        Tile::COMBINE => "*".to_string(),
        _ => extent.to_string(),
    };
    let tile =
        |tile: &Tile| format!("({})", tile.dimensions.iter().map(extent).collect::<Vec<_>>().join(","));
    layout.tiles.iter().map(tile).collect()
}
