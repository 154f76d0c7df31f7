//! Ties: recomputed values depend on a value that is computed late. So a compiler that merges common subexpressions and
//! reschedules neither merges them with the originals nor runs them early.
//!
//! A compiler that keeps optimization barriers until scheduling gets a barrier, like the one that `jax.checkpoint` puts
//! around its residuals and cotangents:
//!
//! ```text
//!   t = (f32[n], f32[n]) tuple(h, d)             h: kept; d: the gradient, computed only in the backward half
//!   o = (f32[n], f32[n]) opt-barrier(t)
//!   h.tied = f32[n] get-tuple-element(o), index=0
//!   m.remat = pred[n] compare(h.tied, 0)
//! ```
//!
//! A compiler that removes barriers before merging gets a select whose predicate is always true. The compiler does not
//! know that a sign bit is less than two. The select needs no array, since it is fused into its readers:
//!
//! ```text
//!   s = s32[] convert(reshape(slice(d)))         the first element of the gradient
//!   p = pred[] compare(shift-right-logical(s, 31), 2), direction=LT
//!   h.tied = f32[n] select(broadcast(p), h, 0)
//! ```

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ComputationId, Cursor, Dimensions, ElementType, Insert,
    InstructionId, Module, Names, Op, Shape, SliceDimension,
};
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
        let mut at = self.at(late);
        let tuple = at.named("tied").tuple(elements);
        let barrier = at.named("barrier").insert(Op::OptimizationBarrier, [tuple]);
        for (index, &source) in (0..).zip(sources) {
            self.tie_source(source, |at| at.get_tuple_element(barrier, index));
        }
    }

    /// Selects `sources` by a bit of `late`.
    fn select(&mut self, sources: &[InstructionId], late: InstructionId) {
        let holds = self.always(late);
        for &source in sources {
            let array = self.module.shape(source).as_array().expect("sources are arrays").clone();
            let mut at = self.at(late);
            let zero = at.named("zero").integer(array.element_type, 0);
            let zero = spread(&mut at, zero, &array);
            let holds = spread(&mut at, holds, &array);
            self.tie_source(source, |at| at.select(holds, source, zero));
        }
    }

    /// A predicate that is true, and computed from the first element of an array.
    fn always(&mut self, late: InstructionId) -> InstructionId {
        let array = self.module.shape(late).as_array().expect("a late value is an array").clone();
        let mut at = self.at(late);
        let mut first = late;
        if !array.dimensions.is_empty() {
            let ones = Dimensions::from_elem(1, array.dimensions.len());
            let one = SliceDimension { start: 0, limit: 1, stride: 1 };
            let op = Op::Slice { dimensions: ones.iter().map(|_| one).collect() };
            let corner = ArrayShape { dimensions: ones, ..array.clone() };
            first = at.named("late").insert_shaped(op, [first], corner);
            first = at.named("late").reshape(first, []);
        }
        if array.element_type != ElementType::S32 {
            let shape = Shape::scalar(ElementType::S32);
            first = at.named("late").insert_shaped(Op::Convert, [first], shape);
        }
        let [distance, two] = [31, 2].map(|value| at.named("bit").integer(ElementType::S32, value));
        let sign = at.named("bit").binary(BinaryOp::ShiftRightLogical, first, distance);
        at.named("holds").compare(ComparisonDirection::Lt, sign, two)
    }

    /// Appends the tied version of a source, which `make` makes.
    fn tie_source(&mut self, source: InstructionId, make: impl FnOnce(&mut Cursor<'_>) -> InstructionId) {
        let stem = format!("{}.tied", self.module.instructions[source].name);
        let tied = make(self.at(source).named(&stem));
        self.tied.insert(source, tied);
    }

    /// For new instructions, with the metadata of another.
    fn at(&mut self, like: InstructionId) -> Cursor<'_> {
        Cursor::into_list(self.module, self.names, self.computation, &mut self.order).with_metadata_of(like)
    }
}

/// A scalar broadcast to the shape of an array.
fn spread(at: &mut Cursor<'_>, scalar: InstructionId, like: &ArrayShape) -> InstructionId {
    if like.dimensions.is_empty() {
        return scalar;
    }
    let element_type = at.module().shape(scalar).as_array().expect("scalars are arrays").element_type;
    let shape = ArrayShape { element_type, ..like.clone() };
    at.named("spread").insert_shaped(Op::Broadcast { dimensions: Dimensions::new() }, [scalar], shape)
}
