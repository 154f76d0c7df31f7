//! The arrays among a program's arguments: model, state, or data.

use memplan_ir::{ArrayShape, ElementType, InstructionId, Module, Shape};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dimensions::{Dimensions, FactorId, FactorList};
use crate::{Facts, ValueClass, ValueClasses};

/// An array among the arguments.
pub(super) struct Argument {
    pub(super) at: (usize, usize),
    pub(super) kind: Kind,
    pub(super) is_integral: bool,
    pub(super) bytes: u64,
    /// The factors of each dimension; none of random bits.
    pub(super) dimensions: Vec<FactorList>,
}

/// What an array among the arguments is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// What is trained, and state of its optimizer.
    Model,
    /// Not trained, but read as weights are.
    Weights,
    /// Other arrays that come back as a result of the same type and extents: caches, statistics.
    State,
    /// Everything else.
    Data,
}

/// All arrays among the arguments of the entry, in their order.
pub(super) fn arguments(
    dimensions: &Dimensions,
    module: &Module,
    classes: Option<&(ValueClasses, Facts)>,
) -> Vec<Argument> {
    let entry = module.entry_computation();
    let class_of = |id: InstructionId| {
        let (classes, facts) = classes?;
        Some(classes.of(facts.flow.value_of(id)?))
    };
    let trains = classes.is_some_and(|(classes, _)| classes.phases.has_backward());
    let mut comes_back = returned(module);
    let mut arguments = Vec::new();
    for (parameter, &id) in entry.parameters.iter().enumerate() {
        for (part, array) in leaves(module, id) {
            let mut of_dimensions = dimensions.of_parameter(module, parameter, part);
            if is_random_key(array) {
                of_dimensions.pop();
            }
            let kind = match (class_of(id), comes_back(id, array)) {
                _ if array.rank() == 0 => Kind::Data,
                (Some(ValueClass::Parameter | ValueClass::OptimizerState), true) if trains => Kind::Model,
                (Some(ValueClass::Parameter), _) => Kind::Weights,
                (_, true) => Kind::State,
                _ => Kind::Data,
            };
            arguments.push(Argument {
                at: (parameter, part),
                kind,
                is_integral: array.element_type.is_integral(),
                bytes: array.dense_bytes().unwrap_or(0),
                dimensions: of_dimensions,
            });
        }
    }
    arguments
}

impl Argument {
    pub(super) fn factors(&self) -> impl Iterator<Item = FactorId> + '_ {
        self.dimensions.iter().flatten().copied()
    }

    /// The factors of the slowest dimension that has more than one element.
    pub(super) fn first(&self) -> impl Iterator<Item = FactorId> + '_ {
        self.dimensions.iter().find(|factors| !factors.is_empty()).into_iter().flatten().copied()
    }

    /// Factors that occur once: a factor that occurs twice counts no examples.
    pub(super) fn once(&self) -> Vec<FactorId> {
        let count = |factor: &FactorId| self.factors().filter(|other| other == factor).count();
        self.factors().filter(|factor| count(factor) == 1).collect()
    }
}

/// Whether arguments, asked in their order, come back: donated ones do, and those of the type of a result that is no
/// other argument's.
fn returned(module: &Module) -> impl FnMut(InstructionId, &ArrayShape) -> bool {
    let entry = module.entry_computation();
    let type_of = |array: &ArrayShape| (array.element_type, array.dimensions.clone());
    let mut results: FxHashMap<_, usize> = FxHashMap::default();
    for (_, array) in leaves(module, entry.root) {
        *results.entry(type_of(array)).or_default() += 1;
    }
    let mut take = move |array: &ArrayShape| {
        let left = results.get_mut(&type_of(array)).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    };
    let aliases = module.config.input_output_alias.iter();
    let donated: FxHashSet<InstructionId> = aliases
        .filter(|alias| alias.parameter_index.0.is_empty())
        .filter_map(|alias| entry.parameters.get(alias.parameter as usize).copied())
        .collect();
    for array in donated.iter().filter_map(|&id| module.shape(id).as_array()) {
        take(array);
    }
    move |id, array| donated.contains(&id) || take(array)
}

/// Whether an array is raw keys of JAX's random numbers: two words each, or four (`rbg`).
pub(super) fn is_random_key(array: &ArrayShape) -> bool {
    array.element_type == ElementType::U32 && matches!(array.dimensions.last(), Some(2 | 4))
}

/// The arrays of a value, each with its number among the parts of the shape.
fn leaves(module: &Module, id: InstructionId) -> Vec<(usize, &ArrayShape)> {
    let parts = crate::dimensions::parts(module.shape(id)).into_iter().enumerate();
    parts.filter_map(|(part, shape): (usize, &Shape)| Some((part, shape.as_array()?))).collect()
}
