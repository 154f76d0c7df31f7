//! The memory of each allocation of the plan, as C names it.
//!
//! Arguments are read where the caller has them, and results are written where the caller wants them. An argument that the
//! plan overwrites is copied first: into the result that ends in its place, or else into memory of its own.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayShape, EntityRef, Layout, Module, Op, Position, Shape};
use memplan_memory::{AllocationId, AllocationKind, MemoryPlan, MemorySpaceId, Slice};

use crate::Program;
use crate::names::identifier;

/// Where an allocation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The caller's argument, by its number among all leaves.
    Argument(usize),
    /// The caller's result, by its number among all leaves.
    Result(usize),
    /// The arena of a memory space.
    Arena(MemorySpaceId),
    /// A constant array.
    Constant(String),
    /// An array beside the arena.
    Static(String),
}

/// A leaf that the caller passes or gets.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// The name of the parameter, or of the result's instruction.
    pub(crate) name: String,
    pub(crate) position: Position,
    /// As the caller has it: row-major.
    pub(crate) shape: ArrayShape,
    /// As the program has it.
    pub(crate) inside: ArrayShape,
    pub(crate) slice: Option<Slice>,
}

impl Port {
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.dense_bytes().unwrap_or(0)
    }

    /// Whether the caller's bytes are the program's.
    pub(crate) fn is_plain(&self) -> bool {
        order_in_memory(&self.inside).is_some_and(|order| order.is_sorted())
    }
}

/// The dimensions from slowest to fastest varying, without those of one element; `None` where elements are not simply one
/// after the other.
pub(crate) fn order_in_memory(shape: &ArrayShape) -> Option<Vec<i64>> {
    let is_packed = |l: &Layout| !l.tiles.is_empty() || l.element_size_in_bits != 0;
    if shape.layout.as_ref().is_some_and(is_packed) {
        return None;
    }
    let order = shape.minor_to_major().into_iter().rev();
    Some(order.filter(|&d| shape.dimensions[d as usize] != 1).collect())
}

/// The memory of a program.
pub(crate) struct Storage {
    pub(crate) arguments: Vec<Port>,
    pub(crate) results: Vec<Port>,
    pub(crate) memory: SecondaryMap<AllocationId, Option<Memory>>,
    /// Allocations that begin as a copy of an argument.
    pub(crate) copied_in: Vec<(usize, AllocationId)>,
}

impl Storage {
    pub(crate) fn new(program: &Program<'_>) -> Storage {
        let Program { module, plan, .. } = *program;
        let arguments: Vec<Port> =
            module.entry_computation().parameters.iter().flat_map(|&id| ports(module, plan, id)).collect();
        let results: Vec<Port> = ports(module, plan, module.entry_computation().root);
        let written = written(program);
        let mut storage = Storage { arguments, results, memory: SecondaryMap::new(), copied_in: Vec::new() };
        for (id, allocation) in &plan.allocations {
            let memory = match &allocation.kind {
                AllocationKind::Temp => Memory::Arena(allocation.space),
                AllocationKind::Constant => Memory::Constant(storage.constant_name(program, id)),
                AllocationKind::Output => match storage.result_in(id, allocation.size.0) {
                    Some(k) => Memory::Result(k),
                    None => Memory::Static(format!("output_{}", id.index())),
                },
                AllocationKind::Argument { parameter, index } => {
                    let instruction = module.entry_computation().parameters[*parameter as usize];
                    let at = Position { instruction, index: index.clone() };
                    let Some(k) = storage.arguments.iter().position(|port| port.position == at) else {
                        continue;
                    };
                    if !written[id] && storage.arguments[k].is_plain() {
                        Memory::Argument(k)
                    } else {
                        storage.copied_in.push((k, id));
                        match storage.result_in(id, allocation.size.0) {
                            Some(k) => Memory::Result(k),
                            None => {
                                Memory::Static(format!("{}_copy", identifier(&storage.arguments[k].name)))
                            }
                        }
                    }
                }
            };
            storage.memory[id] = Some(memory);
        }
        storage
    }

    /// A result that has all bytes of an allocation.
    fn result_in(&self, id: AllocationId, size: u64) -> Option<usize> {
        self.results.iter().position(|port| {
            let fills = |slice: Slice| slice.allocation == id && slice.offset.0 == 0 && port.bytes() == size;
            port.slice.is_some_and(fills) && port.is_plain()
        })
    }

    fn constant_name(&self, program: &Program<'_>, id: AllocationId) -> String {
        let first = program.plan.slices.iter().find(|(position, slice)| {
            slice.allocation == id
                && matches!(program.module.instructions[position.instruction].op, Op::Constant(_))
        });
        let name = first
            .map_or("constant", |(position, _)| &*program.module.instructions[position.instruction].name);
        format!("{}_{}", identifier(name), id.index())
    }

    /// A pointer to the bytes of a slice.
    pub(crate) fn address(&self, slice: Slice) -> (String, bool) {
        let offset = slice.offset.0;
        let memory = self.memory[slice.allocation].as_ref().expect("every allocation of arrays has memory");
        let (name, is_const) = match memory {
            Memory::Argument(k) => (format!("argument[{k}]"), true),
            Memory::Result(k) => (format!("result[{k}]"), false),
            Memory::Arena(space) => (arena_name(*space), false),
            Memory::Constant(name) => (name.clone(), true),
            Memory::Static(name) => (name.clone(), false),
        };
        let name = match memory {
            Memory::Static(_) => format!("{name}.bytes"),
            _ => name,
        };
        (format!("{name}, {offset}"), is_const)
    }
}

/// The name of the arena of a memory space.
pub(crate) fn arena_name(space: MemorySpaceId) -> String {
    if space == MemorySpaceId::MAIN { "arena".to_string() } else { format!("arena_{}", space.0) }
}

/// Which allocations an instruction writes.
fn written(program: &Program<'_>) -> SecondaryMap<AllocationId, bool> {
    let Program { module, facts, plan, .. } = *program;
    let mut written = SecondaryMap::new();
    for value in facts.flow.values.values() {
        let position = facts.flow.positions.position(value.definition);
        let instruction = &module.instructions[position.instruction];
        let is_argument =
            matches!(instruction.op, Op::Parameter { .. }) && instruction.parent == module.entry;
        if let (false, Some(slice)) = (is_argument, plan.slices.get(&position)) {
            written[slice.allocation] = true;
        }
    }
    written
}

/// The arrays of an instruction that the caller passes or gets.
fn ports(module: &Module, plan: &MemoryPlan, id: memplan_ir::InstructionId) -> Vec<Port> {
    let mut ports = Vec::new();
    let leaves = module.shape(id).leaves();
    let n = leaves.len();
    for (index, shape) in leaves {
        let Shape::Array(inside) = shape else { continue };
        let suffix: String = index.0.iter().map(|i| format!("_{i}")).collect();
        let name = format!("{}{}", module.instructions[id].name, if n > 1 { &suffix } else { "" });
        let shape = ArrayShape::new(inside.element_type, inside.dimensions.iter().copied());
        let position = Position { instruction: id, index };
        let slice = plan.slices.get(&position).copied();
        ports.push(Port { name, position, shape, inside: inside.clone(), slice });
    }
    ports
}
