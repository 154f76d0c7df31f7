//! Which dimensions of an operation's operands and results belong together: its *factors*.
//!
//! ```text
//!   d = f32[8,64] dot(x: f32[8,32], w: f32[32,64])     d: [i] [j]    x: [i] [k]     w: [k] [j]      k is summed
//!   r = f32[128,4] reshape(x: f32[16,8,4])             r: [i j] [k]  x: [i] [j] [k]
//! ```
//!
//! If axes cut a factor, every array with this factor is cut along it, and each device computes its part alone. Sums
//! over a cut factor must then be added up over the devices. A dimension without factors must be whole.
//!
//! Factors follow from [`operands_read`], except for reshapes and collectives.

use memplan_ir::indexing::{IndexMap, Source, operands_read};
use memplan_ir::{ArrayShape, BinaryOp, InstructionId, Literal, Module, Op, Scalar};
use memplan_rewriter::plain_combiner;
use smallvec::SmallVec;

/// Number of a factor in its rule.
pub(crate) type Factor = usize;

/// The factors of each dimension of an array, most major first. Behind the last one, a dimension may have a rest that must
/// not be cut.
pub(crate) type Factors = SmallVec<[SmallVec<[Factor; 2]>; 4]>;

/// The factors of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// The extent of each factor.
    pub(crate) sizes: SmallVec<[i64; 6]>,
    /// Whether the result is a sum over it that devices can take in parts.
    pub(crate) is_sum: SmallVec<[bool; 6]>,
    /// Of each operand; `None` for tuples, tokens and operands that must be whole.
    pub(crate) operands: SmallVec<[Option<Factors>; 3]>,
    /// Of the results, which are alike.
    pub(crate) result: Factors,
    /// Whether it neither adds factors to a result nor takes them away: its sharding is clear before that of others.
    pub(crate) passes_through: bool,
}

/// The factors of an operation on arrays. `None` where every operand must be whole.
pub(crate) fn rule(module: &Module, id: InstructionId) -> Option<Rule> {
    let instruction = &module.instructions[id];
    let result = module.shape(id).first_array()?;
    if let Op::Reshape { .. } = instruction.op {
        return Some(reshape(module.shape(instruction.operands[0]).as_array()?, result));
    }
    if let Some(whole) = dimension_of_collective(&instruction.op) {
        return Some(collective(module, id, result, whole));
    }
    let maps = match &instruction.op {
        Op::Iota { .. } | Op::Rng { .. } => SmallVec::new(),
        // Partitioners do not know the routines of libraries.
        Op::CustomCall(_) => return None,
        _ => operands_read(module, id),
    };
    if maps.iter().all(Option::is_none) && !matches!(instruction.op, Op::Iota { .. }) {
        return None;
    }
    let loops = maps.iter().flatten().map(|map| &map.loops).next().unwrap_or(&result.dimensions);
    let rank = result.rank();
    let sums = sums(module, id);
    let factors = |map: &Option<IndexMap>| -> Option<Factors> {
        let map = map.as_ref()?;
        let of = |(e, source): (usize, &Source)| match *source {
            Source::Dim(dim) if map.extents[e] == map.loops[dim] && map.extents[e] > 1 => {
                SmallVec::from_slice(&[dim])
            }
            _ => SmallVec::new(),
        };
        Some(map.sources.iter().enumerate().map(of).collect())
    };
    let mut operands: SmallVec<[Option<Factors>; 3]> = maps.iter().map(factors).collect();
    operands.resize(instruction.operands.len(), None);
    let groups = groups_of_features(&instruction.op);
    if let Some(kept) = groups {
        // Features in groups belong to filters in ways that no map names.
        for of_operand in operands.iter_mut().flatten().flatten() {
            of_operand.retain(|factor| *factor == kept);
        }
    }
    let is_split = |d: usize| groups.is_none_or(|kept| kept == d) && can_be_split(&instruction.op, &maps, d);
    let result: Factors =
        (0..rank).map(|d| if is_split(d) { SmallVec::from_slice(&[d]) } else { SmallVec::new() }).collect();
    for of_operand in operands.iter_mut().flatten().flatten() {
        of_operand.retain(|factor| *factor >= rank || is_split(*factor));
    }
    let mut is_sum: SmallVec<[bool; 6]> = SmallVec::from_elem(false, rank);
    is_sum.resize(loops.len(), sums);
    Some(Rule {
        sizes: loops.iter().copied().collect(),
        is_sum,
        passes_through: loops.len() == rank && !matches!(instruction.op, Op::Gather(_) | Op::Dot(_)),
        operands,
        result,
    })
}

/// Whether parts of the result along one of its dimensions are computed alike, each from parts of the operands.
fn can_be_split(op: &Op, maps: &[Option<IndexMap>], d: usize) -> bool {
    let is_along = |map: &IndexMap| map.dimension_along(d).is_some();
    let is_mixed = |map: &IndexMap| map.sources.len() == map.rank && map.sources[d] == Source::Any;
    match op {
        // Data decide where updates go, but in the dimensions of windows.
        Op::Scatter(_) => maps.last().is_some_and(|updates| updates.as_ref().is_some_and(is_along)),
        Op::Gather(_) | Op::Broadcast { .. } => {
            maps.iter().flatten().all(|map| !map.mentions(d) || is_along(map))
        }
        _ => maps.iter().flatten().all(|map| (!map.mentions(d) || is_along(map)) && !is_mixed(map)),
    }
}

/// Whether the result is a sum, or another combination in any order, over the loops that it does not have.
fn sums(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::Dot(_) => true,
        Op::Convolution(_) => true,
        Op::Reduce { .. } if instruction.operands.len() == 2 => {
            let combined = plain_combiner(module, instruction.called[0]);
            combined.is_some_and(|op| starts_with_nothing(module, instruction.operands[1], op))
        }
        // Each device adds its updates to a part of the sum that begins with zeros.
        Op::Scatter(_) if instruction.operands.len() == 3 => {
            plain_combiner(module, instruction.called[0]) == Some(BinaryOp::Add)
                && is_splat_of(module, instruction.operands[0], BinaryOp::Add)
        }
        _ => false,
    }
}

/// Whether combining an initial value once more changes nothing.
fn starts_with_nothing(module: &Module, initial: InstructionId, op: BinaryOp) -> bool {
    match op {
        BinaryOp::Add | BinaryOp::Multiply => is_splat_of(module, initial, op),
        _ => true,
    }
}

/// Whether every element of a value is the neutral one of an operation.
fn is_splat_of(module: &Module, id: InstructionId, op: BinaryOp) -> bool {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::Broadcast { .. } | Op::Reshape { .. } | Op::Convert | Op::Copy => {
            is_splat_of(module, instruction.operands[0], op)
        }
        Op::Constant(literal) => is_neutral(literal, op),
        _ => false,
    }
}

fn is_neutral(literal: &Literal, op: BinaryOp) -> bool {
    let scalar = literal.as_array().and_then(Scalar::splat_of);
    scalar.is_some_and(|scalar| if op == BinaryOp::Add { scalar.is_zero() } else { scalar.is_one() })
}

/// For convolutions in groups, the dimension of the result that can be cut all the same: that of the batch, unless that
/// is what has groups.
fn groups_of_features(op: &Op) -> Option<usize> {
    let Op::Convolution(convolution) = op else { return None };
    if convolution.batch_group_count > 1 {
        return Some(usize::MAX);
    }
    (convolution.feature_group_count > 1).then_some(convolution.dimensions.output_batch as usize)
}

/// The dimension that a collective, which a shard_map's body has, moves between devices; `usize::MAX` where it moves none.
fn dimension_of_collective(op: &Op) -> Option<usize> {
    match op {
        Op::AllReduce(_) | Op::CollectivePermute(_) | Op::CollectiveBroadcast(_) => Some(usize::MAX),
        Op::AllGather(it) | Op::ReduceScatter(it) => Some(it.dimension? as usize),
        Op::AllToAll(it) => Some(it.dimension.map_or(usize::MAX, |d| d as usize)),
        _ => None,
    }
}

/// Every device has its part of each dimension but one.
fn collective(module: &Module, id: InstructionId, result: &ArrayShape, whole: usize) -> Rule {
    let rank = result.rank();
    let factors = |rank: usize| -> Factors {
        (0..rank).map(|d| if d == whole { SmallVec::new() } else { SmallVec::from_slice(&[d]) }).collect()
    };
    let operands = &module.instructions[id].operands;
    let of = |&operand: &InstructionId| {
        let array = module.shape(operand).as_array()?;
        (array.rank() == rank).then(|| factors(rank))
    };
    Rule {
        sizes: result.dimensions.iter().copied().collect(),
        is_sum: SmallVec::from_elem(false, rank),
        operands: operands.iter().map(of).collect(),
        result: factors(rank),
        passes_through: true,
    }
}

/// Dimensions of both arrays as products of the same factors, as far as they have them.
fn reshape(from: &ArrayShape, to: &ArrayShape) -> Rule {
    let mut sizes: SmallVec<[i64; 6]> = SmallVec::new();
    let empty = |array: &ArrayShape| -> Factors { (0..array.rank()).map(|_| SmallVec::new()).collect() };
    let mut factors = [empty(from), empty(to)];
    let extents = [&from.dimensions, &to.dimensions];
    let mut at = [0, 0];
    let mut rest = [1, 1];
    if from.dimensions.contains(&0) {
        rest = [0, 0];
    }
    // Whether the current dimension has a rest that must stay whole.
    let mut is_blocked = false;
    loop {
        for side in 0..2 {
            while rest[side] == 1 && at[side] < extents[side].len() {
                rest[side] = extents[side][at[side]];
                at[side] += 1;
            }
        }
        if rest[0] <= 1 || rest[1] <= 1 {
            break;
        }
        let common = gcd(rest[0], rest[1]);
        if common > 1 && !is_blocked {
            for side in 0..2 {
                factors[side][at[side] - 1].push(sizes.len());
                rest[side] /= common;
            }
            sizes.push(common);
            continue;
        }
        // Up to where both have the same number of elements again.
        is_blocked = true;
        let (small, large) = if rest[0] <= rest[1] { (0, 1) } else { (1, 0) };
        if rest[small] == rest[large] {
            rest = [1, 1];
            is_blocked = false;
        } else if at[small] < extents[small].len() {
            rest[small] *= extents[small][at[small]];
            at[small] += 1;
        } else {
            break;
        }
    }
    let [from, to] = factors;
    let is_sum = SmallVec::from_elem(false, sizes.len());
    Rule { sizes, is_sum, operands: [Some(from)].into_iter().collect(), result: to, passes_through: true }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
