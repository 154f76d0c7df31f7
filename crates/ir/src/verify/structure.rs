//! Ids, names and order.

use rustc_hash::FxHashSet;

use crate::{Computation, ComputationId, EntityRef, InstructionId, Module, Op, SecondaryMap};

use super::{ComputationError, InstructionError, ModuleError, Verifier};

/// The place of an instruction: its computation and how many precede it.
type Places = SecondaryMap<InstructionId, Option<(ComputationId, u32)>>;

impl Verifier<'_> {
    pub(super) fn check_structure(&mut self) {
        let module = self.module;
        if module.computations.get(module.entry).is_none() {
            self.report_module(ModuleError::NoEntry(module.entry));
        }
        let places = self.place();
        let mut names = FxHashSet::default();
        for (id, computation) in module.computations.iter() {
            if !names.insert(&computation.name) {
                self.report_computation(id, ComputationError::DuplicateName);
            }
            self.check_computation(id, computation, &places);
        }
    }

    /// Finds the place of every instruction, of which there must be one.
    fn place(&mut self) -> Places {
        let module = self.module;
        let mut places = Places::with_capacity(module.instructions.len());
        for (id, computation) in module.computations.iter() {
            for (at, &instruction) in computation.instructions.iter().enumerate() {
                if module.instructions.get(instruction).is_none() {
                    self.report_computation(id, ComputationError::UnknownInstruction(instruction));
                } else if places[instruction].replace((id, at as u32)).is_some() {
                    self.report(instruction, InstructionError::Repeated);
                }
            }
        }
        places
    }

    fn check_computation(&mut self, id: ComputationId, computation: &Computation, places: &Places) {
        let stands_here = |instruction: InstructionId| {
            self.module.instructions.is_valid(instruction)
                && places[instruction].is_some_and(|(parent, _)| parent == id)
        };
        if computation.instructions.is_empty() {
            self.report_computation(id, ComputationError::Empty);
            return;
        }
        if !stands_here(computation.root) {
            self.report_computation(id, ComputationError::Root(computation.root));
        }
        for (number, &found) in computation.parameters.iter().enumerate() {
            let is_it = |i: InstructionId| matches!(self.module.instructions[i].op, Op::Parameter { number: n } if n as usize == number);
            if !(stands_here(found) && is_it(found)) {
                self.report_computation(id, ComputationError::Parameter { number, found });
            }
        }
        let mut names = FxHashSet::default();
        let mut has_late_predecessor = false;
        for (at, &instruction) in computation.instructions.iter().enumerate() {
            if !self.module.instructions.is_valid(instruction) {
                continue;
            }
            if !names.insert(&self.module.instructions[instruction].name) {
                self.report(instruction, InstructionError::DuplicateName);
            }
            if self.check_instruction(id, computation, (instruction, at), places, &mut has_late_predecessor) {
                self.sound.insert(instruction);
            }
        }
        // If everything follows its dependencies there can be no cycle.
        if has_late_predecessor && let Some(on_circle) = find_circle(self.module, computation, places) {
            let name = self.module.instructions[on_circle].name.clone();
            self.report_computation(id, ComputationError::Cycle(name));
        }
    }

    /// Whether the instruction's ids may be followed.
    fn check_instruction(
        &mut self,
        id: ComputationId,
        computation: &Computation,
        (instruction_id, at): (InstructionId, usize),
        places: &Places,
        has_late_predecessor: &mut bool,
    ) -> bool {
        let module = self.module;
        let before = self.errors.len();
        let instruction = &module.instructions[instruction_id];
        let place_here = |other: InstructionId| {
            let place = module.instructions.is_valid(other).then(|| places[other]).flatten();
            place.filter(|&(parent, _)| parent == id).map(|(_, at)| at as usize)
        };
        if instruction.parent != id {
            self.report(instruction_id, InstructionError::Parent(instruction.parent));
        }
        if instruction.shape.index() >= module.shapes.len() {
            self.report(instruction_id, InstructionError::UnknownShape);
        }
        for (operand, &other) in instruction.operands.iter().enumerate() {
            match place_here(other) {
                None => self.report(instruction_id, InstructionError::Operand { operand, id: other }),
                Some(place) if place >= at => {
                    let name = module.instructions[other].name.clone();
                    self.report(instruction_id, InstructionError::LateOperand { operand, name });
                }
                // The result of an unsound operand is unknown.
                Some(_) if module.instructions[other].shape.index() >= module.shapes.len() => return false,
                Some(_) => (),
            }
        }
        for &other in &instruction.control_predecessors {
            match place_here(other) {
                None => self.report(instruction_id, InstructionError::ControlPredecessor(other)),
                Some(place) if place >= at => {
                    *has_late_predecessor = true;
                    if module.is_scheduled {
                        let name = module.instructions[other].name.clone();
                        self.report(instruction_id, InstructionError::LateControlPredecessor(name));
                    }
                }
                Some(_) => (),
            }
        }
        for &callee in &instruction.called {
            match module.computations.get(callee) {
                None => self.report(instruction_id, InstructionError::UnknownCallee(callee)),
                Some(_) if callee == module.entry => {
                    self.report(instruction_id, InstructionError::CallsEntry)
                }
                Some(called) if callee >= id => {
                    self.report(instruction_id, InstructionError::LateCallee(called.name.clone()));
                }
                Some(_) => (),
            }
        }
        if let Op::Parameter { number } = instruction.op
            && computation.parameters.get(number as usize) != Some(&instruction_id)
        {
            self.report(instruction_id, InstructionError::ParameterNumber(number));
        }
        self.errors.len() == before
    }
}

/// Removes instructions all of whose predecessors are removed until none is left, or only circles are (Kahn 1962).
/// Ids that lead nowhere are not edges.
fn find_circle(module: &Module, computation: &Computation, places: &Places) -> Option<InstructionId> {
    let n = computation.instructions.len();
    let place = |id: InstructionId| {
        let at = module.instructions.is_valid(id).then(|| places[id]).flatten()?.1 as usize;
        (computation.instructions.get(at) == Some(&id)).then_some(at)
    };
    let mut successors = vec![Vec::new(); n];
    let mut waiting = vec![0usize; n];
    for (at, &id) in computation.instructions.iter().enumerate() {
        let Some(instruction) = module.instructions.get(id) else { continue };
        for before in
            instruction.operands.iter().chain(&instruction.control_predecessors).filter_map(|&p| place(p))
        {
            successors[before].push(at);
            waiting[at] += 1;
        }
    }
    let mut ready: Vec<usize> = (0..n).filter(|&at| waiting[at] == 0).collect();
    while let Some(at) = ready.pop() {
        for &next in &successors[at] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(next);
            }
        }
    }
    waiting.iter().position(|&w| w > 0).map(|at| computation.instructions[at])
}
