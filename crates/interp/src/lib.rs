//! Reference evaluator for HLO: computes a module with a buffer for every value, and proves a plan by running it inside
//! the plan's memory.
//!
//! Both use one interpreter. It lowers every instruction to a kernel that knows only places in memory; the only
//! differences are where results go, and that every byte is watched inside a plan. So the two agree bit for bit if the
//! plan is right.
//!
//! ```
//! use memplan_interp::{Options, evaluate};
//! use memplan_ir::Literal;
//!
//! let module = memplan_hlo::parse(
//!     "HloModule m  ENTRY main { p = f32[] parameter(0)  ROOT n = f32[] negate(p) }",
//! )?;
//! let result = evaluate(&module, &[Literal::f32(2.0)], &Options::default())?;
//! assert_eq!(result, Literal::f32(-2.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod collective;
mod compile;
mod custom_calls;
mod devices;
mod dynamic;
mod element;
mod error;
mod execute;
mod frame;
mod kernels;
mod lambda;
mod last_use;
mod layouts;
mod limits;
mod lower;
mod math;
mod memory;
mod minifloat;
#[cfg(feature = "npz")]
mod npy;
#[cfg(feature = "npz")]
pub mod npz;
mod program;
mod pull;
mod real;
mod transfer;
mod writes;

use memplan_ir::{ArrayShape, ComputationId, InstructionId, Literal, Module, Schedule, SecondaryMap, Shape};
use memplan_memory::{Bytes, MemoryPlan};

pub use custom_calls::CustomCalls;
pub use devices::{Devices, evaluate_on, run_in_arena_on};
pub use error::Error;
pub use layouts::with_meaningful_layouts;
pub use limits::limits;

use arena::Arena;
use execute::{Executor, Storage, flatten};
use memory::Memory;

/// How a module is evaluated.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that all values together may take.
    pub memory_limit: usize,
    /// The meanings of custom calls in addition to built-in ones.
    pub custom_calls: CustomCalls,
    /// Decides the numbers of `rng`, which HLO leaves open: equal seeds give equal numbers, in both modes and on every
    /// device.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        // Half of a machine with 64 GiB: a module that needs more is not for an interpreter.
        Options { memory_limit: 32 << 30, custom_calls: CustomCalls::default(), seed: 0 }
    }
}

/// The result of the entry computation, each value in a buffer of its own: what the module means.
///
/// # Errors
/// When the inputs do not fit the parameters, or the module has something that cannot be evaluated.
pub fn evaluate(module: &Module, inputs: &[Literal], options: &Options) -> Result<Literal, Error> {
    let schedule = Schedule::default();
    let memory = Memory::new(options.memory_limit, options.seed);
    let module = with_meaningful_layouts(module);
    let mut executor = Executor::new(&module, &schedule, Storage::Separate, memory);
    executor.custom_calls = options.custom_calls.clone();
    run(&mut executor, inputs)
}

/// The result of the entry computation, computed inside the allocations of a plan.
///
/// Every byte remembers the value it was written for. Reading a value of which a byte was overwritten, freed or never
/// written is an error, as is a plan that moves a value which nothing copies.
///
/// # Errors
/// As [`evaluate`], and when the plan is wrong.
pub fn run_in_arena(
    module: &Module,
    schedule: &Schedule,
    plan: &MemoryPlan,
    inputs: &[Literal],
    options: &Options,
) -> Result<Literal, Error> {
    let mut memory = Memory::new(options.memory_limit, options.seed);
    let arena = Arena::new(plan, &mut memory)?;
    let mut executor = Executor::new(module, schedule, Storage::Arena(arena), memory);
    executor.custom_calls = options.custom_calls.clone();
    run(&mut executor, inputs)
}

/// Whether an instruction writes memory itself, instead of passing values on or leaving it to its callees.
pub fn writes_memory(module: &Module, instruction: InstructionId) -> bool {
    writes::has_kernel(module, instruction)
}

/// Bytes of working memory that the kernel of an instruction needs besides operands and result. 0 for instructions
/// without a kernel, and for those that cannot be evaluated. Takes time linear in the module.
pub fn scratch_bytes(module: &Module, instruction: InstructionId) -> u64 {
    if !writes::has_kernel(module, instruction) || first_unbounded(module).is_some() {
        return 0;
    }
    if dynamic::is_dynamic(module, instruction) {
        return dynamic::scratch_bytes(module, instruction);
    }
    let pullable = pull::Pullable::below(module, instruction);
    compile::compile(module, &pullable, instruction).map_or(0, |kernel| kernel.scratch_bytes() as u64)
}

/// The working memory of all instructions that run step by step and need any, for a plan. Empty if the program cannot
/// be evaluated because a dimension has no bound.
pub fn scratch(module: &Module) -> SecondaryMap<InstructionId, Bytes> {
    if first_unbounded(module).is_some() {
        return SecondaryMap::new();
    }
    let pullable = pull::Pullable::new(module);
    let mut scratch = SecondaryMap::new();
    for &id in called_computations(module).iter().flat_map(|&c| &module.computations[c].instructions) {
        if !writes::has_kernel(module, id) {
            continue;
        }
        let bytes = match dynamic::is_dynamic(module, id) {
            true => dynamic::scratch_bytes(module, id),
            false => {
                compile::compile(module, &pullable, id).map_or(0, |kernel| kernel.scratch_bytes() as u64)
            }
        };
        if bytes > 0 {
            scratch[id] = Bytes(bytes);
        }
    }
    scratch
}

/// Checks the inputs, runs the entry computation and folds its leaves into a literal of its shape.
fn run(executor: &mut Executor<'_>, inputs: &[Literal]) -> Result<Literal, Error> {
    let module = executor.module;
    if let Some(id) = first_unbounded(module) {
        return Err(Error::unsupported(module, id, "a dimension has no bound"));
    }
    let inputs = checked_inputs(module, inputs)?;
    let mut leaves = executor.run(&inputs)?.into_iter();
    let root = module.entry_computation().root;
    Ok(nest(module.shape(root), &mut leaves))
}

/// The first instruction with an array of which a dimension has no bound: nobody knows how many elements that has.
fn first_unbounded(module: &Module) -> Option<InstructionId> {
    module.instructions.keys().find(|&id| module.shape(id).any_array(ArrayShape::is_unbounded))
}

/// The leaves of each input, which have the shapes of the parameters.
fn checked_inputs(module: &Module, inputs: &[Literal]) -> Result<Vec<Vec<Literal>>, Error> {
    let parameters = &module.entry_computation().parameters;
    if inputs.len() > parameters.len() {
        let (given, expected) = (inputs.len(), parameters.len());
        return Err(Error::ExtraInput { given, expected, first: format!("p{expected}") });
    }
    let mut checked = Vec::new();
    for (number, &parameter) in parameters.iter().enumerate() {
        let shape = module.shape(parameter);
        let name = module.instructions[parameter].name.to_string();
        let Some(input) = inputs.get(number) else {
            return Err(Error::MissingInput { number, name, expected: describe(shape) });
        };
        let mut leaves = Vec::new();
        flatten(input, &mut leaves);
        if !fits(&leaves, shape) {
            let found: Vec<String> = leaves.iter().map(|l| describe_literal(l)).collect();
            let found = if found.len() == 1 { found[0].clone() } else { format!("({})", found.join(", ")) };
            return Err(Error::WrongInput { number, name, expected: describe(shape), found });
        }
        checked.push(leaves.into_iter().cloned().collect());
    }
    Ok(checked)
}

/// Whether these are the leaves of a value of a shape.
fn fits(leaves: &[&Literal], shape: &Shape) -> bool {
    let shapes = shape.leaves();
    let leaf_fits = |literal: &Literal, shape: &Shape| match (literal, shape.as_array()) {
        (Literal::Array(a), Some(s)) => a.element_type == s.element_type && extents_fit(&a.dimensions, s),
        (Literal::Token, None) => true,
        _ => false,
    };
    leaves.len() == shapes.len() && leaves.iter().zip(&shapes).all(|(l, (_, s))| leaf_fits(l, s))
}

/// Whether an array of a shape may have these extents: its own, or fewer indices in dynamic dimensions.
pub(crate) fn extents_fit(extents: &[i64], shape: &ArrayShape) -> bool {
    let agrees = |(d, (&found, &bound)): (usize, (&i64, &i64))| {
        found == bound || shape.is_dynamic_dimension(d) && (0..bound).contains(&found)
    };
    extents.len() == shape.rank() && extents.iter().zip(&shape.dimensions).enumerate().all(agrees)
}

/// Folds leaves into a literal of a shape.
pub(crate) fn nest(shape: &Shape, leaves: &mut impl Iterator<Item = Literal>) -> Literal {
    match shape {
        Shape::Tuple(elements) => Literal::Tuple(elements.iter().map(|e| nest(e, leaves)).collect()),
        _ => leaves.next().expect("a result has the leaves of its shape"),
    }
}

fn describe(shape: &Shape) -> String {
    match shape {
        Shape::Array(a) | Shape::Buffer(a) => {
            let bound = |d: usize| if a.is_dynamic_dimension(d) { "<=" } else { "" };
            let extents = a.dimensions.iter().enumerate().map(|(d, extent)| format!("{}{extent}", bound(d)));
            format!("{}[{}]", a.element_type, extents.collect::<Vec<_>>().join(","))
        }
        Shape::Tuple(elements) => {
            format!("({})", elements.iter().map(describe).collect::<Vec<_>>().join(", "))
        }
        Shape::Token => "token".to_string(),
        Shape::Opaque => "opaque".to_string(),
    }
}

fn describe_literal(literal: &Literal) -> String {
    match literal {
        Literal::Array(a) => describe_array(a.element_type, &a.dimensions),
        Literal::Tuple(_) => "a tuple".to_string(),
        Literal::Token => "token".to_string(),
    }
}

fn describe_array(element_type: memplan_ir::ElementType, dimensions: &[i64]) -> String {
    let extents: Vec<String> = dimensions.iter().map(i64::to_string).collect();
    format!("{element_type}[{}]", extents.join(","))
}

/// The computations that are run step by step: the entry, and what loops, branches, calls and asynchronous operations
/// of those run. The others are inside kernels.
fn called_computations(module: &Module) -> Vec<ComputationId> {
    let mut is_seen: SecondaryMap<ComputationId, bool> = SecondaryMap::new();
    let mut called = vec![module.entry];
    is_seen[module.entry] = true;
    let mut at = 0;
    while at < called.len() {
        for (_, instruction) in module.instructions_of(called[at]) {
            if instruction.op.runs_callees() {
                for &callee in &instruction.called {
                    if !std::mem::replace(&mut is_seen[callee], true) {
                        called.push(callee);
                    }
                }
            }
        }
        at += 1;
    }
    called
}
