//! Policies of `jax.checkpoint`: which results of the forward half to save, and their price.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memplan_analysis::{Phase, Sources};
use memplan_ir::InstructionId;
use memplan_passes as passes;
use memplan_passes::{Checkpoint, Saves as Ready};
use rustc_hash::FxHashSet;

use self::functions::Functions;
use self::lines::{Group, Layers, Lines, group};
use super::Setting;
use super::candidate::Candidate;
use crate::words::RECOMPUTED;

mod functions;
mod lines;
mod loops;

/// The places of checkpoints, and the values that they save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// The checkpointed layers; `None`: one checkpoint around the differentiated function.
    layers: Option<Layers>,
    saves: Saves,
}

/// The values saved in a checkpointed function.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Saves {
    /// Those of a policy that JAX has ready.
    Ready(Ready),
    /// Results of the operations at these lines.
    Names(Vec<Group>),
}

/// The most lines to name for kept values.
const MAX_LINES: usize = 3;

impl Policy {
    pub(super) fn what(&self) -> String {
        let kept = match &self.saves {
            Saves::Ready(Ready::Nothing) => "save only its inputs".to_string(),
            Saves::Ready(Ready::Dots) => "save matrix products".to_string(),
            Saves::Ready(Ready::DotsWithNoBatchDims) => "save matrix products with weights".to_string(),
            Saves::Names(groups) => {
                let lines = groups.iter().map(|group| format!("`{}` at {}", group.operation, group.line));
                format!("save {}", lines.collect::<Vec<_>>().join(", "))
            }
        };
        match &self.layers {
            None => format!("checkpoint the whole differentiated function: {kept}"),
            Some(Layers { border: Group { line, operation, .. }, .. }) => {
                format!("checkpoint each layer, up to `{operation}` at {line}: {kept}")
            }
        }
    }

    /// What `jax.checkpoint` saves, in Python.
    pub(super) fn expression(&self) -> String {
        let name = match &self.saves {
            Saves::Ready(Ready::Nothing) => "nothing_saveable".to_string(),
            Saves::Ready(Ready::Dots) => "dots_saveable".to_string(),
            Saves::Ready(Ready::DotsWithNoBatchDims) => "dots_with_no_batch_dims_saveable".to_string(),
            Saves::Names(groups) => {
                let names: Vec<String> = (1..=groups.len()).map(|i| format!("'kept{i}'")).collect();
                format!("save_only_these_names({})", names.join(", "))
            }
        };
        format!("jax.checkpoint_policies.{name}")
    }

    pub(super) fn apply(&self) -> String {
        let function = match &self.layers {
            None => "loss",
            Some(Layers { function: None, .. }) => "step",
            // As it is called in the function that it is in.
            Some(Layers { function: Some(name), .. }) => name.rsplit("<locals>.").next().unwrap_or(name),
        };
        let with = match &self.saves {
            Saves::Ready(Ready::Nothing) => String::new(),
            _ => format!(", policy={}", self.expression()),
        };
        let mut text = format!("{function} = jax.checkpoint({function}{with})");
        if matches!(self.layers, Some(Layers { function: None, .. })) {
            text += "; `step` is a new function, with what one step of the loop in Python computes";
        }
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
        let is_saved = |id: InstructionId| match &self.saves {
            Saves::Ready(ready) => ready.saves(&module.instructions[id].op),
            Saves::Names(groups) => is_of(id, groups),
        };
        let function = self.layers.as_ref().and_then(|layers| layers.function.as_deref());
        let functions = function.map(|name| (Functions::new(program), name));
        let is_in_layers = |id| functions.as_ref().is_none_or(|(functions, name)| functions.is_in(id, name));
        let results: FxHashSet<InstructionId> = match &functions {
            Some((functions, name)) => {
                functions.results(name).ok_or("no function is called for each layer")?.into_iter().collect()
            }
            None => FxHashSet::default(),
        };
        let is_forward = |id| phases.of(id) == Phase::Forward;
        let entry = module.entry_computation().instructions.iter().copied();
        let layers = entry.filter(|&id| is_forward(id) && is_in_layers(id));
        if let Saves::Ready(saves) = self.saves
            && loops::save_more(module, layers, saves)
        {
            return Err("JAX would save products in each step of a loop; how many bytes is not known".into());
        }
        let metadata = |id: InstructionId| module.instructions[id].metadata.as_ref();
        let is_again = |id: InstructionId| metadata(id).is_some_and(|of| of.op_name.contains(RECOMPUTED));
        let mut entry = module.entry_computation().instructions.iter().copied();
        if matches!(self.saves, Saves::Ready(_))
            && entry.any(|id| is_again(id) && is_saved(id) && is_in_layers(id))
        {
            return Err(
                "JAX would save products that a checkpoint in it computes again; how many bytes is not known"
                    .into(),
            );
        }
        let checkpoint = Checkpoint {
            phase: &|id| phases.of(id),
            is_saved: &|id| is_saved(id) || !is_in_layers(id),
            is_border: &|id| match &self.layers {
                Some(Layers { function: Some(_), .. }) => results.contains(&id),
                Some(Layers { border, .. }) => is_forward(id) && is_of(id, std::slice::from_ref(border)),
                None => false,
            },
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
    let lines = Lines::new(program, setting);
    let ready = [Ready::Dots, Ready::DotsWithNoBatchDims].map(Saves::Ready);
    let mut policies: Vec<Policy> = Vec::new();
    if let Some(layers) = lines.layers(program) {
        let of_layers = [Saves::Ready(Ready::Nothing)].into_iter().chain(ready.clone());
        policies.extend(of_layers.map(|saves| Policy { layers: Some(layers.clone()), saves }));
    }
    let whole = ready.into_iter().chain(lines.best_names().into_iter().map(Saves::Names));
    policies.extend(whole.map(|saves| Policy { layers: None, saves }));
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
