//! Builds the document from module, facts and plan.

use std::cmp::Reverse;

use memplan_analysis::{Facts, ValueId, ValueKind};
use memplan_hlo as hlo;
use memplan_ir::{
    ComputationId, EntityRef, InstructionId, Literal, Module, Op, Position, PositionId, Shape, Tile,
};
use memplan_memory::{Alignment, AllocationKind, Bytes, KindName, MemoryPlan, MemorySpaceId, Target};

use super::program::{NumberedProgram, address_of, shape_text};
use super::transfer::transfers;
use super::{
    Allocation, Argument, Buffer, Call, CallRole, Computation, Launch, LaunchKind, Lifetime, Port,
    ProgramLayout, Space, padding,
};
use crate::constants::constant_offsets;

/// The layout of a planned module: `facts` must be of the module under the plan's schedule.
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
/// let planned = memplan_plan_hlo::plan(&module, &target, &Default::default())?;
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
    document(&NumberedProgram::new(module, facts, target, plan))
}

/// The layout of a program whose launches and buffers are numbered.
pub(crate) fn document(program: &NumberedProgram<'_>) -> ProgramLayout {
    let NumberedProgram { module, target, plan, .. } = *program;
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
        transfers: transfers(program),
        padding: padding::worst(program, &buffers),
        buffers,
    }
}

impl NumberedProgram<'_> {
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
                    read_only: known.is_some_and(|space| space.read_only),
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
        // The buffer that an allocation is for: a result, or else the first one.
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
                donated: parameter.is_some() && self.facts.live.is_given_up(value),
            }
        };
        flow.positions.of(id).filter(has_bytes).map(port).collect()
    }

    pub(crate) fn buffer_number(&self, value: ValueId) -> Option<u32> {
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
            address: address_of(slice),
            space: self.plan.allocations[slice.allocation].space,
            unpadded: self.target.unpadded_size_of(part),
            live,
            parameter,
            donated: parameter.is_some() && self.facts.live.is_given_up(value),
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
            (begin, Reverse(end), self.nesting(id).depth)
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
            depth: self.nesting(id).depth,
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
            scratch: self.plan.scratch.get(&id).into_iter().flatten().copied().map(address_of).collect(),
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

fn tiles_text(layout: &memplan_ir::Layout) -> String {
    let extent = |&extent: &i64| match extent {
        Tile::COMBINE => "*".to_string(),
        _ => extent.to_string(),
    };
    let tile =
        |tile: &Tile| format!("({})", tile.dimensions.iter().map(extent).collect::<Vec<_>>().join(","));
    layout.tiles.iter().map(tile).collect()
}
