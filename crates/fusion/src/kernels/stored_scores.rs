//! Softmax whose scores and exponentials are both stored.
//!
//! One kernel of libtpu computes scores, their maxima, exponentials and sums, and stores the exponentials, or scores and maxima.
//! Either is one array. It computes them in two kernels, and both arrays exist, where
//!
//! - a row of scores is longer than [`LONGEST_ROW`], or
//! - the product of scores reads queries or keys where they are in another array: a slice of it, one head for several, or one
//!   of several heads beside each other whose elements fill all lanes. Other heads are copied first, each to a place of its
//!   own, or a product made them so ([`Grouper::is_inside_product`]).
//!
//! Seen in 0.12 on attention over 128 to 8,192 keys, with 16 to 256 elements per head.

use memplan_ir::{BinaryOp, InstructionId, Op, Opcode, UnaryOp};
use memplan_rewriter::cost;
use memplan_rewriter::views::{LANES, common_runs};
use smallvec::{SmallVec, smallvec};

use super::Grouper;
use super::ended::{MOST_FOLLOWED, moves};

/// The most scores in a row whose softmax the product's kernel computes, of 32 or of 16 bits.
const LONGEST_ROW: i64 = 4096;

impl Grouper<'_> {
    /// Whether `id` is the exponential of softmax whose scores are stored, too. Scores that are rounded, or computed otherwise
    /// from a product of numbers as wide as they are, never are: one kernel computes both.
    pub(super) fn is_exponential_of_stored(&self, id: InstructionId) -> bool {
        let instruction = |id: InstructionId| &self.module.instructions[id];
        let is_reduced = |&user: &InstructionId| matches!(instruction(user).op, Op::Reduce { .. });
        let less_maximum = |&id: &InstructionId| {
            let it = instruction(id);
            (it.op == Op::Binary(BinaryOp::Subtract)).then(|| it.operands[0])
        };
        let scores = instruction(id).operands.first().and_then(less_maximum);
        self.target.fusion.dot.windows_outside_tiles
            && instruction(id).op == Op::Unary(UnaryOp::Exponential)
            && scores.is_some_and(|scores| {
                let is_apart = |product: InstructionId, between: &[InstructionId]| {
                    let is_itself = between.iter().all(|&at| moves(&instruction(at).op));
                    (is_itself || self.widens(product)) && self.ends_before_softmax(product)
                };
                self.users.of(scores).iter().any(is_reduced)
                    && (self.ends_before_softmax(scores)
                        || self.any_product_before(scores, Opcode::Dot, moves, is_apart))
            })
    }

    /// Whether a product's numbers have more bits than those it is made of.
    fn widens(&self, product: InstructionId) -> bool {
        let bits =
            |id: InstructionId| self.module.shape(id).as_array().map(|array| array.element_type.bits());
        bits(self.module.instructions[product].operands[0]) < bits(product)
    }

    /// Whether the kernel of a product of scores ends before their softmax.
    fn ends_before_softmax(&self, product: InstructionId) -> bool {
        let instruction = &self.module.instructions[product];
        let (Op::Dot(dot), Some(scores)) = (&instruction.op, self.module.shape(product).as_array()) else {
            return false;
        };
        let of = &dot.dimensions;
        let sides = [(&of.lhs_batch, &of.lhs_contracting), (&of.rhs_batch, &of.rhs_contracting)];
        let mut read = instruction.operands.iter().zip(sides);
        !of.lhs_batch.is_empty()
            && (scores.dimensions.last().is_some_and(|&keys| keys > LONGEST_ROW)
                || read.any(|(&heads, (batches, contracted))| {
                    let rank = self.module.shape(heads).as_array().map_or(0, |heads| heads.rank());
                    self.are_read_in_place(heads, kinds(rank, batches, contracted))
                }))
    }

    /// Whether a dimension belongs to a product and is not its outermost one. A slice of one place along it is then laid out as
    /// an array of its own.
    fn is_inside_product(&self, mut id: InstructionId, mut d: usize) -> bool {
        while let Op::Transpose { dimensions } = &self.module.instructions[id].op {
            d = dimensions[d] as usize;
            id = self.module.instructions[id].operands[0];
        }
        d > 0 && matches!(self.module.instructions[id].op, Op::Dot(_))
    }

    /// Whether a product reads queries or keys where they are in another array.
    fn are_read_in_place(&self, mut heads: InstructionId, mut kinds: Kinds) -> bool {
        let extents = |id: InstructionId| self.module.shape(id).as_array().map(|array| &array.dimensions[..]);
        for _ in 0..MOST_FOLLOWED {
            let instruction = &self.module.instructions[heads];
            let Some(to) = extents(heads) else { return false };
            let is_batch = |&d: &usize| kinds[d] == Kind::Batch;
            let mut operand = instruction.operands.first().copied();
            let of = operand.and_then(extents).unwrap_or(to);
            match &instruction.op {
                Op::Slice { .. } => {
                    let is_cut = |&d: &usize| to[d] < of[d] && is_batch(&d);
                    let is_taken_out =
                        |d: usize| to[d] > 1 || !self.is_inside_product(instruction.operands[0], d);
                    return (0..to.len()).filter(is_cut).any(is_taken_out);
                }
                Op::Broadcast { dimensions } => {
                    let is_added = |d: usize| to[d] > 1 && !dimensions.contains(&(d as i64));
                    return (0..to.len()).any(|d| is_added(d) && is_batch(&d));
                }
                Op::Reshape { .. } => match before_reshape(&kinds, of, to) {
                    Some(before) => kinds = before,
                    None => return splits_lanes(&kinds, of, to),
                },
                Op::Transpose { dimensions } => {
                    let mut before = kinds.clone();
                    dimensions.iter().zip(&kinds).for_each(|(&d, &kind)| before[d as usize] = kind);
                    kinds = before;
                }
                Op::Convert => {}
                Op::Bitcast if of == to => {}
                _ if cost::is_pointwise(self.module, heads) => {
                    let is_itself = |&&operand: &&InstructionId| {
                        let op = &self.module.instructions[operand].op;
                        extents(operand) == Some(to) && !matches!(op, Op::Broadcast { .. })
                    };
                    let itself = instruction.operands.iter().find(is_itself).copied();
                    operand = itself.filter(|&of| self.users.of(of).len() == 1);
                }
                Op::Parameter { .. }
                | Op::GetTupleElement { .. }
                | Op::Gather(_)
                | Op::DynamicSlice { .. }
                | Op::DynamicUpdateSlice => return are_beside_each_other(&kinds, to),
                _ => return false,
            }
            match operand {
                Some(operand) => heads = operand,
                None => return false,
            }
        }
        false
    }
}

/// What a dimension of queries or keys is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Batch,
    /// One query or key after another, or not known.
    Row,
    Element,
}

type Kinds = SmallVec<[Kind; 6]>;

/// The kinds of the dimensions of a product's operand.
fn kinds(rank: usize, batches: &[i64], contracted: &[i64]) -> Kinds {
    let kind = |d: i64| match () {
        () if batches.contains(&d) => Kind::Batch,
        () if contracted.contains(&d) => Kind::Element,
        () => Kind::Row,
    };
    (0..rank as i64).map(kind).collect()
}

/// The kinds of the dimensions of a reshape's operand, from those of its result. `None` if the reshape splits or merges elements.
fn before_reshape(kinds: &Kinds, of: &[i64], to: &[i64]) -> Option<Kinds> {
    let mut found: Kinds = smallvec![Kind::Batch; of.len()];
    for (before, after) in common_runs(of, to)? {
        let kind_of = |&d: &i64| kinds[d as usize];
        let is_same = before.len() == 1 && after.len() == 1;
        if !is_same && after.iter().any(|d| kind_of(d) == Kind::Element) {
            return None;
        }
        let are_batches = after.iter().all(|d| kind_of(d) == Kind::Batch);
        let kind = match after[..] {
            [d] if is_same => kind_of(&d),
            _ if are_batches => Kind::Batch,
            _ => Kind::Row,
        };
        before.iter().for_each(|&d| found[d as usize] = kind);
    }
    Some(found)
}

/// Whether a reshape cuts rows into heads that fill lanes.
fn splits_lanes(kinds: &Kinds, of: &[i64], to: &[i64]) -> bool {
    let last = |extents: &[i64]| extents.iter().rposition(|&extent| extent > 1);
    let (Some(row), Some(d)) = (last(of), last(to)) else { return false };
    kinds[d] == Kind::Element && to[d] % LANES == 0 && of[row] % to[d] == 0
}

/// Whether each head fills lanes, and the next head comes before the next row.
fn are_beside_each_other(kinds: &Kinds, extents: &[i64]) -> bool {
    let mut from_minor = (0..extents.len()).rev().filter(|&d| extents[d] > 1);
    from_minor.next().is_some_and(|d| kinds[d] == Kind::Element && extents[d] % LANES == 0)
        && from_minor.next().is_some_and(|d| kinds[d] == Kind::Batch)
}
