//! Steps: the needs of an instruction on tiles besides its tensors: vertices with their state and code, bytes received
//! from other tiles, partial results. Received bytes and partial results are live only during the instruction.
//!
//! Vertices run on the tiles of the *work*: the result, the operand of a reduction, or the cells of a dot's grid. A
//! tile first receives the operand elements that it lacks. All tiles of a part count as much as the busiest one.

use indexmap::IndexMap;
use memplan_analysis::Time;
use memplan_ir::{ArrayShape, InstructionId, Op, Opcode};
use memplan_memory::Bytes;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use crate::TileSet;
use crate::alignment::{Alignment, Alignments, Reads, same_order};
use crate::chip::Chip;
use crate::codelets::{Codelet, codelet};
use crate::contraction::{Contraction, Grid, added_at_once};
use crate::mapping::Mapping;
use crate::phases::Phases;
use crate::placement::Mappings;
use crate::tensors::{Tensor, TensorId, Tensors};

/// The needs of one instruction on tiles.
#[derive(Clone, Debug)]
pub struct Step {
    /// The instruction.
    pub instruction: InstructionId,
    /// When it runs.
    pub time: Time,
    /// Its vertices, grouped by kind and set of tiles. Most steps have one part; if partial results of several tiles
    /// are added there is a second, which runs after the first.
    pub parts: SmallVec<[Part; 2]>,
}

/// Vertices of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Their tiles.
    pub tiles: TileSet,
    /// Number of the codelet in [`Steps::codelets`].
    pub codelet: usize,
    /// Vertices on a tile.
    pub vertices: u32,
    /// Bytes of their state on a tile.
    pub state: Bytes,
    /// Bytes of code on a tile that call them and receive their operands.
    pub control: Bytes,
    /// Most bytes that a tile receives.
    pub received: Bytes,
    /// Most bytes of partial and rearranged results on a tile.
    pub partials: Bytes,
}

/// The needs of all instructions.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// The steps, by time.
    pub all: Vec<Step>,
    /// Bytes of code of every codelet, by its computation.
    pub codelets: IndexMap<String, Bytes, FxBuildHasher>,
}

/// Finds what every instruction of a chip needs. Linear in the program, apart from one search for each kind of dot.
pub(crate) fn steps(chip: &Chip<'_>, tensors: &Tensors, mappings: &Mappings, phases: &Phases) -> Steps {
    let mut build = Build {
        chip: *chip,
        tensors,
        mappings,
        phases,
        alignments: Alignments::new(chip.module),
        grids: FxHashMap::default(),
        time: 0,
        steps: Steps::default(),
    };
    let instructions = (0..).zip(&chip.facts.line.instructions);
    for (time, &id) in instructions.filter(|(_, id)| (chip.runs_here)(**id)) {
        build.time = time;
        let parts = build.parts(id);
        if !parts.is_empty() {
            build.steps.all.push(Step { instruction: id, time, parts });
        }
    }
    build.steps
}

/// An array that an instruction reads or writes.
#[derive(Clone, Copy)]
struct Side<'a> {
    /// The number of the operand or part of the result.
    number: usize,
    array: &'a ArrayShape,
    elements: u64,
    width: u64,
    mapping: &'a Mapping,
    /// The most elements that one tile has at the time.
    share: u64,
    reads: Reads,
}

impl Side<'_> {
    fn bytes_of(&self, elements: u64) -> u64 {
        elements.min(self.elements).saturating_mul(self.width)
    }
}

struct Build<'a> {
    chip: Chip<'a>,
    tensors: &'a Tensors,
    mappings: &'a Mappings,
    phases: &'a Phases,
    alignments: Alignments<'a>,
    grids: FxHashMap<(Contraction, u32), Grid>,
    /// When the instruction runs that is looked at.
    time: Time,
    steps: Steps,
}

impl<'a> Build<'a> {
    fn parts(&mut self, id: InstructionId) -> SmallVec<[Part; 2]> {
        if !self.chip.module.instructions[id].op.does_work() {
            return SmallVec::new();
        }
        let alignment = self.alignments.of(id);
        let results = self.results(id);
        let operands = self.operands(id, &alignment);
        let kind = codelet(self.chip.module, id, &self.chip.machine.costs);
        match self.contraction(id) {
            Some(contraction) => {
                let contraction = match self.phases.get(&id) {
                    Some(&(axis, phases)) => contraction.in_phases(axis, phases),
                    None => contraction,
                };
                self.contract(id, &contraction, kind, &results)
            }
            None => self.walk(id, &alignment, kind, &results, &operands),
        }
    }

    /// Vertices that iterate over the elements of the result or of a reduction's operand.
    fn walk(
        &mut self,
        id: InstructionId,
        alignment: &Alignment,
        kind: Codelet,
        results: &[Side<'a>],
        operands: &[Side<'a>],
    ) -> SmallVec<[Part; 2]> {
        let largest = |sides: &[Side<'a>]| sides.iter().copied().max_by_key(|side| side.elements);
        let aligned: Vec<Side<'a>> =
            operands.iter().copied().filter(|side| side.reads == Reads::InStep).collect();
        let reduced = alignment.reduces.then(|| largest(&aligned)).flatten();
        let Some(work) = reduced.or_else(|| largest(results)) else { return SmallVec::new() };
        let moved_to = self.chip.wishes.vertices.get(&id);
        let tiles = moved_to.cloned().unwrap_or_else(|| work.mapping.tile_set());
        let share = match moved_to {
            Some(tiles) => work.elements.div_ceil(tiles.len().max(1).into()),
            None => work.share.min(work.elements),
        };
        let share = share.div_ceil(self.phases.get(&id).map_or(1, |&(_, phases)| phases));
        let is_here = |side: &Side<'a>| {
            moved_to.is_none()
                && side.reads == Reads::InStep
                && same_order(side.array, work.array)
                && side.mapping == work.mapping
        };
        let op = &self.chip.module.instructions[id].op;
        let mut needs = Vec::new();
        let mut joined = 0;
        for side in operands.iter().filter(|side| !is_here(side)) {
            match (side.reads, needed(op, side, &work, share, reduced.is_some())) {
                (Reads::Joined, bytes) => joined = bytes.max(joined),
                // Operations on sums run where the sums end up.
                (Reads::InStep, bytes) => {
                    needs.push(epilogue(side, reduced.is_some(), results).unwrap_or(bytes))
                }
                (_, bytes) => needs.push(bytes),
            }
        }
        needs.push(joined);
        // Vertices that were put elsewhere send their results home.
        let sent_home = moved_to
            .map_or(0, |_| results.iter().map(|side| side.bytes_of(share)).fold(0, u64::saturating_add));
        let mut parts = SmallVec::new();
        let (touched, contributions) = match reduced {
            Some(work) => reduction(alignment, &work, results, share),
            None => (0, 1),
        };
        let sums = results.iter().map(|side| side.bytes_of(touched)).fold(0, u64::saturating_add);
        let fields = operands.len() + results.len();
        let first = self.part(tiles, &kind, fields, share.saturating_mul(work.width), &needs);
        parts.push(Part {
            partials: Bytes(sums.saturating_add(working_memory(op, &work, share)).saturating_add(sent_home)),
            ..first
        });
        if let (true, Some(result)) = (contributions > 1, largest(results)) {
            parts.push(self.sum_up(&result, contributions));
        }
        parts
    }

    /// The cells of a dot or convolution, and the sums over cells where the depth is cut.
    fn contract(
        &mut self,
        id: InstructionId,
        contraction: &Contraction,
        kind: Codelet,
        results: &[Side<'a>],
    ) -> SmallVec<[Part; 2]> {
        let Some(result) = results.iter().copied().max_by_key(|side| side.elements) else {
            return SmallVec::new();
        };
        let (target, machine) = (self.chip.target, self.chip.machine);
        let wanted = self.chip.wishes.vertices.get(&id);
        let most = wanted.map_or(machine.count, TileSet::len);
        let grid = *self
            .grids
            .entry((contraction.clone(), most))
            .or_insert_with(|| contraction.grid(target, machine, most));
        let cells = grid.cells().clamp(1, most);
        let first = result.mapping.tile_set().ranges().first().map_or(0, |range| range.start);
        let tiles = match wanted {
            Some(wanted) => TileSet::new(wanted.iter().take(cells as usize).map(|tile| tile..tile + 1)),
            None => TileSet::wrapped(first, cells, 0..machine.count),
        };
        let costs = &machine.costs;
        let workers = u64::from(machine.threads);
        let codelet = self.number(&kind);
        let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
        parts.push(Part {
            tiles,
            codelet,
            vertices: machine.threads,
            state: Bytes(
                3 * costs.pointer_state.0 + 4 * costs.scalar_state.0 + workers * costs.worklist_state.0,
            ),
            control: Bytes(grid.passes * (costs.call_code.0 + 2 * costs.receive_code.0)),
            received: grid.operands,
            partials: grid.partials,
        });
        if grid.cuts[3] > 1 {
            parts.push(Part { received: grid.sums, ..self.sum_up(&result, grid.cuts[3]) });
        }
        parts
    }

    /// Vertices that add partial results from several tiles on the tiles of the result.
    fn sum_up(&mut self, result: &Side<'a>, contributions: u64) -> Part {
        let at_once = added_at_once(contributions, self.chip.machine.count);
        let share = result.share.min(result.elements);
        let kind = Codelet {
            name: format!("sum of partials {}", result.array.element_type),
            code: self.chip.machine.costs.code_of(Opcode::Reduce),
        };
        let bytes =
            share.saturating_mul(result.width.max(self.chip.machine.partial_bytes.0)).saturating_mul(at_once);
        self.part(result.mapping.tile_set(), &kind, 2, share.saturating_mul(result.width), &[bytes])
    }

    fn part(&mut self, tiles: TileSet, kind: &Codelet, fields: usize, share: u64, needs: &[u64]) -> Part {
        let costs = &self.chip.machine.costs;
        // Each worker has a vertex as long as there is something to load for it.
        let vertices = share.div_ceil(8).clamp(1, self.chip.machine.threads.into());
        let fields = (fields as u64).saturating_sub(1).saturating_mul(costs.pointer_state.0);
        let messages = needs.iter().filter(|&&bytes| bytes > 0).count() as u64;
        Part {
            tiles,
            codelet: self.number(kind),
            vertices: vertices as u32,
            state: Bytes((costs.span_state.0 + fields).saturating_mul(vertices)),
            control: Bytes(costs.call_code.0.saturating_add(messages.saturating_mul(costs.receive_code.0))),
            received: Bytes(needs.iter().copied().fold(0, u64::saturating_add)),
            partials: Bytes::ZERO,
        }
    }

    /// The number of a codelet. Vertices that only move data by exchange share one.
    fn number(&mut self, kind: &Codelet) -> usize {
        let entry = self.steps.codelets.entry(kind.name.clone());
        let number = entry.index();
        entry.or_insert(kind.code);
        number
    }

    fn results(&self, id: InstructionId) -> Vec<Side<'a>> {
        let shape = self.chip.module.shape(id);
        let positions = self.chip.facts.flow.positions.of(id);
        let sides = positions.filter_map(|position| {
            let value = self.chip.facts.flow.value_at(position)?;
            let array = shape.subshape(self.chip.facts.flow.positions.shape_index(position))?.as_array()?;
            (self.chip.facts.flow.values[value].definition == position).then_some(())?;
            self.side(0, self.tensors.of(value)?, array, Reads::InStep)
        });
        sides.collect()
    }

    fn operands(&self, id: InstructionId, alignment: &Alignment) -> Vec<Side<'a>> {
        let operands = self.chip.module.instructions[id].operands.iter().enumerate();
        let sides = operands.filter_map(|(i, &operand)| {
            let array = self.chip.module.shape(operand).as_array()?;
            let tensor = self.tensors.of(self.chip.facts.flow.value_of(operand)?)?;
            self.side(i, tensor, array, alignment.reads.get(i).copied().unwrap_or(Reads::Anyhow))
        });
        sides.collect()
    }

    fn side(&self, number: usize, tensor: TensorId, array: &'a ArrayShape, reads: Reads) -> Option<Side<'a>> {
        let mapping = self.mappings[tensor].as_ref()?;
        Some(Side {
            number,
            array,
            elements: array.element_count().unwrap_or(self.tensors.all[tensor].elements),
            width: u64::from(array.element_type.byte_width()).max(1),
            mapping,
            share: self.share(tensor, mapping),
            reads,
        })
    }

    /// The most elements of a tensor on one tile: for a tensor outside the chip, of the loaded part.
    fn share(&self, tensor: TensorId, mapping: &Mapping) -> u64 {
        let Tensor { element_bytes, streamed, .. } = &self.tensors.all[tensor];
        let whole = mapping.largest_share();
        match streamed.as_ref().and_then(|streaming| streaming.at(self.time)) {
            Some(visit) => {
                let elements = visit.bytes.0.div_ceil(*element_bytes);
                elements.div_ceil(mapping.tile_set().len().max(1).into()).min(whole)
            }
            None => whole,
        }
    }

    /// The contraction of a dot or convolution, or of the first one in a fusion.
    fn contraction(&self, id: InstructionId) -> Option<Contraction> {
        let instruction = &self.chip.module.instructions[id];
        let array = |id: InstructionId| self.chip.module.shape(id).as_array();
        match &instruction.op {
            Op::Fusion(_) => {
                let fused = &self.chip.module.computations[*instruction.called.first()?];
                fused.instructions.iter().find_map(|&inner| match self.chip.module.instructions[inner].op {
                    // A fusion in a fusion is looked into by its own callers; verified modules are not that deep.
                    Op::Fusion(_) => None,
                    _ => self.contraction(inner),
                })
            }
            Op::Convolution(convolution) => Some(Contraction::of_convolution(
                array(instruction.operands[0])?,
                array(instruction.operands[1])?,
                array(id)?,
                convolution,
            )),
            op => {
                let dimensions = op.dot_dimensions()?;
                let [lhs, rhs] = [0, 1].map(|i| array(instruction.operands[i]));
                Some(Contraction::of_dot(lhs?, rhs?, dimensions))
            }
        }
    }
}

/// Bytes of an operand that a tile needs from others for its share of the work.
fn needed(op: &Op, side: &Side<'_>, work: &Side<'_>, share: u64, reduces: bool) -> u64 {
    // One element for each element of the work; where several are summed up, as many as there are in the mean.
    let several = reduces || matches!(op, Op::ReduceWindow(_) | Op::SelectAndScatter(_) | Op::CustomCall(_));
    let mean = if several { side.elements.div_ceil(work.elements.max(1)).max(1) } else { 1 };
    let proportional = share.saturating_mul(mean);
    match op {
        // Moves: what arrives, arrives in the result.
        Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Slice { .. }
        | Op::Concatenate { .. }
        | Op::Pad { .. }
        | Op::Broadcast { .. }
        | Op::Copy
        | Op::AllGather(_)
        | Op::CollectivePermute(_) => 0,
        // Rows are selected on their tiles and sent to their destinations; all tiles receive the indices.
        Op::Gather(_) | Op::DynamicSlice { .. } if side.number == 0 => work.bytes_of(share),
        Op::Gather(_) | Op::DynamicSlice { .. } => side.bytes_of(side.elements),
        // The indices, then the updates that belong here.
        Op::Scatter(_) if !side.array.element_type.is_integral() => side.bytes_of(share),
        Op::Scatter(_) => side.bytes_of(side.elements),
        Op::DynamicUpdateSlice if side.number > 1 => side.bytes_of(side.elements),
        Op::ReduceWindow(window) | Op::SelectAndScatter(window) => {
            // Windows reach over the end of a share, by rows of the first dimension that they are wider than; where that
            // is far, tiles get all there is along those dimensions instead, as few lines as there are for each.
            let wide = |&d: &usize| window.dimensions[d].size > 1;
            let extent =
                |d: usize| u64::try_from(side.array.dimensions.get(d).copied().unwrap_or(1)).unwrap_or(1);
            let dimensions = || (0..window.dimensions.len()).filter(wide);
            let halo = dimensions().next().map_or(0, |d| {
                let inner = (d + 1..side.array.rank()).map(extent).fold(1, u64::saturating_mul);
                u64::try_from(window.dimensions[d].size - 1).unwrap_or(0).saturating_mul(inner)
            });
            let lines = whole(proportional, dimensions().map(|d| extent(d) as i64));
            side.bytes_of(proportional.saturating_add(halo).min(lines))
        }
        // A transform is done along one dimension after the other, on whole rows; so are factors and solutions.
        Op::Fft { lengths, .. } => side.bytes_of(whole(share, lengths.iter().copied().max().into_iter())),
        Op::Cholesky { .. } | Op::TriangularSolve(_) => {
            let rank = side.array.rank();
            side.bytes_of(whole(share, side.array.dimensions[rank.saturating_sub(1)..].iter().copied()))
        }
        _ if side.reads == Reads::Rows => {
            side.bytes_of(share.div_ceil((work.elements / side.elements.max(1)).max(1)) + 1)
        }
        _ => side.bytes_of(proportional),
    }
}

/// Bytes that a tile needs of an operand that is combined with the result of a reduction, if it is such an operand.
fn epilogue(side: &Side<'_>, reduces: bool, results: &[Side<'_>]) -> Option<u64> {
    let result = results.iter().find(|result| reduces && same_order(result.array, side.array))?;
    let is_there = result.mapping == side.mapping;
    Some(if is_there { 0 } else { side.bytes_of(result.share) })
}

/// A share rounded up to whole blocks.
fn whole(share: u64, extents: impl Iterator<Item = i64>) -> u64 {
    let block = extents.map(|n| u64::try_from(n).unwrap_or(1).max(1)).fold(1, u64::saturating_mul);
    share.div_ceil(block).saturating_mul(block)
}

/// Bytes that vertices need while they work, besides operands and partial sums.
fn working_memory(op: &Op, work: &Side<'_>, share: u64) -> u64 {
    match op {
        // Elements narrower than a word cannot be exchanged on their own: what arrives is put in order afterwards.
        Op::Transpose { .. } | Op::Reverse { .. } | Op::Copy if work.width < 4 => work.bytes_of(share),
        // Shares are exchanged with a partner and merged.
        Op::Sort { .. } | Op::TopK { .. } | Op::AllReduce(_) | Op::ReduceScatter(_) => work.bytes_of(share),
        Op::Fft { lengths, .. } => work.bytes_of(whole(share, lengths.iter().copied().max().into_iter())),
        _ => 0,
    }
}

/// How many results a tile has partial sums of, and how many tiles add to one result.
fn reduction(alignment: &Alignment, work: &Side<'_>, results: &[Side<'_>], share: u64) -> (u64, u64) {
    let outputs = results.iter().map(|side| side.elements).max().unwrap_or(1).max(1);
    let factor = work.elements.div_ceil(outputs).max(1);
    match alignment.reduces_minor {
        // The summands of one result are adjacent.
        true => (share.div_ceil(factor) + 1, factor.div_ceil(share.max(1)) + 1),
        false => (share, factor.min(work.mapping.tile_set().len().into())),
    }
}
