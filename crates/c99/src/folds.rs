//! Operations that combine elements: reductions, products and convolutions, as loops around accumulators.
//!
//! Float sums are kept in `float` (`double` for `f64`) and rounded once, at the end. Products of integers are added up in
//! an `int` if they cannot leave it, and else in an unsigned integer, which wraps.

use memplan_ir::scopes::Name;
use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ComparisonType, Convolution, DotDimensions, DotOperand,
    ElementType, InstructionId, Op, Window,
};
use smallvec::{SmallVec, smallvec};

use crate::dag::{ArrayId, Level, NodeId, Type};
use crate::error::Refusal;
use crate::lower::{Lower, Rows};
use crate::operations::{self, Form, Function, computed};

impl Lower<'_> {
    pub(crate) fn pull_reduce(
        &mut self,
        name: Name,
        rows: &[NodeId],
    ) -> Result<SmallVec<[NodeId; 2]>, Refusal> {
        let instruction = &self.module.instructions[name.instruction];
        let Op::Reduce { dimensions } = &instruction.op else { unreachable!("called for reduces") };
        let from = &self.shape(instruction.operands[0])?.dimensions;
        let mut levels = Vec::new();
        let mut outer = rows.iter().copied();
        let mut inner: Rows = smallvec![];
        for (d, &extent) in (0i64..).zip(from) {
            inner.push(match dimensions.contains(&d) {
                true => self.open_fold_loop(extent, &mut levels, name.scope, rows),
                false => outer.next().unwrap_or_else(|| self.dag.integer(0)),
            });
        }
        let is_empty = from.iter().enumerate().any(|(d, &e)| e == 0 && dimensions.contains(&(d as i64)));
        self.reduction(name, (!is_empty).then_some(levels), &inner)
    }

    pub(crate) fn pull_reduce_window(
        &mut self,
        name: Name,
        rows: &[NodeId],
    ) -> Result<SmallVec<[NodeId; 2]>, Refusal> {
        let instruction = &self.module.instructions[name.instruction];
        let Op::ReduceWindow(window) = &instruction.op else { unreachable!("called for reduce-windows") };
        let from = self.shape(instruction.operands[0])?;
        let mut levels = Vec::new();
        let inner = self.window_rows(window, &from.dimensions, rows, &mut levels);
        let is_empty = from.element_count() == Some(0) || window.dimensions.iter().any(|w| w.size == 0);
        self.reduction(name, (!is_empty).then_some(levels), &inner)
    }

    /// Opens a loop over an extent, and gives its index. A single step needs no loop.
    pub(crate) fn open_loop(&mut self, extent: i64, levels: &mut Vec<Level>) -> NodeId {
        if extent == 1 {
            return self.dag.integer(0);
        }
        let var = self.dag.var(extent);
        levels.push(Level::Loop { var, extent });
        self.dag.loop_index(var)
    }

    /// Opens a loop over an extent even if it has a single step.
    pub(crate) fn open_var(&mut self, extent: i64, levels: &mut Vec<Level>) -> NodeId {
        let var = self.dag.var(extent);
        levels.push(Level::Loop { var, extent });
        self.dag.loop_index(var)
    }

    /// Opens the loops of a window, and the conditions that there is an element under it. Gives the element's indices.
    pub(crate) fn window_rows(
        &mut self,
        window: &Window,
        extents: &[i64],
        at: &[NodeId],
        levels: &mut Vec<Level>,
    ) -> Rows {
        let mut rows: Rows = smallvec![];
        for ((w, &extent), &at) in window.dimensions.iter().zip(extents).zip(at) {
            let (place, sign) =
                if w.window_reversal { ((w.size - 1) * w.window_dilation, -1) } else { (0, 1) };
            let within = self.open_loop(w.size, levels);
            let terms = [(at, w.stride), (within, sign * w.window_dilation)];
            let row = self.dag.affine(&terms, place - w.padding_low);
            let row = self.require(row, (extent - 1) * w.base_dilation + 1, levels);
            let rest = self.dag.remainder(row, w.base_dilation);
            let quotient = self.dag.quotient(row, w.base_dilation);
            rows.push(match self.dag.in_range(rest, 0, 1) {
                Some(condition) => {
                    let mark = self.dag.mark();
                    levels.push(Level::If { mark, condition });
                    self.dag.under(quotient, mark)
                }
                None => quotient,
            });
        }
        rows
    }

    /// Opens the condition that an index is in `[0, extent)`, and gives the index under it.
    fn require(&mut self, row: NodeId, extent: i64, levels: &mut Vec<Level>) -> NodeId {
        let Some(condition) = self.dag.in_range(row, 0, extent) else { return row };
        let mark = self.dag.mark();
        levels.push(Level::If { mark, condition });
        self.dag.within(row, mark, extent)
    }

    /// The results of a reduction of the elements at some indices; `None` levels: of no elements.
    fn reduction(
        &mut self,
        name: Name,
        levels: Option<Vec<Level>>,
        rows: &[NodeId],
    ) -> Result<SmallVec<[NodeId; 2]>, Refusal> {
        let module = self.module;
        let instruction = &module.instructions[name.instruction];
        let n = instruction.operands.len() / 2;
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let initial = (n..2 * n).map(|k| self.value(operand(k), &[])).collect::<Result<Vec<_>, _>>()?;
        let Some(levels) = levels else { return Ok(initial.into()) };
        let t = self.shape(instruction.operands[0])?.element_type;
        if n == 1 && t.is_floating() && self.is_sum(name.instruction) {
            let x = self.value(operand(0), rows)?;
            let sum = self.sum(&instruction.name, levels, computed(t), initial[0], x);
            return Ok(smallvec![self.chain(operations::convert(computed(t), t), &[sum])]);
        }
        let types = (0..n).map(|k| Ok(Type::Element(self.shape(instruction.operands[k])?.element_type)));
        let types = types.collect::<Result<Vec<_>, Refusal>>()?;
        let fold = self.dag.open_fold(&instruction.name, &types);
        let mut arguments: Vec<NodeId> = (0..n).map(|k| self.dag.accumulator(fold, k)).collect();
        for k in 0..n {
            arguments.push(self.value(operand(k), rows)?);
        }
        let next = self.lambda(name.instruction, 0, &arguments)?;
        Ok(self.dag.close_fold(fold, levels, &initial, &next))
    }

    /// A sum of floats.
    fn sum(&mut self, name: &str, levels: Vec<Level>, t: ElementType, initial: NodeId, x: NodeId) -> NodeId {
        let add = Function { form: Form::Infix("+"), result: Type::Element(t) };
        let fold = self.dag.open_fold(name, &[Type::Element(t)]);
        let accumulator = self.dag.accumulator(fold, 0);
        let next = self.dag.apply(add, &[accumulator, x]);
        self.dag.close_fold(fold, levels, &[initial], &[next])[0]
    }

    /// The element under a window that a select-and-scatter chooses: whether there is one, and its offset in the array.
    pub(crate) fn selected(
        &mut self,
        name: Name,
        window: &Window,
        shape: &ArrayShape,
        array: ArrayId,
        at: &[NodeId],
    ) -> Result<(NodeId, NodeId), Refusal> {
        let instruction = &self.module.instructions[name.instruction];
        let t = shape.element_type;
        let pred = Type::Element(ElementType::Pred);
        let (none, yes) = (self.dag.constant(ElementType::Pred, 0), self.dag.constant(ElementType::Pred, 1));
        let initial = [none, self.dag.constant(t, 0), self.dag.integer(0)];
        let fold = self.dag.open_fold(&instruction.name, &[pred, Type::Element(t), Type::Index]);
        let [chosen, best, best_offset] = [0, 1, 2].map(|k| self.dag.accumulator(fold, k));
        let mut levels = Vec::new();
        let rows = self.window_rows(window, &shape.dimensions, at, &mut levels);
        let x = self.value(Name { instruction: instruction.operands[0], leaf: 0, ..name }, &rows)?;
        let offset = self.offset(array, &rows);
        let keeps = self.lambda(name.instruction, 0, &[best, x])?[0];
        let keeps = self.all([chosen, keeps]).expect("two conditions have a conjunction");
        let next = [yes, self.choose(keeps, best, x), self.choose(keeps, best_offset, offset)];
        let folded = self.dag.close_fold(fold, levels, &initial, &next);
        Ok((folded[0], folded[2]))
    }

    /// The best of the `n` elements of a line that come after the one at place `at - 1`, which is `last` with its index.
    pub(crate) fn best(
        &mut self,
        of: Name,
        line: &[NodeId],
        n: i64,
        at: NodeId,
        last: [NodeId; 2],
        is_largest: bool,
    ) -> Result<(NodeId, NodeId), Refusal> {
        let t = self.shape(of.instruction)?.element_type;
        let pred = Type::Element(ElementType::Pred);
        let (none, yes) = (self.dag.constant(ElementType::Pred, 0), self.dag.constant(ElementType::Pred, 1));
        let initial = [none, self.dag.constant(t, 0), self.dag.integer(0)];
        let mut levels = Vec::new();
        let row = self.open_loop(n, &mut levels);
        let fold = self.dag.open_fold("best", &[pred, Type::Element(t), Type::Index]);
        let [found, best, best_index] = [0, 1, 2].map(|k| self.dag.accumulator(fold, k));
        let rows: Rows = line.iter().copied().chain([row]).collect();
        let x = self.value(of, &rows)?;
        let less = |lower: &mut Self, x: NodeId, y: NodeId| {
            let direction = if is_largest { ComparisonDirection::Gt } else { ComparisonDirection::Lt };
            lower.compared(direction, t, x, y)
        };
        let is_better = less(self, x, best);
        let is_worse_than_last = less(self, last[0], x);
        let is_equal_to_last = self.compared(ComparisonDirection::Eq, t, x, last[0]);
        let index = self.number(row, ElementType::S32);
        let is_later = self.dag.apply(Function { form: Form::Infix(">"), result: pred }, &[index, last[1]]);
        let or = Function { form: Form::Infix("||"), result: pred };
        let not = Function { form: Form::Prefix("!"), result: pred };
        let is_later = self.all([is_equal_to_last, is_later]).expect("two conditions have a conjunction");
        let mut is_left = self.dag.apply(or, &[is_worse_than_last, is_later]);
        if let Some(is_first) = self.dag.in_range(at, 0, 1) {
            is_left = self.dag.apply(or, &[is_first, is_left]);
        } else {
            is_left = yes;
        }
        let is_none = self.dag.apply(not, &[found]);
        let is_better = self.dag.apply(or, &[is_none, is_better]);
        let takes = self.all([is_left, is_better]).expect("two conditions have a conjunction");
        let next = [
            self.dag.apply(or, &[found, takes]),
            self.choose(takes, x, best),
            self.choose(takes, row, best_index),
        ];
        let folded = self.dag.close_fold(fold, levels, &initial, &next);
        Ok((folded[1], folded[2]))
    }

    /// A comparison in the total order of a type.
    fn compared(&mut self, direction: ComparisonDirection, t: ElementType, x: NodeId, y: NodeId) -> NodeId {
        let (order, function) = operations::compare(direction, ComparisonType::TotalOrder, t);
        let mut inputs = [x, y];
        if let Some(order) = order {
            inputs = inputs.map(|x| self.dag.apply(order, &[x]));
        }
        self.dag.apply(function, &inputs)
    }

    /// Whether the reducer adds its two parameters.
    fn is_sum(&self, id: InstructionId) -> bool {
        let module = self.module;
        let reducer = &module.computations[module.instructions[id].called[0]];
        let root = &module.instructions[reducer.root];
        let mut operands = root.operands.clone();
        operands.sort_unstable();
        let mut parameters = reducer.parameters.clone();
        parameters.sort_unstable();
        root.op == Op::Binary(BinaryOp::Add) && *operands == *parameters
    }

    pub(crate) fn pull_dot(
        &mut self,
        name: Name,
        rows: &[NodeId],
        d: &DotDimensions,
    ) -> Result<NodeId, Refusal> {
        let operands = &self.module.instructions[name.instruction].operands;
        let (lhs, rhs) = (self.shape(operands[0])?, self.shape(operands[1])?);
        let zero = self.dag.integer(0);
        let mut at: [Rows; 2] =
            [SmallVec::from_elem(zero, lhs.rank()), SmallVec::from_elem(zero, rhs.rank())];
        let mut out = rows.iter().copied();
        let mut next = || out.next().unwrap_or(zero);
        for (&l, &r) in d.lhs_batch.iter().zip(&d.rhs_batch) {
            let row = next();
            (at[0][l as usize], at[1][r as usize]) = (row, row);
        }
        d.free(DotOperand::Lhs, lhs.rank()).iter().for_each(|&l| at[0][l as usize] = next());
        d.free(DotOperand::Rhs, rhs.rank()).iter().for_each(|&r| at[1][r as usize] = next());
        let (mut levels, mut count) = (Vec::new(), 1);
        for (&l, &r) in d.lhs_contracting.iter().zip(&d.rhs_contracting) {
            let extent = lhs.dimensions[l as usize];
            count *= extent;
            let row = self.open_fold_loop(extent, &mut levels, name.scope, rows);
            (at[0][l as usize], at[1][r as usize]) = (row, row);
        }
        self.products(name, levels, count, &at)
    }

    pub(crate) fn pull_convolution(
        &mut self,
        name: Name,
        rows: &[NodeId],
        c: &Convolution,
    ) -> Result<NodeId, Refusal> {
        let operands = &self.module.instructions[name.instruction].operands;
        let (input, kernel) = (self.shape(operands[0])?, self.shape(operands[1])?);
        let output = self.shape(name.instruction)?;
        let d = &c.dimensions;
        let zero = self.dag.integer(0);
        let mut at: [Rows; 2] =
            [SmallVec::from_elem(zero, input.rank()), SmallVec::from_elem(zero, kernel.rank())];
        let (feature_groups, batch_groups) = (c.feature_group_count.max(1), c.batch_group_count.max(1));
        let feature = rows[d.output_feature as usize];
        let features = output.dimensions[d.output_feature as usize];
        let group = self.dag.quotient(feature, (features / (feature_groups * batch_groups)).max(1));
        let (mut levels, mut count) = (Vec::new(), 1);
        // The taps, and the rows of the input under them.
        let spatial = c.window.dimensions.iter().enumerate();
        for (s, w) in spatial {
            let [i, k, o] =
                [d.input_spatial[s], d.kernel_spatial[s], d.output_spatial[s]].map(|d| d as usize);
            let first = levels.len();
            let window = Window { dimensions: smallvec![*w] };
            let row = self.window_rows(&window, &input.dimensions[i..=i], &rows[o..=o], &mut levels);
            at[0][i] = row[0];
            // A window of one tap has no loop.
            if let (Some(Level::Loop { var, .. }), true) = (levels.get(first), w.size > 1) {
                at[1][k] = self.dag.loop_index(*var);
            }
            count *= w.size;
        }
        let inner = kernel.dimensions[d.kernel_input_feature as usize];
        count *= inner;
        let row = self.open_fold_loop(inner, &mut levels, name.scope, rows);
        at[1][d.kernel_input_feature as usize] = row;
        at[1][d.kernel_output_feature as usize] = feature;
        let of_group = |groups: i64, size: i64| if groups > 1 { size } else { 0 };
        at[0][d.input_feature as usize] =
            self.dag.affine(&[(row, 1), (group, of_group(feature_groups, inner))], 0);
        let batch = rows[d.output_batch as usize];
        let batches = output.dimensions[d.output_batch as usize];
        at[0][d.input_batch as usize] =
            self.dag.affine(&[(batch, 1), (group, of_group(batch_groups, batches))], 0);
        if input.element_count() == Some(0) || kernel.element_count() == Some(0) {
            count = 0;
        }
        self.products(name, levels, count, &at)
    }

    /// The sum of products of elements of two operands.
    fn products(
        &mut self,
        name: Name,
        levels: Vec<Level>,
        count: i64,
        rows: &[Rows; 2],
    ) -> Result<NodeId, Refusal> {
        let instruction = &self.module.instructions[name.instruction];
        let result = self.shape(name.instruction)?.element_type;
        let types = [0, 1].map(|k| self.shape(instruction.operands[k]).map(|s| s.element_type));
        let types = [types[0].clone()?, types[1].clone()?];
        let t = accumulator(types, result, count);
        let zero = self.dag.constant(t, 0);
        let mut sum = zero;
        if count > 0 {
            let mut factors: SmallVec<[NodeId; 2]> = smallvec![];
            for k in 0..2 {
                let of = Name { instruction: instruction.operands[k], leaf: 0, ..name };
                let x = self.value(of, &rows[k])?;
                factors.push(match computed(types[k]) == t {
                    true => x,
                    false => self.dag.apply(operations::cast(t), &[x]),
                });
            }
            let function = |form| Function { form, result: Type::Element(t) };
            let product = self.dag.apply(function(Form::Infix("*")), &factors);
            let fold = self.dag.open_fold(&instruction.name, &[Type::Element(t)]);
            let accumulator = self.dag.accumulator(fold, 0);
            let next = self.dag.apply(function(Form::Infix("+")), &[accumulator, product]);
            sum = self.dag.close_fold(fold, levels, &[zero], &[next])[0];
        }
        Ok(self.chain(operations::convert(t, result), &[sum]))
    }
}

/// The type in which products are added up.
fn accumulator([a, b]: [ElementType; 2], result: ElementType, count: i64) -> ElementType {
    let types = [a, b, result];
    if types.contains(&ElementType::F64) {
        return ElementType::F64;
    }
    if types.iter().any(|t| t.is_floating()) {
        return ElementType::F32;
    }
    let magnitude =
        |t: ElementType| 1i64.checked_shl(t.bits() - u32::from(t.is_signed())).unwrap_or(i64::MAX);
    let largest = magnitude(a).saturating_mul(magnitude(b)).saturating_mul(count);
    match () {
        () if result.bits() == 64 => ElementType::U64,
        () if largest <= i64::from(i32::MAX) => ElementType::S32,
        () => ElementType::U32,
    }
}
