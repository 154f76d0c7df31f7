//! Recomputation: cheap values are computed again after the peak, instead of being kept through it.
//!
//! Before: the forward half of a training step keeps masks, activations and normalized copies for the backward half.
//! After: a value is kept through the peak only if it is expensive to compute, or smaller than its operands; any other
//! value is recomputed where it is needed.
//!
//! ```text
//!   h = f32[n] dot(..)                  h = f32[n] dot(..)
//!   m = pred[n] compare(h, 0)           m = pred[n] compare(h, 0)
//!   r = f32[n] select(m, h, 0)    =>    r = f32[n] select(m, h, 0)
//!   ...  peak                           ...  peak: h and m and r, or only h
//!   g = f32[n] select(m, d, 0)          m.remat = pred[n] compare(h, 0)
//!   w = dot(r, g)                       ...
//! ```
//!
//! With a price per byte ([`Products::ForSecondsPerByte`]), matrix products, convolutions and reductions may also be
//! recomputed at the peak of the whole program. Each costs the seconds that it takes in all runs of its computation.
//!
//! A minimum cut of the data flow at the peak selects the values to keep. Each value is an edge whose capacity is its
//! bytes; expensive instructions are connected to the source, readers after the peak to the sink. (Chen et al. 2016
//! recompute segments; PyTorch partitions training graphs by the same cut, which is the minimum over all choices.) The
//! peak is that of the program after fusion, in the order of the text. After a change, the peak is at another
//! instruction, and the search continues there until no change lowers the peak.
//!
//! An instruction is cheap if one element of its result needs only a few elements of its operands. A matrix product is
//! cheap if computing it takes less time than writing its result to memory and reading it back, as for attention
//! scores. If a kernel keeps such scores on chip in the forward half (see row tiles in [`crate::Fusion`]), they are in
//! memory only while the backward half of their own layer runs.
//!
//! Left alone: other expensive operations, side effects, control dependencies. Requires that common subexpressions are not
//! merged afterwards, which would undo it.

mod live_bytes;
mod products;
pub(crate) mod recompute_network;
mod report;
mod tie;

use cranelift_entity::SecondaryMap;
use memplan_analysis::{CallGraph, frequencies};
use memplan_fusion::{FusionOptions, Grouping, Siblings};
use memplan_ir::{ComputationId, Cursor, Instruction, InstructionId, Module, Names, Op, Operands};
use memplan_memory::{Bytes, Target};
use rustc_hash::{FxHashMap, FxHashSet};

use live_bytes::{LiveBytes, Profile};
use memplan_min_cut::UNCUTTABLE;
use memplan_rewriter::cost::{self, CostClass, Hero};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Report, call_graph};
pub use products::Products;
pub use report::{LoweredPeak, Recomputed, RematReport};
pub use tie::Tie;

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remat {
    /// How recomputed values are tied to their place, for a compiler that merges common subexpressions and chooses the
    /// order itself. A pass with a tie comes last: run again, it finds another peak.
    pub tie: Option<Tie>,
    /// Which matrix products and convolutions may be recomputed.
    pub products: Products,
    /// The part of the program before the peak, from its beginning, in which values that take time may be recomputed: with
    /// a tie, all do. The first values are kept longest: with a smaller part, less is recomputed, and the peak falls less.
    pub reach: f64,
    /// Most changes to each computation. Training steps settle after three or four.
    pub max_rounds: usize,
    /// A change must lower the peak by this fraction at least: less is not worth the longer program.
    pub min_gain: f64,
    /// The options that fusion will have: the peak is that of the fused program.
    pub fusion: FusionOptions,
}

/// Recomputation as `compile` runs it.
pub const REMAT: Remat = Remat {
    tie: None,
    products: Products::Cheap,
    reach: 1.0,
    max_rounds: 12,
    min_gain: 1.0 / 512.0,
    fusion: FusionOptions::DEFAULT,
};

/// Recomputation for a compiler that keeps optimization barriers while it merges common subexpressions.
pub const REMAT_BEHIND_BARRIERS: Remat = Remat { tie: Some(Tie::Barrier), ..REMAT };

/// Recomputation for a compiler that removes barriers before it merges common subexpressions.
pub const REMAT_BEHIND_SELECTS: Remat = Remat { tie: Some(Tie::Select), ..REMAT };

impl Default for Remat {
    fn default() -> Remat {
        REMAT
    }
}

impl Pass for Remat {
    fn name(&self) -> &'static str {
        match self.tie {
            None => "remat",
            Some(Tie::Barrier) => "remat-behind-barriers",
            Some(Tie::Select) => "remat-behind-selects",
        }
    }

    fn description(&self) -> &'static str {
        match self.tie {
            None => "Recompute cheap values after the peak instead of keeping them",
            Some(Tie::Barrier) => "Recompute cheap values after the peak, behind optimization barriers",
            Some(Tie::Select) => {
                "Recompute cheap values after the peak, from operands selected by a bit that arrives late"
            }
        }
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let graph = call_graph(module, self.name())?;
        let mut names = Names::new(module);
        let mut search = Search {
            options: self,
            target: context.target,
            runs: frequencies(module, &graph),
            attempts: FxHashMap::default(),
            groupings: Groupings::default(),
            is_as_profiled: true,
            copies: FxHashSet::default(),
            changed: false,
        };
        search.lower_peaks(module, &graph, &mut names);
        if !search.changed {
            return Ok(Outcome::default());
        }
        let report = search.report(module, &graph);
        if let Some(tie) = self.tie {
            for computation in module.computations.keys().collect::<Vec<_>>() {
                tie::tie(module, computation, &search.copies, tie, &mut names);
            }
        }
        Ok(Outcome { changed: true, report: Some(Report::new(report)) })
    }
}

/// The search for values to recompute in all computations of a module.
struct Search<'a> {
    options: &'a Remat,
    target: &'a Target,
    /// How often each computation runs.
    runs: SecondaryMap<ComputationId, f64>,
    attempts: FxHashMap<ComputationId, Attempt>,
    groupings: Groupings,
    /// Whether the module is as it was last profiled.
    is_as_profiled: bool,
    /// Recomputing instructions. Those of changes that were undone are in no computation.
    copies: FxHashSet<InstructionId>,
    changed: bool,
}

impl Search<'_> {
    /// Changes each computation until its peak can be lowered no further. A change in one may move the peak of its callers,
    /// so all are profiled anew in each round.
    fn lower_peaks(&mut self, module: &mut Module, graph: &CallGraph, names: &mut Names) {
        for round in 0..=self.options.max_rounds {
            let may_change = round < self.options.max_rounds;
            let mut is_settled = true;
            let profiles = self.groupings.profiles(module, graph, self.target, &self.options.fusion);
            self.is_as_profiled = true;
            let at_peak = at_peak(module, &profiles);
            for (computation, profile) in profiles {
                let is_at_peak = at_peak.contains(&computation);
                is_settled &= self.visit(module, computation, profile, is_at_peak, may_change, names);
            }
            if is_settled {
                break;
            }
        }
    }

    /// Keeps or undoes the last change to a computation, by its effect on the peak, and makes the next one. Returns whether
    /// there is none.
    fn visit(
        &mut self,
        module: &mut Module,
        computation: ComputationId,
        profile: Profile,
        is_at_peak: bool,
        may_change: bool,
        names: &mut Names,
    ) -> bool {
        let options = self.options;
        let mut others = self.attempts.iter().filter(|(other, _)| **other != computation);
        // Nothing has changed the module since the profile, and nothing else will before the next one.
        let is_alone = self.is_as_profiled && others.all(|(_, attempt)| attempt.is_over);
        let attempt =
            self.attempts.entry(computation).or_insert_with(|| Attempt::new(options.products, profile.peak));
        if attempt.is_over {
            return true;
        }
        let mut useless = None;
        match attempt.undo.take() {
            Some((values, undo)) if profile.peak as f64 > attempt.peak as f64 * (1.0 - options.min_gain) => {
                undo.apply(module, computation);
                useless = Some(values);
            }
            undo => {
                self.changed |= undo.is_some();
                (attempt.peak, attempt.time) = (profile.peak, profile.time);
            }
        }
        // Something is undone or changed, but at the end.
        self.is_as_profiled = false;
        self.groupings.0.remove(&computation);
        loop {
            if useless.is_some() {
                // If every dot is cheap, the minimum cut may be empty: everything is recomputed at once. With fewer
                // recomputable products, something is kept.
                let Some(fewer) = attempt.tried.fewer() else {
                    attempt.is_over = true;
                    return true;
                };
                attempt.products = fewer;
            }
            let products = if is_at_peak { attempt.products } else { attempt.products.off_the_peak() };
            let (time, runs) = (attempt.time, self.runs[computation]);
            let values = may_change
                .then(|| {
                    values_to_recompute(module, self.target, computation, time, (products, options), runs)
                })
                .flatten();
            attempt.tried = products;
            let Some(values) = values else {
                // Off the peak less was tried than may be.
                attempt.is_over = products == attempt.products;
                return true;
            };
            let undo = recompute(module, computation, time, &values, names, &mut self.copies);
            if !is_alone || useless.as_ref() != Some(&values) {
                attempt.undo = Some((values, undo));
                return false;
            }
            // The same change lowers the peak as little as before.
            undo.apply(module, computation);
        }
    }

    /// The recomputed values, and the reduction of each computation's peak.
    fn report(&self, module: &Module, graph: &CallGraph) -> RematReport {
        let lowered = graph.sequential().iter().filter_map(|&computation| {
            let attempt =
                self.attempts.get(&computation).filter(|attempt| attempt.peak < attempt.first_peak)?;
            Some(LoweredPeak {
                computation: module.computations[computation].name.clone(),
                before: Bytes(attempt.first_peak),
                after: Bytes(attempt.peak),
            })
        });
        RematReport {
            peaks: lowered.collect(),
            values: report::recomputed(module, self.target, &self.copies),
        }
    }
}

/// The peak of every computation as fusion would leave it, callees before callers.
pub(crate) fn profiles(
    module: &Module,
    graph: &CallGraph,
    target: &Target,
    options: &FusionOptions,
) -> Vec<(ComputationId, Profile)> {
    Groupings::default().profiles(module, graph, target, options)
}

/// How fusion would group the computations that did not change since they were profiled.
#[derive(Default)]
struct Groupings(FxHashMap<ComputationId, Grouping>);

impl Groupings {
    /// The peak of every computation, callees before callers.
    fn profiles(
        &mut self,
        module: &Module,
        graph: &CallGraph,
        target: &Target,
        options: &FusionOptions,
    ) -> Vec<(ComputationId, Profile)> {
        let mut changed = graph.sequential().to_vec();
        changed.retain(|computation| !self.0.contains_key(computation));
        self.0.extend(memplan_fusion::group(module, &changed, target, Siblings::Leave, false, options));
        let mut live = LiveBytes::new(module, target);
        let computations = graph.sequential().iter();
        computations
            .map(|&computation| (computation, live.profile(computation, &self.0[&computation])))
            .collect()
    }
}

/// The computations that run when the program is at its peak, from the entry down.
fn at_peak(module: &Module, profiles: &[(ComputationId, Profile)]) -> FxHashSet<ComputationId> {
    let profiles: FxHashMap<ComputationId, Profile> = profiles.iter().copied().collect();
    let mut found = FxHashSet::default();
    let mut next = Some(module.entry);
    while let Some(computation) = next.filter(|&computation| found.insert(computation)) {
        let profile = profiles.get(&computation);
        let running =
            profile.and_then(|profile| module.computations[computation].instructions.get(profile.time));
        let callees = running.map(|&id| &module.instructions[id]).filter(|running| running.op.runs_callees());
        let callees = callees.into_iter().flat_map(|running| &running.called).copied();
        next = callees.max_by_key(|callee| profiles.get(callee).map(|profile| profile.peak));
    }
    found
}

/// The state of the search in one computation.
#[derive(Clone, Debug)]
struct Attempt {
    /// Bytes live at the peak before all changes.
    first_peak: u64,
    /// Bytes live at the peak before the last change.
    peak: u64,
    /// The position of that peak in the text.
    time: usize,
    /// Which products may be recomputed.
    products: Products,
    /// Those that the last change was free to recompute.
    tried: Products,
    /// The values that the last change recomputes, and how to undo it.
    undo: Option<(FxHashSet<InstructionId>, Undo)>,
    is_over: bool,
}

impl Attempt {
    fn new(products: Products, peak: u64) -> Attempt {
        Attempt { first_peak: peak, peak, time: 0, products, tried: products, undo: None, is_over: false }
    }
}

/// A computation before a change.
#[derive(Clone, Debug)]
struct Undo {
    instructions: Vec<InstructionId>,
    operands: Vec<(InstructionId, Operands)>,
}

impl Undo {
    fn apply(self, module: &mut Module, computation: ComputationId) {
        module.computations[computation].instructions = self.instructions;
        for (id, operands) in self.operands {
            module.instructions[id].operands = operands;
        }
    }
}

/// The values defined before `time` and needed from then on that are best recomputed: those on the sink's side of the
/// minimum cut. `None` where there are none.
fn values_to_recompute(
    module: &Module,
    target: &Target,
    computation: ComputationId,
    time: usize,
    (products, options): (Products, &Remat),
    runs: f64,
) -> Option<FxHashSet<InstructionId>> {
    let (before, after) = module.computations[computation].instructions.split_at(time);
    let is_before: FxHashSet<InstructionId> = before.iter().copied().collect();
    let invariant = invariant_state(module, computation);
    let recomputable = products.recomputable(module, target, computation, runs);
    let recomputable = recomputable.within(before, options.reach, options.tie.is_some());
    let operands = after.iter().flat_map(|&user| &module.instructions[user].operands);
    let mut needed: FxHashSet<InstructionId> = FxHashSet::default();
    let needed = operands.copied().filter(|&id| is_before.contains(&id) && needed.insert(id));
    // Of equal values, a sum is kept rather than what is computed of it: else one kernel computes both, and another sum of the
    // same array is in a kernel that waits for it.
    let is_sum = |id| cost::class_of(module, id) == CostClass::Hero(Hero::Reduction);
    // Selected, the counter of a loop is no counter to a compiler any more, and keeping the next one costs nothing.
    let next = &module.instructions[module.computations[computation].root].operands;
    let is_scalar = |id| module.shape(id).as_array().is_some_and(|array| array.dimensions.is_empty());
    let may_count = options.tie == Some(Tie::Select) && computation != module.entry;
    let bytes = |id| {
        if may_count && is_scalar(id) && next.contains(&id) {
            return 0;
        }
        let bytes = crossing_bytes(module, target, &invariant, id);
        bytes.saturating_sub(u64::from(options.tie.is_some() && is_sum(id)))
    };
    let price = |id| recomputable.price(id);
    let recompute_network::Choice { recomputed, .. } =
        recompute_network::choose(module, needed, bytes, price)?;
    (!recomputed.is_empty()).then_some(recomputed)
}

/// The bytes that keeping a value through the peak adds.
fn crossing_bytes(
    module: &Module,
    target: &Target,
    invariant: &FxHashSet<InstructionId>,
    id: InstructionId,
) -> u64 {
    let instruction = &module.instructions[id];
    match &instruction.op {
        // The value that a view shows is cut instead.
        Op::Tuple | Op::Bitcast => UNCUTTABLE,
        // The caller keeps a parameter. A donated one is overwritten only by a result, at the end.
        Op::Parameter { .. } if instruction.parent == module.entry => 0,
        Op::Constant(_) => 0,
        _ if invariant.contains(&id) => 0,
        _ => cost::result_bytes(module, target, id).min(UNCUTTABLE - 1),
    }
}

/// Elements of a loop's state that the body passes on unchanged: they are in memory during the whole loop.
fn invariant_state(module: &Module, computation: ComputationId) -> FxHashSet<InstructionId> {
    let body = &module.computations[computation];
    let root = &module.instructions[body.root];
    let is_passed_on = |(i, &element): (usize, &InstructionId)| {
        let instruction = &module.instructions[element];
        let is_state = matches!(instruction.op, Op::GetTupleElement { index } if index as usize == i)
            && body.parameters.first() == instruction.operands.first();
        is_state.then_some(element)
    };
    match root.op {
        Op::Tuple if body.parameters.len() == 1 => {
            root.operands.iter().enumerate().filter_map(is_passed_on).collect()
        }
        _ => FxHashSet::default(),
    }
}

/// Whether an instruction is cheap enough to be computed twice.
pub(crate) fn is_recomputable(module: &Module, target: &Target, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_cheap = match cost::class_of(module, id) {
        CostClass::Cheap => true,
        CostClass::Hero(Hero::Dot) => cost::is_dot_faster_than_memory(module, target, id),
        _ => matches!(instruction.op, Op::Tuple | Op::Bitcast),
    };
    is_cheap && instruction.control_predecessors.is_empty()
}

/// Makes everything from `time` on use copies of `values`, each just before its first use, and drops originals without
/// users.
fn recompute(
    module: &mut Module,
    computation: ComputationId,
    time: usize,
    values: &FxHashSet<InstructionId>,
    names: &mut Names,
    all_copies: &mut FxHashSet<InstructionId>,
) -> Undo {
    let instructions = std::mem::take(&mut module.computations[computation].instructions);
    let position: FxHashMap<InstructionId, usize> =
        instructions[..time].iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut order = instructions[..time].to_vec();
    let mut operands = Vec::new();
    for &user in &instructions[time..] {
        for original in missing_copies(module, user, values, &copies, &position) {
            let Instruction { name, operands: read, .. } = &module.instructions[original];
            // The original may itself be a copy.
            let stem = format!("{}.remat", name.split(".remat").next().unwrap_or_default());
            let read: Operands = read.iter().map(|id| copies.get(id).copied().unwrap_or(*id)).collect();
            let mut at = Cursor::into_list(module, names, computation, &mut order);
            let copy = at.named(&stem).copy_of(original, read);
            copies.insert(original, copy);
            all_copies.insert(copy);
        }
        if module.instructions[user].operands.iter().any(|operand| copies.contains_key(operand)) {
            operands.push((user, module.instructions[user].operands.clone()));
            let renamed = &mut module.instructions[user].operands;
            renamed
                .iter_mut()
                .for_each(|operand| *operand = copies.get(operand).copied().unwrap_or(*operand));
        }
        order.push(user);
    }
    module.computations[computation].instructions = without_unused(module, computation, order, values);
    Undo { instructions, operands }
}

/// The values of which `user` needs copies that do not exist yet, operands first.
fn missing_copies(
    module: &Module,
    user: InstructionId,
    values: &FxHashSet<InstructionId>,
    copies: &FxHashMap<InstructionId, InstructionId>,
    position: &FxHashMap<InstructionId, usize>,
) -> Vec<InstructionId> {
    let mut missing: FxHashSet<InstructionId> = FxHashSet::default();
    let mut found = Vec::new();
    let mut open = vec![user];
    while let Some(id) = open.pop() {
        for &operand in &module.instructions[id].operands {
            if values.contains(&operand) && !copies.contains_key(&operand) && missing.insert(operand) {
                found.push(operand);
                open.push(operand);
            }
        }
    }
    found.sort_unstable_by_key(|id| position[id]);
    found
}

/// An order without the unused ones of `values`.
fn without_unused(
    module: &Module,
    computation: ComputationId,
    order: Vec<InstructionId>,
    values: &FxHashSet<InstructionId>,
) -> Vec<InstructionId> {
    let mut used: FxHashSet<InstructionId> = FxHashSet::from_iter([module.computations[computation].root]);
    let mut kept = Vec::with_capacity(order.len());
    for &id in order.iter().rev() {
        if values.contains(&id) && !used.contains(&id) {
            continue;
        }
        let instruction = &module.instructions[id];
        used.extend(instruction.operands.iter().chain(&instruction.control_predecessors));
        kept.push(id);
    }
    kept.reverse();
    kept
}
