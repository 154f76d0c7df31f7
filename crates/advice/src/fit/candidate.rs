//! A program that levers change: the module, and facts about it that are not in the module.

use std::sync::{Arc, OnceLock};

use memplan_analysis::{Batch, CallGraph, Dimensions, Facts, Phases, ValueClass, ValueClasses};
use memplan_driver::{EstimateError, Price};
use memplan_ir::{ArrayShape, InstructionId, Module, Schedule};
use memplan_memory::Bytes;
use memplan_passes as passes;
use memplan_passes::{Context, PassError, RunOptions};

use super::{FitError, Setting};
use crate::Devices;

/// A program to try levers on.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) module: Module,
    /// Computed on demand, since few levers need it.
    followed: OnceLock<Followed>,
    phases: OnceLock<Phases>,
    /// The dimension that counts examples: parameter of the entry, part of it, and dimension.
    batch_at: Option<(usize, usize, usize)>,
    /// Whether gradients are computed.
    pub(super) trains: bool,
    /// The class of each parameter of the entry.
    pub(super) classes: Arc<[ValueClass]>,
    /// Whether it is the program of one of several devices, or is going to be.
    pub(super) is_spread: bool,
    /// How many devices have examples of their own.
    batch_shards: i64,
    /// The step as a loop over micro-batches, which is what JAX hands over; no other change follows.
    in_parts: Option<Arc<Module>>,
    /// How often the module runs in one step.
    pub(super) runs: f64,
    /// Bytes in addition to the module's.
    pub(super) extra: Bytes,
    /// Seconds in addition to the module's: transfers over links.
    pub(super) extra_seconds: f64,
}

/// The dimensions of a program, and which of them is the batch.
#[derive(Clone)]
struct Followed {
    dimensions: Dimensions,
    batch: Option<Batch>,
}

impl Candidate {
    /// The original program, with trackable dimensions.
    pub(super) fn new(
        module: &Module,
        devices: &Devices,
        setting: &Setting<'_>,
    ) -> Result<Candidate, FitError> {
        let mut module = module.clone();
        module.is_scheduled = false;
        let context = Context { target: setting.target };
        passes::run(&mut module, &[&passes::FOLLOWABLE], &context, RunOptions::default())?;
        module.compact();
        let facts = Facts::new(&module, &Schedule::in_textual_order(&module))
            .map_err(|source| PassError::CallGraph { pass: "fit", source })?;
        let classes = ValueClasses::new(&module, &facts);
        let class = |&id: &InstructionId| {
            facts.flow.value_of(id).map_or(ValueClass::Input, |value| classes.of(value))
        };
        let dimensions = Dimensions::follow(&module);
        let batch = match setting.options.batch {
            None => dimensions.batch(&module),
            Some((parameter, dimension)) => {
                let named = dimensions.batch_at(&module, parameter, 0, dimension);
                Some(named.ok_or(FitError::NoBatch(parameter, dimension))?)
            }
        };
        let batch_shards = batch.as_ref().map_or(1, |batch| shards(&module, devices, batch.at));
        Ok(Candidate {
            is_spread: devices.count.is_some() || devices.of_whole.is_some(),
            batch_shards,
            classes: module.entry_computation().parameters.iter().map(class).collect(),
            batch_at: batch.as_ref().map(|batch| batch.at),
            followed: OnceLock::from(Followed { dimensions, batch }),
            trains: classes.phases.has_backward(),
            phases: OnceLock::from(classes.phases),
            module,
            in_parts: None,
            runs: 1.0,
            extra: Bytes::ZERO,
            extra_seconds: 0.0,
        })
    }

    /// The same program with another module, whose parameters have the same meaning.
    pub(super) fn with_module(&self, module: Module) -> Candidate {
        Candidate {
            module,
            followed: OnceLock::new(),
            phases: OnceLock::new(),
            batch_at: self.batch_at,
            trains: self.trains,
            classes: self.classes.clone(),
            is_spread: self.is_spread,
            batch_shards: self.batch_shards,
            in_parts: None,
            runs: self.runs,
            extra: self.extra,
            extra_seconds: self.extra_seconds,
        }
    }

    /// The compiler's estimate. Modules that several levers make are estimated once.
    pub(super) fn price(&self, setting: &Setting<'_>) -> Result<Price, EstimateError> {
        if let Some(whole) = &self.in_parts {
            let price = setting.prices.of(whole)?;
            return Ok(Price { seconds: price.seconds + self.extra_seconds, ..price });
        }
        let of_module = setting.prices.of(&self.module)?;
        Ok(Price {
            total: of_module.total.saturating_add(self.extra),
            seconds: of_module.seconds * self.runs + self.extra_seconds,
            operations: of_module.operations * self.runs,
        })
    }

    /// The same step as `n` micro-batches, each of them the step that `each` is: as the loop that JAX hands over. Where
    /// the module shows no gradients to add up, one micro-batch and one more set of gradients stand for it.
    pub(super) fn in_micro_batches(&self, n: i64, each: Candidate, setting: &Setting<'_>) -> Candidate {
        let gradients = self.bytes(ValueClass::Parameter, setting);
        let in_parts = match self.is_spread {
            true => None,
            false => passes::micro_batches(&self.module, &each.module, self.phases()).map(Arc::new),
        };
        let (runs, extra) = (each.runs * n as f64, each.extra.saturating_add(gradients));
        Candidate { in_parts, runs, extra, ..each }
    }

    fn followed(&self) -> &Followed {
        self.followed.get_or_init(|| {
            let dimensions = Dimensions::follow(&self.module);
            let at =
                |(parameter, part, dimension)| dimensions.batch_at(&self.module, parameter, part, dimension);
            Followed { batch: self.batch_at.and_then(at), dimensions }
        })
    }

    pub(super) fn dimensions(&self) -> &Dimensions {
        &self.followed().dimensions
    }

    /// The dimension that counts examples.
    pub(super) fn batch(&self) -> Option<&Batch> {
        self.followed().batch.as_ref()
    }

    /// The halves of a training step.
    pub(super) fn phases(&self) -> &Phases {
        let found = || Phases::new(&self.module, &CallGraph::new(&self.module).expect("levers add no calls"));
        self.phases.get_or_init(found)
    }

    /// The array parameters of the entry in a class, with their numbers.
    pub(super) fn parameters(&self, class: ValueClass) -> impl Iterator<Item = (usize, &ArrayShape)> {
        let entry = self.module.entry_computation();
        let of_class = self.classes.iter().enumerate().filter(move |(_, own)| **own == class);
        of_class.filter_map(|(number, _)| {
            let array = self.module.shape(entry.parameters[number]).as_array()?;
            (array.rank() > 0).then_some((number, array))
        })
    }

    /// Bytes of the parameters of a class.
    pub(super) fn bytes(&self, class: ValueClass, setting: &Setting<'_>) -> Bytes {
        let sizes = self.parameters(class).map(|(_, array)| setting.target.size_of(&array.clone().into()));
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The same program, which is now that of one of so many devices with examples of their own.
    pub(super) fn of_one_device(self, batch_shards: i64) -> Candidate {
        Candidate { is_spread: true, batch_shards: self.batch_shards * batch_shards, ..self }
    }

    /// So many examples on each device, counted on all of them: numbers that JAX accepts.
    pub(super) fn on_all(&self, examples: i64) -> i64 {
        examples.saturating_mul(self.batch_shards)
    }

    /// The extent of the batch.
    pub(super) fn examples(&self) -> Option<i64> {
        self.batch().map(|batch| batch.extent(self.dimensions()))
    }

    /// The names of arguments in the user's program, by parameter number.
    pub(super) fn arguments(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
        let entry = self.module.entry_computation();
        let mut names: Vec<String> = Vec::new();
        for number in numbers {
            let id = entry.parameters[number];
            let path = memplan_analysis::operation(&self.module, id);
            let name = path.split(['[', '.']).next().filter(|name| !name.is_empty());
            let name = name.map_or_else(|| self.module.instructions[id].name.to_string(), str::to_string);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// How often devices cut a dimension: parameter of the entry, part of it, and dimension.
fn shards(module: &Module, devices: &Devices, (parameter, part, dimension): (usize, usize, usize)) -> i64 {
    let before = &module.entry_computation().parameters[..parameter];
    let leaf = before.iter().map(|&id| module.shape(id).leaves().len()).sum::<usize>() + part;
    devices.shards.get(leaf).and_then(|shards| shards.get(dimension)).copied().unwrap_or(1)
}
