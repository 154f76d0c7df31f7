//! Ties: recomputed values are made to depend on a value that is computed late, so that a compiler that merges common
//! subexpressions and schedules anew neither merges them with the originals nor runs them early.
//!
//! A compiler that keeps optimization barriers until it has a schedule gets a barrier, as `jax.checkpoint` puts around its
//! residuals and cotangents:
//!
//! ```text
//!   t = (f32[n], f32[n]) tuple(h, d)             h: kept; d: the gradient, computed only in the backward half
//!   o = (f32[n], f32[n]) opt-barrier(t)
//!   h.tied = f32[n] get-tuple-element(o), index=0
//!   m.remat = pred[n] compare(h.tied, 0)
//! ```
//!
//! A compiler that removes barriers before it merges gets a select whose predicate is always true. The compiler does not
//! know that a sign bit is below two. The select costs no array, since it is fused into its readers:
//!
//! ```text
//!   s = s32[] convert(reshape(slice(d)))         the first element of the gradient
//!   p = pred[] compare(shift-right-logical(s, 31), 2), direction=LT
//!   h.tied = f32[n] select(broadcast(p), h, 0)
//! ```

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ComputationId, Dimensions, ElementType, Instruction,
    InstructionId, Module, Names, Op, Shape, SliceDimension,
};
use memplan_rewriter::Scalar;
use memplan_rewriter::cost::{self, CostClass};
use rustc_hash::{FxHashMap, FxHashSet};

/// How recomputed values are tied to a late value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// By optimization barriers.
    Barrier,
    /// By selects with a predicate that is always true.
    Select,
}

/// Ties each run of `copies` in a computation: their operands wait for a value that is computed just before.
pub(super) fn tie(
    module: &mut Module,
    computation: ComputationId,
    copies: &FxHashSet<InstructionId>,
    tie: Tie,
    names: &mut Names,
) {
    let old = std::mem::take(&mut module.computations[computation].instructions);
    let position: FxHashMap<InstructionId, usize> = old.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let order = Vec::with_capacity(old.len());
    let mut writer = Writer { module, names, tie, computation, order, tied: FxHashMap::default() };
    let mut at = 0;
    while at < old.len() {
        let n_copies = old[at..].iter().take_while(|id| copies.contains(id)).count();
        let run = &old[at..at + n_copies];
        let user = old.get(at + n_copies).copied();
        if !run.is_empty() {
            let late = user.and_then(|user| writer.arrives_with(user, copies, &position));
            let late = late.or_else(|| writer.computed_last());
            writer.tie_run(run, copies, late);
        }
        writer.order.extend(user);
        at += n_copies + 1;
    }
    let order = writer.order;
    module.computations[computation].instructions = order;
}

struct Writer<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    tie: Tie,
    computation: ComputationId,
    /// The instructions of the computation so far.
    order: Vec<InstructionId>,
    /// The latest tied version of each value.
    tied: FxHashMap<InstructionId, InstructionId>,
}

impl Writer<'_> {
    /// The operand of a reader of copies that is computed last, other than copies.
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

    /// Whether a value is computed, rather than given, and has a first element with a sign.
    fn is_computed(&self, id: InstructionId) -> bool {
        let has_first = |array: &ArrayShape| {
            !array.element_type.is_complex() && array.element_count().is_some_and(|count| count > 0)
        };
        let instruction = &self.module.instructions[id];
        matches!(self.module.shape(id), Shape::Array(array) if has_first(array))
            && !instruction.operands.is_empty()
            && !instruction.op.is_in_flight()
            && cost::class_of(self.module, id) != CostClass::Free
            && !self.is_of_constants(id)
    }

    /// Whether a value is a constant, or a constant in every element: compilers compute these where they are read.
    fn is_of_constants(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Constant(_) | Op::Iota { .. } => true,
            Op::Broadcast { .. } => self.is_of_constants(instruction.operands[0]),
            _ => false,
        }
    }

    /// Appends a run of copies whose operands are tied to `late`.
    fn tie_run(
        &mut self,
        run: &[InstructionId],
        copies: &FxHashSet<InstructionId>,
        late: Option<InstructionId>,
    ) {
        let mut sources: Vec<InstructionId> = Vec::new();
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        for &operand in run.iter().flat_map(|&copy| &self.module.instructions[copy].operands) {
            // A select needs a zero of as many elements, which are not known where extents are dynamic.
            let is_array = match self.module.shape(operand) {
                Shape::Array(array) => self.tie == Tie::Barrier || !array.is_dynamic(),
                _ => false,
            };
            let is_source = is_array && !copies.contains(&operand) && !self.is_of_constants(operand);
            if is_source && seen.insert(operand) {
                sources.push(operand);
            }
        }
        match late {
            Some(late) if !sources.is_empty() => match self.tie {
                Tie::Barrier => self.barrier(&sources, late),
                Tie::Select => self.select(&sources, late),
            },
            _ => {}
        }
        for &copy in run {
            for operand in &mut self.module.instructions[copy].operands {
                *operand = self.tied.get(operand).copied().unwrap_or(*operand);
            }
            self.order.push(copy);
        }
    }

    /// Passes `sources` through a barrier together with `late`.
    fn barrier(&mut self, sources: &[InstructionId], late: InstructionId) {
        // A source that has passed another barrier must wait for this one too.
        let mut elements: Vec<InstructionId> =
            sources.iter().map(|source| self.tied.get(source).copied().unwrap_or(*source)).collect();
        if !elements.contains(&late) {
            elements.push(late);
        }
        let shape = Shape::Tuple(elements.iter().map(|&id| self.module.shape(id).clone()).collect());
        let tuple = self.emit("tied", shape.clone(), Op::Tuple, elements, late);
        let barrier = self.emit("barrier", shape, Op::OptimizationBarrier, vec![tuple], late);
        for (index, &source) in sources.iter().enumerate() {
            let op = Op::GetTupleElement { index: index as u32 };
            self.tie_source(source, op, vec![barrier]);
        }
    }

    /// Selects `sources` by a bit of `late`.
    fn select(&mut self, sources: &[InstructionId], late: InstructionId) {
        let holds = self.always(late);
        for &source in sources {
            let array = self.module.shape(source).as_array().expect("sources are arrays").clone();
            let zero = Scalar::integer(array.element_type, 0).literal();
            let zero =
                self.emit("zero", Shape::array(array.element_type, []), Op::Constant(zero), vec![], late);
            let zero = self.spread(zero, &array, late);
            let holds = self.spread(holds, &array, late);
            self.tie_source(source, Op::Select, vec![holds, source, zero]);
        }
    }

    /// A predicate that is true, and computed from the first element of an array.
    fn always(&mut self, late: InstructionId) -> InstructionId {
        let array = self.module.shape(late).as_array().expect("a late value is an array").clone();
        let integer = || Shape::array(ElementType::S32, []);
        let mut first = late;
        if !array.dimensions.is_empty() {
            let ones = Dimensions::from_elem(1, array.dimensions.len());
            let one = SliceDimension { start: 0, limit: 1, stride: 1 };
            let op = Op::Slice { dimensions: ones.iter().map(|_| one).collect() };
            let corner = ArrayShape { dimensions: ones, ..array.clone() };
            first = self.emit("late", Shape::Array(corner), op, vec![first], late);
            let scalar = Shape::array(array.element_type, []);
            first = self.emit("late", scalar, Op::Reshape { inferred_dimension: None }, vec![first], late);
        }
        if array.element_type != ElementType::S32 {
            first = self.emit("late", integer(), Op::Convert, vec![first], late);
        }
        let [distance, two] = [31, 2].map(|value| {
            let literal = Scalar::integer(ElementType::S32, value).literal();
            self.emit("bit", integer(), Op::Constant(literal), vec![], late)
        });
        let sign =
            self.emit("bit", integer(), Op::Binary(BinaryOp::ShiftRightLogical), vec![first, distance], late);
        let op = Op::Compare { direction: ComparisonDirection::Lt, comparison_type: None };
        self.emit("holds", Shape::array(ElementType::Pred, []), op, vec![sign, two], late)
    }

    /// A scalar broadcast to the shape of an array.
    fn spread(&mut self, scalar: InstructionId, like: &ArrayShape, late: InstructionId) -> InstructionId {
        if like.dimensions.is_empty() {
            return scalar;
        }
        let element_type = self.module.shape(scalar).as_array().expect("scalars are arrays").element_type;
        let shape = Shape::Array(ArrayShape { element_type, ..like.clone() });
        self.emit("spread", shape, Op::Broadcast { dimensions: Dimensions::new() }, vec![scalar], late)
    }

    /// Appends the tied version of a source.
    fn tie_source(&mut self, source: InstructionId, op: Op, operands: Vec<InstructionId>) {
        let (name, shape) =
            (self.module.instructions[source].name.clone(), self.module.shape(source).clone());
        let tied = self.emit(&format!("{name}.tied"), shape, op, operands, source);
        self.tied.insert(source, tied);
    }

    /// Appends an instruction, with the metadata of another.
    fn emit(
        &mut self,
        stem: &str,
        shape: Shape,
        op: Op,
        operands: Vec<InstructionId>,
        like: InstructionId,
    ) -> InstructionId {
        let shape = self.module.intern(shape);
        let mut instruction = Instruction::new(self.names.fresh(stem), shape, op, operands, self.computation);
        instruction.metadata = self.module.instructions[like].metadata.clone();
        let id = self.module.instructions.push(instruction);
        self.order.push(id);
        id
    }
}
