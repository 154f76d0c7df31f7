//! `softmax-rewriter-triton`: one kernel for a value, a reduction of its rows, and the operations that combine both.
//!
//! ```text
//!   m = f32[8] reduce(x), dimensions={1}, maximum
//!   b = f32[8,16] broadcast(m), dimensions={0}          =>      s = f32[8,16] fusion(x)
//!   s = f32[8,16] subtract(x, b)
//! ```
//!
//! If the result of one such diamond begins the next one (softmax, normalization), both are one kernel. It holds a row
//! at a time, so it cannot write over its operand; its result is stored, even if other kernels could compute it. The
//! kernel also includes elementwise operations that only it needs, and those that follow the result, with reductions of
//! its rows, as in variances.
//!
//! If several kernels read the result of a single diamond and all can compute it (kernels that reduce, or compute
//! element by element), XLA's fusion pass computes the diamond again in each. If one of them looks up or updates
//! elements, or multiplies the rows unchanged, the result is stored. A kernel that computes the exponentials of a
//! softmax, or deviations from a mean that several kernels read, again continues with their readers, reductions of rows
//! included, up to values with other readers. Triton has no complex numbers.
//!
//! Seen in 0.12 on softmax, logarithms of it, and normalizations, with rows of 2 to 16,384 elements; XLA reduces longer
//! rows in steps. Left alone: other reductions with other readers. *Changed* means that there is a new kernel.

use memplan_ir::{BinaryOp, FusionKind, InstructionId, Module, Op, Opcode, Users};
use memplan_rewriter::{Context, PassError, PassFn, call_graph, cost, plain_combiner};
use rustc_hash::{FxHashMap, FxHashSet};

use super::fusions::{self, Group};

/// The pass.
pub const SOFTMAX_REWRITER_TRITON: PassFn = PassFn {
    name: "softmax-rewriter-triton",
    description: "compute rows of softmax and normalization in one kernel, as XLA's GPU compiler does",
    run,
};

/// The longest row that XLA does not reduce in steps.
const MAX_ROW: i64 = 16384;

/// A limit against hostile programs.
const MAX_MEMBERS: usize = 256;

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let search = Search { module, users: &users };
    let mut groups = Vec::new();
    for &computation in call_graph(module, SOFTMAX_REWRITER_TRITON.name)?.sequential() {
        let computation = &module.computations[computation];
        let kernels = search.kernels(&computation.instructions, computation.root);
        groups.extend(kernels.into_iter().map(|kernel| {
            let all = computation.instructions.iter().rev();
            let members = all.copied().filter(|id| kernel.members.contains(id)).collect();
            Group { root: kernel.root, members }
        }));
    }
    fusions::fuse(module, context, &groups, FusionKind::Custom)
}

/// A kernel that is found.
struct Kernel {
    root: InstructionId,
    members: FxHashSet<InstructionId>,
}

/// A diamond: the value that it begins with, and the rest of it.
struct Diamond {
    producer: InstructionId,
    members: FxHashSet<InstructionId>,
}

struct Search<'a> {
    module: &'a Module,
    users: &'a Users,
}

impl Search<'_> {
    /// The kernels of a computation.
    fn kernels(&self, listed: &[InstructionId], result: InstructionId) -> Vec<Kernel> {
        // By the root.
        let mut kernels: FxHashMap<InstructionId, Kernel> = FxHashMap::default();
        let mut roots = Vec::new();
        for &root in listed {
            let Some(Diamond { producer, mut members }) = self.diamond(root) else { continue };
            if !self.is_row_major(producer) {
                continue;
            }
            // What only the diamond reads: a chain of operations, or the kernel before.
            let mut at = producer;
            while self.is_only_for(at, &members) && members.len() < MAX_MEMBERS {
                if let Some(before) = kernels.remove(&at) {
                    members.extend(before.members);
                    break;
                }
                let Some(next) = self.main_operand(at) else { break };
                members.insert(at);
                at = next;
            }
            kernels.insert(root, Kernel { root, members });
            roots.push(root);
        }
        let rooted: FxHashSet<InstructionId> = kernels.keys().copied().collect();
        let all = roots.iter().filter_map(|root| kernels.remove(root));
        let (beginnings, mut found): (Vec<Kernel>, Vec<Kernel>) =
            all.partition(|kernel| self.is_computed_again(kernel, &rooted));
        for reader in beginnings.iter().flat_map(|kernel| self.kernels_of_readers(kernel, listed, result)) {
            match found.iter_mut().find(|known| known.members.contains(&reader.root)) {
                Some(known) if known.root == reader.root => known.members.extend(reader.members),
                Some(_) => {}
                None => found.push(reader),
            }
        }
        let again: FxHashMap<_, _> =
            beginnings.into_iter().map(|kernel| (kernel.root, kernel.members)).collect();
        let mut taken: FxHashSet<InstructionId> =
            found.iter().flat_map(|kernel| &kernel.members).copied().collect();
        for kernel in &mut found {
            self.add_what_follows(kernel, result, &taken);
            self.add_what_precedes(kernel, &again);
            taken.extend(&kernel.members);
        }
        found
    }

    /// The diamond that ends at an instruction.
    fn diamond(&self, root: InstructionId) -> Option<Diamond> {
        let instruction = &self.module.instructions[root];
        let &[first, second] = instruction.operands.as_slice() else { return None };
        if first == second || !cost::is_pointwise(self.module, root) {
            return None;
        }
        [(second, first), (first, second)].into_iter().find_map(|(repeated, whole)| {
            let mut members = FxHashSet::from_iter([root]);
            let broadcast = self.up_to(repeated, &mut members, |op| matches!(op, Op::Broadcast { .. }))?;
            let reduce = self.module.instructions[broadcast].operands[0];
            let reduce = self.up_to(reduce, &mut members, |op| matches!(op, Op::Reduce { .. }))?;
            self.reduces_rows(reduce, broadcast, root).then_some(())?;
            let reduced = self.chain(self.module.instructions[reduce].operands[0]);
            let whole = self.chain(whole);
            let producer = *reduced.iter().find(|id| whole.contains(id))?;
            let before = |chain: &[InstructionId]| -> Vec<InstructionId> {
                chain.iter().copied().take_while(|&id| id != producer).collect()
            };
            members.extend(before(&reduced));
            members.extend(before(&whole));
            Some(Diamond { producer, members })
        })
    }

    /// Goes up through operations on elements that nothing else reads, up to an operation of some kind.
    fn up_to(
        &self,
        mut at: InstructionId,
        members: &mut FxHashSet<InstructionId>,
        is_end: impl Fn(&Op) -> bool,
    ) -> Option<InstructionId> {
        loop {
            if self.users.of(at).len() != 1 {
                return None;
            }
            members.insert(at);
            if is_end(&self.module.instructions[at].op) {
                return Some(at);
            }
            at = self.main_operand(at)?;
        }
    }

    /// A value, and what it is computed from, one by one, as long as nothing else reads those between.
    fn chain(&self, from: InstructionId) -> Vec<InstructionId> {
        let mut chain = vec![from];
        let mut at = from;
        while self.users.of(at).len() == 1 && chain.len() < MAX_MEMBERS {
            let Some(next) = self.main_operand(at) else { break };
            chain.push(next);
            at = next;
        }
        chain
    }

    /// Whether XLA's layout assignment leaves a value row-major, as the kernel takes it: what is computed, element by
    /// element, from a transposed array stays in the order of that one, and what only repeats values has any order.
    fn is_row_major(&self, id: InstructionId) -> bool {
        let mut seen = FxHashSet::from_iter([id]);
        let mut open = vec![id];
        let mut has_source = false;
        while let Some(id) = open.pop() {
            let instruction = &self.module.instructions[id];
            match instruction.op {
                Op::Transpose { .. } => return false,
                Op::Broadcast { .. } | Op::Iota { .. } | Op::Constant(_) => {}
                Op::Reshape { .. } | Op::Bitcast => open.push(instruction.operands[0]),
                _ if cost::is_pointwise(self.module, id) && seen.len() < MAX_MEMBERS => {
                    let new = instruction.operands.iter().copied().filter(|&operand| seen.insert(operand));
                    open.extend(new);
                }
                _ => has_source = true,
            }
        }
        has_source
    }

    /// The operand of an operation on the elements of one array; others are repeated.
    fn main_operand(&self, id: InstructionId) -> Option<InstructionId> {
        let instruction = &self.module.instructions[id];
        if !instruction.control_predecessors.is_empty() {
            return None;
        }
        if let Op::Reshape { .. } | Op::Bitcast = instruction.op {
            return instruction.operands.first().copied();
        }
        if !cost::is_pointwise(self.module, id) {
            return None;
        }
        let is_repeated =
            |id: &InstructionId| matches!(self.module.instructions[*id].op, Op::Broadcast { .. });
        let mut main = instruction.operands.iter().copied().filter(|operand| !is_repeated(operand));
        let first = main.next()?;
        main.all(|other| other == first).then_some(first)
    }

    /// Whether rows of an array as large as `root` are reduced, and each result is repeated along its row.
    fn reduces_rows(&self, reduce: InstructionId, broadcast: InstructionId, root: InstructionId) -> bool {
        let instruction = &self.module.instructions[reduce];
        let (Op::Reduce { dimensions }, &[operand, _]) = (&instruction.op, instruction.operands.as_slice())
        else {
            return false;
        };
        let Op::Broadcast { dimensions: kept } = &self.module.instructions[broadcast].op else {
            return false;
        };
        let array = |id| self.module.shape(id).as_array();
        let (Some(reduced), Some(whole)) = (array(operand), array(root)) else { return false };
        let last = reduced.rank() as i64 - 1;
        let row = reduced.dimensions.last().copied().unwrap_or(0);
        let is_row_major = reduced.layout.as_ref().is_none_or(|layout| layout.is_row_major());
        dimensions[..] == [last]
            && row <= MAX_ROW
            && is_row_major
            && whole.dimensions.last() == Some(&row)
            && !kept.contains(&(whole.rank() as i64 - 1))
            && whole.element_count() == reduced.element_count()
    }

    /// Whether all readers of a value are among these.
    fn is_only_for(&self, id: InstructionId, members: &FxHashSet<InstructionId>) -> bool {
        self.users.of(id).iter().all(|user| members.contains(user))
    }

    /// Whether a kernel is the beginning of a softmax whose rows several kernels read: XLA computes it again in each of
    /// them, so that it is none of its own. Kernels that look up or update elements cannot do that.
    fn is_computed_again(&self, kernel: &Kernel, rooted: &FxHashSet<InstructionId>) -> bool {
        let is_reduce = |&&id: &&InstructionId| matches!(self.module.instructions[id].op, Op::Reduce { .. });
        if kernel.members.iter().filter(is_reduce).count() != 1 {
            return false;
        }
        let mut seen = FxHashSet::from_iter([kernel.root]);
        // With whether several kernels read what it is computed from.
        let mut open = vec![(kernel.root, false)];
        let mut is_for_several = false;
        while let Some((id, is_of_one)) = open.pop() {
            let is_fork = self.users.of(id).len() > 1;
            is_for_several |= is_fork;
            // It is stored, so its other readers read it.
            let stores = |&user: &InstructionId| {
                matches!(self.module.instructions[user].op, Op::Dot(_) | Op::Transpose { .. } | Op::Tuple)
            };
            if is_of_one && self.users.of(id).iter().any(stores) {
                continue;
            }
            for &user in self.users.of(id) {
                let op = &self.module.instructions[user].op;
                let is_view = matches!(op, Op::Reshape { .. });
                let is_taken_in =
                    (is_view || cost::is_pointwise(self.module, user)) && !self.is_complex(user);
                let is_end = matches!(op, Op::Tuple | Op::Reduce { .. });
                if !is_taken_in && !is_end || seen.len() > MAX_MEMBERS {
                    return false;
                }
                if is_taken_in && !rooted.contains(&user) && seen.insert(user) {
                    open.push((user, is_of_one || is_fork && !is_view));
                }
            }
        }
        is_for_several
    }

    /// The kernels that compute the beginning of a softmax again: those of its sums, and those of values that are computed,
    /// row by row, of its exponentials and of what else there is, up to where something else reads them.
    fn kernels_of_readers(
        &self,
        beginning: &Kernel,
        listed: &[InstructionId],
        result: InstructionId,
    ) -> Vec<Kernel> {
        let opcode = |id: InstructionId| self.module.instructions[id].op.opcode();
        let first = match *self.users.of(beginning.root) {
            [exponential] if opcode(exponential) == Opcode::Exponential => exponential,
            [_, _, ..] if opcode(beginning.root) == Opcode::Subtract && self.has_sum(beginning) => {
                beginning.root
            }
            _ => return Vec::new(),
        };
        let is_kind_of_kernels = |id: InstructionId| {
            let instruction = &self.module.instructions[id];
            let moves_nothing = matches!(instruction.op, Op::Broadcast { .. }) || is_view(&instruction.op);
            instruction.control_predecessors.is_empty()
                && !self.is_complex(id)
                && (moves_nothing || cost::is_pointwise(self.module, id) || self.is_of_rows(id))
        };
        // What only looks at a value for other readers is no kernel's: the value is stored once for all of them.
        let mut of_kernels: FxHashSet<InstructionId> = FxHashSet::default();
        for &id in listed.iter().rev() {
            let is_for_kernels = || self.users.of(id).iter().all(|user| of_kernels.contains(user));
            if is_kind_of_kernels(id) && (!is_view(&self.module.instructions[id].op) || is_for_kernels()) {
                of_kernels.insert(id);
            }
        }
        let is_of_kernels = |id: InstructionId| of_kernels.contains(&id);
        let mut within = FxHashSet::from_iter([first]);
        let mut roots = Vec::new();
        for &id in listed {
            let operands = &self.module.instructions[id].operands;
            if !operands.iter().any(|operand| within.contains(operand)) || !is_of_kernels(id) {
                continue;
            }
            let is_sum = first != beginning.root && self.is_of_rows(id) && operands.contains(&first);
            let is_stored =
                is_sum || id == result || !self.users.of(id).iter().all(|&user| is_of_kernels(user));
            if is_stored {
                roots.push(id);
            } else {
                within.insert(id);
            }
        }
        within.extend(&beginning.members);
        let kernel = |&root: &InstructionId| {
            let mut members = FxHashSet::from_iter([root]);
            let mut open = vec![root];
            while let Some(id) = open.pop() {
                let operands = self.module.instructions[id].operands.iter().copied();
                open.extend(operands.filter(|operand| within.contains(operand) && members.insert(*operand)));
            }
            Kernel { root, members }
        };
        let kernels = roots.iter().map(kernel);
        kernels.filter(|kernel| kernel.members.len() <= MAX_MEMBERS).collect()
    }

    /// Whether an instruction makes complex numbers, which Triton has no code for.
    fn is_complex(&self, id: InstructionId) -> bool {
        self.module.shape(id).as_array().is_some_and(|array| array.element_type.is_complex())
    }

    /// Whether a kernel adds up rows.
    fn has_sum(&self, kernel: &Kernel) -> bool {
        kernel.members.iter().map(|&id| &self.module.instructions[id]).any(|instruction| {
            matches!(instruction.op, Op::Reduce { .. })
                && plain_combiner(self.module, instruction.called[0]) == Some(BinaryOp::Add)
        })
    }

    /// Whether an operation reduces the rows of an array.
    fn is_of_rows(&self, reduce: InstructionId) -> bool {
        let instruction = &self.module.instructions[reduce];
        let Op::Reduce { dimensions } = &instruction.op else { return false };
        let operand = self.module.shape(instruction.operands[0]).as_array();
        instruction.operands.len() == 2
            && operand.is_some_and(|array| dimensions[..] == [array.rank() as i64 - 1])
    }

    /// Adds operations on the elements of the result, and reductions of its rows, that nothing else reads, and that take no
    /// more bytes.
    fn add_what_follows(&self, kernel: &mut Kernel, result: InstructionId, taken: &FxHashSet<InstructionId>) {
        let bytes = |id| self.module.shape(id).as_array().and_then(|array| array.dense_bytes());
        while let &[user] = self.users.of(kernel.root) {
            let instruction = &self.module.instructions[user];
            let others = instruction.operands.iter().filter(|&&operand| operand != kernel.root);
            let is_stored = |&id: &InstructionId| {
                let op = &self.module.instructions[id].op;
                matches!(op, Op::Broadcast { .. }) || !cost::is_pointwise(self.module, id)
            };
            if kernel.root == result
                || taken.contains(&user)
                || !instruction.control_predecessors.is_empty()
                || !(cost::is_pointwise(self.module, user) || self.is_of_rows(user))
                || !others.clone().all(is_stored)
                || bytes(user) > bytes(kernel.root)
                || kernel.members.len() >= MAX_MEMBERS
            {
                return;
            }
            kernel.members.insert(user);
            kernel.root = user;
        }
    }

    /// Adds operations on elements that only the kernel reads, what it reads repeatedly, and the kernels that it computes
    /// again.
    fn add_what_precedes(
        &self,
        kernel: &mut Kernel,
        again: &FxHashMap<InstructionId, FxHashSet<InstructionId>>,
    ) {
        let mut open: Vec<InstructionId> = kernel.members.iter().copied().collect();
        open.sort_unstable();
        while let Some(member) = open.pop() {
            for &operand in &self.module.instructions[member].operands {
                let op = &self.module.instructions[operand].op;
                let is_made_anywhere = matches!(op, Op::Broadcast { .. } | Op::Iota { .. });
                let joins = is_made_anywhere
                    || again.contains_key(&operand)
                    || (cost::is_pointwise(self.module, operand) || is_view(op))
                        && self.module.instructions[operand].control_predecessors.is_empty()
                        && self.is_only_for(operand, &kernel.members);
                if joins && kernel.members.len() < MAX_MEMBERS && kernel.members.insert(operand) {
                    let with_it = again.get(&operand).into_iter().flatten().copied();
                    let mut new: Vec<InstructionId> =
                        with_it.filter(|&id| kernel.members.insert(id)).collect();
                    new.sort_unstable();
                    open.push(operand);
                    open.extend(new);
                }
            }
        }
    }
}

/// Whether an operation only looks at its operand in another shape.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Bitcast)
}
