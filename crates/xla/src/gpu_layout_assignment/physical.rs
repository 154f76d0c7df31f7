//! Dimensions in the order that was chosen for them, so that all arrays are row-major again (`LayoutNormalization`).
//!
//! An operand that is asked for in another order becomes a transpose. A transpose or reshape that is another view of the
//! same bytes becomes a reshape.

use cranelift_entity::SecondaryMap;
use memplan_ir::{
    ArrayShape, ComputationId, Cursor, Dimensions, DotDimensions, DotOperand, GatherDimensions, Insert,
    InstructionId, Module, Names, Op, Shape,
};
use memplan_rewriter::views::inverse;
use rustc_hash::FxHashMap;
use smallvec::smallvec;

use super::orders::{Leaves, Order, Orders, aligned, is_unusual, row_major};

/// Gives every array its order.
pub(super) fn put_in_order(module: &mut Module, orders: Orders) {
    let mut names = Names::new(module);
    let computations: Vec<ComputationId> = module.computations.keys().collect();
    let Orders { of, operands, results } = orders;
    let mut physical =
        Physical { module, names: &mut names, orders: of, operands, copies: FxHashMap::default() };
    for computation in computations {
        physical.copies.clear();
        for id in physical.module.computations[computation].instructions.clone() {
            if !physical.orders[id].is_empty() {
                physical.write(id);
            }
        }
        let root = physical.module.computations[computation].root;
        let n_leaves = physical.module.shape(root).leaf_count();
        let is_known = physical.orders[root].len() == n_leaves && n_leaves > 0;
        if is_known {
            let result = match results.get(&computation) {
                Some(result) => result.clone(),
                None => physical.row_major_of(root),
            };
            let root = physical.in_orders(root, &result);
            physical.module.computations[computation].root = root;
        }
        without_empty_views(physical.module, computation);
    }
}

/// Drops views of a whole array as it is, and lists a new root and all that it needs.
fn without_empty_views(module: &mut Module, computation: ComputationId) {
    let source = |module: &Module, mut id: InstructionId| {
        while let instruction = &module.instructions[id]
            && matches!(instruction.op, Op::Reshape { .. })
            && module.instructions[instruction.operands[0]].shape == instruction.shape
        {
            id = instruction.operands[0];
        }
        id
    };
    let root = source(module, module.computations[computation].root);
    module.computations[computation].root = root;
    if !module.computations[computation].instructions.contains(&root) {
        module.computations[computation].instructions.push(root);
    }
    module.put_operands_first(computation);
    for id in module.computations[computation].instructions.clone() {
        for number in 0..module.instructions[id].operands.len() {
            let operand = module.instructions[id].operands[number];
            module.instructions[id].operands[number] = source(module, operand);
        }
    }
}

struct Physical<'m> {
    module: &'m mut Module,
    names: &'m mut Names,
    orders: SecondaryMap<InstructionId, Leaves>,
    operands: FxHashMap<(InstructionId, usize), Leaves>,
    copies: FxHashMap<(InstructionId, Leaves), InstructionId>,
}

impl Physical<'_> {
    /// Writes an instruction whose operands are in their orders, and whose shape is still that of the program.
    fn write(&mut self, id: InstructionId) {
        for number in 0..self.module.instructions[id].operands.len() {
            if let Some(asked) = self.operands.get(&(id, number)).cloned() {
                self.set_operand(id, number, &asked);
            }
        }
        let op = self.module.instructions[id].op.clone();
        let order = self.orders[id][0].clone();
        let places = inverse(&order);
        let place = |d: &i64| places[*d as usize];
        match op {
            Op::Constant(_) => self.finish(id, row_major(order.len())),
            Op::Iota { dimension } => {
                self.module.instructions[id].op = Op::Iota { dimension: place(&dimension) };
                self.finish(id, order);
            }
            Op::Broadcast { dimensions } => self.broadcast(id, &dimensions),
            Op::Transpose { dimensions } => {
                let operand = self.module.instructions[id].operands[0];
                let becomes = inverse(&dimensions);
                let natural = self.orders[operand][0].iter().map(|&d| becomes[d as usize]).collect();
                self.module.instructions[id].op = Op::Reshape { inferred_dimension: None };
                self.finish(id, natural);
            }
            Op::Reshape { .. } => self.reshape(id),
            Op::Reduce { dimensions } => self.reduce(id, &dimensions),
            Op::Dot(_) => self.dot(id),
            Op::Gather(_) => self.gather(id),
            Op::Scatter(_) => self.scatter(id),
            Op::Tuple
            | Op::GetTupleElement { .. }
            | Op::While
            | Op::Conditional
            | Op::Parameter { .. }
            | Op::OptimizationBarrier
            | Op::AddDependency => self.set_shape(id),
            _ => {
                self.all_in_order(id, &order);
                let instruction = &mut self.module.instructions[id];
                let reorder = |values: &Dimensions| order.iter().map(|&d| values[d as usize]).collect();
                match &mut instruction.op {
                    Op::DynamicSlice { slice_sizes } => {
                        *slice_sizes = reorder(slice_sizes);
                        permute(&mut instruction.operands[1..], &order);
                    }
                    Op::DynamicUpdateSlice => permute(&mut instruction.operands[2..], &order),
                    Op::Slice { dimensions } => permute(dimensions, &order),
                    Op::Pad { dimensions } => permute(dimensions, &order),
                    Op::ReduceWindow(window) | Op::SelectAndScatter(window) => {
                        permute(&mut window.dimensions, &order)
                    }
                    Op::Concatenate { dimension } => *dimension = place(dimension),
                    Op::Reverse { dimensions } => dimensions.iter_mut().for_each(|d| *d = place(d)),
                    _ => {}
                }
                self.set_shape(id);
            }
        }
    }

    /// Reads all operands of the result's rank in its order.
    fn all_in_order(&mut self, id: InstructionId, order: &Order) {
        for number in 0..self.module.instructions[id].operands.len() {
            let operand = self.module.instructions[id].operands[number];
            if self.module.shape(operand).as_array().is_some_and(|array| array.rank() == order.len()) {
                self.set_operand(id, number, &smallvec![order.clone()]);
            }
        }
    }

    fn broadcast(&mut self, id: InstructionId, dimensions: &Dimensions) {
        let operand = self.module.instructions[id].operands[0];
        let order = self.orders[id][0].clone();
        let places = inverse(&order);
        let mut of_operand: Order = row_major(dimensions.len());
        of_operand.sort_by_key(|&d| places[dimensions[d as usize] as usize]);
        if self.module.shape(operand).as_array().is_some_and(|array| array.rank() > 0) {
            self.set_operand(id, 0, &smallvec![of_operand.clone()]);
        }
        let dimensions = of_operand.iter().map(|&d| places[dimensions[d as usize] as usize]).collect();
        self.module.instructions[id].op = Op::Broadcast { dimensions };
        self.set_shape(id);
    }

    /// `ReshapeDecomposer`: a view of the operand or of a copy, or a copy of a view.
    fn reshape(&mut self, id: InstructionId) {
        let operand = self.module.instructions[id].operands[0];
        let to = self.module.shape(id).as_array().expect("arrays are reshaped").clone();
        let from_order = self.orders[operand][0].clone();
        let from = logical(self.module, operand, &from_order);
        let order = self.orders[id][0].clone();
        let long = |array: &ArrayShape, order: &Order| -> Order {
            order.iter().copied().filter(|&d| array.dimensions[d as usize] != 1).collect()
        };
        let is_view = |from: &ArrayShape, from_order: &Order, to: &ArrayShape, order: &Order| {
            long(from, from_order).len() <= 1 && long(to, order).len() <= 1
                || aligned(from, from_order, to).is_some_and(|found| long(to, &found) == long(to, order))
        };
        let natural = if is_view(&from, &from_order, &to, &order) {
            order
        } else if let Some(of_operand) = aligned(&to, &order, &from) {
            self.set_operand(id, 0, &smallvec![of_operand]);
            order
        } else if let Some(natural) = aligned(&from, &from_order, &to) {
            natural
        } else {
            let of_operand = row_major(from.rank());
            self.set_operand(id, 0, &smallvec![of_operand]);
            row_major(to.rank())
        };
        self.finish(id, natural);
    }

    fn reduce(&mut self, id: InstructionId, dimensions: &Dimensions) {
        let first = self.module.instructions[id].operands[0];
        let of_operand = self.orders[first][0].clone();
        let n_arrays = self.module.instructions[id].operands.len() / 2;
        for number in 1..n_arrays {
            self.set_operand(id, number, &smallvec![of_operand.clone()]);
        }
        let places = inverse(&of_operand);
        let mut reduced: Dimensions = dimensions.iter().map(|&d| places[d as usize]).collect();
        reduced.sort_unstable();
        self.module.instructions[id].op = Op::Reduce { dimensions: reduced };
        let kept: Order = (0..of_operand.len() as i64).filter(|d| !dimensions.contains(d)).collect();
        let number = |d: &i64| kept.iter().position(|kept| kept == d).map(|at| at as i64);
        self.finish(id, of_operand.iter().filter_map(number).collect());
    }

    fn dot(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        let Op::Dot(mut dot) = instruction.op.clone() else { return };
        let [left, right] = [instruction.operands[0], instruction.operands[1]];
        let order = self.orders[id][0].clone();
        let n_batch = dot.dimensions.lhs_batch.len();
        let rank_of = |id| self.orders[id][0].len();
        let n_rows = dot.dimensions.free(DotOperand::Lhs, rank_of(left)).len();
        let n_columns = dot.dimensions.free(DotOperand::Rhs, rank_of(right)).len();
        let physical = |dimensions: &Dimensions, operand: InstructionId| -> Dimensions {
            let places = inverse(&self.orders[operand][0]);
            dimensions.iter().map(|&d| places[d as usize]).collect()
        };
        // The rows and columns in the orders that operands have.
        let free = |side: DotOperand, operand: InstructionId, first: usize| -> Order {
            let free = dot.dimensions.free(side, rank_of(operand));
            let of_operand = self.orders[operand][0].iter();
            let number = |d: &i64| free.iter().position(|free| free == d).map(|at| (first + at) as i64);
            of_operand.filter_map(number).collect()
        };
        let rows = free(DotOperand::Lhs, left, n_batch);
        let columns = free(DotOperand::Rhs, right, n_batch + n_rows);
        let mut dimensions = DotDimensions {
            lhs_contracting: physical(&dot.dimensions.lhs_contracting, left),
            rhs_contracting: physical(&dot.dimensions.rhs_contracting, right),
            lhs_batch: physical(&dot.dimensions.lhs_batch, left),
            rhs_batch: physical(&dot.dimensions.rhs_batch, right),
        };
        let batch: Order = order.iter().copied().filter(|&d| d < n_batch as i64).collect();
        let in_batches = |dimensions: &Dimensions| batch.iter().map(|&d| dimensions[d as usize]).collect();
        dimensions.lhs_batch = in_batches(&dimensions.lhs_batch);
        dimensions.rhs_batch = in_batches(&dimensions.rhs_batch);
        let columns_first = n_rows > 0
            && n_columns > 0
            && order.iter().position(|&d| d == columns[0]) < order.iter().position(|&d| d == rows[0]);
        let natural: Order = match columns_first {
            true => [&batch[..], &columns, &rows].concat().into(),
            false => [&batch[..], &rows, &columns].concat().into(),
        };
        if columns_first {
            std::mem::swap(&mut dimensions.lhs_batch, &mut dimensions.rhs_batch);
            std::mem::swap(&mut dimensions.lhs_contracting, &mut dimensions.rhs_contracting);
            dot.precision.operand_precision.reverse();
            self.module.instructions[id].operands.swap(0, 1);
        }
        dot.dimensions = dimensions;
        self.module.instructions[id].op = Op::Dot(dot);
        self.finish(id, natural);
    }

    fn gather(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        let Op::Gather(numbers) = instruction.op.clone() else { return };
        let [operand, indices] = [instruction.operands[0], instruction.operands[1]];
        let indices_in_order = self.row_major_of(indices);
        self.set_operand(id, 1, &indices_in_order);
        let of_operand = self.orders[operand][0].clone();
        let places = inverse(&of_operand);
        let place = |dimensions: &Dimensions| -> Dimensions {
            dimensions.iter().map(|&d| places[d as usize]).collect()
        };
        let is_dropped =
            |d: &i64| numbers.collapsed_slice_dims.contains(d) || numbers.operand_batching_dims.contains(d);
        let rank = self.module.shape(id).as_array().map_or(0, ArrayShape::rank);
        let natural = window_order(rank, &numbers.offset_dims, &of_operand, is_dropped);
        let mut collapsed_slice_dims = place(&numbers.collapsed_slice_dims);
        collapsed_slice_dims.sort_unstable();
        let gather = GatherDimensions {
            collapsed_slice_dims,
            start_index_map: place(&numbers.start_index_map),
            operand_batching_dims: place(&numbers.operand_batching_dims),
            slice_sizes: of_operand.iter().map(|&d| numbers.slice_sizes[d as usize]).collect(),
            ..*numbers
        };
        let Some(gather) = with_sorted_batches(gather) else {
            // Batches of the table in another order than those of the indices.
            let of_operand = self.row_major_of(operand);
            self.set_operand(id, 0, &of_operand);
            return self.finish(id, row_major(rank));
        };
        self.module.instructions[id].op = Op::Gather(Box::new(gather));
        self.finish(id, natural);
    }

    fn scatter(&mut self, id: InstructionId) {
        let instruction = &self.module.instructions[id];
        let Op::Scatter(mut numbers) = instruction.op.clone() else { return };
        let n_arrays = instruction.operands.len() / 2;
        let mut order = self.orders[id][0].clone();
        if !numbers.input_batching_dims.is_empty() {
            order = row_major(order.len());
        }
        let is_dropped =
            |d: &i64| numbers.inserted_window_dims.contains(d) || numbers.input_batching_dims.contains(d);
        let updates = instruction.operands[n_arrays + 1];
        let n_updates = self.module.shape(updates).as_array().map_or(0, ArrayShape::rank);
        let of_updates = window_order(n_updates, &numbers.update_window_dims, &order, is_dropped);
        let indices = self.row_major_of(instruction.operands[n_arrays]);
        self.set_operand(id, n_arrays, &indices);
        for number in 0..n_arrays {
            self.set_operand(id, number, &smallvec![order.clone()]);
            self.set_operand(id, n_arrays + 1 + number, &smallvec![of_updates.clone()]);
        }
        let places = inverse(&order);
        let place = |dimensions: &Dimensions| -> Dimensions {
            dimensions.iter().map(|&d| places[d as usize]).collect()
        };
        numbers.inserted_window_dims = place(&numbers.inserted_window_dims);
        numbers.inserted_window_dims.sort_unstable();
        numbers.scatter_dims_to_operand_dims = place(&numbers.scatter_dims_to_operand_dims);
        numbers.input_batching_dims = place(&numbers.input_batching_dims);
        self.module.instructions[id].op = Op::Scatter(numbers);
        self.finish(id, order);
    }

    /// Gives an instruction its shape. If it makes its arrays in another order than was chosen, they are transposed.
    fn finish(&mut self, id: InstructionId, natural: Order) {
        if self.orders[id].iter().all(|order| *order == natural) {
            return self.set_shape(id);
        }
        let parent = self.module.instructions[id].parent;
        let operands = self.module.instructions[id].operands.clone();
        let made = Cursor::unlisted(self.module, self.names, parent).copy_of(id, operands);
        let chosen = std::mem::replace(&mut self.orders[id], Leaves::new());
        self.orders[made] = chosen.iter().map(|_| natural.clone()).collect();
        self.set_shape(made);
        let result = self.in_orders(made, &chosen);
        let (op, operands) = {
            let result = &self.module.instructions[result];
            (result.op.clone(), result.operands.clone())
        };
        let shape = self.module.instructions[result].shape;
        let instruction = &mut self.module.instructions[id];
        (instruction.op, instruction.operands, instruction.shape) = (op, operands, shape);
        instruction.called.clear();
        self.orders[id] = chosen;
    }

    fn set_operand(&mut self, id: InstructionId, number: usize, orders: &Leaves) {
        let operand = self.module.instructions[id].operands[number];
        let operand = self.in_orders(operand, orders);
        self.module.instructions[id].operands[number] = operand;
    }

    /// A value in other orders.
    fn in_orders(&mut self, id: InstructionId, orders: &Leaves) -> InstructionId {
        if self.orders[id] == *orders {
            return id;
        }
        let key = (id, orders.clone());
        if let Some(&copy) = self.copies.get(&key) {
            return copy;
        }
        let parent = self.module.instructions[id].parent;
        let copy = match self.module.shape(id).clone() {
            Shape::Tuple(elements) => {
                let mut first = 0;
                let mut copies = Vec::new();
                for (number, element) in elements.iter().enumerate() {
                    let leaves = first..first + element.leaf_count();
                    first = leaves.end;
                    let of_element: Leaves = self.orders[id][leaves.clone()].iter().cloned().collect();
                    let wanted: Leaves = orders[leaves].iter().cloned().collect();
                    let value = match self.module.instructions[id].op {
                        Op::Tuple => self.module.instructions[id].operands[number],
                        _ => Cursor::unlisted(self.module, self.names, parent)
                            .get_tuple_element(id, number as u32),
                    };
                    self.orders[value] = of_element;
                    copies.push(self.in_orders(value, &wanted));
                }
                Cursor::unlisted(self.module, self.names, parent).tuple(copies)
            }
            _ => {
                let places = inverse(&self.orders[id][0]);
                let permutation: Order = orders[0].iter().map(|&d| places[d as usize]).collect();
                let extents = self.extents(id);
                let moves = permutation.iter().filter(|&&d| extents[d as usize] != 1);
                let is_view = moves.is_sorted();
                let mut at = Cursor::unlisted(self.module, self.names, parent).with_metadata_of(id);
                match is_view {
                    true => at.reshape(id, permutation.iter().map(|&d| extents[d as usize])),
                    false => at.transpose(id, permutation.iter().copied()),
                }
            }
        };
        self.orders[copy] = orders.clone();
        self.copies.insert(key, copy);
        copy
    }

    fn row_major_of(&self, id: InstructionId) -> Leaves {
        self.orders[id].iter().map(|order| row_major(order.len())).collect()
    }

    fn extents(&self, id: InstructionId) -> Dimensions {
        self.module.shape(id).as_array().expect("only arrays have an order").dimensions.clone()
    }

    /// Puts the dimensions of an instruction's shape in order.
    fn set_shape(&mut self, id: InstructionId) {
        let mut leaves = self.orders[id].iter();
        let keeps_layout = is_unusual(self.module, id);
        let shape = permuted(self.module.shape(id), &mut leaves, keeps_layout);
        self.module.set_shape(id, shape);
    }
}

fn permuted<'o>(shape: &Shape, leaves: &mut impl Iterator<Item = &'o Order>, keeps_layout: bool) -> Shape {
    match shape {
        Shape::Tuple(elements) => Shape::tuple(
            elements.iter().map(|element| permuted(element, leaves, keeps_layout)).collect::<Vec<_>>(),
        ),
        Shape::Array(array) => match leaves.next() {
            Some(order) if !keeps_layout => {
                Shape::array(array.element_type, order.iter().map(|&d| array.dimensions[d as usize]))
            }
            _ => shape.clone(),
        },
        _ => {
            leaves.next();
            shape.clone()
        }
    }
}

/// The shape in the program of an array whose dimensions are in an order.
fn logical(module: &Module, id: InstructionId, order: &Order) -> ArrayShape {
    let array = module.shape(id).as_array().expect("only arrays have an order");
    let places = inverse(order);
    ArrayShape::new(array.element_type, places.iter().map(|&at| array.dimensions[at as usize]))
}

fn permute<T: Clone>(values: &mut [T], order: &Order) {
    let old = values.to_vec();
    order.iter().zip(values).for_each(|(&d, value)| *value = old[d as usize].clone());
}

/// The order of an array whose `windows` are dimensions of another array in an order, and whose other dimensions stay.
fn window_order(rank: usize, windows: &Dimensions, of: &Order, is_dropped: impl Fn(&i64) -> bool) -> Order {
    let kept: Order = of.iter().copied().filter(|d| !is_dropped(d)).collect();
    let mut sorted = kept.clone();
    sorted.sort_unstable();
    let mut order = row_major(rank);
    for (&at, d) in windows.iter().zip(&kept) {
        let number = sorted.iter().position(|other| other == d).expect("the same dimensions");
        order[at as usize] = windows[number];
    }
    order
}

/// HLO wants the batch dimensions of a gather's table in order; `None` if they are not.
fn with_sorted_batches(numbers: GatherDimensions) -> Option<GatherDimensions> {
    numbers.operand_batching_dims.is_sorted().then_some(numbers)
}
