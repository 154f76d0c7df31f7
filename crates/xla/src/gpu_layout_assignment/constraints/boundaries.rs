//! Constraints that cross the boundaries of loops and conditionals.

use memplan_ir::{ComputationId, InstructionId, Op};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::orders::{Leaves, Order};
use super::Assignment;

/// Leaves that have to be in one order.
pub(super) struct Boundary {
    buffers: Vec<usize>,
    order: Order,
    is_loop: bool,
}

/// Who decides the order of what is the same at a loop: each asks where those before have nothing left to ask for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Decided {
    /// What is inside, and what comes after it.
    Within,
    /// What it begins with, too, if nothing else reads that and no loop made it.
    Before,
    /// What an earlier loop made, too.
    ByLoops,
}

impl Decided {
    pub(super) const ALL: [Decided; 3] = [Decided::Within, Decided::Before, Decided::ByLoops];
}

impl Assignment<'_> {
    /// Notes which buffers are at which boundaries; each may have something to ask for.
    pub(super) fn open_boundaries(&mut self) {
        self.callers_at = vec![SmallVec::new(); self.buffers.len()];
        for (number, &caller) in self.callers.iter().enumerate() {
            for value in self.same_values(caller).into_iter().flatten() {
                self.leaves[value].iter().for_each(|&buffer| self.callers_at[buffer].push(number));
            }
            self.open.iter_mut().for_each(|open| _ = open.insert(number));
        }
    }

    /// The first boundary with something to ask for. One without is looked at again when something is asked of its buffers.
    pub(super) fn next_boundary(&mut self, decided: Decided) -> Option<Vec<Boundary>> {
        while let Some(&number) = self.open[decided as usize].first() {
            let boundary = self.boundary(self.callers[number], decided);
            if boundary.iter().any(|leaf| self.is_new(leaf)) {
                return Some(boundary);
            }
            self.open[decided as usize].remove(&number);
        }
        None
    }

    /// Whether some of it has no order yet, or can be stored again.
    fn is_new(&self, Boundary { buffers, order, is_loop }: &Boundary) -> bool {
        buffers.iter().enumerate().any(|(number, &buffer)| match &self.buffers[buffer].asked {
            Some(asked) => {
                number == 1 && *is_loop && asked.orders[0] != *order && !asked.strength.is_mandatory
            }
            None => self.buffers[buffer].rank > 1,
        })
    }

    pub(super) fn ask_across(&mut self, Boundary { buffers, order, is_loop }: Boundary) {
        for (number, buffer) in buffers.into_iter().enumerate() {
            match &self.buffers[buffer].asked {
                // What a loop begins with is stored again.
                Some(asked) if asked.orders[0] != order => {
                    if number == 1 && is_loop && !asked.strength.is_mandatory {
                        self.ask_buffer(buffer, &order, true, true, 1);
                    }
                }
                _ => self.ask_buffer(buffer, &order, false, true, 0),
            }
        }
    }

    /// Values that are the same at a loop or conditional.
    fn same_values(&self, id: InstructionId) -> Vec<Vec<InstructionId>> {
        let instruction = &self.module.instructions[id];
        let parameter = |computation: &ComputationId| self.module.computations[*computation].parameters[0];
        let root = |computation: &ComputationId| self.module.computations[*computation].root;
        if instruction.op == Op::While {
            let [body, condition] = [&instruction.called[0], &instruction.called[1]];
            return vec![vec![
                parameter(body),
                instruction.operands[0],
                parameter(condition),
                root(body),
                id,
            ]];
        }
        let branches = instruction.called.iter();
        let given = branches.clone().zip(&instruction.operands[1..]);
        let given = given.map(|(branch, &operand)| vec![parameter(branch), operand]);
        given.chain([branches.map(root).chain([id]).collect()]).collect()
    }

    /// The leaves that are the same at a loop or conditional, with the order of the first that has one.
    fn boundary(&self, id: InstructionId, decided: Decided) -> Vec<Boundary> {
        let is_loop = self.module.instructions[id].op == Op::While;
        let mut boundaries = Vec::new();
        for values in self.same_values(id) {
            for leaf in 0..self.leaves[values[0]].len() {
                let buffers: Vec<usize> = values.iter().map(|&value| self.leaves[value][leaf]).collect();
                let decides = |&(number, &buffer): &(usize, &usize)| {
                    let is_made_by_loop = || self.module.shape(self.buffers[buffer].instruction).is_tuple();
                    number != 1
                        || decided >= Decided::Before
                            && self.is_only_passed_on(buffer)
                            && (decided == Decided::ByLoops || !is_made_by_loop())
                };
                let deciding = buffers.iter().enumerate().filter(decides);
                let mut known = deciding.filter_map(|(_, &buffer)| self.buffers[buffer].asked.as_ref());
                if let Some(order) = known.next().map(|asked| asked.orders[0].clone()) {
                    boundaries.push(Boundary { buffers, order, is_loop });
                }
            }
        }
        boundaries
    }

    /// Whether nothing but loops reads a value.
    fn is_only_passed_on(&self, buffer: usize) -> bool {
        let users = self.buffers[buffer].names.iter().flat_map(|&name| self.users.of(name));
        users.into_iter().all(|&user| self.module.instructions[user].op == Op::Tuple)
    }

    /// Binds callers to the orders inside; returns those of results.
    pub(super) fn agree_with_callees(&mut self) -> FxHashMap<ComputationId, Leaves> {
        let mut results = FxHashMap::default();
        for id in self.callers.clone() {
            let instruction = &self.module.instructions[id];
            let parameter = |computation: ComputationId| self.module.computations[computation].parameters[0];
            if instruction.op == Op::While {
                let [body, condition] = [instruction.called[0], instruction.called[1]];
                let state = self.found(parameter(body));
                self.ask_instruction(parameter(condition), &state);
                self.ask_operand(id, 0, &state, true, true, 0);
                self.ask_instruction(id, &state);
                results.insert(body, state);
                continue;
            }
            let result = self.found(id);
            for (number, &branch) in instruction.called.iter().enumerate() {
                let given = self.found(parameter(branch));
                self.ask_operand(id, number + 1, &given, true, true, 0);
                results.insert(branch, result.clone());
            }
        }
        results
    }
}
