//! Chooses the regions that are worth a loop, the dimension, and the number of blocks.

use memplan_analysis::CallGraph;
use memplan_ir::{ComputationId, InstructionId, Module, Op};
use memplan_memory::{Bytes, Target};
use memplan_rewriter::cost;
use rustc_hash::{FxHashMap, FxHashSet};

use super::RowBlocks;
use super::build::ATTRIBUTE;
use super::region::{Region, RegionContext, Stage, is_materialized, region, wide_from};
use crate::remat;
use memplan_rewriter::rows::{Outcome, Rows};

/// The fewest bytes of an array that it is worth cutting.
pub(super) fn smallest_worthwhile(
    module: &Module,
    graph: &CallGraph,
    target: &Target,
    options: &RowBlocks,
) -> Bytes {
    let profiles = remat::profiles(module, graph, target, &options.fusion);
    let peak = profiles.iter().map(|(_, profile)| profile.peak).max().unwrap_or(0);
    Bytes(options.min_share.of(peak)).max(options.min_bytes)
}

/// Arrays of at least `smallest` bytes that are in memory as a whole, the largest first. Excludes results of existing
/// loops over blocks.
pub(super) fn seeds(program: RegionContext<'_>, graph: &CallGraph, smallest: Bytes) -> Vec<InstructionId> {
    let module = program.module;
    let is_block = |&computation: &ComputationId| {
        graph
            .caller(computation)
            .is_some_and(|caller| module.instructions[caller].frontend_attribute(ATTRIBUTE).is_some())
    };
    let computations = graph.sequential().iter().filter(|computation| !is_block(computation));
    let instructions = computations.flat_map(|&computation| &module.computations[computation].instructions);
    let mut seeds: Vec<InstructionId> = instructions
        .copied()
        .filter(|&id| {
            !matches!(
                module.instructions[id].op,
                Op::Broadcast { .. } | Op::Iota { .. } | Op::Parameter { .. }
            ) && module.shape(id).as_array().is_some()
                && cost::result_bytes(module, program.target, id) >= smallest.0
                && is_materialized(program, id)
        })
        .collect();
    seeds.sort_by_key(|&id| std::cmp::Reverse(cost::result_bytes(module, program.target, id)));
    seeds
}

/// Members of regions that save little, each as the seed of that region: how it is cut, from which width on arrays are
/// wide, and whether fewer blocks may do better.
pub(super) type NotWorthIt = FxHashMap<(InstructionId, i64, Rows, u64), bool>;

/// The best region around a seed; `None` where cutting it saves little.
///
/// Regions whose results are all rows compute the same numbers as before, bit for bit. One that adds up over blocks has
/// to save much more than those.
pub(super) fn choose(
    program: RegionContext<'_>,
    seed: InstructionId,
    smallest: Bytes,
    not_worth_it: &mut NotWorthIt,
) -> Option<Region> {
    let options = program.options;
    let array = program.module.shape(seed).as_array()?;
    let asked = cost::result_bytes(program.module, program.target, seed).div_ceil(smallest.0.max(1));
    let asked = asked.min(options.max_blocks).max(options.min_blocks).next_power_of_two() as i64;
    let mut best: [Option<(u64, Region)>; 2] = [None, None];
    for (dimension, &extent) in array.dimensions.iter().enumerate() {
        for n in counts(extent, asked) {
            let rows = Rows { dimension, unit: extent / n };
            if let Some(&fewer_may_do) = not_worth_it.get(&(seed, n, rows, wide_from(program, seed))) {
                if fewer_may_do { continue } else { break }
            }
            let Some(found) = region(program, seed, n, rows) else { continue };
            let savings = savings(program, &found);
            if savings.is_none_or(|(saved, _)| saved < smallest.0) {
                let as_seed = |(id, rows)| ((id, n, rows, wide_from(program, seed)), savings.is_none());
                not_worth_it.extend(found.seeds().map(as_seed));
            }
            let Some((saved, is_exact)) = savings else { continue };
            let best = &mut best[usize::from(is_exact)];
            // Blocks along an outer dimension are contiguous.
            if saved >= smallest.0
                && best.as_ref().is_none_or(|(most, _)| saved - options.outer_preference.of(saved) > *most)
            {
                *best = Some((saved, found));
            }
            // Fewer blocks save less.
            break;
        }
    }
    let [adding, exact] = best;
    match (exact, adding) {
        (Some(exact), Some(adding)) if exact.0 < options.exact_preference.of(adding.0) => Some(adding.1),
        (Some(exact), _) => Some(exact.1),
        (None, adding) => adding.map(|(_, region)| region),
    }
}

/// Numbers of blocks to try for a dimension: about as many as asked for, or fewer where the dimension came together from
/// several.
fn counts(extent: i64, asked: i64) -> Vec<i64> {
    let mut counts = Vec::new();
    let mut wanted = asked;
    while wanted >= 2 {
        let above = (wanted..=2 * wanted).find(|n| extent % n == 0);
        let found = above.or_else(|| (2..wanted).rev().find(|n| extent % n == 0));
        counts.extend(found.filter(|n| *n <= extent));
        wanted /= 2;
    }
    counts.dedup();
    counts
}

/// Bytes of wide arrays that do not exist as a whole any more, minus the bytes that the loops hold instead, and whether
/// all results are rows. `None` if a loop cannot return a result, or if most wide arrays stay.
fn savings(program: RegionContext<'_>, region: &Region) -> Option<(u64, bool)> {
    let module = program.module;
    let of_stages = |part: fn(&Stage) -> &Vec<InstructionId>| -> FxHashSet<InstructionId> {
        region.stages.iter().flat_map(|stage| part(stage).iter().copied()).collect()
    };
    let results = of_stages(|stage| &stage.results);
    let members = of_stages(|stage| &stage.body);
    if results.iter().any(|&id| module.shape(id).is_tuple()) {
        return None;
    }
    let total = |ids: &mut dyn Iterator<Item = InstructionId>| {
        let bytes = ids.map(|id| cost::result_bytes(module, program.target, id));
        bytes.fold(0, u64::saturating_add)
    };
    let is_sum = |id: InstructionId| matches!(region.treatments[&id].outcome, Outcome::Sum(_));
    let inner = members.iter().copied().filter(|id| !results.contains(id));
    let cut = total(&mut inner.filter(|&id| is_materialized(program, id)));
    // Sums are there twice, as a block and in total.
    let sums = total(&mut results.iter().copied().filter(|&id| is_sum(id)));
    // A value that was fused into its readers must exist for a loop to read it, and one that was fused into its
    // operands for a loop to write it.
    let inputs: FxHashSet<InstructionId> =
        region.stages.iter().flat_map(|stage| region.inputs(module, stage)).collect();
    let through = || inputs.iter().filter(|id| !members.contains(id)).chain(&results).copied();
    let laid_out = total(&mut through().filter(|&id| !is_materialized(program, id)));
    // Beside wide arrays that stay, it matters less that others become smaller.
    let whole = total(&mut through().filter(|&id| region.is_wide(module, id)));
    let lost = (cut / region.n as u64).saturating_add(sums.saturating_mul(2)).saturating_add(laid_out);
    let saved = cut.saturating_sub(lost);
    (saved >= program.options.min_saved.of(cut).max(whole)).then_some((saved, sums == 0))
}
