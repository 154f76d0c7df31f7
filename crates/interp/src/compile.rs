//! Compiles an instruction to its kernel.
//!
//! Most instructions become one kernel. A fusion becomes stages: its roots, and before them every value that cannot be
//! computed element by element at its use. These values are in scratch, so a fusion of elementwise operations, index
//! operations and a root reduction needs none.

use std::cmp::Reverse;

use memplan_ir::scopes::Name;
use memplan_ir::{Access, ArrayShape, ElementType, InstructionId, Module, Op, Shape};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::kernels::loops::loop_kernel;
use crate::kernels::{self, Kernel, Operand};
use crate::lower::{Leaf, Lower, TOO_COMPLEX, addressing};
use crate::memory::{Memory, Place};
use crate::pull::Pullable;
use crate::writes::written_leaves;

/// Alignment of interior values in scratch: that of the widest element.
pub(crate) const SCRATCH_ALIGNMENT: usize = 16;

/// Fusions within fusions, beyond which there is no program but a hostile one.
const MAX_NESTING: usize = 64;

/// The kernel of an instruction that computes something.
pub(crate) fn compile(
    module: &Module,
    pullable: &Pullable,
    id: InstructionId,
) -> Result<Box<dyn Kernel>, Error> {
    compile_nested(module, pullable, id, 0)
}

/// Refuses operations on numbers of single and of double precision at once: HLO has them, the evaluator has not.
pub(crate) fn check_precision(module: &Module, id: InstructionId) -> Result<(), Error> {
    let instruction = &module.instructions[id];
    let agrees = match instruction.op {
        Op::Convert | Op::StochasticConvert | Op::BitcastConvert => false,
        Op::Concatenate { .. } | Op::Pad { .. } | Op::DynamicUpdateSlice => true,
        // Several arrays are reduced side by side, each with its own precision.
        Op::Reduce { .. } | Op::ReduceWindow(_) => instruction.operands.len() == 2,
        Op::Scatter(_) => instruction.operands.len() == 3,
        ref op => op.is_elementwise() || op.traits().access == Access::Reindexing,
    };
    let operands = instruction.operands.iter().filter(|_| agrees);
    let arrays = operands.chain([&id]).filter_map(|&id| module.shape(id).as_array());
    let mut types = arrays.map(|array| array.element_type).filter(|t| t.is_floating() || t.is_complex());
    let is_double = |t: ElementType| matches!(t, ElementType::F64 | ElementType::C128);
    let Some(first) = types.next() else { return Ok(()) };
    match types.find(|&other| is_double(other) != is_double(first)) {
        Some(other) => Err(Error::unsupported(module, id, format!("its numbers are of {first} and {other}"))),
        None => Ok(()),
    }
}

fn compile_nested(
    module: &Module,
    pullable: &Pullable,
    id: InstructionId,
    depth: usize,
) -> Result<Box<dyn Kernel>, Error> {
    check_precision(module, id)?;
    let instruction = &module.instructions[id];
    if let Op::Fusion(_) | Op::Call { .. } = instruction.op {
        if depth > MAX_NESTING {
            return Err(Error::unsupported(module, id, "fusions nest too deeply"));
        }
        let planner = || Planner::new(module, pullable, id, depth);
        return Ok(Box::new(match planner()?.plan(false) {
            Err(Error::Unsupported { reason, .. }) if reason == TOO_COMPLEX => planner()?.plan(true)?,
            stages => stages?,
        }));
    }
    single(module, id)
}

/// The kernel of an instruction by itself, its operands in memory.
fn single(module: &Module, id: InstructionId) -> Result<Box<dyn Kernel>, Error> {
    let mut inputs = Vec::new();
    for &operand in &module.instructions[id].operands {
        for (leaf, (_, shape)) in module.shape(operand).leaves().into_iter().enumerate() {
            inputs.push((Name { scope: 0, instruction: operand, leaf }, shape));
        }
    }
    let lower = || {
        let mut lower = Lower::new(module);
        lower.scopes.open(Vec::new());
        for (number, &(name, shape)) in inputs.iter().enumerate() {
            if let Some(shape) = shape.as_array() {
                let array = lower.operand(number, shape)?;
                lower.scopes.store(name, Leaf::Array(array));
            }
        }
        Ok(lower)
    };
    let operands: Vec<Operand> = inputs
        .iter()
        .enumerate()
        .filter_map(|(number, (_, shape))| Some(Operand { number, shape: shape.as_array()?.clone() }))
        .collect();
    let name = Name { scope: 0, instruction: id, leaf: 0 };
    let written = written_leaves(module, id);
    let shapes = module.shape(id).leaves().into_iter().take(written.end).skip(written.start);
    let results: Vec<(usize, &ArrayShape)> =
        shapes.enumerate().filter_map(|(k, (_, s))| Some((k, s.as_array()?))).collect();
    stage(module, &lower, name, &operands, &results)
}

/// The kernel of one instruction that is not a fusion.
fn stage<'m>(
    module: &'m Module,
    lower: &dyn Fn() -> Result<Lower<'m>, Error>,
    name: Name,
    operands: &[Operand],
    results: &[(usize, &ArrayShape)],
) -> Result<Box<dyn Kernel>, Error> {
    let id = name.instruction;
    Ok(match &module.instructions[id].op {
        Op::CopyStart { .. } => {
            let source = Name { instruction: module.instructions[id].operands[0], ..name };
            Box::new(loop_kernel(lower, &[(source, results[0].0, results[0].1)])?)
        }
        // An annotation, but the library may insist on another layout than the result has.
        Op::CustomCall(call)
            if kernels::MARKERS.contains(&&*call.target) && is_one_array(module, id, operands, results) =>
        {
            let source = Name { instruction: module.instructions[id].operands[0], ..name };
            Box::new(loop_kernel(lower, &[(source, results[0].0, results[0].1)])?)
        }
        Op::Reduce { .. } => Box::new(kernels::reduce::reduce(lower()?, name, results)?),
        Op::ReduceWindow(_) => Box::new(kernels::reduce::reduce_window(lower()?, name, results)?),
        Op::Scatter(_) => Box::new(kernels::scatter::scatter(lower, name, results)?),
        Op::SelectAndScatter(_) => {
            Box::new(kernels::scatter::select_and_scatter(lower, name, results[0].0, results[0].1)?)
        }
        Op::Map { .. } => match loop_kernel(lower, &[(name, results[0].0, results[0].1)]) {
            Err(Error::Unsupported { .. }) => {
                kernels::whole_array_kernel(module, id, operands, results)?.expect("a map has a kernel")
            }
            loops => Box::new(loops?),
        },
        _ => match kernels::whole_array_kernel(module, id, operands, results)? {
            Some(kernel) => kernel,
            None => match *results {
                [] => return Err(Error::unsupported(module, id, "it makes no array")),
                [(result, shape), ..] => Box::new(loop_kernel(lower, &[(name, result, shape)])?),
            },
        },
    })
}

/// Whether an instruction makes one array of one array of the same type and extents.
fn is_one_array(
    module: &Module,
    id: InstructionId,
    operands: &[Operand],
    results: &[(usize, &ArrayShape)],
) -> bool {
    let (1, [operand], [(_, result)]) = (module.instructions[id].operands.len(), operands, results) else {
        return false;
    };
    operand.shape.element_type == result.element_type && operand.shape.dimensions == result.dimensions
}

/// A fusion's kernels, in order.
struct Stages {
    stages: Vec<Stage>,
    /// Bytes of interior values and of the hungriest stage.
    scratch: usize,
    /// Offsets and sizes in scratch of interior values. Stages number places: operands, results, interior values.
    interior: Vec<(usize, usize)>,
    n_results: usize,
}

struct Stage {
    kernel: Box<dyn Kernel>,
    /// Which places are the kernel's operands; `None` for all.
    operands: Option<Vec<usize>>,
    /// Which places are its results; `None` for the results of the fusion.
    results: Vec<usize>,
    /// The beginning of its scratch.
    scratch: usize,
}

impl Kernel for Stages {
    fn scratch_bytes(&self) -> usize {
        self.scratch
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let mut places = operands.to_vec();
        places.extend_from_slice(&results[..self.n_results]);
        places.extend(self.interior.iter().map(|&(offset, size)| scratch.part(offset, size)));
        for stage in &self.stages {
            let results: Vec<Place> = stage.results.iter().map(|&place| places[place]).collect();
            let own = scratch.part(stage.scratch, stage.kernel.scratch_bytes());
            match &stage.operands {
                None => stage.kernel.run(memory, &places, &results, own)?,
                Some(numbers) => {
                    let operands: Vec<Place> = numbers.iter().map(|&place| places[place]).collect();
                    stage.kernel.run(memory, &operands, &results, own)?;
                }
            }
        }
        Ok(())
    }
}

/// Chooses and orders the stages of a fusion.
struct Planner<'m> {
    module: &'m Module,
    pullable: &'m Pullable,
    fusion: InstructionId,
    depth: usize,
    n_operands: usize,
    /// Leaves of the root: where each is made, and its shape.
    roots: Vec<(Leaf, &'m ArrayShape)>,
    /// Interior values in memory: the place and shape of each.
    stored: FxHashMap<Name, (usize, &'m ArrayShape)>,
    interior: Vec<(usize, usize)>,
    used: usize,
}

impl<'m> Planner<'m> {
    fn new(
        module: &'m Module,
        pullable: &'m Pullable,
        fusion: InstructionId,
        depth: usize,
    ) -> Result<Planner<'m>, Error> {
        let instruction = &module.instructions[fusion];
        let n_operands = instruction.operands.iter().map(|&o| module.shape(o).leaf_count()).sum();
        let mut planner = Planner {
            module,
            pullable,
            fusion,
            depth,
            n_operands,
            roots: Vec::new(),
            stored: FxHashMap::default(),
            interior: Vec::new(),
            used: 0,
        };
        let root = module.computations[instruction.called[0]].root;
        let mut lower = planner.lower()?;
        for (leaf, (_, shape)) in module.shape(fusion).leaves().into_iter().enumerate() {
            let shape =
                shape.as_array().ok_or_else(|| Error::unsupported(module, fusion, "it gives a token"))?;
            planner.roots.push((lower.resolve(Name { scope: 0, instruction: root, leaf })?, shape));
        }
        Ok(planner)
    }

    /// A fresh program whose arrays are the fusion's operands and the values stored so far.
    fn lower(&self) -> Result<Lower<'m>, Error> {
        let mut lower = Lower::new(self.module);
        let mut number = 0;
        let mut parameters = Vec::new();
        for &operand in &self.module.instructions[self.fusion].operands {
            let mut leaves = Vec::new();
            for (_, shape) in self.module.shape(operand).leaves() {
                if let Shape::Array(shape) = shape {
                    leaves.push(Leaf::Array(lower.operand(number, shape)?));
                }
                number += 1;
            }
            parameters.push(leaves);
        }
        lower.scopes.open(parameters);
        let mut stored: Vec<_> = self.stored.iter().collect();
        stored.sort_by_key(|(_, (place, _))| *place);
        for (&name, &(place, shape)) in stored {
            let array = lower.operand(place, shape)?;
            lower.scopes.store(name, Leaf::Array(array));
        }
        Ok(lower)
    }

    fn plan(mut self, is_eager: bool) -> Result<Stages, Error> {
        let module = self.module;
        let body = &module.computations[module.instructions[self.fusion].called[0]];
        let is_used = used_instructions(module, body.root, &body.instructions);
        let mut wanted = FxHashMap::default();
        let mut stages: Vec<Stage> = Vec::new();
        // Values that must be in memory: those without a rule per element, and operands that those read whole.
        let mut lower = self.lower()?;
        for &id in body.instructions.iter().filter(|&id| is_used.contains_key(id)) {
            if self.is_pulled(id) {
                if is_eager && self.is_interior_array(id) {
                    wanted.insert(id, ());
                }
                continue;
            }
            wanted.insert(id, ());
            if wants_whole_operands(module, id) {
                for &operand in &module.instructions[id].operands {
                    for leaf in 0..module.shape(operand).leaf_count() {
                        let name = Name { scope: 0, instruction: operand, leaf };
                        if let Leaf::Value(name) = lower.resolve(name)? {
                            // The result of an inlined call is stored as the call's value.
                            let id = if name.scope == 0 { name.instruction } else { operand };
                            wanted.insert(id, ());
                        }
                    }
                }
            }
        }
        for &id in body.instructions.iter().filter(|id| wanted.contains_key(id)) {
            let stage = self.interior_stage(id)?;
            stages.push(stage);
        }
        self.root_stages(&mut stages)?;
        let own = stages.iter().map(|s| s.kernel.scratch_bytes()).max().unwrap_or(0);
        stages.iter_mut().for_each(|s| s.scratch = self.used);
        Ok(Stages { stages, scratch: self.used + own, interior: self.interior, n_results: self.roots.len() })
    }

    fn is_pulled(&self, id: InstructionId) -> bool {
        self.pullable.instruction(self.module, id)
    }

    fn is_interior_array(&self, id: InstructionId) -> bool {
        let op = &self.module.instructions[id].op;
        self.module.shape(id).as_array().is_some()
            && !matches!(
                op,
                Op::Parameter { .. }
                    | Op::Constant(_)
                    | Op::Copy
                    | Op::GetTupleElement { .. }
                    | Op::OptimizationBarrier
            )
    }

    /// The stage that stores an instruction's results: into the fusion's results if it is a root.
    fn interior_stage(&mut self, id: InstructionId) -> Result<Stage, Error> {
        let module = self.module;
        let lower = || self.lower();
        let mut results = Vec::new();
        let (mut used, mut interior) = (self.used, self.interior.clone());
        for (leaf, (_, shape)) in module.shape(id).leaves().into_iter().enumerate() {
            let shape = shape.as_array().ok_or_else(|| Error::unsupported(module, id, "it gives a token"))?;
            let name = Name { scope: 0, instruction: id, leaf };
            let root = self.roots.iter().position(|&(root, s)| root == Leaf::Value(name) && s == shape);
            let place = match root {
                Some(k) => self.n_operands + k,
                None => {
                    let size = addressing(shape)?.size;
                    interior.push((used, size));
                    used = (used + size).next_multiple_of(SCRATCH_ALIGNMENT);
                    self.n_operands + self.roots.len() + interior.len() - 1
                }
            };
            results.push((name, place, shape));
        }
        let name = Name { scope: 0, instruction: id, leaf: 0 };
        let numbered: Vec<(usize, &ArrayShape)> = results.iter().enumerate().map(|(k, r)| (k, r.2)).collect();
        let (kernel, operands): (Box<dyn Kernel>, _) = if self.is_pulled(id) {
            let loops = loop_kernel(&lower, &[(name, 0, results[0].2)])?;
            (Box::new(loops), None)
        } else if let Op::Fusion(_) | Op::Call { .. } = module.instructions[id].op {
            let operands = self.whole_operands(id)?.iter().map(|o| o.number).collect();
            (compile_nested(module, self.pullable, id, self.depth + 1)?, Some(operands))
        } else {
            let operands =
                if wants_whole_operands(module, id) { self.whole_operands(id)? } else { Vec::new() };
            (stage(module, &lower, name, &operands, &numbered)?, None)
        };
        let stage = Stage { kernel, operands, results: results.iter().map(|r| r.1).collect(), scratch: 0 };
        (self.used, self.interior) = (used, interior);
        self.stored.extend(results.into_iter().map(|(name, place, shape)| (name, (place, shape))));
        Ok(stage)
    }

    /// The operands of an instruction that must be in memory.
    fn whole_operands(&self, id: InstructionId) -> Result<Vec<Operand>, Error> {
        let module = self.module;
        let mut lower = self.lower()?;
        let mut shapes: Vec<&ArrayShape> = Vec::new();
        for &operand in &module.instructions[self.fusion].operands {
            shapes.extend(module.shape(operand).leaves().iter().filter_map(|(_, s)| s.as_array()));
        }
        let mut operands = Vec::new();
        for &operand in &module.instructions[id].operands {
            for leaf in 0..module.shape(operand).leaf_count() {
                let leaf = lower.resolve(Name { scope: 0, instruction: operand, leaf })?;
                let Leaf::Array(array) = leaf else {
                    return Err(Error::unsupported(module, id, "an operand of it is not in memory"));
                };
                let number = lower.operand_number(array);
                let number = number
                    .ok_or_else(|| Error::unsupported(module, id, "an operand of it is not in memory"))?;
                let stored = self.stored.values().find(|(place, _)| *place == number);
                let shape = stored.map_or_else(|| shapes[number], |s| s.1).clone();
                operands.push(Operand { number, shape });
            }
        }
        Ok(operands)
    }

    /// Loops for the roots that are not results of an earlier stage, one loop for each set of equal extents.
    ///
    /// An update elsewhere reads all of its update operand, which another result may then overwrite: so larger results
    /// come first, and among equally large ones, updates.
    fn root_stages(&mut self, stages: &mut Vec<Stage>) -> Result<(), Error> {
        let root = self.module.computations[self.module.instructions[self.fusion].called[0]].root;
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (k, &(leaf, shape)) in self.roots.iter().enumerate() {
            if let Leaf::Value(name) = leaf
                && self.stored.get(&name).is_some_and(|s| s.0 == self.n_operands + k)
            {
                continue;
            }
            match groups.iter_mut().find(|g| self.roots[g[0]].1.dimensions == shape.dimensions) {
                Some(group) => group.push(k),
                None => groups.push(vec![k]),
            }
        }
        let is_update = |&k: &usize| match self.roots[k].0 {
            Leaf::Value(name) => self.module.instructions[name.instruction].op == Op::DynamicUpdateSlice,
            _ => false,
        };
        groups.sort_by_key(|group| {
            Reverse((self.roots[group[0]].1.element_count(), group.iter().any(is_update)))
        });
        for group in groups {
            let results: Vec<(Name, usize, &ArrayShape)> = (group.iter().enumerate())
                .map(|(at, &k)| (Name { scope: 0, instruction: root, leaf: k }, at, self.roots[k].1))
                .collect();
            let kernel = Box::new(loop_kernel(&|| self.lower(), &results)?);
            let results = group.iter().map(|k| self.n_operands + k).collect();
            stages.push(Stage { kernel, operands: None, results, scratch: 0 });
        }
        Ok(())
    }
}

/// Whether a kernel reads its operands in memory layout, instead of element by element.
fn wants_whole_operands(module: &Module, id: InstructionId) -> bool {
    !matches!(
        module.instructions[id].op,
        Op::Reduce { .. } | Op::ReduceWindow(_) | Op::Scatter(_) | Op::SelectAndScatter(_)
    )
}

/// The instructions that the root is made of.
fn used_instructions(
    module: &Module,
    root: InstructionId,
    order: &[InstructionId],
) -> FxHashMap<InstructionId, ()> {
    let mut used = FxHashMap::from_iter([(root, ())]);
    for id in order.iter().rev() {
        if used.contains_key(id) {
            used.extend(module.instructions[*id].operands.iter().map(|&o| (o, ())));
        }
    }
    used
}
