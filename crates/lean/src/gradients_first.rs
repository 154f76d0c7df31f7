//! `gradients-first`: a program, or a loop, completes sums and stores of gradients before it continues with the gradient of
//! the next layer.
//!
//! A backward half computes two products from a gradient `g`: the gradient of a weight, which is only added up or
//! stored, and the gradient of the layer before. A compiler may compute all products of the second kind first, up to
//! the end of the step, and keep the operands of the first kind until then. A barrier makes the second product wait for
//! the sum of the first:
//!
//! ```text
//!   w = dot(x, g)                            w = dot(x, g)
//!   s = add(sum, w)                          s = add(sum, w)
//!   h = dot(g, k)                     =>     b = (..) opt-barrier((s, g))
//!                                            h = dot(get-tuple-element(b), index=1, k)
//! ```
//!
//! So it does where `g` is summed up: that is the gradient of a bias.
//!
//! Likewise, if a product is the last reader of a large value, it comes before the other readers of its other operand.
//!
//! Seen in XLA's GPU compiler of jaxlib 0.12: its scheduler overlaps reads of the slices of a step with other work, and
//! orders such steps backwards. Outside of loops it takes the best of three orders for the whole program, none of which is
//! the best one for every layer.
//!
//! Left alone: scheduled modules, and values with readers other than products before they are complete. Requires inlined
//! calls. *Changed* means that there is a new barrier. Linear in the module.

use std::iter;

use memplan_ir::{Callees, ComputationId, Cursor, Insert, InstructionId, Module, Names, Op, Users};
use memplan_rewriter::loops::loops;
use memplan_rewriter::{Context, Outcome, Pass, PassError, cost};
use rustc_hash::{FxHashMap, FxHashSet};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientsFirst {
    /// Whether it changes the bodies of loops.
    pub in_loops: bool,
    /// Whether it changes the entry.
    pub in_entry: bool,
}

/// The pass for loops and the entry.
pub const GRADIENTS_FIRST: GradientsFirst = GradientsFirst { in_loops: true, in_entry: true };

impl Default for GradientsFirst {
    fn default() -> GradientsFirst {
        GRADIENTS_FIRST
    }
}

impl Pass for GradientsFirst {
    fn name(&self) -> &'static str {
        "gradients-first"
    }

    fn description(&self) -> &'static str {
        "Complete gradients of weights before going on from the values that they need"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        if module.is_scheduled {
            return Ok(Outcome::default());
        }
        let users = Users::new(module);
        let mut names = Names::new(module);
        let entry = self.in_entry.then(|| (module.entry, module.entry_computation().root));
        let bodies = if self.in_loops { loops(module, &users) } else { Vec::new() };
        let bodies = bodies.into_iter().map(|of| (of.body, of.next));
        let mut changed = false;
        for (computation, result) in entry.into_iter().chain(bodies) {
            let fences = Part::new(module, &users, computation, result).fences();
            if !fences.is_empty() {
                add(module, &users, &mut names, &fences);
                module.put_operands_first(computation);
                changed = true;
            }
        }
        Ok(changed.into())
    }
}

/// Products that wait for another one.
struct Fence {
    /// What both read.
    value: InstructionId,
    /// What must be complete before.
    complete: InstructionId,
    /// The readers of the value that wait.
    waiting: Vec<InstructionId>,
}

/// The body of a loop, or the entry.
struct Part<'a> {
    module: &'a Module,
    users: &'a Users,
    listed: &'a [InstructionId],
    /// The next state of a loop, or the results of the program.
    result: InstructionId,
    /// The most operations on a path from the state, or from the arguments.
    depths: FxHashMap<InstructionId, u32>,
    /// What a product or a computation needs.
    needed: FxHashSet<InstructionId>,
}

impl<'a> Part<'a> {
    fn new(
        module: &'a Module,
        users: &'a Users,
        computation: ComputationId,
        result: InstructionId,
    ) -> Part<'a> {
        let listed = &module.computations[computation].instructions;
        let (mut depths, mut needed) = (FxHashMap::default(), FxHashSet::default());
        for &id in listed {
            let instruction = &module.instructions[id];
            let before = instruction.operands.iter().chain(&instruction.control_predecessors);
            let depth = before.filter_map(|id| depths.get(id)).max().map_or(0, |depth: &u32| depth + 1);
            depths.insert(id, depth);
        }
        for &id in listed.iter().rev() {
            let instruction = &module.instructions[id];
            let goes_on = instruction.op.is_contraction() || instruction.op.traits().callees == Callees::Run;
            if goes_on || needed.contains(&id) {
                needed.extend(instruction.operands.iter().copied());
            }
        }
        Part { module, users, listed, result, depths, needed }
    }

    /// The fences, those of shallow products first, and of gradients of weights: what reads a value behind several waits for
    /// all that come before, and a product that others wait for may itself wait for a gradient of a weight.
    fn fences(&self) -> Vec<Fence> {
        let mut fences: Vec<((u32, bool), Fence)> = Vec::new();
        for &first in self.listed {
            let is_last = !self.needed.contains(&first);
            let op = &self.module.instructions[first].op;
            let is_gradient = is_last && (op.is_contraction() || self.sums_to_less(first));
            let comes_first = is_gradient || op.is_contraction() && self.frees(first);
            if !comes_first {
                continue;
            }
            let complete = if is_last { self.completed_by(first) } else { first };
            let operands = self.module.instructions[first].operands.iter();
            for value in operands.flat_map(|&operand| self.moved_from(operand)) {
                let mut waiting = self.waiting_for(first, value);
                if !is_last {
                    waiting.retain(|&reader| !self.frees(self.product_of(reader)));
                }
                if !waiting.is_empty() {
                    fences.push(((self.depths[&first], !is_last), Fence { value, complete, waiting }));
                }
            }
        }
        fences.sort_by_key(|&(place, _)| place);
        fences.into_iter().map(|(_, fence)| fence).collect()
    }

    /// Whether an operation sums an array up to a smaller one: the gradient of a bias, say.
    fn sums_to_less(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let bytes = |id| self.module.shape(id).as_array().and_then(|array| array.dense_bytes());
        matches!(instruction.op, Op::Reduce { .. }) && bytes(instruction.operands[0]) > bytes(id)
    }

    /// A value, and those that have the same elements in another order, up to the one that is computed.
    fn moved_from(&self, id: InstructionId) -> impl Iterator<Item = InstructionId> {
        let before = |&id: &InstructionId| {
            let instruction = &self.module.instructions[id];
            moves(&instruction.op).then(|| instruction.operands[0])
        };
        iter::successors(Some(id), before)
    }

    /// What reads a value, or the same elements in another order.
    fn readers(&self, value: InstructionId) -> Vec<InstructionId> {
        let (mut open, mut readers) = (vec![value], Vec::new());
        while let Some(id) = open.pop() {
            let (moved, others): (Vec<InstructionId>, Vec<InstructionId>) = self
                .users
                .of(id)
                .iter()
                .copied()
                .partition(|&user| moves(&self.module.instructions[user].op));
            open.extend(moved);
            readers.extend(others);
        }
        readers
    }

    /// The readers of a value that lead to other products. Those are as deep as the first, or deeper, so they are not needed
    /// for it: waiting makes no cycle.
    fn waiting_for(&self, first: InstructionId, value: InstructionId) -> Vec<InstructionId> {
        if !self.is_computed(value) {
            return Vec::new();
        }
        let leads_on = |&reader: &InstructionId| {
            let at = self.product_of(reader);
            at != first
                && self.module.instructions[at].op.is_contraction()
                && self.needed.contains(&at)
                && self.depths[&at] >= self.depths[&first]
        };
        self.users.of(value).iter().copied().filter(leads_on).collect()
    }

    /// The product that reads what an instruction only moves; otherwise the instruction, or what its elements are moved to.
    fn product_of(&self, reader: InstructionId) -> InstructionId {
        let mut at = reader;
        while moves(&self.module.instructions[at].op) && self.users.of(at).len() == 1 {
            at = self.users.of(at)[0];
        }
        at
    }

    /// Whether an operation computes a value.
    fn is_computed(&self, value: InstructionId) -> bool {
        let op = &self.module.instructions[value].op;
        !op.is_input() && !op.only_passes_on()
    }

    /// Whether a product is the last to read a value that is larger than its result. Elementwise readers of an elementwise
    /// value do not count: compilers compute it again for them.
    fn frees(&self, product: InstructionId) -> bool {
        let bytes = |id| self.module.shape(id).as_array().and_then(|array| array.dense_bytes());
        self.module.instructions[product].operands.iter().any(|&operand| {
            let value = self.moved_from(operand).last().expect("the operand is one of them");
            let is_last = |&reader: &InstructionId| {
                reader == product
                    || self.depths[&reader] < self.depths[&product]
                    || cost::is_pointwise(self.module, value) && cost::is_pointwise(self.module, reader)
            };
            self.is_computed(value)
                && bytes(value) > bytes(product)
                && self.readers(value).iter().all(is_last)
        })
    }

    /// The last value between a product and the results that needs nothing but the product and what is there before it.
    fn completed_by(&self, product: InstructionId) -> InstructionId {
        let mut at = product;
        while let &[user] = self.users.of(at)
            && user != self.result
            && self.continues(user)
            && self.is_there_before(product, user, at)
        {
            at = user;
        }
        at
    }

    fn continues(&self, id: InstructionId) -> bool {
        let op = &self.module.instructions[id].op;
        moves(op) || matches!(op, Op::DynamicUpdateSlice) || cost::is_pointwise(self.module, id)
    }

    /// Whether all operands of an instruction but one are there before a product.
    fn is_there_before(&self, product: InstructionId, id: InstructionId, but: InstructionId) -> bool {
        let others = self.module.instructions[id].operands.iter().filter(|&&operand| operand != but);
        others.into_iter().all(|operand| self.depths[operand] < self.depths[&product])
    }
}

fn moves(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Transpose { .. } | Op::Bitcast | Op::Copy)
}

/// Lets readers of each fence's value wait behind a barrier. What reads the complete value does so behind it, too: compilers
/// drop what nothing reads there.
fn add(module: &mut Module, users: &Users, names: &mut Names, fences: &[Fence]) {
    // What stands for values by now: for all their readers, and for those that wait.
    let mut complete_now: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut value_now: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for fence in fences {
        let complete = complete_now.get(&fence.complete).copied().unwrap_or(fence.complete);
        let value = value_now.get(&fence.value).or_else(|| complete_now.get(&fence.value));
        let value = value.copied().unwrap_or(fence.value);
        let mut at = Cursor::beside(module, names, fence.value);
        let before = at.named("complete").tuple([complete, value]);
        let barrier = at.named("gradients_first").insert(Op::OptimizationBarrier, [before]);
        let [complete_behind, value_behind] = [0, 1].map(|index| at.get_tuple_element(barrier, index));
        complete_now.insert(fence.complete, complete_behind);
        value_now.insert(fence.value, value_behind);
        for &reader in users.of(fence.complete) {
            module.replace_operand(reader, complete, complete_behind);
        }
        for &reader in &fence.waiting {
            for operand in module.instructions[reader].operands.clone() {
                if operand == fence.value || operand == value {
                    module.replace_operand(reader, operand, value_behind);
                }
            }
        }
    }
}
