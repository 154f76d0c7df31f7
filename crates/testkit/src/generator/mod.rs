//! A generator of valid modules: every feature relevant to memory planning, with arrays so small that running them
//! costs nothing.
//!
//! A computation is a pool of arrays, to which steps add: most combine arrays of the pool, some call a computation
//! generated earlier, with arguments from the pool. Recent arrays are preferred, which makes chains in which memory can
//! be reused. The state of loops is updated in place, swapped, read, or written slice by slice; the result is a tuple,
//! parts of which may be aliased with parameters.
//!
//! Floats stay in bounds, and only integers have discontinuous operations: so two ways to compute a module give nearly
//! equal results.

mod chain_rule;
mod collectives;
mod control;
mod rare;
mod scans;
mod steps;
mod training;
mod unusual;

pub use collectives::PARTITIONS;
pub use rare::{OVERWRITES, overwrite};

use memplan_ir::ElementType::{F32, Pred, S32};
use memplan_ir::{
    ArrayShape, BuildError, ComputationBuilder, ComputationId, ElementType, Insert, InstructionId, Literal,
    Module, ModuleBuilder, Shape,
};

use crate::Random;
use control::Callee;

/// The modules to generate.
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions {
    /// Most steps of a computation.
    pub steps: usize,
    /// How deep calls, loops and conditionals may nest.
    pub depth: usize,
    /// Whether copies and computations may be started and done later.
    pub asynchronous: bool,
    /// Whether to generate rare features: fusions in the source, constant and copied tuples, dynamic extents, results
    /// that control flow returns as a whole.
    pub unusual: bool,
    /// Further features.
    pub family: Family,
}

/// Features of programs of one origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Nothing more.
    #[default]
    Plain,
    /// Loops that stack rows, and what reads the stacks.
    Scans,
    /// References to memory, loops that end when data says so, extents that change in loops.
    Rare,
    /// Exchanges between [`PARTITIONS`] devices.
    Devices,
    /// Training steps of networks of like layers, and loops over caches.
    Training,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions { steps: 12, depth: 2, asynchronous: true, unusual: false, family: Family::Plain }
    }
}

/// The module of a seed: the same on every machine.
///
/// # Panics
/// When the module is not valid, which is a bug in the generator or in the verifier.
pub fn generate(seed: u64, options: &GenerateOptions) -> Module {
    generate_from(Random::new(seed), &format!("seed_{seed}"), options)
}

/// The module that a sequence of random decisions makes.
///
/// # Panics
/// When the module is not valid, which is a bug in the generator or in the verifier.
pub fn generate_from(mut random: Random, name: &str, options: &GenerateOptions) -> Module {
    let mut module = ModuleBuilder::new(name);
    let entry = entry(&mut module, &mut random, options).expect("the generator builds valid operations");
    if options.family == Family::Devices {
        module.config_mut().num_partitions = Some(PARTITIONS as i64);
    }
    module.finish(entry).unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

/// The type of an array.
type Kind = (ElementType, Vec<i64>);

/// A computation being generated.
struct Body<'r, 'm> {
    random: &'r mut Random,
    computation: ComputationBuilder<'m>,
    combiners: Combiners,
    pool: Vec<InstructionId>,
    /// Tuples returned by control flow and similar instructions.
    tuples: Vec<InstructionId>,
    asynchronous: bool,
    unusual: bool,
    /// Whether all devices run this computation, and equally often.
    exchanges: bool,
}

/// Computations that all modules have.
#[derive(Clone, Copy)]
struct Combiners {
    sum_f32: ComputationId,
    maximum_f32: ComputationId,
    sum_s32: ComputationId,
    less_s32: ComputationId,
}

impl Combiners {
    fn new(module: &mut ModuleBuilder) -> Result<Combiners, BuildError> {
        use memplan_ir::BinaryOp::{Add, Maximum};
        let mut less = module.computation("less");
        let [a, b] = ["a", "b"].map(|name| less.parameter(name, Shape::scalar(S32)));
        let root = less.compare(memplan_ir::ComparisonDirection::Lt, a, b)?;
        let less_s32 = less.finish(root)?;
        Ok(Combiners {
            sum_f32: module.combiner(Add, F32)?,
            maximum_f32: module.combiner(Maximum, F32)?,
            sum_s32: module.combiner(Add, S32)?,
            less_s32,
        })
    }
}

fn entry(
    module: &mut ModuleBuilder,
    random: &mut Random,
    options: &GenerateOptions,
) -> Result<ComputationId, BuildError> {
    let combiners = Combiners::new(module)?;
    if options.family == Family::Training {
        return training::entry(module, random, combiners, options);
    }
    let callees = callees(module, random, combiners, options, options.depth)?;
    let (computation, parameters, result) = {
        let mut body = Body::new(module, "main", random, combiners, options);
        body.exchanges = options.family == Family::Devices;
        let mut parameters = Vec::new();
        for number in 0..2 + body.random.below(4) {
            let kind = body.random_kind();
            let mut shape = shape(&kind);
            if body.random.one_in(6) {
                let other = body.random_kind();
                shape = Shape::tuple([shape, self::shape(&other)]);
            }
            let parameter = body.computation.parameter(&format!("p{number}"), shape.clone());
            body.take(parameter)?;
            parameters.push(shape);
        }
        body.fill(&callees, options.steps)?;
        let (root, result) = body.result()?;
        (body.computation.finish(root)?, parameters, result)
    };
    alias(module, random, &parameters, &result);
    Ok(computation)
}

/// Computations that one computation calls, generated before it.
fn callees(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
    depth: usize,
) -> Result<Vec<Callee>, BuildError> {
    let count = match depth {
        0 => 0,
        _ if depth == options.depth => random.below(4),
        _ => random.below(2),
    };
    (0..count).map(|_| control::callee(module, random, combiners, options, depth - 1)).collect()
}

/// Aliases and donates some parameters, where sizes agree.
fn alias(module: &mut ModuleBuilder, random: &mut Random, parameters: &[Shape], result: &Shape) {
    let mut outputs = result.leaves();
    for (number, shape) in parameters.iter().enumerate() {
        for (index, leaf) in shape.leaves() {
            match random.below(4) {
                0 => module.donate(number as u32, index),
                1 | 2 => {
                    if let Some(k) = outputs.iter().position(|(_, output)| *output == leaf) {
                        module.alias(outputs.remove(k).0, number as u32, index);
                    }
                }
                _ => {}
            }
        }
    }
}

fn shape((element_type, dimensions): &Kind) -> Shape {
    Shape::array(*element_type, dimensions.iter().copied())
}

impl<'r, 'm> Body<'r, 'm> {
    fn new(
        module: &'m mut ModuleBuilder,
        name: &str,
        random: &'r mut Random,
        combiners: Combiners,
        options: &GenerateOptions,
    ) -> Body<'r, 'm> {
        let computation = module.computation(name);
        let GenerateOptions { asynchronous, unusual, .. } = *options;
        let (pool, tuples) = (Vec::new(), Vec::new());
        Body { random, computation, combiners, pool, tuples, asynchronous, unusual, exchanges: false }
    }

    /// Adds an array, or the elements of a tuple, to the pool.
    fn take(&mut self, id: InstructionId) -> Result<(), BuildError> {
        match self.computation.shape(id).as_tuple().map(<[Shape]>::len) {
            None => self.pool.push(id),
            Some(n) => {
                for index in 0..n as u32 {
                    let element = self.computation.get_tuple_element(id, index)?;
                    self.take(element)?;
                }
            }
        }
        Ok(())
    }

    /// Runs steps, some of which are calls.
    fn fill(&mut self, callees: &[Callee], steps: usize) -> Result<(), BuildError> {
        let n = steps / 2 + self.random.below(steps / 2 + 1);
        let mut calls: Vec<&Callee> = callees.iter().collect();
        // A computation called from two places has to be copied for each.
        if let Some(first) =
            callees.first().filter(|callee| !callee.is_asynchronous() && self.random.one_in(3))
        {
            calls.push(first);
        }
        let times: Vec<usize> = calls.iter().map(|_| self.random.below(n + 1)).collect();
        for time in 0..=n {
            for (callee, _) in calls.iter().zip(&times).filter(|&(_, &t)| t == time) {
                self.call(callee)?;
            }
            self.step()?;
            if self.unusual && self.random.one_in(6) {
                let added = self.unusual()?;
                self.pool.extend(added);
            }
            if self.exchanges && self.random.one_in(3) {
                let added = self.collective()?;
                self.pool.extend(added);
            }
        }
        Ok(())
    }

    /// The result: an array, or a tuple of a few, which may repeat and nest.
    fn result(&mut self) -> Result<(InstructionId, Shape), BuildError> {
        let mut parts = Vec::new();
        if self.unusual && !self.tuples.is_empty() && self.random.one_in(2) {
            let whole = self.random.pick(&self.tuples);
            if self.random.one_in(2) {
                return Ok((whole, self.computation.shape(whole).clone()));
            }
            parts.push(whole);
        }
        for _ in 0..1 + self.random.below(4) {
            let mut part = self.any();
            if self.random.one_in(8) {
                let other = self.any();
                part = self.computation.tuple([part, other])?;
            }
            parts.push(part);
        }
        let root = match parts.len() == 1 && self.random.one_in(2) {
            true => parts[0],
            false => self.computation.tuple(parts)?,
        };
        Ok((root, self.computation.shape(root).clone()))
    }

    fn array(&self, id: InstructionId) -> &ArrayShape {
        self.computation.shape(id).as_array().expect("the pool has arrays only")
    }

    fn kind(&self, id: InstructionId) -> Kind {
        let array = self.array(id);
        (array.element_type, array.dimensions.to_vec())
    }

    fn random_kind(&mut self) -> Kind {
        let dimensions = [&[][..], &[4], &[8], &[4, 8], &[4, 8], &[8, 4], &[2, 4, 4]];
        let dimensions = self.random.pick(&dimensions).to_vec();
        (self.random.pick(&[F32, F32, F32, S32]), dimensions)
    }

    /// Any array, more often a late one.
    fn any(&mut self) -> InstructionId {
        let n = self.pool.len();
        let late = self.random.below(n.min(4));
        let at = if self.random.one_in(3) { self.random.below(n) } else { n - 1 - late };
        self.pool[at]
    }

    /// An array of the pool for which something holds.
    fn any_where(&mut self, holds: impl Fn(&ArrayShape) -> bool) -> Option<InstructionId> {
        let found: Vec<_> = self.pool.iter().copied().filter(|&id| holds(self.array(id))).collect();
        (!found.is_empty()).then(|| {
            let late = found.len().saturating_sub(4);
            let from = if self.random.one_in(3) { 0 } else { late };
            found[from + self.random.below(found.len() - from)]
        })
    }

    /// An array of a kind: of the pool, or a constant everywhere.
    fn of_kind(&mut self, kind: &Kind) -> Result<InstructionId, BuildError> {
        let found = self
            .any_where(|array| array.element_type == kind.0 && array.dimensions[..] == kind.1[..])
            .filter(|_| !self.random.one_in(8));
        match found {
            Some(id) => Ok(id),
            None => self.splat(kind),
        }
    }

    /// A small number everywhere; sometimes a constant array.
    fn splat(&mut self, (element_type, dimensions): &Kind) -> Result<InstructionId, BuildError> {
        let value = self.random.below(7) as i32 - 3;
        let literal = match element_type {
            Pred => Literal::pred(value > 0),
            S32 => Literal::s32(value),
            _ => Literal::f32(value as f32 / 2.0),
        };
        if !dimensions.is_empty() && self.random.one_in(4) {
            let count = dimensions.iter().product::<i64>() as usize;
            let bytes = literal.as_array().expect("a scalar is an array").bytes().repeat(count);
            let literal = Literal::array(*element_type, dimensions.iter().copied(), bytes);
            return Ok(self.computation.constant(literal));
        }
        let scalar = self.computation.constant(literal);
        match dimensions.is_empty() {
            true => Ok(scalar),
            false => self.computation.broadcast(scalar, dimensions.iter().copied(), []),
        }
    }
}
