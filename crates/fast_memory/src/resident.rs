//! Residents: parameters that stay in fast memory from one call of the program to the next (XLA's cross-program prefetch).
//!
//! A resident has its bytes of fast memory to itself for the whole program, so that they are as the call before left
//! them. A parameter qualifies when everything that reads it can read it there, when the caller keeps it, and when a
//! call reads at least as many bytes of it as it has, so that not even the first call moves more. How many may stay is
//! limited, and only room that nobody else wants is given to them; so those come first that save most.

use memplan_analysis::{Costs, Facts, LiveRange, ValueKind};
use memplan_ir::{InstructionId, Module, Op};

use super::choice::{Choice, Mode};
use super::model::{Candidate, Event, Model, View};

/// The candidates that may be residents, those first that save most: all that a call moves for them now. Takes
/// time n log n in candidates, and linear in their events.
pub(super) fn eligible(
    module: &Module,
    facts: &Facts,
    costs: &Costs,
    model: &Model,
    choices: &[Choice],
) -> Vec<usize> {
    let saved = |i: usize| choices[i].traffic;
    let mut eligible: Vec<usize> = (0..model.candidates.len())
        .filter(|&i| qualifies(module, facts, costs, &model.candidates[i]) && saved(i) > 0.0)
        .collect();
    eligible.sort_by(|&a, &b| saved(b).total_cmp(&saved(a)).then(a.cmp(&b)));
    eligible
}

/// What a resident does: it takes room all the time, and costs its copy in the first call. The copy starts after the
/// parameters and constants of the entry, which stand first.
pub(super) fn choice(module: &Module, model: &Model, candidate: usize, index: usize) -> Choice {
    let before = module.entry_computation().instructions.iter().copied().find(|&id| !is_given(module, id));
    let traffic = model.candidates[candidate].views[0].fetch;
    Choice {
        mode: Mode::Resident {
            before: before.expect("something reads the parameter"),
            index: u32::try_from(index).expect("there are few residents"),
        },
        traffic,
        cost: traffic,
        busy: vec![LiveRange { start: 0, end: model.end }],
        // Nobody takes it over.
        copied_until: model.end,
    }
}

fn qualifies(module: &Module, facts: &Facts, costs: &Costs, candidate: &Candidate) -> bool {
    let (Some(value), [view]) = (candidate.single(), candidate.views.as_slice()) else { return false };
    let (flow, live) = (&facts.flow, &facts.live);
    flow.values[value].kind == ValueKind::Parameter
        && view.computation == module.entry
        && !live.is_given(value)
        && !live.is_live_out(value)
        && view.events.iter().all(|event| event.fast.is_some())
        && bytes_read(module, costs, view) >= candidate.bytes as f64
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
    matches!(module.instructions[id].op, Op::Parameter { .. } | Op::Constant(_))
}
