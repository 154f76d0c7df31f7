//! Tables about module and plan that the proof looks up: sizes and slices by position, table contents, constants.

use indexmap::IndexSet;
use memplan_ir::{
    ComputationId, EntityRef, InstructionId, Module, Op, Position, PositionId, Positions, Schedule,
    SecondaryMap, Shape, ShapeIndex,
};
use memplan_memory::{AllocationId, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Slice, Target};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::bytes::Holder;
use crate::effective_layout::EffectiveLayout;
use crate::{Contents, Place, Violation, Violations};

/// Violations beyond this many are only counted: a wrong plan is often wrong in thousands of places.
const MOST_VIOLATIONS: usize = 64;

/// The violations so far.
#[derive(Default)]
pub(crate) struct Report {
    violations: Vec<Violation>,
    more: usize,
}

/// Module, schedule and plan, with frequent queries precomputed.
pub(crate) struct Facts<'a> {
    pub(crate) module: &'a Module,
    pub(crate) schedule: &'a Schedule,
    pub(crate) target: &'a Target,
    pub(crate) plan: &'a MemoryPlan,
    pub(crate) positions: Positions,
    /// The parts of each shape, in preorder.
    parts: Vec<Vec<Part>>,
    /// The slice of each position; none without bytes.
    slices: Vec<Option<Slice>>,
    /// The contents of each tuple's table: equal numbers, equal pointers.
    tables: Vec<u32>,
    /// Bytes that hold constants for the whole run, by first byte.
    constants: FxHashMap<(AllocationId, u64), PositionId>,
    /// Argument allocations that the program may overwrite.
    donated: FxHashSet<AllocationId>,
    /// The start of each computation that runs asynchronously.
    pub(crate) starts: FxHashMap<ComputationId, InstructionId>,
}

/// One part of a shape.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// Padded bytes on the target.
    pub(crate) size: u64,
    /// How many of them are padding.
    pub(crate) padding: u64,
    pub(crate) is_tuple: bool,
    pub(crate) space: MemorySpaceId,
    /// The effective layout of an array: equal numbers, element by element at the same bytes.
    pub(crate) lies: u32,
}

impl Report {
    pub(crate) fn add(&mut self, violation: Violation) {
        match self.violations.len() < MOST_VIOLATIONS {
            true => self.violations.push(violation),
            false => self.more += 1,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.violations.is_empty()
    }

    pub(crate) fn into_result(mut self) -> Result<(), Violations> {
        if self.more > 0 {
            self.violations.push(Violation::More(self.more));
        }
        if self.violations.is_empty() { Ok(()) } else { Err(Violations(self.violations)) }
    }
}

impl<'a> Facts<'a> {
    pub(crate) fn new(
        module: &'a Module,
        schedule: &'a Schedule,
        target: &'a Target,
        plan: &'a MemoryPlan,
        report: &mut Report,
    ) -> Facts<'a> {
        let positions = Positions::new(module);
        let mut ways = IndexSet::default();
        let parts = module.shapes.iter().map(|shape| parts_of(shape, target, &mut ways)).collect();
        let slices = vec![None; positions.len()];
        let tables = Vec::new();
        let mut facts = Facts {
            module,
            schedule,
            target,
            plan,
            positions,
            parts,
            slices,
            tables,
            constants: FxHashMap::default(),
            donated: FxHashSet::default(),
            starts: starts(module),
        };
        facts.place_positions(report);
        facts.number_tables();
        facts.donated = facts.donated_allocations();
        facts
    }

    /// The part of a shape at a position.
    pub(crate) fn part(&self, position: PositionId) -> Part {
        let instruction = self.positions.instruction(position);
        self.parts[self.module.instructions[instruction].shape.index()][self.positions.preorder(position)]
    }

    /// The parts of an instruction's result with their positions.
    pub(crate) fn parts_of(
        &self,
        instruction: InstructionId,
    ) -> impl Iterator<Item = (PositionId, Part)> + use<'_> {
        let parts = &self.parts[self.module.instructions[instruction].shape.index()];
        self.positions.of(instruction).zip(parts.iter().copied())
    }

    /// The slice of a position.
    pub(crate) fn slice(&self, position: PositionId) -> Option<Slice> {
        self.slices[position.index()]
    }

    /// Every position that has bytes, with them.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (PositionId, Slice)> + '_ {
        let slices = self.slices.iter().enumerate();
        slices.filter_map(|(position, slice)| Some((PositionId::new(position), (*slice)?)))
    }

    /// The contents of a tuple's table.
    pub(crate) fn table(&self, position: PositionId) -> Holder {
        Holder::Table(self.tables[position.index()])
    }

    /// The scratch memory of an instruction.
    pub(crate) fn scratch(&self, instruction: InstructionId) -> impl Iterator<Item = Slice> + use<'a> {
        let allocations = &self.plan.allocations;
        let slices = self.plan.scratch.get(&instruction).into_iter().flatten().copied();
        slices.filter(|slice| slice.size.0 > 0 && allocations.is_valid(slice.allocation))
    }

    /// The constant that a slice of constant memory is part of.
    pub(crate) fn constant_at(&self, slice: &Slice) -> Option<PositionId> {
        let &constant = self.constants.get(&(slice.allocation, slice.offset.0))?;
        (self.slice(constant)?.size >= slice.size).then_some(constant)
    }

    /// Whether an allocation holds the data of constants.
    pub(crate) fn holds_constants(&self, allocation: AllocationId) -> bool {
        self.plan.allocations[allocation].kind == AllocationKind::Constant
    }

    /// Why an allocation must not be written, if so.
    pub(crate) fn read_only(&self, allocation: AllocationId) -> Option<&'static str> {
        match self.plan.allocations[allocation].kind {
            AllocationKind::Constant => Some("constant memory"),
            AllocationKind::Argument { .. } if !self.donated.contains(&allocation) => {
                Some("an argument that the caller did not donate")
            }
            _ if self.can_only_be_read(self.plan.allocations[allocation].space) => {
                Some("a memory that can only be read")
            }
            _ => None,
        }
    }

    /// Whether nothing can be written into a memory.
    pub(crate) fn can_only_be_read(&self, space: MemorySpaceId) -> bool {
        self.target.space(space).is_some_and(|space| space.read_only)
    }

    /// The positions of the subtrees at two positions side by side; `None` when they differ in shape.
    pub(crate) fn pair(
        &self,
        a: PositionId,
        b: PositionId,
    ) -> Option<impl Iterator<Item = (PositionId, PositionId)> + use<>> {
        // The positions of a subtree are consecutive.
        let n = self.positions.subtree(a).count();
        let at = |of: PositionId, i: usize| PositionId::new(of.index() + i);
        let same = n == self.positions.subtree(b).count()
            && (0..n).all(|i| self.part(at(a, i)).is_tuple == self.part(at(b, i)).is_tuple);
        same.then(|| (0..n).map(move |i| (at(a, i), at(b, i))))
    }

    /// A position by name.
    pub(crate) fn place(&self, position: PositionId) -> Place {
        let Position { instruction, index } = self.positions.position(position);
        Place { index, ..self.place_of(instruction) }
    }

    /// An instruction by name.
    pub(crate) fn place_of(&self, id: InstructionId) -> Place {
        let instruction = &self.module.instructions[id];
        let computation = self.computation_name(instruction.parent);
        Place { id, instruction: instruction.name.clone(), computation, index: ShapeIndex::root() }
    }

    pub(crate) fn computation_name(&self, computation: ComputationId) -> Box<str> {
        self.module.computations[computation].name.clone()
    }

    /// A holder in the words of reports.
    pub(crate) fn found(&self, holder: Holder) -> Contents {
        match holder {
            Holder::Nothing | Holder::Embedded(_) => Contents::Nothing,
            Holder::Value(position) => Contents::Value(self.place(position)),
            Holder::Table(_) => Contents::Table,
            Holder::Scratch(instruction) => Contents::Scratch(self.place_of(instruction)),
            Holder::LeftBy(computation) => Contents::LeftBy(self.computation_name(computation)),
        }
    }

    /// Registers the constants with memory of their own; equal constants may share it.
    pub(crate) fn place_constants(
        &mut self,
        planned: &SecondaryMap<ComputationId, bool>,
        report: &mut Report,
    ) {
        let mut placed: Vec<(Slice, PositionId)> = Vec::new();
        for computation in self.module.computations.keys().filter(|&c| planned[c]) {
            for (id, instruction) in self.module.instructions_of(computation) {
                let position = self.positions.root(id);
                if let (Op::Constant(_), Some(slice)) = (&instruction.op, self.slice(position)) {
                    match self.holds_constants(slice.allocation) {
                        true => placed.push((slice, position)),
                        false => report.add(Violation::ConstantElsewhere { at: self.place(position), slice }),
                    }
                }
            }
        }
        placed.sort_by_key(|(slice, position)| (slice.allocation, slice.offset, slice.size, *position));
        let mut last: Option<(Slice, PositionId)> = None;
        for (slice, position) in placed {
            match last {
                Some((other, first)) if slice.overlaps(&other) => {
                    if slice != other || !self.same_constant(first, position) {
                        let (at, other) = (self.place(position), self.place(first));
                        report.add(Violation::ConstantsOverlap { at, other, slice });
                    }
                }
                _ => {
                    self.constants.insert((slice.allocation, slice.offset.0), position);
                    last = Some((slice, position));
                }
            }
        }
    }

    pub(crate) fn same_constant(&self, a: PositionId, b: PositionId) -> bool {
        let index = |p: PositionId| self.positions.shape_index(p);
        let same_part = index(a) == index(b);
        let [a, b] = [a, b].map(|p| &self.module.instructions[self.positions.instruction(p)]);
        same_part && matches!(a.op, Op::Constant(_)) && a.shape == b.shape && a.op == b.op
    }

    /// Resolves the plan's slices, each in bounds of an allocation that exists.
    fn place_positions(&mut self, report: &mut Report) {
        for (position, slice) in &self.plan.slices {
            let exists = self.module.instructions.is_valid(position.instruction);
            let Some(id) =
                exists.then(|| self.positions.find(position.instruction, &position.index)).flatten()
            else {
                let at = match exists {
                    true => Place { index: position.index.clone(), ..self.place_of(position.instruction) },
                    false => Place {
                        id: position.instruction,
                        instruction: position.instruction.to_string().into(),
                        computation: "?".into(),
                        index: position.index.clone(),
                    },
                };
                report.add(Violation::NoSuchPart { at });
                continue;
            };
            let at = || self.place(id);
            let Some(allocation) = self.plan.allocations.get(slice.allocation) else {
                report.add(Violation::NoSuchAllocation { at: at(), allocation: slice.allocation });
                continue;
            };
            if slice.offset.checked_add(slice.size).is_none_or(|end| end > allocation.size) {
                report.add(Violation::OutOfBounds { at: at(), slice: *slice, size: allocation.size });
            }
            let needed = self.part(id).size;
            let (slice, needed) = (*slice, Bytes(needed));
            if slice.size < needed {
                report.add(Violation::TooSmall { at: at(), slice, needed });
            } else if slice.size > needed {
                report.add(Violation::TooLarge { at: at(), slice, needed });
            }
            if needed > Bytes::ZERO && slice.size > Bytes::ZERO {
                self.slices[id.index()] = Some(slice);
            }
        }
    }

    /// Gives equal numbers to tables of equal pointers. A table is identified by its pointers, so writing the same
    /// pointers again, as every iteration of a loop does, changes nothing.
    fn number_tables(&mut self) {
        self.tables = vec![u32::MAX; self.positions.len()];
        if self.target.tuple_entry_bytes == 0 {
            return;
        }
        let mut numbers: FxHashMap<SmallVec<[Option<Slice>; 4]>, u32> = FxHashMap::default();
        for position in (0..self.positions.len()).map(PositionId::new) {
            if !self.part(position).is_tuple {
                continue;
            }
            let tree = self.positions.tree(self.positions.instruction(position));
            let preorder = self.positions.preorder(position);
            let first = position.index() - preorder;
            let pointers =
                tree.children(preorder).iter().map(|&child| self.slices[first + child as usize]).collect();
            let next = numbers.len() as u32;
            self.tables[position.index()] = *numbers.entry(pointers).or_insert(next);
        }
    }

    /// The argument allocations that aliasing or donation let the program write.
    fn donated_allocations(&self) -> FxHashSet<AllocationId> {
        let config = &self.module.config;
        let aliased = config.input_output_alias.iter().map(|alias| (alias.parameter, &alias.parameter_index));
        let given = config.buffer_donors.iter().map(|donor| (donor.parameter, &donor.index));
        let donated: FxHashSet<(u32, &ShapeIndex)> = aliased.chain(given).collect();
        let is_donated = |kind: &AllocationKind| match kind {
            AllocationKind::Argument { parameter, index } => donated.contains(&(*parameter, index)),
            _ => false,
        };
        self.plan.allocations.iter().filter(|(_, a)| is_donated(&a.kind)).map(|(id, _)| id).collect()
    }
}

/// The instruction that starts each computation that runs asynchronously.
fn starts(module: &Module) -> FxHashMap<ComputationId, InstructionId> {
    let all = module.computations.values().flat_map(|computation| &computation.instructions);
    let starts = all.filter(|&&id| matches!(module.instructions[id].op, Op::AsyncStart(_)));
    starts.filter_map(|&id| Some((*module.instructions[id].called.first()?, id))).collect()
}

/// The parts of a shape in preorder. `ways` has the effective layouts, in the order of their numbers.
fn parts_of(
    shape: &Shape,
    target: &Target,
    ways: &mut IndexSet<EffectiveLayout, FxBuildHasher>,
) -> Vec<Part> {
    let mut parts = Vec::new();
    shape.for_each_subshape(|_, part| {
        let size = target.size_of(part);
        parts.push(Part {
            size: size.0,
            padding: size.saturating_sub(target.unpadded_size_of(part)).0,
            is_tuple: part.is_tuple(),
            space: MemorySpaceId(part.as_array().map_or(0, |a| a.memory_space()) as u32),
            lies: part.as_array().map_or(0, |array| ways.insert_full(EffectiveLayout::of(array)).0 as u32),
        });
    });
    parts
}
