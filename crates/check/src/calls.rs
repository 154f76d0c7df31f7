//! Instructions that run called computations: preconditions, overwritten bytes, and results.
//!
//! A callee was checked under the assumption that its parameters are whole in their slices. So a caller must have the
//! operands there, whole where the callee reads them. Afterwards the bytes that the callee writes at any depth are
//! lost, and the results are in the slices of the callee's root. A result that the callee only passes through keeps its
//! name: it is still the caller's value.
//!
//! A while loop runs its condition and body any number of times, so the same must hold for every next iteration:
//! initial value, parameters of condition and body, root of the body, and result share one slice, which the condition
//! does not change. State that the body passes through in place keeps its name, and so does an immediate that it passes
//! on as an equal immediate; other state is a new value after the loop, the same for any number of iterations. This is
//! the fixed point, so no iteration is needed.

use memplan_ir::{ComputationId, EntityRef, InstructionId, Op, PositionId, ShapeIndex};
use memplan_memory::{Bytes, Slice};

use crate::Violation;
use crate::bytes::Holder;
use crate::in_place;
use crate::walk::{Flight, Passing, Walk};

impl Walk<'_, '_> {
    pub(crate) fn run_call(&mut self, id: InstructionId) {
        let Some(callee) = self.callee(id, 0) else { return };
        self.check_arity(id, callee, 0);
        self.pass_operands(id, callee, 0);
        self.lose(id, callee);
        let result = self.facts().positions.root(id);
        self.bind(id, result, &[(callee, 0)]);
    }

    /// The selector is read before a branch begins. Branches are alternatives: each starts from the same bytes, and all
    /// bytes that any of them writes are lost afterwards.
    pub(crate) fn run_conditional(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let Some(&selector) = instruction.operands.first() else {
            return self.malformed(id, "it has no operands");
        };
        self.expect(id, facts.positions.root(selector));
        let n = instruction.called.len();
        let branches: Vec<_> = (0..n).filter_map(|i| Some((self.callee(id, i)?, i + 1))).collect();
        if branches.is_empty() || branches.len() < n || instruction.operands.len() != n + 1 {
            return self.malformed(id, "it needs an operand for each branch");
        }
        for &(branch, operand) in &branches {
            self.pass_operands(id, branch, operand);
        }
        for &(branch, _) in &branches {
            self.lose(id, branch);
        }
        self.bind(id, facts.positions.root(id), &branches);
    }

    pub(crate) fn run_while(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let (Some(body), Some(condition)) = (self.callee(id, 0), self.callee(id, 1)) else { return };
        let root = |i: InstructionId| facts.positions.root(i);
        let [body_in, condition_in] =
            [body, condition].map(|c| facts.module.computations[c].parameters.first().copied());
        let (Some(&init), Some(body_in), Some(condition_in)) =
            (instruction.operands.first(), body_in, condition_in)
        else {
            return self.malformed(id, "a loop has one operand, and its computations one parameter");
        };
        let body_out = facts.module.computations[body].root;
        let (init, result) = (root(init), root(id));
        for other in [condition_in, body_in, body_out].map(root) {
            if facts.pair(init, other).is_none() {
                return self.malformed(id, "the loop state has several shapes");
            }
        }
        let Some(parts) = facts.pair(init, result) else {
            return self.malformed(id, "the loop state has several shapes");
        };
        let parts: Vec<_> = parts.collect();
        // Positions of one shape count alike: part i of another instruction is i after its whole result.
        let part = |of: InstructionId, i: usize| PositionId::new(root(of).index() + i);
        for (i, &(init, result)) in parts.iter().enumerate() {
            for other in [part(condition_in, i), part(body_in, i), part(body_out, i), result] {
                self.check_moved(other, init);
            }
            self.expect(id, init);
            self.check_immediate(part(body_in, i), init);
            self.check_immediate(part(condition_in, i), init);
            self.hand_over(init);
        }
        self.lose(id, condition);
        for &(init, _) in &parts {
            self.expect(id, init);
        }
        self.lose(id, body);
        for (i, &(init, result)) in parts.iter().enumerate() {
            let (state, next) = (self.name(part(body_in, i)), self.name(part(body_out, i)));
            let kept = state == next || self.is_same_immediate(state, next);
            let name = if kept { Some(self.name(init)) } else { None };
            self.bind_part(id, result, name);
        }
    }

    /// Between start and done the called computation may run at any time: others may not write the bytes that it reads,
    /// nor read or write the bytes that it writes.
    pub(crate) fn start_call(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let Some(callee) = self.callee(id, 0) else { return };
        self.check_arity(id, callee, 0);
        for (i, &operand) in instruction.operands.iter().enumerate() {
            match facts.positions.find(id, &ShapeIndex::from([0, i as u32])) {
                Some(to) => self.pass_from(id, to, Some(facts.positions.root(operand)), Passing::OwnTables),
                None => return self.malformed(id, "part {0} of its result has no such operand"),
            }
        }
        let mut flight = Flight { start: id, reads: self.pass_operands(id, callee, 0), writes: Vec::new() };
        self.check_aliases(id);
        self.lose(id, callee);
        if let Some(summary) = self.proving.summaries.get(&callee) {
            flight.writes.extend(summary.written.slices());
        }
        let Some(result) = facts.positions.find(id, &ShapeIndex::from([1])) else {
            return self.malformed(id, "its result has no part {1}");
        };
        self.bind(id, result, &[(callee, 0)]);
        self.rename_overwritten(id);
        for (position, part) in facts.parts_of(id) {
            if self.name(position) != Holder::Nothing {
                continue;
            }
            if part.is_tuple {
                self.write_table(id, position);
                continue;
            }
            self.set_name(position, Holder::Value(position));
            match facts.slice(position) {
                Some(slice) => {
                    self.write(id, &slice, Holder::Value(position));
                    flight.writes.push(slice);
                }
                None if part.size > 0 => {
                    self.violation(Violation::Unplaced { at: facts.place(position), size: Bytes(part.size) });
                }
                None => {}
            }
        }
        self.take_off(facts.positions.root(id), flight);
    }

    /// If an asynchronous operation works in place, the part that represents its operand is its result from then on.
    fn rename_overwritten(&mut self, id: InstructionId) {
        let facts = self.facts();
        for alias in in_place::declared(&facts.module.instructions[id].op) {
            let operand = ShapeIndex::from([0, alias.operand]).join(&alias.operand_index);
            let find = |index: &ShapeIndex| facts.positions.find(id, index);
            let parts = find(&operand).zip(find(&alias.output_index));
            // That both have one structure and one place was checked with the aliases.
            for (operand, result) in parts.and_then(|(o, r)| facts.pair(o, r)).into_iter().flatten() {
                let name = self.name(result);
                self.set_name(operand, name);
            }
        }
    }

    /// A called computation that was walked.
    fn callee(&mut self, id: InstructionId, i: usize) -> Option<ComputationId> {
        let callee = self.facts().module.instructions[id].called.get(i).copied();
        let callee = callee.filter(|&c| self.proving.summaries.contains_key(&c));
        if callee.is_none() {
            self.malformed(id, "it calls too few computations");
        }
        callee
    }

    fn check_arity(&mut self, id: InstructionId, callee: ComputationId, first: usize) {
        let facts = self.facts();
        let n = facts.module.instructions[id].operands.len();
        if facts.module.computations[callee].parameters.len() + first != n {
            self.malformed(id, "it passes another number of operands than the computation has parameters");
        }
    }

    /// The callee's parameters are the operands from number `first` on: in the same place, and whole where the callee
    /// reads them. Returns the slices that it reads. An asynchronous computation is assumed to read all its operands:
    /// the start's result holds them until the operation is done.
    fn pass_operands(&mut self, id: InstructionId, callee: ComputationId, first: usize) -> Vec<Slice> {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let reads_all = matches!(instruction.op, Op::AsyncStart(_));
        let operands = &instruction.operands;
        let mut reads = Vec::new();
        for (i, &parameter) in facts.module.computations[callee].parameters.iter().enumerate() {
            let parameter = facts.positions.root(parameter);
            let operand = operands.get(first + i).map(|&o| facts.positions.root(o));
            let Some(parts) = operand.and_then(|operand| facts.pair(operand, parameter)) else {
                self.malformed(id, "an operand has another shape than the parameter");
                continue;
            };
            for (operand, parameter) in parts {
                self.check_moved(parameter, operand);
                self.check_immediate(parameter, operand);
                let is_read = match self.name(parameter) {
                    Holder::Value(definition) => self.proving.is_read[definition.index()],
                    _ => false,
                };
                if (reads_all || is_read) && self.expect(id, operand) {
                    reads.extend(facts.slice(operand));
                }
                self.hand_over(operand);
            }
        }
        reads
    }

    /// A parameter without memory is one and the same constant at every call.
    fn check_immediate(&mut self, parameter: PositionId, operand: PositionId) {
        let facts = self.facts();
        if let (Holder::Embedded(_), Holder::Embedded(constant)) = (self.name(parameter), self.name(operand))
        {
            let known = *self.proving.immediates.entry(parameter).or_insert(constant);
            if known != constant && !facts.same_constant(known, constant) {
                let size = Bytes(facts.part(parameter).size);
                self.violation(Violation::Unplaced { at: facts.place(parameter), size });
            }
        }
    }

    /// Whether two names are of one and the same constant, each the constant itself or a parameter that is one at every call.
    fn is_same_immediate(&self, a: Holder, b: Holder) -> bool {
        let constant = |name: Holder| match name {
            Holder::Embedded(at) => Some(self.proving.immediates.get(&at).copied().unwrap_or(at)),
            _ => None,
        };
        match (constant(a), constant(b)) {
            (Some(a), Some(b)) => a == b || self.facts().same_constant(a, b),
            _ => false,
        }
    }

    /// A callee that receives an operation in flight must end it. Whether its bytes are left alone until then is not
    /// checked across that boundary.
    fn hand_over(&mut self, operand: PositionId) {
        if !self.flights.is_empty()
            && let Holder::Value(name) = self.name(operand)
            && let Some(flight) = self.flights.remove(&name)
        {
            self.land(&flight);
        }
    }

    /// The bytes that a callee writes are lost to the caller.
    fn lose(&mut self, id: InstructionId, callee: ComputationId) {
        let Some(summary) = self.proving.summaries.remove(&callee) else { return };
        match self.proving.fuel.checked_sub(summary.written.slices().len()) {
            None => {
                let at = self.facts().place_of(id);
                self.violation(Violation::TooComplex { at });
                self.proving.fuel = 0;
            }
            Some(left) => {
                self.proving.fuel = left;
                for slice in summary.written.slices() {
                    self.check_not_in_flight(id, &slice);
                    self.contents.write(&slice, Holder::LeftBy(callee));
                    self.written.add(&slice);
                }
            }
        }
        self.proving.summaries.insert(callee, summary);
    }

    /// The part of the caller's result at `result` is the root of whichever callee ran. Each callee comes with the
    /// number of the operand that is its first parameter.
    fn bind(&mut self, id: InstructionId, result: PositionId, callees: &[(ComputationId, usize)]) {
        let facts = self.facts();
        let roots: Vec<PositionId> =
            callees.iter().map(|&(c, _)| facts.positions.root(facts.module.computations[c].root)).collect();
        if roots.iter().any(|&root| facts.pair(result, root).is_none()) {
            return self.malformed(id, "its result has another shape than the root of the computation");
        }
        for (i, part) in facts.positions.subtree(result).enumerate() {
            let at = |root: &PositionId| PositionId::new(root.index() + i);
            for root in &roots {
                self.check_moved(part, at(root));
            }
            let name_in = |(root, &(_, first)): (&PositionId, &(ComputationId, usize))| {
                self.name_at_call(id, first, self.name(at(root)))
            };
            let mut names = roots.iter().zip(callees).map(name_in);
            let name = names.next().flatten();
            let agree = |other: Option<Holder>| match (name, other) {
                (Some(Holder::Embedded(a)), Some(Holder::Embedded(b))) => a == b || facts.same_constant(a, b),
                (a, b) => a == b,
            };
            let name = if names.all(agree) { name } else { None };
            self.bind_part(id, part, name);
        }
    }

    /// The caller's name of a callee's value; `None` for values that the callee made.
    fn name_at_call(&self, id: InstructionId, first: usize, name: Holder) -> Option<Holder> {
        let facts = self.facts();
        let (Holder::Value(definition) | Holder::Embedded(definition)) = name else { return None };
        let instruction = facts.positions.instruction(definition);
        match &facts.module.instructions[instruction].op {
            Op::Constant(_) => Some(name),
            Op::Parameter { number } => {
                let operand = *facts.module.instructions[id].operands.get(first + *number as usize)?;
                let part = facts.positions.root(operand).index() + facts.positions.preorder(definition);
                Some(self.name(PositionId::new(part)))
            }
            _ => None,
        }
    }

    /// Gives a part of a call's result its name, a new one when it has none yet.
    fn bind_part(&mut self, id: InstructionId, part: PositionId, name: Option<Holder>) {
        let facts = self.facts();
        let slice = facts.slice(part);
        let own = Holder::Value(part);
        let name = match (name, slice) {
            _ if facts.part(part).is_tuple => {
                if let Some(slice) = slice {
                    self.contents.write(&slice, facts.table(part));
                }
                name.unwrap_or(own)
            }
            (Some(name), _) => name,
            (None, None) => {
                let size = Bytes(facts.part(part).size);
                if size > Bytes::ZERO {
                    self.violation(Violation::Unplaced { at: facts.place(part), size });
                }
                own
            }
            (None, Some(slice)) => match self.contents.first(&slice) {
                // The callee's root was whole, so results in one slice are one value.
                Holder::Value(other)
                    if facts.positions.instruction(other) == id && facts.slice(other) == Some(slice) =>
                {
                    Holder::Value(other)
                }
                _ => {
                    self.contents.write(&slice, own);
                    own
                }
            },
        };
        self.set_name(part, name);
    }
}
