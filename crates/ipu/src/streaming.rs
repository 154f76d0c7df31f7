//! Streaming memory: tensors outside the chip, of which only the used part is on the chip, and only while an
//! instruction uses it.
//!
//! If a tile is too full, an item that is not in use at that moment moves off the chip: first the item with the least
//! traffic for its size (state that a run updates once costs two transfers, weights read in forward and backward pass
//! cost two as well, an activation one store and one load), parameters before temporaries. Tensors of which an
//! instruction uses a slice count only the slice: if the weights of all layers are in one array, they are streamed
//! layer by layer. If all remaining items are in use, the running instruction is divided into phases
//! ([`crate::phases`]), and its tensors are loaded and stored in parts. Then tiles are packed again, until everything
//! fits or nothing is left to move.
//!
//! A tensor is loaded before its use and stored after it was written; consecutive uses of the whole of it share one
//! transfer. Tensors used in a loop move in each iteration; loops with an unknown number of steps count as in
//! [`Costs::frequency`].

use memplan_analysis::{Costs, Facts, LiveRange, Time};
use memplan_ir::InstructionId;
use memplan_memory::{Bytes, MemorySpaceId, Target};

use crate::chip::Chip;
use crate::error::IpuError;
use crate::phases::{Cuts, Phases};
use crate::tensors::{Role, Streaming, Tensor, TensorId, Tensors, Visit};
use crate::tile_plan::{TilePlan, What};

/// Most rounds of moving and packing again. Each relieves the fullest tile as far as sums of bytes tell.
const MAX_ROUNDS: usize = 100;

/// Packs a chip with as little off it as makes it fit, as far as that goes.
pub(crate) fn stream(chip: &Chip<'_>, mut plan: TilePlan) -> Result<TilePlan, IpuError> {
    let Some(capacity) = streaming_capacity(chip.target) else { return Ok(plan) };
    let mut relief = Relief {
        facts: chip.facts,
        cuts: Cuts::new(chip.module, chip.facts, plan.machine.count),
        runs: runs(chip),
        capacity,
        tensors: plan.tensors.clone(),
        phases: Phases::new(),
    };
    for _ in 0..MAX_ROUNDS {
        let report = plan.report();
        let excess = report.maximum.saturating_sub(plan.machine.bytes);
        if excess == Bytes::ZERO || !relief.of_tile(&plan, report.fullest, excess) {
            break;
        }
        let proportion = plan.machine.temporary_proportion;
        plan = chip.pack(relief.tensors.clone(), plan.mappings, proportion, relief.phases.clone())?;
    }
    Ok(plan)
}

/// Bytes of the memory that the tiles exchange data with; `None` where there is none.
fn streaming_capacity(target: &Target) -> Option<Bytes> {
    let from_tiles = target.transfers.iter().find(|transfer| transfer.from == MemorySpaceId::MAIN)?;
    let space = target.space(from_tiles.to)?;
    Some(space.usable().unwrap_or(Bytes(u64::MAX)))
}

/// The tensors off the chip, and the instructions divided for that, so far.
struct Relief<'a> {
    facts: &'a Facts,
    cuts: Cuts<'a>,
    /// How often the instruction at each instant runs.
    runs: Vec<f64>,
    /// Bytes that are left outside.
    capacity: Bytes,
    tensors: Tensors,
    phases: Phases,
}

impl Relief<'_> {
    /// Moves items that overfill a tile off the chip, at the moments at which it is too full; returns whether any was
    /// found.
    fn of_tile(&mut self, plan: &TilePlan, tile: u32, excess: Bytes) -> bool {
        let mut load = Load::new(plan, tile, excess);
        let mut moved = false;
        while let Some((now, excess)) = load.worst() {
            if !self.wait_outside(plan, &mut load, now, excess) && !self.cut(plan, &mut load, now, excess) {
                break;
            }
            moved = true;
        }
        moved
    }

    /// Moves items off the chip that would take less or no memory on it at a moment: the cheapest for its size first.
    fn wait_outside(&mut self, plan: &TilePlan, load: &mut Load, now: Time, mut excess: Bytes) -> bool {
        let mut candidates = Vec::new();
        for &id in &load.tensors {
            let tensor = &self.tensors.all[id];
            let is_live = tensor.is_always_live() || tensor.busy.iter().any(|range| range.is_live_at(now));
            if tensor.streamed.is_some() || !is_live {
                continue;
            }
            let streaming = self.streaming(id);
            let kept = streaming.at(now).map_or(Bytes::ZERO, |visit| plan.visit_share(id, visit.bytes));
            let spared = plan.share(id).saturating_sub(kept);
            if spared > Bytes::ZERO {
                let transfers = streaming.moved.0 / tensor.bytes().0.max(1);
                candidates.push((transfers, tensor.role == Role::Temp, spared, streaming.moved, id));
            }
        }
        // Transfers for each byte, parameters and results before temporaries, then what spares most.
        candidates.sort_by_key(|&(transfers, is_temp, spared, moved, id)| {
            (transfers, is_temp, std::cmp::Reverse(spared), moved, id)
        });
        let mut moved = false;
        for (_, _, spared, _, id) in candidates {
            if excess == Bytes::ZERO {
                break;
            }
            if self.move_off(plan, load, id) {
                excess = excess.saturating_sub(spared);
                moved = true;
            }
        }
        moved
    }

    /// Divides the running instruction into (more) phases, with as many of its tensors off the chip as possible.
    fn cut(&mut self, plan: &TilePlan, load: &mut Load, now: Time, excess: Bytes) -> bool {
        let id = self.facts.line.instructions[now as usize];
        let Some(cut) = self.cuts.of(&self.tensors, id) else { return false };
        let before = self.phases.get(&id).map_or(1, |&(_, phases)| phases);
        // As many as would do if all that is cut were there as a whole, and what the step needs besides.
        let shares = cut.tensors.iter().map(|&id| plan.share(id));
        let step = plan.step_bytes(now);
        let whole = shares.fold(step, Bytes::saturating_add);
        let part = Bytes(whole.0 / before).saturating_sub(excess).0.max(1);
        let wanted = whole.0.div_ceil(part).max(2 * before).checked_next_power_of_two().unwrap_or(u64::MAX);
        let phases = wanted.min(cut.most);
        if phases <= before {
            return false;
        }
        self.phases.insert(id, (cut.axis, phases));
        let mut moved = false;
        for tensor in cut.tensors {
            load.change(plan, tensor, &self.tensors.all[tensor], -1);
            for touch in self.tensors.all[tensor].touches.iter_mut().filter(|touch| touch.time == now) {
                touch.phases = phases;
            }
            load.change(plan, tensor, &self.tensors.all[tensor], 1);
            moved |= self.move_off(plan, load, tensor);
        }
        // The step's received elements are for a part too; how many is known when it is packed again.
        load.add(&LiveRange { start: now, end: now + 1 }, step.saturating_sub(Bytes(step.0 / phases)), -1);
        moved
    }

    /// Lets a tensor live off the chip, if it has not done so and there is room.
    fn move_off(&mut self, plan: &TilePlan, load: &mut Load, id: TensorId) -> bool {
        let tensor = &self.tensors.all[id];
        if tensor.streamed.is_none() {
            let bytes = Bytes(tensor.bytes().0.saturating_mul(tensor.copies));
            if bytes > self.capacity {
                return false;
            }
            self.capacity = self.capacity.saturating_sub(bytes);
        }
        load.change(plan, id, &self.tensors.all[id], -1);
        self.tensors.all[id].streamed = Some(self.streaming(id));
        load.change(plan, id, &self.tensors.all[id], 1);
        true
    }

    /// When a tensor off the chip is on it, and its transfers.
    fn streaming(&self, id: TensorId) -> Streaming {
        let tensor = &self.tensors.all[id];
        let mut streaming = Streaming { moved: Bytes::ZERO, visits: Vec::new() };
        for (visit, transfers) in visits(tensor) {
            let times = transfers as f64 * self.runs[visit.range.start as usize];
            // A product above all numbers is the largest of them.
            let moved = (visit.moved.0 as f64 * times).round() as u64;
            streaming.moved = streaming.moved.saturating_add(Bytes(moved));
            streaming.visits.push(visit);
        }
        streaming
    }
}

/// Bytes on a tile in every phase, of which an instant has two, as far as is known without packing again.
struct Load {
    /// The change in each phase from the previous one.
    changes: Vec<i128>,
    /// The limit of each phase.
    limit: i128,
    /// The tensors on the tile.
    tensors: Vec<TensorId>,
    tile: u32,
}

impl Load {
    /// That of a tile that needs too much.
    fn new(plan: &TilePlan, tile: u32, excess: Bytes) -> Load {
        let mut load =
            Load { changes: vec![0; 2 * plan.instructions.len() + 1], limit: 0, tensors: Vec::new(), tile };
        for placed in plan.layout(tile) {
            for range in &placed.busy {
                load.changes[range.start as usize] += i128::from(placed.bytes.0);
                load.changes[range.end as usize] -= i128::from(placed.bytes.0);
            }
            if let What::Tensor(id) = placed.what {
                load.tensors.push(id);
            }
        }
        load.tensors.sort_unstable();
        load.tensors.dedup();
        let most = load.sums().max().unwrap_or(0);
        load.limit = most - i128::from(excess.0);
        load
    }

    fn sums(&self) -> impl Iterator<Item = i128> {
        self.changes.iter().scan(0, |sum, change| {
            *sum += change;
            Some(*sum)
        })
    }

    /// The first moment at which most is there, and how much too much; none when it is not.
    fn worst(&self) -> Option<(Time, Bytes)> {
        let (now, most) = (0..).zip(self.sums()).max_by_key(|&(now, sum)| (sum, std::cmp::Reverse(now)))?;
        let excess = u64::try_from(most - self.limit).ok().filter(|&excess| excess > 0)?;
        Some((now / 2, Bytes(excess)))
    }

    /// Adds a tensor, or takes it away.
    fn change(&mut self, plan: &TilePlan, id: TensorId, tensor: &Tensor, sign: i128) {
        if !plan.mappings[id].as_ref().is_some_and(|mapping| mapping.tile_set().contains(self.tile)) {
            return;
        }
        if tensor.is_always_live() {
            let end = self.changes.len() as Time / 2;
            self.add(&LiveRange { start: 0, end }, plan.share(id), sign);
        }
        for (bytes, busy) in plan.needs_of(id, tensor) {
            busy.iter().for_each(|range| self.add(range, bytes, sign));
        }
    }

    fn add(&mut self, range: &LiveRange, bytes: Bytes, sign: i128) {
        self.changes[2 * range.start as usize] += sign * i128::from(bytes.0);
        self.changes[2 * range.end as usize] -= sign * i128::from(bytes.0);
    }
}

/// When a tensor that lives off the chip is on it, and how often it is moved for that.
fn visits(tensor: &Tensor) -> Vec<(Visit, u64)> {
    let whole = tensor.bytes();
    let mut visits: Vec<(Visit, u64)> = Vec::new();
    for (i, touch) in tensor.touches.iter().enumerate() {
        let moved = touch.bytes.min(whole);
        let bytes = Bytes(whole.0.div_ceil(touch.phases)).min(moved);
        // A temporary was nowhere before the first instruction that writes it.
        let is_given = matches!(tensor.role, Role::Argument | Role::Constant);
        let is_new = i == 0 && touch.writes && !is_given;
        match visits.last_mut() {
            Some((visit, transfers))
                if visit.range.end == touch.time && visit.bytes == whole && bytes == whole =>
            {
                visit.range.end += 1;
                *transfers = (*transfers).max(1 + u64::from(touch.writes));
            }
            _ => {
                let range = LiveRange { start: touch.time, end: touch.time + 1 };
                let transfers = u64::from(!is_new) + u64::from(touch.writes);
                visits.push((Visit { range, bytes, moved }, transfers));
            }
        }
    }
    visits
}

/// How often the instruction at each instant runs.
fn runs(chip: &Chip<'_>) -> Vec<f64> {
    let costs = Costs::new(chip.module, &chip.facts.graph, &chip.facts.in_place, chip.target);
    let runs = |&id: &InstructionId| costs.frequency(chip.module.instructions[id].parent);
    chip.facts.line.instructions.iter().map(runs).collect()
}
