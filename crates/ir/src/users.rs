//! Users of each instruction: the reverse of operands, at one moment of a module.

use cranelift_entity::EntityRef;

use crate::{InstructionId, Module};

/// One operand of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Use {
    /// The instruction.
    pub user: InstructionId,
    /// The number of the operand.
    pub operand: u32,
}

/// The users of every instruction, in one dense table. Built in linear time; valid while the module is borrowed.
#[derive(Clone, Debug)]
pub struct Users {
    /// Users of instruction `i` are `users[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
    users: Vec<InstructionId>,
}

impl Users {
    /// Collects the users of every instruction that a computation lists.
    pub fn new(module: &Module) -> Users {
        let n = module.instructions.len();
        let mut starts = vec![0u32; n + 2];
        for_each_edge(module, |operand, _| starts[operand.index() + 2] += 1);
        for i in 2..n + 2 {
            starts[i] += starts[i - 1];
        }
        let mut users = vec![InstructionId::new(0); starts[n + 1] as usize];
        for_each_edge(module, |operand, user| {
            let at = &mut starts[operand.index() + 1];
            users[*at as usize] = user;
            *at += 1;
        });
        starts.truncate(n + 1);
        Users { starts, users }
    }

    /// The users of an instruction, each once, in textual order.
    pub fn of(&self, instruction: InstructionId) -> &[InstructionId] {
        let i = instruction.index();
        &self.users[self.starts[i] as usize..self.starts[i + 1] as usize]
    }
}

/// Calls `f(operand, user)` once for each distinct pair, users in textual order.
fn for_each_edge(module: &Module, mut f: impl FnMut(InstructionId, InstructionId)) {
    // An operand may repeat, as in `add(x, x)`; its last user tells whether this pair was seen.
    let mut last_user = vec![None; module.instructions.len()];
    for &user in module.computations.values().flat_map(|c| &c.instructions) {
        for &operand in &module.instructions[user].operands {
            if last_user[operand.index()].replace(user) != Some(user) {
                f(operand, user);
            }
        }
    }
}
