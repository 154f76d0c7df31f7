//! Where the leaves of values come from, through tuples, parameters and calls.
//!
//! A kernel contains the computations that its instructions call, once for each call. Each such instance is a *scope*, and a
//! value is named by the scope in which it is computed.

use rustc_hash::FxHashMap;

use crate::{InstructionId, Module, Op, Role, Shape};

/// A leaf of the result of an instruction in one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The number of the scope.
    pub scope: usize,
    /// The instruction.
    pub instruction: InstructionId,
    /// The number of the leaf among those of the result, depth first.
    pub leaf: usize,
}

/// Where a leaf comes from: `A` is an array in memory, `E` an element that is computed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf<A, E> {
    /// An array in memory.
    Array(A),
    /// An element, which a computation of single elements is passed.
    Element(E),
    /// An instruction that computes it.
    Value(Name),
}

/// A parameter for which a call passes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPassed(pub InstructionId);

/// The scopes of a kernel. The first is that of the kernel itself.
#[derive(Clone, Debug)]
pub struct Scopes<'m, A, E> {
    module: &'m Module,
    /// For each scope the leaves of its parameters.
    parameters: Vec<Vec<Vec<Leaf<A, E>>>>,
    calls: FxHashMap<(usize, InstructionId), usize>,
    stored: FxHashMap<Name, Leaf<A, E>>,
}

impl<'m, A: Copy, E: Copy> Scopes<'m, A, E> {
    /// No scopes yet.
    pub fn new(module: &'m Module) -> Scopes<'m, A, E> {
        Scopes { module, parameters: Vec::new(), calls: FxHashMap::default(), stored: FxHashMap::default() }
    }

    /// Opens a scope with these parameters, each with its leaves.
    pub fn open(&mut self, parameters: Vec<Vec<Leaf<A, E>>>) -> usize {
        self.parameters.push(parameters);
        self.parameters.len() - 1
    }

    /// The leaves of the parameters of a scope.
    ///
    /// # Panics
    ///
    /// If there is no such scope.
    pub fn parameters(&self, scope: usize) -> impl Iterator<Item = Leaf<A, E>> {
        self.parameters[scope].iter().flatten().copied()
    }

    /// Says where a value is before the kernel runs.
    pub fn store(&mut self, name: Name, leaf: Leaf<A, E>) {
        self.stored.insert(name, leaf);
    }

    /// Follows a leaf to where it is stored or computed; a call on the way gets a scope.
    ///
    /// # Errors
    ///
    /// If the leaf is one of a parameter for which nothing is passed.
    ///
    /// # Panics
    ///
    /// If the name is not that of a leaf of a module that verifies.
    pub fn resolve(&mut self, name: Name) -> Result<Leaf<A, E>, NotPassed> {
        let module = self.module;
        let mut at = name;
        loop {
            match self.stored.get(&at) {
                Some(Leaf::Value(name)) => {
                    at = *name;
                    continue;
                }
                Some(&leaf) => return Ok(leaf),
                None => {}
            }
            let instruction = &module.instructions[at.instruction];
            let n_leaves = |id: InstructionId| module.shape(id).leaf_count();
            match &instruction.op {
                Op::Parameter { number } => {
                    let leaves = self.parameters[at.scope].get(*number as usize);
                    match leaves.and_then(|leaves| leaves.get(at.leaf)) {
                        Some(Leaf::Value(name)) => at = *name,
                        Some(&leaf) => return Ok(leaf),
                        None => return Err(NotPassed(at.instruction)),
                    }
                }
                Op::GetTupleElement { index } => {
                    at.instruction = instruction.operands[0];
                    let elements = module.shape(at.instruction).as_tuple().unwrap_or_default();
                    at.leaf += elements.iter().take(*index as usize).map(Shape::leaf_count).sum::<usize>();
                }
                Op::Tuple => {
                    let mut operands = instruction.operands.iter();
                    at.instruction = *operands.next().expect("a tuple with a leaf has an element");
                    while at.leaf >= n_leaves(at.instruction) {
                        at.leaf -= n_leaves(at.instruction);
                        at.instruction = *operands.next().expect("the leaf is one of an element");
                    }
                }
                // It only changes the layout, which no value within a kernel has.
                Op::Copy => at.instruction = instruction.operands[0],
                Op::Call { .. } | Op::Fusion(_) => {
                    let scope = self.call(at.scope, at.instruction);
                    at = Name { scope, instruction: module.computations[instruction.called[0]].root, ..at };
                }
                op if op.traits().role == Role::PassesOn && *op != Op::Bitcast => {
                    at.instruction = instruction.operands[0];
                }
                _ => return Ok(Leaf::Value(at)),
            }
        }
    }

    /// The scope of a call, whose parameters are its operands.
    fn call(&mut self, scope: usize, instruction: InstructionId) -> usize {
        if let Some(&inner) = self.calls.get(&(scope, instruction)) {
            return inner;
        }
        let module = self.module;
        let operands = module.instructions[instruction].operands.iter();
        let leaves = |&operand: &InstructionId| {
            let leaf = |leaf| Leaf::Value(Name { scope, instruction: operand, leaf });
            (0..module.shape(operand).leaf_count()).map(leaf).collect()
        };
        let inner = self.open(operands.map(leaves).collect());
        self.calls.insert((scope, instruction), inner);
        inner
    }
}
