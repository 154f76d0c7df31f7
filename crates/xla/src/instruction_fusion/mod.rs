//! `instruction-fusion`: fusion as XLA's CPU compiler does it, edge by edge.
//!
//! ```text
//!   e = exponential(x)     is kept: expensive, and read twice
//!   m = multiply(e, y)     is kept: read by a dot
//!   a = add(m, z)       =>   a = fusion(e, y, z), calls={ m = multiply(e, y); ROOT a = add(m, z) }
//!   d = dot(m, w)            d = dot(m, w)
//! ```
//!
//! Consumers fuse their operands, from the last instruction to the first. A cheap operand goes into one consumer even
//! if it is kept for another, so its own operands stay live. This pass exists because memplan's own fusion never does
//! that: there, all consumers compute an operand or none. Limits on code size ([`indexing`]) and on additional reads
//! ([`unfusible`]) stop fusion.
//!
//! Left alone: computations outside the control flow, existing fusions, and instructions that others wait for.
//! *Changed* means that there is a new fusion.

mod indexing;
mod rules;
mod unfusible;

use std::collections::BinaryHeap;

use cranelift_entity::{EntitySet, SecondaryMap};
use memplan_ir::{ComputationId, FusionKind, InstructionId, Module, Op, Users};
use memplan_memory::Target;
use memplan_rewriter::{Context, PassError, call_graph, cost};
use rustc_hash::FxHashSet;
use serde::Deserialize;
use smallvec::SmallVec;

use super::fusions::{self, Group};
use indexing::Indexing;

/// Limits on fusion, in addition to the rules of all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstructionFusionRules {
    /// How often the instructions of a computation may be duplicated, on average.
    pub max_duplication: usize,
    /// Concatenations of more are not fused: code looks for the right operand of each element.
    pub max_concatenated: usize,
    /// Nor are those that are at least this long in the minor-most dimension.
    pub max_minor_extent: i64,
    /// Most reductions in a kernel, before one more.
    pub max_reductions: usize,
    /// Code for a product with a matrix walks over a vector again and again: it has fewer bytes than this.
    pub max_vector_bytes: u64,
}

pass_with_rules!(
    INSTRUCTION_FUSION = InstructionFusion(InstructionFusionRules),
    "instruction-fusion",
    "fuse operands into their consumers one by one, as XLA's CPU compiler does",
    run
);

fn run(
    module: &mut Module,
    context: &Context<'_>,
    rules: &InstructionFusionRules,
) -> Result<bool, PassError> {
    let graph = call_graph(module, "instruction-fusion")?;
    let users = Users::new(module);
    let mut groups = Vec::new();
    for &computation in graph.sequential() {
        groups.extend(Fuser::new(module, context.target, rules, &users, computation).groups());
    }
    fusions::fuse(module, context, &groups, FusionKind::Loop)
}

/// Operands of an instruction, each once, without constants that are part of the code.
type Arrays = SmallVec<[InstructionId; 4]>;

/// One computation.
struct Fuser<'a> {
    module: &'a Module,
    target: &'a Target,
    rules: &'a InstructionFusionRules,
    users: &'a Users,
    root: InstructionId,
    order: Vec<InstructionId>,
    /// The place of an instruction in `order`.
    positions: SecondaryMap<InstructionId, u32>,
    /// How many instructions and kernels read an array.
    n_users: SecondaryMap<InstructionId, u32>,
    /// How many instructions read it, those in kernels counted for each.
    n_readers: SecondaryMap<InstructionId, u32>,
    /// Instructions that others must run after.
    is_awaited: EntitySet<InstructionId>,
    /// Instructions that must not be computed in only some consumers.
    is_unfusible: EntitySet<InstructionId>,
    /// Instructions without readers.
    is_dead: EntitySet<InstructionId>,
    /// How many instructions may still be duplicated.
    growth: usize,
}

/// An instruction, with the instructions fused into it.
struct Kernel {
    root: InstructionId,
    members: Vec<InstructionId>,
    /// The members' operands outside the kernel.
    operands: FxHashSet<InstructionId>,
    /// The operands whose elements may be read several times.
    reused: FxHashSet<InstructionId>,
    n_reductions: usize,
    indexing: Indexing,
}

impl<'a> Fuser<'a> {
    fn new(
        module: &'a Module,
        target: &'a Target,
        rules: &'a InstructionFusionRules,
        users: &'a Users,
        computation: ComputationId,
    ) -> Fuser<'a> {
        let order = module.post_order(computation);
        let mut fuser = Fuser {
            module,
            target,
            rules,
            users,
            root: module.computations[computation].root,
            growth: rules.max_duplication.saturating_mul(order.len()),
            order,
            positions: SecondaryMap::new(),
            n_users: SecondaryMap::new(),
            n_readers: SecondaryMap::new(),
            is_awaited: EntitySet::new(),
            is_unfusible: EntitySet::new(),
            is_dead: EntitySet::new(),
        };
        for (position, &id) in fuser.order.iter().enumerate() {
            fuser.positions[id] = position as u32;
            fuser.n_users[id] = users.of(id).len() as u32;
            fuser.n_readers[id] = fuser.n_users[id];
            let awaited = &module.instructions[id].control_predecessors;
            awaited.iter().for_each(|&before| _ = fuser.is_awaited.insert(before));
        }
        fuser.is_unfusible = unfusible::unfusible(&fuser);
        fuser
    }

    /// Kernels of two instructions or more, first in the text first.
    fn groups(mut self) -> Vec<Group> {
        let mut groups = Vec::new();
        for at in (0..self.order.len()).rev() {
            let id = self.order[at];
            if self.is_dead.contains(id) || !self.may_consume(id) {
                continue;
            }
            let mut members = self.fuse(id).members;
            if members.len() > 1 {
                members.sort_unstable_by_key(|&id| std::cmp::Reverse(self.positions[id]));
                groups.push(Group { root: id, members });
            }
        }
        groups.reverse();
        groups
    }

    /// Fuses operands into an instruction, last in the order first: all their other readers in the kernel have then
    /// been decided.
    fn fuse(&mut self, root: InstructionId) -> Kernel {
        let mut kernel = self.kernel(root);
        let mut open: BinaryHeap<(u32, InstructionId)> =
            kernel.operands.iter().map(|&id| (self.positions[id], id)).collect();
        while let Some((_, id)) = open.pop() {
            if self.is_unfusible.contains(id) || !self.may_fuse(id, &kernel) {
                continue;
            }
            for operand in self.take(id, &mut kernel) {
                open.push((self.positions[operand], operand));
            }
        }
        kernel
    }

    fn kernel(&self, root: InstructionId) -> Kernel {
        let operands = self.arrays(root);
        let reused = operands.iter().copied().filter(|&operand| rules::reuses(self.module, root, operand));
        Kernel {
            root,
            members: vec![root],
            reused: reused.collect(),
            n_reductions: usize::from(self.is_reduction(root)),
            indexing: Indexing::new(self.module, root, &operands),
            operands: operands.into_iter().collect(),
        }
    }

    /// Computes an instruction in a kernel that reads it. Hands back what the kernel did not read before.
    fn take(&mut self, id: InstructionId, kernel: &mut Kernel) -> Arrays {
        let operands = self.arrays(id);
        kernel.members.push(id);
        kernel.n_reductions += usize::from(self.is_reduction(id));
        kernel.indexing.add(self.module, id, &operands);
        kernel.operands.remove(&id);
        let is_reused = kernel.reused.remove(&id);
        let reused = |&operand: &InstructionId| is_reused || rules::reuses(self.module, id, operand);
        kernel.reused.extend(operands.iter().copied().filter(reused));
        self.n_users[id] -= 1;
        let dies = self.n_users[id] == 0;
        if dies {
            self.is_dead.insert(id);
        } else {
            self.growth = self.growth.saturating_sub(1);
        }
        let mut new = Arrays::new();
        for operand in operands {
            let is_new = kernel.operands.insert(operand);
            self.n_users[operand] += u32::from(is_new);
            self.n_users[operand] -= u32::from(dies);
            self.n_readers[operand] += u32::from(!dies);
            if is_new {
                new.push(operand);
            }
        }
        new
    }

    fn is_reduction(&self, id: InstructionId) -> bool {
        matches!(self.module.instructions[id].op, Op::Reduce { .. })
    }

    fn arrays(&self, id: InstructionId) -> Arrays {
        let operands = self.module.instructions[id].operands.iter().copied();
        let mut arrays: Arrays =
            operands.filter(|&operand| !cost::is_embedded(self.module, self.target, operand)).collect();
        arrays.sort_unstable();
        arrays.dedup();
        arrays
    }
}
