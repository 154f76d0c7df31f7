//! Each operation's constraints on the dimensions of its operands and result.

use super::{DimensionId, Dimensions, FactorList, Relation, RelationKind};
use memplan_ir::indexing::operands_read;
use memplan_ir::{
    Access, Convolution, Instruction, InstructionId, Module, Op, PaddingDimension, PositionId,
    ScatterDimensions, SliceDimension, Window, WindowDimension,
};

/// Applies the rules of every instruction of the module.
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

            Op::Reshape { .. } => {
                self.same_product(self.dimensions.of_array(operand(0)), self.dimensions.of_array(self.id))
            }
            Op::Broadcast { .. }
            | Op::Transpose { .. }
            | Op::DynamicSlice { .. }
            | Op::DynamicUpdateSlice
            | Op::Gather(_)
            | Op::TopK { .. }
            | Op::Dot(_) => self.by_index(),
            Op::Slice { dimensions } => self.slice(dimensions),
            Op::Pad { dimensions } => self.pad(dimensions),
            Op::Concatenate { dimension } => self.concatenate(*dimension as usize),
            Op::Scatter(scatter) => self.scatter(scatter),
            Op::Reduce { .. } => {
                self.by_index();
                let arrays = &instruction.operands[..instruction.operands.len() / 2];
                arrays.iter().for_each(|&array| self.same_values(array, operand(0)));
            }
            Op::ReduceWindow(window) => self.reduce_window(window),
            Op::SelectAndScatter(window) => self.select_and_scatter(window),
            Op::Convolution(convolution) => self.convolution(convolution),
            Op::Fft { lengths, .. } => {
                self.by_index();
                let batch = self.extents(self.id).len() - lengths.len();
                self.hold_from(operand(0), batch);
                self.hold_from(self.id, batch);
            }
            Op::BitcastConvert => self.bits(),
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

    fn relate(&mut self, from: Vec<DimensionId>, to: DimensionId, kind: RelationKind) {
        self.dimensions.relations.push(Relation { instruction: self.id, from, to, kind });
    }

    /// Dimensions are equal if their indices and lengths are equal: a part as long as its array stays so at any length.
    /// Summed dimensions are equal, too.
    fn by_index(&mut self) {
        let result: Vec<PositionId> = self.dimensions.positions.of(self.id).collect();
        let leaves = if self.module.shape(self.id).is_tuple() { &result[1..] } else { &result[..] };
        let mut of_loop: Vec<Option<DimensionId>> = Vec::new();
        for (&operand, map) in self.instruction.operands.iter().zip(operands_read(self.module, self.id)) {
            let Some(map) = map else { continue };
            of_loop.resize(map.loops.len(), None);
            for (l, known) in of_loop.iter_mut().enumerate() {
                let Some(e) = map.dimension_along(l) else { continue };
                let from = self.at(operand, e);
                if l < map.rank {
                    leaves
                        .iter()
                        .for_each(|&leaf| self.same(from, self.dimensions.of(leaf).start + l as u32));
                } else {
                    let other = *known.get_or_insert(from);
                    self.same(other, from);
                }
            }
        }
    }

    // -- Values that are passed on.

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

    /// Elements stay where they are. Those of another width have one more dimension, which counts the parts of an element.
    fn bits(&mut self) {
        let operand = self.instruction.operands[0];
        let [from, to] = [operand, self.id].map(|id| self.dimensions.of_array(id));
        let rank = from.len().min(to.len());
        from.zip(to).for_each(|(from, to)| self.same(from, to));
        [operand, self.id].into_iter().for_each(|id| self.hold_from(id, rank));
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
        self.by_index();
        let operand = self.instruction.operands[0];
        for (d, slice) in dimensions.iter().enumerate() {
            if *slice != (SliceDimension { start: 0, limit: self.extents(operand)[d], stride: 1 }) {
                self.relate(vec![self.at(operand, d)], self.at(self.id, d), RelationKind::Slice(*slice));
            }
        }
    }

    fn pad(&mut self, dimensions: &[PaddingDimension]) {
        self.by_index();
        let operand = self.instruction.operands[0];
        for (d, padding) in dimensions.iter().enumerate() {
            if *padding != PaddingDimension::default() {
                self.relate(vec![self.at(operand, d)], self.at(self.id, d), RelationKind::Pad(*padding));
            }
        }
    }

    fn concatenate(&mut self, dimension: usize) {
        self.by_index();
        let operands = &self.instruction.operands;
        if operands.len() > 1 {
            let from = operands.iter().map(|&operand| self.at(operand, dimension)).collect();
            self.relate(from, self.at(self.id, dimension), RelationKind::Concatenation);
        }
    }

    fn scatter(&mut self, scatter: &ScatterDimensions) {
        self.by_index();
        let n = (self.instruction.operands.len() - 1) / 2;
        for k in 0..n {
            let (operand, update) = (self.instruction.operands[k], self.instruction.operands[n + 1 + k]);
            self.room(scatter, operand, update);
        }
    }

    /// If there are at least as many positions as updates, the program makes room for all of them.
    fn room(&mut self, scatter: &ScatterDimensions, operand: InstructionId, update: InstructionId) {
        let is_batch = |d: &usize| !scatter.update_window_dims.contains(&(*d as i64));
        let batch: Vec<usize> = (0..self.extents(update).len()).filter(is_batch).collect();
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

    // -- Windows and products.

    fn reduce_window(&mut self, window: &Window) {
        self.by_index();
        let n = self.instruction.operands.len() / 2;
        let result: Vec<PositionId> = self.dimensions.positions.of(self.id).collect();
        let leaves = if self.module.shape(self.id).is_tuple() { &result[1..] } else { &result[..] };
        for (&operand, &leaf) in self.instruction.operands[..n].iter().zip(leaves) {
            for (d, window) in window.dimensions.iter().enumerate().filter(|(_, window)| !window.is_still()) {
                let (from, to) = (self.at(operand, d), self.dimensions.of(leaf).start + d as u32);
                match is_prefix(window, self.extents(operand)[d]) {
                    true => self.same(from, to),
                    false => self.relate(vec![from], to, RelationKind::Window(*window)),
                }
            }
        }
    }

    fn select_and_scatter(&mut self, window: &Window) {
        self.by_index();
        let [operand, source] = [self.instruction.operands[0], self.instruction.operands[1]];
        self.same_values(operand, self.id);
        for (d, window) in window.dimensions.iter().enumerate().filter(|(_, window)| !window.is_still()) {
            self.relate(vec![self.at(operand, d)], self.at(source, d), RelationKind::Window(*window));
        }
    }

    fn convolution(&mut self, convolution: &Convolution) {
        self.by_index();
        let [input, kernel] = [self.instruction.operands[0], self.instruction.operands[1]];
        let Convolution { dimensions: labels, feature_group_count, batch_group_count, .. } = convolution;
        // Groups are counted by attributes, which no resize follows.
        if *feature_group_count != 1 {
            self.hold(self.at(input, labels.input_feature as usize));
            self.hold(self.at(kernel, labels.kernel_input_feature as usize));
            self.hold(self.at(kernel, labels.kernel_output_feature as usize));
        }
        if *batch_group_count != 1 {
            self.hold(self.at(input, labels.input_batch as usize));
            self.hold(self.at(self.id, labels.output_batch as usize));
            self.hold(self.at(kernel, labels.kernel_output_feature as usize));
        }
        for (i, window) in convolution.window.dimensions.iter().enumerate().filter(|(_, it)| !it.is_still()) {
            let from = self.at(input, labels.input_spatial[i] as usize);
            let size = self.at(kernel, labels.kernel_spatial[i] as usize);
            let to = self.at(self.id, labels.output_spatial[i] as usize);
            self.relate(vec![from, size], to, RelationKind::Window(*window));
        }
    }
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
