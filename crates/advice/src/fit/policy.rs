//! Policies of `jax.checkpoint`: which results of the forward half to save, and their price.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memplan_analysis::{Phase, Sources, folded_operation, operation};
use memplan_ir::{Access, InstructionId, Module, Op, Role};
use memplan_passes as passes;
use memplan_passes::Checkpoint;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Setting;
use super::candidate::Candidate;

/// The places of checkpoints, and the values that they save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// The operation that ends each checkpointed function; `None`: one checkpoint around the differentiated function.
    border: Option<Group>,
    saves: Saves,
}

/// The values saved in a checkpointed function.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Saves {
    /// Nothing.
    Nothing,
    /// Every matrix product.
    Dots,
    /// Matrix products without batch dimensions: those with weights.
    DotsWithNoBatchDims,
    /// Results of the operations at these lines.
    Names(Vec<Group>),
}

/// Values that one line of the program makes with one operation, in all layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Group {
    line: String,
    operation: String,
    /// The function that contains the line.
    function: String,
}

/// The largest share of a border's bytes that may bypass the border: the layer's own input is as large.
const FEW: u64 = 8;

/// The most lines to examine closely.
const MAX_CANDIDATES: usize = 64;

/// The most lines to name for kept values.
const MAX_LINES: usize = 3;

/// The most lines whose results are saved by name.
const MAX_GROUPS: usize = 2;

impl Policy {
    pub(super) fn what(&self) -> String {
        let kept = match &self.saves {
            Saves::Nothing => "save only its inputs".to_string(),
            Saves::Dots => "save matrix products".to_string(),
            Saves::DotsWithNoBatchDims => "save matrix products with weights".to_string(),
            Saves::Names(groups) => {
                let lines = groups.iter().map(|group| format!("`{}` at {}", group.operation, group.line));
                format!("save {}", lines.collect::<Vec<_>>().join(", "))
            }
        };
        match &self.border {
            None => format!("checkpoint the whole differentiated function: {kept}"),
            Some(Group { line, operation, .. }) => {
                format!("checkpoint each layer, up to `{operation}` at {line}: {kept}")
            }
        }
    }

    /// What `jax.checkpoint` saves, in Python.
    pub(super) fn expression(&self) -> String {
        let name = match &self.saves {
            Saves::Nothing => "nothing_saveable".to_string(),
            Saves::Dots => "dots_saveable".to_string(),
            Saves::DotsWithNoBatchDims => "dots_with_no_batch_dims_saveable".to_string(),
            Saves::Names(groups) => {
                let names: Vec<String> = (1..=groups.len()).map(|i| format!("'kept{i}'")).collect();
                format!("save_only_these_names({})", names.join(", "))
            }
        };
        format!("jax.checkpoint_policies.{name}")
    }

    pub(super) fn apply(&self) -> String {
        let named = self.border.as_ref().map_or("loss", |group| &group.function);
        let function = if named.is_empty() { "layer" } else { named };
        let with = match &self.saves {
            Saves::Nothing => String::new(),
            _ => format!(", policy={}", self.expression()),
        };
        let mut text = format!("{function} = jax.checkpoint({function}{with})");
        if let Saves::Names(groups) = &self.saves {
            for (i, group) in (1..).zip(groups) {
                text += &format!(
                    "; the result of `{}` at {} in checkpoint_name(.., 'kept{i}')",
                    group.operation, group.line
                );
            }
        }
        text
    }

    /// The program as JAX would write it with this policy.
    pub(super) fn carry_out(&self, program: &Candidate) -> Result<Candidate, String> {
        let (module, phases) = (&program.module, program.phases());
        let sources = Sources::new(module);
        let is_of = |id: InstructionId, groups: &[Group]| {
            group(module, &sources, id).is_some_and(|group| groups.contains(&group))
        };
        let is_saved = |id: InstructionId| match (&self.saves, &module.instructions[id].op) {
            (Saves::Nothing, _) => false,
            (Saves::Dots, op) => matches!(op, Op::Dot(_)),
            (Saves::DotsWithNoBatchDims, Op::Dot(dot)) => dot.dimensions.lhs_batch.is_empty(),
            (Saves::DotsWithNoBatchDims, _) => false,
            (Saves::Names(groups), _) => is_of(id, groups),
        };
        let is_forward = |id| phases.of(id) == Phase::Forward;
        let checkpoint = Checkpoint {
            phase: &|id| phases.of(id),
            is_saved: &is_saved,
            is_border: &|id| {
                is_forward(id)
                    && self.border.as_ref().is_some_and(|border| is_of(id, std::slice::from_ref(border)))
            },
            must_wait: false,
            gradients_first: false,
        };
        let checkpointed = passes::checkpoint(module, &checkpoint);
        let module = checkpointed.ok_or("the policy saves everything that the backward half needs")?;
        Ok(program.with_module(module))
    }
}

/// Policies that may help: the predefined ones, those of layers that end with the line that leaves the fewest bytes to
/// keep, and those of lines.
pub(super) fn all(program: &Candidate, setting: &Setting<'_>) -> Vec<Policy> {
    if !program.trains {
        return Vec::new();
    }
    let names = best_names(program, setting);
    let layer = names.first().and_then(|set| set.first()).cloned();
    let ready = [Saves::Dots, Saves::DotsWithNoBatchDims];
    let mut policies: Vec<Policy> = Vec::new();
    if let Some(layer) = layer {
        let of_layers = [Saves::Nothing].into_iter().chain(ready.clone());
        policies.extend(of_layers.map(|saves| Policy { border: Some(layer.clone()), saves }));
    }
    let whole = ready.into_iter().chain(names.into_iter().map(Saves::Names));
    policies.extend(whole.map(|saves| Policy { border: None, saves }));
    policies
}

/// The lines that make most bytes of some values.
pub(super) fn lines(program: &Candidate, values: &[InstructionId], setting: &Setting<'_>) -> String {
    let module = &program.module;
    let sources = Sources::new(module);
    let mut bytes: BTreeMap<Group, u64> = BTreeMap::new();
    for &id in values {
        if let Some(group) = group(module, &sources, id) {
            let sum = bytes.entry(group).or_default();
            *sum = sum.saturating_add(setting.target.size_of(module.shape(id)).0);
        }
    }
    let mut groups: Vec<(Group, u64)> = bytes.into_iter().collect();
    groups.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let name = |(group, _): &(Group, u64)| format!("`{}` at {}", group.operation, group.line);
    let mut names: Vec<String> = groups.iter().take(MAX_LINES).map(name).collect();
    match groups.len().saturating_sub(MAX_LINES) {
        _ if names.is_empty() => return format!("{} values without source lines", values.len()),
        0 => {}
        1 => names.push("one more line".to_string()),
        more => names.push(format!("{more} more lines")),
    }
    names.join(", ")
}

fn group(module: &Module, sources: &Sources<'_>, id: InstructionId) -> Option<Group> {
    let op = &module.instructions[id].op;
    let is_made = op.traits().role == Role::Computes && op.traits().access != Access::Reindexing;
    let array = module.shape(id).as_array()?;
    if !is_made || array.rank() == 0 || matches!(op, Op::Broadcast { .. }) {
        return None;
    }
    let frame = sources.user(id)?;
    let name = folded_operation(operation(module, id));
    let operation = name.rsplit('/').next().unwrap_or(&name).to_string();
    Some(Group { line: frame.to_string(), operation, function: frame.function.to_string() })
}

/// A forward value that the backward half reads, or a value that could be kept instead.
struct Kept {
    depth: u32,
    bytes: u64,
}

/// Sets of lines, each larger by one line: with each set, the kept bytes and the recomputed bytes between two kept
/// values are together minimal.
fn best_names(program: &Candidate, setting: &Setting<'_>) -> Vec<Vec<Group>> {
    let (module, phases) = (&program.module, program.phases());
    let entry = module.entry_computation();
    let sources = Sources::new(module);
    let is_forward = |id: InstructionId| phases.of(id) == Phase::Forward;
    let mut depth: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let mut read: FxHashSet<InstructionId> = FxHashSet::default();
    let (mut groups, mut residuals): (FxHashMap<Group, Vec<Kept>>, Vec<Kept>) = Default::default();
    for &id in &entry.instructions {
        let operands = &module.instructions[id].operands;
        if phases.of(id) == Phase::Backward {
            read.extend(operands.iter().copied());
        }
        let deepest = operands.iter().filter_map(|operand| depth.get(operand)).max();
        depth.insert(id, deepest.map_or(0, |depth| depth + 1));
    }
    for &id in entry.instructions.iter().filter(|&&id| is_forward(id)) {
        let computes = module.instructions[id].op.traits().role == Role::Computes;
        let bytes = setting.target.size_of(module.shape(id)).0;
        let kept = || Kept { depth: depth[&id], bytes };
        if computes && read.contains(&id) {
            residuals.push(kept());
        }
        if let Some(group) = group(module, &sources, id) {
            groups.entry(group).or_default().push(kept());
        }
    }
    let mut list: Vec<(Group, Vec<Kept>)> = groups.into_iter().filter(|(_, kept)| kept.len() > 1).collect();
    list.sort_by(|(a, of_a), (b, of_b)| {
        let cost = |kept: &[Kept]| kept_and_again(&kept.iter().collect::<Vec<_>>(), &residuals);
        cost(of_a).cmp(&cost(of_b)).then_with(|| a.cmp(b))
    });
    list.truncate(MAX_CANDIDATES);
    list.retain(|(border, kept)| separates(program, setting, border, kept));
    let mut chosen: Vec<usize> = Vec::new();
    let mut sets = Vec::new();
    let mut last = u64::MAX;
    for _ in 0..MAX_GROUPS {
        let with = |i: usize| {
            let kept: Vec<&Kept> = chosen.iter().chain([&i]).flat_map(|&i| &list[i].1).collect();
            kept_and_again(&kept, &residuals)
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

/// Whether operations after a line use only its results, except for a few bytes: otherwise saving the results saves
/// nothing.
fn separates(program: &Candidate, setting: &Setting<'_>, border: &Group, kept: &[Kept]) -> bool {
    let (module, phases) = (&program.module, program.phases());
    let sources = Sources::new(module);
    let mut level: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let mut is_border: FxHashSet<InstructionId> = FxHashSet::default();
    let mut given: FxHashSet<InstructionId> = FxHashSet::default();
    let (mut passed, mut passed_by) = (FxHashSet::default(), 0u64);
    for &id in &module.entry_computation().instructions {
        let instruction = &module.instructions[id];
        let before: Vec<u32> = instruction
            .operands
            .iter()
            .map(|operand| level[operand] + u32::from(is_border.contains(operand)))
            .collect();
        let own = before.iter().copied().max().unwrap_or(0);
        level.insert(id, own);
        let is_argument = matches!(instruction.op, Op::Parameter { .. });
        if is_argument || instruction.operands.iter().any(|operand| given.contains(operand)) {
            given.insert(id);
        }
        if phases.of(id) != Phase::Forward {
            continue;
        }
        if group(module, &sources, id).as_ref() == Some(border) {
            is_border.insert(id);
        }
        for (&operand, before) in instruction.operands.iter().zip(before) {
            let is_made = passes::makes_values(&module.instructions[operand].op);
            if before < own && is_made && passed.insert(operand) {
                passed_by = passed_by.saturating_add(setting.target.size_of(module.shape(operand)).0);
            }
        }
    }
    let all = kept.iter().fold(0u64, |sum, kept| sum.saturating_add(kept.bytes));
    passed_by < all / FEW
}

/// The kept bytes, and the most bytes that are recomputed between two kept values.
fn kept_and_again(kept: &[&Kept], residuals: &[Kept]) -> u64 {
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
