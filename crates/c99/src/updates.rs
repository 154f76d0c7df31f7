//! Results that are not written by one loop over their elements: updates, scatters, sorts, the best of each line.
//!
//! They write into an array that has its contents before, and read what they have written. Such reads have a mark, which
//! keeps them in the innermost loop, beside the writes.

use memplan_ir::scopes::Name;
use memplan_ir::{InstructionId, Op};
use smallvec::SmallVec;

use crate::dag::{ArrayId, Level, NodeId};
use crate::error::{Refusal, refusal};
use crate::kernel::{Builder, Group, Nest, Store, whole};
use crate::lower::Rows;

impl Builder<'_, '_> {
    /// The array that is updated, then the elements of the update.
    pub(crate) fn update(&mut self, name: Name, array: ArrayId) -> Result<Group, Refusal> {
        let instruction = &self.lower.module.instructions[name.instruction];
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let mut group = self.initial(operand(0), array)?;
        let extents = &self.lower.shape(name.instruction)?.dimensions;
        let update = self.lower.shape(instruction.operands[1])?;
        if update.element_count() == Some(0) {
            return Ok(group);
        }
        let starts = self.lower.starts(name, 2, extents, &update.dimensions)?;
        let (levels, rows) = self.loops_over(&whole(&update.dimensions), array);
        let value = self.lower.value(operand(1), &rows)?;
        let dag = &mut self.lower.dag;
        let at: Rows =
            rows.iter().zip(starts).map(|(&row, start)| dag.affine(&[(row, 1), (start, 1)], 0)).collect();
        let offset = self.lower.offset(array, &at);
        group.push(Nest::new(levels, vec![Store { array, offset, value }]));
        Ok(group)
    }

    pub(crate) fn scatter(&mut self, name: Name, arrays: &[ArrayId]) -> Result<Group, Refusal> {
        let module = self.lower.module;
        let instruction = &module.instructions[name.instruction];
        let Op::Scatter(s) = &instruction.op else { unreachable!("called for scatters") };
        let n = arrays.len();
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let mut group = Group::new();
        for (k, &array) in arrays.iter().enumerate() {
            group.extend(self.initial(operand(k), array)?);
        }
        let extents = &self.lower.shape(instruction.operands[0])?.dimensions;
        let indices = self.lower.shape(instruction.operands[n])?;
        let updates = self.lower.shape(instruction.operands[n + 1])?;
        if updates.element_count() == Some(0) {
            return Ok(group);
        }
        let zero = self.lower.dag.integer(0);
        let (mut levels, mut at) = (Vec::new(), Rows::from_elem(zero, updates.rank()));
        let is_window = |d: usize| s.update_window_dims.contains(&(d as i64));
        let mut batch: Rows = SmallVec::new();
        for d in (0..updates.rank()).filter(|&d| !is_window(d)) {
            at[d] = self.lower.open_loop(updates.dimensions[d], &mut levels);
            batch.push(at[d]);
        }
        // Where the window begins; the whole of it must be inside.
        let windows: Vec<usize> = (0..updates.rank()).filter(|&d| is_window(d)).collect();
        let mut window = windows.iter();
        let mut rows: Rows = SmallVec::new();
        let mut inner: Vec<(usize, usize)> = Vec::new();
        let mut inside: SmallVec<[NodeId; 6]> = SmallVec::new();
        for (d, &extent) in (0i64..).zip(extents) {
            let mut size = 1;
            if !s.inserted_window_dims.contains(&d)
                && !s.input_batching_dims.contains(&d)
                && let Some(&w) = window.next()
            {
                inner.push((d as usize, w));
                size = updates.dimensions[w];
            }
            let mut terms: SmallVec<[(NodeId, i64); 3]> = SmallVec::new();
            if let Some(k) = s.scatter_dims_to_operand_dims.iter().position(|&m| m == d) {
                let index = self.lower.index_vector(&batch, indices.rank(), s.index_vector_dim, k);
                let start = self.lower.value(operand(n), &index)?;
                match self.lower.known(start) {
                    Some(value) if (0..extent - size + 1).contains(&value) => {}
                    _ => inside.extend(self.lower.dag.in_range(start, 0, (extent - size + 1).max(0))),
                }
                terms.push((self.lower.clamped(start, extent - size), 1));
            }
            if let Some(k) = s.input_batching_dims.iter().position(|&m| m == d) {
                let of = s.scatter_indices_batching_dims[k];
                terms.push((batch[(of - i64::from(of > s.index_vector_dim)) as usize], 1));
            }
            rows.push(self.lower.dag.affine(&terms, 0));
        }
        if let Some(condition) = self.lower.all(inside) {
            let mark = self.lower.dag.mark();
            levels.push(Level::If { mark, condition });
        }
        for (d, w) in inner {
            at[w] = self.lower.open_loop(updates.dimensions[w], &mut levels);
            rows[d] = self.lower.dag.affine(&[(rows[d], 1), (at[w], 1)], 0);
        }
        let given =
            (0..n).map(|k| self.lower.value(operand(n + 1 + k), &at)).collect::<Result<Vec<_>, _>>()?;
        let offsets: Vec<NodeId> = arrays.iter().map(|&array| self.lower.offset(array, &rows)).collect();
        group.push(self.combine(name.instruction, 0, levels, arrays, &offsets, &given)?);
        Ok(group)
    }

    /// A nest that combines elements of arrays with given ones.
    fn combine(
        &mut self,
        id: InstructionId,
        called: usize,
        mut levels: Vec<Level>,
        arrays: &[ArrayId],
        offsets: &[NodeId],
        given: &[NodeId],
    ) -> Result<Nest, Refusal> {
        let mark = self.lower.dag.here();
        levels.push(Level::Here { mark });
        let mut arguments = Vec::new();
        for (&array, &offset) in arrays.iter().zip(offsets) {
            self.lower.changing.insert(array, mark);
            arguments.push(self.lower.load_at(array, offset));
            self.lower.changing.remove(&array);
        }
        arguments.extend_from_slice(given);
        let next = self.lower.lambda(id, called, &arguments)?;
        let stores = arrays.iter().zip(offsets).zip(next);
        let stores = stores.map(|((&array, &offset), value)| Store { array, offset, value }).collect();
        Ok(Nest::new(levels, stores))
    }

    /// For every element of the source, the element of the array that its window selects is combined with it.
    pub(crate) fn select_and_scatter(&mut self, name: Name, array: ArrayId) -> Result<Group, Refusal> {
        let module = self.lower.module;
        let instruction = &module.instructions[name.instruction];
        let Op::SelectAndScatter(window) = &instruction.op else { unreachable!("called for these") };
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let shape = self.lower.shape(name.instruction)?;
        let source = self.lower.shape(instruction.operands[1])?;
        let initial = self.lower.value(operand(2), &[])?;
        let (levels, rows) = self.loops_over(&whole(&shape.dimensions), array);
        let offset = self.lower.offset(array, &rows);
        let mut group = vec![Nest::new(levels, vec![Store { array, offset, value: initial }])];
        if source.element_count() == Some(0) {
            return Ok(group);
        }
        let (mut levels, at) = self.loops_over(&whole(&source.dimensions), array);
        let given = self.lower.value(operand(1), &at)?;
        let (chosen, offset) = self.lower.selected(name, window, shape, array, &at)?;
        let mark = self.lower.dag.mark();
        levels.push(Level::If { mark, condition: chosen });
        group.push(self.combine(name.instruction, 1, levels, &[array], &[offset], &[given])?);
        Ok(group)
    }

    /// Copies of the operands, sorted by insertion: no other memory is needed, and equal elements keep their order.
    pub(crate) fn sort(&mut self, name: Name, arrays: &[ArrayId]) -> Result<Group, Refusal> {
        let module = self.lower.module;
        let instruction = &module.instructions[name.instruction];
        let Op::Sort { dimension, .. } = instruction.op else { unreachable!("called for sorts") };
        let dimension = dimension as usize;
        let extents = self.lower.shape(instruction.operands[0])?.dimensions.to_vec();
        let roots: Vec<(ArrayId, Name)> = (arrays.iter().zip(&instruction.operands))
            .map(|(&array, &operand)| (array, Name { instruction: operand, leaf: 0, ..name }))
            .collect();
        let mut group = vec![self.elementwise(&extents, &roots)?];
        if extents[dimension] < 2 {
            return Ok(group);
        }
        let mut levels = Vec::new();
        let mut rows: Rows = extents
            .iter()
            .enumerate()
            .map(|(d, &extent)| self.lower.open_loop(if d == dimension { 1 } else { extent }, &mut levels))
            .collect();
        let last = self.lower.open_var(extents[dimension] - 1, &mut levels);
        let from = self.lower.dag.affine(&[(last, 1)], 1);
        let var = self.lower.dag.var(extents[dimension]);
        levels.push(Level::Down { var, from });
        let at = self.lower.dag.loop_index(var);
        let before = self.lower.dag.affine(&[(at, 1)], -1);
        let mark = self.lower.dag.here();
        levels.push(Level::Here { mark });
        let (mut arguments, mut offsets) = (Vec::new(), Vec::new());
        for &array in arrays {
            self.lower.changing.insert(array, mark);
            for row in [at, before] {
                rows[dimension] = row;
                offsets.push(self.lower.offset(array, &rows));
                arguments.push(self.lower.load_at(array, offsets[offsets.len() - 1]));
            }
            self.lower.changing.remove(&array);
        }
        let condition = self.lower.lambda(name.instruction, 0, &arguments)?[0];
        let mark = self.lower.dag.mark();
        levels.push(Level::Unless { mark, condition });
        let mut stores = Vec::new();
        for (k, &array) in arrays.iter().enumerate() {
            for (to, from) in [(2 * k, 2 * k + 1), (2 * k + 1, 2 * k)] {
                stores.push(Store { array, offset: offsets[to], value: arguments[from] });
            }
        }
        group.push(Nest::new(levels, stores));
        Ok(group)
    }

    /// The best elements of each line, one after the other: each is the best of those after the one before it.
    pub(crate) fn top_k(
        &mut self,
        name: Name,
        arrays: &[ArrayId],
        is_largest: bool,
    ) -> Result<Group, Refusal> {
        let module = self.lower.module;
        let operand = module.instructions[name.instruction].operands[0];
        let &[values, indices] = arrays else {
            return Err(refusal(module, name.instruction, "its results are not values and indices"));
        };
        let extents = &self.lower.shape(operand)?.dimensions;
        let Some((&n, lines)) = extents.split_last() else {
            return Err(refusal(module, name.instruction, "its operand is a scalar"));
        };
        let leaves = module.shape(name.instruction).leaves();
        let k =
            leaves.first().and_then(|(_, shape)| shape.as_array()?.dimensions.last().copied()).unwrap_or(0);
        let mut levels = Vec::new();
        let mut rows: Rows = lines.iter().map(|&extent| self.lower.open_loop(extent, &mut levels)).collect();
        let at = self.lower.open_loop(k, &mut levels);
        let mark = self.lower.dag.here();
        levels.push(Level::Here { mark });
        let before = self.lower.dag.affine(&[(at, 1)], -1);
        let before = self.lower.dag.clamp(before, k - 1);
        let last = [values, indices].map(|array| {
            self.lower.changing.insert(array, mark);
            let rows: Rows = rows.iter().copied().chain([before]).collect();
            let last = self.lower.load(array, &rows);
            self.lower.changing.remove(&array);
            last
        });
        let of = Name { instruction: operand, leaf: 0, ..name };
        let (best, best_index) = self.lower.best(of, &rows, n, at, last, is_largest)?;
        rows.push(at);
        let t = self.lower.arrays[indices].element_type;
        let best_index = self.lower.number(best_index, t);
        let stores = [(values, best), (indices, best_index)].map(|(array, value)| Store {
            array,
            offset: self.lower.offset(array, &rows),
            value,
        });
        Ok(vec![Nest::new(levels, stores.into())])
    }
}

/// Whether an operation is a `topk`, under either name.
pub(crate) fn is_top_k(op: &Op) -> bool {
    match op {
        Op::TopK { .. } => true,
        Op::CustomCall(call) => matches!(&*call.target, "TopK" | "topk"),
        _ => false,
    }
}
