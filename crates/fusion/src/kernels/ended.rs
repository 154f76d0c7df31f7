//! Operations that the kernel of a product could end with.
//!
//! The kernel computes them on each element of the product before it stores that. So none of their other readers computes
//! them, and the product itself is never in memory.

use std::collections::BTreeSet;

use memplan_ir::{Arithmetic, InstructionId, Op, Opcode};
use memplan_memory::Bytes;
use memplan_rewriter::cost::{self, CostClass};
use smallvec::SmallVec;

use super::epilogues::DEPTH;
use super::limits::are_for_products;
use super::{Grouper, Usage, row_dimensions, strides};

/// Most operations between a product and the last one that its kernel computes.
pub(super) const MOST_FOLLOWED: usize = 12;

/// Whether an operation only moves elements.
pub(super) fn moves(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Bitcast | Op::Transpose { .. })
}

impl Grouper<'_> {
    /// The product whose kernel could end with an operation that takes no more bytes than its result, and that kernels use
    /// in these ways.
    pub(super) fn product_ended_by(&self, id: InstructionId, usages: &[Usage]) -> Option<Opcode> {
        let operands = self.module.instructions[id].operands.iter().copied();
        let mut ended = operands.filter(|&operand| {
            self.bytes[id] <= self.bytes[operand]
                && self.could_end_product(id, operand)
                && self.ends_by_rules(id, operand)
        });
        let adds = || strides::adds_product(self.module, self.users, id).then_some(Opcode::Dot);
        let is_followed = || self.is_led_to_by_product(id).then_some(Opcode::Dot);
        let ends_convolution = || {
            let ends = self.narrows_convolution(id) || self.ends_convolution_slowly(id, usages);
            ends.then_some(Opcode::Convolution)
        };
        let first = ended.next().map(|product| self.module.instructions[product].opcode());
        let exponentiates = || self.is_exponential_of_stored(id).then_some(Opcode::Dot);
        first.or_else(adds).or_else(is_followed).or_else(ends_convolution).or_else(exponentiates)
    }

    /// Whether the rules for the kernel of a product let it end with an operation on the product.
    fn ends_by_rules(&self, id: InstructionId, product: InstructionId) -> bool {
        let is_dot = matches!(self.module.instructions[product].op, Op::Dot(_));
        !(is_dot && self.target.fusion.dot.by_strides)
            || strides::is_followed_by_chain(self.module, self.users, product, &[id])
    }

    /// Whether operations on elements, each read by the next one alone, lead from a convolution to a conversion that takes fewer
    /// bytes, and that is compared: kernels that only ask for the sign need none of the bits that it drops.
    fn narrows_convolution(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let rules = &self.target.fusion.convolution;
        let is_compared = |&user: &InstructionId| self.module.instructions[user].opcode() == Opcode::Compare;
        rules.epilogue
            && rules.windows_outside_tiles
            && instruction.op == Op::Convert
            && self.bytes[id] < self.bytes[instruction.operands[0]]
            && self.users.of(id).iter().any(is_compared)
            && self.any_product_before(id, Opcode::Convolution, |_| false, |_, _| true)
    }

    /// Whether operations lead from a product to `id`, each read by the next one alone, and `id` takes no more bytes than the
    /// product. A conversion is such an `id` only if it takes fewer bytes than its operand. Kernels of products of batches may
    /// end with more bytes where softmax follows: libtpu stores the exponentials instead, which are as many.
    fn is_led_to_by_product(&self, id: InstructionId) -> bool {
        let op = |id: InstructionId| &self.module.instructions[id].op;
        let narrows = || self.bytes[id] < self.bytes[self.module.instructions[id].operands[0]];
        let rules = &self.target.fusion.dot;
        if !rules.epilogue
            || rules.by_strides
            || !cost::is_pointwise(self.module, id)
            || *op(id) == Op::Convert && !narrows()
        {
            return false;
        }
        self.any_product_before(id, Opcode::Dot, moves, |product, before| {
            self.bytes[id] <= self.bytes[product] || self.are_scores(id, product, before)
        })
    }

    /// Whether operations on elements, each read by the next one alone, lead from a product to `id`.
    pub(super) fn follows_product(&self, id: InstructionId) -> bool {
        self.any_product_before(id, Opcode::Dot, |op| matches!(op, Op::Reshape { .. }), |_, _| true)
    }

    /// Whether an operation slices a product, or values computed from it element by element, and the product's kernel stores
    /// the slice alone.
    pub(super) fn is_part_of_product(&self, slice: InstructionId) -> bool {
        let moves = |op: &Op| matches!(op, Op::Reshape { .. } | Op::Bitcast | Op::Slice { .. });
        self.target.fusion.dot.slices && self.any_product_before(slice, Opcode::Dot, moves, |_, _| true)
    }

    /// Whether there is a product of a kind, as asked for, from which operations on elements, or such that move them, lead to
    /// `id`, each read by the next one alone. `is_asked_for` gets the operations that were followed up to then, too.
    pub(super) fn any_product_before(
        &self,
        id: InstructionId,
        kind: Opcode,
        moves: impl Fn(&Op) -> bool,
        is_asked_for: impl Fn(InstructionId, &[InstructionId]) -> bool,
    ) -> bool {
        let is_read_once = |operand: InstructionId| self.users.of(operand).len() == 1;
        let mut before = vec![id];
        let mut n_followed = 0;
        while let Some(&at) = before.get(n_followed).filter(|_| n_followed < MOST_FOLLOWED) {
            n_followed += 1;
            for &operand in &self.module.instructions[at].operands {
                let instruction = &self.module.instructions[operand];
                if !is_read_once(operand) {
                    if instruction.opcode() == kind
                        && kind == Opcode::Dot
                        && self.could_end_product(at, operand)
                        && is_asked_for(operand, &before)
                    {
                        return true;
                    }
                    continue;
                }
                match &instruction.op {
                    _ if instruction.opcode() == kind && is_asked_for(operand, &before) => return true,
                    op if moves(op) || cost::is_pointwise(self.module, operand) => before.push(operand),
                    _ => {}
                }
            }
        }
        false
    }

    /// Whether `id` is reduced, as the scores of softmax are, and made by these operations of a product of batches. Where a
    /// product with a dimension of one element is transposed in between, they are not: libtpu transposes by reducing along the
    /// product's other dimension, and stores the product.
    fn are_scores(&self, id: InstructionId, product: InstructionId, made_by: &[InstructionId]) -> bool {
        let op = |id: InstructionId| &self.module.instructions[id].op;
        let arrays = [id, product].map(|id| self.module.shape(id).as_array());
        let (Op::Dot(dot), [Some(scores), Some(array)]) = (op(product), arrays) else { return false };
        let is_long = |&d: &i64| array.dimensions[d as usize] > 1;
        let turns = made_by.iter().any(|&at| match (op(at), self.module.shape(at).as_array()) {
            (Op::Transpose { dimensions }, Some(turned)) => {
                let long = dimensions.iter().zip(&turned.dimensions).filter(|(_, extent)| **extent > 1);
                !long.map(|(d, _)| d).is_sorted()
            }
            _ => false,
        });
        let last = scores.dimensions.iter().rposition(|&extent| extent > 1).map(|d| d as i64);
        let is_reduced_last = |&user: &InstructionId| match op(user) {
            Op::Reduce { dimensions } => Some(last.is_some_and(|last| dimensions.contains(&last))),
            _ => None,
        };
        let reduced_last = self.users.of(id).iter().find_map(is_reduced_last);
        (0..dot.dimensions.lhs_batch.len() as i64).any(|d| is_long(&d))
            && reduced_last.is_some_and(|is_last| !array.dimensions.contains(&1) || is_last != turns)
    }

    /// Whether an operand is a product whose kernel could end with the computation of `id`: everything else that is made
    /// of the product is made row by row, and read by `id` alone. Takes a bounded number of steps.
    pub(super) fn could_end_product(&self, id: InstructionId, operand: InstructionId) -> bool {
        let product = &self.module.instructions[operand];
        let rules = match product.op {
            Op::Dot(_) => &self.target.fusion.dot,
            Op::Convolution(_) => &self.target.fusion.convolution,
            _ => return false,
        };
        if !rules.epilogue || !cost::is_pointwise(self.module, id) {
            return false;
        }
        let Some(mut made) = self.made_of(operand, id) else { return false };
        made.sort_unstable_by_key(|&at| self.positions[at]);
        // Only kernels of rows go on after a maximum of scores.
        if self.target.fusion.row_block_bytes == Bytes::ZERO
            && matches!(&product.op, Op::Dot(dot) if !dot.dimensions.lhs_batch.is_empty())
            && made.iter().any(|&at| matches!(self.classes[at], CostClass::Hero(_)))
        {
            return false;
        }
        match &made[..] {
            [_] => true,
            _ if rules.prologue && matches!(product.op, Op::Dot(_)) => {
                row_dimensions::n_rows(self.module, operand, &made, &[id]).is_some()
            }
            _ => false,
        }
    }

    /// The instructions computed from a value up to `until`; `None` if there are more than a kernel with rows may have.
    fn made_of(&self, value: InstructionId, until: InstructionId) -> Option<Vec<InstructionId>> {
        let mut made = vec![value];
        let mut n_followed = 0;
        while let Some(&at) = made.get(n_followed) {
            n_followed += 1;
            let users = if at == until { &[] } else { self.users.of(at) };
            for &user in users {
                if made.contains(&user) {
                    continue;
                }
                if self.positions[user] > self.positions[until] || made.len() > self.options.rows.max_kernels
                {
                    return None;
                }
                made.push(user);
            }
        }
        Some(made.split_off(1))
    }

    /// Whether an instruction is computed from a convolution and from inputs alone, for readers that are all products, and a
    /// transcendental function is on the way: too slow to compute again in each reader.
    fn ends_convolution_slowly(&self, id: InstructionId, usages: &[Usage]) -> bool {
        let op = |id: InstructionId| &self.module.instructions[id].op;
        if !self.target.fusion.convolution.windows_outside_tiles || !are_for_products(usages) {
            return false;
        }
        let mut open = BTreeSet::from_iter([(self.positions[id], id)]);
        let mut is_slow = false;
        let mut followed: SmallVec<[InstructionId; 8]> = SmallVec::new();
        for _ in 0..MOST_FOLLOWED {
            let Some((_, last)) = open.pop_last() else { return false };
            if last != id && !cost::is_pointwise(self.module, last) {
                let is_read_alone = || self.users.of(last).iter().all(|user| followed.contains(user));
                return is_slow
                    && open.is_empty()
                    && matches!(op(last), Op::Convolution(_))
                    && is_read_alone();
            }
            followed.push(last);
            is_slow |= op(last).traits().arithmetic == Arithmetic::Transcendental;
            let large: SmallVec<[InstructionId; 4]> = self.large_arrays_read(last).collect();
            if !self
                .arrays_read(last)
                .all(|operand| large.contains(&operand) || self.is_of_inputs(operand, DEPTH))
            {
                return false;
            }
            open.extend(large.iter().map(|&operand| (self.positions[operand], operand)));
        }
        false
    }
}
