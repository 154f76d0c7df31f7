//! Assignment of a module: [`memplan_plan`] places its values, and their positions get the slices.

use std::collections::BTreeMap;

use cranelift_entity::{SecondaryMap, packed_option::PackedOption};
use indexmap::IndexMap;
use memplan_analysis::{BufferId, Buffers, Dataflow, Facts, Value, ValueKind};
use memplan_ir::{ArrayShape, InstructionId, Module, Op, Opcode, Position, PositionId, Shape, fingerprint};
use memplan_memory::{
    Allocation, AllocationId, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Slice, Target, Totals,
};
use memplan_plan::{
    AsXla, PlaceOptions, Sharing, SpacePlacement, Storages, TakeOver, place_below, place_space,
};
use memplan_program::{self as program, Placement, ValueId};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::{HloProgram, Pin, PlanError, spaces};

/// How to assign.
#[derive(Clone, Debug, Default)]
pub struct AssignOptions {
    /// Main memory that the kernels of instructions need while they run, in addition to the target's scratch
    /// ([`kernel_scratch`](memplan_analysis::kernel_scratch)).
    pub scratch: SecondaryMap<InstructionId, Bytes>,
    /// Values that must be in a certain memory.
    pub pins: Vec<Pin>,
    /// Operations that leave their result in a tuple, with their working memory: XLA writes nothing over such a result. Read
    /// by those who share as XLA does.
    pub results_in_tuples: Vec<Opcode>,
    /// The most reductions beside a result of a kernel that is written over an operand; nothing where there may be any number.
    /// Read by those who share as XLA does.
    pub reductions_beside: Option<u32>,
    /// Whether a kernel writes a result only over an operand that it is computed from. Read by those who share as XLA does.
    pub over_sources: bool,
    /// How to place values.
    pub place: PlaceOptions,
}

impl AssignOptions {
    /// Heuristics only: enough to compare programs, or to see what fits.
    pub fn quick() -> AssignOptions {
        AssignOptions { place: PlaceOptions::quick(), ..AssignOptions::default() }
    }
}

/// Decides which values of a scheduled module share storage. Close to linear in positions and live ranges.
///
/// # Errors
/// When a must-alias buffer cannot exist: two parameters in one, or a constant that would be overwritten.
pub fn storages(
    module: &Module,
    facts: &Facts,
    target: &Target,
    policy: TakeOver,
) -> Result<Storages, PlanError> {
    let program = HloProgram::new(module, facts, target, &SecondaryMap::new());
    Storages::new(&program, policy).map_err(|error| PlanError::of_place(&program, error))
}

/// Gives every value of a scheduled module an allocation and an offset. If packing leaves a gap, a second way of
/// sharing storage is tried, and the lower total is kept.
///
/// # Errors
/// When values that must share storage cannot (see [`PlanError`]), or sizes are beyond 64 bits.
pub fn assign(
    module: &Module,
    facts: &Facts,
    target: &Target,
    options: &AssignOptions,
) -> Result<MemoryPlan, PlanError> {
    check_values(module, &facts.flow, &facts.buffers, target)?;
    let plan = assign_below(module, facts, target, options, None)?.expect("there is no limit");
    Ok(MemoryPlan { fingerprint: fingerprint(module), ..plan })
}

/// Assigns like [`assign`] what [`check_values`] has accepted, without a fingerprint; `None` where the total would be a limit
/// or more, which is often clear before anything is packed.
pub(crate) fn assign_below(
    module: &Module,
    facts: &Facts,
    target: &Target,
    options: &AssignOptions,
    limit: Option<Bytes>,
) -> Result<Option<MemoryPlan>, PlanError> {
    let mut program = HloProgram::pinned(module, facts, target, &options.scratch, &options.pins)?
        .with_results_in_tuples(&options.results_in_tuples)
        .with_reductions_beside(options.reductions_beside)
        .with_results_over_sources(options.over_sources);
    if matches!(options.place.sharing, Sharing::AsXla(AsXla { temps_in_results: true, .. })) {
        program = program.in_order_of_xla();
    }
    let placement = place_below(&program, target, &options.place, limit)
        .map_err(|error| PlanError::of_place(&program, error))?;
    Ok(placement.map(|placement| memory_plan(module, facts, target, &program, placement)))
}

/// Asks that every value has a size, one memory, and a place that no other result of its instruction must have. Linear in
/// positions; none depends on a schedule.
///
/// # Errors
/// The first value that has not.
pub(crate) fn check_values(
    module: &Module,
    flow: &Dataflow,
    buffers: &Buffers,
    target: &Target,
) -> Result<(), PlanError> {
    all_are_bounded(module, flow)?;
    results_are_apart(module, flow, buffers)?;
    Ok(spaces::agree(module, flow, target)?)
}

/// Values that one instruction writes are needed together. (Values that meet in a loop or a conditional may be equal.)
fn results_are_apart(module: &Module, flow: &Dataflow, buffers: &Buffers) -> Result<(), PlanError> {
    let ids = module.computations.values().flat_map(|computation| &computation.instructions);
    let mut last_written: SecondaryMap<BufferId, PackedOption<PositionId>> = SecondaryMap::new();
    for (&id, shape) in ids.map(|id| (id, module.shape(*id))).filter(|(_, shape)| shape.is_tuple()) {
        for position in flow.positions.of(id) {
            let Some(value) = flow.value_at(position) else { continue };
            let index = flow.positions.shape_index(position);
            let is_written = flow.values[value] == Value { definition: position, kind: ValueKind::Written };
            if !is_written || !matches!(shape.subshape(index), Some(Shape::Array(_) | Shape::Buffer(_))) {
                continue;
            }
            let last = &mut last_written[buffers.of(value)];
            if let Some(other) = last.expand().filter(|&at| flow.positions.instruction(at) == id) {
                return Err(PlanError::SharedResults {
                    instruction: module.instructions[id].name.clone(),
                    first: flow.positions.shape_index(other).clone(),
                    second: index.clone(),
                });
            }
            *last = position.into();
        }
    }
    Ok(())
}

fn all_are_bounded(module: &Module, flow: &Dataflow) -> Result<(), PlanError> {
    let is_unbounded =
        |&at: &PositionId| flow.positions.part(module, at).as_array().is_some_and(ArrayShape::is_unbounded);
    let mut definitions = flow.values.values().map(|value| value.definition).filter(is_unbounded);
    definitions.next().map_or(Ok(()), |at| {
        let instruction = module.instructions[flow.positions.instruction(at)].name.clone();
        Err(PlanError::Unbounded { instruction })
    })
}

/// The plan for one memory space.
#[derive(Clone, Debug)]
pub struct SpacePlan {
    /// The slices of everything that is in the space.
    pub plan: MemoryPlan,
    /// Bytes that its arena takes.
    pub height: Bytes,
    /// The program's bytes in main memory, if that can be packed without loss.
    pub total: Bytes,
}

/// Assigns one memory space other than main memory, by heuristics that end as soon as everything fits a capacity; without
/// one, the lowest arena they find.
///
/// # Errors
/// As [`assign`].
pub fn assign_space(
    module: &Module,
    facts: &Facts,
    target: &Target,
    space: MemorySpaceId,
    capacity: Option<u64>,
) -> Result<SpacePlan, PlanError> {
    let program = HloProgram::new(module, facts, target, &SecondaryMap::new());
    let SpacePlacement { placement, height, total } = place_space(&program, target, space, capacity)
        .map_err(|error| PlanError::of_place(&program, error))?;
    Ok(SpacePlan { plan: memory_plan(module, facts, target, &program, placement), height, total })
}

/// The plan that a placement of a module's values is.
fn memory_plan(
    module: &Module,
    facts: &Facts,
    target: &Target,
    program: &HloProgram<'_>,
    placement: Placement,
) -> MemoryPlan {
    let slices = slices(module, facts, target, program, &placement.slices);
    let mut scratch: IndexMap<InstructionId, SmallVec<[Slice; 1]>, FxBuildHasher> = IndexMap::default();
    for &(time, slice) in &placement.scratch {
        scratch.entry(facts.line.instructions[time as usize]).or_default().push(slice);
    }
    MemoryPlan {
        target: target.name.clone(),
        fingerprint: 0,
        allocations: placement.allocations.values().map(|it| allocation(module, facts, it)).collect(),
        totals: Totals { padding: padding(module, target, &slices), ..placement.totals },
        slices,
        scratch,
        spaces: placement.spaces,
    }
}

fn allocation(module: &Module, facts: &Facts, it: &program::Allocation) -> Allocation {
    let &program::Allocation { kind, space, size, alignment, live_out } = it;
    let kind = match kind {
        program::AllocationKind::Argument(value) => {
            let Position { instruction, index } =
                facts.flow.positions.position(facts.flow.values[value].definition);
            let Op::Parameter { number } = module.instructions[instruction].op else {
                unreachable!("arguments are parts of entry parameters");
            };
            AllocationKind::Argument { parameter: number, index }
        }
        program::AllocationKind::Output => AllocationKind::Output,
        program::AllocationKind::Constant => AllocationKind::Constant,
        program::AllocationKind::Temp => AllocationKind::Temp,
    };
    Allocation { kind, space, size, alignment, live_out }
}

/// The slice of every position whose value has a place, in the order of computations and instructions.
fn slices(
    module: &Module,
    facts: &Facts,
    target: &Target,
    program: &HloProgram<'_>,
    places: &SecondaryMap<ValueId, Option<Slice>>,
) -> IndexMap<Position, Slice, FxBuildHasher> {
    let positions = &facts.flow.positions;
    let mut slices = IndexMap::default();
    slices.reserve(positions.len());
    let mut computations = facts.graph.sequential().to_vec();
    computations.sort();
    for &id in computations.iter().flat_map(|&c| &module.computations[c].instructions) {
        let shape = module.shape(id);
        for position in positions.of(id) {
            let Some(value) = facts.flow.value_at(position) else { continue };
            let Some(place) = places[value] else { continue };
            let offset = place.offset.saturating_add(program.offset_in_group(value));
            let index = positions.shape_index(position);
            let part = shape.subshape(index).expect("positions are parts of their instruction's shape");
            let size = target.size_of(part);
            if size > Bytes::ZERO {
                let position = Position { instruction: id, index: index.clone() };
                slices.insert(position, Slice { offset, size, ..place });
            }
        }
    }
    slices
}

/// Bytes of layout padding: at each place, the most of all values there.
fn padding(module: &Module, target: &Target, slices: &IndexMap<Position, Slice, FxBuildHasher>) -> Bytes {
    let mut places: BTreeMap<(AllocationId, Bytes), Bytes> = BTreeMap::new();
    for (position, slice) in slices {
        let shape = module.shape(position.instruction);
        let part = shape.subshape(&position.index).expect("positions are parts of their instruction's shape");
        let extra = slice.size.saturating_sub(target.unpadded_size_of(part));
        if extra > Bytes::ZERO {
            let most = places.entry((slice.allocation, slice.offset)).or_default();
            *most = extra.max(*most);
        }
    }
    places.into_values().fold(Bytes::ZERO, Bytes::saturating_add)
}
