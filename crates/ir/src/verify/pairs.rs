//! Operations in two or more parts: every start needs a done.

use rustc_hash::FxHashMap;

use crate::{ComputationId, Effect, Instruction, InstructionId, Op, Opcode, SecondaryMap};

use super::{InstructionError, Verifier};

impl<'a> Verifier<'a> {
    pub(super) fn check_pairs(&mut self) {
        let module = self.module;
        let uses = self.count_uses();
        let mut wrapped: FxHashMap<ComputationId, InstructionId> = FxHashMap::default();
        let mut host_transfers: FxHashMap<i64, InstructionId> = FxHashMap::default();
        for (id, instruction) in self.sound_instructions() {
            self.check_started(id, instruction, uses[id]);
            self.check_done(id, instruction);
            self.check_threads(id, instruction);
            if let Op::Send(transfer) | Op::Recv(transfer) = &instruction.op
                && let (true, Some(channel)) = (transfer.is_host_transfer, transfer.channel_id)
            {
                let first = *host_transfers.entry(channel).or_insert(id);
                if !self.is_same_transfer(first, id) {
                    self.report(id, InstructionError::HostChannel(channel));
                }
            }
            if let (Op::AsyncStart(_), Some(&computation)) = (&instruction.op, instruction.called.first())
                && wrapped.insert(computation, id).is_some()
            {
                let name = module.computations[computation].name.clone();
                self.report(id, InstructionError::WrappedTwice(name));
            }
        }
    }

    /// Whether two transfers with the host do the same, with other data. Attributes name the one whom they meet there.
    fn is_same_transfer(&self, a: InstructionId, b: InstructionId) -> bool {
        let shapes =
            |id: InstructionId| self.module.instructions[id].operands.iter().map(|&o| self.module.shape(o));
        let (first, second) = (&self.module.instructions[a], &self.module.instructions[b]);
        let attributes = |instruction: &'a Instruction| {
            let extras = instruction.extras.as_deref().map(|extras| &extras.frontend_attributes);
            extras.filter(|attributes| !attributes.is_empty())
        };
        first.op == second.op
            && first.shape == second.shape
            && shapes(a).eq(shapes(b))
            && attributes(first) == attributes(second)
    }

    /// The number of users of every instruction, broken ones included, and the last of them.
    fn count_uses(&self) -> SecondaryMap<InstructionId, (usize, Option<InstructionId>)> {
        let module = self.module;
        let mut uses = SecondaryMap::with_capacity(module.instructions.len());
        let listed = module.computations.values().flat_map(|computation| &computation.instructions);
        // This custom call only orders things.
        let is_order = |id: InstructionId| matches!(&module.instructions[id].op, Op::CustomCall(call) if &*call.target == "control_dep");
        for &user in listed.filter(|&&id| module.instructions.is_valid(id) && !is_order(id)) {
            let operands = &module.instructions[user].operands;
            for &operand in operands.iter().filter(|&&operand| module.instructions.is_valid(operand)) {
                let (count, last): &mut (usize, Option<InstructionId>) = &mut uses[operand];
                *count += usize::from(last.replace(user) != Some(user));
            }
        }
        uses
    }

    /// A start has one user, which is its update or done. Sends and receives may go around a loop first.
    fn check_started(
        &mut self,
        id: InstructionId,
        instruction: &Instruction,
        (count, user): (usize, Option<InstructionId>),
    ) {
        let traits = instruction.op.traits();
        if traits.next.is_empty() || traits.effect == Effect::Host {
            return;
        }
        let user = user.map(|user| self.module.instructions[user].opcode());
        let found = match (count, user) {
            (1, Some(opcode)) if traits.next.contains(&opcode) => return,
            (1, Some(opcode)) => opcode.to_string(),
            (0, _) => "none".to_string(),
            (n, _) => n.to_string(),
        };
        self.report(id, InstructionError::NotDone { expected: any_of(traits.next), found });
    }

    /// A done's operand is its start, and their common attributes agree.
    fn check_done(&mut self, id: InstructionId, instruction: &Instruction) {
        let previous = instruction.op.traits().previous;
        if previous.is_empty() {
            return;
        }
        let Some(&operand) = instruction.operands.first() else { return };
        let start = &self.module.instructions[operand];
        let differs = match (&instruction.op, &start.op) {
            (Op::SendDone(done), Op::Send(start)) | (Op::RecvDone(done), Op::Recv(start)) => {
                if done.channel_id != start.channel_id {
                    Some("channel_id")
                } else {
                    (done.is_host_transfer != start.is_host_transfer).then_some("is_host_transfer")
                }
            }
            // Around a loop the operand may be an element of a tuple, a parameter, and so on, but not the wrong start.
            (Op::SendDone(_) | Op::RecvDone(_), Op::Send(_) | Op::Recv(_)) => {
                let (expected, found) = (any_of(previous), start.opcode());
                return self.report(id, InstructionError::NotStarted { expected, found });
            }
            (Op::SendDone(_) | Op::RecvDone(_), _) => None,
            (Op::AsyncUpdate(now), Op::AsyncStart(start) | Op::AsyncUpdate(start))
            | (Op::AsyncDone(now), Op::AsyncStart(start) | Op::AsyncUpdate(start)) => {
                if now.execution_thread != start.execution_thread {
                    Some("async_execution_thread")
                } else {
                    let called = (&instruction.called, &self.module.instructions[operand].called);
                    let both = !called.0.is_empty() && !called.1.is_empty();
                    (both && called.0 != called.1).then_some("wrapped computation")
                }
            }
            _ if !previous.contains(&start.opcode()) => {
                let (expected, found) = (any_of(previous), start.opcode());
                return self.report(id, InstructionError::NotStarted { expected, found });
            }
            _ => None,
        };
        if let Some(what) = differs {
            self.report(id, InstructionError::PairDiffers(what));
        }
    }

    /// An asynchronous start names the thread of its computation; fusions, loops and branches run on their caller's
    /// thread. Computations applied to elements have no thread: XLA's verifier requires one only as an option.
    fn check_threads(&mut self, id: InstructionId, instruction: &Instruction) {
        let found = main_if_empty(match &instruction.op {
            Op::AsyncStart(start) => &start.execution_thread,
            Op::Fusion(_) | Op::While | Op::Conditional => {
                &self.module.computations[instruction.parent].execution_thread
            }
            _ => return,
        });
        for &callee in &instruction.called {
            let computation = &self.module.computations[callee];
            let expected = main_if_empty(&computation.execution_thread);
            if expected != found {
                let [expected, found] = [expected, found].map(Box::from);
                self.report(
                    id,
                    InstructionError::Thread { computation: computation.name.clone(), expected, found },
                );
            }
        }
    }
}

/// Opcodes as people list them.
fn any_of(opcodes: &[Opcode]) -> String {
    opcodes.iter().map(Opcode::to_string).collect::<Vec<_>>().join(" or ")
}

/// The main thread has two names.
fn main_if_empty(thread: &str) -> &str {
    if thread.is_empty() { "main" } else { thread }
}
