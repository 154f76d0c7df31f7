//! Streaming memory: tensors that live outside the chip and are on it only while an instruction touches them.
//!
//! Where a tile is too full, something that lies there and is not touched at that moment is moved off the chip: first
//! what costs the fewest bytes of traffic for its size (state that a run updates once costs two transfers, weights that
//! forward and backward pass read cost two as well, an activation one store and one load), parameters before
//! temporaries. Then tiles are packed again, until everything fits or nothing is left to move.
//!
//! A tensor is loaded before it is touched and stored after it was written; touches one right after the other share
//! one transfer. What is touched in a loop is moved in each iteration.

use memplan_analysis::{Facts, LiveRange, Time, trip_count};
use memplan_ir::{ComputationId, Module, Op};
use memplan_memory::{Bytes, MemorySpaceId, Target};

use crate::ipu::plan::{Chip, IpuError};
use crate::ipu::tensors::{Role, Tensor, TensorId};
use crate::ipu::tile_plan::{TilePlan, What};

/// Most rounds of moving and packing again. Each relieves one moment of the fullest tile.
const MAX_ROUNDS: usize = 200;

/// Packs a chip with as little off it as makes it fit, as far as that goes.
pub(crate) fn stream(chip: &Chip<'_>, mut plan: TilePlan) -> Result<TilePlan, IpuError> {
    let Some(capacity) = streaming_capacity(chip.target) else { return Ok(plan) };
    let runs = runs(chip.module, chip.facts);
    let mut off_chip = Bytes::ZERO;
    for _ in 0..MAX_ROUNDS {
        let report = plan.report();
        let mut excess = report.maximum.saturating_sub(plan.machine.bytes);
        if excess == Bytes::ZERO {
            break;
        }
        let mut tensors = plan.tensors.clone();
        let candidates = candidates(&plan, report.fullest, &runs);
        let mut moved = false;
        for (id, traffic) in candidates {
            off_chip = off_chip.saturating_add(tensors.all[id].bytes());
            if excess == Bytes::ZERO || off_chip > capacity {
                break;
            }
            excess = excess.saturating_sub(plan.share(id));
            let tensor = &mut tensors.all[id];
            tensor.busy = residencies(tensor).into_iter().map(|(range, _)| range).collect();
            tensor.streamed = Some(traffic);
            moved = true;
        }
        if !moved {
            break;
        }
        plan = chip.pack(tensors, plan.mappings.clone(), plan.machine.temporary_proportion)?;
    }
    Ok(plan)
}

/// Bytes of the memory that the tiles exchange data with; `None` where there is none.
fn streaming_capacity(target: &Target) -> Option<Bytes> {
    let from_tiles = target.transfers.iter().find(|transfer| transfer.from == MemorySpaceId::MAIN)?;
    let space = target.space(from_tiles.to)?;
    Some(space.usable().unwrap_or(Bytes(u64::MAX)))
}

/// What lies on a tile when it is fullest and is not touched then, with its traffic; the cheapest for its size first.
fn candidates(plan: &TilePlan, tile: u32, runs: &[u64]) -> Vec<(TensorId, Bytes)> {
    let (phase, live) = plan.peak(tile);
    let now = phase / 2;
    let is_touched = |tensor: &Tensor| tensor.touches.binary_search_by_key(&now, |touch| touch.time).is_ok();
    let mut candidates: Vec<(bool, u64, Bytes, TensorId)> = Vec::new();
    for placed in live {
        let What::Tensor(id) = placed.what else { continue };
        let tensor = &plan.tensors.all[id];
        if tensor.streamed.is_some() || is_touched(tensor) {
            continue;
        }
        let traffic = traffic(tensor, runs);
        candidates.push((tensor.role == Role::Temp, traffic.0 / tensor.bytes().0.max(1), traffic, id));
    }
    // Transfers for each byte, parameters and results before temporaries, then the largest.
    candidates.sort_by_key(|&(is_temp, transfers, traffic, id)| {
        (transfers, is_temp, std::cmp::Reverse(plan.share(id)), traffic, id)
    });
    candidates.into_iter().map(|(_, _, traffic, id)| (id, traffic)).collect()
}

/// When a tensor that lives off the chip is on it, and how often it is moved for that.
fn residencies(tensor: &Tensor) -> Vec<(LiveRange, u64)> {
    let mut ranges: Vec<(LiveRange, u64)> = Vec::new();
    for (i, touch) in tensor.touches.iter().enumerate() {
        // What the first instruction to touch a temporary writes was nowhere before.
        let is_new = i == 0 && touch.writes && !tensor.is_always_live();
        match ranges.last_mut() {
            Some((range, moves)) if range.end == touch.time => {
                range.end += 1;
                *moves = (*moves).max(1 + u64::from(touch.writes));
            }
            _ => {
                let moves = u64::from(!is_new) + u64::from(touch.writes);
                ranges.push((LiveRange { start: touch.time, end: touch.time + 1 }, moves));
            }
        }
    }
    ranges
}

/// Bytes that are moved in one run when a tensor lives off the chip.
fn traffic(tensor: &Tensor, runs: &[u64]) -> Bytes {
    let times = residencies(tensor)
        .into_iter()
        .map(|(range, moves)| moves.saturating_mul(runs[range.start as usize]));
    Bytes(times.fold(0, u64::saturating_add).saturating_mul(tensor.bytes().0))
}

/// How often the instruction at each instant runs; once for each iteration where the number is not known.
fn runs(module: &Module, facts: &Facts) -> Vec<u64> {
    let mut of_computation: Vec<u64> = vec![1; module.computations.len()];
    for &computation in facts.graph.sequential().iter().rev() {
        if let Some(caller) = facts.graph.caller(computation) {
            let around = of_computation[index(module.instructions[caller].parent)];
            let times = match module.instructions[caller].op {
                Op::While => trip_count(module, caller).unwrap_or(1),
                _ => 1,
            };
            of_computation[index(computation)] = around.saturating_mul(times);
        }
    }
    let runs = |time: Time| {
        of_computation[index(module.instructions[facts.line.instructions[time as usize]].parent)]
    };
    (0..facts.line.end()).map(runs).collect()
}

fn index(computation: ComputationId) -> usize {
    computation.as_u32() as usize
}
