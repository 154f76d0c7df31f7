//! The memory space of each value: that of its layout, the user's pin, or the space of constants.

use cranelift_entity::SecondaryMap;
use memplan_analysis::{BufferId, Facts, ValueKind};
use memplan_ir::{Module, Op, PositionId, Shape};
use memplan_memory::{MemorySpaceId, Target, memory_space_of};
use memplan_program::ValueId;

/// A value that is to be in a certain memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Which value: all parts of it that have a layout without a memory of its own.
    pub value: Pinned,
    /// The memory.
    pub space: MemorySpaceId,
}

/// A value that is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// An entry parameter, by number.
    Argument(u32),
    /// The results of an instruction, by its name.
    Instruction(Box<str>),
}

impl std::fmt::Display for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pinned::Argument(number) => write!(f, "argument {number}"),
            Pinned::Instruction(name) => write!(f, "`{name}`"),
        }
    }
}

/// A pin, or a memory that a layout names, that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// Nothing of the name or number is in the program.
    #[error("{value} cannot be pinned: the program has none; it has {arguments} arguments, counted from 0")]
    NoValue {
        /// The pinned value.
        value: Pinned,
        /// How many arguments there are.
        arguments: usize,
    },
    /// The target has no such memory, or values get there by transfers alone.
    #[error("{value} cannot be pinned to {space}: kernels of the target do not reach it like main memory")]
    NotReached {
        /// The pinned value.
        value: Pinned,
        /// The memory, by name.
        space: Box<str>,
    },
    /// The program writes a value, or may overwrite it, and the memory that it is pinned to, or that its layout names, can
    /// only be read.
    #[error("{value} cannot be in {space}, which is read-only: {why}")]
    Written {
        /// Which value.
        value: Pinned,
        /// The memory, by name.
        space: Box<str>,
        /// The reason for the write.
        why: &'static str,
    },
    /// Two pins, or a pin and a layout, name different memories for bytes that are the same.
    #[error("{value} cannot be pinned to {space}: it shares its bytes with a value that belongs in {other}")]
    Elsewhere {
        /// The pinned value.
        value: Pinned,
        /// The memory, by name.
        space: Box<str>,
        /// The other memory, by name.
        other: Box<str>,
    },
}

/// The memory of every value. Linear in values and, for pins, in instructions.
pub(crate) fn spaces(
    module: &Module,
    facts: &Facts,
    target: &Target,
    pins: &[Pin],
) -> Result<SecondaryMap<ValueId, MemorySpaceId>, PinError> {
    let flow = &facts.flow;
    let mut spaces = SecondaryMap::with_default(MemorySpaceId::MAIN);
    let mut chosen: SecondaryMap<BufferId, Option<MemorySpaceId>> = SecondaryMap::new();
    let constants = target.constant_space();
    for (id, value) in flow.values.iter() {
        let instruction = flow.positions.instruction(value.definition);
        let part = module.shape(instruction).subshape(flow.positions.shape_index(value.definition));
        spaces[id] = part.map_or(MemorySpaceId::MAIN, memory_space_of);
        if spaces[id] != MemorySpaceId::MAIN
            && let Some(why) = written_by(module, facts, id)
            && target.space(spaces[id]).is_some_and(|space| space.read_only)
        {
            let value = Pinned::Instruction(module.instructions[instruction].name.clone());
            return Err(PinError::Written { value, space: name(target, spaces[id]), why });
        }
        if matches!(module.instructions[instruction].op, Op::Constant(_)) && spaces[id] == MemorySpaceId::MAIN
        {
            chosen[facts.buffers.of(id)] = Some(constants);
        }
    }
    let mut pinned: SecondaryMap<BufferId, bool> = SecondaryMap::new();
    for pin in pins {
        for value in values_of(module, facts, pin)? {
            let buffer = facts.buffers.of(value);
            check(module, facts, target, pin, buffer, &spaces)?;
            let other = chosen[buffer].filter(|&other| pinned[buffer] && other != pin.space);
            if let Some(other) = other {
                let [space, other] = [pin.space, other].map(|space| name(target, space));
                return Err(PinError::Elsewhere { value: pin.value.clone(), space, other });
            }
            (chosen[buffer], pinned[buffer]) = (Some(pin.space), true);
        }
    }
    for id in flow.values.keys().filter(|_| !pins.is_empty() || constants != MemorySpaceId::MAIN) {
        if let (MemorySpaceId::MAIN, Some(space)) = (spaces[id], chosen[facts.buffers.of(id)]) {
            spaces[id] = space;
        }
    }
    Ok(spaces)
}

/// The values that a pin is about: parts that are arrays.
fn values_of(module: &Module, facts: &Facts, pin: &Pin) -> Result<Vec<ValueId>, PinError> {
    let parameters = &module.entry_computation().parameters;
    let found = match &pin.value {
        Pinned::Argument(number) => parameters.get(*number as usize).copied(),
        Pinned::Instruction(name) => {
            let sequential = facts.graph.sequential().iter();
            let mut all = sequential.flat_map(|&computation| &module.computations[computation].instructions);
            all.find(|&&id| module.instructions[id].name == *name).copied()
        }
    };
    let arguments = parameters.len();
    let instruction = found.ok_or_else(|| PinError::NoValue { value: pin.value.clone(), arguments })?;
    let positions = facts.flow.positions.of(instruction);
    let is_array = |at: &PositionId| {
        let part = module.shape(instruction).subshape(facts.flow.positions.shape_index(*at));
        part.is_some_and(|part| matches!(part, Shape::Array(_)))
    };
    Ok(positions.filter(is_array).filter_map(|at| facts.flow.value_at(at)).collect())
}

/// Whether everything that shares a buffer can be where a pin wants it.
fn check(
    module: &Module,
    facts: &Facts,
    target: &Target,
    pin: &Pin,
    buffer: BufferId,
    spaces: &SecondaryMap<ValueId, MemorySpaceId>,
) -> Result<(), PinError> {
    let (value, space) = (|| pin.value.clone(), || name(target, pin.space));
    if !target.reaches_directly(pin.space) {
        return Err(PinError::NotReached { value: value(), space: space() });
    }
    let is_read_only = target.space(pin.space).is_some_and(|space| space.read_only);
    for &member in &facts.buffers.values[buffer] {
        if spaces[member] != MemorySpaceId::MAIN && spaces[member] != pin.space {
            let other = name(target, spaces[member]);
            return Err(PinError::Elsewhere { value: value(), space: space(), other });
        }
        if is_read_only && let Some(why) = written_by(module, facts, member) {
            return Err(PinError::Written { value: value(), space: space(), why });
        }
    }
    Ok(())
}

/// Why a value cannot be where nothing is written.
fn written_by(module: &Module, facts: &Facts, value: ValueId) -> Option<&'static str> {
    let defined = &facts.flow.values[value];
    let op = &module.instructions[facts.flow.positions.instruction(defined.definition)].op;
    match (defined.kind, op) {
        (ValueKind::Parameter, _) if facts.live.is_given_up(value) => {
            Some("the caller gives it up, to be overwritten")
        }
        (ValueKind::Parameter, _) | (ValueKind::Written, Op::Constant(_)) => None,
        _ => Some("the program computes it, or what shares its bytes"),
    }
}

fn name(target: &Target, space: MemorySpaceId) -> Box<str> {
    target.space(space).map_or_else(|| space.to_string().into(), |known| known.name.as_str().into())
}
