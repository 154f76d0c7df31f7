//! The share of each device in a module that is to run on several, where no program of one device can be made of it.

use memplan_ir::{ArrayShape, Module, Op, Shape, Sharding, ShardingSpec};

use crate::{Bytes, Target};

/// Bytes of the entry parameters that one device holds, for a module that is not partitioned yet: each array cut as its
/// sharding says, and then padded by its layout. `None` when no sharding cuts anything.
///
/// A partitioned module keeps its shardings, although its shapes are those of the shards; nothing in it says so, but it
/// has a schedule if a compiler made it.
pub fn arguments_per_device(module: &Module, target: &Target) -> Option<Bytes> {
    let mut sum = Bytes::ZERO;
    let mut is_cut = false;
    for &parameter in &module.entry_computation().parameters {
        let instruction = &module.instructions[parameter];
        debug_assert!(matches!(instruction.op, Op::Parameter { .. }));
        let sharding = instruction.extras.as_ref().and_then(|extras| extras.sharding.as_ref());
        let mut leaf = 0;
        module.shape(parameter).for_each_subshape(|_, part| {
            let bytes = match part {
                Shape::Tuple(_) => target.size_of(part),
                _ => {
                    let spec = sharding.and_then(|sharding| of_leaf(sharding, leaf));
                    leaf += 1;
                    let local = spec.zip(part.as_array()).map(|(spec, array)| spec.local_shape(array));
                    is_cut |= local.as_ref().is_some_and(|local| Some(local) != part.as_array());
                    local.map_or_else(
                        || target.size_of(part),
                        |local: ArrayShape| target.size_of(&Shape::Array(local)),
                    )
                }
            };
            sum = sum.saturating_add(bytes);
        });
    }
    is_cut.then_some(sum)
}

/// Into how many pieces the most finely cut array is cut, by the shardings that a module that is not partitioned yet
/// has: 1 where nothing is.
pub fn pieces(module: &Module) -> u64 {
    let of = |spec: &ShardingSpec, rank| {
        spec.shards(rank).iter().fold(1u64, |product, &shards| product.saturating_mul(shards.unsigned_abs()))
    };
    let most = module.instructions.iter().filter_map(|(id, instruction)| {
        let sharding = instruction.extras.as_ref()?.sharding.as_ref()?;
        let leaves = module.shape(id).leaves();
        let arrays = leaves.iter().filter_map(|(_, leaf)| leaf.as_array()).enumerate();
        arrays.filter_map(|(leaf, array)| Some(of(of_leaf(sharding, leaf)?, array.rank()))).max()
    });
    most.max().unwrap_or(1)
}

/// The sharding of one leaf of a value.
fn of_leaf(sharding: &Sharding, leaf: usize) -> Option<&ShardingSpec> {
    match sharding {
        Sharding::Single(spec) => Some(spec),
        Sharding::Tuple(leaves) => leaves.get(leaf),
    }
}
