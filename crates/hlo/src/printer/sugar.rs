//! Computations that text omits: `slice-start(x), slice={...}` contains the called computation.

use memplan_ir::{Computation, ComputationId, InstructionId, Module, Op, PackedOption, SecondaryMap};
use rustc_hash::FxHashSet;

use crate::async_notes::AsyncNotes;

/// For each computation that is left out, the operation in it.
///
/// Plans name computations and instructions, and depend on their order. So a computation is left out only if reading
/// the text gives it back where it was, under the name that it had.
pub(super) struct Sugar(SecondaryMap<ComputationId, PackedOption<InstructionId>>);

impl Sugar {
    pub(super) fn new(module: &Module) -> Sugar {
        let mut sugar = SecondaryMap::new();
        // The name first: it is no for almost all.
        let is_named =
            |id: ComputationId| id != module.entry && module.computations[id].name.starts_with(WRAPPED);
        if !module.computations.keys().any(is_named) {
            return Sugar(sugar);
        }
        let calls = AsyncCalls::new(module);
        let wrapped = |id: ComputationId| {
            let is_started = is_named(id) && calls.are_started_once[id];
            is_started.then(|| wrapped(&module.computations[id], calls.notes[id], module)).flatten()
        };
        let written = module.computations.keys().filter(|&id| wrapped(id).is_none());
        let taken = written.map(|id| &*module.computations[id].name).collect();
        let mut names = ReadNames { taken, next: 0 };
        let mut run = Vec::new();
        for (id, computation) in module.computations.iter() {
            if wrapped(id).is_some() {
                run.push(id);
                continue;
            }
            let starts = computation.instructions.iter().filter_map(|&id| started(module, id));
            let is_in_order = starts.filter(|&id| wrapped(id).is_some()).eq(run.iter().copied());
            if names.agree(module, &run, is_in_order) {
                run.iter().for_each(|&id| sugar[id] = wrapped(id).into());
            }
            run.clear();
        }
        Sugar(sugar)
    }

    /// The operation that a computation exists to run, if text says no more of the computation than that.
    pub(super) fn wrapped(&self, computation: ComputationId) -> Option<InstructionId> {
        self.0[computation].expand()
    }
}

/// The prefix of the names of omitted computations.
const WRAPPED: &str = "async_wrapped";

/// The names that reading gives to computations that the text leaves out.
struct ReadNames<'m> {
    taken: FxHashSet<&'m str>,
    next: u32,
}

impl<'m> ReadNames<'m> {
    /// Whether reading gives these computations the names that they have. If not, or if they are not `left_out`, text
    /// has their names.
    fn agree(&mut self, module: &'m Module, run: &[ComputationId], left_out: bool) -> bool {
        let names = || run.iter().map(|&id| &*module.computations[id].name);
        let mut next = self.next;
        let agree = left_out && names().all(|name| self.name(&mut next) == name);
        match agree {
            true => self.next = next,
            false => self.taken.extend(names()),
        }
        agree
    }

    fn name(&self, next: &mut u32) -> String {
        loop {
            let name = numbered(WRAPPED, *next);
            *next += 1;
            if !self.taken.contains(&*name) {
                return name;
            }
        }
    }
}

fn numbered(stem: &str, number: u32) -> String {
    match number {
        0 => stem.to_owned(),
        _ => format!("{stem}.{number}"),
    }
}

/// How asynchronous operations use the computations that they call.
struct AsyncCalls<'m> {
    /// Which computations a single async-start calls, and nothing that is not a continuation of it.
    are_started_once: SecondaryMap<ComputationId, bool>,
    /// The notes that reading the operations gives to what runs in a computation.
    notes: SecondaryMap<ComputationId, AsyncNotes<'m>>,
}

impl<'m> AsyncCalls<'m> {
    fn new(module: &'m Module) -> AsyncCalls<'m> {
        let mut calls = AsyncCalls { are_started_once: SecondaryMap::new(), notes: SecondaryMap::new() };
        let mut called: SecondaryMap<ComputationId, bool> = SecondaryMap::new();
        let ids = module.computations.values().flat_map(|computation| &computation.instructions);
        for &id in ids {
            let instruction = &module.instructions[id];
            let is_continuation = matches!(instruction.op, Op::AsyncUpdate(_) | Op::AsyncDone(_));
            let is_start = matches!(instruction.op, Op::AsyncStart(_));
            for &callee in &instruction.called {
                if is_start || is_continuation {
                    calls.notes[callee] = AsyncNotes::of(instruction).or(calls.notes[callee]);
                }
                if !is_continuation {
                    calls.are_started_once[callee] = is_start && !called[callee];
                    called[callee] = true;
                }
            }
        }
        calls
    }
}

/// The computation that an async-start calls.
fn started(module: &Module, id: InstructionId) -> Option<ComputationId> {
    let instruction = &module.instructions[id];
    matches!(instruction.op, Op::AsyncStart(_)).then(|| instruction.called.first().copied())?
}

/// The operation in a computation that holds nothing else: its parameters in order, then one instruction that takes
/// them in order, all with the names and notes that reading `slice-start(...)` gives them.
///
/// XLA omits such computations with any name. We keep names that a program chose.
fn wrapped(computation: &Computation, notes: AsyncNotes, module: &Module) -> Option<InstructionId> {
    let (&root, parameters) = computation.instructions.split_last()?;
    let instruction = &module.instructions[root];
    let is_named = |(number, &id): (usize, &InstructionId)| {
        *module.instructions[id].name == *numbered("async_param", number as u32)
    };
    let is_only_an_operation = root == computation.root
        && parameters == computation.parameters.as_slice()
        && parameters == instruction.operands.as_slice()
        && &*instruction.name == <&str>::from(instruction.opcode())
        && parameters.iter().enumerate().all(is_named)
        && instruction.control_predecessors.is_empty()
        && notes.are_all_of(instruction)
        && !instruction.op.is_input()
        && has_async_spelling(&instruction.op);
    is_only_an_operation.then_some(root)
}

/// Whether `-start` behind the name of an operation means that it is wrapped, not an operation of its own.
fn has_async_spelling(op: &Op) -> bool {
    let name: &str = op.opcode().into();
    ["-start", "-update", "-done"]
        .iter()
        .all(|suffix| crate::tables::opcode(&format!("{name}{suffix}")).is_none())
}
