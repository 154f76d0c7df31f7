//! Where the buffers of a module live, and when, as XLA's tools read it beside a module.

use memplan_ir::{InstructionId, Module, Position, ShapeIndex};
use prost::Message;
use prost::bytes::Bytes;
use rustc_hash::FxHashMap;

use super::convert::{shape_index, steps};
use super::export::Exporter;
use super::import::holds_module;
use super::{ExportError, ImportError, messages as pb, wire};

/// What `HloProto.buffer_assignment` says of a module. Sizes and offsets are in bytes; buffers and allocations are named
/// by their place in the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BufferAssignment {
    /// What needs memory.
    pub buffers: Vec<LogicalBuffer>,
    /// The memory that is asked for.
    pub allocations: Vec<BufferAllocation>,
    /// The lives of buffers, a trace for each allocation that has some that come and go.
    pub traces: Vec<HeapTrace>,
}

/// Something that needs memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalBuffer {
    /// Where the value in it is defined.
    pub defined_at: Position,
    /// The allocation that it is in.
    pub allocation: usize,
    /// Its place there.
    pub offset: u64,
    /// How much it takes.
    pub size: u64,
}

/// A contiguous region of one memory space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferAllocation {
    /// What it is for.
    pub role: AllocationRole,
    /// The memory space; layouts use the same numbers.
    pub space: u32,
    /// How much it takes.
    pub size: u64,
    /// Whether a result of the program is in it at the end.
    pub live_out: bool,
}

/// What an allocation is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationRole {
    /// Part of a parameter of the entry.
    Parameter {
        /// Its number.
        number: u32,
        /// Path into it.
        index: ShapeIndex,
    },
    /// Constant data.
    Constant,
    /// Memory that every thread has for itself.
    ThreadLocal,
    /// Anything else.
    Other,
}

/// How the buffers of one allocation come and go, in the order of execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapTrace {
    /// The allocation.
    pub allocation: usize,
    /// What happens.
    pub events: Vec<HeapEvent>,
}

/// A buffer is needed, or is needed no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapEvent {
    /// Whether it is needed from now on.
    pub allocates: bool,
    /// The buffer.
    pub buffer: usize,
    /// The instruction that runs.
    pub at: InstructionId,
}

/// Writes an `HloProto` with a buffer assignment, in time linear in both.
///
/// # Errors
/// As [`write_module`](super::write_module); and when the assignment names instructions that the module does not have.
pub fn write_assigned(module: &Module, assignment: &BufferAssignment) -> Result<Vec<u8>, ExportError> {
    let exporter = Exporter::new(module)?;
    let message = assignment.message(&exporter)?;
    let module = exporter.module()?;
    let mut out = Vec::with_capacity(module.len() + message.encoded_len() + 32);
    wire::put_bytes(1, &module, &mut out);
    wire::put_bytes(3, &message.encode_to_vec(), &mut out);
    Ok(out)
}

/// The allocations of the buffer assignment in an `HloProto`, as the compiler that wrote the file made them; `None` where
/// the file has no assignment. Takes time linear in the file; the module is not looked at.
///
/// # Errors
/// When the file is damaged.
pub fn read_allocations(file: &[u8]) -> Result<Option<Vec<BufferAllocation>>, ImportError> {
    if !holds_module(file) {
        return Ok(None);
    }
    let assignment = pb::HloProto::decode(file)?.buffer_assignment;
    if assignment.is_empty() {
        return Ok(None);
    }
    let message = pb::BufferAssignmentProto::decode(assignment)?;
    message.buffer_allocations.iter().map(BufferAllocation::of).collect::<Result<_, _>>().map(Some)
}

/// The buffer assignment in an `HloProto` of a module, as the compiler that wrote the file made it, without the lives of
/// buffers; `None` where the file has none. Buffers of instructions that the module does not have are left out. Takes time
/// linear in the file.
///
/// # Errors
/// When the file is damaged.
pub fn read_assignment(file: &[u8], module: &Module) -> Result<Option<BufferAssignment>, ImportError> {
    let Some(allocations) = read_allocations(file)? else { return Ok(None) };
    let file = pb::HloProto::decode(file)?;
    let message = pb::BufferAssignmentProto::decode(file.buffer_assignment)?;
    let names = names_of_ids(file.hlo_module)?;
    let named: FxHashMap<&str, InstructionId> =
        module.instructions.iter().map(|(id, instruction)| (&*instruction.name, id)).collect();
    let mut defined_at: FxHashMap<i64, Position> = FxHashMap::default();
    for buffer in message.logical_buffers {
        let Some(at) = buffer.defined_at else { continue };
        let name = names.get(&at.instruction_id).map_or(&*at.instruction_name, |name| name);
        if let (Some(&instruction), Ok(index)) =
            (named.get(name), shape_index("shape_index", &at.shape_index))
        {
            defined_at.insert(buffer.id, Position { instruction, index });
        }
    }
    let mut buffers = Vec::new();
    for (allocation, of) in message.buffer_allocations.iter().enumerate() {
        let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        buffers.extend(of.assigned.iter().filter_map(|assigned| {
            let defined_at = defined_at.get(&assigned.logical_buffer_id)?.clone();
            let (offset, size) = (bytes(assigned.offset), bytes(assigned.size));
            Some(LogicalBuffer { defined_at, allocation, offset, size })
        }));
    }
    Ok(Some(BufferAssignment { buffers, allocations, traces: Vec::new() }))
}

/// The names of instructions by their numbers in a file.
fn names_of_ids(module: Bytes) -> Result<FxHashMap<i64, String>, ImportError> {
    let mut names = FxHashMap::default();
    for computation in pb::HloModuleProto::decode(module)?.computations {
        for instruction in pb::HloComputationProto::decode(computation)?.instructions {
            let instruction = pb::HloInstructionProto::decode(instruction)?;
            names.insert(instruction.id, instruction.name);
        }
    }
    Ok(names)
}

impl BufferAssignment {
    fn message(&self, exporter: &Exporter<'_>) -> Result<pb::BufferAssignmentProto, ExportError> {
        let mut buffer_allocations: Vec<pb::BufferAllocationProto> =
            self.allocations.iter().enumerate().map(|(index, a)| a.message(index)).collect();
        let mut logical_buffers = Vec::with_capacity(self.buffers.len());
        for (id, buffer) in (0i64..).zip(&self.buffers) {
            let Position { instruction, index } = &buffer.defined_at;
            logical_buffers.push(pb::LogicalBufferProto {
                id,
                size: int(buffer.size),
                defined_at: Some(pb::LogicalBufferLocation {
                    instruction_name: exporter.name(*instruction)?.to_string(),
                    instruction_id: exporter.id(*instruction)?,
                    shape_index: steps(index),
                }),
                color: self.allocations[buffer.allocation].space.into(),
            });
            buffer_allocations[buffer.allocation].assigned.push(pb::AssignedProto {
                logical_buffer_id: id,
                offset: int(buffer.offset),
                size: int(buffer.size),
            });
        }
        let traces = self.traces.iter().map(|trace| trace.message(exporter));
        let heap_simulator_traces = traces.collect::<Result<_, _>>()?;
        Ok(pb::BufferAssignmentProto { logical_buffers, buffer_allocations, heap_simulator_traces })
    }
}

impl BufferAllocation {
    fn of(message: &pb::BufferAllocationProto) -> Result<BufferAllocation, ImportError> {
        let role = if message.is_thread_local {
            AllocationRole::ThreadLocal
        } else if message.is_constant {
            AllocationRole::Constant
        } else if message.is_entry_computation_parameter {
            let index = shape_index("parameter_shape_index", &message.parameter_shape_index);
            AllocationRole::Parameter {
                number: u32::try_from(message.parameter_number).unwrap_or(u32::MAX),
                index: index.map_err(ImportError::Module)?,
            }
        } else {
            AllocationRole::Other
        };
        Ok(BufferAllocation {
            role,
            space: u32::try_from(message.color).unwrap_or(u32::MAX),
            size: u64::try_from(message.size).unwrap_or(0),
            live_out: message.maybe_live_out,
        })
    }

    fn message(&self, index: usize) -> pb::BufferAllocationProto {
        let mut message = pb::BufferAllocationProto {
            index: index as i64,
            size: int(self.size),
            color: self.space.into(),
            maybe_live_out: self.live_out,
            ..Default::default()
        };
        match &self.role {
            AllocationRole::Parameter { number, index } => {
                message.is_entry_computation_parameter = true;
                message.parameter_number = i64::from(*number);
                message.parameter_shape_index = steps(index);
                message.is_parameter_aliased_with_output = self.live_out;
            }
            AllocationRole::Constant => message.is_constant = true,
            AllocationRole::ThreadLocal => message.is_thread_local = true,
            AllocationRole::Other => {}
        }
        message
    }
}

impl HeapTrace {
    fn message(&self, exporter: &Exporter<'_>) -> Result<pb::HeapSimulatorTrace, ExportError> {
        let event = |event: &HeapEvent| {
            Ok(pb::HeapSimulatorEvent {
                kind: if event.allocates { ALLOC } else { FREE },
                buffer_id: event.buffer as i64,
                computation_name: exporter.computation_of(event.at)?.to_string(),
                instruction_name: exporter.name(event.at)?.to_string(),
            })
        };
        Ok(pb::HeapSimulatorTrace {
            events: self.events.iter().map(event).collect::<Result<_, _>>()?,
            whole_module_simulation: true,
            buffer_allocation_index: self.allocation as i64,
        })
    }
}

/// The numbers of `HeapSimulatorTrace.Event.Kind`.
const ALLOC: i32 = 0;
const FREE: i32 = 1;

/// As protobuf has numbers of bytes.
fn int(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
