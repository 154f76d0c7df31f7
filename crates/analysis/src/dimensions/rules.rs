//! What each operation says about the dimensions of its operands and of its result.

use super::{DimensionId, Dimensions, FactorList, Relation, RelationKind};
use memplan_ir::{
    Access, Convolution, DotDimensions, GatherDimensions, Instruction, InstructionId, Module, Op,
    PaddingDimension, PositionId, ScatterDimensions, SliceDimension, Window, WindowDimension,
};

/// Lets every instruction of the module say what it knows.
pub(super) fn apply(module: &Module, dimensions: &mut Dimensions) {
    for computation in module.computations.values() {
        for &id in &computation.instructions {
            let instruction = &module.instructions[id];
            Rules { module, dimensions, id, instruction }.apply();
        }
    }
}

struct Rules<'a> {
    module: &'a Module,
    dimensions: &'a mut Dimensions,
    id: InstructionId,
    instruction: &'a Instruction,
}

impl Rules<'_> {
    /// The table.
    fn apply(&mut self) {
        let instruction = self.instruction;
        let operand = |i: usize| instruction.operands[i];
        match &instruction.op {
            Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Iota { .. }
            | Op::AfterAll
            | Op::ReplicaId
            | Op::PartitionId
            | Op::Rng { .. }
            | Op::RngGetAndUpdateState { .. }
            | Op::GetDimensionSize { .. } => {}
            Op::RngBitGenerator { .. } => self.state(),

            Op::Copy
            | Op::OptimizationBarrier
            | Op::AddDependency
            | Op::Domain(_)
            | Op::Reverse { .. }
            | Op::SetDimensionSize { .. }
            | Op::TriangularSolve(_)
            | Op::Cholesky { .. }
            | Op::CollectiveBroadcast(_)
            | Op::CollectivePermute(_) => {
                self.same_values(operand(instruction.operands.len().min(1) - 1), self.id)
            }
            Op::Sort { .. } | Op::AllReduce(_) => self.leaf_by_leaf(),
            Op::Tuple => self.tuple(),
            Op::GetTupleElement { index } => self.element(*index),
            Op::Call { .. } | Op::Fusion(_) => self.call(),
            Op::While => self.loops(),
            Op::Conditional => self.branches(),
            Op::CustomCall(_) => self.custom_call(),

            Op::Broadcast { dimensions } => {
                for (from, &to) in dimensions.iter().enumerate() {
                    if self.extents(operand(0))[from] == self.extents(self.id)[to as usize] {
                        self.same(self.at(operand(0), from), self.at(self.id, to as usize));
                    }
                }
            }
            Op::Transpose { dimensions } => {
                for (to, &from) in dimensions.iter().enumerate() {
                    self.same(self.at(operand(0), from as usize), self.at(self.id, to));
                }
            }
            Op::Reshape { .. } => self.regroup(operand(0), self.id),
            Op::Slice { dimensions } => self.slice(dimensions),
            Op::Pad { dimensions } => self.pad(dimensions),
            Op::Concatenate { dimension } => self.concatenate(*dimension as usize),
            Op::DynamicSlice { .. } => self.where_whole(operand(0), self.id),
            Op::DynamicUpdateSlice => {
                self.same_values(operand(0), self.id);
                self.where_whole(operand(0), operand(1));
            }
            Op::Gather(gather) => self.gather(gather),
            Op::Scatter(scatter) => self.scatter(scatter),
            Op::Reduce { dimensions } => self.reduce(dimensions),
            Op::ReduceWindow(window) => self.reduce_window(window),
            Op::SelectAndScatter(window) => self.select_and_scatter(window),
            Op::TopK { .. } => {
                let positions: Vec<PositionId> = self.dimensions.positions.of(self.id).skip(1).collect();
                for position in positions {
                    self.all_but_last(operand(0), position);
                }
            }
            Op::Dot(dot) => self.dot(&dot.dimensions),
            Op::Convolution(convolution) => self.convolution(convolution),
            Op::Fft { lengths, .. } => {
                let batch = self.extents(self.id).len() - lengths.len();
                (0..batch).for_each(|d| self.same(self.at(operand(0), d), self.at(self.id, d)));
                self.hold_from(operand(0), batch);
                self.hold_from(self.id, batch);
            }
            op if op.traits().access == Access::Elementwise => self.elementwise(),
            _ => self.hold_all(),
        }
    }

    // -- What rules are made of.

    fn extents(&self, id: InstructionId) -> &[i64] {
        self.module.shape(id).as_array().map_or(&[], |array| &array.dimensions)
    }

    fn at(&self, id: InstructionId, dimension: usize) -> DimensionId {
        self.dimensions.of_array(id).start + dimension as u32
    }

    fn list(&self, dimensions: impl IntoIterator<Item = DimensionId>) -> FactorList {
        dimensions.into_iter().filter_map(|d| self.dimensions.factor[d as usize]).collect()
    }

    /// Both extents are one.
    fn same(&mut self, a: DimensionId, b: DimensionId) {
        self.same_product([a], [b]);
    }

    /// The elements of both are the same in row-major order.
    fn same_product(
        &mut self,
        a: impl IntoIterator<Item = DimensionId> + Clone,
        b: impl IntoIterator<Item = DimensionId> + Clone,
    ) {
        let lists = (self.list(a.clone()), self.list(b.clone()));
        if self.dimensions.factors.unify(&lists.0, &lists.1).is_err() {
            a.into_iter().chain(b).for_each(|dimension| self.hold(dimension));
        }
    }

    fn hold(&mut self, dimension: DimensionId) {
        if self.dimensions.factor[dimension as usize].is_some() {
            self.dimensions.held.push((dimension, self.id));
        }
    }

    fn hold_from(&mut self, id: InstructionId, first: usize) {
        let all = self.dimensions.of_array(id);
        (all.start + first as u32..all.end).for_each(|dimension| self.hold(dimension));
    }

    /// Nothing is known about this operation.
    fn hold_all(&mut self) {
        for id in self.instruction.operands.iter().copied().chain([self.id]) {
            let all: Vec<PositionId> = self.dimensions.positions.of(id).collect();
            for position in all {
                self.dimensions.of(position).for_each(|dimension| self.hold(dimension));
            }
        }
    }

    fn same_arrays(&mut self, a: PositionId, b: PositionId) {
        let (a, b) = (self.dimensions.of(a), self.dimensions.of(b));
        if a.len() == b.len() {
            a.zip(b).for_each(|(a, b)| self.same(a, b));
        }
    }

    /// Every array of one value is as large as that of the other.
    fn same_values(&mut self, a: InstructionId, b: InstructionId) {
        let positions = &self.dimensions.positions;
        let pairs: Vec<_> = positions.of(a).zip(positions.of(b)).collect();
        pairs.into_iter().for_each(|(a, b)| self.same_arrays(a, b));
    }

    fn regroup(&mut self, a: InstructionId, b: InstructionId) {
        self.same_product(self.dimensions.of_array(a), self.dimensions.of_array(b));
    }

    fn relate(&mut self, from: Vec<DimensionId>, to: DimensionId, kind: RelationKind) {
        self.dimensions.relations.push(Relation { instruction: self.id, from, to, kind });
    }

    /// Where a part of an array is as long as the array, it is so whatever the length.
    fn where_whole(&mut self, array: InstructionId, part: InstructionId) {
        for d in 0..self.extents(array).len() {
            if self.extents(array)[d] == self.extents(part)[d] {
                self.same(self.at(array, d), self.at(part, d));
            }
        }
    }

    fn all_but_last(&mut self, operand: InstructionId, result: PositionId) {
        let (from, to) = (self.dimensions.of_array(operand), self.dimensions.of(result));
        if from.len() == to.len() && !from.is_empty() {
            (from.start..from.end - 1).zip(to).for_each(|(from, to)| self.same(from, to));
        }
    }

    // -- Values that are handed on.

    fn elementwise(&mut self) {
        let rank = self.extents(self.id).len();
        for &operand in &self.instruction.operands {
            match self.extents(operand).len() {
                0 => {}
                n if n == rank => self.same_values(operand, self.id),
                _ => self.hold_all(),
            }
        }
    }

    /// The first element of the result is what the operand was before.
    fn state(&mut self) {
        let state = self.dimensions.positions.root(self.instruction.operands[0]);
        if let Some(position) = self.dimensions.positions.of(self.id).nth(1) {
            self.same_arrays(state, position);
        }
    }

    /// Each operand is as large as the part of the result with its number, and all are alike.
    fn leaf_by_leaf(&mut self) {
        let result: Vec<PositionId> = self.dimensions.positions.of(self.id).collect();
        let leaves = if self.module.shape(self.id).is_tuple() { &result[1..] } else { &result[..] };
        for (&operand, &leaf) in self.instruction.operands.iter().zip(leaves) {
            self.same_arrays(self.dimensions.positions.root(operand), leaf);
            if matches!(self.instruction.op, Op::Sort { .. }) {
                self.same_arrays(leaf, leaves[0]);
            }
        }
    }

    fn tuple(&mut self) {
        let whole = self.dimensions.positions.root(self.id);
        let parts: Vec<PositionId> = self.dimensions.positions.subtree(whole).skip(1).collect();
        let mut rest = parts.into_iter();
        for &operand in &self.instruction.operands {
            let own: Vec<PositionId> = self.dimensions.positions.of(operand).collect();
            for (a, b) in own.into_iter().zip(rest.by_ref()) {
                self.same_arrays(a, b);
            }
        }
    }

    fn element(&mut self, index: u32) {
        let positions = &self.dimensions.positions;
        let tuple = self.instruction.operands[0];
        let preorder = positions.tree(tuple).children(0)[index as usize] as usize;
        let part = positions.of(tuple).nth(preorder).expect("the operand has that element");
        let pairs: Vec<_> = positions.subtree(part).zip(positions.of(self.id)).collect();
        pairs.into_iter().for_each(|(a, b)| self.same_arrays(a, b));
    }

    fn call(&mut self) {
        for &called in &self.instruction.called {
            let callee = &self.module.computations[called];
            for (&operand, &parameter) in self.instruction.operands.iter().zip(&callee.parameters) {
                self.same_values(operand, parameter);
            }
            self.same_values(callee.root, self.id);
        }
    }

    fn loops(&mut self) {
        let init = self.instruction.operands[0];
        self.same_values(init, self.id);
        for &called in &self.instruction.called {
            self.same_values(init, self.module.computations[called].parameters[0]);
        }
        let body = self.instruction.called[0];
        self.same_values(init, self.module.computations[body].root);
    }

    fn branches(&mut self) {
        for (&called, &operand) in self.instruction.called.iter().zip(&self.instruction.operands[1..]) {
            let branch = &self.module.computations[called];
            self.same_values(operand, branch.parameters[0]);
            self.same_values(branch.root, self.id);
        }
    }

    /// Whatever a custom call does, most that JAX makes hand an array on with a note. Of others nothing is known.
    fn custom_call(&mut self) {
        let is_note = |operand: &InstructionId| {
            self.module.shape(*operand).same_ignoring_layout(self.module.shape(self.id))
        };
        match self.instruction.operands.as_slice() {
            [operand] if is_note(operand) => self.same_values(*operand, self.id),
            _ => self.hold_all(),
        }
    }

    // -- Parts of arrays.

    fn slice(&mut self, dimensions: &[SliceDimension]) {
        let operand = self.instruction.operands[0];
        for (d, slice) in dimensions.iter().enumerate() {
            let (from, to) = (self.at(operand, d), self.at(self.id, d));
            match *slice == (SliceDimension { start: 0, limit: self.extents(operand)[d], stride: 1 }) {
                true => self.same(from, to),
                false => self.relate(vec![from], to, RelationKind::Slice(*slice)),
            }
        }
    }

    fn pad(&mut self, dimensions: &[PaddingDimension]) {
        let operand = self.instruction.operands[0];
        for (d, padding) in dimensions.iter().enumerate() {
            let (from, to) = (self.at(operand, d), self.at(self.id, d));
            match *padding == PaddingDimension::default() {
                true => self.same(from, to),
                false => self.relate(vec![from], to, RelationKind::Pad(*padding)),
            }
        }
    }

    fn concatenate(&mut self, dimension: usize) {
        let operands = &self.instruction.operands;
        for d in 0..self.extents(self.id).len() {
            let from: Vec<DimensionId> = operands.iter().map(|&operand| self.at(operand, d)).collect();
            let to = self.at(self.id, d);
            match d == dimension && from.len() > 1 {
                true => self.relate(from, to, RelationKind::Concatenation),
                false => from.into_iter().for_each(|from| self.same(from, to)),
            }
        }
    }

    fn gather(&mut self, gather: &GatherDimensions) {
        let [operand, indices] = [self.instruction.operands[0], self.instruction.operands[1]];
        let is_in_window = |d: &usize| {
            let d = &(*d as i64);
            !gather.collapsed_slice_dims.contains(d) && !gather.operand_batching_dims.contains(d)
        };
        let window = (0..self.extents(operand).len()).filter(is_in_window);
        for (d, &to) in window.zip(&gather.offset_dims) {
            if gather.slice_sizes[d] == self.extents(operand)[d] {
                self.same(self.at(operand, d), self.at(self.id, to as usize));
            }
        }
        let rank = self.extents(self.id).len();
        let batch = (0..rank).filter(|&d| !gather.offset_dims.contains(&(d as i64)));
        self.same_each(
            indices,
            index_dimensions(self.extents(indices).len(), gather.index_vector_dim),
            self.id,
            batch,
        );
        let pair = |list: &[i64]| list.iter().map(|&d| d as usize).collect::<Vec<_>>();
        let batching = pair(&gather.start_indices_batching_dims);
        self.same_each(operand, pair(&gather.operand_batching_dims), indices, batching);
    }

    fn scatter(&mut self, scatter: &ScatterDimensions) {
        let n = (self.instruction.operands.len() - 1) / 2;
        let indices = self.instruction.operands[n];
        let result: Vec<PositionId> = self.dimensions.positions.of(self.id).collect();
        let leaves = if self.module.shape(self.id).is_tuple() { &result[1..] } else { &result[..] };
        let list = |list: &[i64]| list.iter().map(|&d| d as usize).collect::<Vec<_>>();
        for (k, &leaf) in leaves.iter().enumerate() {
            let (operand, update) = (self.instruction.operands[k], self.instruction.operands[n + 1 + k]);
            self.same_arrays(self.dimensions.positions.root(operand), leaf);
            let is_in_window = |d: &usize| {
                let d = &(*d as i64);
                !scatter.inserted_window_dims.contains(d) && !scatter.input_batching_dims.contains(d)
            };
            let window = (0..self.extents(operand).len()).filter(is_in_window);
            for (d, &from) in window.zip(&scatter.update_window_dims) {
                if self.extents(operand)[d] == self.extents(update)[from as usize] {
                    self.same(self.at(operand, d), self.at(update, from as usize));
                }
            }
            let rank = self.extents(update).len();
            let batch: Vec<usize> =
                (0..rank).filter(|&d| !scatter.update_window_dims.contains(&(d as i64))).collect();
            let of_indices = index_dimensions(self.extents(indices).len(), scatter.index_vector_dim);
            self.same_each(indices, of_indices, update, batch.iter().copied());
            let batching = list(&scatter.scatter_indices_batching_dims);
            self.same_each(operand, list(&scatter.input_batching_dims), indices, batching);
            self.room(scatter, operand, update, &batch);
        }
    }

    /// Where there are at least as many places as updates, the program makes room for all of them.
    fn room(
        &mut self,
        scatter: &ScatterDimensions,
        operand: InstructionId,
        update: InstructionId,
        batch: &[usize],
    ) {
        let places = scatter.inserted_window_dims.iter().map(|&d| self.extents(operand)[d as usize]);
        let updates = batch.iter().map(|&d| self.extents(update)[d]);
        let product = |extents: &mut dyn Iterator<Item = i64>| extents.fold(1, i64::saturating_mul);
        if product(&mut { places }) < product(&mut { updates }) {
            return;
        }
        let from: Vec<DimensionId> = batch.iter().map(|&d| self.at(update, d)).collect();
        for &d in &scatter.inserted_window_dims {
            self.relate(from.clone(), self.at(operand, d as usize), RelationKind::Room);
        }
    }

    fn same_each(
        &mut self,
        a: InstructionId,
        of_a: impl IntoIterator<Item = usize>,
        b: InstructionId,
        of_b: impl IntoIterator<Item = usize>,
    ) {
        for (x, y) in of_a.into_iter().zip(of_b) {
            self.same(self.at(a, x), self.at(b, y));
        }
    }

    // -- Reductions and products.

    fn reduce(&mut self, dimensions: &[i64]) {
        let n = self.instruction.operands.len() / 2;
        let result: Vec<PositionId> = self.dimensions.positions.of(self.id).collect();
        let leaves = if self.module.shape(self.id).is_tuple() { &result[1..] } else { &result[..] };
        for (&operand, &leaf) in self.instruction.operands[..n].iter().zip(leaves) {
            let kept = (0..self.extents(operand).len()).filter(|&d| !dimensions.contains(&(d as i64)));
            let kept: Vec<DimensionId> = kept.map(|d| self.at(operand, d)).collect();
            kept.into_iter().zip(self.dimensions.of(leaf)).for_each(|(from, to)| self.same(from, to));
            self.same_values(operand, self.instruction.operands[0]);
        }
    }

    fn reduce_window(&mut self, window: &Window) {
        let n = self.instruction.operands.len() / 2;
        let result: Vec<PositionId> = self.dimensions.positions.of(self.id).collect();
        let leaves = if self.module.shape(self.id).is_tuple() { &result[1..] } else { &result[..] };
        for (&operand, &leaf) in self.instruction.operands[..n].iter().zip(leaves) {
            for (d, window) in window.dimensions.iter().enumerate() {
                let (from, to) = (self.at(operand, d), self.dimensions.of(leaf).start + d as u32);
                match is_still(window) || is_prefix(window, self.extents(operand)[d]) {
                    true => self.same(from, to),
                    false => self.relate(vec![from], to, RelationKind::Window(*window)),
                }
            }
        }
    }

    fn select_and_scatter(&mut self, window: &Window) {
        let [operand, source] = [self.instruction.operands[0], self.instruction.operands[1]];
        self.same_values(operand, self.id);
        for (d, window) in window.dimensions.iter().enumerate() {
            let (from, to) = (self.at(operand, d), self.at(source, d));
            match is_still(window) {
                true => self.same(from, to),
                false => self.relate(vec![from], to, RelationKind::Window(*window)),
            }
        }
    }

    fn dot(&mut self, dot: &DotDimensions) {
        let [lhs, rhs] = [self.instruction.operands[0], self.instruction.operands[1]];
        let list = |list: &[i64]| list.iter().map(|&d| d as usize).collect::<Vec<_>>();
        self.same_each(lhs, list(&dot.lhs_contracting), rhs, list(&dot.rhs_contracting));
        self.same_each(lhs, list(&dot.lhs_batch), rhs, list(&dot.rhs_batch));
        let free = |id: InstructionId, batch: &[i64], contracting: &[i64]| {
            let is_free = |&d: &usize| !batch.contains(&(d as i64)) && !contracting.contains(&(d as i64));
            (0..self.extents(id).len()).filter(is_free).map(|d| self.at(id, d)).collect::<Vec<_>>()
        };
        let from = dot.lhs_batch.iter().map(|&d| self.at(lhs, d as usize));
        let from = from.chain(free(lhs, &dot.lhs_batch, &dot.lhs_contracting));
        let from: Vec<DimensionId> = from.chain(free(rhs, &dot.rhs_batch, &dot.rhs_contracting)).collect();
        from.into_iter().zip(self.dimensions.of_array(self.id)).for_each(|(from, to)| self.same(from, to));
    }

    fn convolution(&mut self, convolution: &Convolution) {
        let [input, kernel] = [self.instruction.operands[0], self.instruction.operands[1]];
        let Convolution { dimensions: labels, feature_group_count, batch_group_count, .. } = convolution;
        let [input_batch, input_feature] =
            [labels.input_batch, labels.input_feature].map(|d| self.at(input, d as usize));
        let [kernel_in, kernel_out] =
            [labels.kernel_input_feature, labels.kernel_output_feature].map(|d| self.at(kernel, d as usize));
        let [batch, feature] =
            [labels.output_batch, labels.output_feature].map(|d| self.at(self.id, d as usize));
        self.same(kernel_out, feature);
        // Groups are counted by attributes, which no resize follows.
        match *feature_group_count {
            1 => self.same(input_feature, kernel_in),
            _ => [input_feature, kernel_in, kernel_out].into_iter().for_each(|d| self.hold(d)),
        }
        match *batch_group_count {
            1 => self.same(input_batch, batch),
            _ => [input_batch, batch, kernel_out].into_iter().for_each(|d| self.hold(d)),
        }
        for (d, window) in convolution.window.dimensions.iter().enumerate() {
            let from = self.at(input, labels.input_spatial[d] as usize);
            let to = self.at(self.id, labels.output_spatial[d] as usize);
            match is_still(window) {
                true => self.same(from, to),
                false => {
                    let size = self.at(kernel, labels.kernel_spatial[d] as usize);
                    self.relate(vec![from, size], to, RelationKind::Window(*window));
                }
            }
        }
    }
}

/// The dimensions of an array of indices that are not the indices themselves.
fn index_dimensions(rank: usize, vector: i64) -> impl Iterator<Item = usize> {
    (0..rank).filter(move |&d| d as i64 != vector)
}

/// Whether a window has one place for each element, and is on that element.
fn is_still(window: &WindowDimension) -> bool {
    let still = WindowDimension { window_dilation: window.window_dilation, ..WindowDimension::default() };
    WindowDimension { window_reversal: false, ..*window } == still
}

/// Whether a window takes in everything up to an element, or from it on, as sums over prefixes do.
fn is_prefix(window: &WindowDimension, extent: i64) -> bool {
    prefix_windows(extent).contains(window)
}

/// The windows that take in everything up to an element, and everything from it on.
pub fn prefix_windows(extent: i64) -> [WindowDimension; 2] {
    let all = WindowDimension { size: extent, ..WindowDimension::default() };
    [WindowDimension { padding_low: extent - 1, ..all }, WindowDimension { padding_high: extent - 1, ..all }]
}
