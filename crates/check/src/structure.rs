//! Preconditions of the walk: a complete schedule in dependency order, and slices that exist, fit, are aligned, and are
//! in the right memory space.

use memplan_ir::{
    ComputationId, EntityRef, InstructionId, Op, Position, PositionId, SecondaryMap, ShapeIndex,
};
use memplan_memory::{AllocationKind, Bytes, MemorySpaceId};
use rustc_hash::FxHashMap;

use crate::Violation;
use crate::facts::{Facts, Report};

/// The computations whose instructions need a schedule and memory, callees before callers: those reached from the entry
/// by control flow and asynchronous calls. `None`, and a violation, if one reaches itself.
pub(crate) fn planned_computations(facts: &Facts<'_>, report: &mut Report) -> Option<Vec<ComputationId>> {
    #[derive(Clone, Copy, Default, PartialEq)]
    enum State {
        #[default]
        New,
        Open,
        Done,
    }
    let mut state: SecondaryMap<ComputationId, State> = SecondaryMap::new();
    let mut order = Vec::new();
    // An explicit stack: callees of an open computation that are still to be visited.
    let mut stack = vec![(facts.module.entry, callees(facts, facts.module.entry))];
    state[facts.module.entry] = State::Open;
    while let Some((computation, rest)) = stack.last_mut() {
        let Some(callee) = rest.pop() else {
            state[*computation] = State::Done;
            order.push(*computation);
            stack.pop();
            continue;
        };
        match state[callee] {
            State::Done => {}
            State::Open => {
                report.add(Violation::Recursion { computation: facts.computation_name(callee) });
                return None;
            }
            State::New => {
                state[callee] = State::Open;
                stack.push((callee, callees(facts, callee)));
            }
        }
    }
    Some(order)
}

/// Whether an instruction runs its called computations on values in memory, one after the other.
pub(crate) fn runs_callees(op: &Op) -> bool {
    matches!(
        op,
        Op::While
            | Op::Conditional
            | Op::Call { .. }
            | Op::AsyncStart(_)
            | Op::AsyncUpdate(_)
            | Op::AsyncDone(_)
    )
}

/// Checks that the schedule has every instruction of every planned computation once, after its dependencies. Other
/// computations, those of kernels, need no schedule; if there is one, it must be right as well.
pub(crate) fn check_schedule(
    facts: &Facts<'_>,
    planned: &SecondaryMap<ComputationId, bool>,
    report: &mut Report,
) {
    let module = facts.module;
    let mut step: SecondaryMap<InstructionId, u32> = SecondaryMap::with_default(u32::MAX);
    let has_order = |&c: &ComputationId| planned[c] || !facts.schedule.sequence(c).is_empty();
    for computation in module.computations.keys().filter(has_order) {
        let name = || facts.computation_name(computation);
        for (i, &id) in facts.schedule.sequence(computation).iter().enumerate() {
            if !module.instructions.is_valid(id) || module.instructions[id].parent != computation {
                if module.instructions.is_valid(id) {
                    let instruction = facts.place_of(id);
                    report.add(Violation::ScheduledElsewhere { computation: name(), instruction });
                }
                continue;
            }
            if step[id] != u32::MAX {
                report
                    .add(Violation::ScheduledTwice { computation: name(), instruction: facts.place_of(id) });
            }
            step[id] = i as u32;
        }
        for (id, instruction) in module.instructions_of(computation) {
            if step[id] == u32::MAX {
                report.add(Violation::NotScheduled { instruction: facts.place_of(id) });
                continue;
            }
            for &dependency in instruction.operands.iter().chain(&instruction.control_predecessors) {
                if step[dependency] != u32::MAX && step[dependency] >= step[id] {
                    let (instruction, dependency) = (facts.place_of(id), facts.place_of(dependency));
                    report.add(Violation::OutOfOrder { instruction, dependency });
                }
            }
        }
    }
}

/// Nothing inside kernels has memory of its own.
pub(crate) fn check_kernels(
    facts: &Facts<'_>,
    planned: &SecondaryMap<ComputationId, bool>,
    report: &mut Report,
) {
    let placed = facts.plan.slices.keys().map(|position| position.instruction);
    let mut last = None;
    for id in placed.chain(facts.plan.scratch.keys().copied()) {
        let is_inside =
            facts.module.instructions.is_valid(id) && !planned[facts.module.instructions[id].parent];
        // Once for all parts of a result.
        if is_inside && last != Some(id) {
            report.add(Violation::InsideKernel { at: facts.place_of(id) });
            last = Some(id);
        }
    }
}

/// Alignment and memory space of every slice.
pub(crate) fn check_slices(facts: &Facts<'_>, planned: &[ComputationId], report: &mut Report) {
    for (id, allocation) in facts.plan.allocations.iter() {
        let needed = match allocation.kind {
            AllocationKind::Argument { .. } => facts.target.argument_alignment,
            _ => facts.target.alignment(allocation.space),
        };
        if allocation.alignment < needed && allocation.size > Bytes::ZERO {
            report.add(Violation::UnderAligned { allocation: id, found: allocation.alignment, needed });
        }
        if allocation.alignment > needed {
            report.add(Violation::OverAligned { allocation: id, found: allocation.alignment, given: needed });
        }
    }
    let instructions = planned.iter().flat_map(|&c| &facts.module.computations[c].instructions);
    for (position, part) in instructions.flat_map(|&id| facts.parts_of(id)) {
        let Some(slice) = facts.slice(position) else { continue };
        let allocation = &facts.plan.allocations[slice.allocation];
        let alignment = match allocation.kind {
            AllocationKind::Argument { .. } => facts.target.argument_alignment,
            _ => facts.target.alignment(allocation.space),
        };
        if !slice.offset.is_aligned(alignment) {
            report.add(Violation::Misaligned { at: facts.place(position), slice, alignment });
        }
        // A layout without a memory space leaves the choice to the plan, among spaces that kernels reach directly.
        let is_unnamed = part.space == MemorySpaceId::MAIN && facts.target.reaches_directly(allocation.space);
        if part.space != allocation.space && !is_unnamed {
            let (layout, found) = (part.space, allocation.space);
            report.add(Violation::WrongSpace { at: facts.place(position), slice, layout, found });
        }
    }
    let scratch = facts.plan.scratch.iter().flat_map(|(&id, slices)| slices.iter().map(move |s| (id, s)));
    for (instruction, slice) in scratch {
        if !facts.module.instructions.is_valid(instruction) {
            continue;
        }
        let at = || facts.place_of(instruction);
        let Some(allocation) = facts.plan.allocations.get(slice.allocation) else {
            report.add(Violation::NoSuchAllocation { at: at(), allocation: slice.allocation });
            continue;
        };
        if slice.offset.checked_add(slice.size).is_none_or(|end| end > allocation.size) {
            report.add(Violation::OutOfBounds { at: at(), slice: *slice, size: allocation.size });
        }
        if facts.can_only_be_read(allocation.space) {
            let what = "a memory that can only be read";
            report.add(Violation::ReadOnly { at: at(), slice: *slice, what });
        }
        let alignment = facts.target.alignment(allocation.space);
        if !slice.offset.is_aligned(alignment) {
            report.add(Violation::Misaligned { at: at(), slice: *slice, alignment });
        }
    }
}

/// One argument allocation for every part of an entry parameter that has bytes, and the parameter in it.
pub(crate) fn check_arguments(facts: &Facts<'_>, report: &mut Report) {
    let parameters = &facts.module.entry_computation().parameters;
    let mut allocations: FxHashMap<(u32, ShapeIndex), _> = FxHashMap::default();
    for (id, allocation) in facts.plan.allocations.iter() {
        let AllocationKind::Argument { parameter, index } = &allocation.kind else { continue };
        let position = parameters.get(*parameter as usize).and_then(|&p| facts.positions.find(p, index));
        let stray = |reason| Violation::StrayArgument {
            allocation: id,
            parameter: *parameter,
            index: index.clone(),
            reason,
        };
        if position.is_none() {
            report.add(stray("does not exist"));
        } else if allocations.insert((*parameter, index.clone()), id).is_some() {
            report.add(stray("has another allocation"));
        }
    }
    for (number, &parameter) in parameters.iter().enumerate() {
        for position in facts.positions.of(parameter) {
            let Some(slice) = facts.slice(position) else { continue };
            let Position { index, .. } = facts.positions.position(position);
            let own = allocations.get(&(number as u32, index)) == Some(&slice.allocation);
            if !own || slice.offset != Bytes::ZERO {
                report.add(Violation::ArgumentElsewhere { at: facts.place(position), slice });
            } else if facts.plan.allocations[slice.allocation].size > slice.size {
                report.add(Violation::StrayArgument {
                    allocation: slice.allocation,
                    parameter: number as u32,
                    index: facts.positions.position(position).index,
                    reason: "has fewer bytes",
                });
            }
        }
    }
}

/// Results where the caller looks: in live-out allocations, aliased outputs in their parameter.
pub(crate) fn check_results(facts: &Facts<'_>, report: &mut Report) {
    let entry = facts.module.entry_computation();
    let mut holds_result: SecondaryMap<_, bool> = SecondaryMap::new();
    for position in facts.positions.of(entry.root) {
        let Some(slice) = facts.slice(position) else { continue };
        holds_result[slice.allocation] = true;
        let allocation = &facts.plan.allocations[slice.allocation];
        let reason = match allocation.kind {
            AllocationKind::Temp => "is given up at the end",
            _ if !allocation.live_out => "is not marked live out",
            _ => continue,
        };
        report.add(Violation::ResultNotLiveOut { value: facts.place(position), slice, reason });
    }
    for (id, allocation) in facts.plan.allocations.iter() {
        if allocation.live_out && !holds_result[id] && allocation.size > Bytes::ZERO {
            report.add(Violation::NotLiveOut { allocation: id });
        }
    }
    for alias in &facts.module.config.input_output_alias {
        let output = facts.positions.find(entry.root, &alias.output_index);
        let parameter = entry.parameters.get(alias.parameter as usize);
        let parameter = parameter.and_then(|&p| facts.positions.find(p, &alias.parameter_index));
        let (Some(output), Some(parameter)) = (output, parameter) else {
            let at = facts.place_of(entry.root);
            report.add(Violation::Malformed {
                at,
                reason: "an input-output alias names a part that does not exist",
            });
            continue;
        };
        let start = |p: PositionId| facts.slice(p).map(|slice| (slice.allocation, slice.offset));
        if start(output) != start(parameter) {
            report.add(Violation::OutputElsewhere {
                output_index: alias.output_index.clone(),
                parameter: alias.parameter,
                parameter_index: alias.parameter_index.clone(),
                slice: facts.slice(output),
            });
        }
    }
}

fn callees(facts: &Facts<'_>, computation: ComputationId) -> Vec<ComputationId> {
    let mut callees: Vec<ComputationId> = Vec::new();
    for (_, instruction) in facts.module.instructions_of(computation) {
        if runs_callees(&instruction.op) {
            callees.extend(instruction.called.iter().filter(|&&c| facts.module.computations.is_valid(c)));
        }
    }
    callees.sort_unstable_by_key(|c| c.index());
    callees.dedup();
    callees
}
