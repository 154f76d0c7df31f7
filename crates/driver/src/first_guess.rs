//! First guesses of the order in which a program will run.
//!
//! Recomputation and fusion depend on which values are live at the same time, and so on an order that is found only
//! later. `compile` and `rewrite` continue each guess to a quick plan, and keep the best.

use memplan_ir::{ComputationId, EntityRef, Instruction, InstructionId, Module, Op, Schedule, SecondaryMap};
use memplan_memory::Target;
use memplan_passes as passes;
use memplan_passes::{Context, Fusion, Pass, PassError, RunOptions};
use memplan_plan_hlo as plan;
use memplan_plan_hlo::ScheduleOptions;

/// A first guess of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstGuess {
    /// The order of the text: a person's, or a depth-first walk.
    Text,
    /// A one-pass schedule.
    OnePass,
    /// A schedule found by search.
    Searched,
    /// A one-pass schedule of the program after fusion.
    Fused,
}

impl FirstGuess {
    /// The module in this order. `None` if values that must share storage interfere, so that no order exists before
    /// copies are inserted.
    pub(crate) fn order(
        self,
        module: &Module,
        target: &Target,
        schedule: &ScheduleOptions,
        fusion: Option<&Fusion>,
    ) -> Result<Option<Module>, PassError> {
        let budget = match self {
            FirstGuess::Text => return Ok(Some(module.clone())),
            FirstGuess::OnePass | FirstGuess::Fused => 0,
            FirstGuess::Searched => schedule.budget,
        };
        let mut guess = module.clone();
        run(&mut guess, target, &passes::FLATTEN_CALL_GRAPH)?;
        let options = ScheduleOptions { budget, ..schedule.clone() };
        let schedule = match self {
            FirstGuess::Fused => schedule_fused(&guess, target, &options, fusion)?,
            _ => plan::schedule(&guess, target, &options).ok().map(|(schedule, _)| schedule),
        };
        let Some(schedule) = schedule else { return Ok(None) };
        // Calls keep sharing computations if nothing moves.
        if schedule == Schedule::in_textual_order(&guess) {
            return Ok(Some(module.clone()));
        }
        schedule.apply(&mut guess);
        if let FirstGuess::Fused = self {
            guess.computations.keys().for_each(|computation| guess.put_operands_first(computation));
        }
        guess.is_scheduled = false;
        Ok(Some(guess))
    }
}

/// The order in which instructions are first computed when the module is fused and scheduled. Operands may come after
/// users, and instructions that fusion drops come last.
fn schedule_fused(
    module: &Module,
    target: &Target,
    options: &ScheduleOptions,
    fusion: Option<&Fusion>,
) -> Result<Option<Schedule>, PassError> {
    let mut fused = module.clone();
    // Fusion keeps names.
    for (id, instruction) in fused.instructions.iter_mut() {
        instruction.name = id.index().to_string().into();
    }
    if let Some(fusion) = fusion {
        run(&mut fused, target, fusion)?;
    }
    let Ok((schedule, _)) = plan::schedule(&fused, target, options) else { return Ok(None) };
    let mut order: SecondaryMap<ComputationId, Vec<InstructionId>> = SecondaryMap::new();
    let mut is_placed: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
    let mut place = |id: InstructionId| {
        if !std::mem::replace(&mut is_placed[id], true) {
            order[module.instructions[id].parent].push(id);
        }
    };
    let original = |instruction: &Instruction| {
        let index = instruction.name.parse().ok().filter(|&index: &usize| index < module.instructions.len());
        index.map(InstructionId::new)
    };
    let mut is_kernel: SecondaryMap<ComputationId, bool> = SecondaryMap::new();
    for instruction in
        fused.instructions.values().filter(|instruction| matches!(instruction.op, Op::Fusion(_)))
    {
        instruction.called.iter().for_each(|&called| is_kernel[called] = true);
    }
    for computation in fused.computations.keys().filter(|computation| !is_kernel[*computation]) {
        for &id in schedule.sequence(computation) {
            let instruction = &fused.instructions[id];
            let inside = instruction.called.iter().filter(|called| is_kernel[**called]);
            for (_, member) in inside.flat_map(|&called| fused.instructions_of(called)) {
                original(member).into_iter().for_each(&mut place);
            }
            original(instruction).into_iter().for_each(&mut place);
        }
    }
    module.computations.values().flat_map(|computation| &computation.instructions).for_each(|&id| place(id));
    let mut all = Schedule::default();
    order.iter().for_each(|(computation, sequence)| all.set(computation, sequence.clone()));
    Ok(Some(all))
}

fn run(module: &mut Module, target: &Target, pass: &dyn Pass) -> Result<(), PassError> {
    passes::run(module, &[pass], &Context { target }, RunOptions::default()).map(|_| ())
}
