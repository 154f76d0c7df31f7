//! Several devices: the program of one device, and its communication.

use std::collections::BTreeMap;

use memplan_analysis::{FactorId, ValueClass};
use memplan_ir::ArrayShape;
use memplan_passes as passes;
use memplan_passes::{Context, RunOptions};

use super::Setting;
use super::candidate::Candidate;

/// What to shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// Examples: data parallelism.
    Batch,
    /// Examples, and all trained state: fully sharded data parallelism.
    State,
    /// A dimension of the weights: heads or features.
    Features {
        /// The parameter of the entry that has it.
        parameter: usize,
        /// Which dimension of it.
        dimension: usize,
        /// Its extent.
        extent: i64,
    },
}

impl Along {
    pub(super) fn what(self, devices: i64) -> String {
        match self {
            Along::Batch => format!("the batch over {devices} devices"),
            Along::State => {
                format!("batch, weights and optimizer state over {devices} devices (fully sharded)")
            }
            Along::Features { extent, .. } => format!("features ({extent}) over {devices} devices"),
        }
    }

    pub(super) fn apply(self, devices: i64) -> String {
        match self {
            Along::Batch => {
                format!("in_shardings with PartitionSpec('x') for the data, on a mesh of {devices}")
            }
            Along::State => format!(
                "in_shardings with PartitionSpec('x') along the largest dimension of every weight and moment, and for the data, on a mesh of {devices}"
            ),
            Along::Features { extent, .. } => {
                format!(
                    "PartitionSpec('x') for the dimensions of {extent} of the weights, on a mesh of {devices}"
                )
            }
        }
    }
}

/// Ways to use these numbers of devices.
pub(super) fn all(program: &Candidate, devices: &[i64]) -> Vec<(Along, i64)> {
    let mut list = Vec::new();
    let features = features(program);
    for &n in devices.iter().filter(|&&n| n > 1) {
        if program.examples().is_some_and(|examples| examples % n == 0) {
            list.push((Along::Batch, n));
            if program.trains {
                list.push((Along::State, n));
            }
        }
        if let Some((parameter, dimension, extent)) = features.filter(|(_, _, extent)| extent % n == 0) {
            list.push((Along::Features { parameter, dimension, extent }, n));
        }
    }
    list
}

/// The dimension that most elements of the weights have, counted once per weight, in at most half of the weights: a
/// dimension of all weights is the stream between layers. Returns parameter, dimension and extent.
fn features(program: &Candidate) -> Option<(usize, usize, i64)> {
    let mut elements: BTreeMap<FactorId, (u64, usize)> = BTreeMap::new();
    let matrices = program.parameters(ValueClass::Parameter).filter(|(_, array)| array.rank() > 1).count();
    let batch = program.batch().map(|batch| batch.factor);
    for (number, array) in program.parameters(ValueClass::Parameter) {
        let factors: Vec<FactorId> =
            program.dimensions().of_parameter(&program.module, number, 0).into_iter().flatten().collect();
        for &factor in &factors {
            let is_once = factors.iter().filter(|&&other| other == factor).count() == 1;
            if is_once && Some(factor) != batch && array.rank() > 1 {
                let (sum, arrays) = elements.entry(factor).or_default();
                *sum += array.element_count().unwrap_or(0);
                *arrays += 1;
            }
        }
    }
    elements.retain(|_, (_, arrays)| 2 * *arrays <= matrices);
    let most = elements.into_iter().max_by_key(|&(factor, (sum, _))| (sum, std::cmp::Reverse(factor)));
    let (factor, _) = most?;
    program.parameters(ValueClass::Parameter).find_map(|(number, _)| {
        let own = program.dimensions().of_parameter(&program.module, number, 0);
        let dimension = own.iter().position(|factors| factors.first() == Some(&factor))?;
        Some((number, dimension, program.dimensions().extent(factor)))
    })
}

/// The program of one device, as XLA's partitioner makes it.
pub(super) fn carry_out(
    program: &Candidate,
    along: Along,
    devices: i64,
    setting: &Setting<'_>,
) -> Result<Candidate, String> {
    let part = of_one_device(program, along, devices, setting)?;
    let mut module = part.module.clone();
    // The partitioner merges common subexpressions at its end, while XLA otherwise does so only after other rewrites.
    let context = Context { target: setting.target };
    passes::run(&mut module, &[&passes::CSE], &context, RunOptions::default())
        .map_err(|error| error.to_string())?;
    module.compact();
    Ok(part.with_module(module))
}

fn of_one_device(
    program: &Candidate,
    along: Along,
    devices: i64,
    setting: &Setting<'_>,
) -> Result<Candidate, String> {
    let n = devices as f64;
    let gradients = program.bytes(ValueClass::Parameter, setting).0 as f64;
    let link = setting.target.interconnect.unwrap_or(f64::INFINITY);
    // A ring: each device sends and receives all parts but its own, once to sum and once to distribute.
    let ring = |bytes: f64, rounds: f64| rounds * bytes * (n - 1.0) / n / link;
    match along {
        Along::Batch | Along::State => {
            let examples = program.examples().ok_or("the program has no batch dimension")?;
            if examples % devices != 0 {
                // The batch may have changed before.
                return Err(format!("{examples} examples do not divide among {devices} devices"));
            }
            let mut next = program.resized(examples / devices)?;
            if along == Along::Batch {
                let trains = program.trains;
                next.extra_seconds += if trains { ring(gradients, 2.0) } else { 0.0 };
                return Ok(next);
            }
            let state = [ValueClass::Parameter, ValueClass::OptimizerState];
            let numbers = state.iter().flat_map(|&class| next.parameters(class).map(|(number, _)| number));
            let mut numbers: Vec<usize> = numbers.collect();
            numbers.sort_unstable();
            let sharded = passes::fully_shard(&next.module, &numbers, devices);
            memplan_ir::verify(&sharded.module).map_err(|errors| errors.to_string())?;
            let size = |arrays: &[ArrayShape]| {
                arrays.iter().map(|array| setting.target.size_of(&array.clone().into()).0 as f64).sum::<f64>()
            };
            let seconds = ring(size(&sharded.gathered), 1.0) + ring(size(&sharded.scattered), 1.0);
            next = next.with_module(sharded.module);
            next.extra_seconds += seconds;
            Ok(next)
        }
        Along::Features { parameter, dimension, extent } => {
            let cut = program.dimensions().batch_at(&program.module, parameter, 0, dimension);
            program
                .resized_along(cut.ok_or("the dimension does not exist any more")?.factor, extent / devices)
        }
    }
}
