//! `narrow-transposes`: transposes the smaller arrays around a product instead of the largest one.
//!
//! ```text
//!   s = f32[8,4,1024,4,1024] dot(q, k)                    qt = transpose(q)
//!   t = f32[8,4,4,1024,1024] transpose(s)          =>     t = f32[8,4,4,1024,1024] dot(qt, k)
//!
//!   t = f32[8,4,1024,4,1024] transpose(p)                 o = f32[8,4,4,1024,64] dot(p, v)
//!   o = f32[8,4,1024,4,64] dot(t, v)               =>     ot = transpose(o)
//! ```
//!
//! A product has its batch dimensions in any order, but rows in the order of its left operand. Where a program wants another
//! order of rows, as `jnp.einsum("btkgh,bskh->bkgts", q, k)` does, JAX transposes all scores, which are many times as large as
//! the queries. Compilers that order the operands of products for a library move all of that.
//!
//! The same numbers. Left alone: products with several readers, orders that mix rows with columns, and transposes of arrays
//! that are not the largest of the product. *Changed* means that a product has other operands.

use memplan_ir::{Dimensions, Dot, DotDimensions, DotOperand, InstructionId, Op, Shape};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const NARROW_TRANSPOSES: Sweep = Sweep {
    name: "narrow-transposes",
    description: "transpose the smaller arrays around a product instead of the largest one",
    rule: |r, id| match r.op(id) {
        _ if r.has_control_dependencies(id) => None,
        Op::Transpose { dimensions } => {
            let order = dimensions.clone();
            of_result(r, id, &order)
        }
        Op::Dot(dot) => {
            let dot = (**dot).clone();
            SIDES.into_iter().find_map(|side| of_operand(r, id, &dot, side))
        }
        _ => None,
    },
};

const SIDES: [DotOperand; 2] = [DotOperand::Lhs, DotOperand::Rhs];

/// The product that has the order of a transposed product, from transposed operands.
fn of_result(r: &mut Rewriter<'_>, id: InstructionId, order: &Dimensions) -> Option<InstructionId> {
    let product = r.operand(id, 0);
    let Op::Dot(dot) = r.op(product) else { return None };
    let mut dot = (**dot).clone();
    if r.uses(product) != 1 || r.has_control_dependencies(product) {
        return None;
    }
    let operands = SIDES.map(|side| r.operand(product, side as usize));
    let free = [free_of(r, product, &dot, SIDES[0])?, free_of(r, product, &dot, SIDES[1])?];
    let n_batch = dot.dimensions.lhs_batch.len();
    let begins = [n_batch, n_batch + free[0].len()];
    let (batch, rest) = order.split_at_checked(n_batch)?;
    let is_of = |d: i64, side: usize| (begins[side]..begins[side] + free[side].len()).contains(&(d as usize));
    let is_swapped = rest.first().is_some_and(|&d| is_of(d, 1)) && !free[0].is_empty();
    let sides = if is_swapped { [1, 0] } else { [0, 1] };
    if is_swapped {
        dot.precision.operand_precision.reverse();
    }
    let (first, second) = rest.split_at_checked(free[sides[0]].len())?;
    let are_apart = first.iter().all(|&d| is_of(d, sides[0])) && second.iter().all(|&d| is_of(d, sides[1]));
    if !are_apart || batch.iter().any(|&d| d as usize >= n_batch) {
        return None;
    }
    let mut parts = Vec::with_capacity(2);
    let mut moved = 0u64;
    for (side, wanted) in [(sides[0], first), (sides[1], second)] {
        let wanted: Dimensions = wanted.iter().map(|&d| free[side][d as usize - begins[side]]).collect();
        let own = |dimensions: &Dimensions| -> Dimensions {
            batch.iter().map(|&d| dimensions[d as usize]).collect()
        };
        let batch = own(dot.dimensions.batch(SIDES[side]));
        let contracting = dot.dimensions.contracting(SIDES[side]).clone();
        if !wanted.is_sorted() {
            moved = moved.checked_add(bytes(r, operands[side])?)?;
        }
        parts.push(Part { operand: operands[side], batch, wanted, contracting });
    }
    // Swapping operands alone is the compiler's business.
    if moved == 0 || moved >= bytes(r, product)? {
        return None;
    }
    let [left, right] = <[Part; 2]>::try_from(parts).ok()?;
    let (left, right) = (left.in_order(r)?, right.in_order(r)?);
    multiply(r, id, dot, left, right)
}

/// An operand, what each of its dimensions is, and the order in which its rows or columns are wanted.
struct Part {
    operand: InstructionId,
    batch: Dimensions,
    wanted: Dimensions,
    contracting: Dimensions,
}

impl Part {
    /// The operand with its rows in order.
    fn in_order(self, r: &mut Rewriter<'_>) -> Option<Part> {
        if self.wanted.is_sorted() {
            return Some(self);
        }
        let order: Dimensions =
            self.batch.iter().chain(&self.wanted).chain(&self.contracting).copied().collect();
        let operand = r.transposed(self.operand, &order)?;
        let mut counted = 0..order.len() as i64;
        let mut next = |dimensions: &Dimensions| counted.by_ref().take(dimensions.len()).collect();
        let (batch, wanted) = (next(&self.batch), next(&self.wanted));
        Some(Part { operand, batch, wanted, contracting: next(&self.contracting) })
    }
}

/// A product with the shape of an instruction.
fn multiply(
    r: &mut Rewriter<'_>,
    like: InstructionId,
    dot: Dot,
    left: Part,
    right: Part,
) -> Option<InstructionId> {
    let array = r.array(like)?;
    let shape = Shape::array(array.element_type, array.dimensions.iter().copied());
    let dimensions = DotDimensions {
        lhs_batch: left.batch,
        rhs_batch: right.batch,
        lhs_contracting: left.contracting,
        rhs_contracting: right.contracting,
    };
    let operands = [left.operand, right.operand];
    Some(r.emit(Op::Dot(Box::new(Dot { dimensions, ..dot })), operands, shape))
}

/// Multiplies a transposed operand as it was before, and transposes the product instead, if that operand is the largest array.
fn of_operand(r: &mut Rewriter<'_>, id: InstructionId, dot: &Dot, side: DotOperand) -> Option<InstructionId> {
    let at = side as usize;
    let transposed = r.operand(id, at);
    let Op::Transpose { dimensions: order } = r.op(transposed) else { return None };
    let order = order.clone();
    let most = bytes(r, transposed)?;
    if most <= bytes(r, id)? || most <= bytes(r, r.operand(id, 1 - at))? {
        return None;
    }
    let before = r.operand(transposed, 0);
    let moved =
        |dimensions: &Dimensions| -> Dimensions { dimensions.iter().map(|&d| order[d as usize]).collect() };
    let free = moved(&free_of(r, id, dot, side)?);
    let mut sorted = free.clone();
    sorted.sort_unstable();
    let mut numbers = dot.dimensions.clone();
    let (batch, contracting) = match side {
        DotOperand::Lhs => (&mut numbers.lhs_batch, &mut numbers.lhs_contracting),
        DotOperand::Rhs => (&mut numbers.rhs_batch, &mut numbers.rhs_contracting),
    };
    (*batch, *contracting) = (moved(batch), moved(contracting));

    // Where the product has each dimension of the result.
    let rank = r.array(id)?.rank();
    let begin = match side {
        DotOperand::Lhs => dot.dimensions.lhs_batch.len(),
        DotOperand::Rhs => rank - free.len(),
    };
    let mut places: Dimensions = (0..rank as i64).collect();
    for (i, d) in free.iter().enumerate() {
        places[begin + i] = (begin + sorted.iter().position(|other| other == d)?) as i64;
    }
    let result = r.array(id)?;
    let mut extents = result.dimensions.clone();
    for (i, &place) in places.iter().enumerate() {
        extents[place as usize] = result.dimensions[i];
    }
    let shape = Shape::array(result.element_type, extents);
    let mut operands = [r.operand(id, 0), r.operand(id, 1)];
    operands[at] = before;
    let product = r.emit(Op::Dot(Box::new(Dot { dimensions: numbers, ..dot.clone() })), operands, shape);
    r.transposed(product, &places)
}

fn free_of(r: &Rewriter<'_>, product: InstructionId, dot: &Dot, side: DotOperand) -> Option<Dimensions> {
    Some(dot.dimensions.free(side, r.array(r.operand(product, side as usize))?.rank()))
}

fn bytes(r: &Rewriter<'_>, id: InstructionId) -> Option<u64> {
    r.array(id)?.dense_bytes()
}
