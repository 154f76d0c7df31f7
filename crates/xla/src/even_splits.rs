//! `even-splits`: splits sums of products evenly that XLA's GPU compiler would split unevenly, and so copy the operands.
//!
//! ```text
//!   d = f32[16,500] dot(x, y), contracting {1}x{0}, over 50,000 elements
//!      =>
//!   xs = f32[16,50,1000] reshape(x)
//!   ys = f32[50,1000,500] reshape(y)
//!   parts = f32[50,16,500] dot(xs, ys), batch {1}x{0}, contracting {2}x{1}
//!   d = reduce(parts, 0), dimensions={0}
//! ```
//!
//! The compiler ([`splitk_rewriter`](crate::splitk_rewriter)) takes a power of two as the number of parts, and pads both operands
//! until they divide: it writes a copy of each. Numbers of samples, of nodes, or of words are rarely such multiples. The
//! parts are kept apart by a barrier, since the compiler would sum within the product again.
//!
//! Left alone: products that the compiler does not split, or splits without padding, such as those over several dimensions, and
//! those over a number of elements that has no suitable divisor. *Changed* means that a product was split.

use memplan_ir::{InstructionId, Module, Op, Shape};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Rewriter};

use crate::splitk_rewriter::{Cut, Product, SPLITK_REWRITER, SplitkRules, partial_products, sum_up};

/// The pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvenSplits {
    /// How the compiler splits products; `None` for the rules of the first built-in compiler that has some.
    pub rules: Option<SplitkRules>,
}

/// The pass with the rules of a built-in compiler.
pub const EVEN_SPLITS: EvenSplits = EvenSplits { rules: None };

impl Pass for EvenSplits {
    fn name(&self) -> &'static str {
        "even-splits"
    }

    fn description(&self) -> &'static str {
        "split sums of products evenly that XLA's GPU compiler would pad and split"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let rules = self.rules.unwrap_or_else(|| crate::built_in(SPLITK_REWRITER.name()));
        Ok(Rewriter::swept(module, |r, id| split(r, &rules, id)).into())
    }
}

fn split(r: &mut Rewriter<'_>, rules: &SplitkRules, id: InstructionId) -> Option<InstructionId> {
    let Op::Dot(dot) = r.op(id).clone() else { return None };
    let product = Product::new(r, id, &dot)?;
    let &[_] = dot.dimensions.lhs_contracting.as_slice() else { return None };
    if !is_padded(&product, rules) {
        return None;
    }
    let cut = Cut { which: 0, extent: product.contracted as i64, parts: even_parts(&product, rules)? as i64 };
    let partial = partial_products(r, id, *dot, &cut, product.accumulator)?;
    let shape = Shape::Array(r.array(partial)?.clone());
    let partial = r.emit(Op::OptimizationBarrier, [partial], shape);
    sum_up(r, id, partial, product.accumulator)
}

/// Whether the compiler would pad the operands of a product, or of its parts.
fn is_padded(product: &Product, rules: &SplitkRules) -> bool {
    let parts = product.best_number_of_parts(rules);
    parts > 1 && !product.contracted.is_multiple_of(parts * product.alignment())
}

/// The fastest number of parts into which the sum divides, of those near the number that the compiler would take. Parts begin at
/// multiples of 16 bytes, unless rows do not either.
fn even_parts(product: &Product, rules: &SplitkRules) -> Option<u64> {
    let meant = product.best_number_of_parts(rules);
    let whole = product.contracted;
    let is_aligned = |n: u64| n.is_multiple_of(product.alignment());
    let is_even =
        |&parts: &u64| whole.is_multiple_of(parts) && (is_aligned(whole / parts) || !is_aligned(whole));
    let candidates = (meant.div_ceil(4).max(2)..=meant * 4).filter(is_even);
    let unpadded = candidates.filter(|&parts| !is_padded(&product.in_parts(parts), rules));
    unpadded.min_by(|&a, &b| product.cost(rules, a).total_cmp(&product.cost(rules, b)))
}
