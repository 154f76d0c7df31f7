//! The plan of a chip: everything on every tile, and the sums.

use memplan_analysis::{LiveRange, Time};
use memplan_ir::{InstructionId, Module};
use memplan_memory::{Alignment, Bytes, TileCategories, TileStage, Tiles};

use crate::chip::Chip;
use crate::error::IpuError;
use crate::pack::{self, Arenas, Need};
use crate::phases::Phases;
use crate::placement::Mappings;
use crate::steps::{Part, Step, Steps};
use crate::tensors::{Tensor, TensorId, Tensors, Visit};
use crate::tile_set::{TileSet, TileSums, largest_on_each_tile};

/// Steps of the search for a smaller common part; heuristics alone are nearly always at the bound.
const PACK_NODES: u64 = 2_000;

/// An item that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Overflow {
    /// The fullest tile needs more than a tile has.
    #[error("tile {tile} needs {needed:#} of {available:#} bytes")]
    Tile {
        /// The fullest tile, the first of them.
        tile: u32,
        /// Bytes it needs.
        needed: Bytes,
        /// Bytes it has.
        available: Bytes,
    },
    /// Code does not fit the part of a tile for code.
    #[error(
        "tile {tile} has {needed:#} bytes of code, which must fit {available:#} bytes that are not interleaved"
    )]
    Code {
        /// The tile with the most code, the first of them.
        tile: u32,
        /// Bytes of its code.
        needed: Bytes,
        /// Bytes available for code.
        available: Bytes,
    },
    /// One instruction receives more than a tile has.
    #[error("for `{instruction}` a tile receives {needed:#} bytes at once and has {available:#}")]
    Exchange {
        /// The instruction.
        instruction: String,
        /// Bytes that a tile receives.
        needed: Bytes,
        /// Bytes of a tile.
        available: Bytes,
    },
}

/// An item on a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// The code of all its codelets, and of calling them.
    Code,
    /// The state of all its vertices.
    State,
    /// A part of a tensor.
    Tensor(TensorId),
    /// The received elements and partial results of a step, by its index in [`Steps::all`].
    Step(usize),
}

/// Bytes of a tile and when they are taken. Time is counted in phases, two for each instant of the flattened schedule:
/// vertices compute in the first, and add up partial results of several tiles in the second.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// The item.
    pub what: What,
    /// Its offset.
    pub offset: Bytes,
    /// How large it is.
    pub bytes: Bytes,
    /// When: disjoint, ascending.
    pub busy: Vec<LiveRange>,
}

/// The contents of every tile of a chip.
#[derive(Clone, Debug)]
pub struct TilePlan {
    /// The machine.
    pub machine: Tiles,
    /// The tensors on the tiles.
    pub tensors: Tensors,
    /// Which tile has which elements; `None` for tensors that are not on this chip.
    pub mappings: Mappings,
    /// The other needs of instructions.
    pub steps: Steps,
    /// The instruction at each instant.
    pub instructions: Vec<InstructionId>,
    phases: Phases,
    alignment: Alignment,
    needs: Vec<Need>,
    /// The source of each need.
    sources: Vec<What>,
    arenas: Arenas,
    code: Vec<u64>,
    state: Vec<u64>,
    always_live: Vec<u64>,
    exchange: Vec<u64>,
}

impl TilePlan {
    pub(crate) fn new(
        chip: &Chip<'_>,
        tensors: Tensors,
        mappings: Mappings,
        steps: Steps,
        phases: Phases,
    ) -> Result<TilePlan, IpuError> {
        let mut plan = TilePlan {
            machine: chip.machine.clone(),
            tensors,
            mappings,
            steps,
            phases,
            instructions: chip.facts.line.instructions.clone(),
            alignment: chip.target.spaces[0].alignment,
            needs: Vec::new(),
            sources: Vec::new(),
            arenas: Arenas::default(),
            code: Vec::new(),
            state: Vec::new(),
            always_live: Vec::new(),
            exchange: Vec::new(),
        };
        plan.add_up_code();
        plan.add_up_always_live();
        plan.list_needs();
        plan.pack()?;
        Ok(plan)
    }

    /// Code of each codelet once on every tile that has a vertex of it; state and calls for each step.
    fn add_up_code(&mut self) {
        let (mut code, mut state) = (TileSums::new(self.machine.count), TileSums::new(self.machine.count));
        let mut users: Vec<Vec<std::ops::Range<u32>>> = vec![Vec::new(); self.steps.codelets.len()];
        for part in self.steps.all.iter().flat_map(|step| &step.parts) {
            users[part.codelet].extend(part.tiles.ranges().iter().cloned());
            code.add(&part.tiles, part.control.0);
            state.add(&part.tiles, part.state.align_up(self.alignment).0);
        }
        for (users, bytes) in users.into_iter().zip(self.steps.codelets.values()) {
            code.add(&TileSet::new(users), bytes.0);
        }
        (self.code, self.state) = (code.finish(), state.finish());
    }

    fn add_up_always_live(&mut self) {
        let mut sums = TileSums::new(self.machine.count);
        for (id, tensor) in self.tensors.all.iter() {
            if let (true, Some(mapping)) = (tensor.is_always_live(), &self.mappings[id]) {
                sums.add(&mapping.tile_set(), self.share(id).0);
            }
        }
        self.always_live = sums.finish();
    }

    /// Lists the items to pack by time: tensors that are not always live, and elements that steps receive and keep
    /// while they run.
    fn list_needs(&mut self) {
        for (id, tensor) in self.tensors.all.iter() {
            let Some(mapping) = &self.mappings[id] else { continue };
            let tiles = mapping.tile_set();
            for (bytes, busy) in self.needs_of(id, tensor) {
                let during = |range: LiveRange| LiveRange { start: 2 * range.start, end: 2 * range.end };
                self.sources.push(What::Tensor(id));
                let busy = busy.into_iter().map(during).collect();
                self.needs.push(Need { bytes, busy, tiles: tiles.clone() });
            }
        }
        for number in 0..self.steps.all.len() {
            let Step { time, parts, .. } = self.steps.all[number].clone();
            for (phase, part) in (2 * time..).zip(&parts) {
                // Partial results stay until they have been added up.
                self.need(number, part, part.partials, phase..2 * time + 2);
                self.need(number, part, part.received, phase..phase + 1);
            }
        }
        let parts = self.steps.all.iter().flat_map(|step| &step.parts);
        let exchanged = parts.map(|part| (&part.tiles, part.received.saturating_add(part.partials).0));
        self.exchange = largest_on_each_tile(self.machine.count, exchanged);
    }

    fn need(&mut self, step: usize, part: &Part, bytes: Bytes, phases: std::ops::Range<u32>) {
        if bytes > Bytes::ZERO && !part.tiles.is_empty() {
            let busy = vec![LiveRange { start: phases.start, end: phases.end }];
            self.sources.push(What::Step(step));
            self.needs.push(Need { bytes: bytes.align_up(self.alignment), busy, tiles: part.tiles.clone() });
        }
    }

    fn pack(&mut self) -> Result<(), IpuError> {
        let options = memplan_pack::Options {
            node_limit: Some(PACK_NODES),
            time_limit: None,
            threads: 1,
            ..memplan_pack::Options::default()
        };
        self.arenas = pack::pack(&self.needs, self.machine.count, self.end(), self.alignment, &options)
            .map_err(IpuError::TooLarge)?;
        Ok(())
    }

    /// One past the last phase.
    fn end(&self) -> u32 {
        2 * self.instructions.len() as u32
    }

    /// Bytes of a tensor on a tile that has a part of it.
    pub fn share(&self, tensor: TensorId) -> Bytes {
        let elements = self.mappings[tensor].as_ref().map_or(0, |mapping| mapping.largest_share());
        let Tensor { element_bytes, copies, .. } = self.tensors.all[tensor];
        let one = Bytes(elements.saturating_mul(element_bytes)).align_up(self.alignment);
        Bytes(one.0.saturating_mul(copies))
    }

    /// Bytes on a tile that has a part of a tensor which lives outside the chip, while some bytes of it are there.
    pub(crate) fn visit_share(&self, tensor: TensorId, bytes: Bytes) -> Bytes {
        let Tensor { copies, .. } = self.tensors.all[tensor];
        let whole = Bytes(self.share(tensor).0 / copies);
        let tiles = self.mappings[tensor].as_ref().map_or(1, |mapping| mapping.tile_set().len());
        // A part is spread over the tiles as evenly as the whole.
        Bytes(bytes.0.div_ceil(tiles.max(1).into())).align_up(self.alignment).min(whole)
    }

    /// When a tensor has how many bytes on its tiles, if it is not always live: instants, as tensors count them.
    pub(crate) fn needs_of(&self, id: TensorId, tensor: &Tensor) -> Vec<(Bytes, Vec<LiveRange>)> {
        let mut needs: Vec<(Bytes, Vec<LiveRange>)> = Vec::new();
        match &tensor.streamed {
            Some(streaming) => {
                let visit = |visit: &Visit| (self.visit_share(id, visit.bytes), vec![visit.range]);
                needs.extend(streaming.visits.iter().map(visit));
            }
            None if tensor.is_always_live() || tensor.busy.is_empty() => {}
            None => needs.push((self.share(id), tensor.busy.clone())),
        }
        needs.retain(|(bytes, _)| *bytes > Bytes::ZERO);
        needs
    }

    /// The most that a tile receives and keeps as partial results at an instant.
    pub(crate) fn step_bytes(&self, time: Time) -> Bytes {
        let step = self.steps.all.binary_search_by_key(&time, |step| step.time);
        let parts = step.map_or(&[][..], |step| &self.steps.all[step].parts);
        parts.iter().map(|part| part.received.saturating_add(part.partials)).max().unwrap_or_default()
    }

    /// Instructions that run in several phases, and in how many.
    pub fn phases(&self) -> impl Iterator<Item = (InstructionId, u64)> {
        self.phases.iter().map(|(&id, &(_, phases))| (id, phases))
    }

    /// The memory of a tile by purpose.
    pub fn categories(&self, tile: u32) -> TileCategories {
        let at = |sums: &[u64]| Bytes(sums[tile as usize]);
        TileCategories {
            code: at(&self.code).align_up(self.alignment),
            state: at(&self.state),
            always_live: at(&self.always_live),
            not_always_live: self.arenas.height(tile),
            exchange: at(&self.exchange),
        }
    }

    /// Bytes that a tile needs.
    pub fn needed(&self, tile: u32) -> Bytes {
        self.categories(tile).total()
    }

    /// Bytes that live outside the chip, and bytes that are moved between it and them in one run.
    pub fn off_chip(&self) -> (Bytes, Bytes) {
        let (mut bytes, mut moved) = (Bytes::ZERO, Bytes::ZERO);
        for tensor in self.tensors.all.values() {
            if let Some(streaming) = &tensor.streamed {
                bytes = bytes.saturating_add(Bytes(tensor.bytes().0.saturating_mul(tensor.copies)));
                moved = moved.saturating_add(streaming.moved);
            }
        }
        (bytes, moved)
    }

    /// How full the tiles are.
    pub fn report(&self) -> TileStage {
        let tiles: Vec<Bytes> = (0..self.machine.count).map(|tile| self.needed(tile)).collect();
        let fullest =
            (0..self.machine.count).max_by_key(|&tile| (tiles[tile as usize], std::cmp::Reverse(tile)));
        let fullest = fullest.unwrap_or(0);
        let sum = tiles.iter().copied().fold(Bytes::ZERO, Bytes::saturating_add);
        let all = (0..self.machine.count).map(|tile| self.categories(tile));
        TileStage {
            fullest,
            maximum: tiles[fullest as usize],
            mean: Bytes(sum.0 / u64::from(self.machine.count)),
            at_fullest: self.categories(fullest),
            all: all.fold(TileCategories::default(), |sum, tile| sum.saturating_add(&tile)),
            tiles,
        }
    }

    /// Everything that does not fit; nothing when the chip can run the program.
    pub fn overflows(&self, module: &Module) -> Vec<Overflow> {
        let mut overflows = Vec::new();
        let stage = self.report();
        let available = self.machine.bytes;
        if stage.maximum > available {
            overflows.push(Overflow::Tile { tile: stage.fullest, needed: stage.maximum, available });
        }
        let most_code =
            self.code.iter().copied().zip(0..).max_by_key(|&(code, tile)| (code, std::cmp::Reverse(tile)));
        let for_code =
            if self.machine.code_bytes == Bytes::ZERO { available } else { self.machine.code_bytes };
        if let Some((code, tile)) = most_code
            && Bytes(code) > for_code
        {
            overflows.push(Overflow::Code { tile, needed: Bytes(code), available: for_code });
        }
        let received = |step: InstructionId, needed: Bytes| Overflow::Exchange {
            instruction: module.instructions[step].name.to_string(),
            needed,
            available,
        };
        let parts =
            self.steps.all.iter().flat_map(|step| step.parts.iter().map(|part| (step.instruction, part)));
        let largest = parts.max_by_key(|(id, part)| (part.received, std::cmp::Reverse(*id)));
        if let Some((id, part)) = largest.filter(|(_, part)| part.received > available) {
            overflows.push(received(id, part.received));
        }
        overflows
    }

    /// How many different packing problems the tiles were.
    pub fn n_problems(&self) -> usize {
        self.arenas.n_arrangements()
    }

    /// Everything on a tile, ascending by offset. Linear in the program.
    pub fn layout(&self, tile: u32) -> Vec<Placed> {
        let whole_run = || vec![LiveRange { start: 0, end: self.end() }];
        let categories = self.categories(tile);
        let mut placed = vec![
            Placed { what: What::Code, offset: Bytes::ZERO, bytes: categories.code, busy: whole_run() },
            Placed { what: What::State, offset: categories.code, bytes: categories.state, busy: whole_run() },
        ];
        let mut offset = categories.code.saturating_add(categories.state);
        for (id, tensor) in self.tensors.all.iter() {
            let is_here = self.mappings[id].as_ref().is_some_and(|mapping| mapping.tile_set().contains(tile));
            if tensor.is_always_live() && is_here {
                let bytes = self.share(id);
                placed.push(Placed { what: What::Tensor(id), offset, bytes, busy: whole_run() });
                offset = offset.saturating_add(bytes);
            }
        }
        for (need, at) in self.arenas.on_tile(&self.needs, tile) {
            let Need { bytes, busy, .. } = &self.needs[need];
            let offset = offset.saturating_add(at);
            placed.push(Placed { what: self.sources[need], offset, bytes: *bytes, busy: busy.clone() });
        }
        placed.sort_by_key(|placed| (placed.offset, placed.busy.first().map(|range| range.start)));
        placed
    }

    /// The contents of a tile when it is fullest, largest first: the phase, and the items.
    pub fn peak(&self, tile: u32) -> (u32, Vec<Placed>) {
        let layout = self.layout(tile);
        let mut changes: Vec<(u32, i128)> = Vec::new();
        for placed in &layout {
            for range in &placed.busy {
                changes.push((range.start, i128::from(placed.bytes.0)));
                changes.push((range.end, -i128::from(placed.bytes.0)));
            }
        }
        changes.sort_unstable();
        let (mut now, mut most, mut at) = (0, 0, 0);
        for (time, change) in changes {
            now += change;
            if now > most {
                (most, at) = (now, time);
            }
        }
        let mut live: Vec<Placed> =
            layout.into_iter().filter(|p| p.busy.iter().any(|range| range.is_live_at(at))).collect();
        live.sort_by_key(|placed| (std::cmp::Reverse(placed.bytes), placed.offset));
        (at, live)
    }

    /// The instruction that runs in a phase.
    pub fn instruction_at(&self, phase: u32) -> Option<InstructionId> {
        self.instructions.get(phase as usize / 2).copied()
    }

    /// The name of an item.
    pub fn name(&self, module: &Module, what: What) -> String {
        match what {
            What::Code => "code".into(),
            What::State => "vertex state".into(),
            What::Tensor(id) => self.tensors.all[id].name.clone(),
            What::Step(step) => module.instructions[self.steps.all[step].instruction].name.to_string(),
        }
    }
}
