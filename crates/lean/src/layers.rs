//! `checkpoint-layers`: does to unrolled programs what `jax.checkpoint` around each layer does.
//!
//! The pass finds layers by the values that cross from one to the next. The forward half is ordered such that networks beside
//! each other come one after the other, and random numbers where they are used. Values that are made before a place and read
//! after it in that half cross this place:
//!
//! ```text
//!   x ── norm, q, k, v, scores, .. ──► x' ── norm, q, k, v, ..      few bytes cross at x', many at scores
//! ```
//!
//! Layers end at places that few bytes cross, and that recur after similar operations, with much that is kept for the backward
//! half between them: what makes random numbers recurs as well, but keeps nothing. A border that saves more than its layer
//! keeps is left out. If there are none, the forward half is divided into segments of equally many bytes, and each segment ends
//! at the place near its end that the fewest bytes cross. The values that cross there are saved; the backward half computes all
//! others again, layer by layer ([`checkpoint`]).
//!
//! Left alone: programs without a backward half, and all computations but the entry. *Changed* means that a value is
//! recomputed.
//!
//! What is computed again and the gradient behind it may become one kernel of the compiler, which then writes both. So gradients
//! of weights may come first ([`GRADIENTS_FIRST`]).
//!
//! A part of the layers may be checkpointed: the first ones, which are computed again last, when the fewest bytes are live, or
//! the last ones, if a program begins with large images. Values behind the last border may be saved: the backward half reads
//! them at once. Or all values may be saved but those that are wide and cheap, as attention scores are ([`Saved::Narrow`]).

use memplan_analysis::{Phase, Phases};
use memplan_ir::{InstructionId, Module, Op, Opcode, ShapeId};
use memplan_memory::Target;
use memplan_rewriter::cost;
use memplan_rewriter::rows::makes_values;
use memplan_rewriter::{Context, Outcome, Pass, PassError, call_graph};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::checkpoint::{Checkpoint, checkpoint};
use crate::gradients_first::{GRADIENTS_FIRST, GradientsFirst};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointLayers {
    /// Where layers end.
    pub borders: Borders,
    /// What is saved within a segment.
    pub saved: Saved,
    /// Whether values behind the last border are computed again. The backward half reads them at once, so most of them are
    /// live together in any case.
    pub last_layer: bool,
    /// Whether gradients of weights also come first within a layer, as [`GRADIENTS_FIRST`] has it.
    pub gradients_first: bool,
    /// The part of the forward half whose layers are computed again: from which to which share of the kept bytes.
    pub within: [f64; 2],
}

/// Where layers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borders {
    /// Behind operations that are alike, of the places that few bytes cross; every `every`th of them.
    Alike {
        /// 1 for each layer.
        every: usize,
    },
    /// Behind each product and convolution.
    Products,
    /// Between this many segments of about equally many kept bytes: 1 for the whole.
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

/// What is saved in a part of the forward half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// What a policy saves.
    By(Saves),
    /// All but what is cheap and wide. Wide values take at least this many times the bytes that usually cross the end of a layer, as
    /// attention scores do: it is `jax.checkpoint` around the attention alone.
    Narrow(u64),
}

/// The pass with a checkpoint around each layer, and nothing saved in it.
pub const CHECKPOINT_LAYERS: CheckpointLayers = CheckpointLayers {
    borders: Borders::Alike { every: 1 },
    saved: Saved::By(Saves::Nothing),
    last_layer: true,
    gradients_first: false,
    within: [0.0, 1.0],
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
        let forward = Forward::new(module, context.target, &phases);
        let places = forward.places(self.borders);
        let mut borders = forward.crossing(&places);
        let outside = forward.outside(self, &places);
        let saved = forward.saved(self.saved, &places, context.target);
        if self.borders == Borders::Products {
            let all = forward.instructions.iter().copied();
            borders.extend(all.filter(|&id| module.instructions[id].op.is_contraction()));
        }
        let found = checkpoint(
            module,
            &Checkpoint {
                phase: &|id| phases.of(id),
                is_saved: &|id| saved.contains(&id) || outside.contains(&id),
                is_border: &|id| borders.contains(&id),
                gradients_first: true,
            },
        );
        let changed = found.is_some();
        if let Some(found) = found {
            *module = found;
            if self.gradients_first {
                GradientsFirst { in_loops: false, ..GRADIENTS_FIRST }.run(module, context)?;
            }
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

/// Whether the entry has checkpoints already: those of a person, or of this pass. Their barriers hold tuples; the barrier that
/// makes a mask of a result holds this result alone.
fn has_checkpoints(module: &Module) -> bool {
    let is_checkpoint = |&id: &InstructionId| {
        matches!(module.instructions[id].op, Op::OptimizationBarrier) && module.shape(id).is_tuple()
    };
    module.entry_computation().instructions.iter().any(is_checkpoint)
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
        let (instructions, is_made) = forward_in_order(module, phases);
        let place: FxHashMap<InstructionId, usize> =
            instructions.iter().enumerate().map(|(i, &id)| (id, i)).collect();
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

    /// The borders, in order.
    fn places(&self, borders: Borders) -> Vec<usize> {
        match borders {
            Borders::Alike { every } => self.alike(every),
            Borders::Products => Vec::new(),
            Borders::Segments(n) => self.segments(n),
        }
    }

    /// The values that cross the borders, except those that follow from larger ones: the sum of a row is computed again from
    /// the row, in the kernel that needs it.
    fn crossing(&self, places: &[usize]) -> FxHashSet<InstructionId> {
        let is_made = |id: &InstructionId| self.is_made.contains(id);
        let crossing = |&place: &usize| -> FxHashSet<InstructionId> {
            let crosses = |&i: &usize| self.last[i] > place;
            (0..=place).filter(crosses).map(|i| self.instructions[i]).filter(is_made).collect()
        };
        let mut all = FxHashSet::default();
        for mut crossing in places.iter().map(crossing) {
            let follow: Vec<InstructionId> =
                crossing.iter().copied().filter(|&id| self.follows(id, &crossing)).collect();
            follow.iter().for_each(|id| _ = crossing.remove(id));
            all.extend(crossing);
        }
        all
    }

    /// Whether sums and operations on elements make a value from larger ones of a set, and from parameters.
    fn follows(&self, id: InstructionId, from: &FxHashSet<InstructionId>) -> bool {
        let elements = |id| self.module.shape(id).as_array().map(|array| array.element_count());
        let (mut open, mut seen, mut reads_some) = (vec![id], FxHashSet::default(), false);
        while let Some(at) = open.pop() {
            if at != id && from.contains(&at) {
                if elements(at) <= elements(id) {
                    return false;
                }
                reads_some = true;
            } else if self.is_made.contains(&at) && seen.insert(at) {
                if !is_cheap(self.module, at) || seen.len() > MOST_STEPS {
                    return false;
                }
                open.extend(&self.module.instructions[at].operands);
            }
        }
        reads_some
    }

    /// What is made outside of the part of the forward half that is computed again. This part ends at borders, if there are any;
    /// before the first one it may end anywhere if products are saved.
    fn outside(&self, pass: &CheckpointLayers, places: &[usize]) -> FxHashSet<InstructionId> {
        let [from, to] = pass.within;
        let all = self.kept.last().copied().unwrap_or(0) as f64;
        let is_before = |share: f64| move |&place: &usize| (self.kept[place] as f64) < all * share;
        let end = match places.last() {
            Some(place) if !pass.last_layer => place + 1,
            _ => self.instructions.len(),
        };
        let saves_products = matches!(pass.saved, Saved::By(Saves::Dots) | Saved::Narrow(_));
        let first_border = places.first().copied().unwrap_or(usize::MAX);
        let is_free = |&i: &usize| if saves_products { i < first_border } else { places.is_empty() };
        let places: Vec<usize> = self.ends().filter(is_free).chain(places.iter().copied()).collect();
        let first = places.get(places.partition_point(is_before(from))).map_or(end, |place| place + 1);
        let last = places[..places.partition_point(is_before(to))].last().map_or(0, |place| place + 1);
        let first = if from > 0.0 { first } else { 0 };
        let last = if to < 1.0 { last.max(first) } else { end };
        let (before, after) = (&self.instructions[..first], &self.instructions[last..]);
        before.iter().chain(after).copied().collect()
    }

    /// The values of the forward half that are saved.
    fn saved(&self, saved: Saved, places: &[usize], target: &Target) -> FxHashSet<InstructionId> {
        let all = self.instructions.iter().copied();
        match saved {
            Saved::By(policy) => all.filter(|&id| policy.saves(&self.module.instructions[id].op)).collect(),
            Saved::Narrow(times) => {
                let wide = self.wide_and_cheap(times, places, target);
                all.filter(|id| !wide.contains(id)).collect()
            }
        }
    }

    /// The values that are cheap to compute again and take many times the bytes that usually cross the end of a layer, and the
    /// cheap ones that follow from these, as the sums of a softmax: one kernel computes both. Linear in the forward half.
    fn wide_and_cheap(&self, times: u64, places: &[usize], target: &Target) -> FxHashSet<InstructionId> {
        let crossing = median(places.iter().map(|&place| self.crossing[place]));
        let least = crossing.unwrap_or_else(|| self.typical()).saturating_mul(times).max(1);
        let mut wide = FxHashSet::default();
        for &id in &self.instructions {
            let is_cheap =
                is_cheap(self.module, id) || cost::is_dot_faster_than_memory(self.module, target, id);
            let follows =
                || self.module.instructions[id].operands.iter().any(|operand| wide.contains(operand));
            if is_cheap && (cost::result_bytes(self.module, target, id) >= least || follows()) {
                wide.insert(id);
            }
        }
        wide
    }

    /// Every `every`th of the places behind operations that are alike.
    fn alike(&self, every: usize) -> Vec<usize> {
        let few = self.few();
        let mut groups: Vec<(MadeBy, Vec<usize>)> = Vec::new();
        for i in self.ends().filter(|&i| self.crossing[i] <= few) {
            let made_by = self.made_by(self.instructions[i]);
            match groups.iter_mut().find(|(known, _)| *known == made_by) {
                // Where nothing is kept since the last place, no layer ends.
                Some((_, places)) if places.last().is_none_or(|&last| self.kept[last] < self.kept[i]) => {
                    places.push(i);
                }
                Some(_) => {}
                None => groups.push((made_by, vec![i])),
            }
        }
        let mut groups: Vec<Vec<usize>> = groups.into_iter().map(|(_, places)| places).collect();
        let most = groups.iter().map(Vec::len).max().unwrap_or(0);
        groups.retain(|places| places.len() > 1 && places.len() >= most / 2);
        // Each network has a group of its own.
        let mut networks: Vec<Vec<usize>> = Vec::new();
        for places in groups {
            let ends = |places: &[usize]| [places[0], places[places.len() - 1]];
            let [first, last] = ends(&places);
            if networks.iter().all(|of| last < ends(of)[0] || ends(of)[1] < first) {
                networks.push(places);
            }
        }
        networks.sort_unstable();
        let places = networks.iter().flat_map(|places| places.iter().skip(every - 1).step_by(every));
        self.worth_saving(places.copied())
    }

    /// The places such that between each and the one before it as much is kept as crosses: what crosses a border is saved, and
    /// the layer before it is not computed again together with the next.
    fn worth_saving(&self, places: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut kept_before = 0;
        let is_worth_it = |&place: &usize| {
            let is_worth_it = self.kept[place].saturating_sub(kept_before) >= self.crossing[place];
            if is_worth_it {
                kept_before = self.kept[place];
            }
            is_worth_it
        };
        places.filter(is_worth_it).collect()
    }

    /// Places where a layer may end: a value that crosses is made right there.
    fn ends(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.instructions.len())
            .filter(|&i| self.last[i] > i && self.is_made.contains(&self.instructions[i]))
    }

    /// Few bytes, of all that cross a place: hardly more than the typical ones.
    fn few(&self) -> u64 {
        let typical = self.typical();
        typical.saturating_add(typical / FEW)
    }

    /// The fewest bytes that cross a place in most parts of the forward half.
    fn typical(&self) -> u64 {
        median(self.segments(STRETCHES).iter().map(|&i| self.crossing[i])).unwrap_or(0)
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

/// The middle one of some numbers, the larger one of two.
fn median(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = numbers.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// Stretches of the forward half in which bytes that cross are compared.
const STRETCHES: u64 = 8;

/// The most operations by which a value follows from others. A normalization has twenty.
const MOST_STEPS: usize = 32;

/// Places count as crossed by few bytes up to this part above the fewest.
const FEW: u64 = 4;

/// Whether the kernel that uses a value can also compute it: it is a sum, or made by an operation on elements.
fn is_cheap(module: &Module, id: InstructionId) -> bool {
    match module.instructions[id].op {
        Op::Reduce { .. } | Op::Reshape { .. } | Op::Transpose { .. } | Op::Broadcast { .. } => true,
        _ => cost::is_pointwise(module, id),
    }
}

/// The instructions of the forward half in the order of a depth-first walk from the deepest result, so that networks beside
/// each other come one after the other, and random numbers where they are used. Each of the others, which only the backward
/// half reads, follows its last operand. With those of them that are [`made`].
fn forward_in_order(module: &Module, phases: &Phases) -> (Vec<InstructionId>, FxHashSet<InstructionId>) {
    let entry = &module.entry_computation().instructions;
    let is_forward = |id: InstructionId| phases.of(id) == Phase::Forward;
    let mut depth: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let mut is_read: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in entry.iter().filter(|&&id| is_forward(id)) {
        let operands =
            module.instructions[id].operands.iter().copied().filter(|&operand| is_forward(operand));
        let deepest = operands.clone().map(|operand| depth[&operand] + 1).max();
        depth.insert(id, deepest.unwrap_or(0));
        is_read.extend(operands);
    }
    let ends = entry.iter().copied().filter(|id| is_forward(*id) && !is_read.contains(id));
    let Some(last) = ends.clone().max_by_key(|id| depth[id]) else { return Default::default() };
    let mut forward = Vec::new();
    let mut is_listed: FxHashSet<InstructionId> = FxHashSet::default();
    let mut walk = |from: InstructionId, forward: &mut Vec<InstructionId>| {
        let mut stack = vec![(from, 0)];
        while let Some((id, next)) = stack.pop() {
            if is_listed.contains(&id) {
                continue;
            }
            match module.instructions[id].operands.get(next) {
                Some(&operand) => {
                    stack.push((id, next + 1));
                    if is_forward(operand) {
                        stack.push((operand, 0));
                    }
                }
                None => {
                    is_listed.insert(id);
                    forward.push(id);
                }
            }
        }
    };
    walk(last, &mut forward);
    let mut place: FxHashMap<InstructionId, usize> =
        forward.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let n_on_the_way = forward.len();
    ends.for_each(|end| walk(end, &mut forward));
    let is_made = made(module, &forward);
    for &id in &forward[n_on_the_way..] {
        // Constants may be listed with the first that reads them, and be read everywhere.
        let operands = module.instructions[id].operands.iter().filter(|operand| is_made.contains(operand));
        let behind = operands.filter_map(|operand| place.get(operand)).max();
        place.insert(id, behind.copied().unwrap_or(0));
    }
    // Stable: an instruction stays behind its operands of the same place.
    forward.sort_by_key(|id| place[id]);
    (forward, is_made)
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
