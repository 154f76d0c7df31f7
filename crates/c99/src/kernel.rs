//! The loops of one instruction: nests that write its results.
//!
//! Results of equal extents are written by one nest, so each may be written over an operand that is read at the same place.
//! Updates and scatters write into an array that is there before, or is copied first. Nests that read an operand come
//! before those that overwrite it.

use memplan_ir::{ArrayShape, InstructionId, Module, Op};
use smallvec::SmallVec;

use crate::dag::{ArrayId, Dag, Level, Node, NodeId};
use crate::error::{Refusal, refusal};
use crate::lower::{Array, ArrayPlace, Leaf, Lower, Name, Rows, leaf_count};
use crate::tiling::{Limits, Tiling};
use cranelift_entity::PrimaryMap;

/// What is written at each step of a nest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store {
    pub(crate) array: ArrayId,
    /// In elements.
    pub(crate) offset: NodeId,
    pub(crate) value: NodeId,
}

/// Loops, and what they write.
#[derive(Clone)]
pub(crate) struct Nest {
    pub(crate) levels: Vec<Level>,
    pub(crate) stores: Vec<Store>,
    /// How it uses the registers and the stack.
    pub(crate) tiling: Tiling,
}

/// Nests that write some results, in order.
type Group = Vec<Nest>;

/// The loops of an instruction.
pub(crate) struct Kernel {
    pub(crate) dag: Dag,
    pub(crate) arrays: PrimaryMap<ArrayId, Array>,
    pub(crate) nests: Vec<Nest>,
    /// Whether it only brings an array into another layout.
    pub(crate) is_relayout: bool,
}

/// Bytes of an allocation: number, begin, end.
pub(crate) type Bytes = (u32, u64, u64);

/// Where a kernel's operand is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    /// In memory.
    Bytes(Bytes),
    /// It is this constant, of the code.
    Constant(InstructionId),
    /// It has no bytes.
    Nothing,
}

/// The leaves of an instruction's operands and result.
pub(crate) struct Leaves {
    pub(crate) operands: Vec<Given>,
    pub(crate) results: Vec<Option<Bytes>>,
}

impl Kernel {
    /// The loops of an instruction, of which `n_written` leaves of the result are written.
    pub(crate) fn new(
        module: &Module,
        id: InstructionId,
        leaves: &Leaves,
        n_written: usize,
        limits: Limits,
    ) -> Result<Kernel, Refusal> {
        let mut builder = Builder { lower: Lower::new(module), leaves, id, results: Vec::new() };
        builder.declare(n_written)?;
        let groups = builder.groups()?;
        let mut nests = builder.in_order(groups)?;
        for nest in &mut nests {
            nest.tiling = Tiling::new(&mut builder.lower.dag, nest, limits);
        }
        Ok(Kernel { dag: builder.lower.dag, arrays: builder.lower.arrays, nests, is_relayout: false })
    }
}

struct Builder<'m, 'l> {
    lower: Lower<'m>,
    leaves: &'l Leaves,
    id: InstructionId,
    results: Vec<ArrayId>,
}

impl Builder<'_, '_> {
    /// Declares the arrays of operands and results.
    fn declare(&mut self, n_written: usize) -> Result<(), Refusal> {
        let module = self.lower.module;
        let mut number = 0;
        for &operand in &module.instructions[self.id].operands {
            let parts = module.shape(operand).leaves();
            let n = parts.len();
            for (leaf, (index, shape)) in parts.into_iter().enumerate() {
                let name = Name { scope: 0, instruction: operand, leaf };
                match (self.leaves.operands[number], shape.as_array()) {
                    (Given::Bytes(_), Some(shape)) => {
                        let mut called = module.instructions[operand].name.to_string();
                        if n > 1 {
                            called.push_str(&index.0.iter().map(|i| format!("_{i}")).collect::<String>());
                        }
                        let array =
                            self.lower.array(operand, called, shape, ArrayPlace::Operand(number))?;
                        self.lower.store(name, Leaf::Array(array));
                    }
                    (Given::Constant(constant), _) if constant != operand => {
                        let constant = Name { scope: 0, instruction: constant, leaf: 0 };
                        self.lower.store(name, Leaf::Value(constant));
                    }
                    _ => {}
                }
                number += 1;
            }
        }
        let parts = module.shape(self.id).leaves();
        for (leaf, (index, shape)) in parts.into_iter().enumerate().take(n_written) {
            let mut called = module.instructions[self.id].name.to_string();
            if n_written > 1 {
                called.push_str(&index.0.iter().map(|i| format!("_{i}")).collect::<String>());
            }
            let shape = shape.as_array().ok_or_else(|| refusal(module, self.id, "it makes no array"))?;
            let array = self.lower.array(self.id, called, shape, ArrayPlace::Result(leaf))?;
            self.results.push(array);
        }
        Ok(())
    }

    /// The nests of all results.
    fn groups(&mut self) -> Result<Vec<Group>, Refusal> {
        let module = self.lower.module;
        let parts = module.shape(self.id).leaves();
        let mut groups: Vec<Group> = Vec::new();
        let mut loops: Vec<(Vec<i64>, Vec<(ArrayId, Name)>)> = Vec::new();
        let mut scatters: Vec<Name> = Vec::new();
        for k in 0..self.results.len() {
            let shape = parts[k].1.as_array().expect("declared results are arrays");
            if shape.element_count() == Some(0) {
                continue;
            }
            let (array, root) = self.root(k)?;
            let op = match self.lower.resolve(root)? {
                Leaf::Value(name) => Some((name, &module.instructions[name.instruction].op)),
                _ => None,
            };
            match op {
                Some((name, Op::DynamicUpdateSlice)) => groups.push(self.update(name, array)?),
                Some((name, Op::SelectAndScatter(_))) => groups.push(self.select_and_scatter(name, array)?),
                Some((name, op)) if matches!(op, Op::Scatter(_) | Op::Sort { .. }) || is_top_k(op) => {
                    if !scatters.iter().any(|s| (s.scope, s.instruction) == (name.scope, name.instruction)) {
                        scatters.push(name);
                    }
                }
                _ => {
                    let extents = shape.dimensions.to_vec();
                    match loops.iter_mut().find(|(known, _)| *known == extents) {
                        Some((_, group)) => group.push((array, root)),
                        None => loops.push((extents, vec![(array, root)])),
                    }
                }
            }
        }
        for name in scatters {
            let arrays = self.arrays_of(name)?;
            groups.push(match module.instructions[name.instruction].op {
                Op::Scatter(_) => self.scatter(name, &arrays)?,
                Op::Sort { .. } => self.sort(name, &arrays)?,
                ref op => self.top_k(name, &arrays, !matches!(op, Op::TopK { largest: false, .. }))?,
            });
        }
        for (extents, roots) in loops {
            groups.push(vec![self.elementwise(&extents, &roots)?]);
        }
        Ok(groups)
    }

    /// A result's array and value. Bitcasts of a value that is updated in place are other names of the array.
    fn root(&mut self, k: usize) -> Result<(ArrayId, Name), Refusal> {
        let module = self.lower.module;
        let (mut array, mut root) = (self.results[k], Name { scope: 0, instruction: self.id, leaf: k });
        if let Op::CopyStart { .. } = module.instructions[self.id].op {
            root = Name { scope: 0, instruction: module.instructions[self.id].operands[0], leaf: k };
        }
        while let Leaf::Value(name) = self.lower.resolve(root)?
            && module.instructions[name.instruction].op == Op::Bitcast
        {
            let operand = Name { instruction: module.instructions[name.instruction].operands[0], leaf: 0, ..name };
            let Leaf::Value(of) = self.lower.resolve(operand)? else { break };
            let is_update = |op: &Op| matches!(op, Op::DynamicUpdateSlice | Op::Scatter(_) | Op::Bitcast);
            if !is_update(&module.instructions[of.instruction].op) {
                break;
            }
            let shape = self.lower.shape(operand.instruction)?;
            let called = self.lower.arrays[array].name.clone();
            array = self.lower.array(self.id, called, shape, ArrayPlace::Result(k))?;
            root = operand;
        }
        Ok((array, root))
    }

    /// The arrays of all leaves of an instruction whose leaves are all results.
    fn arrays_of(&mut self, of: Name) -> Result<Vec<ArrayId>, Refusal> {
        let module = self.lower.module;
        let n = leaf_count(module.shape(of.instruction));
        let mut found = vec![None; n];
        for k in 0..self.results.len() {
            let (array, root) = self.root(k)?;
            if let Leaf::Value(name) = self.lower.resolve(root)?
                && (name.scope, name.instruction) == (of.scope, of.instruction)
            {
                if found[name.leaf].is_some() {
                    return Err(refusal(module, of.instruction, "it is two results of its fusion"));
                }
                found[name.leaf] = Some(array);
            }
        }
        let all: Option<Vec<ArrayId>> = found.into_iter().collect();
        all.ok_or_else(|| refusal(module, of.instruction, "not all of it are results of its fusion"))
    }

    /// One nest for results of equal extents.
    fn elementwise(&mut self, extents: &[i64], roots: &[(ArrayId, Name)]) -> Result<Nest, Refusal> {
        let n: i64 = extents.iter().product();
        // One loop over all elements, if no index needs a division there.
        if extents.iter().filter(|&&e| e > 1).count() > 1 {
            let mut levels = Vec::new();
            let position = self.lower.open_loop(n, &mut levels);
            let rows = self.lower.digits(position, extents);
            let nest = self.stores(levels, &rows, roots)?;
            let divides = |&node: &NodeId| {
                matches!(self.lower.dag.nodes[node], Node::Quotient(..) | Node::Remainder(..))
            };
            if !self.lower.dag.reachable(nest.inputs()).iter().any(divides) {
                return Ok(nest);
            }
        }
        let (levels, rows) = self.loops_over(extents, roots[0].0);
        let mut nest = self.stores(levels, &rows, roots)?;
        self.put_folds_outside(&mut nest);
        Ok(nest)
    }

    /// Puts those loops outside on whose indices more folds depend, so that the others need not repeat them.
    fn put_folds_outside(&self, nest: &mut Nest) {
        let dag = &self.lower.dag;
        let nodes = dag.reachable(nest.inputs());
        let folds: Vec<NodeId> =
            nodes.into_iter().filter(|&node| matches!(dag.nodes[node], Node::Folded(..))).collect();
        let of = |level: &Level| folds.iter().filter(|&&fold| dag.vars(fold).contains(&level.var())).count();
        nest.levels.sort_by_key(|level| std::cmp::Reverse(of(level)));
    }

    /// Loops over extents in the order of an array in memory.
    fn loops_over(&mut self, extents: &[i64], array: ArrayId) -> (Vec<Level>, Rows) {
        let zero = self.lower.dag.integer(0);
        let mut rows: Rows = SmallVec::from_elem(zero, extents.len());
        let mut levels = Vec::new();
        for d in self.lower.arrays[array].major_to_minor() {
            rows[d] = self.lower.open_loop(extents[d], &mut levels);
        }
        (levels, rows)
    }

    fn stores(&mut self, levels: Vec<Level>, rows: &[NodeId], roots: &[(ArrayId, Name)]) -> Result<Nest, Refusal> {
        let mut stores = Vec::new();
        for &(array, root) in roots {
            let value = self.lower.value(root, rows)?;
            stores.push(Store { array, offset: self.lower.offset(array, rows), value });
        }
        Ok(Nest::new(levels, stores))
    }

    /// Nests that make an array equal to a value, unless it is the value's.
    fn initial(&mut self, value: Name, array: ArrayId) -> Result<Group, Refusal> {
        let module = self.lower.module;
        if self.is_in(value, array)? {
            return Ok(Vec::new());
        }
        if let Leaf::Value(name) = self.lower.resolve(value)? {
            match module.instructions[name.instruction].op {
                Op::DynamicUpdateSlice => return self.update(name, array),
                // The array starts as storage without contents.
                ref op if op.is_allocation() => return Ok(Vec::new()),
                _ => {}
            }
        }
        let extents = self.lower.shape(value.instruction)?.dimensions.to_vec();
        Ok(vec![self.elementwise(&extents, &[(array, value)])?])
    }

    /// Whether a value is an operand that has the bytes of an array.
    fn is_in(&mut self, value: Name, array: ArrayId) -> Result<bool, Refusal> {
        let module = self.lower.module;
        let mut at = value;
        loop {
            match self.lower.resolve(at)? {
                Leaf::Array(operand) => {
                    let (a, b) = (self.bytes(operand), self.bytes(array));
                    return Ok(a.is_some() && a == b);
                }
                Leaf::Value(name) if module.instructions[name.instruction].op == Op::Bitcast => {
                    at = Name { instruction: module.instructions[name.instruction].operands[0], leaf: 0, ..name };
                }
                _ => return Ok(false),
            }
        }
    }

    fn bytes(&self, array: ArrayId) -> Option<Bytes> {
        match self.lower.arrays[array].place {
            ArrayPlace::Operand(k) => match self.leaves.operands[k] {
                Given::Bytes(bytes) => Some(bytes),
                _ => None,
            },
            ArrayPlace::Result(k) => self.leaves.results[k],
            ArrayPlace::Constant(_) => None,
        }
    }

    /// The array that is updated, then the elements of the update.
    fn update(&mut self, name: Name, array: ArrayId) -> Result<Group, Refusal> {
        let instruction = &self.lower.module.instructions[name.instruction];
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let mut group = self.initial(operand(0), array)?;
        let extents = &self.lower.shape(name.instruction)?.dimensions;
        let update = self.lower.shape(instruction.operands[1])?;
        if update.element_count() == Some(0) {
            return Ok(group);
        }
        let starts = self.lower.starts(name, 2, extents, &update.dimensions)?;
        let (levels, rows) = self.loops_over(&update.dimensions, array);
        let value = self.lower.value(operand(1), &rows)?;
        let dag = &mut self.lower.dag;
        let at: Rows = rows.iter().zip(starts).map(|(&row, start)| dag.affine(&[(row, 1), (start, 1)], 0)).collect();
        let offset = self.lower.offset(array, &at);
        group.push(Nest::new(levels, vec![Store { array, offset, value }]));
        Ok(group)
    }

    fn scatter(&mut self, name: Name, arrays: &[ArrayId]) -> Result<Group, Refusal> {
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
            if !s.inserted_window_dims.contains(&d) && !s.input_batching_dims.contains(&d)
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
        let given = (0..n).map(|k| self.lower.value(operand(n + 1 + k), &at)).collect::<Result<Vec<_>, _>>()?;
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
    fn select_and_scatter(&mut self, name: Name, array: ArrayId) -> Result<Group, Refusal> {
        let module = self.lower.module;
        let instruction = &module.instructions[name.instruction];
        let Op::SelectAndScatter(window) = &instruction.op else { unreachable!("called for these") };
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let shape = self.lower.shape(name.instruction)?;
        let source = self.lower.shape(instruction.operands[1])?;
        let initial = self.lower.value(operand(2), &[])?;
        let (levels, rows) = self.loops_over(&shape.dimensions, array);
        let offset = self.lower.offset(array, &rows);
        let mut group = vec![Nest::new(levels, vec![Store { array, offset, value: initial }])];
        if source.element_count() == Some(0) {
            return Ok(group);
        }
        let (mut levels, at) = self.loops_over(&source.dimensions, array);
        let given = self.lower.value(operand(1), &at)?;
        let (chosen, offset) = self.lower.selected(name, window, shape, array, &at)?;
        let mark = self.lower.dag.mark();
        levels.push(Level::If { mark, condition: chosen });
        group.push(self.combine(name.instruction, 1, levels, &[array], &[offset], &[given])?);
        Ok(group)
    }

    /// Copies of the operands, sorted by insertion: no other memory is needed, and equal elements keep their order.
    fn sort(&mut self, name: Name, arrays: &[ArrayId]) -> Result<Group, Refusal> {
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
    fn top_k(&mut self, name: Name, arrays: &[ArrayId], is_largest: bool) -> Result<Group, Refusal> {
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
        let k = leaves.first().and_then(|(_, shape)| shape.as_array()?.dimensions.last().copied()).unwrap_or(0);
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
        let stores = [(values, best), (indices, best_index)]
            .map(|(array, value)| Store { array, offset: self.lower.offset(array, &rows), value });
        Ok(vec![Nest::new(levels, stores.into())])
    }

    /// All nests, those that read bytes before those that overwrite them.
    fn in_order(&self, mut groups: Vec<Group>) -> Result<Vec<Nest>, Refusal> {
        let mut nests = Vec::new();
        while !groups.is_empty() {
            let is_free = |at: usize| {
                let others = groups.iter().enumerate().filter(|&(other, _)| other != at);
                !others.flat_map(|(_, group)| group).any(|nest| self.overwrites(&groups[at], nest))
            };
            let Some(at) = (0..groups.len()).find(|&at| is_free(at)) else {
                let reason = "each of its results overwrites an operand that another reads";
                return Err(refusal(self.lower.module, self.id, reason));
            };
            let group = groups.remove(at);
            for (k, nest) in group.iter().enumerate() {
                let is_copied = group[..k].iter().any(|before| self.meets(before, nest, false));
                if is_copied || self.meets(nest, nest, true) {
                    let reason = "its result overwrites an operand that is still read";
                    return Err(refusal(self.lower.module, self.id, reason));
                }
            }
            nests.extend(group.into_iter().filter(|nest| !self.is_idle(nest)));
        }
        Ok(nests)
    }

    /// Whether nests of a group write bytes that a nest reads.
    fn overwrites(&self, group: &Group, reader: &Nest) -> bool {
        group.iter().any(|writer| self.meets(writer, reader, false))
    }

    /// Whether one nest writes bytes that another reads: for a nest and itself, elsewhere than at the same element.
    fn meets(&self, writer: &Nest, reader: &Nest, is_same: bool) -> bool {
        let dag = &self.lower.dag;
        let reads = dag.reachable(reader.inputs());
        reads.iter().any(|&node| {
            let Node::Load { array, offset, mark } = dag.nodes[node] else { return false };
            writer.stores.iter().any(|store| {
                let is_own = mark.is_some() && array == store.array;
                !is_own && self.overlap(array, store.array) && !(is_same && self.is_at(array, offset, store))
            })
        })
    }

    /// Whether a load is of the bytes that a store writes.
    fn is_at(&self, array: ArrayId, offset: NodeId, store: &Store) -> bool {
        let width = |array: ArrayId| self.lower.arrays[array].element_type.byte_width();
        self.bytes(array) == self.bytes(store.array) && width(array) == width(store.array) && offset == store.offset
    }

    fn overlap(&self, a: ArrayId, b: ArrayId) -> bool {
        match (self.bytes(a), self.bytes(b)) {
            (Some(a), Some(b)) => a.0 == b.0 && a.1 < b.2 && b.1 < a.2,
            _ => false,
        }
    }

    /// Whether a nest only writes what is there.
    fn is_idle(&self, nest: &Nest) -> bool {
        nest.stores.iter().all(|store| match self.lower.dag.nodes[store.value] {
            Node::Load { array, offset, .. } => {
                let types = [array, store.array].map(|a| self.lower.arrays[a].element_type);
                types[0] == types[1] && self.is_at(array, offset, store)
            }
            _ => false,
        })
    }
}

/// Whether an operation is a `topk`, under either name.
fn is_top_k(op: &Op) -> bool {
    match op {
        Op::TopK { .. } => true,
        Op::CustomCall(call) => matches!(&*call.target, "TopK" | "topk"),
        _ => false,
    }
}

impl Nest {
    fn new(levels: Vec<Level>, stores: Vec<Store>) -> Nest {
        Nest { levels, stores, tiling: Tiling::default() }
    }

    /// The expressions that a nest computes.
    pub(crate) fn inputs(&self) -> Vec<NodeId> {
        let of_levels = self.levels.iter().filter_map(|level| match *level {
            Level::If { condition, .. } | Level::Unless { condition, .. } => Some(condition),
            Level::Down { from, .. } => Some(from),
            _ => None,
        });
        self.stores.iter().flat_map(|s| [s.offset, s.value]).chain(of_levels).collect()
    }
}

impl Kernel {
    /// A copy of an array in another layout, of operand 0 to result 0.
    pub(crate) fn relayout(
        module: &Module,
        id: InstructionId,
        from: &ArrayShape,
        to: &ArrayShape,
    ) -> Result<Kernel, Refusal> {
        let mut lower = Lower::new(module);
        let source = lower.array(id, "from".to_string(), from, ArrayPlace::Operand(0))?;
        let target = lower.array(id, "to".to_string(), to, ArrayPlace::Result(0))?;
        let leaves = Leaves { operands: vec![Given::Nothing], results: vec![None] };
        let mut builder = Builder { lower, leaves: &leaves, id, results: vec![target] };
        let (levels, rows) = builder.loops_over(&to.dimensions, target);
        let value = builder.lower.load(source, &rows);
        let offset = builder.lower.offset(target, &rows);
        let nest = Nest::new(levels, vec![Store { array: target, offset, value }]);
        Ok(Kernel { dag: builder.lower.dag, arrays: builder.lower.arrays, nests: vec![nest], is_relayout: true })
    }
}
