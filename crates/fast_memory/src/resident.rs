//! Residents: parameters that stay in fast memory from one call of the program to the next (XLA's cross-program prefetch).
//!
//! A resident owns its bytes of fast memory for the whole program, so they keep their contents from the previous call. A
//! parameter qualifies if all its readers can read it there, if the caller keeps it, and if a call reads at least as many
//! bytes of it as it has, so not even the first call moves more. The number of residents is limited. They get only bytes
//! that no other candidate uses, and those that save most choose first.

use memplan_analysis::{Costs, Facts, LiveRange, ValueKind};
use memplan_ir::{InstructionId, Module};

use crate::candidate::{Candidate, Event, View};
use crate::choice::{Choice, Mode, ValueMode};
use crate::model::Model;

/// The candidates that may be residents with the entry's views, those with the highest savings first: all that a call
/// moves for them now. Takes time n log n in candidates, and linear in their events.
pub(crate) fn eligible<'m>(
    module: &Module,
    facts: &Facts,
    costs: &Costs,
    model: &'m Model,
    choices: &[Choice],
) -> Vec<(usize, &'m View)> {
    let saved = |i: usize| choices[i].traffic;
    let view = |(i, candidate)| Some((i, view_of_resident(module, facts, costs, candidate)?));
    let mut eligible: Vec<(usize, &View)> = model.candidates.iter().enumerate().filter_map(view).collect();
    eligible.retain(|&(i, _)| saved(i) > 0.0);
    eligible.sort_by(|&(a, _), &(b, _)| saved(b).total_cmp(&saved(a)).then(a.cmp(&b)));
    eligible
}

/// The choice for a resident: it holds fast memory all the time, and costs its copy in the first call. The copy starts
/// after the parameters and constants of the entry, which come first.
pub(crate) fn choice(module: &Module, model: &Model, view: &View, index: usize) -> Choice {
    let before = module.entry_computation().instructions.iter().copied().find(|&id| !is_given(module, id));
    Choice {
        mode: Mode::Value(ValueMode::Resident {
            before: before.expect("something reads the parameter"),
            index: u32::try_from(index).expect("there are few residents"),
        }),
        moved: view.prefetch_cost,
        traffic: view.prefetch_cost,
        cost: view.prefetch_cost,
        busy: vec![LiveRange { start: 0, end: model.end }],
        // Nobody takes it over.
        evicted_until: model.end,
    }
}

/// The entry's view of a candidate that may be a resident; `None` for others.
fn view_of_resident<'m>(
    module: &Module,
    facts: &Facts,
    costs: &Costs,
    candidate: &'m Candidate,
) -> Option<&'m View> {
    let Candidate::Value(candidate) = candidate else { return None };
    let (Some(value), [view]) = (candidate.single(), candidate.views.as_slice()) else { return None };
    let (flow, live) = (&facts.flow, &facts.live);
    let may_stay = flow.values[value].kind == ValueKind::Parameter
        && view.computation == module.entry
        && !live.is_given_up(value)
        && !live.is_live_out(value)
        && view.events.iter().all(|event| event.fast.is_some())
        && bytes_read(module, costs, view) >= candidate.bytes as f64;
    may_stay.then_some(view)
}

/// Bytes that a call reads of a value in main memory.
fn bytes_read(module: &Module, costs: &Costs, view: &View) -> f64 {
    let read = |user: InstructionId, operand: u32| {
        let frequency = costs.frequency(module.instructions[user].parent);
        costs.work(user).read_of(operand).map_or(0.0, |access| frequency * access.bytes.0 as f64)
    };
    let of_event = |event: &Event| {
        let kernels: f64 = event.uses.iter().map(|it| read(it.user, it.operand)).sum();
        kernels + event.inside.iter().map(|view| bytes_read(module, costs, view)).sum::<f64>()
    };
    view.events.iter().map(of_event).sum()
}

fn is_given(module: &Module, id: InstructionId) -> bool {
    module.instructions[id].op.is_input()
}
