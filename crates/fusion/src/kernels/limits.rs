//! Whether a producer may join the kernels of its users, and the first reason against it.

use cranelift_entity::EntitySet;
use memplan_ir::{ArrayShape, BinaryOp, DotOperand, InstructionId, Module, Op, Opcode, UnaryOp};
use memplan_memory::ContractionRules;
use memplan_rewriter::cost::{self, CostClass, Hero};
use memplan_rewriter::rows::is_repetition;
use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

use super::super::report::Verdict;
use super::ended::MOST_FOLLOWED;
use super::epilogues::DEPTH;
use super::{Grouper, Kernel, KernelId, Usage, strides};

/// Columns that a kernel of nested products computes at once, of numbers of 32 bits and of fewer.
const COLUMNS_AT_ONCE: [u64; 2] = [512, 768];

/// The dimensions that tiles cover.
const TILED: usize = 2;

/// From how many multiplications an element on a kernel does not repeat a nested product. libtpu nests products that sum over
/// 1,024 numbers for up to 512 columns, over 512 for up to 1,024, and over 256 for 2,048 (56 perceptrons of two layers).
const MOST_REPEATED: u64 = 1024;

impl Grouper<'_> {
    /// Whether an instruction goes into the kernels of its users; the first reason why not.
    pub(super) fn verdict(&self, id: InstructionId, kernels: &[KernelId], usages: &[Usage]) -> Verdict {
        let check = || -> Result<(), Verdict> {
            let class = self.check_producer(id)?;
            self.check_consumers(id)?;
            if class == CostClass::Cheap && self.is_better_as_view(id, kernels) {
                return Err(Verdict::View);
            }
            for at in 0..kernels.len() {
                self.check_kernel(id, class, kernels, usages, at)?;
            }
            self.check_cost(id, kernels)
        };
        let is_view =
            || cost::moves_no_bytes(self.module, id) && id != self.root && !self.has_control_dependencies(id);
        match check() {
            Ok(()) => Verdict::Fused { kernels: kernels.len() },
            Err(_) if is_view() => Verdict::View,
            Err(reason) => reason,
        }
    }

    /// Whether the operation fits into kernels at all.
    pub(super) fn check_producer(&self, id: InstructionId) -> Result<CostClass, Verdict> {
        let class = self.classes[id];
        if matches!(class, CostClass::Free | CostClass::Opaque) {
            return Err(Verdict::Producer(self.module.instructions[id].opcode()));
        }
        let is_gather = matches!(self.module.instructions[id].op, Op::Gather(_));
        if is_gather && !self.target.fusion.gather_prologue {
            return Err(Verdict::Producer(Opcode::Gather));
        }
        if self.is_spread(id) && !self.target.fusion.pad_prologue {
            return Err(Verdict::Producer(Opcode::Pad));
        }
        if self.is_apart(id) || self.is_strided_piece(id) {
            return Err(Verdict::Producer(self.module.instructions[id].opcode()));
        }
        if id == self.root {
            return Err(Verdict::Result);
        }
        if self.has_control_dependencies(id) {
            return Err(Verdict::Control);
        }
        let is_view = |&user: &InstructionId| cost::moves_no_bytes(self.module, user);
        if self.moves_sums(id) && !self.users.of(id).iter().all(is_view) || self.turns_summands(id) {
            return Err(Verdict::Producer(Opcode::Reshape));
        }
        let is_padded = || self.is_padding_copy(id) && !self.reads_smaller(id, DEPTH);
        if is_padded() || self.is_compacting_copy(id) && self.is_computed_from_sums(id) {
            return Err(Verdict::Padded);
        }
        Ok(class)
    }

    /// Whether an instruction pads between elements.
    fn is_spread(&self, id: InstructionId) -> bool {
        match &self.module.instructions[id].op {
            Op::Pad { dimensions } => dimensions.iter().any(|of| of.interior > 0),
            _ => false,
        }
    }

    /// Whether an instruction computes running sums along a dimension.
    pub(super) fn is_running_sum(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let array = instruction.operands.first().and_then(|&operand| self.module.shape(operand).as_array());
        match (&instruction.op, array) {
            (Op::ReduceWindow(window), Some(array)) => {
                window.dimensions.iter().zip(&array.dimensions).any(|(d, &extent)| d.is_running(extent))
            }
            _ => false,
        }
    }

    /// Whether a value is a running sum, a scatter's sum that begins with one number everywhere, or computed from either element
    /// by element.
    pub(super) fn is_computed_from_sums(&self, id: InstructionId) -> bool {
        let mut open: SmallVec<[InstructionId; MOST_FOLLOWED]> = smallvec![id];
        let mut n_followed = 0;
        while let Some(&at) = open.get(n_followed) {
            let instruction = &self.module.instructions[at];
            n_followed += 1;
            match &instruction.op {
                Op::Scatter(_) if self.arrays_read(instruction.operands[0]).next().is_none() => continue,
                Op::ReduceWindow(_) if self.is_running_sum(at) => continue,
                op if !cost::is_pointwise(self.module, at) && *op != Op::Copy => return false,
                _ => {}
            }
            let read: SmallVec<[InstructionId; 4]> = self.large_arrays_read(at).collect();
            let new: SmallVec<[InstructionId; 4]> =
                read.iter().copied().filter(|operand| !open.contains(operand)).collect();
            open.extend(new);
            if read.is_empty() || open.len() > MOST_FOLLOWED {
                return false;
            }
        }
        true
    }

    /// Whether every user is in a kernel, and reads the value in a way that kernels can.
    pub(super) fn check_consumers(&self, id: InstructionId) -> Result<(), Verdict> {
        let users = self.users.of(id);
        if users.is_empty() {
            return Err(Verdict::Result);
        }
        for &user in users {
            let instruction = &self.module.instructions[user];
            let opcode = instruction.opcode();
            if self.kernels_of[user].is_empty() {
                return Err(Verdict::Consumer(opcode));
            }
            if self.repeats_too_often(user) && !cost::moves_no_bytes(self.module, id) {
                return Err(Verdict::Prologue(opcode));
            }
            if self.updated_operands(user).contains(&id) {
                return Err(Verdict::UpdatedInPlace(opcode));
            }
            if self.moves_sums(user) || self.is_apart(user) {
                return Err(Verdict::Consumer(opcode));
            }
            if (self.is_compacting_copy(user) || self.is_copied_alone(user))
                && self.arrays_read(id).next().is_some()
            {
                return Err(Verdict::Padded);
            }
            let rules = &self.target.fusion;
            let has_inputs = || self.arrays_read(id).next().is_some();
            let is_in_memory = match opcode {
                Opcode::Gather if !rules.gather_prologue => {
                    instruction.operands[0] == id || instruction.operands[1] == id && has_inputs()
                }
                Opcode::Scatter => {
                    let n_updated = instruction.operands.len() / 2;
                    !rules.gather_prologue
                        && (instruction.operands[n_updated] == id && has_inputs()
                            || instruction.operands[n_updated + 1..].contains(&id))
                }
                Opcode::Pad => !rules.pad_prologue && instruction.operands[0] == id,
                Opcode::Slice => self.has_strides(user, None) && has_inputs(),
                Opcode::Concatenate => !rules.pad_prologue && has_inputs(),
                _ => false,
            };
            if is_in_memory {
                return Err(Verdict::Prologue(opcode));
            }
        }
        Ok(())
    }

    /// Whether an operation takes complex numbers apart, or puts them together, outside of kernels.
    fn is_apart(&self, id: InstructionId) -> bool {
        let op = &self.module.instructions[id].op;
        self.target.fusion.complex_apart
            && matches!(op, Op::Unary(UnaryOp::Real | UnaryOp::Imag) | Op::Binary(BinaryOp::Complex))
    }

    /// Whether an instruction is a broadcast that takes too many times the bytes of its operand to compute that one along with
    /// it. The broadcast may see the operand in another shape.
    fn repeats_too_often(&self, id: InstructionId) -> bool {
        let most = self.target.fusion.max_repeated;
        let is_large = |id: InstructionId| {
            let instruction = &self.module.instructions[id];
            matches!(instruction.op, Op::Broadcast { .. })
                && self.bytes[id] > self.bytes[instruction.operands[0]].saturating_mul(most)
        };
        let is_view = matches!(self.module.instructions[id].op, Op::Reshape { .. } | Op::Bitcast);
        most > 0 && (is_large(id) || is_view && self.users.of(id).iter().any(|&user| is_large(user)))
    }

    /// Whether an instruction is a slice with strides within tiles, or rounds such a slice that nothing else reads.
    fn is_strided_piece(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let is_rounded = |slice| self.has_strides(slice, Some(TILED)) && self.is_only_rounded(slice);
        match instruction.op {
            Op::Convert => is_rounded(instruction.operands[0]),
            _ => self.has_strides(id, Some(TILED)) && !self.is_only_rounded(id),
        }
    }

    /// Whether nothing reads a value but what rounds it.
    fn is_only_rounded(&self, id: InstructionId) -> bool {
        self.users.of(id).iter().all(|&user| {
            let instruction = &self.module.instructions[user];
            instruction.op == Op::Convert && self.bytes[user] < self.bytes[id]
        })
    }

    /// Whether an instruction is a slice with strides that are kept out of kernels: along the most minor dimensions of its
    /// operand, or any.
    fn has_strides(&self, id: InstructionId, of_minor: Option<usize>) -> bool {
        let instruction = &self.module.instructions[id];
        let Op::Slice { dimensions } = &instruction.op else { return false };
        let Some(sliced) = self.module.shape(instruction.operands[0]).as_array() else { return false };
        let order = sliced.minor_to_major();
        let mut asked = order.iter().take(of_minor.unwrap_or(order.len()));
        self.target.fusion.strided_slices_apart && asked.any(|&d| dimensions[d as usize].stride > 1)
    }

    pub(super) fn has_control_dependencies(&self, id: InstructionId) -> bool {
        !self.module.instructions[id].control_predecessors.is_empty()
            || self.is_control_predecessor.contains(id)
    }

    /// Whether a reshape or transpose that moves no bytes is better kept out of kernels: its operand is in memory anyway.
    fn is_better_as_view(&self, id: InstructionId, kernels: &[KernelId]) -> bool {
        if !cost::moves_no_bytes(self.module, id) {
            return false;
        }
        let operand = self.module.instructions[id].operands[0];
        match self.classes[operand] {
            CostClass::Cheap => false,
            CostClass::Free | CostClass::Opaque => !cost::is_embedded(self.module, self.target, operand),
            // An expensive operand is fused only if all its users are in one kernel, and that has no hero.
            CostClass::Hero(_) => {
                self.users.of(operand).len() > 1
                    || kernels.len() > 1
                    || self.grouping.kernels[kernels[0]].hero.is_some()
            }
        }
    }

    /// Whether one kernel, of all that would use an instruction, stays within its limits with it, and the target has a code
    /// generator for the result.
    pub(super) fn check_kernel(
        &self,
        id: InstructionId,
        class: CostClass,
        kernels: &[KernelId],
        usages: &[Usage],
        at: usize,
    ) -> Result<(), Verdict> {
        let rules = &self.target.fusion;
        let (kernel, usage, count) = (&self.grouping.kernels[kernels[at]], &usages[at], kernels.len());
        let opcode = self.module.instructions[id].opcode();
        match class {
            CostClass::Hero(hero) => {
                if count > 1 {
                    return Err(Verdict::Expensive { opcode, kernels: count });
                }
                if self.is_nested(id, hero, kernel, usage) {
                    return self.check_in_place(id, kernel);
                }
                let is_stored_in_part = || {
                    let members = &kernel.members;
                    hero == Hero::Dot
                        && rules.dot.slices
                        && strides::is_followed_by_slices(self.module, self.users, id, members)
                };
                if kernel.hero.is_some()
                    || !usage.bijective && !is_stored_in_part()
                    || usage.evaluations > 1
                    || !self.has_epilogue(hero, id)
                    || !self.stores_no_more(id, hero, kernel)
                    || !self.stores_by_rules(id, hero, kernel)
                {
                    return Err(Verdict::Epilogue(opcode));
                }
            }
            _ => {
                if self.is_copied_alone(id) && !matches!(usage.feeds, Some(Hero::Dot | Hero::Convolution)) {
                    return Err(Verdict::Producer(opcode));
                }
                if self.moves_parts_of_lanes(id) && usage.feeds == Some(Hero::Dot) {
                    return Err(Verdict::Producer(opcode));
                }
                if !self.takes_in_sums(id, kernel) {
                    return Err(Verdict::Expensive { opcode, kernels: count });
                }
                let is_twice = count > 1 || usage.evaluations > 1 || usage.reused;
                let is_for_reduction = kernel.hero.is_some_and(|(hero, kind)| {
                    kind == Hero::Reduction && self.module.instructions[hero].operands.len() == 2
                });
                let is_kept_out = count > 1 && is_for_reduction && !rules.reduce_shares;
                let is_reduction = kernel.hero.is_some_and(|(_, kind)| kind == Hero::Reduction);
                if is_reduction && !rules.reduce_transposes && self.reads_across.contains(id) {
                    return Err(Verdict::ReadsAcross);
                }
                if count > 1 && !rules.pad_prologue && self.is_sliced(id, usage) {
                    return Err(Verdict::Prologue(Opcode::Slice));
                }
                // Asked once: the answer is the same for every kernel.
                let is_end = count > 1 || rules.dot.by_strides && self.users.of(id).len() > 1;
                if (is_end && at == 0)
                    && rules.ends_products_first
                    && let Some(product) = self.product_ended_by(id, usages)
                {
                    return Err(Verdict::EndsProduct(product));
                }
                if opcode == Opcode::Slice
                    && (count > 1 || kernel.hero.is_some())
                    && self.is_part_of_product(id)
                {
                    return Err(Verdict::EndsProduct(Opcode::Dot));
                }
                if is_kept_out || is_twice && self.is_expensive(id) {
                    return Err(Verdict::Expensive { opcode, kernels: count });
                }
                if let Some(hero) = usage.feeds
                    && !(self.contraction(hero).prologue
                        && !self.pads_for_products(id, count)
                        && fits_prologue(self.module, id)
                        && self.loads_by_rules(id, hero, kernel)
                        && self.loads_no_more(id, self.contraction(hero))
                        && (!self.contraction(hero).unary_prologue || self.is_worth_again(id, usages)))
                {
                    let (hero, _) =
                        kernel.hero.expect("a member that feeds a hero is in the kernel of that hero");
                    return Err(Verdict::Prologue(self.module.instructions[hero].opcode()));
                }
            }
        }
        if kernel.members.len() >= rules.max_instructions {
            return Err(Verdict::Instructions { limit: rules.max_instructions });
        }
        if usage.evaluations > rules.max_evaluations {
            return Err(Verdict::Evaluations { evaluations: usage.evaluations });
        }
        let new = self.arrays_read(id).filter(|operand| !kernel.operands.contains(operand)).count();
        let operands = kernel.operands.len() + new - usize::from(kernel.operands.contains(&id));
        if operands > rules.max_operands {
            return Err(Verdict::Operands { operands });
        }
        self.check_in_place(id, kernel)
    }

    /// Whether the kernel of a product or reduction computes a product that it reads, element for element.
    fn is_nested(&self, id: InstructionId, hero: Hero, kernel: &Kernel, usage: &Usage) -> bool {
        let is_alone = || {
            let is_hero = |member: &&InstructionId| matches!(self.classes[**member], CostClass::Hero(_));
            kernel.members.iter().filter(is_hero).count() == 1
        };
        hero == Hero::Dot
            && self.target.fusion.dot.nested
            && matches!(kernel.hero, Some((outer, Hero::Dot | Hero::Reduction))
                if usage.indexers.iter().all(|&indexer| indexer == outer)
                    && self.is_first_operand(id, outer, kernel)
                    && self.is_seldom_repeated(id, outer))
            && self.is_loaded_in_order(id, kernel)
            && is_alone()
    }

    /// Whether a kernel repeats a product that it reads for few columns of its result.
    fn is_seldom_repeated(&self, product: InstructionId, outer: InstructionId) -> bool {
        let array = |id: InstructionId| self.module.shape(id).as_array();
        let (Op::Dot(inner), Op::Dot(dot)) =
            (&self.module.instructions[product].op, &self.module.instructions[outer].op)
        else {
            return true;
        };
        let extents = |array: &ArrayShape, of: &[i64]| -> u64 {
            of.iter().map(|&d| array.dimensions[d as usize].unsigned_abs()).fold(1, u64::saturating_mul)
        };
        let read = array(self.module.instructions[product].operands[0]);
        let weights = array(self.module.instructions[outer].operands[1]);
        let (Some(read), Some(weights)) = (read, weights) else { return true };
        let n_summed = extents(read, &inner.dimensions.lhs_contracting);
        let columns = extents(weights, &dot.dimensions.free(DotOperand::Rhs, weights.rank()));
        let at_once = COLUMNS_AT_ONCE[usize::from(weights.element_type.bits() < 32)];
        let n_repeated = columns.div_ceil(at_once).saturating_sub(1);
        n_summed.saturating_mul(n_repeated) < MOST_REPEATED
    }

    /// Whether a kernel computes only the first operand of a product from a value: it loads the second one again and again.
    fn is_first_operand(&self, id: InstructionId, product: InstructionId, kernel: &Kernel) -> bool {
        let mut open = vec![id];
        let mut seen = FxHashSet::default();
        while let Some(at) = open.pop() {
            let users = self.users.of(at).iter().filter(|user| kernel.usages.contains_key(user));
            for &user in users {
                if user == product && self.module.instructions[user].operands.get(1) == Some(&at) {
                    return false;
                }
                if user != product && seen.insert(user) {
                    open.push(user);
                }
            }
        }
        true
    }

    /// Whether the loader of a kernel finds the elements of an operation in the order in which they are in memory: the
    /// kernel does not copy them into another layout.
    fn is_loaded_in_order(&self, id: InstructionId, kernel: &Kernel) -> bool {
        let op = |id: InstructionId| &self.module.instructions[id].op;
        !self.users.of(id).iter().any(|user| *op(*user) == Op::Copy && kernel.usages.contains_key(user))
    }

    /// Whether the kernel that computes a value reads an array through a transpose that moves the last dimension of several
    /// elements: the value is that transpose, or computed element by element from one that nothing else reads. Operands were
    /// asked before.
    pub(super) fn does_read_across(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Transpose { dimensions } => {
                let last = |id: InstructionId| {
                    let array = self.module.shape(id).as_array();
                    array.and_then(|array| array.dimensions.iter().rposition(|&extent| extent != 1))
                };
                let source = instruction.operands[0];
                let moves_last = last(id).map(|at| dimensions[at] as usize) != last(source);
                moves_last && !is_repetition(&self.module.instructions[source].op)
            }
            _ => self.is_computed_of(id, &self.reads_across),
        }
    }

    /// Whether the kernel that computes a value pads an array, or puts several side by side, which is as much.
    pub(super) fn does_pad(&self, id: InstructionId) -> bool {
        matches!(self.module.instructions[id].op, Op::Pad { .. } | Op::Concatenate { .. })
            || self.is_computed_of(id, &self.pads)
    }

    /// Whether this many kernels of products would put arrays side by side, or several would pad one.
    fn pads_for_products(&self, id: InstructionId, count: usize) -> bool {
        let is_joined = || matches!(self.module.instructions[id].op, Op::Concatenate { .. });
        self.pads.contains(id) && (count > 1 || is_joined())
    }

    /// Whether a kernel reads a value that is computed from arrays only in part.
    fn is_sliced(&self, id: InstructionId, usage: &Usage) -> bool {
        let is_slice = |&at: &InstructionId| matches!(self.module.instructions[at].op, Op::Slice { .. });
        usage.indexers.iter().any(is_slice) && self.large_arrays_read(id).next().is_some()
    }

    /// Whether a value is computed element by element from one of these, which nothing else reads.
    fn is_computed_of(&self, id: InstructionId, these: &EntitySet<InstructionId>) -> bool {
        let is_only_for = |operand: InstructionId| self.users.of(operand).len() == 1;
        let operands = &self.module.instructions[id].operands;
        self.classes[id] == CostClass::Cheap
            && cost::is_pointwise(self.module, id)
            && operands.iter().any(|&operand| is_only_for(operand) && these.contains(operand))
    }

    /// A kernel that updates an array in place must not read that array, but for the very elements that it replaces.
    fn check_in_place(&self, id: InstructionId, kernel: &Kernel) -> Result<(), Verdict> {
        let Some((hero, Hero::Update)) = kernel.hero else { return Ok(()) };
        let update = &self.module.instructions[hero];
        let n_updated = match update.op {
            Op::Scatter(_) => update.operands.len() / 2,
            _ => 1,
        };
        let instruction = &self.module.instructions[id];
        let reads_updated =
            instruction.operands.iter().any(|operand| update.operands[..n_updated].contains(operand));
        let is_same_slice = || match (&update.op, &instruction.op) {
            (Op::DynamicUpdateSlice, Op::DynamicSlice { .. }) => {
                let written = self.module.shape(update.operands[1]);
                instruction.operands[1..] == update.operands[2..]
                    && self.module.shape(id).same_ignoring_layout(written)
                    && self.is_pointwise_up_to(id, update.operands[1], kernel)
            }
            _ => false,
        };
        if reads_updated && !is_same_slice() { Err(Verdict::InPlaceHazard) } else { Ok(()) }
    }

    /// Whether every path from an instruction to `top`, within the kernel of an update, is pointwise.
    fn is_pointwise_up_to(&self, id: InstructionId, top: InstructionId, kernel: &Kernel) -> bool {
        let (hero, _) = kernel.hero.expect("the kernel has an update");
        let users = self.users.of(id).iter().filter(|user| kernel.usages.contains_key(user));
        id == top
            || users.clone().all(|user| kernel.usages[user].indexers[..] == [hero])
                && users.clone().all(|&user| cost::is_pointwise(self.module, user))
    }

    fn contraction(&self, hero: Hero) -> &ContractionRules {
        match hero {
            Hero::Convolution => &self.target.fusion.convolution,
            _ => &self.target.fusion.dot,
        }
    }

    pub(super) fn has_epilogue(&self, hero: Hero, id: InstructionId) -> bool {
        match hero {
            Hero::Dot | Hero::Convolution => self.contraction(hero).epilogue,
            Hero::Reduction => {
                let is_reduce = matches!(self.module.instructions[id].op, Op::Reduce { .. });
                self.target.fusion.reduce_epilogue && is_reduce && !self.module.shape(id).is_tuple()
            }
            Hero::Update => false,
        }
    }

    /// Whether the target's kernels never compute an elementwise operation twice.
    pub(super) fn is_expensive(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let opcode = instruction.opcode();
        let width = |id| {
            self.module
                .shape(id)
                .as_array()
                .map(|array| (array.element_type.is_floating(), array.element_type.bits()))
        };
        let rounds = || match (width(id), instruction.operands.first().and_then(|&operand| width(operand))) {
            (Some((true, to)), Some((true, from))) => to < from,
            _ => false,
        };
        self.target.fusion.expensive.contains(&opcode) && (opcode != Opcode::Convert || rounds())
    }

    /// Whether kernels of dots compute a value as they load it.
    pub(super) fn may_be_loaded(&self, id: InstructionId) -> bool {
        let rules = &self.target.fusion.dot;
        rules.prologue && cost::is_pointwise(self.module, id) && self.loads_no_more(id, rules)
    }

    /// Whether the operands of an instruction take about as many bytes as its result, so that loading them instead costs no
    /// more.
    fn loads_no_more(&self, id: InstructionId, rules: &ContractionRules) -> bool {
        let bytes = |id| self.bytes[id];
        // Triton's kernels in XLA count an array twice that is read twice.
        let operands: SmallVec<[InstructionId; 4]> = match rules.by_strides {
            true => self.arrays_read(id).collect(),
            false => self.distinct_arrays_read(id),
        };
        let read = operands.into_iter().map(bytes).fold(0, u64::saturating_add);
        rules.tolerance.is_none_or(|tolerance| read <= bytes(id).saturating_add(tolerance.0))
            || rules.by_strides && (self.scales_by_row(id) || self.is_of_arguments(id))
    }

    /// Whether an operation reads only arguments that no other operation reads, or slices an argument, and only one product
    /// reads its result: weights in a narrower type, say. Triton's kernels in XLA compute it as they load, however many bytes
    /// they load for it (`IsInputWorthFusing`).
    fn is_of_arguments(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let is_slice = matches!(instruction.op, Op::Slice { .. });
        let is_argument = |&operand: &InstructionId| {
            let is_there =
                matches!(self.module.instructions[operand].op, Op::Parameter { .. } | Op::Constant(_));
            is_there && (is_slice || self.users.of(operand).len() == 1)
        };
        self.is_for_one_product(id) && instruction.operands.iter().all(is_argument)
    }

    /// Whether one product alone reads a value, in any shape.
    fn is_for_one_product(&self, mut id: InstructionId) -> bool {
        loop {
            match *self.users.of(id) {
                [user] if matches!(self.module.instructions[user].op, Op::Dot(_)) => return true,
                [user] if cost::moves_no_bytes(self.module, user) => id = user,
                _ => return false,
            }
        }
    }

    /// Whether an instruction computes its elements from two arrays of which one repeats what the caller gives: Triton's
    /// kernels in XLA take it in, however much is loaded for it.
    fn scales_by_row(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let is_given = |&operand: &InstructionId| {
            let broadcast = &self.module.instructions[operand];
            let is_broadcast = matches!(broadcast.op, Op::Broadcast { .. });
            let source = || &self.module.instructions[broadcast.operands[0]].op;
            is_broadcast && source().is_input()
        };
        instruction.operands.len() == 2
            && cost::is_pointwise(self.module, id)
            && instruction.operands.iter().any(is_given)
    }

    /// Whether an operand of a dot has the layout that its loader requires.
    fn loads_by_rules(&self, id: InstructionId, hero: Hero, kernel: &Kernel) -> bool {
        if !self.contraction(hero).by_strides {
            return true;
        }
        match self.module.instructions[id].op {
            _ if kernel.hero.is_some_and(|(dot, _)| is_complex(self.module, dot)) => false,
            Op::Iota { .. } => self.contraction(hero).counts,
            Op::Pad { .. } | Op::Gather(_) => false,
            Op::Transpose { .. } => strides::loads_stretches(self.module, self.users, id, &kernel.members),
            _ => true,
        }
    }

    /// Whether a kernel stores its product as its rules require.
    fn stores_by_rules(&self, id: InstructionId, hero: Hero, kernel: &Kernel) -> bool {
        let rules = self.contraction(hero);
        match hero {
            Hero::Dot if rules.by_strides => {
                !is_complex(self.module, id)
                    && strides::stores_stretches(self.module, self.users, id, &kernel.members)
                    && strides::is_followed_by_chain(self.module, self.users, id, &kernel.members)
            }
            Hero::Convolution if rules.windows_outside_tiles => self.lies_as_stored(id),
            Hero::Reduction => self.goes_on_with(kernel),
            _ => true,
        }
    }

    /// Whether all who read a result leave its elements where they are, within their tiles.
    fn lies_as_stored(&self, id: InstructionId) -> bool {
        let array = |id| self.module.shape(id).as_array();
        let order = |id| array(id).map(|array| (&array.dimensions, array.minor_to_major()));
        self.users.of(id).iter().all(|&user| {
            cost::moves_no_bytes(self.module, user)
                || !matches!(
                    self.module.instructions[user].op,
                    Op::Reshape { .. } | Op::Transpose { .. } | Op::Copy
                )
                || order(user) == order(id)
        })
    }

    /// Whether convolutions compute a value as they load it: its elements are computed from those of a single array, or they
    /// alone read it, and no other kernel of a product can end with it.
    fn is_worth_again(&self, id: InstructionId, usages: &[Usage]) -> bool {
        let instruction = &self.module.instructions[id];
        let ends = || instruction.operands.iter().any(|&operand| self.could_end_product(id, operand));
        !matches!(instruction.op, Op::Gather(_))
            && !self.changes_lanes(id)
            && (self.large_arrays_read(id).count() <= 1 || are_for_products(usages) && !ends())
    }

    /// Whether the result of an operation has another dimension in lanes than an input that the operation reads.
    fn changes_lanes(&self, id: InstructionId) -> bool {
        let lanes = |id: InstructionId| {
            let array = self.module.shape(id).as_array();
            array.and_then(|array| array.minor_to_major().first().copied())
        };
        let is_input = |operand: InstructionId| self.module.instructions[operand].op.is_input();
        cost::is_pointwise(self.module, id)
            && self.large_arrays_read(id).any(|operand| is_input(operand) && lanes(operand) != lanes(id))
    }

    /// The operands of an instruction that are not much smaller than its result, and do not repeat such arrays.
    pub(super) fn large_arrays_read(&self, id: InstructionId) -> impl Iterator<Item = InstructionId> {
        let count = |id| self.module.shape(id).as_array().and_then(ArrayShape::element_count).unwrap_or(0);
        let least = self.options.large_operand.of(count(id));
        self.distinct_arrays_read(id).into_iter().filter(move |&operand| {
            let mut source = operand;
            while let Op::Broadcast { .. } | Op::Convert | Op::Reshape { .. } =
                self.module.instructions[source].op
            {
                source = self.module.instructions[source].operands[0];
            }
            count(source) > least
        })
    }

    /// Whether the results of a kernel take about as many bytes as the product that it is built around.
    fn stores_no_more(&self, id: InstructionId, hero: Hero, kernel: &Kernel) -> bool {
        let bytes = |id| self.bytes[id];
        let is_product = matches!(hero, Hero::Dot | Hero::Convolution);
        let tolerance = self.contraction(hero).tolerance.filter(|_| is_product);
        let stored = kernel.roots.iter().map(|&root| bytes(root)).fold(0, u64::saturating_add);
        tolerance.is_none_or(|tolerance| stored <= bytes(id).saturating_add(tolerance.0))
            || self.contraction(hero).by_strides && self.is_only_returned_wider(id, kernel)
    }

    /// Whether a kernel makes a product wider with its last operation, and nothing reads the result but the caller: Triton's
    /// kernels in XLA store it, however many bytes it takes (`CanNotBeFusedIntoAUser`).
    fn is_only_returned_wider(&self, product: InstructionId, kernel: &Kernel) -> bool {
        let mut at = product;
        while self.bytes[at] <= self.bytes[product] {
            match self.users.of(at) {
                &[user] if kernel.usages.contains_key(&user) => at = user,
                _ => break,
            }
        }
        kernel.roots[..] == [at] && self.is_only_returned(at)
    }

    fn is_only_returned(&self, id: InstructionId) -> bool {
        let is_result =
            |user: InstructionId| user == self.root && matches!(self.module.instructions[user].op, Op::Tuple);
        id == self.root || matches!(self.users.of(id), &[user] if is_result(user))
    }

    /// The operands that an instruction overwrites: none where kernels compute the whole array anyway.
    pub(super) fn updated_operands(&self, id: InstructionId) -> &[InstructionId] {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            _ if self.classes[id] == CostClass::Cheap => &[],
            Op::DynamicUpdateSlice => &instruction.operands[..1],
            Op::Scatter(_) => &instruction.operands[..instruction.operands.len() / 2],
            _ => &[],
        }
    }
}

/// Whether all kernels that use a value multiply by it.
pub(super) fn are_for_products(usages: &[Usage]) -> bool {
    usages.iter().all(|usage| usage.feeds.is_some())
}

/// Whether an instruction makes complex numbers, which kernels with strides do not multiply.
pub(super) fn is_complex(module: &Module, id: InstructionId) -> bool {
    module.shape(id).as_array().is_some_and(|array| array.element_type.is_complex())
}

/// Whether the loader of a dot or convolution can apply an operation. It loads its operand tile by tile, so that it can
/// look up the index of each row (as kernels for mixtures of experts and sparse convolutions do), but not of each element.
fn fits_prologue(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::Reverse { .. } => false,
        Op::Gather(numbers) => {
            let operand = module.shape(instruction.operands[0]).as_array();
            let is_whole = |operand: &ArrayShape| {
                let mut sizes = numbers.slice_sizes.iter().zip(&operand.dimensions).enumerate();
                sizes.all(|(d, (size, extent))| {
                    size == extent || numbers.collapsed_slice_dims.contains(&(d as i64))
                })
            };
            numbers.start_index_map.len() == 1 && operand.is_some_and(is_whole)
        }
        _ => true,
    }
}
