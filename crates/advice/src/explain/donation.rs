//! The arguments that the caller donates, the bytes that this saves, and the arguments that it could also donate.

use std::collections::VecDeque;

use memplan_analysis::ValueClass;
use memplan_ir::{InputOutputAlias, Shape, ShapeIndex};
use memplan_memory::{AllocationKind, Bytes};
use memplan_passes::results_in_donors;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::Subject;

/// An array that the caller passes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ArgumentNote {
    /// Number of the parameter.
    pub number: u32,
    /// The index within the parameter.
    pub index: Vec<u32>,
    /// Its name in the framework, or the name of its instruction.
    pub name: String,
    /// Its shape, as HLO writes it.
    pub shape: String,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its class.
    pub class: String,
    /// Whether it is donated.
    pub donation: Donation,
    /// Why, in words.
    pub why: String,
}

/// Whether an argument is donated, and whether that helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Donation {
    /// It is donated, and a result lives in its memory.
    Used,
    /// It is donated, but no result can live there. XLA uses donated memory only for results.
    Unused,
    /// It is not donated, but a result could live in its memory.
    Possible,
    /// It is not donated, and no result has its shape.
    Useless,
}

/// Bytes of arguments by donation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DonationTotals {
    /// Donated and used.
    pub used: Bytes,
    /// Donated in vain.
    pub unused: Bytes,
    /// Not donated, although a result could live there: what donation would save.
    pub possible: Bytes,
}

impl DonationTotals {
    pub(super) fn of(arguments: &[ArgumentNote]) -> DonationTotals {
        let mut totals = DonationTotals::default();
        for argument in arguments {
            let sum = match argument.donation {
                Donation::Used => &mut totals.used,
                Donation::Unused => &mut totals.unused,
                Donation::Possible => &mut totals.possible,
                Donation::Useless => continue,
            };
            *sum = sum.saturating_add(argument.bytes);
        }
        totals
    }
}

/// Every array that the caller passes. Linear in arguments, results and values of the plan.
pub(super) fn arguments(subject: &Subject<'_>) -> Vec<ArgumentNote> {
    let module = subject.module;
    let config = &module.config;
    let given: FxHashSet<(u32, &ShapeIndex)> = config.given_up().collect();
    let mut notes = Vec::new();
    let mut aliases = config.input_output_alias.clone();
    aliases.extend(results_in_donors(module, subject.target));
    let mut free = FreeResults::new(subject, &aliases);
    let lives_in = other_values_in_arguments(subject);
    for (number, &parameter) in module.entry_computation().parameters.iter().enumerate() {
        let number = number as u32;
        for (index, shape) in module.shape(parameter).leaves() {
            let Shape::Array(array) = shape else { continue };
            let value = subject.facts().flow.find(parameter, &index);
            let class = value.map_or(ValueClass::Input, |value| subject.words.classes.of(value));
            let key = (number, &index);
            let alias =
                aliases.iter().find(|alias| (alias.parameter, &alias.parameter_index) == (number, &index));
            let (donation, why) = if let Some(alias) = alias {
                (Donation::Used, format!("{} lives in it", result(&alias.output_index)))
            } else if given.contains(&key) {
                let bytes = subject.target.size_of(shape);
                let mut why = format!(
                    "XLA requires a result of exactly {bytes}, and there is none{}",
                    free.closest(bytes)
                );
                if let Some(other) = lives_in.get(&(number, index.clone())) {
                    why += &format!("; `{other}` lives in it in this plan, but not in XLA's");
                }
                (Donation::Unused, why)
            } else if array.rank() == 0 {
                (Donation::Useless, "it is a scalar".to_string())
            } else {
                match free.take(shape) {
                    Some(index) => (Donation::Possible, format!("{} could live in it", result(&index))),
                    None => (Donation::Useless, "no result has its shape".to_string()),
                }
            };
            notes.push(ArgumentNote {
                number,
                index: index.0.to_vec(),
                name: subject.words.name(parameter).to_string(),
                shape: memplan_hlo::shape_text(shape),
                bytes: subject.target.size_of(shape),
                class: class.to_string(),
                donation,
                why,
            });
        }
    }
    notes
}

/// Results that do not live in an argument.
struct FreeResults {
    /// By shape, in order.
    by_shape: FxHashMap<String, VecDeque<ShapeIndex>>,
    /// Bytes and shape of each.
    sizes: Vec<(Bytes, String)>,
}

impl FreeResults {
    fn new(subject: &Subject<'_>, aliases: &[InputOutputAlias]) -> FreeResults {
        let module = subject.module;
        let taken: FxHashSet<&ShapeIndex> = aliases.iter().map(|alias| &alias.output_index).collect();
        let mut free = FreeResults { by_shape: FxHashMap::default(), sizes: Vec::new() };
        for (index, shape) in module.shape(module.entry_computation().root).leaves() {
            if !taken.contains(&index) && matches!(shape, Shape::Array(_)) {
                let text = memplan_hlo::shape_text(&without_layout(shape));
                free.sizes.push((subject.target.size_of(shape), text.clone()));
                free.by_shape.entry(text).or_default().push_back(index);
            }
        }
        free
    }

    /// Takes the first result of a shape.
    fn take(&mut self, shape: &Shape) -> Option<ShapeIndex> {
        self.by_shape.get_mut(&memplan_hlo::shape_text(&without_layout(shape)))?.pop_front()
    }

    /// The result closest to a number of bytes, as the end of a sentence.
    fn closest(&self, bytes: Bytes) -> String {
        let closest = self.sizes.iter().min_by_key(|(size, _)| size.0.abs_diff(bytes.0));
        match closest {
            None => "; every result lives in another argument".to_string(),
            Some((size, shape)) => format!("; the closest is {shape}, {size}"),
        }
    }
}

/// For each part of a parameter, the first other value in its memory.
fn other_values_in_arguments(subject: &Subject<'_>) -> FxHashMap<(u32, ShapeIndex), String> {
    let mut others = FxHashMap::default();
    let flow = &subject.facts().flow;
    for (position, slice) in &subject.plan().slices {
        let AllocationKind::Argument { parameter, index } =
            &subject.plan().allocations[slice.allocation].kind
        else {
            continue;
        };
        let argument = subject.module.entry_computation().parameters.get(*parameter as usize);
        let argument = argument.and_then(|&argument| flow.find(argument, index));
        if flow.find(position.instruction, &position.index) != argument {
            let name = || subject.name_at(position);
            others.entry((*parameter, index.clone())).or_insert_with(name);
        }
    }
    others
}

fn without_layout(shape: &Shape) -> Shape {
    let mut shape = shape.clone();
    if let Shape::Array(array) = &mut shape {
        array.layout = None;
    }
    shape
}

fn result(index: &ShapeIndex) -> String {
    if index.is_root() { "the result".to_string() } else { format!("result {index}") }
}
