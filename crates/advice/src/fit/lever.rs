//! The levers: the possible changes, the passes that apply each to the module, and how to write it in the program.

use std::ops::RangeInclusive;
use std::sync::Arc;

use memplan_analysis::ValueClass;
use memplan_driver::{ModuleKey, RewriteOptions, rewrite_among};
use memplan_ir::{ElementType, InstructionId, ShapeIndex};
use memplan_memory::{MemorySpaceId, Transfer};
use memplan_passes as passes;
use memplan_passes::HOST_MEMORY;

use super::candidate::Candidate;
use super::mesh::{self, Mesh, MeshAdvice};
use super::policy::{self, Policy};
use super::{Code, Setting};

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Lever {
    /// A result reuses the memory of an argument.
    Donate,
    /// A value is recomputed instead of kept.
    Recompute,
    /// State is in the host's memory between steps.
    Offload,
    /// Fewer examples.
    Batch,
    /// The same number of examples, a few at a time.
    Microbatch,
    /// Several devices.
    Shard,
    /// Narrower numbers.
    Dtype,
    /// A larger share of the device for the pool of the process.
    Pool,
    /// Another order, other kernels: memplan's own compiler.
    Order,
}

impl Lever {
    pub(super) const TIERS: RangeInclusive<u8> = 0..=4;

    /// The cost to the user: only time; the host's memory; other numbers; fewer examples; more devices.
    pub(super) fn tier(self) -> u8 {
        match self {
            Lever::Donate | Lever::Recompute | Lever::Microbatch | Lever::Pool | Lever::Order => 0,
            Lever::Offload => 1,
            Lever::Dtype => 2,
            Lever::Batch => 3,
            Lever::Shard => 4,
        }
    }
}

/// One change of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Edit {
    /// Results reuse these parameters of the entry.
    Donate(Vec<(usize, ShapeIndex)>),
    /// `jax.checkpoint` around the differentiated function.
    Checkpoint(Policy),
    /// `memplan rewrite` under the limit.
    Rewrite,
    /// The parameters of a class in another type.
    Narrow(ValueClass, ElementType),
    /// Activations kept for the backward half, in another type.
    NarrowKept(ElementType),
    /// The optimizer's state on the host.
    Offload,
    /// This many examples.
    Batch(i64),
    /// The same number of examples, this many at a time.
    Microbatch(i64),
    /// Several devices.
    Shard(Mesh),
}

/// The changes to try.
pub(super) struct Edits {
    pub(super) list: Vec<Edit>,
    /// The changes that are not tried, and why.
    pub(super) refused: Vec<String>,
}

/// Every change that may help a program.
pub(super) fn all(program: &Candidate, setting: &Setting<'_>) -> Edits {
    let (mut list, mut refused) = (Vec::new(), Vec::new());
    let donations = passes::donations(&program.module);
    if !donations.is_empty() {
        list.push(Edit::Donate(donations));
    }
    let policies = policy::all(program, setting);
    if program.trains && policies.is_empty() {
        refused.push(
            "checkpoints: the forward half runs in loops, whose kept values only `memplan rewrite` changes"
                .into(),
        );
    }
    list.extend(policies.into_iter().map(Edit::Checkpoint));
    list.push(Edit::Rewrite);
    match program.examples() {
        None => refused
            .push("no dimension of the arguments looks like a batch (`--batch PARAMETER:DIMENSION`)".into()),
        Some(examples) => {
            list.extend(halves(examples).map(Edit::Batch));
            if program.trains {
                list.extend(halves(examples).map(Edit::Microbatch));
            }
        }
    }
    if program.parameters(ValueClass::OptimizerState).next().is_some() {
        list.push(Edit::Narrow(ValueClass::OptimizerState, ElementType::Bf16));
        match setting.target.space(HOST_MEMORY).is_some()
            && setting.target.space(MemorySpaceId::MAIN).is_some()
        {
            true => list.push(Edit::Offload),
            false => {
                refused.push(format!("offload: the file of {} describes no host memory", setting.target.name))
            }
        }
    }
    if program.trains {
        match kept(program).is_empty() {
            false => list.push(Edit::NarrowKept(ElementType::Bf16)),
            true => refused.push(
                "activations in bf16: outside of loops, nothing large is kept in f32 for the backward half"
                    .into(),
            ),
        }
    }
    if !program.trains && program.parameters(ValueClass::Parameter).next().is_some() {
        list.push(Edit::Narrow(ValueClass::Parameter, ElementType::S8));
    }
    if program.is_spread {
        refused.push("sharding: the program is sharded already, and the bytes above count that".into());
    } else {
        list.extend(mesh::all(program, &setting.options.devices, setting).into_iter().map(Edit::Shard));
    }
    Edits { list, refused }
}

/// Halves, quarters and so on of a batch, if they divide it, from many examples to few.
fn halves(examples: i64) -> impl Iterator<Item = i64> {
    let halves = std::iter::successors(Some(examples / 2), |n| Some(n / 2)).take_while(|&n| n > 0);
    halves.filter(move |n| examples % n == 0)
}

impl Edit {
    pub(super) fn lever(&self) -> Lever {
        match self {
            Edit::Donate(_) => Lever::Donate,
            Edit::Checkpoint(_) | Edit::Rewrite => Lever::Recompute,
            Edit::Narrow(..) | Edit::NarrowKept(_) => Lever::Dtype,
            Edit::Offload => Lever::Offload,
            Edit::Batch(_) => Lever::Batch,
            Edit::Microbatch(_) => Lever::Microbatch,
            Edit::Shard(..) => Lever::Shard,
        }
    }

    /// The order in which changes are applied. A rewrite is last, since it depends on the limit.
    pub(super) fn place(&self) -> u8 {
        match self {
            Edit::Donate(_) => 0,
            Edit::Narrow(..) | Edit::NarrowKept(_) => 1,
            Edit::Checkpoint(_) => 2,
            Edit::Microbatch(_) => 3,
            Edit::Batch(_) => 4,
            Edit::Shard(..) => 5,
            Edit::Offload => 6,
            Edit::Rewrite => 7,
        }
    }

    /// The number of devices or runs that the change needs for the original number of examples.
    pub(super) fn per_example(&self, program: &Candidate) -> f64 {
        match self {
            Edit::Batch(n) => program.examples().unwrap_or(*n) as f64 / *n as f64,
            Edit::Shard(mesh) => mesh.devices() as f64,
            Edit::Donate(_)
            | Edit::Checkpoint(_)
            | Edit::Rewrite
            | Edit::Narrow(..)
            | Edit::NarrowKept(_)
            | Edit::Offload
            | Edit::Microbatch(_) => 1.0,
        }
    }

    /// The same change with more examples at a time, from few to many. Of a smaller batch, in sixteenths up to twice as many:
    /// halves are tried in any case.
    pub(super) fn more_examples(&self, program: &Candidate) -> Option<Vec<Edit>> {
        match *self {
            Edit::Batch(n) => {
                let mut more: Vec<i64> = (1..16).map(|k| n + n / 16 * k + n % 16 * k / 16).collect();
                more.dedup();
                Some(more.into_iter().filter(|&more| more > n).map(Edit::Batch).collect())
            }
            Edit::Microbatch(n) => {
                let larger = halves(program.examples()?).take_while(|&more| more > n);
                let mut larger: Vec<Edit> = larger.map(Edit::Microbatch).collect();
                larger.reverse();
                Some(larger)
            }
            _ => None,
        }
    }

    /// Describes the change.
    pub(super) fn what(&self, program: &Candidate) -> String {
        let examples = program.examples().unwrap_or(0);
        match self {
            Edit::Donate(pairs) => {
                let names = program.arguments(pairs.iter().map(|(parameter, _)| *parameter));
                format!("donate {}", names.join(", "))
            }
            Edit::Checkpoint(policy) => policy.what(),
            Edit::Rewrite => "recompute, and compute in blocks, whatever `memplan rewrite` finds".into(),
            Edit::Narrow(ValueClass::OptimizerState, element_type) => {
                format!("optimizer state in {element_type}")
            }
            Edit::Narrow(_, element_type) => format!("weights in {element_type}"),
            Edit::NarrowKept(element_type) => {
                format!("activations kept for the backward half in {element_type} instead of f32")
            }
            Edit::Offload => "optimizer state in the host's memory between steps".into(),
            Edit::Batch(n) => format!("batch {} instead of {}", program.on_all(*n), program.on_all(examples)),
            Edit::Microbatch(n) => {
                let (all, each) = (program.on_all(examples), program.on_all(*n));
                format!("batch {all} as {} micro-batches of {each}", examples / n)
            }
            Edit::Shard(mesh) => mesh.what(),
        }
    }

    /// The change as source code or as a command.
    pub(super) fn apply(&self, program: &Candidate, setting: &Setting<'_>) -> String {
        let examples = program.examples().unwrap_or(0);
        let quoted =
            |names: Vec<String>| names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
        match self {
            Edit::Donate(pairs) => {
                let names = program.arguments(pairs.iter().map(|(parameter, _)| *parameter));
                format!("jax.jit(f, donate_argnames=({},))", quoted(names))
            }
            Edit::Checkpoint(policy) => policy.apply(),
            Edit::Rewrite => format!(
                "memplan rewrite MODULE --compiler {} --target {} --memory-limit {}B -o OUT, or memplan.jit(f)",
                setting.compiler.name, setting.target.name, setting.options.limit.0
            ),
            Edit::Narrow(class, element_type) => {
                let names = program.arguments(program.parameters(*class).map(|(number, _)| number));
                let numpy = if *element_type == ElementType::S8 { "int8" } else { "bfloat16" };
                format!("keep {} in jnp.{numpy}, and convert it at each use", names.join(", "))
            }
            Edit::NarrowKept(_) => {
                let lines = policy::lines(program, &kept(program), setting);
                format!(
                    "x = jax.lax.optimization_barrier(x.astype(jnp.bfloat16)).astype(x.dtype) for the kept values: {lines}"
                )
            }
            Edit::Offload => {
                let names = program
                    .arguments(program.parameters(ValueClass::OptimizerState).map(|(number, _)| number));
                format!(
                    "shardings of {} with memory_kind='pinned_host', and jax.device_put at each use",
                    names.join(", ")
                )
            }
            Edit::Batch(n) => format!("call the step with {} examples", program.on_all(*n)),
            Edit::Microbatch(n) => {
                format!("jax.lax.scan over {} parts of the batch, summing gradients", examples / n)
            }
            Edit::Shard(mesh) => mesh.apply(program),
        }
    }
}

impl Edit {
    /// The change as values for code.
    pub(super) fn code(&self, program: &Candidate) -> Option<Code> {
        match self {
            Edit::Checkpoint(policy) => Some(Code::Policy(policy.expression())),
            Edit::Microbatch(n) => program.examples().map(|examples| Code::MicroBatches(examples / n)),
            _ => None,
        }
    }

    /// The mesh of devices.
    pub(super) fn mesh(&self, program: &Candidate) -> Option<MeshAdvice> {
        match self {
            Edit::Shard(mesh) => Some(mesh.advice(program)),
            _ => None,
        }
    }
}

impl Candidate {
    /// Applies the change to the program, or returns why that is impossible.
    pub(super) fn with(&self, edit: &Edit, setting: &Setting<'_>) -> Result<Candidate, String> {
        match edit {
            Edit::Donate(pairs) => {
                let mut module = self.module.clone();
                passes::donate(&mut module, pairs);
                Ok(self.with_module(module))
            }
            Edit::Checkpoint(policy) => policy.carry_out(self),
            Edit::Rewrite => {
                let limit = setting.options.limit.saturating_sub(self.extra);
                let options = RewriteOptions {
                    memory_limit: Some(limit),
                    threads: setting.options.threads,
                    ..RewriteOptions::default()
                };
                let rewritten = || {
                    let found = rewrite_among(self.module.clone(), &setting.prices, &options);
                    found.map(|found| Arc::new(found.module)).map_err(|error| error.to_string())
                };
                let module = setting.rewritten.of((ModuleKey::new(&self.module), limit), rewritten)?;
                Ok(self.with_module(Arc::unwrap_or_clone(module)))
            }
            Edit::Narrow(class, element_type) => {
                let numbers = self.parameters(*class).filter(|(_, array)| array.element_type.is_floating());
                let numbers: Vec<usize> = numbers.map(|(number, _)| number).collect();
                let mut module = self.module.clone();
                passes::narrow_arguments(&mut module, &numbers, *element_type);
                Ok(self.with_module(module))
            }
            Edit::NarrowKept(element_type) => {
                let mut module = self.module.clone();
                passes::narrow_values(&mut module, &kept(self), *element_type);
                Ok(self.with_module(module))
            }
            Edit::Offload => {
                let numbers: Vec<usize> =
                    self.parameters(ValueClass::OptimizerState).map(|(number, _)| number).collect();
                let bytes = self.bytes(ValueClass::OptimizerState, setting);
                let mut module = self.module.clone();
                passes::keep_on_host(&mut module, &numbers);
                let mut next = self.with_module(module);
                // Out and back, with no other work in parallel.
                next.extra_seconds += 2.0 * bytes.0 as f64 / host_link(setting);
                Ok(next)
            }
            Edit::Batch(n) => self.resized(*n),
            Edit::Microbatch(n) => {
                let examples = self.examples().ok_or("the program has no batch dimension")?;
                let each = self.resized(*n)?;
                Ok(self.in_micro_batches(examples / n, each, setting))
            }
            Edit::Shard(mesh) => mesh::carry_out(self, mesh, setting),
        }
    }

    /// The program at another number of examples.
    pub(super) fn resized(&self, examples: i64) -> Result<Candidate, String> {
        let batch = self.batch().ok_or("the program has no batch dimension")?;
        let (whole, factor) = (batch.extent(self.dimensions()), self.dimensions().extent(batch.factor));
        let extent = examples.checked_mul(factor).filter(|n| n % whole == 0).map(|n| n / whole);
        let extent = extent.ok_or_else(|| format!("the program splits the dimension of {whole} examples"))?;
        self.resized_along(batch.factor, extent)
    }

    /// The program with another extent of a factor.
    pub(super) fn resized_along(
        &self,
        factor: memplan_analysis::FactorId,
        extent: i64,
    ) -> Result<Candidate, String> {
        let resized = passes::resize(&self.module, self.dimensions(), factor, extent);
        Ok(self.with_module(resized.map_err(|error| error.to_string())?.module))
    }
}

/// The 32-bit values that the forward half keeps for the backward half.
fn kept(program: &Candidate) -> Vec<InstructionId> {
    passes::kept_for_backward(&program.module, program.phases())
}

/// Bytes per second between a device and its host: the target's figure, or that of a fourth-generation PCIe with 16
/// lanes.
fn host_link(setting: &Setting<'_>) -> f64 {
    const PCIE: f64 = 2.5e10;
    let is_link = |link: &&Transfer| link.from == HOST_MEMORY && link.to == MemorySpaceId::MAIN;
    let link = setting.target.transfers.iter().find(is_link);
    link.and_then(|link| link.bandwidth).unwrap_or(PCIE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Devices;
    use crate::fit::FitOptions;
    use memplan_driver::Prices;
    use memplan_memory::{Bytes, Compiler, Target};

    /// The number of micro-batches is whole.
    #[test]
    fn larger_micro_batches_divide_the_batch() {
        let text = "
            HloModule step
            ENTRY main {
              w = f32[64,64] parameter(0), metadata={op_name=\"params['w']\"}
              x = f32[96,64] parameter(1), metadata={op_name=\"x\"}
              ROOT y = f32[96,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
            }";
        let (compiler, target) = (Compiler::find("xla-gpu").unwrap(), Target::find("gpu-h100").unwrap());
        let options =
            FitOptions { limit: Bytes(1), pool: None, batch: Some((1, 0)), devices: vec![1], threads: 1 };
        let setting = Setting {
            compiler: &compiler,
            target: &target,
            options: &options,
            prices: Prices::new(&compiler, &target),
            rewritten: Default::default(),
        };
        let module = memplan_hlo::parse(text).unwrap();
        let program = Candidate::new(&module, &Devices::default(), &setting).unwrap();
        assert_eq!(program.examples(), Some(96));
        for edit in Edit::Microbatch(1).more_examples(&program).unwrap() {
            assert!(matches!(edit, Edit::Microbatch(n) if 96 % n == 0), "{edit:?}");
        }
    }
}
