//! Tying what is recomputed to what arrives late, so that a compiler that merges common subexpressions and orders anew
//! neither merges it with the original nor runs it early.
//!
//! ```text
//!   t = (f32[n], f32[n]) tuple(h, d)             h: kept; d: the gradient, which arrives only in the backward half
//!   o = (f32[n], f32[n]) optimization-barrier(t)
//!   h.tied = f32[n] get-tuple-element(o), index=0
//!   m.remat = pred[n] compare(h.tied, 0)
//! ```
//!
//! `jax.checkpoint` does the same with its residuals and cotangents.

use memplan_ir::{ComputationId, Instruction, InstructionId, Module, Names, Op, Shape};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cost::{self, CostClass};

/// Puts a barrier before each run of `copies` in a computation: what they read passes through it, together with
/// something that is computed just before.
pub(super) fn tie(
    module: &mut Module,
    computation: ComputationId,
    copies: &FxHashSet<InstructionId>,
    names: &mut Names,
) {
    let old = std::mem::take(&mut module.computations[computation].instructions);
    let position: FxHashMap<InstructionId, usize> = old.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let mut tier = Tier { module, names, order: Vec::with_capacity(old.len()), tied: FxHashMap::default() };
    let mut at = 0;
    while let Some(&id) = old.get(at) {
        let run = old[at..].iter().take_while(|id| copies.contains(id)).count();
        if run > 0 {
            let user = old.get(at + run).copied();
            let late = user.and_then(|user| tier.arrives_with(user, copies, &position));
            let late = late.or_else(|| tier.computed_last());
            tier.tie_run(&old[at..at + run], copies, late);
            at += run;
            continue;
        }
        tier.order.push(id);
        at += 1;
    }
    let order = tier.order;
    module.computations[computation].instructions = order;
}

struct Tier<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    /// The instructions of the computation so far.
    order: Vec<InstructionId>,
    /// What came out of the last barrier that a value passed through.
    tied: FxHashMap<InstructionId, InstructionId>,
}

impl Tier<'_> {
    /// The operand of a reader of copies that is computed last, copies aside.
    fn arrives_with(
        &self,
        user: InstructionId,
        copies: &FxHashSet<InstructionId>,
        position: &FxHashMap<InstructionId, usize>,
    ) -> Option<InstructionId> {
        let operands = self.module.instructions[user].operands.iter().copied();
        operands.filter(|id| !copies.contains(id) && self.is_computed(*id)).max_by_key(|id| position[id])
    }

    fn computed_last(&self) -> Option<InstructionId> {
        self.order.iter().rev().copied().find(|&id| self.is_computed(id))
    }

    /// Whether something must have run before a value is there.
    fn is_computed(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        matches!(self.module.shape(id), Shape::Array(_))
            && !instruction.operands.is_empty()
            && cost::class_of(self.module, id) != CostClass::Free
            && !self.is_of_constants(id)
    }

    /// Constants, and what is one constant everywhere: every compiler makes them where they are read.
    fn is_of_constants(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Constant(_) | Op::Iota { .. } => true,
            Op::Broadcast { .. } => self.is_of_constants(instruction.operands[0]),
            _ => false,
        }
    }

    /// Appends a run of copies behind a barrier.
    fn tie_run(
        &mut self,
        run: &[InstructionId],
        copies: &FxHashSet<InstructionId>,
        late: Option<InstructionId>,
    ) {
        let mut sources: Vec<InstructionId> = Vec::new();
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        for &operand in run.iter().flat_map(|&copy| &self.module.instructions[copy].operands) {
            let is_array = matches!(self.module.shape(operand), Shape::Array(_));
            if is_array && !copies.contains(&operand) && !self.is_of_constants(operand) && seen.insert(operand) {
                sources.push(operand);
            }
        }
        if let Some(late) = late.filter(|_| !sources.is_empty()) {
            self.barrier(&sources, late);
        }
        for &copy in run {
            for operand in &mut self.module.instructions[copy].operands {
                *operand = self.tied.get(operand).copied().unwrap_or(*operand);
            }
            self.order.push(copy);
        }
    }

    /// Lets `sources` pass through a barrier together with `late`.
    fn barrier(&mut self, sources: &[InstructionId], late: InstructionId) {
        // What has passed a barrier already must wait for this one too.
        let mut elements: Vec<InstructionId> =
            sources.iter().map(|source| self.tied.get(source).copied().unwrap_or(*source)).collect();
        if !elements.contains(&late) {
            elements.push(late);
        }
        let shape = Shape::Tuple(elements.iter().map(|&id| self.module.shape(id).clone()).collect());
        let shape = self.module.intern(shape);
        let tuple = self.emit("tied", shape, Op::Tuple, elements, late);
        let barrier = self.emit("barrier", shape, Op::OptimizationBarrier, vec![tuple], late);
        for (index, &source) in sources.iter().enumerate() {
            let shape = self.module.instructions[source].shape;
            let op = Op::GetTupleElement { index: index as u32 };
            let stem = format!("{}.tied", self.module.instructions[source].name);
            let element = self.emit(&stem, shape, op, vec![barrier], source);
            self.tied.insert(source, element);
        }
    }

    /// Appends an instruction, with the metadata of another.
    fn emit(
        &mut self,
        stem: &str,
        shape: memplan_ir::ShapeId,
        op: Op,
        operands: Vec<InstructionId>,
        like: InstructionId,
    ) -> InstructionId {
        let parent = self.module.instructions[like].parent;
        let mut instruction = Instruction::new(self.names.fresh(stem), shape, op, operands, parent);
        instruction.metadata = self.module.instructions[like].metadata.clone();
        let id = self.module.instructions.push(instruction);
        self.order.push(id);
        id
    }
}
