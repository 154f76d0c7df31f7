//! `split-concatenations`: products read the pieces of a concatenation, which then is never in memory.
//!
//! ```text
//!   c = f32[64,96] concatenate(a, b), dimensions={1}        a is f32[64,32], b is f32[64,64]
//!   y = f32[64,16] dot(c, w)                          =>    y = add(dot(a, w[0:32]), dot(b, w[32:96]))
//!   g = f32[96,16] dot(cᵀ, d)                         =>    g = concatenate(dot(aᵀ, d), dot(bᵀ, d))
//!   e = f32[64,96] dot(d, wᵀ)                               -
//!   f = f32[64,32] slice(e), [0:64], [0:32]           =>    f = dot(d, w[0:32]ᵀ)
//! ```
//!
//! An example are the skip connections of U-Nets: the forward half concatenates, and the backward half keeps the result
//! for the gradients of weights, besides the pieces. Convolutions are products, too.
//!
//! Sums over the concatenated dimension are added up piece by piece, and rounded once more for each piece, so products
//! whose results are narrower than f32 are left alone. Also left alone: small concatenations, those with readers other
//! than products, convolutions in groups, and slices of products that overlap. *Changed* means that some product
//! reads a piece, or makes one.

use std::ops::Range;

use memplan_ir::indexing::{IndexMap, operands_read};
use memplan_ir::{ArrayShape, BinaryOp, Insert, InstructionId, Module, Op, Shape, SliceDimension, Users};
use memplan_memory::{Bytes, Target};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Rewriter};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitConcatenations {
    /// The fewest bytes of a concatenation, or of a product of which slices are read: kernels for each piece of a smaller
    /// array take longer than its bytes.
    pub min_bytes: Bytes,
}

/// The pass for large arrays.
pub const SPLIT_CONCATENATIONS: SplitConcatenations = SplitConcatenations { min_bytes: Bytes(1 << 20) };

/// The most pieces: each is a product of its own.
const MOST_PIECES: usize = 16;

impl Pass for SplitConcatenations {
    fn name(&self) -> &'static str {
        "split-concatenations"
    }

    fn description(&self) -> &'static str {
        "Let products read the pieces of a concatenation instead of the whole"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let Found { concatenations, slices } = Found::new(module, context.target, self.min_bytes);
        if concatenations.is_empty() && slices.is_empty() {
            return Ok(Outcome::default());
        }
        let mut rewriter = Rewriter::new(module);
        rewriter.sweep(|r, id| match r.op(id) {
            Op::Slice { .. } if slices.contains(&id) => make_slice(r, id),
            _ if is_product(r.op(id)) => {
                let whole = r.operands(id).iter().position(|operand| concatenations.contains(operand))?;
                read_pieces(r, id, whole)
            }
            _ => None,
        });
        Ok(rewriter.finish().into())
    }
}

/// What is rewritten.
#[derive(Default)]
struct Found {
    /// Concatenations that only products read, which can all read the pieces.
    concatenations: FxHashSet<InstructionId>,
    /// Slices of products that nothing else reads.
    slices: FxHashSet<InstructionId>,
}

impl Found {
    fn new(module: &Module, target: &Target, min_bytes: Bytes) -> Found {
        let users = Users::new(module);
        let mut found = Found::default();
        let is_large = |id| {
            module.shape(id).as_array().is_some_and(|array| !array.is_dynamic())
                && target.size_of(module.shape(id)) >= min_bytes
                && module.instructions[id].control_predecessors.is_empty()
        };
        for (id, instruction) in module.instructions.iter().filter(|&(id, _)| is_large(id)) {
            match instruction.op {
                Op::Concatenate { dimension }
                    if (2..=MOST_PIECES).contains(&instruction.operands.len())
                        && can_read_pieces(module, &users, id, dimension as usize) =>
                {
                    found.concatenations.insert(id);
                }
                ref op if is_product(op) && can_be_made_in_slices(module, users.of(id), id) => {
                    found.slices.extend(users.of(id));
                }
                _ => {}
            }
        }
        // A product does one or the other.
        let Found { concatenations, slices } = &mut found;
        slices.retain(|&slice| {
            let product = &module.instructions[module.instructions[slice].operands[0]];
            !product.operands.iter().any(|operand| concatenations.contains(operand))
        });
        found
    }
}

/// Whether an operation is a product whose dimensions are all independent of each other.
fn is_product(op: &Op) -> bool {
    match op {
        Op::Dot(_) => true,
        Op::Convolution(convolution) => {
            convolution.feature_group_count == 1
                && convolution.batch_group_count == 1
                && convolution.sparsity.iter().all(Option::is_none)
        }
        _ => false,
    }
}

/// Whether all that read a concatenation along a dimension are products that can read its pieces.
fn can_read_pieces(module: &Module, users: &Users, id: InstructionId, dimension: usize) -> bool {
    let root = module.computations[module.instructions[id].parent].root;
    let is_divisible = |&user: &InstructionId| {
        let instruction = &module.instructions[user];
        let mut reads = (0..instruction.operands.len()).filter(|&k| instruction.operands[k] == id);
        let (Some(whole), None) = (reads.next(), reads.next()) else { return false };
        let may_add = module.shape(user).as_array().is_some_and(is_wide);
        let divided = |division: Division| division.is_of_result() || may_add;
        is_product(&instruction.op) && Division::new(module, user, whole, dimension).is_some_and(divided)
    };
    id != root && !users.of(id).is_empty() && users.of(id).iter().all(is_divisible)
}

/// Whether sums in an array of numbers may be rounded a few times more.
fn is_wide(array: &ArrayShape) -> bool {
    let element_type = array.element_type;
    element_type.is_integral() || element_type.bits() >= if element_type.is_complex() { 64 } else { 32 }
}

/// Whether nothing but slices along one dimension, none of which overlap, reads a product.
fn can_be_made_in_slices(module: &Module, users: &[InstructionId], product: InstructionId) -> bool {
    let cuts: Option<Vec<(usize, SliceDimension)>> = users.iter().map(|&user| cut(module, user)).collect();
    let Some(mut cuts) = cuts.filter(|cuts| (2..=MOST_PIECES).contains(&cuts.len())) else { return false };
    cuts.sort_unstable_by_key(|(_, part)| part.start);
    let along = cuts[0].0;
    let apart =
        |pair: &[(usize, SliceDimension)]| pair[0].0 == pair[1].0 && pair[0].1.limit <= pair[1].1.start;
    cuts.windows(2).all(apart) && Division::of_result(module, product, along).is_some()
}

/// The only dimension in which a slice is not the whole, and the part of it.
fn cut(module: &Module, id: InstructionId) -> Option<(usize, SliceDimension)> {
    let instruction = &module.instructions[id];
    let Op::Slice { dimensions } = &instruction.op else { return None };
    let extents = &module.shape(instruction.operands[0]).as_array()?.dimensions;
    let is_part = |&d: &usize| (dimensions[d].start, dimensions[d].limit) != (0, extents[d]);
    let mut parts = (0..dimensions.len()).filter(is_part);
    let (Some(d), None) = (parts.next(), parts.next()) else { return None };
    let is_dense = dimensions.iter().all(|dimension| dimension.stride == 1);
    (is_dense && instruction.control_predecessors.is_empty()).then_some((d, dimensions[d]))
}

/// A loop of a product that can be cut into pieces.
struct Division {
    /// The dimension of the result; `None` if the product sums over the loop.
    of_result: Option<usize>,
    /// The dimension of each operand that the loop runs along.
    of_operands: SmallVec<[Option<usize>; 2]>,
}

impl Division {
    /// The loop along a dimension of an operand.
    fn new(module: &Module, product: InstructionId, operand: usize, dimension: usize) -> Option<Division> {
        let maps = maps(module, product)?;
        let map = &maps[operand];
        let number = (0..map.loops.len()).find(|&number| map.dimension_along(number) == Some(dimension))?;
        Division::along(&maps, number)
    }

    /// The loop along a dimension of the result.
    fn of_result(module: &Module, product: InstructionId, dimension: usize) -> Option<Division> {
        Division::along(&maps(module, product)?, dimension)
    }

    fn along(maps: &[IndexMap], number: usize) -> Option<Division> {
        let of_operand = |map: &IndexMap| match map.dimension_along(number) {
            // One dimension, and no other that depends on it.
            Some(d) => {
                (0..map.sources.len()).all(|e| e == d || !map.sources[e].mentions(number)).then_some(Some(d))
            }
            None => (!map.mentions(number)).then_some(None),
        };
        let of_operands = maps.iter().map(of_operand).collect::<Option<SmallVec<_>>>()?;
        let of_result = Some(number).filter(|&number| number < maps[0].rank);
        Some(Division { of_result, of_operands })
    }

    fn is_of_result(&self) -> bool {
        self.of_result.is_some()
    }
}

fn maps(module: &Module, product: InstructionId) -> Option<Vec<IndexMap>> {
    operands_read(module, product).into_iter().collect()
}

/// A product of the pieces of a concatenation, which is one of its operands.
fn read_pieces(r: &mut Rewriter<'_>, product: InstructionId, whole: usize) -> Option<InstructionId> {
    let concatenation = r.operand(product, whole);
    let &Op::Concatenate { dimension } = r.op(concatenation) else { return None };
    let division = Division::new(r.module(), product, whole, dimension as usize)?;
    let pieces = r.operands(concatenation).to_vec();
    let mut start = 0;
    let mut parts = Vec::new();
    for piece in pieces {
        let extent = r.dimensions(piece)?[dimension as usize];
        parts.push(part(r, product, &division, start..start + extent, Some((whole, piece))));
        start += extent;
    }
    match division.of_result {
        Some(d) => Some(r.concatenate(parts, d as i64)),
        // XLA's GPU compiler adds the second operand in the convolution that the first one is, once for each convolution.
        None => parts.into_iter().reduce(|sum, part| r.binary(BinaryOp::Add, part, sum)),
    }
}

/// A slice of a product, as the product of slices.
fn make_slice(r: &mut Rewriter<'_>, slice: InstructionId) -> Option<InstructionId> {
    let product = r.operand(slice, 0);
    let (along, SliceDimension { start, limit, .. }) = cut(r.module(), slice)?;
    let division = Division::of_result(r.module(), product, along).filter(|_| is_product(r.op(product)))?;
    Some(part(r, product, &division, start..limit, None))
}

/// A part of a product along a loop. A piece of an operand may be there already.
fn part(
    r: &mut Rewriter<'_>,
    product: InstructionId,
    division: &Division,
    range: Range<i64>,
    known: Option<(usize, InstructionId)>,
) -> InstructionId {
    let mut operands: SmallVec<[InstructionId; 2]> = r.operands(product).into();
    for (k, operand) in operands.iter_mut().enumerate() {
        *operand = match (known, division.of_operands[k]) {
            (Some((whole, piece)), _) if whole == k => piece,
            (_, Some(d)) => r.slice_along(*operand, d, range.clone()),
            (_, None) => *operand,
        };
    }
    let mut array = r.shape(product).as_array().expect("a product is an array").clone();
    if let Some(d) = division.of_result {
        array = ArrayShape::new(array.element_type, array.dimensions);
        array.dimensions[d] = range.end - range.start;
    }
    r.emit(r.op(product).clone(), operands, Shape::from(array))
}
