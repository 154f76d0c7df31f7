//! Places in memory from the slices of a plan.

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Module, Position};
use memplan_memory::{AllocationId, MemoryPlan, MemorySpaceId, Slice};

use crate::Error;
use crate::memory::{Memory, Place};

/// The allocations of a plan.
pub(crate) struct Arena<'m> {
    plan: &'m MemoryPlan,
    buffers: SecondaryMap<AllocationId, u32>,
}

impl<'m> Arena<'m> {
    /// Allocates exactly what the plan does, every byte poisoned and tracked.
    pub(crate) fn new(plan: &'m MemoryPlan, memory: &mut Memory) -> Result<Arena<'m>, Error> {
        let mut buffers = SecondaryMap::new();
        for (id, allocation) in plan.allocations.iter() {
            let size = usize::try_from(allocation.size.0).unwrap_or(usize::MAX);
            buffers[id] = memory.allocate(size, true)?.buffer;
        }
        let arena = Arena { plan, buffers };
        let slices = plan.slices.values().chain(plan.scratch.values().flatten());
        match slices.into_iter().find(|s| !arena.is_inside(s)) {
            None => Ok(arena),
            Some(s) => {
                Err(Error::BrokenPlan(format!("a slice at {} ends beyond {}", s.offset.0, s.allocation)))
            }
        }
    }

    fn is_inside(&self, slice: &Slice) -> bool {
        let end = slice.offset.0.checked_add(slice.size.0);
        self.plan.allocations.get(slice.allocation).is_some_and(|a| end.is_some_and(|end| end <= a.size.0))
    }

    /// Whether a position lives in an allocation.
    pub(crate) fn has(&self, position: &Position) -> bool {
        self.plan.slices.contains_key(position)
    }

    /// The plan's place for a result of at least `size` bytes.
    pub(crate) fn place(&self, module: &Module, position: &Position, size: usize) -> Result<Place, Error> {
        let Some(slice) = self.plan.slices.get(position) else {
            return Err(Error::NoSlice { position: describe(module, position) });
        };
        let place = self.at(slice);
        if place.size < size {
            let position = describe(module, position);
            return Err(Error::BrokenPlan(format!("{position} has {} bytes but needs {size}", place.size)));
        }
        Ok(place)
    }

    /// All scratch of an instruction in the plan, in any memory.
    pub(crate) fn all_scratch(&self, id: InstructionId) -> impl Iterator<Item = Place> {
        self.plan.scratch.get(&id).into_iter().flatten().map(|slice| self.at(slice))
    }

    /// The plan's place for an instruction's working memory.
    pub(crate) fn scratch(&self, module: &Module, id: InstructionId, size: usize) -> Result<Place, Error> {
        let name = &module.instructions[id].name;
        match self.plan.scratch_in(id, MemorySpaceId::MAIN).map(|slice| self.at(&slice)) {
            Some(place) if place.size >= size => Ok(place),
            Some(place) => {
                Err(Error::BrokenPlan(format!("scratch of {name} has {} bytes but needs {size}", place.size)))
            }
            None => Err(Error::NoSlice { position: format!("{size} bytes of scratch of {name}") }),
        }
    }

    /// Whether the plan puts a position where its value is; positions without a slice are not asked for.
    pub(crate) fn check_place(
        &self,
        module: &Module,
        position: &Position,
        place: Place,
    ) -> Result<(), Error> {
        let Some(found) = self.plan.slices.get(position).map(|slice| self.at(slice)) else { return Ok(()) };
        if (found.buffer, found.offset) == (place.buffer, place.offset) {
            return Ok(());
        }
        let text = |place: Place| format!("{}+{}", self.allocation_name(place), place.offset);
        Err(Error::Moved { position: describe(module, position), expected: text(place), found: text(found) })
    }

    /// The plan's name for the allocation of a place.
    pub(crate) fn allocation_name(&self, place: Place) -> String {
        let found = self.plan.allocations.keys().find(|&id| self.buffers[id] == place.buffer);
        found.map_or_else(|| "a constant in code".to_string(), |id| id.to_string())
    }

    fn at(&self, slice: &Slice) -> Place {
        let (offset, size) = (slice.offset.0 as usize, slice.size.0 as usize);
        Place { buffer: self.buffers[slice.allocation], offset, size }
    }
}

fn describe(module: &Module, position: &Position) -> String {
    format!("{}{}", module.instructions[position.instruction].name, position.index)
}
