//! Computations that run inside a kernel: the functions of scans, and reducers with control flow.
//!
//! A frame is a computation with a fixed place for every value, in the scratch of the kernel that runs it. Values of a
//! frame do not share places; the frames that one calls share the bytes after its own.

use std::rc::Rc;

use memplan_ir::{ArrayLiteral, ComputationId, ElementType, InstructionId, Literal, Module, Op, Role, Shape};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::compile::{SCRATCH_ALIGNMENT, compile};
use crate::execute::{NOWHERE, branch_of, flatten};
use crate::kernels::Kernel;
use crate::lower::addressing;
use crate::memory::{Memory, Place};
use crate::pull::Pullable;
use crate::writes::{has_kernel, written_leaves};
use crate::{Error, transfer};
use memplan_memory::Addressing;

/// Calls within calls, beyond which there is no program but a hostile one.
const MAX_NESTING: usize = 64;

/// A computation, ready to run in scratch.
pub(crate) struct Frame {
    steps: Vec<Step>,
    results: Slots,
    /// Bytes of its own values.
    own: usize,
    /// Bytes that its kernels and the frames that it calls need.
    below: usize,
}

/// The place of a value's leaf.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Parameter(usize),
    Own {
        offset: usize,
        size: usize,
    },
    /// A token.
    Nothing,
}

type Slots = SmallVec<[Slot; 4]>;

enum Step {
    Kernel { kernel: Box<dyn Kernel>, operands: Slots, results: Slots },
    Constant { literal: ArrayLiteral, addressing: Addressing, to: Slot },
    Call { frame: Rc<Frame>, operands: Slots, results: Slots },
    While { condition: Rc<Frame>, body: Rc<Frame>, initial: Slots, state: Slots, next: Slots, goes_on: Slot },
    Conditional { index: Slot, index_type: ElementType, branches: Vec<(Rc<Frame>, Slots)>, results: Slots },
}

impl Frame {
    /// # Errors
    /// When the computation has something that cannot run inside a kernel.
    pub(crate) fn new(module: &Module, computation: ComputationId) -> Result<Rc<Frame>, Error> {
        let pullable = Pullable::from_computations(module, [computation]);
        let mut builder = Builder { module, pullable, frames: FxHashMap::default(), depth: 0 };
        builder.frame(computation)
    }

    /// Bytes that a run needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.own.saturating_add(self.below)
    }

    /// Runs on the leaves of parameters, and leaves the leaves of the root in `results`, which are apart from all else.
    pub(crate) fn run(
        &self,
        memory: &mut Memory,
        parameters: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let place = |slot: &Slot| match *slot {
            Slot::Parameter(k) => parameters[k],
            Slot::Own { offset, size } => scratch.part(offset, size),
            Slot::Nothing => NOWHERE,
        };
        let places = |slots: &Slots| -> SmallVec<[Place; 4]> { slots.iter().map(place).collect() };
        let below = scratch.part(self.own, self.below);
        for step in &self.steps {
            match step {
                Step::Kernel { kernel, operands, results } => {
                    let own = below.part(0, kernel.scratch_bytes());
                    kernel.run(memory, &places(operands), &places(results), own)?;
                }
                Step::Constant { literal, addressing, to } => {
                    transfer::write(literal, addressing, memory, place(to));
                }
                Step::Call { frame, operands, results } => {
                    frame.run(memory, &places(operands), &places(results), below)?;
                }
                Step::While { condition, body, initial, state, next, goes_on } => {
                    let (state, next, goes_on) = (places(state), places(next), place(goes_on));
                    copy(memory, &places(initial), &state);
                    loop {
                        condition.run(memory, &state, &[goes_on], below)?;
                        if memory.bytes(goes_on)[0] == 0 {
                            break;
                        }
                        body.run(memory, &state, &next, below)?;
                        copy(memory, &next, &state);
                    }
                }
                Step::Conditional { index, index_type, branches, results } => {
                    let selected = branch_of(memory.bytes(place(index)), *index_type, branches.len());
                    let (frame, operands) = &branches[selected];
                    frame.run(memory, &places(operands), &places(results), below)?;
                }
            }
        }
        copy(memory, &places(&self.results), results);
        Ok(())
    }
}

fn copy(memory: &mut Memory, from: &[Place], to: &[Place]) {
    from.iter().zip(to).for_each(|(&from, &to)| memory.copy(from, to));
}

struct Builder<'m> {
    module: &'m Module,
    pullable: Pullable,
    frames: FxHashMap<ComputationId, Rc<Frame>>,
    depth: usize,
}

impl Builder<'_> {
    fn frame(&mut self, computation: ComputationId) -> Result<Rc<Frame>, Error> {
        if let Some(frame) = self.frames.get(&computation) {
            return Ok(frame.clone());
        }
        let module = self.module;
        if self.depth >= MAX_NESTING {
            let computation = module.computations[computation].name.to_string();
            return Err(Error::TooDeep { computation, limit: MAX_NESTING });
        }
        self.depth += 1;
        let mut frame = Frame { steps: Vec::new(), results: Slots::new(), own: 0, below: 0 };
        let mut values: FxHashMap<InstructionId, Slots> = FxHashMap::default();
        let body = &module.computations[computation];
        let mut n_parameters = 0;
        let mut first_leaf = Vec::new();
        for &parameter in &body.parameters {
            first_leaf.push(n_parameters);
            n_parameters += module.shape(parameter).leaf_count();
        }
        for &id in &body.instructions {
            let value = self.instruction(id, &values, &first_leaf, &mut frame)?;
            values.insert(id, value);
        }
        frame.results = values[&body.root].clone();
        self.depth -= 1;
        let frame = Rc::new(frame);
        self.frames.insert(computation, frame.clone());
        Ok(frame)
    }

    fn instruction(
        &mut self,
        id: InstructionId,
        values: &FxHashMap<InstructionId, Slots>,
        first_leaf: &[usize],
        frame: &mut Frame,
    ) -> Result<Slots, Error> {
        let module = self.module;
        let instruction = &module.instructions[id];
        let operand = |k: usize| values[&instruction.operands[k]].clone();
        let operands = || -> Slots { (0..instruction.operands.len()).flat_map(operand).collect() };
        let leaves = module.shape(id).leaf_count();
        let step = match &instruction.op {
            Op::Parameter { number } => {
                let first = first_leaf[*number as usize];
                return Ok((first..first + leaves).map(Slot::Parameter).collect());
            }
            Op::Tuple => return Ok(operands()),
            Op::GetTupleElement { index } => {
                let elements = module.shape(instruction.operands[0]).as_tuple().unwrap_or_default();
                let begin: usize = elements.iter().take(*index as usize).map(Shape::leaf_count).sum();
                return Ok(operand(0)[begin..begin + leaves].into());
            }
            op if op.traits().role == Role::PassesOn => return Ok(operand(0)),
            Op::Copy if module.shape(id).is_tuple() => return Ok(operand(0)),
            Op::AfterAll => return Ok(SmallVec::from_slice(&[Slot::Nothing])),
            Op::Constant(literal) => {
                let slots = frame.slots(module.shape(id))?;
                let mut leaves = Vec::new();
                flatten(literal, &mut leaves);
                for ((literal, (_, shape)), &to) in leaves.iter().zip(module.shape(id).leaves()).zip(&slots) {
                    if let (Literal::Array(literal), Some(shape)) = (literal, shape.as_array()) {
                        let (literal, addressing) = (literal.clone(), addressing(shape)?);
                        frame.steps.push(Step::Constant { literal, addressing, to });
                    }
                }
                return Ok(slots);
            }
            Op::Call { .. } => {
                let callee = self.called(id, 0, frame)?;
                Step::Call { frame: callee, operands: operands(), results: frame.slots(module.shape(id))? }
            }
            Op::While => Step::While {
                body: self.called(id, 0, frame)?,
                condition: self.called(id, 1, frame)?,
                initial: operand(0),
                state: frame.slots(module.shape(id))?,
                next: frame.slots(module.shape(id))?,
                goes_on: frame.slot(1),
            },
            Op::Conditional => {
                let mut branches = Vec::new();
                for k in 0..instruction.called.len() {
                    branches.push((self.called(id, k, frame)?, operand(k + 1)));
                }
                let index_type = crate::pull::array_shape(module, instruction.operands[0])?.element_type;
                let (index, results) = (operand(0)[0], frame.slots(module.shape(id))?);
                Step::Conditional { index, index_type, branches, results }
            }
            _ if has_kernel(module, id) && written_leaves(module, id).start == 0 => {
                let kernel = compile(module, &self.pullable, id)?;
                frame.below = frame.below.max(kernel.scratch_bytes());
                Step::Kernel { kernel, operands: operands(), results: frame.slots(module.shape(id))? }
            }
            _ => return Err(Error::unsupported(module, id, "it cannot run inside a kernel")),
        };
        let results = match &step {
            Step::While { state: results, .. }
            | Step::Kernel { results, .. }
            | Step::Call { results, .. }
            | Step::Conditional { results, .. } => results.clone(),
            Step::Constant { .. } => unreachable!("constants have returned above"),
        };
        frame.steps.push(step);
        Ok(results)
    }

    fn called(&mut self, id: InstructionId, k: usize, frame: &mut Frame) -> Result<Rc<Frame>, Error> {
        let callee = self.frame(self.module.instructions[id].called[k])?;
        frame.below = frame.below.max(callee.scratch_bytes());
        Ok(callee)
    }
}

impl Frame {
    /// Places for the leaves of a shape.
    fn slots(&mut self, shape: &Shape) -> Result<Slots, Error> {
        let place = |(_, shape): (_, &Shape)| match shape.as_array() {
            Some(shape) => Ok(self.slot(addressing(shape)?.size)),
            None => Ok(Slot::Nothing),
        };
        shape.leaves().into_iter().map(place).collect()
    }

    fn slot(&mut self, size: usize) -> Slot {
        let offset = self.own;
        // A size too large for the address space is refused when it is allocated.
        let end = self.own.saturating_add(size).checked_next_multiple_of(SCRATCH_ALIGNMENT);
        self.own = end.unwrap_or(usize::MAX);
        Slot::Own { offset, size }
    }
}
