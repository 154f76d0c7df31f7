//! Pipelines: a program over several chips, a stage on each.
//!
//! A forward program is divided into consecutive stages. A training step goes forward and back: it turns at the moment
//! of most live temporary bytes. The part before is divided into stages; each later instruction runs on the chip with
//! the largest of its operands from before, so that the backward pass of a layer is on the chip of its forward pass and
//! its weights.
//!
//! ```text
//!   chip 0   forward 0 ------------------------------- backward 0    stash 5
//!   chip 1        forward 1 ----------------- backward 1             stash 3
//!   chip 2             forward 2 backward 2                          no stash
//! ```
//!
//! While a micro-batch is in later stages, others follow: values of the forward pass for the backward pass are kept for
//! `2 * (chips to the end) + 1` micro-batches (as PopART stashes), on the last chip for one. With recomputation, only
//! the inputs of a stage are kept that often.
//!
//! Only the instructions of the entry are divided; a loop is completely on one chip.

use std::ops::Range;

use cranelift_entity::SecondaryMap;
use memplan_analysis::{Facts, LiveRange, Time};
use memplan_ir::{InstructionId, Module};
use memplan_memory::Bytes;

use crate::tensors::{Role, Tensor, TensorId, Tensors};

/// Which chip does what.
#[derive(Clone, Debug)]
pub(crate) struct Stages {
    /// The chip of the instruction at each instant.
    chips: Vec<u32>,
    /// The turning point of the program; its end if it only goes forward.
    turn: Time,
    /// The chip that each tensor is defined or first read on.
    home: SecondaryMap<TensorId, u32>,
    /// The instants of the instruction of the entry around each instant.
    around: Vec<Range<Time>>,
    count: u32,
}

/// How many micro-batches a chip keeps what its backward pass needs for.
pub fn stash_depth(chip: u32, chips: u32) -> u64 {
    match chips.saturating_sub(chip + 1) {
        0 => 1,
        to_the_end => 2 * u64::from(to_the_end) + 1,
    }
}

impl Stages {
    /// Divides a program among chips, so that parameters and stashes take nearly as many bytes on each.
    pub(crate) fn new(module: &Module, facts: &Facts, tensors: &Tensors, count: u32) -> Stages {
        let mut stages = Stages {
            chips: vec![0; facts.line.end() as usize],
            turn: turn(facts, tensors),
            home: SecondaryMap::new(),
            around: around(module, facts),
            count,
        };
        stages.home.resize(tensors.all.len());
        // A loop is not cut.
        stages.turn = stages.around.get(stages.turn as usize).map_or(facts.line.end(), |whole| whole.start);
        let loads = stages.loads(tensors);
        // A program with too little to do leaves chips empty; those before them then have fewer after them.
        loop {
            stages.cut(&loads);
            let used = stages.chips[..stages.turn as usize].iter().copied().max().map_or(1, |last| last + 1);
            if used >= stages.count {
                break;
            }
            stages.count = used;
        }
        stages.find_homes(tensors);
        stages.place_backward(tensors);
        stages
    }

    /// How many chips have something to do.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether an instruction runs on a chip.
    pub(crate) fn runs_on(&self, facts: &Facts, chip: u32, id: InstructionId) -> bool {
        self.chips[facts.line.time(id) as usize] == chip
    }

    /// The tensors of a chip: tensors that no instruction there touches need nothing, received ones are there as long
    /// as they are used, stashed ones have several copies.
    pub(crate) fn tensors_of(&self, tensors: &Tensors, chip: u32, recompute: bool) -> Tensors {
        let mut here = tensors.clone();
        if self.count == 1 {
            return here;
        }
        let last =
            (0..self.chips.len()).rev().find(|&t| self.chips[t] == chip).map_or(0, |t| self.around[t].end);
        for (id, tensor) in here.all.iter_mut() {
            let local = |touch: &&crate::Touch| self.chips[touch.time as usize] == chip;
            let Some(first) = tensor.touches.iter().find(local).map(|touch| touch.time) else {
                // Tensors that nobody touches are kept on the first chip for the caller.
                if chip > 0 || !tensor.touches.is_empty() {
                    tensor.busy.clear();
                }
                continue;
            };
            let is_home = self.home[id] == chip;
            let last_touch = tensor.touches.iter().rev().find(local).map_or(first, |touch| touch.time);
            tensor.touches.retain(|touch| local(&touch));
            if tensor.is_always_live() && is_home {
                continue;
            }
            let mut window = self.around[first as usize].start..self.around[last_touch as usize].end;
            let crosses = first < self.turn && last_touch >= self.turn;
            // The forward pass is repeated from what the stage received.
            let is_checkpoint = recompute && !is_home && first < self.turn && self.turn < last;
            if !tensor.is_always_live() && (is_checkpoint || crosses && !recompute) {
                tensor.copies = stash_depth(chip, self.count);
                window.end = if is_checkpoint { last } else { window.end };
            }
            match is_home {
                true => clip(&mut tensor.busy, &window),
                false => {
                    tensor.role = Role::Temp;
                    tensor.busy = vec![LiveRange { start: window.start, end: window.end }];
                }
            }
        }
        here
    }

    /// The memory that each instruction before the turn adds to its chip: parameters that it is the first to read, and
    /// values that it defines for after the turn.
    fn loads(&self, tensors: &Tensors) -> Vec<(Bytes, Bytes)> {
        let mut loads = vec![(Bytes::ZERO, Bytes::ZERO); self.chips.len()];
        for tensor in tensors.all.values() {
            let (Some(first), Some(last)) = (tensor.touches.first(), tensor.touches.last()) else { continue };
            let (own, stashed) = &mut loads[first.time as usize];
            if tensor.is_always_live() {
                *own = own.saturating_add(tensor.bytes());
            } else if first.time < self.turn && last.time >= self.turn {
                *stashed = stashed.saturating_add(tensor.bytes());
            }
        }
        loads
    }

    /// Cuts what comes before the turn so that the fullest chip is as empty as can be: a search for the least limit
    /// under which filling one chip after the other needs no more chips than there are.
    fn cut(&mut self, loads: &[(Bytes, Bytes)]) {
        let fill = |limit: u64, chips: &mut [u32]| -> bool {
            let (mut chip, mut held, mut at) = (0u32, 0u64, 0usize);
            while at < self.turn as usize {
                let whole = self.around[at].clone();
                let part = &loads[whole.start as usize..whole.end as usize];
                let sum = |of: fn(&(Bytes, Bytes)) -> u64| part.iter().map(of).fold(0, u64::saturating_add);
                let (own, stashed) = (sum(|load| load.0.0), sum(|load| load.1.0));
                let bytes = |chip| own.saturating_add(stashed.saturating_mul(stash_depth(chip, self.count)));
                let is_over = held > 0 && held.saturating_add(bytes(chip)) > limit;
                if is_over && chip + 1 < self.count {
                    (chip, held) = (chip + 1, 0);
                }
                held = held.saturating_add(bytes(chip));
                if held > limit {
                    return false;
                }
                chips[whole.start as usize..whole.end as usize].fill(chip);
                at = whole.end as usize;
            }
            true
        };
        let mut chips = self.chips.clone();
        let most = loads.iter().map(|load| load.0.0.saturating_add(load.1.0)).fold(0, u64::saturating_add);
        let (mut low, mut high) = (0, most.saturating_mul(2 * u64::from(self.count)));
        while low < high {
            let middle = low + (high - low) / 2;
            match fill(middle, &mut chips) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        fill(high, &mut chips);
        self.chips = chips;
    }

    fn find_homes(&mut self, tensors: &Tensors) {
        for (id, tensor) in tensors.all.iter() {
            if let Some(first) = tensor.touches.first().filter(|first| first.time < self.turn) {
                self.home[id] = self.chips[first.time as usize];
            }
        }
    }

    /// Instructions after the turn run on the chip of their largest operand from before it, else on that of their
    /// operands.
    fn place_backward(&mut self, tensors: &Tensors) {
        let mut touching: Vec<Vec<TensorId>> = vec![Vec::new(); self.chips.len()];
        for (id, tensor) in tensors.all.iter() {
            for touch in &tensor.touches {
                touching[touch.time as usize].push(id);
            }
        }
        let mut at = self.turn as usize;
        let mut last = self.count - 1;
        while at < self.chips.len() {
            let whole = self.around[at].clone();
            let touched = || touching[whole.start as usize..whole.end as usize].iter().flatten().copied();
            let is_old =
                |tensor: &Tensor| tensor.touches.first().is_some_and(|first| first.time < whole.start);
            let largest = touched().filter(|&id| is_old(&tensors.all[id])).max_by_key(|&id| {
                let tensor = &tensors.all[id];
                let is_from_before = tensor.touches[0].time < self.turn;
                (is_from_before, tensor.bytes(), std::cmp::Reverse(id))
            });
            let chip = largest.map_or(last, |id| self.home[id]);
            for id in touched() {
                if !is_old(&tensors.all[id]) {
                    self.home[id] = chip;
                }
            }
            self.chips[whole.start as usize..whole.end as usize].fill(chip);
            last = chip;
            at = whole.end as usize;
        }
    }
}

/// The turning point of a training step: the moment of most live temporary bytes. A program trains if it returns most
/// of its arguments in the same memory: parameters and optimizer state; other programs only go forward.
fn turn(facts: &Facts, tensors: &Tensors) -> Time {
    let sum = |bytes: &mut dyn Iterator<Item = Bytes>| bytes.fold(Bytes::ZERO, Bytes::saturating_add);
    let arguments = || tensors.all.values().filter(|tensor| tensor.role == Role::Argument);
    let updated = arguments().filter(|tensor| tensor.touches.iter().any(|touch| touch.writes));
    if sum(&mut updated.map(Tensor::bytes)).0.saturating_mul(2)
        < sum(&mut arguments().map(Tensor::bytes)).0.max(1)
    {
        return facts.line.end();
    }
    let mut changes: Vec<(Time, i128)> = Vec::new();
    for tensor in tensors.all.values().filter(|tensor| tensor.role == Role::Temp) {
        for range in &tensor.busy {
            changes.push((range.start, i128::from(tensor.bytes().0)));
            changes.push((range.end, -i128::from(tensor.bytes().0)));
        }
    }
    changes.sort_unstable();
    let (mut now, mut most, mut at) = (0, 0, facts.line.end());
    for (time, change) in changes {
        now += change;
        if now > most {
            (most, at) = (now, time);
        }
    }
    at
}

/// For each instant the instants of the instruction of the entry that it belongs to.
fn around(module: &Module, facts: &Facts) -> Vec<Range<Time>> {
    let mut around = vec![0..0; facts.line.end() as usize];
    for &id in &module.computations[module.entry].instructions {
        let whole = facts.line.begin(id)..facts.line.time(id) + 1;
        around[whole.start as usize..whole.end as usize].fill(whole);
    }
    around
}

/// Keeps the part inside a window, at least one instant.
fn clip(busy: &mut Vec<LiveRange>, window: &Range<Time>) {
    for range in busy.iter_mut() {
        range.start = range.start.max(window.start);
        range.end = range.end.min(window.end);
    }
    busy.retain(|range| range.start < range.end);
    if busy.is_empty() {
        busy.push(LiveRange { start: window.start, end: window.end });
    }
}
