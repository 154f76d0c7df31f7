//! Lines of a program whose results can be saved, and the layers that end with one.

use memplan_analysis::{Owner, Phase, SourceFrame, Sources, folded_operation, operation};
use memplan_ir::{Access, Instruction, InstructionId, Module, Op, Role};
use memplan_passes as passes;
use rustc_hash::{FxHashMap, FxHashSet};

use super::functions::Functions;
use crate::fit::Setting;
use crate::fit::candidate::Candidate;

/// Values that one line of the program makes with one operation, in all layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) line: String,
    pub(super) operation: String,
    /// Where in the line, and the operation within the functions of libraries that it calls there.
    place: (i32, String),
}

/// Layers that a person can put a checkpoint around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layers {
    /// The operation that ends each of them.
    pub(super) border: Group,
    /// The function that the program calls for each layer; `None` if the lines name none. A layer then lies between two
    /// borders.
    pub(super) function: Option<String>,
}

/// The largest share of a border's bytes that may bypass the border: the layer's own input is as large.
const FEW: u64 = 8;

/// The most lines to examine closely.
const MAX_CANDIDATES: usize = 64;

/// The most lines whose results are saved by name.
const MAX_GROUPS: usize = 2;

/// A forward value that the backward half reads, or a value that could be kept instead.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    pub(super) id: InstructionId,
    pub(super) depth: u32,
    bytes: u64,
}

/// Lines of the forward half whose results are all that operations after them use, the cheapest to save first.
pub(super) struct Lines {
    list: Vec<(Group, Vec<Kept>)>,
    /// Everything that the forward half makes.
    forward: FxHashMap<InstructionId, Kept>,
    /// What the backward half reads.
    residuals: Vec<Kept>,
}

impl Lines {
    pub(super) fn new(program: &Candidate, setting: &Setting<'_>) -> Lines {
        let (module, phases) = (&program.module, program.phases());
        let entry = module.entry_computation();
        let sources = Sources::new(module);
        let mut depth: FxHashMap<InstructionId, u32> = FxHashMap::default();
        let mut read: FxHashSet<InstructionId> = FxHashSet::default();
        let mut groups: FxHashMap<Group, Vec<Kept>> = FxHashMap::default();
        let (mut forward, mut residuals) = (FxHashMap::default(), Vec::new());
        for &id in &entry.instructions {
            let operands = &module.instructions[id].operands;
            if phases.of(id) == Phase::Backward {
                read.extend(operands.iter().copied());
            }
            let deepest = operands.iter().filter_map(|operand| depth.get(operand)).max();
            depth.insert(id, deepest.map_or(0, |depth| depth + 1));
        }
        for &id in entry.instructions.iter().filter(|&&id| phases.of(id) == Phase::Forward) {
            let computes = module.instructions[id].op.traits().role == Role::Computes;
            let bytes = setting.target.size_of(module.shape(id)).0;
            let kept = Kept { id, depth: depth[&id], bytes };
            forward.insert(id, kept);
            if computes && read.contains(&id) {
                residuals.push(kept);
            }
            if let Some(group) = group(module, &sources, id) {
                groups.entry(group).or_default().push(kept);
            }
        }
        let mut list: Vec<(Group, Vec<Kept>)> =
            groups.into_iter().filter(|(_, kept)| kept.len() > 1).collect();
        list.sort_by(|(a, of_a), (b, of_b)| {
            let cost = |kept: &[Kept]| kept_and_again(&kept.iter().collect::<Vec<_>>(), residuals.iter());
            cost(of_a).cmp(&cost(of_b)).then_with(|| a.cmp(b))
        });
        list.truncate(MAX_CANDIDATES);
        let made_of = MadeOf::all(module);
        list.retain(|(_, kept)| separates(program, setting, &made_of, kept));
        Lines { list, forward, residuals }
    }

    /// Sets of lines, each larger by one line: with each set, the kept bytes and the recomputed bytes between two kept
    /// values are together minimal.
    pub(super) fn best_names(&self) -> Vec<Vec<Group>> {
        let Lines { list, residuals, .. } = self;
        let mut chosen: Vec<usize> = Vec::new();
        let mut sets = Vec::new();
        let mut last = u64::MAX;
        for _ in 0..MAX_GROUPS {
            let with = |i: usize| {
                let kept: Vec<&Kept> = chosen.iter().chain([&i]).flat_map(|&i| &list[i].1).collect();
                kept_and_again(&kept, residuals.iter())
            };
            let candidates = (0..list.len()).filter(|i| !chosen.contains(i));
            let Some((cost, next)) = candidates.map(|i| (with(i), i)).min() else { break };
            if cost >= last {
                break;
            }
            last = cost;
            chosen.push(next);
            sets.push(chosen.iter().map(|&i| list[i].0.clone()).collect());
        }
        sets
    }

    /// The calls of the function that is the cheapest to checkpoint. If the program has no such function, steps of a loop in
    /// Python, which end with the cheapest line.
    pub(super) fn layers(&self, program: &Candidate) -> Option<Layers> {
        let functions = Functions::new(program);
        let calls = functions.names().into_iter().filter_map(|name| {
            let results = functions.results(name)?;
            let border =
                results.iter().rev().find_map(|&id| group(&program.module, functions.sources(), id))?;
            Some((
                self.cost_of_calls(&functions, name, &results),
                Layers { border, function: Some(name.to_string()) },
            ))
        });
        let cheapest = calls.min_by_key(|(cost, _)| *cost).map(|(_, layers)| layers);
        cheapest.or_else(|| {
            let (border, _) = self.list.iter().find(|(_, kept)| functions.end_steps(kept))?;
            Some(Layers { border: border.clone(), function: None })
        })
    }

    /// The bytes kept outside calls of a function and between them, and the most bytes that one call recomputes.
    fn cost_of_calls(&self, functions: &Functions<'_>, name: &str, results: &[InstructionId]) -> u64 {
        let is_result: FxHashSet<InstructionId> = results.iter().copied().collect();
        let (again, outside): (Vec<&Kept>, Vec<&Kept>) = self
            .residuals
            .iter()
            .filter(|kept| !is_result.contains(&kept.id))
            .partition(|kept| functions.is_in(kept.id, name));
        let borders: Vec<&Kept> = results.iter().map(|id| &self.forward[id]).collect();
        let outside = outside.iter().fold(0u64, |sum, kept| sum.saturating_add(kept.bytes));
        outside.saturating_add(kept_and_again(&borders, again.into_iter()))
    }
}

/// Whether results of a line are computed from others of them, and operations after it use only its results, except for a
/// few bytes: otherwise saving the results saves nothing. What is made of one argument alone, such as a converted weight, is
/// made again where it is used.
fn separates(
    program: &Candidate,
    setting: &Setting<'_>,
    made_of: &FxHashMap<InstructionId, MadeOf>,
    kept: &[Kept],
) -> bool {
    let (module, phases) = (&program.module, program.phases());
    let is_border: FxHashSet<InstructionId> = kept.iter().map(|kept| kept.id).collect();
    let mut level: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let (mut passed, mut passed_by) = (FxHashSet::default(), 0u64);
    for &id in &module.entry_computation().instructions {
        let operands = &module.instructions[id].operands;
        let before = |operand: &InstructionId| level[operand] + u32::from(is_border.contains(operand));
        let own = operands.iter().map(before).max().unwrap_or(0);
        let is_kept = |operand: &InstructionId| {
            passes::makes_values(&module.instructions[*operand].op) && made_of[operand] == MadeOf::More
        };
        if phases.of(id) == Phase::Forward {
            for &operand in operands.iter().filter(|operand| before(operand) < own && is_kept(operand)) {
                if passed.insert(operand) {
                    passed_by = passed_by.saturating_add(setting.target.size_of(module.shape(operand)).0);
                }
            }
        }
        level.insert(id, own);
    }
    let is_chain = kept.iter().any(|kept| level[&kept.id] > 0);
    let all = kept.iter().fold(0u64, |sum, kept| sum.saturating_add(kept.bytes));
    is_chain && passed_by < all / FEW
}

/// What a value is computed from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MadeOf {
    Constants,
    /// Constants and this argument.
    Argument(InstructionId),
    More,
}

impl MadeOf {
    /// Of all instructions of the entry.
    pub(super) fn all(module: &Module) -> FxHashMap<InstructionId, MadeOf> {
        let mut made_of: FxHashMap<InstructionId, MadeOf> = FxHashMap::default();
        for &id in &module.entry_computation().instructions {
            let Instruction { op, operands, .. } = &module.instructions[id];
            let of = match op {
                Op::Parameter { .. } => MadeOf::Argument(id),
                _ => operands.iter().map(|operand| made_of[operand]).fold(MadeOf::Constants, MadeOf::and),
            };
            made_of.insert(id, of);
        }
        made_of
    }

    fn and(self, other: MadeOf) -> MadeOf {
        match (self, other) {
            (MadeOf::Constants, other) | (other, MadeOf::Constants) => other,
            (MadeOf::Argument(a), MadeOf::Argument(b)) if a == b => self,
            _ => MadeOf::More,
        }
    }
}

/// The kept bytes, and the most bytes that are recomputed between two kept values.
fn kept_and_again<'k>(kept: &[&Kept], residuals: impl Iterator<Item = &'k Kept>) -> u64 {
    let mut borders: Vec<u32> = kept.iter().map(|kept| kept.depth).collect();
    borders.sort_unstable();
    borders.dedup();
    let mut between = vec![0u64; borders.len() + 1];
    for residual in residuals {
        let segment = &mut between[borders.partition_point(|&border| border <= residual.depth)];
        *segment = segment.saturating_add(residual.bytes);
    }
    let all = kept.iter().fold(0u64, |sum, kept| sum.saturating_add(kept.bytes));
    all.saturating_add(between.into_iter().max().unwrap_or(0))
}

/// The line and the operation of a value that a person can name.
pub(super) fn group(module: &Module, sources: &Sources<'_>, id: InstructionId) -> Option<Group> {
    let op = &module.instructions[id].op;
    let is_made = op.traits().role == Role::Computes && op.traits().access != Access::Reindexing;
    let array = module.shape(id).as_array()?;
    if !is_made || array.rank() == 0 || matches!(op, Op::Broadcast { .. }) {
        return None;
    }
    let frame = sources.user(id)?;
    let path = folded_operation(operation(module, id));
    let operation = path.rsplit('/').next().unwrap_or(&path).to_string();
    Some(Group { line: frame.to_string(), operation, place: (frame.column, path) })
}

/// The user's lines that made a value, innermost first.
pub(super) fn user_frames<'m>(
    sources: &Sources<'m>,
    id: InstructionId,
) -> impl Iterator<Item = SourceFrame<'m>> {
    sources.frames(id).filter(|frame| frame.owner == Owner::User)
}
