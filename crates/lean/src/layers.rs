//! `checkpoint-layers`: does to unrolled programs what `jax.checkpoint` around each layer does.
//!
//! The pass finds layers by the values that cross from one to the next. The forward half is ordered by the longest path
//! from the arguments. Values that are made before a place and read after it in that half cross this place:
//!
//! ```text
//!   x ── norm, q, k, v, scores, .. ──► x' ── norm, q, k, v, ..      few bytes cross at x', many at scores
//! ```
//!
//! Layers end at places that few bytes cross, and that recur after similar operations. If there are none, the forward
//! half is divided into segments of equally many bytes, and each segment ends at the place near its end that the fewest
//! bytes cross. The values that cross there are saved; the backward half computes all others again, layer by layer
//! ([`checkpoint`]).
//!
//! Left alone: programs without a backward half, and all computations but the entry. *Changed* means that a value is
//! recomputed.

use memplan_analysis::{Phase, Phases};
use memplan_ir::{InstructionId, Module, Op, Opcode, ShapeId};
use memplan_memory::Target;
use memplan_rewriter::cost;
use memplan_rewriter::rows::makes_values;
use memplan_rewriter::{Context, Outcome, Pass, PassError, call_graph};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::checkpoint::{Checkpoint, checkpoint};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointLayers {
    /// Where layers end.
    pub borders: Borders,
    /// What is saved within a segment.
    pub saves: Saves,
    /// Whether the gradients of a layer's weights are complete before the layer before it is computed again.
    pub gradients_first: bool,
}

/// Where layers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borders {
    /// Behind operations that are alike: those of this rank, of the places that few bytes cross; every `every`th of them.
    Alike {
        /// 0 for the place in each layer that the fewest bytes cross.
        rank: usize,
        /// 1 for each layer.
        every: usize,
    },
    /// Between this many segments of about equally many kept bytes.
    Segments(u64),
}

/// Values that a checkpoint saves beside its inputs: the names of `jax.checkpoint_policies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// `nothing_saveable`.
    Nothing,
    /// `dots_with_no_batch_dims_saveable`: products with weights.
    DotsWithNoBatchDims,
    /// `dots_saveable`: all products and convolutions.
    Dots,
}

/// The pass with a checkpoint around each layer, and nothing saved in it.
pub const CHECKPOINT_LAYERS: CheckpointLayers = CheckpointLayers {
    borders: Borders::Alike { rank: 0, every: 1 },
    saves: Saves::Nothing,
    gradients_first: true,
};

impl Default for CheckpointLayers {
    fn default() -> CheckpointLayers {
        CHECKPOINT_LAYERS
    }
}

impl Pass for CheckpointLayers {
    fn name(&self) -> &'static str {
        "checkpoint-layers"
    }

    fn description(&self) -> &'static str {
        "Let the backward half compute each layer again from what its forward half began with"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let graph = call_graph(module, self.name())?;
        let phases = Phases::new(module, &graph);
        if !phases.has_backward() || module.is_scheduled || has_checkpoints(module) {
            return Ok(Outcome::default());
        }
        let borders = Forward::new(module, context.target, &phases).borders(self.borders);
        let found = checkpoint(
            module,
            &Checkpoint {
                phase: &|id| phases.of(id),
                is_saved: &|id| self.saves.saves(&module.instructions[id].op),
                is_border: &|id| borders.contains(&id),
                gradients_first: self.gradients_first,
            },
        );
        let changed = found.is_some();
        if let Some(found) = found {
            *module = found;
        }
        Ok(changed.into())
    }
}

impl Saves {
    /// Whether the result of an operation is saved.
    pub fn saves(self, op: &Op) -> bool {
        match (self, op) {
            (Saves::Nothing, _) => false,
            (Saves::Dots, op) => matches!(op, Op::Dot(_) | Op::Convolution(_)),
            (Saves::DotsWithNoBatchDims, Op::Dot(dot)) => dot.dimensions.lhs_batch.is_empty(),
            (Saves::DotsWithNoBatchDims, _) => false,
        }
    }
}

/// Whether the entry has checkpoints already: those of a person, or of this pass.
fn has_checkpoints(module: &Module) -> bool {
    let entry = module.entry_computation();
    entry.instructions.iter().any(|&id| matches!(module.instructions[id].op, Op::OptimizationBarrier))
}

/// Operations and the shapes that they make.
type MadeBy = Vec<(Opcode, ShapeId)>;

/// The forward half, and what crosses each of its places.
struct Forward<'a> {
    module: &'a Module,
    /// In order; the place of an instruction is behind it.
    instructions: Vec<InstructionId>,
    is_made: FxHashSet<InstructionId>,
    /// The last place whose instruction reads the value of each.
    last: Vec<usize>,
    /// Bytes that cross each place.
    crossing: Vec<u64>,
    /// Bytes that are kept for the backward half up to each place.
    kept: Vec<u64>,
}

impl<'a> Forward<'a> {
    fn new(module: &'a Module, target: &Target, phases: &Phases) -> Forward<'a> {
        let instructions = forward_by_depth(module, phases);
        let place: FxHashMap<InstructionId, usize> =
            instructions.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let is_made = made(module, &instructions);
        let mut last: Vec<usize> = (0..instructions.len()).collect();
        let mut is_kept: FxHashSet<InstructionId> = FxHashSet::default();
        for &id in &module.entry_computation().instructions {
            for operand in &module.instructions[id].operands {
                match (place.get(&id), place.get(operand)) {
                    (Some(&reader), Some(&of)) => last[of] = last[of].max(reader),
                    (None, Some(_)) if phases.of(id) == Phase::Backward => {
                        is_kept.insert(*operand);
                    }
                    _ => {}
                }
            }
        }
        let (mut crossing, mut kept) = (Vec::new(), Vec::new());
        let mut ends: Vec<u64> = vec![0; instructions.len()];
        let (mut live, mut sum) = (0u64, 0u64);
        for (i, &id) in instructions.iter().enumerate() {
            let bytes = if is_made.contains(&id) { cost::result_bytes(module, target, id) } else { 0 };
            if last[i] > i {
                live = live.saturating_add(bytes);
                ends[last[i]] = ends[last[i]].saturating_add(bytes);
            }
            live = live.saturating_sub(ends[i]);
            sum = sum.saturating_add(if is_kept.contains(&id) { bytes } else { 0 });
            crossing.push(live);
            kept.push(sum);
        }
        Forward { module, instructions, is_made, last, crossing, kept }
    }

    /// The values that cross the borders.
    fn borders(&self, borders: Borders) -> FxHashSet<InstructionId> {
        let places = match borders {
            Borders::Alike { rank, every } => self.alike(rank, every),
            Borders::Segments(n) => self.segments(n),
        };
        let is_last =
            |i: &usize, place: usize| self.is_made.contains(&self.instructions[*i]) && self.last[*i] > place;
        let crossing = |place: usize| (0..=place).filter(move |i| is_last(i, place));
        places.into_iter().flat_map(|place| crossing(place).map(|i| self.instructions[i])).collect()
    }

    /// Every `every`th of the places behind operations that are alike.
    fn alike(&self, rank: usize, every: usize) -> Vec<usize> {
        let few = self.few();
        let mut groups: Vec<(MadeBy, Vec<usize>)> = Vec::new();
        for i in self.ends().filter(|&i| self.crossing[i] <= few) {
            let made_by = self.made_by(self.instructions[i]);
            match groups.iter_mut().find(|(known, _)| *known == made_by) {
                Some((_, places)) => places.push(i),
                None => groups.push((made_by, vec![i])),
            }
        }
        groups.retain(|(_, places)| places.len() > 1);
        let places = groups.into_iter().nth(rank).map(|(_, places)| places).unwrap_or_default();
        places.into_iter().skip(every - 1).step_by(every).collect()
    }

    /// Places where a layer may end: a value that crosses is made right there.
    fn ends(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.instructions.len())
            .filter(|&i| self.last[i] > i && self.is_made.contains(&self.instructions[i]))
    }

    /// Few bytes, of all that cross a place: hardly more than what crosses best in most parts of the forward half.
    fn few(&self) -> u64 {
        let mut least: Vec<u64> = self.segments(STRETCHES).iter().map(|&i| self.crossing[i]).collect();
        least.sort_unstable();
        let typical = least.get(least.len() / 2).copied().unwrap_or(0);
        typical.saturating_add(typical / FEW)
    }

    /// What makes a value: its operation, and those of what it reads, two steps back.
    fn made_by(&self, id: InstructionId) -> MadeBy {
        let mut made_by = Vec::new();
        let mut open = vec![(id, 0)];
        while let Some((id, steps)) = open.pop() {
            let instruction = &self.module.instructions[id];
            made_by.push((instruction.op.opcode(), instruction.shape));
            if steps < 2 {
                open.extend(instruction.operands.iter().map(|&operand| (operand, steps + 1)));
            }
        }
        made_by
    }

    /// Around each end of a segment, the place that the fewest bytes cross.
    fn segments(&self, n: u64) -> Vec<usize> {
        let all = self.kept.last().copied().unwrap_or(0);
        let ends: Vec<usize> = self.ends().collect();
        let at = |halves: u64| ends.partition_point(|&i| self.kept[i] < all / 2 / n * halves);
        let best =
            |k: u64| ends[at(2 * k - 1)..at(2 * k + 1)].iter().copied().min_by_key(|&i| self.crossing[i]);
        (1..n).filter_map(best).collect()
    }
}

/// Stretches of the forward half in which bytes that cross are compared.
const STRETCHES: u64 = 8;

/// Places count as crossed by few bytes up to this part above the fewest.
const FEW: u64 = 4;

/// The forward half, each instruction right after what it needs: the text has many a value where the backward half wants it.
fn forward_by_depth(module: &Module, phases: &Phases) -> Vec<InstructionId> {
    let mut depth: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let mut forward = Vec::new();
    for &id in &module.entry_computation().instructions {
        let deepest = module.instructions[id].operands.iter().filter_map(|operand| depth.get(operand)).max();
        depth.insert(id, deepest.map_or(0, |depth| depth + 1));
        if phases.of(id) == Phase::Forward {
            forward.push(id);
        }
    }
    forward.sort_by_key(|id| depth[id]);
    forward
}

/// The values that take bytes and are made of more than parameters: weights in another type are made where they are used.
fn made(module: &Module, forward: &[InstructionId]) -> FxHashSet<InstructionId> {
    let mut made: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in forward {
        let instruction = &module.instructions[id];
        let is_combination = instruction.operands.len() > 1;
        let is_made = instruction.operands.iter().any(|operand| made.contains(operand)) || is_combination;
        if makes_values(&instruction.op) && is_made {
            made.insert(id);
        }
    }
    made
}
